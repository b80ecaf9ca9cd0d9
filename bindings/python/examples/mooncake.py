"""A program that was written for Mooncake's TransferEngine, with one line changed.

    python examples/mooncake.py

Two processes register the layers of a KV pool by their addresses; one writes pages into the other's, as SGLang's and vLLM's
connectors do.
"""

import json
import subprocess
import sys
import time

import numpy as np

from kvrail.compat.mooncake import TransferEngine  # was: from mooncake.engine import TransferEngine

LAYERS, PAGES, PAGE = 32, 256, 16 * 1024


def start():
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    pool = [np.zeros((PAGES, PAGE), dtype=np.uint8) for _ in range(LAYERS)]
    pointers = [layer.ctypes.data for layer in pool]
    assert engine.batch_register_memory(pointers, [layer.nbytes for layer in pool]) == 0
    return engine, pool, pointers


def target():
    engine, pool, pointers = start()
    print(json.dumps([f"127.0.0.1:{engine.get_rpc_port()}", pointers]), flush=True)
    sys.stdin.readline()
    print(json.dumps([int(layer.astype(np.uint64).sum()) for layer in pool]), flush=True)


def initiator():
    engine, pool, pointers = start()
    for number, layer in enumerate(pool):
        layer[:] = np.random.default_rng(number).integers(0, 256, layer.shape, dtype=np.uint8)
    command = [sys.executable, __file__, "target"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    session, theirs = json.loads(other.stdout.readline())
    pages = np.random.default_rng(0).permutation(PAGES)
    source = [base + int(page) * PAGE for base in pointers for page in pages]
    destination = [base + int(page) * PAGE for base in theirs for page in pages[::-1]]
    lengths = [PAGE] * len(source)
    assert engine.batch_transfer_sync_write(session, source[:1], destination[:1], lengths[:1]) == 0  # connects
    began = time.perf_counter()
    assert engine.batch_transfer_sync_write(session, source, destination, lengths) == 0
    took = time.perf_counter() - began
    other.stdin.write("sum\n")
    other.stdin.flush()
    assert json.loads(other.stdout.readline()) == [int(layer.astype(np.uint64).sum()) for layer in pool]
    assert other.wait() == 0
    size = sum(lengths)
    rate = size / took / 1e9
    print(f"{len(source)} pages, {size / 1e6:.0f} MB in {took:.3f} s: {rate:.2f} GB/s, every layer's sum is right")


target() if sys.argv[1:] == ["target"] else initiator()
