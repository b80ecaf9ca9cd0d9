"""Figures out of rounds: medians, ratios of turns of the same round, and the interval that covers the true median.

On a shared machine one turn says little: the same cell differs by half from minute to minute. The ratio of two turns of one
round says more, and the median of such ratios does not care about the few that went wrong. Intervals are pairs of order
statistics: nothing is assumed about the distribution.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Callable, Dict, List, Optional, Sequence

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Interval:
    """A median, the ends of its interval, and how often such an interval covers the true one."""

    median: float
    low: float
    high: float
    coverage: float
    samples: int

    def __str__(self) -> str:
        return f"{short(self.median)} [{short(self.low)}, {short(self.high)}]"


def short(value: float) -> str:
    """Three digits that say something."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(samples: Sequence[float]) -> Optional[Interval]:
    """The narrowest pair of order statistics, equally far from both ends, that covers the median often enough.

    Too few samples give their whole range, and `coverage` says how little that is worth. None for no samples.
    """
    if not samples:
        return None
    ordered, n = sorted(samples), len(samples)
    # With k samples cut off at each end, the interval misses when fewer than k + 1 samples lie on one side of the median.
    missed = lambda k: 2 * sum(math.comb(n, below) for below in range(k + 1)) / 2**n
    cut = max((k for k in range(n // 2) if 1 - missed(k) >= CONFIDENCE), default=0)
    return Interval(statistics.median(ordered), ordered[cut], ordered[n - 1 - cut], max(0.0, 1 - missed(cut)), n)


@dataclasses.dataclass(frozen=True)
class Turn:
    """What a contender did with a cell in a round."""

    round: int
    contender: str
    cell: str
    figures: Dict[str, float]


@dataclasses.dataclass
class Turns:
    """All turns of a run."""

    all: List[Turn] = dataclasses.field(default_factory=list)

    def of(self, contender: str, cell: str, figure: str) -> Dict[int, float]:
        """A figure by round."""
        mine = (turn for turn in self.all if (turn.contender, turn.cell) == (contender, cell))
        return {turn.round: turn.figures[figure] for turn in mine if figure in turn.figures}

    def figure(self, contender: str, cell: str, figure: str) -> Optional[Interval]:
        """The median over rounds."""
        return interval(list(self.of(contender, cell, figure).values()))

    def ratio(self, one: str, other: str, cell: str, figure: str) -> Optional[Interval]:
        """The median of the ratios of one to the other, each of one round."""
        ours, theirs = self.of(one, cell, figure), self.of(other, cell, figure)
        return interval([ours[r] / theirs[r] for r in sorted(ours.keys() & theirs.keys()) if theirs[r] > 0])

    def best(
        self, contenders: Sequence[str], cell: str, figure: str, better: Callable[..., str] = max
    ) -> Optional[str]:
        """The contender with the best median. One for the whole run: the best of each round would be the luckiest."""
        medians = {name: found.median for name in contenders if (found := self.figure(name, cell, figure))}
        return better(medians, key=lambda name: medians[name]) if medians else None
