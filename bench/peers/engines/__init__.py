"""Whom the harness measures: each contender is a module here with a class `Side`, and what it is started with.

A `Side` is made once a process as `Side(raw, pool, options)`, in both processes. The one that is written to answers `lend()`
with what the other needs; the other is handed that by `join(told)`. There, `prepare(batch)` makes of offsets and a block
length whatever the engine likes to be given again and again, outside the clock; `write(prepared)` returns when all bytes are
visible at the other side. Engines that can submit without waiting have `submit(prepared)` and `wait(handle)` as well.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Protocol, Tuple

import numpy as np

from raw import Offsets, Pool


@dataclasses.dataclass(frozen=True)
class Batch:
    """Blocks of one length: byte offsets in the pool here and in the pool there."""

    local: Offsets
    remote: Offsets
    block: int

    @property
    def bytes(self) -> int:
        return len(self.local) * self.block


class Side(Protocol):
    """One side of a measurement."""

    def __init__(self, raw: Any, pool: Pool, options: Mapping[str, Any]) -> None: ...
    def lend(self) -> Dict[str, Any]: ...
    def join(self, told: Mapping[str, Any]) -> None: ...
    def prepare(self, batch: Batch) -> Any: ...
    def write(self, prepared: Any) -> None: ...


@dataclasses.dataclass(frozen=True)
class Contender:
    """An engine, how it is set, and the memory that it moves."""

    module: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Whether pools are memfds: what copies into memory of another process must map it.
    shared: bool = False


_NIXL_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}

#: By name, those over TCP first. NIXL is there with its progress thread, as it comes, and with none on the side that writes,
#: which polls in any case: three threads that spin on two cores are not its best.
CONTENDERS: Dict[str, Contender] = {
    "kvrail-tcp": Contender("kvrail", {"transport": "tcp"}),
    "sockets-1": Contender("sockets", {"connections": 1}),
    "sockets-2": Contender("sockets", {"connections": 2}),
    "nixl-tcp": Contender("nixl", {"progress_thread": True}, _NIXL_TCP),
    "nixl-tcp-poll": Contender("nixl", {"progress_thread": False}, _NIXL_TCP),
    "mooncake": Contender("mooncake"),
    "kvrail-shm": Contender("kvrail", {"transport": "shm"}, shared=True),
    "memcpy-1": Contender("memory", {"threads": 1}, shared=True),
    "memcpy-2": Contender("memory", {"threads": 2}, shared=True),
    "nixl-cma": Contender("nixl", {"progress_thread": True}),
    "nixl-cma-poll": Contender("nixl", {"progress_thread": False}),
}


def addresses(batch: Batch, here: int, there: int) -> Tuple[Offsets, Offsets]:
    """The batch by addresses, for engines that know no offsets."""
    return batch.local + np.uint64(here), batch.remote + np.uint64(there)
