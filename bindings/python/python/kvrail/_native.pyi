"""The native half of `kvrail`. Times are seconds, sizes bytes."""

from types import TracebackType
from typing import Any, Dict, Generator, Generic, List, Optional, Sequence, Tuple, Type, TypeVar, Union, final

T_co = TypeVar("T_co", covariant=True)

__version__: str

@final
class Pending(Generic[T_co]):
    """Something that ends. Await it in asyncio, or call `wait`. An error is raised by either."""

    def wait(self, timeout: Optional[float] = None) -> T_co:
        """Blocks until it has ended; other threads run meanwhile. TimeoutError ends the wait alone."""
    def poll(self, events: Events, token: int) -> Optional[Tuple[T_co]]:
        """For event loops: `(result,)` if it has ended, else None, and `token` goes to `events` when it does."""
    def cancelled(self) -> None:
        """For event loops: the task that awaited it was cancelled."""
    def __await__(self) -> Generator[Any, None, T_co]: ...

@final
class Events:
    """Tokens of what has ended, behind a descriptor that an event loop reads."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Readable while there are tokens; do not read from it."""
    def take(self) -> List[int]:
        """All tokens, oldest first."""

@final
class Region:
    """Memory that can be lent and moved."""

    @property
    def address(self) -> int: ...
    @property
    def shared(self) -> bool:
        """Whether peers on the same host can map it."""
    @property
    def readonly(self) -> bool: ...
    @property
    def registered_memory(self) -> bool:
        """Whether it is memory of the caller."""
    @property
    def __array_interface__(self) -> Dict[str, Any]: ...
    def __len__(self) -> int: ...
    def view(self) -> memoryview:
        """Writable bytes of an allocated region, without a copy; they keep the region."""
    def unregister(self) -> Pending[None]:
        """Gives registered memory back: the result is there when no engine touches it any more. Leases on it must be revoked
        for that, and transfers end."""

@final
class Ticket:
    """The right to a lease; whoever has it may use the lease."""

    def __init__(self, data: bytes) -> None: ...
    def __bytes__(self) -> bytes: ...
    @property
    def generation(self) -> int:
        """Generation of the engine that lends."""
    @property
    def access(self) -> str:
        """ "write" or "read"."""
    @property
    def ranges(self) -> List[Tuple[int, int]]:
        """(offset, length) each, sorted and merged."""

@final
class Lease:
    """Memory that is lent. Garbage that was a lease is revoked."""

    @property
    def ticket(self) -> Ticket: ...
    @property
    def bytes_landed(self) -> int: ...
    @property
    def is_over(self) -> bool: ...
    def revoke(self) -> Pending[int]:
        """Ends it; the bytes that landed under it, when no byte can land any more. It waits for no peer."""
    def fenced(self) -> Pending[int]:
        """The same when it has ended, whoever ended it."""

@final
class Peer:
    """A connected engine."""

    @property
    def generation(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def is_alive(self) -> bool: ...
    def lost(self) -> Pending[None]:
        """A result when the session is over."""

@final
class Ops:
    """A list of descriptors that is prepared once and submitted as often as wanted."""

    def __init__(self, runs: Sequence[Tuple[int, int, int]]) -> None:
        """(local offset, remote offset, length) each."""
    @staticmethod
    def lists(local: Sequence[int], remote: Sequence[int], length: Union[int, Sequence[int]]) -> Ops: ...
    @staticmethod
    def strided(descriptors: Sequence[Tuple[int, int, int, int, int, int]]) -> Ops:
        """(local offset, local stride, remote offset, remote stride, length of a run, runs) each."""
    @property
    def bytes(self) -> int: ...
    def __len__(self) -> int: ...

@final
class Report:
    """How a transfer ended."""

    @property
    def ok(self) -> bool: ...
    @property
    def status(self) -> int: ...
    @property
    def memory_is_free(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def retried_bytes(self) -> int: ...
    @property
    def queued(self) -> float: ...
    @property
    def wire(self) -> float: ...
    @property
    def rails(self) -> List[Tuple[str, int, int]]:
        """(transport, number of the stream, bytes) each."""
    @property
    def statuses(self) -> "bytes":
        """One byte for each op, 0 where it landed."""
    def errors(self) -> List[Any]:
        """A `kvrail.OpError` for each op that has not landed."""

@final
class Transfer:
    """A transfer under way. Garbage that was a transfer is cancelled, with a ResourceWarning; so is one whose awaiting task is
    cancelled."""

    def wait(self, timeout: Optional[float] = None) -> Report: ...
    def __await__(self) -> Generator[Any, None, Report]: ...
    def cancel(self) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def report(self) -> Optional[Report]: ...
    def quiesce(self) -> Pending[None]:
        """A result when nothing of it can touch local memory any more."""

@final
class Notification:
    """A peer's word that a transfer's bytes are visible here."""

    @property
    def sender(self) -> int:
        """Generation of the engine that sent it."""
    @property
    def payload(self) -> bytes: ...

@final
class Engine:
    """The engine of a process: moves bytes between regions here and memory that peers lend."""

    def __init__(
        self,
        *,
        listen: Optional[str] = None,
        transports: Optional[Sequence[str]] = None,
        tcp_rails: Optional[Sequence[str]] = None,
        rdma_rails: Optional[Sequence[str]] = None,
        streams_per_peer: Optional[int] = None,
        workers: Optional[int] = None,
        checksum: Optional[bool] = None,
        guard_leases: Optional[bool] = None,
        heartbeat: Optional[float] = None,
        peer_timeout: Optional[float] = None,
        connect_timeout: Optional[float] = None,
        peers_max: Optional[int] = None,
        leases_max: Optional[int] = None,
        transfers_max: Optional[int] = None,
        notifications_max: Optional[int] = None,
    ) -> None: ...
    @property
    def address(self) -> str:
        """Where peers connect to, ADDRESS:PORT."""
    @property
    def generation(self) -> int: ...
    def allocate(self, length: int, *, shared: bool = True) -> Region: ...
    def register(self, memory: Any) -> Region:
        """Over a NumPy array, a tensor on the CPU, a bytearray, an mmap: nothing is copied, the object is kept."""
    def register_pointer(
        self, address: int, length: int, owner: Any = None, *, readonly: bool = False
    ) -> Region: ...
    def grant(
        self,
        region: Region,
        ranges: Optional[Sequence[Tuple[int, int]]] = None,
        *,
        access: str = "write",
        ttl: float = 30.0,
    ) -> Lease: ...
    def connect(self, address: str, generation: Optional[int] = None) -> Pending[Peer]: ...
    def submit(
        self,
        peer: Peer,
        region: Region,
        ticket: Union[Ticket, bytes],
        ops: Union[Ops, Sequence[Tuple[int, int, int]]],
        *,
        direction: str = "write",
        deadline: float = 10.0,
        transfer_class: str = "kv",
        tenant: int = 0,
        checksum: Optional[bool] = None,
        notify: Optional[bytes] = None,
    ) -> Transfer: ...
    def prepare(
        self,
        peer: Peer,
        region: Region,
        ticket: Union[Ticket, bytes],
        ops: Union[Ops, Sequence[Tuple[int, int, int]]],
        *,
        direction: str = "write",
        deadline: float = 10.0,
        transfer_class: str = "kv",
        tenant: int = 0,
        checksum: Optional[bool] = None,
        notify: Optional[bytes] = None,
    ) -> Prepared: ...
    def notification(self) -> Pending[Notification]: ...
    def try_notification(self) -> Optional[Notification]: ...
    def stats(self) -> Dict[str, Any]: ...
    def shutdown(self) -> Pending[None]: ...
    def __enter__(self) -> Engine: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None: ...

@final
class Prepared:
    """A transfer that is done as often as wanted; `Engine.prepare` makes it."""

    def submit(self) -> Transfer: ...
    def transfer(self) -> Report:
        """Submits it and blocks until it has ended, in one call."""

@final
class Buffers:
    """Registered ranges of an address space, `(address, length)` each; a buffer's name is its place in the list."""

    def __init__(self, buffers: Sequence[Tuple[int, int]]) -> None: ...

def group(
    local: Buffers, remote: Buffers, source: Sequence[int], target: Sequence[int], lengths: Sequence[int]
) -> List[Tuple[int, int, Ops]]:
    """Groups runs by the pair of buffers that they lie in. ValueError names a run that lies in none."""

def dlpack(capsule: Any) -> Tuple[int, int, int, bool]:
    """Address, length, kind of device, and whether it is dense in C order."""

def status_names() -> List[Tuple[int, str]]: ...
def op_status_name(status: int) -> Optional[str]: ...
def rdma_nics() -> List[str]:
    """The RDMA NICs of this machine with an active port, as `rdma_rails` names them; none where there is no libibverbs."""
