"""The class that measurements beside other engines load, driven as their worker does."""

import json
import mmap

import numpy as np
import pytest

from kvrail.bench_peer import Peer, _rails

POOL, BLOCK = 4 << 20, 16 << 10


def memory(fill):
    block = np.frombuffer(mmap.mmap(-1, POOL), dtype=np.uint8)
    block[:] = fill
    return block


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_target_and_an_initiator_move_slots_as_a_worker_asks_them_to(transport, monkeypatch):
    monkeypatch.setenv("KVRAIL_TRANSPORT", transport)
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
    # The pool is the tool's memory still: what it writes there is what goes out.
    source[:BLOCK] += 1
    sent = initiator.submit(second)
    initiator.wait(sent)
    initiator.write(first)
    assert {kind for kind, _, _ in sent.report.rails} == {transport}
    assert (into[b] == source.reshape(slots, BLOCK)[a]).all()
    initiator.reconnect(info)
    initiator.write(first)


def test_the_loopback_has_no_rails_and_a_host_has_those_that_begin_alike():
    assert _rails("127.0.0.1") == []
    assert all(rail.startswith("10.77.") and rail.endswith("/24") for rail in _rails("10.77.1.1"))
