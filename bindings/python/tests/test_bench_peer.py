"""The class that measurements beside other engines load, driven as their worker does."""

import json
import mmap

import numpy as np

from kvrail.bench_peer import Peer, _rails

POOL, BLOCK = 4 << 20, 16 << 10


def memory(fill):
    block = np.frombuffer(mmap.mmap(-1, POOL), dtype=np.uint8)
    block[:] = fill
    return block


def test_a_target_and_an_initiator_move_slots_as_a_worker_asks_them_to():
    source, pool = memory(0), memory(0xEE)
    source[:] = np.random.default_rng(7).integers(0, 256, POOL, dtype=np.uint8)
    target, initiator = Peer("127.0.0.1", "target"), Peer("127.0.0.1", "init")
    # What a target says travels as JSON.
    info = json.loads(json.dumps(target.target(pool.ctypes.data, POOL)))
    initiator.connect(source.ctypes.data, POOL, info)
    slots = POOL // BLOCK
    a, b = np.random.default_rng(1).permutation(slots), np.random.default_rng(2).permutation(slots)
    first, second = initiator.prep([(a[:100], b[:100]), (a[100:], b[100:])], BLOCK)
    initiator.write(first)
    into = pool.reshape(slots, BLOCK)
    assert (into[b[:100]] == source.reshape(slots, BLOCK)[a[:100]]).all()
    assert (into[b[100:]] == 0xEE).all()
    initiator.wait(initiator.submit(second))
    assert (into[b] == source.reshape(slots, BLOCK)[a]).all()
    initiator.reconnect(info)
    initiator.write(first)


def test_the_loopback_has_no_rails_and_a_host_has_those_that_begin_alike():
    assert _rails("127.0.0.1") == []
    assert all(rail.startswith("10.77.") and rail.endswith("/24") for rail in _rails("10.77.1.1"))
