//! What a device reports on its own.

use kvrail_verbs_sys as sys;

/// An asynchronous event, fetched and acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A port came up.
    PortActive {
        /// The port.
        port: u32,
    },
    /// A port went down.
    PortError {
        /// The port.
        port: u32,
    },
    /// The device failed: everything on it is lost.
    DeviceFatal,
    /// The GID table of a port changed: indices may name other addresses now.
    GidChange {
        /// The port.
        port: u32,
    },
    /// LID, partition keys, subnet manager or registration of a port changed.
    PortChange {
        /// The port.
        port: u32,
    },
    /// The speed of a device's links changed.
    SpeedChange,
    /// A queue pair is in error: a fault of the NIC, an invalid request, or an access that was not allowed.
    QueuePairError {
        /// Number of the queue pair.
        qp: u32,
        /// Which of the three.
        cause: QueuePairFault,
    },
    /// The first packet came before the queue pair was told that its peer is ready.
    CommunicationEstablished {
        /// Number of the queue pair.
        qp: u32,
    },
    /// Its path changed, or could not.
    PathMigrated {
        /// Number of the queue pair.
        qp: u32,
        /// Whether it could.
        succeeded: bool,
    },
    /// All that a queue pair had begun to send is done, in state SQD.
    SendQueueDrained {
        /// Number of the queue pair.
        qp: u32,
    },
    /// A queue pair in error has taken its last receive off a shared queue.
    LastReceive {
        /// Number of the queue pair.
        qp: u32,
    },
    /// A completion queue overran, or failed.
    CompletionQueueError {
        /// [`CompletionQueue::handle`](crate::CompletionQueue::handle).
        handle: u32,
    },
    /// A shared receive queue failed.
    SharedQueueError {
        /// [`SharedReceiveQueue::handle`](crate::SharedReceiveQueue::handle).
        handle: u32,
    },
    /// A shared receive queue is below its limit.
    SharedQueueLimit {
        /// [`SharedReceiveQueue::handle`](crate::SharedReceiveQueue::handle).
        handle: u32,
    },
    /// Something that is newer than this code, or that kvrail's objects do not raise.
    Other {
        /// `ibv_event_type`.
        kind: u32,
    },
}

/// Why a queue pair went to error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairFault {
    /// `IBV_EVENT_QP_FATAL`.
    Fatal,
    /// `IBV_EVENT_QP_REQ_ERR`: the peer sent what it may not.
    Request,
    /// `IBV_EVENT_QP_ACCESS_ERR`: the peer touched what it may not.
    Access,
}

impl AsyncEvent {
    /// Reads an event.
    ///
    /// # Safety
    ///
    /// It was fetched from the library and is not acknowledged.
    pub(crate) unsafe fn of(raw: &sys::ibv_async_event) -> Self {
        use sys::ibv_event_type as kind;
        // SAFETY: the kind tells which member of the union is set; the object lives until the event is acknowledged.
        let (port, qp, cq, srq) = unsafe {
            let element = &raw.element;
            (
                || u32::try_from(element.port_num).unwrap_or(0),
                || (*element.qp).qp_num,
                || (*element.cq).handle,
                || (*element.srq).handle,
            )
        };
        let fault = |cause| Self::QueuePairError { qp: qp(), cause };
        match raw.event_type {
            kind::IBV_EVENT_PORT_ACTIVE => Self::PortActive { port: port() },
            kind::IBV_EVENT_PORT_ERR => Self::PortError { port: port() },
            kind::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            kind::IBV_EVENT_GID_CHANGE => Self::GidChange { port: port() },
            kind::IBV_EVENT_LID_CHANGE
            | kind::IBV_EVENT_PKEY_CHANGE
            | kind::IBV_EVENT_SM_CHANGE
            | kind::IBV_EVENT_CLIENT_REREGISTER => Self::PortChange { port: port() },
            kind::IBV_EVENT_DEVICE_SPEED_CHANGE => Self::SpeedChange,
            kind::IBV_EVENT_QP_FATAL => fault(QueuePairFault::Fatal),
            kind::IBV_EVENT_QP_REQ_ERR => fault(QueuePairFault::Request),
            kind::IBV_EVENT_QP_ACCESS_ERR => fault(QueuePairFault::Access),
            kind::IBV_EVENT_COMM_EST => Self::CommunicationEstablished { qp: qp() },
            kind::IBV_EVENT_PATH_MIG => Self::PathMigrated { qp: qp(), succeeded: true },
            kind::IBV_EVENT_PATH_MIG_ERR => Self::PathMigrated { qp: qp(), succeeded: false },
            kind::IBV_EVENT_SQ_DRAINED => Self::SendQueueDrained { qp: qp() },
            kind::IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastReceive { qp: qp() },
            kind::IBV_EVENT_CQ_ERR => Self::CompletionQueueError { handle: cq() },
            kind::IBV_EVENT_SRQ_ERR => Self::SharedQueueError { handle: srq() },
            kind::IBV_EVENT_SRQ_LIMIT_REACHED => Self::SharedQueueLimit { handle: srq() },
            other => Self::Other { kind: other.0 },
        }
    }
}
