"""Transfers that were asked for together, and end together."""

from __future__ import annotations

import logging
import time
from typing import Callable, Iterable, List, Optional

from .._native import Transfer
from ..errors import Error

_log = logging.getLogger("kvrail.compat")

#: Longest that a failed batch is waited for until nothing of it can touch local memory.
QUIESCE_MAX = 15.0


class Batch:
    """One call's transfers: one for each pair of buffers that it moves between."""

    def __init__(self, submits: Iterable[Callable[[], Transfer]]) -> None:
        """Submits them; where one is refused, the others are stopped and its error is raised."""
        self._transfers: List[Transfer] = []
        try:
            for submit in submits:
                self._transfers.append(submit())
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Ends when all bytes are visible. Each transfer has a deadline, so this ends; where one fails, the others are stopped and
        its error is raised."""
        failed: Optional[Error] = None
        for transfer in self._transfers:
            try:
                transfer.wait()
            except Error as error:
                failed = error
                break
            except BaseException:
                # Ctrl-C: what was begun must not go on behind the caller's back.
                self.stop()
                raise
        if failed is not None:
            self.stop()
            raise failed

    def poll(self) -> bool:
        """Whether all bytes are visible; fails as `wait`."""
        ended = [transfer for transfer in self._transfers if transfer.done]
        try:
            for transfer in ended:
                transfer.wait(0)
        except Error:
            self.stop()
            raise
        return len(ended) == len(self._transfers)

    def stop(self) -> None:
        """Cancels what has not ended, and waits until nothing of it can touch local memory."""
        for transfer in self._transfers:
            transfer.cancel()
        until = time.monotonic() + QUIESCE_MAX
        for transfer in self._transfers:
            try:
                transfer.quiesce().wait(max(0.0, until - time.monotonic()))
            except TimeoutError:
                _log.error("a failed transfer still touches local memory after %s s: do not reuse it", QUIESCE_MAX)
