"""NIXL with UCX. A transfer is prepared once and posted again and again, which is the cheapest way that it has.

The side that is written to keeps its progress thread: without one nothing answers the first connection.
"""

from __future__ import annotations

import base64
import os
from typing import Any, Dict, Mapping

import numpy as np

from engines import Batch, addresses
from raw import Offsets, Pool

from nixl_cu12 import _api


class Side:
    def __init__(self, raw: Any, pool: Pool, options: Mapping[str, Any]) -> None:
        self._pool, self._options = pool, options

    def _start(self, progress_thread: bool) -> None:
        settings = _api.nixl_agent_config(enable_prog_thread=progress_thread, backends=["UCX"])
        self._agent = _api.nixl_agent(f"side-{os.getpid()}", settings)
        self._registered = self._agent.register_memory([(self._pool.address, self._pool.length, 0, "")], "DRAM")

    def lend(self) -> Dict[str, Any]:
        self._start(True)
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": self._pool.address}

    def join(self, told: Mapping[str, Any]) -> None:
        self._start(bool(self._options["progress_thread"]))
        name = self._agent.add_remote_agent(base64.b64decode(told["metadata"]))
        self._there = name.decode() if isinstance(name, bytes) else name
        self._address = int(told["address"])

    def _list(self, where: Offsets, block: int) -> Any:
        rows = np.zeros((len(where), 3), dtype=np.uint64)
        rows[:, 0], rows[:, 1] = where, block
        return self._agent.get_xfer_descs(rows, "DRAM")

    def prepare(self, batch: Batch) -> Any:
        here, there = addresses(batch, self._pool.address, self._address)
        lists = self._list(here, batch.block), self._list(there, batch.block)
        return self._agent.initialize_xfer("WRITE", *lists, self._there)

    def submit(self, prepared: Any) -> Any:
        return prepared, self._agent.transfer(prepared)

    def wait(self, handle: Any) -> None:
        prepared, state = handle
        while state == "PROC":
            state = self._agent.check_xfer_state(prepared)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended as {state}")

    def write(self, prepared: Any) -> None:
        self.wait(self.submit(prepared))
