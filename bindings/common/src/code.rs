//! Numbers for errors: what can go wrong has one number in every binding, and keeps it.

use kvrail_transfer::{
    Cause, ConnectError, EngineError, Failure, FailureKind, LeaseError, MemoryError, OpStatus, Refusal, SubmitError,
    TicketError, TransferError,
};

/// Writes the enum, its names and its list from one table.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $value:literal, $name:literal;)*) => {
        /// How a call ended. Zero is well, positive is not over yet, negative is an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Code {
            $($(#[$doc])* $variant = $value,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// Its name: lower case, words joined by underscores.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Code::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    /// It went well.
    Ok = 0, "ok";
    /// It is not over yet.
    Pending = 1, "pending";

    /// An argument makes no sense; the text names it.
    InvalidArgument = -1, "invalid_argument";
    /// A buffer is too small for what is to go into it.
    TooSmall = -2, "too_small";
    /// A setting of the engine makes no sense; the text names it.
    Config = -3, "config";
    /// The operating system refused.
    Os = -4, "os";
    /// Memory could not be had, or cannot be registered.
    Memory = -5, "memory";
    /// The engine is shut down.
    Stopped = -6, "stopped";
    /// A bound of the engine would be passed; try again when something has ended.
    Limit = -7, "limit";
    /// A fault of kvrail itself.
    Internal = -8, "internal";
    /// An error that this version has no number for.
    Unknown = -9, "unknown";

    /// Nobody answered there, or the connection broke.
    Unreachable = -20, "unreachable";
    /// The handshake did not end in time.
    HandshakeTimeout = -21, "handshake_timeout";
    /// What answered is not an engine.
    NotAnEngine = -22, "not_an_engine";
    /// No common version of the protocol.
    Version = -23, "version";
    /// The engine there is not the one that was expected: it restarted.
    WrongGeneration = -24, "wrong_generation";
    /// No transport in common.
    NoTransport = -25, "no_transport";
    /// That address is this engine.
    Myself = -26, "myself";
    /// The peer refused the connection.
    Refused = -27, "refused";

    /// Ranges to lend that are empty, or pass the end of their region.
    BadRange = -40, "bad_range";
    /// Bytes that are no ticket.
    BadTicket = -41, "bad_ticket";
    /// A ticket of a version that this build does not know.
    TicketVersion = -42, "ticket_version";

    /// A descriptor is wrong; the text says which and how.
    BadOp = -60, "bad_op";
    /// A descriptor reaches outside the ranges of the lease.
    OutsideLease = -61, "outside_lease";
    /// A write under a lease for reading, or the other way round.
    WrongAccess = -62, "wrong_access";
    /// The ticket is of another engine than the peer.
    WrongPeer = -63, "wrong_peer";
    /// The notification is too long.
    NotifyTooLong = -64, "notify_too_long";
    /// Only shared memory joins the two, and the bytes come from private memory.
    PrivateMemory = -65, "private_memory";
    /// It could not end before its deadline.
    Hopeless = -66, "hopeless";
    /// The peer is gone; connect again.
    PeerLost = -67, "peer_lost";

    /// The lease was gone: a write did not land, what was read must not be believed.
    Stale = -80, "stale";
    /// The owner refused for another reason.
    RefusedByOwner = -81, "refused_by_owner";
    /// It did not end in time.
    Deadline = -82, "deadline";
    /// It was cancelled.
    Cancelled = -83, "cancelled";
    /// No path was left.
    Fault = -84, "fault";
    /// What arrived was damaged, as often as it was sent.
    Corrupt = -85, "corrupt";
    /// All bytes are visible, but the peer's notification queue was full.
    NotifyRefused = -86, "notify_refused";
}

impl From<&EngineError> for Code {
    fn from(error: &EngineError) -> Self {
        match error {
            EngineError::Config { .. } => Self::Config,
            EngineError::Os { .. } | EngineError::Rdma(_) => Self::Os,
            _ => Self::Unknown,
        }
    }
}

impl From<&MemoryError> for Code {
    fn from(_: &MemoryError) -> Self {
        Self::Memory
    }
}

impl From<&ConnectError> for Code {
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::Unreachable { .. } => Self::Unreachable,
            ConnectError::TimedOut { .. } => Self::HandshakeTimeout,
            ConnectError::NotAnEngine { .. } => Self::NotAnEngine,
            ConnectError::Version { .. } => Self::Version,
            ConnectError::WrongGeneration { .. } => Self::WrongGeneration,
            ConnectError::NoTransport => Self::NoTransport,
            ConnectError::Myself => Self::Myself,
            ConnectError::Refused { .. } => Self::Refused,
            ConnectError::TooManyPeers { .. } => Self::Limit,
            ConnectError::Stopped => Self::Stopped,
            _ => Self::Unknown,
        }
    }
}

impl From<&LeaseError> for Code {
    fn from(error: &LeaseError) -> Self {
        match error {
            LeaseError::Empty | LeaseError::OutOfRegion { .. } => Self::BadRange,
            LeaseError::TooManyRanges { .. } | LeaseError::TooManyLeases { .. } => Self::Limit,
            LeaseError::Stopped => Self::Stopped,
            _ => Self::Unknown,
        }
    }
}

impl From<&TicketError> for Code {
    fn from(error: &TicketError) -> Self {
        match error {
            TicketError::Malformed => Self::BadTicket,
            TicketError::Version(_) => Self::TicketVersion,
            _ => Self::Unknown,
        }
    }
}

impl From<&SubmitError> for Code {
    fn from(error: &SubmitError) -> Self {
        match error {
            SubmitError::BadOp { .. } => Self::BadOp,
            SubmitError::OutsideLease { .. } => Self::OutsideLease,
            SubmitError::WrongAccess => Self::WrongAccess,
            SubmitError::WrongPeer { .. } => Self::WrongPeer,
            SubmitError::NotifyTooLong { .. } => Self::NotifyTooLong,
            SubmitError::WouldExceed { .. } => Self::Limit,
            SubmitError::PrivateMemory => Self::PrivateMemory,
            SubmitError::Hopeless => Self::Hopeless,
            SubmitError::PeerLost => Self::PeerLost,
            SubmitError::Stopped => Self::Stopped,
            _ => Self::Unknown,
        }
    }
}

impl From<&TransferError> for Code {
    fn from(error: &TransferError) -> Self {
        match error.kind() {
            FailureKind::Transfer(Failure::Fault(cause)) => Self::from(cause),
            FailureKind::Transfer(Failure::Deadline) => Self::Deadline,
            FailureKind::Transfer(Failure::Hopeless) => Self::Hopeless,
            FailureKind::Transfer(Failure::Cancelled) => Self::Cancelled,
            FailureKind::NotifyRefused => Self::NotifyRefused,
            FailureKind::Stopped => Self::Stopped,
            _ => Self::Unknown,
        }
    }
}

impl From<Cause> for Code {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Refused(Refusal::Stale) => Self::Stale,
            Cause::Refused(Refusal::OutsideLease | Refusal::Malformed) => Self::RefusedByOwner,
            Cause::Corrupt => Self::Corrupt,
            Cause::PeerLost => Self::PeerLost,
            Cause::LocalFault | Cause::RemoteFault | Cause::PathFault | Cause::Timeout => Self::Fault,
        }
    }
}

/// Names of op statuses, by their number.
const OPS: [&str; 12] = [
    "landed",
    "not_sent",
    "in_doubt",
    "local_fault",
    "remote_fault",
    "path_fault",
    "timeout",
    "corrupt",
    "stale",
    "outside_lease",
    "malformed",
    "peer_lost",
];

/// How an op ended, as one byte: 0 all visible, 1 untouched, 2 old and new bytes mixed, from 3 on a fault by its kind.
#[must_use]
pub fn op_code(status: OpStatus) -> u8 {
    match status {
        OpStatus::Landed => 0,
        OpStatus::NotSent => 1,
        OpStatus::InDoubt => 2,
        OpStatus::Failed(Cause::LocalFault) => 3,
        OpStatus::Failed(Cause::RemoteFault) => 4,
        OpStatus::Failed(Cause::PathFault) => 5,
        OpStatus::Failed(Cause::Timeout) => 6,
        OpStatus::Failed(Cause::Corrupt) => 7,
        OpStatus::Failed(Cause::Refused(Refusal::Stale)) => 8,
        OpStatus::Failed(Cause::Refused(Refusal::OutsideLease)) => 9,
        OpStatus::Failed(Cause::Refused(Refusal::Malformed)) => 10,
        OpStatus::Failed(Cause::PeerLost) => 11,
    }
}

/// Name of an op status by its number; `None` past the last one.
#[must_use]
pub fn op_name(code: u8) -> Option<&'static str> {
    OPS.get(usize::from(code)).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_number_and_no_name_is_used_twice_and_signs_mean_what_they_say() {
        let numbers: HashSet<i32> = Code::ALL.iter().map(|c| *c as i32).collect();
        let names: HashSet<&str> = Code::ALL.iter().map(|c| c.name()).collect();
        assert_eq!((numbers.len(), names.len()), (Code::ALL.len(), Code::ALL.len()));
        let not_errors: Vec<_> = Code::ALL.iter().filter(|c| **c as i32 >= 0).collect();
        assert_eq!(not_errors, [&Code::Ok, &Code::Pending]);
    }

    #[test]
    fn every_op_status_has_a_number_and_a_name_of_its_own() {
        let causes = [
            Cause::LocalFault,
            Cause::RemoteFault,
            Cause::PathFault,
            Cause::Timeout,
            Cause::Corrupt,
            Cause::Refused(Refusal::Stale),
            Cause::Refused(Refusal::OutsideLease),
            Cause::Refused(Refusal::Malformed),
            Cause::PeerLost,
        ];
        let all = [OpStatus::Landed, OpStatus::NotSent, OpStatus::InDoubt];
        let all = all.into_iter().chain(causes.map(OpStatus::Failed));
        let named: Vec<&str> = all.filter_map(|status| op_name(op_code(status))).collect();
        assert_eq!(named, OPS);
        assert_eq!(op_name(OPS.len() as u8), None);
    }
}
