#!/usr/bin/env python3
"""kvrail beside other engines and plain code: everything in one run, in turns, every block checked where it arrived.

    python3 bench/peers/run.py                                      # nine rounds
    python3 bench/peers/run.py --rounds 2 --contenders kvrail-tcp,sockets-2 --cells kv --json out.json

Each turn is two fresh processes on loopback. Progress goes to stderr, tables to stdout. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Sequence

import raw
import report
from cells import BATCHES, Amount
from engines import CONTENDERS
from ratios import Turn, Turns

HERE = pathlib.Path(__file__).resolve().parent
#: Longest that a process of a turn lives, and longest that it may take for one answer, seconds.
PROCESS_MAX, ANSWER_MAX = 300, 120
#: Cells that everyone takes part in, and those that measure what kvrail promises of itself.
COMMON = ["kv", "small", "latency"]
OURS = {"kvrail-tcp": ["submit", "strided", "idle"], "kvrail-shm": ["submit", "strided"]}
CLONE_NEWNET = 0x40000000


class TurnFailed(Exception):
    """A contender did not do what it was asked."""


class WrongBytes(Exception):
    """What arrived is not what was sent."""


class Process:
    """A side in a process of its own."""

    def __init__(self, library: pathlib.Path, name: str, log: Any) -> None:
        quiet = {"GLOG_minloglevel": "2", "MC_LOG_LEVEL": "WARNING", "NIXL_LOG_LEVEL": "WARN"}
        command = [sys.executable, str(HERE / "worker.py"), str(library), name, str(PROCESS_MAX)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            env={**os.environ, **quiet, **CONTENDERS[name].environment},
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]

    def answer(self) -> Dict[str, Any]:
        """The next answer. Lines come whole, one for each request, so none waits in a buffer behind another."""
        if not self._selector.select(ANSWER_MAX):
            raise TurnFailed(f"no answer within {ANSWER_MAX} s")
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise TurnFailed(f"the process ended with {self._process.wait(10)}")
        told: Dict[str, Any] = json.loads(line)
        if not told.pop("ok"):
            raise TurnFailed(told["error"])
        return told

    def tell(self, what: str, **arguments: Any) -> None:
        self._process.stdin.write((json.dumps({"ask": what, **arguments}) + "\n").encode())  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def ask(self, what: str, **arguments: Any) -> Dict[str, Any]:
        self.tell(what, **arguments)
        return self.answer()

    def end(self) -> None:
        try:
            self._process.stdin.close()  # type: ignore[union-attr]
            self._process.wait(3)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()  # type: ignore[union-attr]
        self._selector.close()


@dataclasses.dataclass
class Run:
    """What is asked for, and what came of it."""

    library: pathlib.Path
    log: Any
    amount: Amount
    seed: int
    turns: Turns = dataclasses.field(default_factory=Turns)
    blocks_verified: int = 0
    failures: List[str] = dataclasses.field(default_factory=list)
    skipped: List[str] = dataclasses.field(default_factory=list)

    def turn(self, number: int, name: str, cells: Sequence[str]) -> None:
        """A contender's turn: its cells between two fresh processes. Raises what went wrong."""
        processes: List[Process] = []
        try:
            for _ in range(2):
                processes.append(Process(self.library, name, self.log))
            for process in processes:
                process.answer()
            receiver, sender = processes
            sender.ask("join", told=receiver.ask("lend"))
            for cell in cells:
                self._cell(number, name, cell, receiver, sender)
        finally:
            for process in processes:
                process.end()

    def _cell(self, number: int, name: str, cell: str, receiver: Process, sender: Process) -> None:
        seed = self.seed * 1000 + number
        # Contents of this cell alone, and others there before: nothing that lies there already can pass.
        contents = 2 * (number * len(BATCHES) + list(BATCHES).index(cell))
        receiver.ask("fill", cell=cell, seed=seed, contents=contents + 1)
        told = sender.ask("run", cell=cell, seed=seed, contents=contents, amount=dataclasses.asdict(self.amount))
        asked = {"cell": cell, "seed": seed, "batches": told["batches"]}
        sender.tell("sums", here=True, **asked)
        receiver.tell("sums", here=False, **asked)
        sent, arrived = sender.answer(), receiver.answer()
        if sent != arrived or sent["blocks"] == 0:
            raise WrongBytes(f"{name}, {cell}, round {number}: what arrived is not what was sent")
        self.blocks_verified += sent["blocks"]
        self.turns.all.append(Turn(number, name, cell, told["figures"]))
        figures = ", ".join(f"{key} {value:.4g}" for key, value in told["figures"].items())
        say(f"round {number}, {name}, {cell}: {figures}; {sent['blocks']} blocks right")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def private_loopback() -> str:
    """Moves this process into a network namespace of its own, whose loopback is cubic's; what it is instead if that cannot be.

    A congestion control that paces, which some systems have as default, halves whoever does not choose for himself.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "the system's loopback (root and `ip` are needed for a private one)"
    if libc.unshare(CLONE_NEWNET) != 0:
        return f"the system's loopback ({os.strerror(ctypes.get_errno())})"
    local = ["local", "127.0.0.1", "dev", "lo", "table", "local", "proto", "kernel", "scope", "host", "src", "127.0.0.1"]
    for words in (["link", "set", "lo", "up"], ["route", "change", *local, "congctl", "cubic"]):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
        if done.returncode != 0:
            return f"a private loopback (`ip {words[0]}`: {done.stderr.strip()})"
    return "a private loopback, cubic"


def machine(network: str) -> Dict[str, Any]:
    """What figures hang on."""
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "architecture": platform.machine(), "kernel": platform.release(), "network": network}


def rounds(run: Run, count: int, names: Sequence[str], chosen: Sequence[str]) -> None:
    """A B C, then C B A. A contender that fails is left out from then on, and named."""
    left = list(names)
    for number in range(count):
        for name in left[:: 1 if number % 2 == 0 else -1]:
            cells = [cell for cell in [*COMMON, *OURS.get(name, [])] if cell in chosen]
            try:
                run.turn(number, name, cells)
            except WrongBytes as wrong:
                run.failures.append(str(wrong))
            except (TurnFailed, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
                told = f"{name}, round {number}: {error}"
                (run.failures if name.startswith("kvrail") else run.skipped).append(told)
            else:
                continue
            say(f"{name} is left out: {[*run.failures, *run.skipped][-1]}")
            left.remove(name)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def listed(known: Sequence[str]) -> Callable[[str], List[str]]:
        def parse(text: str) -> List[str]:
            strange = [word for word in text.split(",") if word not in known]
            if strange:
                raise argparse.ArgumentTypeError(f"{', '.join(strange)}: there are {', '.join(known)}")
            return text.split(",")

        return parse

    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="rounds behind each figure [%(default)s]")
    parser.add_argument("--contenders", type=listed(list(CONTENDERS)), default=list(CONTENDERS), metavar="LIST")
    parser.add_argument("--cells", type=listed(list(BATCHES)), default=list(BATCHES), metavar="LIST")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of permutations and contents [%(default)s]")
    parser.add_argument("--brief", action="store_true", help="measure each cell for a shorter time")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write turns and figures there")
    parser.add_argument("--log", type=pathlib.Path, metavar="FILE", help="what the engines print [nowhere]")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    here = machine(private_loopback())
    began = time.monotonic()
    amount = Amount(kv_writes=1, loop_seconds=0.2, idle_seconds=2.0) if given.brief else Amount()
    with tempfile.TemporaryDirectory(prefix="kvrail-peers-") as scratch:
        with open(given.log or os.devnull, "w") as log:
            run = Run(raw.build(pathlib.Path(scratch)), log, amount, given.seed)
            rounds(run, given.rounds, given.contenders, given.cells)
    found = report.figures(run.turns)
    told = {
        "date": datetime.date.today().isoformat(), "machine": here, "seconds": round(time.monotonic() - began),
        "rounds": given.rounds, "blocks_verified": run.blocks_verified, "failures": run.failures, "skipped": run.skipped,
        "figures": {name: figure.told() for name, figure in found.items()},
        "turns": [dataclasses.asdict(turn) for turn in run.turns.all],
    }
    if given.json:
        given.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    ran = f"{told['date']}, {told['seconds']} s, {given.rounds} rounds, {run.blocks_verified} blocks verified"
    print(f"{here['cores']} {here['architecture']} cores, Linux {here['kernel']}, {here['network']}; {ran}")
    print("", report.table(run.turns), report.ratios(found), sep="\n\n")
    for what, lines in (("FAILED", run.failures), ("SKIPPED", run.skipped)):
        for line in lines:
            print(f"{what}: {line}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
