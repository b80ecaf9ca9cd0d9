"""Mooncake's Transfer Engine over TCP, as it comes. It refuses batches of many descriptors: they are cut."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from engines import Batch, addresses
from raw import Pool

from mooncake.engine import TransferEngine

#: Descriptors in a call: what its queue for a peer takes.
_CALL_MAX = 1024

_Call = Tuple[List[int], List[int], List[int]]


class Side:
    def __init__(self, raw: Any, pool: Pool, options: Mapping[str, Any]) -> None:
        self._pool, self._engine = pool, TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("initialize failed")
        if self._engine.register_memory(pool.address, pool.length) != 0:
            raise RuntimeError("register_memory failed")

    def lend(self) -> Dict[str, Any]:
        return {"name": f"127.0.0.1:{self._engine.get_rpc_port()}", "address": self._pool.address}

    def join(self, told: Mapping[str, Any]) -> None:
        self._there, self._address = str(told["name"]), int(told["address"])

    def prepare(self, batch: Batch) -> List[_Call]:
        here, there = (array.tolist() for array in addresses(batch, self._pool.address, self._address))
        cuts = [slice(start, start + _CALL_MAX) for start in range(0, len(here), _CALL_MAX)]
        return [(here[cut], there[cut], [batch.block] * len(here[cut])) for cut in cuts]

    def write(self, prepared: List[_Call]) -> None:
        for here, there, lengths in prepared:
            if len(here) == 1:
                status = self._engine.transfer_sync_write(self._there, here[0], there[0], lengths[0])
            else:
                status = self._engine.batch_transfer_sync_write(self._there, here, there, lengths)
            if status != 0:
                raise RuntimeError(f"a write of {len(here)} descriptors returned {status}")
