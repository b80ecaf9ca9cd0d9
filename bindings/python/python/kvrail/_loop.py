"""Awaiting the engine in asyncio: one descriptor for a loop, no thread for a transfer.

The engine's threads put the token of what has ended into a list and make its descriptor readable; the loop reads the list and
wakes the tasks. A task takes its result itself, so one that is cancelled in between has taken nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Dict
from weakref import WeakKeyDictionary

from ._native import Events, Pending


class _Bridge:
    """What one event loop waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._events = Events()
        self._waiting: Dict[int, "asyncio.Future[None]"] = {}
        self._next = 0
        loop.add_reader(self._events.fileno(), self._wake)

    def _wake(self) -> None:
        for token in self._events.take():
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def resolve(self, pending: Pending) -> Any:
        """The result of `pending`."""
        while True:
            self._next += 1
            token = self._next
            # Before the poll: the token may be in the list before it returns.
            signal = self._waiting[token] = asyncio.get_running_loop().create_future()
            try:
                result = pending.poll(self._events, token)
                if result is not None:
                    return result[0]
                await signal
            except asyncio.CancelledError:
                pending.cancelled()
                raise
            finally:
                self._waiting.pop(token, None)


# By loop, and gone with it: a bridge does not refer to its loop.
_bridges: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge]" = WeakKeyDictionary()


async def resolve(pending: Pending) -> Any:
    """The result of `pending`, for the running loop. Cancelling the task cancels a transfer."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge(loop)
    return await bridge.resolve(pending)
