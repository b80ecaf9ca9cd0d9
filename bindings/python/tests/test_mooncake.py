"""The engine that looks like Mooncake's, driven as SGLang's backend drives it: two processes, raw addresses, numbers."""

import gc
import inspect
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from functools import partial

import numpy as np
import pytest

import kvrail
from conftest import LONG, pattern
from kvrail.compat import mooncake
from kvrail.compat._batch import Batch
from kvrail.compat.mooncake import TransferEngine, TransferNotify, TransferOpcode

LAYERS, PAGES, PAGE = 6, 64, 8192


class Backend:
    """What SGLang's disaggregation does with the class, in its order and with its returned numbers."""

    def __init__(self, hostname="127.0.0.1", protocol="tcp"):
        self.engine = TransferEngine()
        assert self.engine.initialize(hostname, "P2PHANDSHAKE", protocol, "") == 0
        self.session_id = f"{hostname}:{self.engine.get_rpc_port()}"
        # One buffer for the keys of a layer and one for its values, registered at once.
        self.pool = [np.zeros((PAGES, PAGE), dtype=np.uint8) for _ in range(2 * LAYERS)]
        self.pointers = [buffer.ctypes.data for buffer in self.pool]
        assert self.engine.batch_register_memory(self.pointers, [buffer.nbytes for buffer in self.pool]) == 0
        # And a small one for what goes with a request.
        self.aux = np.zeros(4096, dtype=np.uint8)
        assert self.engine.register_memory(self.aux.ctypes.data, self.aux.nbytes) == 0

    def send(self, session, pointers, from_pages, to_pages):
        """Pages of every layer, as `batch_transfer_sync` is called for them."""
        runs = [
            (ours + a * PAGE, theirs + b * PAGE, PAGE)
            for ours, theirs in zip(self.pointers, pointers)
            for a, b in zip(from_pages, to_pages)
        ]
        source, target, lengths = map(list, zip(*runs))
        return self.engine.batch_transfer_sync_write(session, source, target, lengths)


CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from test_mooncake import Backend
decode = Backend()
for n, buffer in enumerate(decode.pool): buffer[:] = 0xEE
print(json.dumps([decode.session_id, decode.pointers, decode.aux.ctypes.data, 0]), flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "sum": print(json.dumps([b.reshape(64, -1).astype(np.uint64).sum(1).tolist() for b in decode.pool]), flush=True)
    if word == "where": print(json.dumps([b.ctypes.data for b in decode.pool]), flush=True)
    if word == "aux": print(json.dumps(bytes(decode.aux[:5]).decode()), flush=True)
    if word == "words": print(json.dumps([(n.name, n.msg) for n in decode.engine.get_notifies()]), flush=True)
    if word == "more":
        decode.late = np.zeros(4096, dtype=np.uint8)
        assert decode.engine.register_memory(decode.late.ctypes.data, 4096) == 0
        print(json.dumps(decode.late.ctypes.data), flush=True)
    if word == "back":
        assert decode.engine.batch_unregister_memory(decode.pointers) == 0
        for buffer in decode.pool: buffer[:] = 0x11
        print(json.dumps(0), flush=True)
"""


class Decode:
    """The other process."""

    def __init__(self):
        here = os.path.dirname(__file__)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.session, self.pointers, self.aux, _ = self.hear()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.hear()


@pytest.fixture
def decode():
    other = Decode()
    yield other
    other.process.kill()
    other.process.wait()


def test_pages_go_by_raw_addresses_into_another_process_where_they_lie(decode):
    prefill = Backend()
    for n, buffer in enumerate(prefill.pool):
        buffer[:] = pattern(buffer.size, n).reshape(buffer.shape)
    rng = np.random.default_rng(5)
    from_pages, to_pages = rng.permutation(PAGES)[:40].tolist(), rng.permutation(PAGES)[:40].tolist()
    assert prefill.send(decode.session, decode.pointers, from_pages, to_pages) == 0
    sums = decode.ask("sum")
    for ours, theirs in zip(prefill.pool, sums):
        expected = [0xEE * PAGE] * PAGES
        for a, b in zip(from_pages, to_pages):
            expected[b] = int(ours[a].astype(np.uint64).sum())
        assert theirs == expected
    assert decode.ask("where") == decode.pointers, "the arrays are the same arrays"
    # The small one, alone.
    prefill.aux[:5] = np.frombuffer(b"first", dtype=np.uint8)
    assert prefill.engine.transfer_sync_write(decode.session, prefill.aux.ctypes.data, decode.aux, 5) == 0
    assert decode.ask("aux") == "first"
    assert prefill.engine.get_first_buffer_address(decode.session) == decode.pointers[0]
    assert prefill.engine.send_probe(decode.session) == 0


def test_batches_go_on_while_others_are_begun(decode):
    prefill = Backend()
    for n, buffer in enumerate(prefill.pool):
        buffer[:] = pattern(buffer.size, n).reshape(buffer.shape)
    ids = [
        prefill.engine.batch_transfer_async_write(decode.session, [ours], [theirs], [PAGES * PAGE])
        for ours, theirs in zip(prefill.pointers, decode.pointers)
    ]
    assert len(set(ids)) == len(ids) and min(ids) > 0
    assert prefill.engine.get_batch_transfer_status(ids) == 0
    assert decode.ask("sum") == [b.astype(np.uint64).sum(1).tolist() for b in prefill.pool]
    assert prefill.engine.get_batch_transfer_status(ids[:1]) == -1, "an id is used up"
    one = prefill.engine.transfer_submit_write(decode.session, prefill.pointers[0], decode.pointers[1], PAGE)
    until = time.monotonic() + LONG
    while (status := prefill.engine.transfer_check_status(one)) == 0 and time.monotonic() < until:
        time.sleep(0.001)
    assert one > 0 and status == 1 and prefill.engine.transfer_check_status(one) == -1


def test_reads_and_words_that_follow_bytes(decode):
    prefill = Backend()
    engine, ours = prefill.engine, prefill.pointers[0]
    assert engine.transfer_sync_read(decode.session, ours, decode.pointers[0], PAGE) == 0
    assert (prefill.pool[0][0] == 0xEE).all() and not prefill.pool[0][1:].any()
    assert engine.batch_transfer_sync_read(decode.session, [ours + PAGE], [decode.pointers[0]], [PAGE]) == 0
    assert (prefill.pool[0][1] == 0xEE).all()
    prefill.pool[0][0] = 3
    word = TransferNotify("request 7", "done")
    assert engine.transfer_sync(decode.session, ours, decode.pointers[0], PAGE, TransferOpcode.Write, word) == 0
    assert decode.ask("words") == [["request 7", "done"]] and decode.ask("sum")[0][0] == 3 * PAGE
    two = [decode.pointers[1], decode.pointers[2]]
    opcode = TransferEngine.TransferOpcode.Write
    assert engine.batch_transfer_sync(decode.session, [ours, ours], two, [PAGE] * 2, opcode, word) == 0
    assert decode.ask("words") == [["request 7", "done"]]


def test_what_fails_is_a_number_and_the_engine_goes_on(decode, caplog):
    prefill = Backend()
    engine, ours, theirs = prefill.engine, prefill.pointers[0], decode.pointers[0]
    assert engine.transfer_sync_write("127.0.0.1:1", ours, theirs, PAGE) == -1
    assert engine.transfer_sync_write("no port", ours, theirs, PAGE) == -1
    assert engine.transfer_sync_write(decode.session, 4096, theirs, PAGE) == -1
    assert engine.transfer_sync_write(decode.session, ours, 4096, PAGE) == -1
    assert engine.transfer_sync_write(decode.session, ours, theirs, PAGES * PAGE + 1) == -1
    assert engine.batch_transfer_sync_write(decode.session, [ours], [theirs], [1, 2]) == -1
    assert engine.batch_transfer_async_write(decode.session, [4096], [theirs], [1]) == 0
    assert engine.transfer_submit_write(decode.session, 4096, theirs, 1) == -1
    assert engine.get_batch_transfer_status([12345]) == -1 and engine.transfer_check_status(12345) == -1
    assert engine.send_probe("127.0.0.1:1") == -1 and engine.get_first_buffer_address("127.0.0.1:1") == 0
    assert "run 0: its remote side" in caplog.text
    assert engine.register_memory(ours + 1, 16) == -1, "it overlaps what is registered"
    assert engine.register_memory(0, 16) == -1 and engine.unregister_memory(12345) == -1
    assert engine.transfer_sync_write(decode.session, ours, theirs, PAGE) == 0
    assert TransferEngine().initialize("127.0.0.1", "etcd://127.0.0.1:2379", "tcp", "") == -1
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", "") == -1
    assert TransferEngine().get_rpc_port() == -1 and TransferEngine().register_memory(ours, 16) == -1


def test_memory_that_was_registered_later_is_found(decode):
    prefill = Backend()
    assert prefill.engine.transfer_sync_write(decode.session, prefill.pointers[0], decode.pointers[0], PAGE) == 0
    late = decode.ask("more")
    assert prefill.engine.transfer_sync_write(decode.session, prefill.pointers[0], late, 4096) == 0


def test_unregistered_memory_does_not_change_any_more(decode):
    prefill = Backend()
    for buffer in prefill.pool:
        buffer[:] = 5
    pages = list(range(PAGES))
    assert prefill.send(decode.session, decode.pointers, pages, pages) == 0
    results = []

    def keep_sending():
        while -1 not in results:
            results.append(prefill.send(decode.session, decode.pointers, pages, pages))

    threads = [threading.Thread(target=keep_sending) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    decode.ask("back")
    for thread in threads:
        thread.join(LONG)
    assert results[-1] == -1 and 0 in results
    assert decode.ask("sum") == [[0x11 * PAGE] * PAGES] * (2 * LAYERS), "a late write has landed"


def test_a_peer_that_comes_back_is_connected_to_again():
    prefill, first = Backend(), Decode()
    assert prefill.engine.transfer_sync_write(first.session, prefill.pointers[0], first.pointers[0], PAGE) == 0
    first.process.kill()
    first.process.wait()
    assert prefill.engine.transfer_sync_write(first.session, prefill.pointers[0], first.pointers[0], PAGE) == -1
    second = Decode()
    assert prefill.engine.transfer_sync_write(second.session, prefill.pointers[0], second.pointers[0], PAGE) == 0
    second.process.kill()
    second.process.wait()


def test_own_memory_given_back_is_free(decode):
    prefill = Backend()
    address = prefill.pointers[0]
    assert prefill.engine.transfer_sync_write(decode.session, address, decode.pointers[0], PAGE) == 0
    assert prefill.engine.unregister_memory(address) == 0
    assert prefill.engine.transfer_sync_write(decode.session, address, decode.pointers[0], PAGE) == -1
    assert prefill.engine.register_memory(address, PAGES * PAGE) == 0
    assert prefill.engine.transfer_sync_write(decode.session, address, decode.pointers[0], PAGE) == 0


def test_an_engine_that_nobody_keeps_takes_its_port_and_its_memory_along():
    backend = Backend()
    watch, session, pool = weakref.ref(backend.engine), backend.session_id, backend.pool
    other = Backend()
    assert other.engine.send_probe(session) == 0
    assert backend.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1, "once"
    del backend
    gc.collect()
    assert watch() is None
    assert other.engine.send_probe(session) == -1
    assert not any(layer.any() for layer in pool)


def test_a_batch_that_is_refused_in_the_middle_has_stopped_what_it_began(slow_pair):
    owner, writer, peer = slow_pair
    length = 256 << 20
    pool, source = owner.allocate(length), writer.allocate(length)
    lease = owner.grant(pool)
    begun = []

    def submits():
        begun.append(writer.submit(peer, source, lease.ticket, [(0, 0, length)]))
        yield lambda: begun[0]
        yield partial(writer.submit, peer, source, lease.ticket, [(0, length, 1)])

    with pytest.raises(kvrail.SubmitError):
        Batch(submits())
    assert begun[0].done and begun[0].quiesce().wait(0) is None
    landed = lease.bytes_landed
    assert landed < length
    source.view()[:] = np.full(length, 7, dtype=np.uint8)
    assert not np.asarray(pool).any() and lease.bytes_landed == landed


def test_managed_buffers_go_through_shared_memory(decode):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1:9999", "P2PHANDSHAKE", "rdma", "mlx5_0") == 0
    address = engine.allocate_managed_buffer(PAGE)
    assert address > 0 and engine.allocate_managed_buffer(0) == 0
    assert engine.write_bytes_to_buffer(address, b"\7" * PAGE, PAGE) == 0
    assert engine.write_bytes_to_buffer(address, "short", PAGE) == -1
    assert engine.transfer_sync_write(decode.session, address, decode.pointers[0], PAGE) == 0
    assert decode.ask("sum")[0][0] == 7 * PAGE
    assert engine.read_bytes_from_buffer(address, 3) == b"\7\7\7"
    assert engine._engine.stats()["fallbacks"]["private_memory"] == 0
    assert engine.free_managed_buffer(address, PAGE) == 0


def test_rdma_goes_over_the_nics_that_are_named_and_there(monkeypatch, caplog):
    monkeypatch.setattr(mooncake, "rdma_nics", lambda: ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2"])
    chosen = lambda names: mooncake._rails("rdma", names).get("rdma_rails")
    assert chosen("") == ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2"]
    assert chosen("mlx5_1") == ["mlx5_1:1", "mlx5_1:2"] and not caplog.records
    assert chosen(" mlx5_0 , mlx5_9") == ["mlx5_0:1"] and "mlx5_9" in caplog.text
    assert mooncake._rails("rdma", "mlx5_9") == {} and "TCP is used" in caplog.text
    assert mooncake._rails("tcp", "") == {}


def test_signatures_are_mooncakes():
    """What `help(mooncake.engine.TransferEngine)` says in 0.3.13; a star where Mooncake gives the arguments no names."""
    one = "target_hostname buffer peer_buffer_address length"
    many = "target_hostname buffers peer_buffer_addresses lengths"
    expected = {
        "initialize": "* * * *",
        "initialize_ext": "* * * * *",
        "get_rpc_port": "",
        "register_memory": "buffer_addr capacity location=",
        "batch_register_memory": "buffer_addresses capacities location=",
        "unregister_memory": "*",
        "batch_unregister_memory": "*",
        "transfer_sync_write": f"{one} transport_hint=",
        "transfer_sync_read": f"{one} transport_hint=",
        "transfer_sync": f"{one} opcode notify= transport_hint=",
        "batch_transfer_sync_write": f"{many} transport_hint=",
        "batch_transfer_sync_read": f"{many} transport_hint=",
        "batch_transfer_sync": f"{many} opcode notify= transport_hint=",
        "batch_transfer_async_write": f"{many} transport_hint=",
        "batch_transfer_async_read": f"{many} transport_hint=",
        "batch_transfer_async": f"{many} opcode transport_hint=",
        "get_batch_transfer_status": "*",
        "transfer_submit_write": f"{one} transport_hint=",
        "transfer_check_status": "*",
        "get_first_buffer_address": "*",
        "get_notifies": "",
        "send_probe": "peer_server_name",
        "allocate_managed_buffer": "*",
        "free_managed_buffer": "* *",
        "write_bytes_to_buffer": "* * *",
        "read_bytes_from_buffer": "* *",
    }
    for method, arguments in expected.items():
        parameters = list(inspect.signature(getattr(TransferEngine, method)).parameters.values())[1:]
        ours = [p.name + ("=" if p.default is not inspect.Parameter.empty else "") for p in parameters]
        theirs = arguments.split()
        assert [name if star != "*" else "*" for name, star in zip(ours, theirs)] == theirs, method
        assert len(ours) == len(theirs), method
