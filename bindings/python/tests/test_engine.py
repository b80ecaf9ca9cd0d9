"""Engines, leases, transfers: well, and not well."""

import threading
import time

import numpy as np
import pytest

import kvrail
from conftest import LONG, pattern
from kvrail import errors


def test_a_write_is_visible_when_it_is_done(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(1 << 20), writer.allocate(1 << 20)
    data = pattern(1 << 20)
    source.view()[:] = data
    lease = owner.grant(pool)
    report = writer.submit(peer, source, lease.ticket, [(0, 0, 1 << 20)]).wait(LONG)
    assert report.ok and report.status == 0 and report.bytes == 1 << 20 and report.statuses == b"\0"
    assert [(kind, n) for kind, _, n in report.rails if n][0][0] == "shm"
    assert bytes(pool.view()) == data.tobytes()
    assert lease.bytes_landed == 1 << 20


def test_a_read_brings_the_owners_bytes_and_strides_keep_their_places(pair):
    owner, reader, peer = pair
    pool, mine = owner.allocate(64 * 1024), reader.allocate(64 * 1024)
    pool.view()[:] = data = pattern(64 * 1024)
    lease = owner.grant(pool, access="read")
    # Every second KiB there, to be packed here.
    ops = kvrail.Ops.strided([(0, 1024, 1024, 2048, 1024, 32)])
    assert (len(ops), ops.bytes) == (1, 32 * 1024)
    assert reader.submit(peer, mine, lease.ticket, ops, direction="read").wait(LONG).bytes == 32 * 1024
    got = np.asarray(mine).reshape(64, 1024)
    assert (got[:32] == data.reshape(64, 1024)[1::2]).all() and not got[32:].any()


def test_a_ticket_is_bytes_on_the_way_and_a_prepared_list_is_used_twice(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(8192), writer.allocate(8192)
    ticket = kvrail.Ticket(bytes(owner.grant(pool, [(0, 4096), (4096, 100)]).ticket))
    assert (ticket.generation, ticket.access, ticket.ranges) == (owner.generation, "write", [(0, 4196)])
    lease = owner.grant(pool)
    ops = kvrail.Ops.lists([0, 4096], [4096, 0], 4096)
    for round_ in range(2):
        source.view()[:] = pattern(8192, round_)
        writer.submit(peer, source, bytes(lease.ticket), ops).wait(LONG)
        assert bytes(pool.view()) == bytes(source.view()[4096:]) + bytes(source.view()[:4096])


def test_a_prepared_transfer_is_done_many_times_and_tells_of_its_end(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(8192), writer.allocate(8192)
    lease = owner.grant(pool)
    prepared = writer.prepare(peer, source, bytes(lease.ticket), [(0, 4096, 4096)])
    for round_ in range(3):
        source.view()[:] = pattern(8192, round_)
        report = prepared.transfer() if round_ else prepared.submit().wait(LONG)
        assert report.ok and report.bytes == 4096 and report.statuses == b"\0"
        assert bytes(pool.view())[4096:] == bytes(source.view()[:4096])
    assert lease.revoke().wait(LONG) == 3 * 4096
    with pytest.raises(kvrail.Stale) as refused:
        prepared.transfer()
    assert refused.value.report is not None and not refused.value.report.ok


def test_a_notification_comes_after_the_bytes(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(4096), writer.allocate(4096)
    source.view()[:] = pattern(4096)
    lease = owner.grant(pool)
    assert owner.try_notification() is None
    pending = owner.notification()
    with pytest.raises(TimeoutError):
        pending.wait(0.01)
    writer.submit(peer, source, lease.ticket, [(0, 0, 4096)], notify=b"there").wait(LONG)
    told = pending.wait(LONG)
    assert (told.payload, told.sender) == (b"there", writer.generation)
    assert bytes(pool.view()) == bytes(source.view())
    assert pending.wait(LONG).payload == b"there", "a result stays"


def test_a_revoked_lease_turns_writes_away_and_the_exception_tells_of_each_op(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(8192), writer.allocate(8192)
    source.view()[:] = pattern(8192)
    lease = owner.grant(pool)
    assert lease.revoke().wait(LONG) == 0 and lease.is_over
    transfer = writer.submit(peer, source, lease.ticket, [(0, 0, 4096), (4096, 4096, 4096)])
    with pytest.raises(kvrail.Stale) as caught:
        transfer.wait(LONG)
    error = caught.value
    assert isinstance(error, kvrail.TransferError) and (error.status, error.name) == (-80, "stale")
    assert error.report is not None and not error.report.ok and error.report.bytes == 0
    assert [op.index for op in error.errors] == [0, 1] and len(error.report.statuses) == 2
    assert all(isinstance(op, kvrail.OpError) and op.status > 0 for op in error.errors)
    assert isinstance(error.errors[0], errors.OpFailed) and error.errors[0].name == "stale"
    transfer.quiesce().wait(LONG)
    assert not any(pool.view())


def test_what_makes_no_sense_is_refused_by_name(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(4096), writer.allocate(4096)
    lease, other = owner.grant(pool, [(0, 1024)]), writer.grant(source)

    def refused(kind, words, *arguments, **options):
        with pytest.raises(kind, match=words) as caught:
            writer.submit(peer, source, *arguments, **options)
        assert isinstance(caught.value, (kvrail.Error, ValueError, TypeError))

    refused(errors.BadOp, "op 1", lease.ticket, [(0, 0, 1), (4000, 0, 97)])
    refused(errors.OutsideLease, "op 0", lease.ticket, [(0, 1000, 100)])
    refused(errors.WrongAccess, "direction", lease.ticket, [(0, 0, 1)], direction="read")
    refused(errors.WrongPeer, "generation", other.ticket, [(0, 0, 1)])
    refused(errors.NotifyTooLong, "5000", lease.ticket, [(0, 0, 1)], notify=bytes(5000))
    refused(errors.BadTicket, "ticket", b"not a ticket", [(0, 0, 1)])
    refused(ValueError, "direction", lease.ticket, [(0, 0, 1)], direction="sideways")
    refused(ValueError, "transfer_class", lease.ticket, [(0, 0, 1)], transfer_class="first")
    for words, action in [
        ("listen", lambda: kvrail.Engine(listen="nowhere")),
        ("streams_per_peer", lambda: kvrail.Engine(streams_per_peer=0)),
        ("transports", lambda: kvrail.Engine(transports=["pigeon"])),
        ("heartbeat", lambda: kvrail.Engine(heartbeat=-1.0)),
        ("tcp_rails", lambda: kvrail.Engine(tcp_rails=["10.0.0.1/99"])),
        ("rdma_rails", lambda: kvrail.Engine(rdma_rails=["mlx5_0:x"])),
        ("passes the end", lambda: owner.grant(pool, [(0, 4097)])),
        ("access", lambda: owner.grant(pool, access="own")),
        ("address", lambda: owner.connect("localhost")),
        ("lengths", lambda: kvrail.Ops.lists([1], [1, 2], 3)),
    ]:
        with pytest.raises(ValueError, match=words):
            action()
    with pytest.raises(errors.MemoryFailure):
        owner.allocate(0)


def test_connecting_to_nobody_to_oneself_and_to_another_start_are_told_apart(pair):
    owner, writer, _ = pair
    with pytest.raises(errors.Unreachable):
        writer.connect("127.0.0.1:1").wait(LONG)
    with pytest.raises(errors.Myself):
        writer.connect(writer.address).wait(LONG)
    with pytest.raises(errors.WrongGeneration):
        with kvrail.Engine() as third:
            third.connect(owner.address, owner.generation ^ 1).wait(LONG)
    assert issubclass(errors.Unreachable, ConnectionError)


def test_a_peer_that_is_shut_down_is_lost(slow_pair):
    owner, writer, peer = slow_pair
    pool, source = owner.allocate(4096), writer.allocate(4096)
    ticket = owner.grant(pool).ticket
    assert peer.is_alive
    owner.shutdown().wait(LONG)
    peer.lost().wait(LONG)
    assert not peer.is_alive
    with pytest.raises(kvrail.PeerLost):
        writer.submit(peer, source, ticket, [(0, 0, 4096)])
    with pytest.raises(kvrail.Stopped):
        owner.grant(pool)


def test_a_deadline_that_cannot_be_met_is_a_timeout(slow_pair):
    owner, writer, peer = slow_pair
    pool, source = owner.allocate(64 << 20), writer.allocate(64 << 20)
    ticket = owner.grant(pool).ticket
    with pytest.raises((errors.DeadlineExceeded, errors.Hopeless)) as caught:
        writer.submit(peer, source, ticket, [(0, 0, 64 << 20)], deadline=0.0005).wait(LONG)
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, kvrail.Error)


def test_a_blocking_wait_lets_other_threads_run(pair):
    owner, _, _ = pair
    counted = []
    ended = threading.Event()

    def count():
        while not ended.is_set():
            counted.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(TimeoutError):
        owner.notification().wait(0.3)
    ended.set()
    thread.join()
    assert len(counted) > 20, "the interpreter was held"


def test_ctrl_c_is_heard_in_a_blocking_wait(pair):
    import _thread

    owner, _, _ = pair
    threading.Timer(0.1, _thread.interrupt_main).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        owner.notification().wait(LONG)
    assert time.monotonic() - started < LONG / 2


def test_every_status_has_a_class_of_its_own_and_no_class_is_left_over():
    from kvrail._native import status_names

    statuses = {name: number for number, name in status_names() if number < 0}
    classes = {name: type(errors.make(number, "words")) for name, number in statuses.items()}
    unnamed = {name for name, kind in classes.items() if kind is kvrail.Error}
    # What C has and Python says with the interpreter's own exceptions.
    assert unnamed == {"invalid_argument", "too_small", "unknown"}
    assert set(errors._CLASSES) == set(statuses) - unnamed
    assert len(set(classes.values())) == len(statuses) - len(unnamed) + 1
    assert all(errors.make(number, "words").status == number for number in statuses.values())


def test_counts_add_up(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(4096), writer.allocate(4096)
    lease = owner.grant(pool)
    writer.submit(peer, source, lease.ticket, [(0, 0, 4096)]).wait(LONG)
    assert (writer.stats()["bytes_moved"], owner.stats()["bytes_received"]) == (4096, 4096)
    assert owner.stats()["leases"] == 1
    lease.revoke().wait(LONG)
    assert owner.stats()["leases"] == 0


def test_a_transfer_that_nobody_keeps_is_cancelled_with_a_warning(slow_pair):
    owner, writer, peer = slow_pair
    length = 256 << 20
    pool, source = owner.allocate(length), writer.allocate(length)
    lease = owner.grant(pool)
    with pytest.warns(ResourceWarning, match="nothing refers to it"):
        writer.submit(peer, source, lease.ticket, [(0, 0, length)])
    # One that is kept by who waits for it, and one that was cancelled on purpose, need no warning.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer.submit(peer, source, lease.ticket, [(0, 0, 4096)]).wait(LONG)
        writer.submit(peer, source, lease.ticket, [(0, 0, length)]).cancel()
    assert lease.bytes_landed < length
