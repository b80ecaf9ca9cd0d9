"""kvrail by its wheel: `kvrail.bench_peer`, on the pool where it lies (tcp) or laid over it (shm)."""

from __future__ import annotations

import base64
import os
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import kvrail
from kvrail.bench_peer import Peer

from engines import Batch
from raw import Pool


class Side:
    def __init__(self, raw: Any, pool: Pool, options: Mapping[str, Any]) -> None:
        os.environ["KVRAIL_TRANSPORT"] = options["transport"]
        self._pool, self._transport = pool, options["transport"]
        self._peer = Peer("127.0.0.1", "side")
        self._beside: List[Tuple[Any, ...]] = []

    def lend(self) -> Dict[str, Any]:
        return self._peer.target(self._pool.address, self._pool.length)

    def join(self, told: Mapping[str, Any]) -> None:
        self._peer.connect(self._pool.address, self._pool.length, dict(told))

    def prepare(self, batch: Batch) -> kvrail.Prepared:
        return self._peer.prepared(kvrail.Ops.lists(batch.local.tolist(), batch.remote.tolist(), batch.block))

    def prepare_strided(self, descriptors: Sequence[Tuple[int, int, int, int, int, int]]) -> kvrail.Prepared:
        """(local offset, local stride, remote offset, remote stride, length of a run, runs) each."""
        return self._peer.prepared(kvrail.Ops.strided(list(descriptors)))

    def submit(self, prepared: kvrail.Prepared) -> kvrail.Transfer:
        return self._peer.submit(prepared)

    def wait(self, handle: kvrail.Transfer) -> None:
        self._peer.wait(handle)

    def write(self, prepared: kvrail.Prepared) -> None:
        prepared.transfer()

    def join_more(self, told: Mapping[str, Any], engines: int, block: int) -> None:
        """So many engines more, each connected to the other side, and each has moved a block over its own connections."""
        for number in range(engines):
            engine = kvrail.Engine(listen="127.0.0.1:0", transports=[self._transport])
            peer = engine.connect(told["address"], told["generation"]).wait(20)
            region = engine.register_pointer(self._pool.address, self._pool.length)
            place = number * block
            engine.submit(peer, region, base64.b64decode(told["ticket"]), [(place, place, block)]).wait(20)
            self._beside.append((engine, peer, region))
