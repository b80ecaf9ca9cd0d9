"""kvrail as a side of a measurement beside other engines: `Peer`, the class that such a tool loads by the module's name.

The pool is memory that the tool has; it is registered and never copied. Between hosts, or network namespaces, TCP goes over every
address of this host that begins like the one that was given (its first two numbers): one rail each.
"""

from __future__ import annotations

import base64
import fcntl
import socket
import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._native import Engine, Ops, Transfer

#: Longest that a transfer may take, seconds: the tool bounds a measurement itself.
_DEADLINE = 300.0
_SIOCGIFADDR = 0x8915


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


class Peer:
    """One side: `target` lends its pool, `connect` is the side that writes into it."""

    def __init__(self, ip: str, role: str) -> None:
        self._engine = Engine(listen=f"{ip}:0", tcp_rails=_rails(ip), transports=["tcp"])
        self._kept: Tuple[Any, ...] = ()

    def target(self, addr: int, n: int) -> Dict[str, Any]:
        """Lends `n` bytes at `addr`; what the other side needs to write them."""
        region = self._engine.register_pointer(addr, n)
        lease = self._engine.grant(region, ttl=24 * 3600.0)
        self._kept = (region, lease)
        ticket = base64.b64encode(bytes(lease.ticket)).decode()
        return {"address": self._engine.address, "generation": self._engine.generation, "ticket": ticket}

    def connect(self, addr: int, n: int, info: Dict[str, Any]) -> None:
        """Takes `n` bytes at `addr` as what is written from."""
        self._region = self._engine.register_pointer(addr, n)
        self.reconnect(info)

    def reconnect(self, info: Dict[str, Any]) -> None:
        """Writes to the target that `info` is of from now on."""
        self._ticket = base64.b64decode(info["ticket"])
        self._peer = self._engine.connect(info["address"], info["generation"]).wait()

    def prep(self, sets: Sequence[Tuple[Any, Any]], block: int) -> List[Ops]:
        """Lists of descriptors: pairs of slot numbers, source and destination, of `block` bytes each."""
        return [Ops.lists((a * block).tolist(), (b * block).tolist(), block) for a, b in sets]

    def submit(self, ops: Ops) -> Transfer:
        """Begins to write a list."""
        return self._engine.submit(self._peer, self._region, self._ticket, ops, deadline=_DEADLINE)

    def wait(self, transfer: Transfer, timeout: Optional[float] = None) -> None:
        """Ends when all bytes are visible at the target."""
        transfer.wait(timeout)

    def write(self, ops: Ops) -> None:
        """Writes a list."""
        self.wait(self.submit(ops))
