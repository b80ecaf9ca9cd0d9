"""One side of a measurement: `worker.py LIBRARY CONTENDER DEADLINE`, started by run.py.

A request is a JSON line on stdin, its answer one on stdout. What engines print goes to stderr. The process ends with its
stdin, and after DEADLINE seconds in any case, wherever an engine hangs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, TextIO

# Before NumPy: its threads would count as an engine's.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import cells
import raw as raws
from engines import CONTENDERS


def queued_seconds(pid: int) -> float:
    """How long the threads of a process have been ready to run and had no core."""
    total = 0
    tasks = f"/proc/{pid}/task"
    for task in os.listdir(tasks):
        try:
            with open(f"{tasks}/{task}/schedstat") as text:
                total += int(text.read().split()[1])
        except (OSError, IndexError):
            continue  # The thread has ended, or the kernel does not count.
    return total / 1e9


class Worker:
    def __init__(self, library: str, name: str) -> None:
        contender = CONTENDERS[name]
        self._raw = raws.load(library)
        self._pool = raws.Pool(self._raw, cells.POOL_BYTES, contender.shared)
        self._side = importlib.import_module(f"engines.{contender.module}").Side(self._raw, self._pool, contender.options)
        self._told: Dict[str, Any] = {}

    def lend(self) -> Dict[str, Any]:
        return {"pid": os.getpid(), **self._side.lend()}

    def join(self, told: Dict[str, Any]) -> Dict[str, Any]:
        self._told = told
        self._side.join(told)
        return {}

    def fill(self, cell: str, seed: int, contents: int, here: bool = False) -> Dict[str, Any]:
        """Gives all blocks of a cell other contents: where they are read, or where they go."""
        for number, batch in enumerate(cells.BATCHES[cell](seed)):
            self._pool.fill(batch.local if here else batch.remote, batch.block, (contents << 10) + number)
        return {}

    def run(self, cell: str, seed: int, contents: int, amount: Dict[str, Any]) -> Dict[str, Any]:
        """Measures a cell; its bytes are those of `contents`."""
        measure = cells.Amount(**amount)

        def renew() -> None:
            self.fill(cell, seed, contents, here=True)

        if cell == "idle":
            renew()
            return self._idle(measure)
        figures, batches = cells.run(cell, self._side, seed, measure, self._clock, renew)
        return {"figures": figures, "batches": batches}

    def sums(self, cell: str, seed: int, batches: int, here: bool) -> Dict[str, Any]:
        """Of the checksums of all blocks that a cell has written: where they were read, or where they went."""
        digest, blocks = hashlib.sha256(), 0
        for batch in cells.BATCHES[cell](seed)[:batches]:
            digest.update(self._pool.sums(batch.local if here else batch.remote, batch.block).tobytes())
            blocks += len(batch.local)
        return {"digest": digest.hexdigest(), "blocks": blocks}

    def _usage(self) -> np.ndarray:
        pids = os.getpid(), self._told["pid"]
        return np.array([sum(map(self._raw.raw_cpu_seconds, pids)), sum(map(queued_seconds, pids))])

    def _clock(self, work: Callable[[], None]) -> Dict[str, float]:
        before, begun = self._usage(), time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        cpu, queued = self._usage() - before
        return {"seconds": seconds, "cpu_seconds": float(cpu), "waiting": float(queued) / seconds}

    def _idle(self, amount: cells.Amount) -> Dict[str, Any]:
        """What the other side costs while nobody asks it for anything."""
        self._side.join_more(self._told, cells.IDLE_PEERS, cells.SMALL_BLOCK)
        time.sleep(1.0)
        cpu, begun = self._raw.raw_cpu_seconds(self._told["pid"]), time.perf_counter()
        time.sleep(amount.idle_seconds)
        used = self._raw.raw_cpu_seconds(self._told["pid"]) - cpu
        return {"figures": {"core_share": used / (time.perf_counter() - begun)}, "batches": 1}


def answers(worker: Worker, lines: Iterator[str]) -> Iterator[Dict[str, Any]]:
    for line in lines:
        asked = json.loads(line)
        try:
            yield {"ok": True, **getattr(worker, asked.pop("ask"))(**asked)}
        except Exception as error:  # Whatever an engine raises is an answer.
            yield {"ok": False, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    library, name, deadline = sys.argv[1:]
    signal.alarm(int(deadline))
    out: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        worker = Worker(library, name)
    except Exception as error:
        out.write(json.dumps({"ok": False, "error": f"{type(error).__name__}: {error}"}) + "\n")
        os._exit(1)
    out.write(json.dumps({"ok": True}) + "\n")
    for answer in answers(worker, sys.stdin):
        out.write(json.dumps(answer) + "\n")
    # Engines' threads are not waited for: nothing is measured any more.
    os._exit(0)


if __name__ == "__main__":
    main()
