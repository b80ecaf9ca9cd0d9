#!/usr/bin/env python3
"""Builds the wheel and tries it as a user would: one command, in virtual environments that it makes and removes.

    python3 bindings/python/check.py                      # wheel, tests, examples
    python3 bindings/python/check.py --also python3.9     # the same wheel in other interpreters as well
    python3 bindings/python/check.py --wheel some.whl     # without building
    python3 bindings/python/check.py --inside 'COMMAND'   # over RDMA as well, in the machine that COMMAND runs programs in

Needs Rust, Python 3.9 or newer with pip and venv, and packages from wherever pip gets them: maturin, numpy, pytest. Lines
that begin with `figure` are for `cargo xtask verify bindings`.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = sorted((HERE / "examples").glob("*.py"))


def figure(name, value):
    print(f"figure {name}: {value}", flush=True)


def run(*command, **options):
    """Runs a program to its end, bounded; its output. Ends this one where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500, **options
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}")
    return done.stdout


def environment(directory, python, *packages):
    """A fresh virtual environment with these packages; its interpreter."""
    run(python, "-m", "venv", directory)
    inside = directory / "bin" / "python"
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return inside


def build(scratch):
    """The wheel."""
    python = environment(scratch / "build", sys.executable, "maturin>=1.9.4,<2")
    began = time.monotonic()
    # Built where the sources are, so that cargo's own target directory is used.
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", scratch / "dist", HERE, env=dict(
        os.environ, PATH=f"{scratch / 'build' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ))
    (wheel,) = (scratch / "dist").glob("*.whl")
    figure("wheel", f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, built in {time.monotonic() - began:.0f} s")
    return wheel


def look_into(wheel):
    """One wheel for all interpreters from 3.9 on, with its types, and with nothing that is no part of it."""
    if not re.fullmatch(r"kvrail-[\w.+]+-cp39-abi3-[\w.]+\.whl", wheel.name):
        sys.exit(f"{wheel.name}: a cp39-abi3 wheel is wanted")
    names = zipfile.ZipFile(wheel).namelist()
    for part in ["_native.abi3.so", "_native.pyi", "py.typed", "compat/mooncake.py", "bench_peer.py"]:
        if f"kvrail/{part}" not in names:
            sys.exit(f"{wheel.name} has no kvrail/{part}")
    strange = [name for name in names if not name.startswith(("kvrail/", "kvrail-"))]
    if strange:
        sys.exit(f"{wheel.name} has {strange}")


def try_in(scratch, python, wheel):
    """Tests and examples, with the installed wheel and nothing of this directory on the path; the interpreter that has it."""
    version = run(python, "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))").strip()
    inside = environment(scratch / f"try-{version}", python, wheel, "numpy", "pytest")
    settings = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    settings.pop("PYTHONPATH", None)
    tests = run(
        inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", HERE / "pyproject.toml", HERE / "tests",
        cwd=scratch, env=settings,
    )
    summary = tests.strip().splitlines()[-1]
    if not re.match(r"\d+ passed in", summary):
        sys.exit(f"Python {version}: not all tests passed:\n{tests}")
    figure(f"tests, Python {version}", summary)
    for example in EXAMPLES:
        for line in run(inside, example, cwd=scratch, env=settings).strip().splitlines():
            figure(f"{example.name}, Python {version}", line)
    return inside


def try_over_rdma(inside, python):
    """The tests that want NICs."""
    tests = run(*inside, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "guest", env=dict(
        os.environ, PYTHONDONTWRITEBYTECODE="1"
    ))
    summary = re.search(r"^\d+ passed in.*$", tests, re.MULTILINE)
    if not summary:
        sys.exit(f"over RDMA: not all tests passed:\n{tests}")
    figure("tests over RDMA", summary.group())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON", help="another interpreter to try it in")
    parser.add_argument("--wheel", type=pathlib.Path, help="take this wheel rather than build one")
    parser.add_argument("--inside", type=shlex.split, metavar="COMMAND", help="runs a program where KVRAIL_TEST_RDMA's NICs are")
    arguments = parser.parse_args()
    # Where a machine that shares this one's files sees it.
    target = HERE.parents[1] / "target"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvrail-check-", dir=target) as scratch:
        scratch = pathlib.Path(scratch)
        wheel = arguments.wheel.resolve() if arguments.wheel else build(scratch)
        look_into(wheel)
        tried = [try_in(scratch, python, wheel) for python in [sys.executable, *arguments.also]]
        if arguments.inside:
            try_over_rdma(arguments.inside, tried[0])
    print("all is well", flush=True)


if __name__ == "__main__":
    main()
