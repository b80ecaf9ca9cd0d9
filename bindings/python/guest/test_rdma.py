"""The wheel over real queue pairs, in the soft-RoCE machine: `KVRAIL_TEST_RDMA` names a NIC of each of two hosts, `rxa0/rxb0` say.

Both ends are in this process. In directory `tests` it would be skipped nearly everywhere.
"""

import os

import numpy as np

import kvrail
from kvrail.compat.mooncake import TransferEngine

LONG = 30.0
NEAR, FAR = os.environ["KVRAIL_TEST_RDMA"].split("/")
LENGTH = 4 << 20


def pattern(length, seed):
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def test_nics_are_found_and_move_memory_that_numpy_made():
    assert {f"{NEAR}:1", f"{FAR}:1"} <= set(kvrail.rdma_nics())
    settings = dict(transports=["rdma"], guard_leases=True)
    with kvrail.Engine(rdma_rails=[FAR], **settings) as owner, kvrail.Engine(rdma_rails=[NEAR], **settings) as writer:
        source, target = pattern(LENGTH, 1), np.zeros(LENGTH, dtype=np.uint8)
        here, there = writer.register(source), owner.register(target)
        lease = owner.grant(there, ttl=600.0)
        peer = writer.connect(owner.address).wait(LONG)
        report = writer.submit(peer, here, lease.ticket, [(0, 0, LENGTH)], deadline=LONG).wait()
        assert report.bytes == LENGTH and {rail[0] for rail in report.rails} == {"rdma"}
        assert (target == source).all()
        lease.revoke().wait(LONG)


def test_a_program_of_mooncakes_moves_over_the_nics_that_it_names():
    engines = []
    for nic in (NEAR, FAR):
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", nic) == 0
        engines.append(engine)
    writer, owner = engines
    source, target = pattern(LENGTH, 2), np.zeros(LENGTH, dtype=np.uint8)
    assert writer.register_memory(source.ctypes.data, LENGTH) == 0
    assert owner.register_memory(target.ctypes.data, LENGTH) == 0
    name = f"127.0.0.1:{owner.get_rpc_port()}"
    pages = range(0, LENGTH, 64 << 10)
    here, there = [[buffer.ctypes.data + at for at in pages] for buffer in (source, target)]
    assert writer.batch_transfer_sync_write(name, here, there, [64 << 10] * len(pages)) == 0
    assert (target == source).all()
    stats = writer._engine.stats()
    assert stats["work_requests"] > 0 and stats["bytes_moved"] >= LENGTH
    assert owner.unregister_memory(target.ctypes.data) == 0 and writer.unregister_memory(source.ctypes.data) == 0
