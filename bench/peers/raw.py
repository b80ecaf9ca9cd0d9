"""The C half of the harness, `raw.c`: the baselines, and what fills and checks pools at the speed of memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib
import subprocess
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.uint64]

SOURCE = pathlib.Path(__file__).with_name("raw.c")


def build(directory: pathlib.Path) -> pathlib.Path:
    """Compiles `raw.c` for this machine; the library."""
    library = directory / "libraw.so"
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(library)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}")
    return library


def load(library: str) -> Any:
    """The library, with what its functions take."""
    raw = ctypes.CDLL(library)
    address, word, number = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
    raw.raw_fill.argtypes = [address, address, word, word, word]
    raw.raw_sums.argtypes = [address, address, word, word, address]
    raw.raw_cpu_seconds.argtypes = [number]
    raw.raw_cpu_seconds.restype = ctypes.c_double
    raw.raw_threads.argtypes = [number]
    raw.raw_copy.argtypes = [address, address, address, address, word, word, number]
    raw.raw_listen.argtypes = [address, word]
    raw.raw_connect.argtypes = [number, number]
    raw.raw_send.argtypes = [address, address, address, word, word, number]
    return raw


def check(result: int, what: str) -> None:
    """Raises what an errno says."""
    if result:
        raise OSError(abs(result), f"{what}: {os.strerror(abs(result))}")


class Pool:
    """Memory of a side, all of it there: private on huge pages, or a memfd that other processes can map.

    With the `place` of another process's pool it is that one.
    """

    def __init__(self, raw: Any, length: int, shared: bool, place: Optional[str] = None) -> None:
        self.raw, self.length, self.fd = raw, length, -1
        if place is not None:
            self.fd = os.open(place, os.O_RDWR)
        elif shared:
            self.fd = os.memfd_create("pool")
            os.ftruncate(self.fd, length)
        if self.fd >= 0:
            self._map = mmap.mmap(self.fd, length)
        else:
            self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address: int = np.frombuffer(self._map, dtype=np.uint8).ctypes.data
        if place is None:
            ctypes.memset(self.address, 0, length)

    @property
    def place(self) -> str:
        """Where another process finds it."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def fill(self, offsets: Offsets, block: int, seed: int) -> None:
        """New contents for some blocks: a word depends on the seed and on its place."""
        self.raw.raw_fill(self.address, offsets.ctypes.data, len(offsets), block, seed)

    def sums(self, offsets: Offsets, block: int) -> npt.NDArray[np.uint64]:
        """A checksum of each block."""
        sums = np.empty(len(offsets), np.uint64)
        self.raw.raw_sums(self.address, offsets.ctypes.data, len(offsets), block, sums.ctypes.data)
        return sums
