"""kvrail as a side of a measurement beside other engines: `Peer`, the class that such a tool loads by the module's name.

The pool is memory that the tool has. Over TCP it is registered where it lies. Over shared memory (`KVRAIL_TRANSPORT=shm`), whose
sender's pool must be a memfd, a region is allocated and laid over the pool's addresses before anything is measured. Between hosts,
or network namespaces, TCP goes over every address of this host that begins like the one that was given (its first two numbers).
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import os
import socket
import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._native import Engine, Ops, Prepared, Region, Ticket, Transfer

#: Longest that a transfer may take, seconds: the tool bounds a measurement itself.
_DEADLINE = 300.0
_SIOCGIFADDR = 0x8915
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2


def _rails(ip: str) -> List[str]:
    """Local IPv4 addresses that share their first two numbers with `ip`; none where it is the loopback."""
    if ip.startswith("127."):
        return []
    prefix = ".".join(ip.split(".")[:2]) + "."
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return [f"{address}/24" for address in found if address.startswith(prefix)]


def _laid_over(engine: Engine, address: int, length: int) -> Region:
    """An allocated region that is seen at `address` as well; it begins with what was there."""
    region = engine.allocate(length)
    ctypes.memmove(region.address, address, length)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    # Of a shared mapping, an old length of nothing means: the same pages a second time.
    laid = libc.mremap(region.address, 0, length, _MREMAP_MAYMOVE | _MREMAP_FIXED, address)
    if laid != address:
        raise OSError(ctypes.get_errno(), "mremap over the pool")
    return region


class Peer:
    """One side: `target` lends its pool, `connect` is the side that writes into it."""

    def __init__(self, ip: str, role: str) -> None:
        self._transport = os.environ.get("KVRAIL_TRANSPORT", "tcp")
        self._engine = Engine(listen=f"{ip}:0", tcp_rails=_rails(ip), transports=[self._transport])
        self._kept: Tuple[Any, ...] = ()

    def _pool(self, addr: int, n: int) -> Region:
        if self._transport == "shm":
            return _laid_over(self._engine, addr, n)
        return self._engine.register_pointer(addr, n)

    def target(self, addr: int, n: int) -> Dict[str, Any]:
        """Lends `n` bytes at `addr`; what the other side needs to write them."""
        region = self._pool(addr, n)
        lease = self._engine.grant(region, ttl=24 * 3600.0)
        self._kept = (region, lease)
        ticket = base64.b64encode(bytes(lease.ticket)).decode()
        return {"address": self._engine.address, "generation": self._engine.generation, "ticket": ticket}

    def connect(self, addr: int, n: int, info: Dict[str, Any]) -> None:
        """Takes `n` bytes at `addr` as what is written from."""
        self._region = self._pool(addr, n)
        self.reconnect(info)

    def reconnect(self, info: Dict[str, Any]) -> None:
        """Writes to the target that `info` is of from now on."""
        self._ticket = Ticket(base64.b64decode(info["ticket"]))
        self._peer = self._engine.connect(info["address"], info["generation"]).wait()

    def prepared(self, ops: Ops) -> Prepared:
        """A list that is to be written, perhaps often."""
        return self._engine.prepare(self._peer, self._region, self._ticket, ops, deadline=_DEADLINE)

    def prep(self, sets: Sequence[Tuple[Any, Any]], block: int) -> List[Prepared]:
        """Lists of descriptors: pairs of slot numbers, source and destination, of `block` bytes each."""
        return [self.prepared(Ops.lists((a * block).tolist(), (b * block).tolist(), block)) for a, b in sets]

    def submit(self, write: Prepared) -> Transfer:
        """Begins to write a list."""
        return write.submit()

    def wait(self, transfer: Transfer, timeout: Optional[float] = None) -> None:
        """Ends when all bytes are visible at the target."""
        transfer.wait(timeout)

    def write(self, write: Prepared) -> None:
        """Writes a list."""
        write.transfer()
