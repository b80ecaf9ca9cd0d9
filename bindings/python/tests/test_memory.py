"""Memory of others: in place, kept as long as needed, given back when said."""

import gc
import mmap
import time
import weakref

import numpy as np
import pytest

import kvrail
from conftest import LONG, pattern, references
from kvrail import errors


def moved(pair, source, target):
    """Writes all of a region into another of the same length."""
    owner, writer, peer = pair
    lease = owner.grant(target)
    report = writer.submit(peer, source, lease.ticket, [(0, 0, len(target))]).wait(LONG)
    lease.revoke().wait(LONG)
    return report


def test_numpy_arrays_are_moved_where_they_lie(pair):
    owner, writer, _ = pair
    source = pattern(1 << 16).view(np.float16).reshape(2, 8, 128, 16)
    target = np.zeros_like(source)
    here, there = writer.register(source), owner.register(target)
    assert (here.address, len(here)) == (source.ctypes.data, source.nbytes)
    assert there.address == target.ctypes.data
    assert moved(pair, here, there).bytes == source.nbytes
    assert target.tobytes() == source.tobytes()


class Tensor:
    """A tensor that speaks DLPack alone, as torch's does where NumPy is not asked."""

    def __init__(self, array, device=None):
        self.array = array
        self.device = device or array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("make", [
    lambda data: bytearray(data),
    lambda data: (lambda m: (m.write(data), m)[1])(mmap.mmap(-1, len(data))),
    lambda data: memoryview(bytearray(data)),
    lambda data: Tensor(np.frombuffer(bytearray(data), dtype=np.int32).reshape(64, -1)),
], ids=["bytearray", "mmap", "memoryview", "dlpack"])
def test_other_owners_of_memory(pair, make):
    owner, writer, _ = pair
    data = pattern(1 << 15).tobytes()
    source, target = make(data), np.zeros(1 << 15, dtype=np.uint8)
    here = writer.register(source)
    assert len(here) == 1 << 15
    moved(pair, here, owner.register(target))
    assert target.tobytes() == data


def test_what_cannot_be_moved_in_place_is_refused(pair):
    owner, writer, _ = pair
    dense = np.zeros((8, 8), dtype=np.int32)
    for memory in [dense[:, ::2], dense.T, Tensor(dense.T), Tensor(dense[::2]), memoryview(bytearray(16))[::2]]:
        with pytest.raises(BufferError, match="dense"):
            owner.register(memory)
    for memory in [b"constant", memoryview(b"constant")]:
        with pytest.raises(BufferError, match="read-only"):
            owner.register(memory)
    with pytest.raises(BufferError, match="device"):
        owner.register(Tensor(dense, device=(2, 0)))
    with pytest.raises(TypeError):
        owner.register(7)
    with pytest.raises(errors.MemoryFailure):
        owner.register(np.zeros(0))
    # One row of a matrix is dense, and so is an axis of length one with whatever stride.
    assert len(owner.register(dense[3])) == 32 and len(owner.register(dense[:1])) == 32
    assert len(owner.register(Tensor(dense[3:4]))) == 32


def test_read_only_memory_is_sent_and_never_written(pair):
    owner, writer, peer = pair
    constant = np.frombuffer(b"constant", dtype=np.uint8)
    region = writer.register(constant)
    assert region.readonly
    target = owner.allocate(8)
    assert moved(pair, region, target).ok and bytes(target.view()) == b"constant"
    with pytest.raises(BufferError, match="read-only"):
        writer.grant(region)
    lease = owner.grant(target, access="read")
    with pytest.raises(BufferError, match="read-only"):
        writer.submit(peer, region, lease.ticket, [(0, 0, 8)], direction="read")
    assert writer.grant(region, access="read").ticket.access == "read"


class Array(np.ndarray):
    """An array that can be watched."""


def test_the_owner_is_kept_while_it_is_lent_and_let_go_afterwards(pair):
    owner, writer, peer = pair
    source = writer.allocate(4096)
    source.view()[:] = pattern(4096)
    array = np.zeros(4096, dtype=np.uint8).view(Array)
    watch, kept = weakref.ref(array), array.base
    region = owner.register(array)
    lease = owner.grant(region)
    ticket = lease.ticket
    del array, region
    gc.collect()
    assert watch() is not None, "a peer may write it"
    writer.submit(peer, source, ticket, [(0, 0, 4096)]).wait(LONG)
    assert kept.tobytes() == bytes(source.view())
    lease.revoke().wait(LONG)
    del lease
    # The last hold may be a worker's, for a moment; what it lets go is released by the next call.
    for _ in range(200):
        owner.stats()
        gc.collect()
        if watch() is None:
            break
        time.sleep(0.01)
    assert watch() is None, "nothing can touch it any more"


def test_unregister_says_when_memory_is_its_owners_again(pair):
    owner, writer, peer = pair
    array = bytearray(4096)
    region = owner.register(array)
    lease = owner.grant(region)
    given_back = region.unregister()
    with pytest.raises(TimeoutError):
        given_back.wait(0.05)
    with pytest.raises(BufferError):
        array.extend(b"x")
    lease.revoke().wait(LONG)
    del lease
    given_back.wait(LONG)
    owner.stats()
    array.extend(b"x")
    with pytest.raises(ValueError, match="unregistered"):
        owner.grant(region)


def test_a_pointer_with_an_owner_keeps_it_and_one_without_is_the_callers_affair(pair):
    owner, writer, _ = pair
    source, target = pattern(4096), np.zeros(4096, dtype=np.uint8)
    before = references(source)
    here = writer.register_pointer(source.ctypes.data, 4096, source)
    assert references(source) == before + 1
    there = owner.register_pointer(target.ctypes.data, 4096)
    moved(pair, here, there)
    assert (source == target).all()
    with pytest.raises(errors.MemoryFailure):
        owner.register_pointer(0, 4096)


def test_views_of_allocated_memory_keep_it_and_registered_memory_has_none(pair):
    owner, _, _ = pair
    region = owner.allocate(4096)
    array, view = np.asarray(region), region.view()
    assert (array.ctypes.data, array.nbytes) == (region.address, 4096) and region.address % (2 << 20) == 0
    del region
    gc.collect()
    array[:] = 7
    assert bytes(view) == b"\7" * 4096
    registered = owner.register(np.zeros(16, dtype=np.uint8))
    with pytest.raises(BufferError, match="view"):
        registered.view()
    assert not hasattr(registered, "__array_interface__")
    with pytest.raises(ValueError, match="not registered"):
        owner.allocate(16).unregister()


def resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def test_no_staging_copy_is_made(pair):
    owner, writer, _ = pair
    length = 192 << 20
    source, target = np.ones(length, dtype=np.uint8), np.zeros(length, dtype=np.uint8)
    target[:] = 2
    here, there = writer.register(source), owner.register(target)
    before = resident_kb()
    moved(pair, here, there)
    grown = resident_kb() - before
    assert target[0] == target[-1] == 1 and target.all()
    assert grown < length / 1024 / 4, f"{grown} KiB more than both arrays"
