"""Plain TCP: blocking sockets, gather writes and scatter reads, one thread a connection."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from engines import Batch
from raw import Pool, check


class Side:
    def __init__(self, raw: Any, pool: Pool, options: Mapping[str, Any]) -> None:
        self._raw, self._pool, self._connections = raw, pool, int(options["connections"])

    def lend(self) -> Dict[str, Any]:
        port = self._raw.raw_listen(self._pool.address, self._pool.length)
        check(min(port, 0), "listen")
        return {"port": port}

    def join(self, told: Mapping[str, Any]) -> None:
        check(self._raw.raw_connect(told["port"], self._connections), "connect")

    def prepare(self, batch: Batch) -> Any:
        # The batch keeps the arrays that are pointed to.
        return batch, batch.local.ctypes.data, batch.remote.ctypes.data

    def write(self, prepared: Any) -> None:
        batch, local, remote = prepared
        length = len(batch.local)
        check(self._raw.raw_send(self._pool.address, local, remote, length, batch.block, self._connections), "send")
