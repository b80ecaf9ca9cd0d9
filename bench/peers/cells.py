"""What is measured. A cell makes its batches out of a seed, so both processes know them without telling each other."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from engines import Batch

#: Bytes of a side's pool, the same for everyone: 160 layer halves of 204 blocks of 32 KiB fit.
POOL_BYTES = 1 << 30

#: A quarter of the KV of a 10,000-token prompt of an 80-layer model: keys and values of a layer lie together, and the same
#: blocks are taken of each.
KV_BLOCK, KV_HALVES, KV_TAKEN = 32 << 10, 160, 157
KV_HELD = POOL_BYTES // KV_BLOCK // KV_HALVES
SMALL_BLOCK, SMALL_BATCH, SMALL_SETS = 4 << 10, 128, 512
#: Distance of runs in a strided descriptor, here and there: more than their length, so that nothing can be merged.
STRIDES = 36 << 10, 40 << 10
IDLE_PEERS = 64
#: Submits of a cell whose median counts.
SUBMITS = 3


@dataclasses.dataclass(frozen=True)
class Amount:
    """How long a cell measures."""

    kv_writes: int = 2
    loop_seconds: float = 0.5
    idle_seconds: float = 5.0


Measured = Tuple[Dict[str, float], int]
"""Figures, and how many of the cell's batches have been written."""

Clock = Callable[[Callable[[], None]], Dict[str, float]]
"""Runs something and tells its seconds, CPU-seconds of both processes, and their threads' wait for a core."""


def kv(seed: int) -> List[Batch]:
    """25,120 blocks of 32 KiB, scattered on both sides."""
    rng = np.random.default_rng(seed)
    halves = np.arange(KV_HALVES, dtype=np.uint64)[:, None] * np.uint64(KV_HELD)
    sides = [(halves + rng.permutation(KV_HELD)[None, :KV_TAKEN].astype(np.uint64)).ravel() for _ in range(2)]
    return [Batch(sides[0] * np.uint64(KV_BLOCK), sides[1] * np.uint64(KV_BLOCK), KV_BLOCK)]


def strided(seed: int) -> List[Batch]:
    """As many blocks, at fixed distances in each layer half: what 160 strided descriptors say."""
    del seed
    starts = np.arange(KV_HALVES, dtype=np.uint64)[:, None] * np.uint64(KV_HELD * KV_BLOCK)
    runs = np.arange(KV_TAKEN, dtype=np.uint64)[None]
    local, remote = ((starts + runs * np.uint64(stride)).ravel() for stride in STRIDES)
    return [Batch(local, remote, KV_BLOCK)]


def _small(seed: int, size: int) -> List[Batch]:
    rng = np.random.default_rng(seed)
    slots = POOL_BYTES // SMALL_BLOCK
    here, there = (rng.permutation(slots)[: SMALL_SETS * size].astype(np.uint64) * np.uint64(SMALL_BLOCK) for _ in range(2))
    cuts = [slice(start, start + size) for start in range(0, len(here), size)]
    return [Batch(here[cut], there[cut], SMALL_BLOCK) for cut in cuts]


def small(seed: int) -> List[Batch]:
    """128 scattered blocks of 4 KiB at a time."""
    return _small(seed, SMALL_BATCH)


def latency(seed: int) -> List[Batch]:
    """One block of 4 KiB at a time."""
    return _small(seed, 1)


def idle(seed: int) -> List[Batch]:
    """A block of each peer that is connected."""
    del seed
    places = np.arange(IDLE_PEERS, dtype=np.uint64) * np.uint64(SMALL_BLOCK)
    return [Batch(places, places, SMALL_BLOCK)]


BATCHES: Dict[str, Callable[[int], List[Batch]]] = {
    "kv": kv,
    "small": small,
    "latency": latency,
    "submit": kv,
    "strided": strided,
    "idle": idle,
}


def run(name: str, side: Any, seed: int, amount: Amount, clock: Clock, renew: Callable[[], None]) -> Measured:
    """Measures a cell. `renew` gives the source other contents, once everything is warm."""
    batches = BATCHES[name](seed)
    if name == "strided":
        first = batches[0]
        starts = range(0, len(first.local), KV_TAKEN)
        ops = [(int(first.local[i]), STRIDES[0], int(first.remote[i]), STRIDES[1], KV_BLOCK, KV_TAKEN) for i in starts]
        prepared = [side.prepare_strided(ops)]
    else:
        prepared = [side.prepare(batch) for batch in batches]
    side.write(prepared[0])
    renew()
    if name in ("submit", "strided"):
        return _submits(side, prepared[0], len(batches[0].local)), 1
    if name == "kv":
        return _throughput(side, prepared, batches, amount.kv_writes, 60.0, clock)
    if name == "small":
        return _throughput(side, prepared, batches, 1, amount.loop_seconds, clock)
    return _latency(side, prepared, amount, clock)


def _throughput(
    side: Any, prepared: List[Any], batches: List[Batch], least: int, seconds: float, clock: Clock
) -> Measured:
    """Writes batch after batch: `least` where there is one batch, otherwise for so many seconds."""
    written = 0

    def loop() -> None:
        nonlocal written
        until = time.perf_counter() + seconds
        while written < least or (len(batches) > 1 and time.perf_counter() < until):
            side.write(prepared[written % len(prepared)])
            written += 1

    figures = clock(loop)
    figures["bytes"] = float(batches[0].bytes * written)
    figures["gb_per_s"] = figures["bytes"] / figures["seconds"] / 1e9
    figures["cpu_s_per_gb"] = figures["cpu_seconds"] / figures["bytes"] * 1e9
    return figures, min(written, len(batches))


def _latency(side: Any, prepared: List[Any], amount: Amount, clock: Clock) -> Measured:
    """One write after the other, each on the clock."""
    times: List[int] = []

    def loop() -> None:
        now = time.perf_counter_ns
        until = now() + int(amount.loop_seconds * 1e9)
        end = 0
        while end < until:
            begin = now()
            side.write(prepared[len(times) % len(prepared)])
            end = now()
            times.append(end - begin)

    figures = clock(loop)
    p50, p99 = np.percentile(np.array(times) / 1e3, [50, 99])
    figures.update(p50_us=float(p50), p99_us=float(p99), writes=float(len(times)))
    figures["cpu_us_per_write"] = figures["cpu_seconds"] / len(times) * 1e6
    return figures, min(len(times), len(prepared))


def _submits(side: Any, prepared: Any, blocks: int) -> Dict[str, float]:
    """CPU time of the thread that submits, until it has its thread back."""
    taken = []
    for _ in range(SUBMITS):
        before = time.thread_time_ns()
        handle = side.submit(prepared)
        taken.append((time.thread_time_ns() - before) / blocks)
        side.wait(handle)
    return {"submit_ns": float(np.median(taken)), "blocks": float(blocks)}
