"""Awaiting: many at once on one thread, cancelled, in several loops."""

import asyncio
import os
import threading

import pytest

import kvrail
from conftest import LONG, pattern


def run(main):
    """A coroutine in a loop of its own, bounded."""
    return asyncio.run(asyncio.wait_for(main, LONG))


def test_many_transfers_are_awaited_without_a_thread_each(pair):
    owner, writer, peer = pair
    count, block = 200, 4096
    pool, source = owner.allocate(count * block), writer.allocate(count * block)
    source.view()[:] = pattern(count * block)
    lease = owner.grant(pool)

    async def main():
        before = len(os.listdir("/proc/self/task"))
        submit = lambda n: writer.submit(peer, source, lease.ticket, [(n * block, n * block, block)])
        transfers = [submit(n) for n in range(count)]
        reports = await asyncio.gather(*transfers)
        return reports, len(os.listdir("/proc/self/task")) - before

    reports, threads = run(main())
    assert len(reports) == count and all(report.bytes == block for report in reports)
    assert threads <= 0 and threading.active_count() == 1
    assert bytes(pool.view()) == bytes(source.view())


def test_a_loop_goes_on_while_one_of_its_tasks_waits(pair):
    owner, writer, peer = pair

    async def main():
        ticks = 0
        waiting = asyncio.ensure_future(one())
        while not waiting.done() and ticks < 20:
            await asyncio.sleep(0.005)
            ticks += 1
        await writer.submit(peer, source, lease.ticket, [(0, 0, 64)], notify=b"now")
        return ticks, (await waiting).payload

    async def one():
        return await owner.notification()

    pool, source = owner.allocate(64), writer.allocate(64)
    lease = owner.grant(pool)
    assert run(main()) == (20, b"now")


def test_the_engine_is_awaited_in_one_loop_after_the_other(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(4096), writer.allocate(4096)
    lease = owner.grant(pool)

    async def main():
        return (await writer.submit(peer, source, lease.ticket, [(0, 0, 4096)])).bytes

    assert [run(main()) for _ in range(3)] == [4096] * 3


def test_connecting_and_errors_are_awaited(pair):
    owner, writer, _ = pair

    async def main():
        peer = await writer.connect(owner.address)
        pool, source = owner.allocate(4096), writer.allocate(4096)
        lease = owner.grant(pool)
        assert await lease.revoke() == 0
        with pytest.raises(kvrail.Stale):
            await writer.submit(peer, source, lease.ticket, [(0, 0, 4096)])
        with pytest.raises(kvrail.ConnectError):
            await writer.connect("127.0.0.1:1")

    run(main())


def test_a_cancelled_task_cancels_its_transfer_and_the_memory_comes_free(slow_pair):
    owner, writer, peer = slow_pair
    length = 256 << 20
    pool, source = owner.allocate(length), writer.allocate(length)
    lease = owner.grant(pool)

    async def main():
        transfer = writer.submit(peer, source, lease.ticket, [(0, 0, length)])

        async def waits():
            await transfer

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transfer.quiesce()
        with pytest.raises(kvrail.Cancelled):
            transfer.wait(LONG)
        assert transfer.done and transfer.report.bytes < length

    run(main())


def test_a_notification_is_not_lost_with_the_task_that_waited_for_it(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(64), writer.allocate(64)
    lease = owner.grant(pool)

    async def main():
        async def waits():
            return await owner.notification()

        first = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        transfer = writer.submit(peer, source, lease.ticket, [(0, 0, 64)], notify=b"kept")
        # Blocks the loop: the token is there before the task can be told, and the task is cancelled before it looks.
        transfer.wait(LONG)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return (await owner.notification()).payload

    assert run(main()) == b"kept"


def test_a_notification_waits_while_nobody_waits_for_it(pair):
    owner, writer, peer = pair
    pool, source = owner.allocate(64), writer.allocate(64)
    lease = owner.grant(pool)
    writer.submit(peer, source, lease.ticket, [(0, 0, 64)], notify=b"kept").wait(LONG)

    async def main():
        # Its task is cancelled before it has begun.
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(owner.notification(), 0)
        owner.notification()
        return (await owner.notification()).payload

    assert run(main()) == b"kept"


def test_threads_and_a_loop_share_an_engine(pair):
    owner, writer, peer = pair
    block, each = 4096, 50
    pool, source = owner.allocate(5 * each * block), writer.allocate(5 * each * block)
    source.view()[:] = pattern(5 * each * block)
    lease = owner.grant(pool)

    def submit(n):
        return writer.submit(peer, source, lease.ticket, [(n * block, n * block, block)])

    def blocking(thread):
        for n in range(each):
            submit(thread * each + n).wait(LONG)

    threads = [threading.Thread(target=blocking, args=(n,)) for n in range(4)]

    async def main():
        await asyncio.gather(*[submit(4 * each + n) for n in range(each)])

    for thread in threads:
        thread.start()
    run(main())
    for thread in threads:
        thread.join(LONG)
    assert bytes(pool.view()) == bytes(source.view())
