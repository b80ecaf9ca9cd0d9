"""What can go wrong, a class each. `status` is the number that the C ABI has for the same thing, and `name` its name.

    Error
    ├── ConfigError, SystemFailure, MemoryFailure, LimitExceeded, Stopped, InternalError
    ├── ConnectError ── Unreachable, HandshakeTimeout, NotAnEngine, VersionMismatch, WrongGeneration, NoTransport, Myself, Refused
    ├── LeaseError ──── BadRange, BadTicket, TicketVersion
    ├── SubmitError ─── BadOp, OutsideLease, WrongAccess, WrongPeer, NotifyTooLong, PrivateMemory        nothing was posted
    ├── TransferError ─ Stale, RefusedByOwner, DeadlineExceeded, Cancelled, Fault, Corrupt, NotifyRefused    has a report
    ├── Hopeless, PeerLost                                                       both: at submission, or as a transfer's end
    └── OpError ─────── OpNotSent, OpInDoubt, OpFailed                                            one descriptor of a report
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Type

from ._native import op_status_name, status_names

if TYPE_CHECKING:
    from ._native import Report


class Error(Exception):
    """Anything that the engine refuses or fails at."""

    #: Number of the status, the same as in C; negative.
    status: int = -9
    #: Its name, "stale" say.
    name: str = "unknown"


class ConfigError(Error, ValueError):
    """A setting makes no sense; the text names it."""


class SystemFailure(Error, OSError):
    """The operating system refused."""


class MemoryFailure(Error, MemoryError):
    """Memory could not be had, or cannot be registered."""


class LimitExceeded(Error):
    """A bound of the engine would be passed; try again when something has ended."""


class Stopped(Error):
    """The engine is shut down."""


class InternalError(Error):
    """A fault of kvrail itself."""


class ConnectError(Error, ConnectionError):
    """There is no session with a peer."""


class Unreachable(ConnectError):
    """Nobody answered there, or the connection broke."""


class HandshakeTimeout(ConnectError, TimeoutError):
    """The handshake did not end in time."""


class NotAnEngine(ConnectError):
    """What answered is not an engine."""


class VersionMismatch(ConnectError):
    """No common version of the protocol."""


class WrongGeneration(ConnectError):
    """The engine there is not the expected one: it restarted."""


class NoTransport(ConnectError):
    """No transport in common."""


class Myself(ConnectError):
    """That address is this engine."""


class Refused(ConnectError):
    """The peer refused the connection."""


class LeaseError(Error, ValueError):
    """Memory was not lent, or a ticket not read."""


class BadRange(LeaseError):
    """No range, an empty one, or one past the end of its region."""


class BadTicket(LeaseError):
    """Bytes that are no intact ticket."""


class TicketVersion(LeaseError):
    """A ticket of a version that this build does not know."""


class SubmitError(Error, ValueError):
    """A transfer was not accepted: nothing was posted, its memory is free."""


class BadOp(SubmitError):
    """A descriptor is wrong; the text says which and how."""


class OutsideLease(SubmitError):
    """A descriptor reaches outside the lent ranges."""


class WrongAccess(SubmitError):
    """A write under a lease for reading, or the other way round."""


class WrongPeer(SubmitError):
    """The ticket is of another engine, or of this one before it restarted."""


class NotifyTooLong(SubmitError):
    """The notification is too long."""


class PrivateMemory(SubmitError):
    """Only shared memory joins the two, and the bytes come from private memory."""


class TransferError(Error):
    """A transfer failed."""

    #: How it ended; None where it was refused when it was submitted.
    report: Optional["Report"] = None

    @property
    def memory_is_free(self) -> bool:
        """Whether local memory may be used again; otherwise when `Transfer.quiesce` says so."""
        return self.report is None or self.report.memory_is_free

    @property
    def errors(self) -> "list[OpError]":
        """One for each descriptor that has not landed."""
        return [] if self.report is None else self.report.errors()


class Hopeless(TransferError, TimeoutError):
    """It could not end before its deadline."""


class PeerLost(TransferError, ConnectionError):
    """The peer is gone; connect again."""


class Stale(TransferError):
    """The lease was gone: a write did not land, what was read must not be believed."""


class RefusedByOwner(TransferError):
    """The owner refused for another reason."""


class DeadlineExceeded(TransferError, TimeoutError):
    """It did not end in time."""


class Cancelled(TransferError):
    """It was cancelled."""


class Fault(TransferError):
    """No path was left."""


class Corrupt(TransferError):
    """What arrived was damaged, as often as it was sent."""


class NotifyRefused(TransferError):
    """All bytes are visible, but the peer's notification queue was full."""


class OpError(Error):
    """One descriptor of a transfer has not landed."""

    def __init__(self, index: int, status: int) -> None:
        self.index = index
        self.status = status
        self.name = op_status_name(status) or "unknown"
        super().__init__(f"op {index}: {self.name.replace('_', ' ')}")


class OpNotSent(OpError):
    """Its destination is untouched."""


class OpInDoubt(OpError):
    """Its destination holds old and new bytes."""


class OpFailed(OpError):
    """It failed; `name` says of what."""


_CLASSES: Dict[str, Type[Error]] = {
    "config": ConfigError,
    "os": SystemFailure,
    "memory": MemoryFailure,
    "stopped": Stopped,
    "limit": LimitExceeded,
    "internal": InternalError,
    "unreachable": Unreachable,
    "handshake_timeout": HandshakeTimeout,
    "not_an_engine": NotAnEngine,
    "version": VersionMismatch,
    "wrong_generation": WrongGeneration,
    "no_transport": NoTransport,
    "myself": Myself,
    "refused": Refused,
    "bad_range": BadRange,
    "bad_ticket": BadTicket,
    "ticket_version": TicketVersion,
    "bad_op": BadOp,
    "outside_lease": OutsideLease,
    "wrong_access": WrongAccess,
    "wrong_peer": WrongPeer,
    "notify_too_long": NotifyTooLong,
    "private_memory": PrivateMemory,
    "hopeless": Hopeless,
    "peer_lost": PeerLost,
    "stale": Stale,
    "refused_by_owner": RefusedByOwner,
    "deadline": DeadlineExceeded,
    "cancelled": Cancelled,
    "fault": Fault,
    "corrupt": Corrupt,
    "notify_refused": NotifyRefused,
}

_NAMES = dict(status_names())
_OPS = {"not_sent": OpNotSent, "in_doubt": OpInDoubt}


def make(status: int, text: str, report: Optional["Report"] = None) -> Error:
    """The exception for a number; called by the native half."""
    name = _NAMES.get(status, "unknown")
    error = _CLASSES.get(name, Error)(text)
    error.status, error.name = status, name
    if report is not None:
        error.report = report  # type: ignore[attr-defined]
    return error


def make_op(index: int, status: int) -> OpError:
    """The exception for one descriptor; called by the native half."""
    return _OPS.get(op_status_name(status) or "", OpFailed)(index, status)
