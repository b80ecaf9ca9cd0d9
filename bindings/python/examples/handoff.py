"""A prefill and a decode process in asyncio: KV blocks of NumPy arrays handed over layer by layer, and taken back.

    python examples/handoff.py

The parent decodes: it lends its pool and hears of each layer when it is there. The child prefills: it writes a layer while it
computes the next one. At the end the parent takes its memory back; a write that comes too late is refused.
"""

import asyncio
import json
import sys
import time

import numpy as np

import kvrail

LAYERS, BLOCKS, BLOCK_BYTES = 16, 128, 32 * 1024
LAYER_BYTES = BLOCKS * BLOCK_BYTES


def layer_of(number: int) -> np.ndarray:
    """What the model would have computed."""
    return np.random.default_rng(number).integers(0, 256, (BLOCKS, BLOCK_BYTES), dtype=np.uint8)


async def prefill() -> None:
    offer = json.loads(sys.stdin.readline())
    engine = kvrail.Engine()
    peer = await engine.connect(offer["address"], offer["generation"])
    ticket = kvrail.Ticket(bytes.fromhex(offer["ticket"]))
    pool = np.zeros((LAYERS, BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    region = engine.register(pool)  # sent from where it lies

    # The request's blocks are scattered here, and go where the decoder has room for them: even slots, in reverse order.
    blocks = np.random.default_rng(0).permutation(BLOCKS)[: BLOCKS // 2]
    slots = np.arange(BLOCKS - 2, -1, -2)

    async def write(layer: int) -> kvrail.Report:
        start = layer * LAYER_BYTES
        ops = kvrail.Ops.lists(
            (start + blocks * BLOCK_BYTES).tolist(), (start + slots * BLOCK_BYTES).tolist(), BLOCK_BYTES
        )
        return await engine.submit(peer, region, ticket, ops, notify=json.dumps({"layer": layer}).encode())

    began = time.perf_counter()
    writing = []
    for layer in range(LAYERS):
        pool[layer] = layer_of(layer)
        writing.append(asyncio.ensure_future(write(layer)))
        await asyncio.sleep(0)  # the loop begins to write this layer before the next is computed
    reports = await asyncio.gather(*writing)
    moved = sum(report.bytes for report in reports)
    took = time.perf_counter() - began
    print(f"prefill: {moved / 1e6:.1f} MB in {len(reports)} layers, {took:.3f} s with the computing", flush=True)

    sys.stdin.readline()  # the decoder has taken its memory back
    try:
        await write(0)
    except kvrail.Stale as error:
        print(f"prefill: too late, {error.report.bytes} bytes of {len(error.errors)} blocks landed: {error.name}", flush=True)
    await engine.shutdown()


async def decode() -> None:
    engine = kvrail.Engine()
    pool = engine.allocate(LAYERS * LAYER_BYTES)
    lease = engine.grant(pool, ttl=60)
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "prefill", stdin=asyncio.subprocess.PIPE
    )
    offer = {"address": engine.address, "generation": engine.generation, "ticket": bytes(lease.ticket).hex()}
    child.stdin.write(json.dumps(offer).encode() + b"\n")

    arrays = np.asarray(pool).reshape(LAYERS, BLOCKS, BLOCK_BYTES)  # the region itself, no copy
    blocks = np.random.default_rng(0).permutation(BLOCKS)[: BLOCKS // 2]
    order = []
    for _ in range(LAYERS):
        told = json.loads((await engine.notification()).payload)
        layer = told["layer"]
        order.append(layer)
        # Done means visible: every byte is looked at in the moment that it is told of.
        assert (arrays[layer, BLOCKS - 2 :: -2] == layer_of(layer)[blocks]).all()
        assert not arrays[layer, 1::2].any(), "no other block was touched"
    landed = await lease.revoke()
    print(f"decode: {len(order)} layers, {landed / 1e6:.1f} MB, every byte right when it was told of", flush=True)

    arrays[:] = 0x11  # the memory's next use
    child.stdin.write(b"revoked\n")
    assert await child.wait() == 0
    assert (arrays == 0x11).all()
    print("decode: no late write has landed", flush=True)
    await engine.shutdown()


asyncio.run(prefill() if sys.argv[1:] == ["prefill"] else decode())
