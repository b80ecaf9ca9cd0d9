"""Transfers that were asked for together, and end together."""

from __future__ import annotations

import time
from typing import List, Optional

from .._native import Transfer
from ..errors import Error

#: Longest that a failed batch is waited for until nothing of it can touch local memory.
QUIESCE_MAX = 15.0


class Batch:
    """One call's transfers: one for each pair of buffers that it moves between."""

    def __init__(self, transfers: List[Transfer]) -> None:
        self._transfers = transfers

    def wait(self) -> None:
        """Ends when all bytes are visible. Each transfer has a deadline, so this ends; an error of any is raised when all of them
        have ended and let go of local memory."""
        failed: Optional[Error] = None
        for transfer in self._transfers:
            try:
                transfer.wait()
            except Error as error:
                failed = failed or error
                for other in self._transfers:
                    other.cancel()
        if failed is not None:
            self._quiesce()
            raise failed

    def poll(self) -> bool:
        """Whether all bytes are visible; raises as `wait`, and without waiting for the rest."""
        ended = [transfer for transfer in self._transfers if transfer.done]
        for transfer in ended:
            transfer.wait(0)
        return len(ended) == len(self._transfers)

    def _quiesce(self) -> None:
        until = time.monotonic() + QUIESCE_MAX
        for transfer in self._transfers:
            transfer.quiesce().wait(max(0.0, until - time.monotonic()))
