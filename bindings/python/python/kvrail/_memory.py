"""Where an object's memory lies, and views of memory. Nothing here copies."""

from __future__ import annotations

import ctypes
from typing import Any, Tuple

from ._native import dlpack

#: address, length in bytes, whether it is read-only, and the object that keeps it
Described = Tuple[int, int, bool, Any]

# DLDeviceType: ordinary memory, and host memory that CUDA has pinned.
_CPU, _CUDA_HOST = 1, 3


def describe(memory: Any) -> Described:
    """Where the memory of a NumPy array, a tensor or a writable buffer lies. It must be dense in C order."""
    interface = getattr(memory, "__array_interface__", None)
    if interface is not None:
        return _of_interface(memory, interface)
    if hasattr(memory, "__dlpack__"):
        return _of_dlpack(memory)
    return _of_buffer(memory)


def _of_interface(memory: Any, interface: Any) -> Described:
    size = int(interface["typestr"][2:])
    length, expected = size, size
    strides = interface.get("strides")
    for axis in reversed(range(len(interface["shape"]))):
        extent = interface["shape"][axis]
        if strides is not None and extent > 1 and strides[axis] != expected:
            raise BufferError("memory: the array is not dense in C order")
        expected *= extent
        length *= extent
    data = interface.get("data")
    if data is None:
        raise BufferError("memory: the array does not say where it lies")
    address, readonly = data
    return address, length, bool(readonly), memory


def _of_dlpack(memory: Any) -> Described:
    kind, _ = memory.__dlpack_device__()
    if kind not in (_CPU, _CUDA_HOST):
        raise BufferError(f"memory: on a device of DLPack kind {kind}; the engine moves host memory")
    # The capsule keeps the tensor; nobody consumes it.
    capsule = memory.__dlpack__()
    address, length, _, dense = dlpack(capsule)
    if not dense:
        raise BufferError("memory: the tensor is not dense in C order")
    return address, length, False, capsule


def _of_buffer(memory: Any) -> Described:
    buffer = memoryview(memory)
    if not buffer.c_contiguous:
        raise BufferError("memory: the buffer is not dense in C order")
    if buffer.readonly:
        raise BufferError("memory: the buffer is read-only; register numpy.frombuffer(…) to send from it")
    # Holds the buffer: what it belongs to can be neither resized nor closed meanwhile.
    held = (ctypes.c_ubyte * buffer.nbytes).from_buffer(buffer)
    return ctypes.addressof(held), buffer.nbytes, False, held


def view(address: int, length: int, owner: Any) -> memoryview:
    """Writable bytes at an address; they keep `owner`."""
    array = (ctypes.c_ubyte * length).from_address(address)
    array.owner = owner
    return memoryview(array).cast("B")
