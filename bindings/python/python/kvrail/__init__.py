"""The transfer engine of kvrail: moves KV cache between processes and machines under leases.

An `Engine` moves bytes between a `Region` of its own and memory that a peer has lent (`Lease` there, `Ticket` here). A
`Transfer` is awaited in asyncio or waited for by a thread; it ends in a `Report`, or in an exception of `kvrail.errors` that
says why and has the report. Everything that takes time and is no transfer is a `Pending`, used the same way.

Engines have threads: make them after a fork, not before.
"""

from ._native import (
    Engine,
    Events,
    Lease,
    Notification,
    Ops,
    Peer,
    Pending,
    Prepared,
    Region,
    Report,
    Ticket,
    Transfer,
    __version__,
    op_status_name,
    rdma_nics,
)
from .errors import (
    Cancelled,
    ConnectError,
    DeadlineExceeded,
    Error,
    LeaseError,
    LimitExceeded,
    OpError,
    PeerLost,
    Stale,
    Stopped,
    SubmitError,
    TransferError,
)

__all__ = [
    "Cancelled",
    "ConnectError",
    "DeadlineExceeded",
    "Engine",
    "Error",
    "Events",
    "Lease",
    "LeaseError",
    "LimitExceeded",
    "Notification",
    "OpError",
    "Ops",
    "Peer",
    "PeerLost",
    "Pending",
    "Prepared",
    "Region",
    "Report",
    "Stale",
    "Stopped",
    "SubmitError",
    "Ticket",
    "Transfer",
    "TransferError",
    "__version__",
    "op_status_name",
    "rdma_nics",
]
