"""A `TransferEngine` for programs that were written for Mooncake's: SGLang's and vLLM's KV connectors among them.

    from kvrail.compat.mooncake import TransferEngine          # was: from mooncake.engine import TransferEngine

Methods, their arguments and returned numbers are Mooncake's (0.3.13): 0 or -1, ids of batches that are 0 where there is none;
`location` and `transport_hint` are taken and have nothing to choose. What went
wrong is in the log (`kvrail.compat`) alone, as there. Beneath is an engine of kvrail, and no etcd: `host:port` names a
directory (`_directory.py`) that tells whoever asks what is registered.

What this gives up, next to kvrail's own face:

* **Everything that is registered is lent to whoever can reach the port**, for writing and for reading, until it is unregistered.
  kvrail's leases name ranges, a direction and a time, and go to one peer.
* **A late write is fenced by `unregister_memory` alone**: memory that is reused without it has no generation that would turn a
  stale writer away. A call that returned -1 has stopped its own writes before it returned.
* **Errors are numbers**: no error of a single descriptor, no report of rails or times.

What it does not give up: `unregister_memory` returns 0 when no peer and no transfer touches the memory any more; a peer that
comes back is connected to again; a refused batch has moved nothing late.

Not there: GPU memory, `*_on_cuda`, `get_local_topology`, `get_engine`, `warmup_efa_segment`, and transfers to oneself. Protocol `rdma` moves over
the NICs that `device_name` names, joined by commas (`mlx5_0,mlx5_1`), or all with an active port where it is empty; peers that have none are reached
over TCP. Where this machine has none of them the log says so, and TCP is used.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import os
import socket
import threading
from enum import IntEnum
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from .._native import Buffers, Engine, Lease, Ops, Peer, Region, Transfer, group, rdma_nics
from ..errors import Error, PeerLost, Stale
from ._batch import QUIESCE_MAX, Batch
from ._directory import Directory, Entry, Segment, join, look_up, split

_log = logging.getLogger("kvrail.compat")

#: The variable by which Mooncake's users set the bound of a transfer, whole seconds; one nanosecond a byte is added.
_TIMEOUT_VARIABLE = "MC_TRANSFER_TIMEOUT"
_TIMEOUT_DEFAULT, _TIMEOUT_MIN = 30.0, 5.0
#: As long as a registration lasts: the longest that a lease can.
_FOR_EVER = 365 * 24 * 3600.0


class TransferOpcode(IntEnum):
    """Which way `transfer_sync` moves."""

    Read = 0
    Write = 1


class TransferNotify:
    """A word that follows a transfer's bytes."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg


class _Registered(NamedTuple):
    """A buffer of this process: lent to everybody."""

    address: int
    length: int
    region: Region
    write: Lease
    read: Lease


class _Local:
    """The registered buffers; replaced as a whole when one comes or goes, so that readers need no lock."""

    def __init__(self, all_: Sequence[_Registered]) -> None:
        self.all = list(all_)
        self.buffers = Buffers([(one.address, one.length) for one in self.all])


class _Remote(NamedTuple):
    """A peer that was looked up and connected to."""

    segment: Segment
    peer: Peer


def _rails(protocol: str, device_name: str) -> Dict[str, Any]:
    """Settings of the engine that the protocol and the names of devices ask for."""
    names = {name.strip() for name in device_name.split(",") if name.strip()}
    if protocol != "rdma":
        if names:
            _log.warning("devices %r are not used: TCP goes as the system routes, or over tcp_rails", device_name)
        return {}
    there = rdma_nics()
    rails = [rail for rail in there if not names or rail.split(":")[0] in names]
    missing = names - {rail.split(":")[0] for rail in rails}
    if missing:
        _log.warning("no active RDMA NIC %s here, there is %s", ", ".join(sorted(missing)), ", ".join(there) or "none")
    if not rails:
        _log.warning("rdma was asked for and there is no NIC for it: TCP is used")
        return {}
    return {"transports": ["shm", "rdma", "tcp"], "rdma_rails": rails}


class TransferEngine:
    """Mooncake's class. Keyword arguments are settings of `kvrail.Engine`, `tcp_rails` say."""

    TransferOpcode = TransferOpcode

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._local = _Local([])
        self._remotes: Dict[str, _Remote] = {}
        self._batches: Dict[int, Batch] = {}
        self._ids = itertools.count(1)
        self._engine: Optional[Engine] = None
        self._directory: Optional[Directory] = None
        self._timeout = _TIMEOUT_DEFAULT

    def __del__(self) -> None:
        directory = getattr(self, "_directory", None)
        if directory is not None:
            directory.close()

    # ---- starting

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Starts the engine at this host. `metadata_server` must be "P2PHANDSHAKE"."""
        return self.initialize_ext(local_hostname, metadata_server, protocol, device_name, "")

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str
    ) -> int:
        """The same; `metadata_type` has no meaning without a metadata server."""
        if self._engine is not None:
            _log.error("the engine is initialized already")
            return -1
        if metadata_server != "P2PHANDSHAKE":
            _log.error("metadata server %r: only P2PHANDSHAKE is there, peers tell one another", metadata_server)
            return -1
        if protocol not in ("tcp", "rdma"):
            _log.error("protocol %r is neither tcp nor rdma", protocol)
            return -1
        settings = {**_rails(protocol, device_name), **self._settings}
        try:
            self._timeout = max(_TIMEOUT_MIN, float(os.environ.get(_TIMEOUT_VARIABLE, _TIMEOUT_DEFAULT)))
            host = _host(local_hostname)
            ip = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]
            engine = Engine(listen=join(str(ip), 0), **settings)
            self._directory = Directory(host, split(engine.address)[1], self._entries)
            self._engine = engine
        except (Error, OSError, ValueError) as error:
            _log.error("no engine at %r: %s", local_hostname, error)
            return -1
        return 0

    def get_rpc_port(self) -> int:
        """The port of `host:port`, by which peers name this engine; -1 before it is initialized."""
        return -1 if self._directory is None else self._directory.port

    # ---- memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lends memory to everybody. It must stay until `unregister_memory` has returned 0."""
        return self.batch_register_memory([buffer_addr], [capacity], location)

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """The same of several, all or none."""
        if len(buffer_addresses) != len(capacities):
            _log.error("%d addresses, %d lengths", len(buffer_addresses), len(capacities))
            return -1
        try:
            engine = self._started()
            regions = [engine.register_pointer(a, n) for a, n in zip(buffer_addresses, capacities)]
            return self._lend(regions)
        except (Error, OSError, ValueError, OverflowError) as error:
            _log.error("memory was not registered: %s", error)
            return -1

    def unregister_memory(self, buffer_addr: int) -> int:
        """Takes memory back. 0: nothing touches it any more."""
        return self.batch_unregister_memory([buffer_addr])

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """The same of several."""
        wanted = set(buffer_addresses)
        with self._lock:
            taken = [one for one in self._local.all if one.address in wanted]
            self._local = _Local([one for one in self._local.all if one.address not in wanted])
        if len(taken) != len(wanted):
            _log.error("%d of %d buffers were not registered", len(wanted) - len(taken), len(wanted))
        result = 0 if len(taken) == len(wanted) else -1
        fences = [lease.revoke() for one in taken for lease in (one.write, one.read)]
        for fence in fences:
            fence.wait()
        for one in taken:
            if not one.region.registered_memory:
                continue
            try:
                one.region.unregister().wait(QUIESCE_MAX)
            except TimeoutError:
                _log.error("%d bytes at %#x are still in use by a transfer: do not free them", one.length, one.address)
                result = -1
        return result

    def allocate_managed_buffer(self, length: int) -> int:
        """Address of registered memory that peers on the same host reach without TCP; 0 if there is none."""
        try:
            region = self._started().allocate(length)
            return region.address if self._lend([region]) == 0 else 0
        except (Error, OSError, OverflowError) as error:
            _log.error("%d bytes were not allocated: %s", length, error)
            return 0

    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        """Frees it."""
        return self.unregister_memory(buffer_addr)

    def write_bytes_to_buffer(self, dest_address: int, src: Union[bytes, str], length: int) -> int:
        """Copies bytes to an address."""
        data = src.encode() if isinstance(src, str) else src
        if length > len(data):
            _log.error("%d bytes are to be copied out of %d", length, len(data))
            return -1
        ctypes.memmove(dest_address, data, length)
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Copies bytes from an address."""
        return ctypes.string_at(source_address, length)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """Address of the buffer that a peer registered first; 0 if it has none or cannot be asked."""
        try:
            entries = look_up(segment_name).entries
        except (OSError, ValueError) as error:
            _log.error("%s cannot be asked: %s", segment_name, error)
            return 0
        return entries[0].address if entries else 0

    # ---- transfers that are waited for

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Writes; 0 when the bytes are visible there."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], "write")

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Reads; 0 when the bytes are here."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], "read")

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: List[int],
        peer_buffer_addresses: List[int],
        lengths: List[int],
        transport_hint: str = "",
    ) -> int:
        """Writes many runs; 0 when all bytes are visible there."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, "write")

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: List[int],
        peer_buffer_addresses: List[int],
        lengths: List[int],
        transport_hint: str = "",
    ) -> int:
        """Reads many runs; 0 when all bytes are here."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, "read")

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: Optional[TransferNotify] = None,
        transport_hint: str = "",
    ) -> int:
        """Either way, with a word that follows."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], _direction(opcode), notify)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: List[int],
        peer_buffer_addresses: List[int],
        lengths: List[int],
        opcode: TransferOpcode,
        notify: Optional[TransferNotify] = None,
        transport_hint: str = "",
    ) -> int:
        """Either way, many runs, with a word that follows."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, _direction(opcode), notify)

    # ---- transfers that go on

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: List[int],
        peer_buffer_addresses: List[int],
        lengths: List[int],
        transport_hint: str = "",
    ) -> int:
        """Begins to write; an id for `get_batch_transfer_status`, or 0."""
        return self._async(target_hostname, buffers, peer_buffer_addresses, lengths, "write")

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: List[int],
        peer_buffer_addresses: List[int],
        lengths: List[int],
        transport_hint: str = "",
    ) -> int:
        """Begins to read; an id for `get_batch_transfer_status`, or 0."""
        return self._async(target_hostname, buffers, peer_buffer_addresses, lengths, "read")

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: List[int],
        peer_buffer_addresses: List[int],
        lengths: List[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Begins either; an id for `get_batch_transfer_status`, or 0."""
        return self._async(target_hostname, buffers, peer_buffer_addresses, lengths, _direction(opcode))

    def get_batch_transfer_status(self, batch_ids: List[int]) -> int:
        """Waits for all; 0 if all went well, else -1. Their ids are used up."""
        result = 0
        for batch_id in batch_ids:
            batch = self._batches.pop(batch_id, None)
            try:
                if batch is None:
                    raise ValueError("there is no such batch")
                batch.wait()
            except (Error, ValueError, TimeoutError) as error:
                _log.error("batch %d failed: %s", batch_id, error)
                result = -1
        return result

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Begins to write; an id for `transfer_check_status`, or -1."""
        return self._async(target_hostname, [buffer], [peer_buffer_address], [length], "write") or -1

    def transfer_check_status(self, batch_id: int) -> int:
        """1: done, 0: under way, -1: failed, -2: not in time. The id is used up when it is not under way."""
        batch = self._batches.get(batch_id)
        result = -1
        try:
            if batch is not None:
                result = int(batch.poll())
        except TimeoutError:
            result = -2
        except Error as error:
            _log.error("batch %d failed: %s", batch_id, error)
        if result != 0:
            self._batches.pop(batch_id, None)
        return result

    # ---- words

    def get_notifies(self) -> List[TransferNotify]:
        """The words that have followed peers' transfers since this was last asked."""
        notifies = []
        engine = self._started()
        while (notification := engine.try_notification()) is not None:
            name, msg = json.loads(notification.payload)
            notifies.append(TransferNotify(name, msg))
        return notifies

    def send_probe(self, peer_server_name: str) -> int:
        """0 if the peer answers, else -1."""
        try:
            look_up(peer_server_name)
        except (OSError, ValueError) as error:
            _log.warning("%s does not answer: %s", peer_server_name, error)
            return -1
        return 0

    # ---- beneath

    def _started(self) -> Engine:
        if self._engine is None:
            raise ValueError("initialize has not been called, or has failed")
        return self._engine

    def _entries(self) -> List[Entry]:
        return [Entry(one.address, one.length, one.write.ticket, one.read.ticket) for one in self._local.all]

    def _lend(self, regions: Sequence[Region]) -> int:
        engine = self._started()
        lent = [
            _Registered(
                region.address,
                len(region),
                region,
                engine.grant(region, access="write", ttl=_FOR_EVER),
                engine.grant(region, access="read", ttl=_FOR_EVER),
            )
            for region in regions
        ]
        with self._lock:
            together = sorted([*self._local.all, *lent], key=lambda one: one.address)
            for one, next_ in zip(together, together[1:]):
                if one.address + one.length > next_.address:
                    _log.error("buffers at %#x and %#x overlap", one.address, next_.address)
                    return -1
            self._local = _Local([*self._local.all, *lent])
        return 0

    def _remote(self, target: str, again: bool) -> _Remote:
        """The peer, looked up and connected to once, and `again` where what is known of it has turned out to be old."""
        remote = self._remotes.get(target)
        if remote is None or again or not remote.peer.is_alive:
            segment = look_up(target)
            remote = _Remote(segment, self._started().connect(segment.address).wait())
            self._remotes[target] = remote
        return remote

    def _begin(
        self,
        target: str,
        runs: Tuple[List[int], List[int], List[int]],
        direction: str,
        again: bool,
        notify: Optional[TransferNotify],
    ) -> Batch:
        """Submits one transfer for each pair of buffers; with a word, all but the last have ended before that one begins."""
        local = self._local
        remote = self._remote(target, again)
        try:
            groups = group(local.buffers, remote.segment.buffers, *runs)
        except ValueError:
            # The peer may have registered more since it was asked.
            if again:
                raise
            return self._begin(target, runs, direction, True, notify)
        deadline = self._timeout + sum(runs[2]) / 1e9

        def submit(part: Tuple[int, int, Ops], word: Optional[bytes] = None) -> Transfer:
            here, there, ops = part
            entry = remote.segment.entries[there]
            ticket = entry.write if direction == "write" else entry.read
            region = local.all[here].region
            return self._started().submit(
                remote.peer, region, ticket, ops, direction=direction, deadline=deadline, notify=word
            )

        if notify is None or not groups:
            return Batch(partial(submit, part) for part in groups)
        Batch(partial(submit, part) for part in groups[:-1]).wait()
        return Batch([partial(submit, groups[-1], json.dumps([notify.name, notify.msg]).encode())])

    def _sync(
        self,
        target: str,
        buffers: List[int],
        peers: List[int],
        lengths: List[int],
        direction: str,
        notify: Optional[TransferNotify] = None,
    ) -> int:
        for again in (False, True):
            try:
                self._begin(target, (buffers, peers, lengths), direction, again, notify).wait()
                return 0
            except (Stale, PeerLost) as error:
                # The peer has registered anew, or restarted: look it up once more. The same bytes go to the same place.
                if not again:
                    continue
                _log.error("%s of %d runs, %s: %s", direction, len(buffers), target, error)
            except (Error, OSError, ValueError, OverflowError) as error:
                _log.error("%s of %d runs, %s: %s", direction, len(buffers), target, error)
                break
        return -1

    def _async(self, target: str, buffers: List[int], peers: List[int], lengths: List[int], direction: str) -> int:
        try:
            batch = self._begin(target, (buffers, peers, lengths), direction, False, None)
        except (Error, OSError, ValueError, OverflowError) as error:
            _log.error("%s of %d runs, %s: %s", direction, len(buffers), target, error)
            return 0
        batch_id = next(self._ids)
        self._batches[batch_id] = batch
        return batch_id


def _direction(opcode: TransferOpcode) -> str:
    return "write" if opcode == TransferOpcode.Write else "read"


def _host(local_hostname: str) -> str:
    """The host of `host` or `host:port`: peers are told the port that is free, as Mooncake does without a metadata server."""
    if local_hostname.count(":") == 1 or local_hostname.startswith("["):
        return split(local_hostname)[0] if not local_hostname.endswith("]") else local_hostname.strip("[]")
    return local_hostname
