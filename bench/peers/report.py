"""The figures of a run and its table. What is promised of them is judged by `cargo xtask verify peers`."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

from engines import CONTENDERS
from ratios import Interval, Turns, short

SOCKETS = "sockets-1", "sockets-2"
NIXL_TCP = "nixl-tcp", "nixl-tcp-poll"
NIXL_CMA = "nixl-cma", "nixl-cma-poll"
MEMCPY = "memcpy-1", "memcpy-2"

#: Name, ours, theirs (the best of them), cell, figure, what is best.
_RATIOS: Sequence[Tuple[str, str, Sequence[str], str, str, Any]] = [
    ("tcp_kv_to_sockets", "kvrail-tcp", ["sockets-2"], "kv", "gb_per_s", max),
    ("tcp_kv_to_nixl", "kvrail-tcp", NIXL_TCP, "kv", "gb_per_s", max),
    ("tcp_kv_to_mooncake", "kvrail-tcp", ["mooncake"], "kv", "gb_per_s", max),
    ("tcp_kv_cpu_to_nixl", "kvrail-tcp", NIXL_TCP, "kv", "cpu_s_per_gb", min),
    ("tcp_kv_cpu_to_sockets", "kvrail-tcp", ["sockets-2"], "kv", "cpu_s_per_gb", min),
    ("tcp_small_to_sockets", "kvrail-tcp", SOCKETS, "small", "gb_per_s", max),
    ("tcp_small_to_nixl", "kvrail-tcp", NIXL_TCP, "small", "gb_per_s", max),
    ("shm_kv_to_memcpy", "kvrail-shm", MEMCPY, "kv", "gb_per_s", max),
    ("shm_kv_to_memcpy_1", "kvrail-shm", ["memcpy-1"], "kv", "gb_per_s", max),
    ("shm_kv_to_nixl", "kvrail-shm", NIXL_CMA, "kv", "gb_per_s", max),
    ("tcp_latency_to_best", "kvrail-tcp", [*SOCKETS, *NIXL_TCP], "latency", "p50_us", min),
    ("shm_latency_to_memcpy", "kvrail-shm", ["memcpy-1"], "latency", "p50_us", min),
]

#: Name, contender, cell, figure.
_FIGURES: Sequence[Tuple[str, str, str, str]] = [
    ("shm_latency_us", "kvrail-shm", "latency", "p50_us"),
    ("submit_scattered_ns", "kvrail-tcp", "submit", "submit_ns"),
    ("submit_strided_ns", "kvrail-tcp", "strided", "submit_ns"),
    ("submit_scattered_shm_ns", "kvrail-shm", "submit", "submit_ns"),
    ("submit_strided_shm_ns", "kvrail-shm", "strided", "submit_ns"),
    ("idle_core_share", "kvrail-tcp", "idle", "core_share"),
]

#: Columns of the table: heading, cell, figure.
_COLUMNS: Sequence[Tuple[str, str, str]] = [
    ("KV shape, GB/s", "kv", "gb_per_s"),
    ("CPU s/GB", "kv", "cpu_s_per_gb"),
    ("threads without a core", "kv", "waiting"),
    ("4 KiB × 128, GB/s", "small", "gb_per_s"),
    ("CPU s/GB", "small", "cpu_s_per_gb"),
    ("one 4 KiB write, p50 µs", "latency", "p50_us"),
    ("p99 µs", "latency", "p99_us"),
    ("CPU µs", "latency", "cpu_us_per_write"),
    ("submit, ns a block", "submit", "submit_ns"),
]


@dataclasses.dataclass(frozen=True)
class Figure:
    """An interval and whom it is of."""

    value: Interval
    #: The one that was best of those it may be compared with; none for a figure that is no ratio.
    beside: Optional[str] = None

    def told(self) -> Dict[str, Any]:
        return {**dataclasses.asdict(self.value), "beside": self.beside}


def figures(turns: Turns) -> Dict[str, Figure]:
    """What of the promises could be measured, by name."""
    found: Dict[str, Figure] = {}
    for name, ours, theirs, cell, figure, better in _RATIOS:
        beside = turns.best(theirs, cell, figure, better)
        ratio = turns.ratio(ours, beside, cell, figure) if beside else None
        if ratio:
            found[name] = Figure(ratio, beside)
    for name, contender, cell, figure in _FIGURES:
        value = turns.figure(contender, cell, figure)
        if value:
            found[name] = Figure(value)
    return found


def table(turns: Turns) -> str:
    """A row for each contender, in Markdown: medians with the whole range over rounds, which is the spread."""
    rows = ["| | " + " | ".join(heading for heading, _, _ in _COLUMNS) + " |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for contender in CONTENDERS:
        columns: List[str] = []
        for _, cell, figure in _COLUMNS:
            samples = turns.of(contender, cell, figure).values()
            middle = turns.figure(contender, cell, figure)
            spread = f"{short(middle.median)} ({short(min(samples))}–{short(max(samples))})" if middle else ""
            columns.append(spread)
        if any(columns):
            rows.append(f"| {contender} | " + " | ".join(columns) + " |")
    return "\n".join(rows)


def ratios(found: Dict[str, Figure]) -> str:
    """A row for each figure, in Markdown."""
    rows = ["| figure | median, 95 % interval | beside | rounds |", "|---|---|---|---|"]
    for name, figure in found.items():
        rows.append(f"| {name} | {figure.value} | {figure.beside or ''} | {figure.value.samples} |")
    return "\n".join(rows)
