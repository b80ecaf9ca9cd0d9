"""memcpy into the other process's memory, block by block: nobody is told, and the other side does nothing."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Mapping

from engines import Batch
from raw import Pool, check


class Side:
    def __init__(self, raw: Any, pool: Pool, options: Mapping[str, Any]) -> None:
        self._raw, self._pool, self._threads = raw, pool, int(options["threads"])

    def lend(self) -> Dict[str, Any]:
        return {"place": self._pool.place}

    def join(self, told: Mapping[str, Any]) -> None:
        self._there = Pool(self._raw, self._pool.length, True, told["place"])
        # Its pages into this process's page table before anything is measured, as a NIC's registration would.
        ctypes.memset(self._there.address, 0, self._there.length)
        check(self._raw.raw_threads(self._threads), "threads")

    def prepare(self, batch: Batch) -> Any:
        return batch, batch.local.ctypes.data, batch.remote.ctypes.data

    def write(self, prepared: Any) -> None:
        batch, local, remote = prepared
        here, there, length = self._pool.address, self._there.address, len(batch.local)
        check(self._raw.raw_copy(here, there, local, remote, length, batch.block, self._threads), "copy")
