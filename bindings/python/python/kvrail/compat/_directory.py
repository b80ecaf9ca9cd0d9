"""Who has registered what: asked once for a peer, and again when it has registered more.

Mooncake's callers know a peer by `host:port` and its memory by raw addresses. Here that port is a directory's: whoever connects
is sent one JSON object, and the connection ends. It names the engine's port, and each registered buffer with two tickets, one to
write it and one to read it. Nothing that is asked is parsed, so nothing can be asked wrongly.
"""

from __future__ import annotations

import base64
import json
import logging
import socket
import threading
from dataclasses import dataclass
from typing import Callable, List, Tuple
from weakref import WeakMethod

from .._native import Buffers, Ticket

_log = logging.getLogger("kvrail.compat")

#: Marks the object as ours, and says which form it has.
_FORM = "kvrail_directory"
_FORM_VERSION = 1
#: Longest that either side waits for the other.
_TIMEOUT = 5.0
#: Longest answer that is read, bytes: some hundred thousand buffers.
_ANSWER_MAX = 64 << 20


@dataclass(frozen=True)
class Entry:
    """A registered buffer, as its owner tells it."""

    address: int
    length: int
    write: Ticket
    read: Ticket


class Directory:
    """The server: a thread that answers one connection after the other. It does not keep the engine whose entries it tells."""

    def __init__(self, host: str, engine_port: int, entries: Callable[[], List[Entry]]) -> None:
        self._engine_port = engine_port
        self._entries = WeakMethod(entries)
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(address)
        self._socket.listen(64)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="kvrail-directory", daemon=True).start()

    def close(self) -> None:
        """Answers nobody any more."""
        # A blocked accept ends with a shutdown, not with a close.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                with connection:
                    connection.settimeout(_TIMEOUT)
                    connection.sendall(self._answer())
            except OSError as error:
                _log.debug("an answer of the directory was not taken: %s", error)

    def _answer(self) -> bytes:
        def text(ticket: Ticket) -> str:
            return base64.b64encode(bytes(ticket)).decode()

        entries = self._entries()
        buffers = [[e.address, e.length, text(e.write), text(e.read)] for e in (entries() if entries else [])]
        return json.dumps({_FORM: _FORM_VERSION, "port": self._engine_port, "buffers": buffers}).encode()


class Segment:
    """What a peer has registered, and where its engine is."""

    def __init__(self, address: str, entries: List[Entry]) -> None:
        self.address = address
        self.entries = entries
        self.buffers = Buffers([(entry.address, entry.length) for entry in entries])


def look_up(target: str) -> Segment:
    """Asks the directory at `host:port`. OSError or ValueError if it cannot be asked or is none."""
    host, port = split(target)
    with socket.create_connection((host, port), timeout=_TIMEOUT) as connection:
        ip = connection.getpeername()[0]
        answer = bytearray()
        while chunk := connection.recv(1 << 16):
            answer += chunk
            if len(answer) > _ANSWER_MAX:
                raise ValueError(f"{target}: more than {_ANSWER_MAX} bytes of directory")
    told = json.loads(answer)
    if not isinstance(told, dict) or told.get(_FORM) != _FORM_VERSION:
        raise ValueError(f"{target} is no directory of kvrail.compat")
    entries = [
        Entry(address, length, Ticket(base64.b64decode(write)), Ticket(base64.b64decode(read)))
        for address, length, write, read in told["buffers"]
    ]
    return Segment(join(ip, told["port"]), entries)


def split(target: str) -> Tuple[str, int]:
    """Host and port of `host:port`, `[host]:port` where the host has colons."""
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{target!r} is not host:port")
    return host.strip("[]"), int(port)


def join(ip: str, port: int) -> str:
    """ADDRESS:PORT."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
