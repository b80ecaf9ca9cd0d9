//! What a completion queue holds.

use std::fmt;

use kvrail_verbs_sys as sys;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $raw:ident,)*) => {
        /// How a request ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[$doc])* $name,)*
            /// A value that is newer than this code.
            Other(u32),
        }

        impl Status {
            fn of(raw: sys::ibv_wc_status) -> Self {
                match raw {
                    $(sys::ibv_wc_status::$raw => Self::$name,)*
                    other => Self::Other(other.0),
                }
            }

            /// As verbs.h names it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($raw),)*
                    Self::Other(_) => "IBV_WC_?",
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Success = IBV_WC_SUCCESS,
    /// Longer than what was posted for it, or than a message may be.
    LocalLength = IBV_WC_LOC_LEN_ERR,
    /// The queue pair cannot do it.
    LocalOperation = IBV_WC_LOC_QP_OP_ERR,
    /// An end-to-end context cannot do it (reliable datagrams).
    LocalEndToEnd = IBV_WC_LOC_EEC_OP_ERR,
    /// Local memory is not registered for it.
    LocalProtection = IBV_WC_LOC_PROT_ERR,
    /// Not tried: the queue pair was in error, or went there while it waited.
    Flushed = IBV_WC_WR_FLUSH_ERR,
    /// A window cannot be bound so.
    WindowBind = IBV_WC_MW_BIND_ERR,
    /// The peer answered with what makes no sense.
    BadResponse = IBV_WC_BAD_RESP_ERR,
    /// Local memory may not be written so.
    LocalAccess = IBV_WC_LOC_ACCESS_ERR,
    /// The peer took it for an invalid request.
    RemoteInvalid = IBV_WC_REM_INV_REQ_ERR,
    /// The peer's memory may not be used so: the key is void, or the range or the right not in it.
    RemoteAccess = IBV_WC_REM_ACCESS_ERR,
    /// The peer could not do it.
    RemoteOperation = IBV_WC_REM_OP_ERR,
    /// The peer did not answer, however often it was sent.
    RetriesExceeded = IBV_WC_RETRY_EXC_ERR,
    /// The peer had no receive posted, however often it was asked.
    ReceiverNotReady = IBV_WC_RNR_RETRY_EXC_ERR,
    /// Reliable datagrams: another domain.
    LocalDomain = IBV_WC_LOC_RDD_VIOL_ERR,
    /// Reliable datagrams: invalid request.
    RemoteInvalidDatagram = IBV_WC_REM_INV_RD_REQ_ERR,
    /// The peer gave up.
    RemoteAbort = IBV_WC_REM_ABORT_ERR,
    /// Reliable datagrams: no such context.
    InvalidContext = IBV_WC_INV_EECN_ERR,
    /// Reliable datagrams: context in the wrong state.
    InvalidContextState = IBV_WC_INV_EEC_STATE_ERR,
    /// The device failed.
    Fatal = IBV_WC_FATAL_ERR,
    /// The peer took too long.
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR,
    /// None of the others.
    General = IBV_WC_GENERAL_ERR,
    /// Tag matching failed.
    TagMatching = IBV_WC_TM_ERR,
    /// A rendezvous was left to software.
    TagRendezvous = IBV_WC_TM_RNDV_INCOMPLETE,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(raw) => write!(f, "IBV_WC_{raw}"),
            known => f.write_str(known.name()),
        }
    }
}

/// What kind of request has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opcode {
    /// A send.
    Send,
    /// A write, with or without immediate.
    Write,
    /// A read.
    Read,
    /// A window was bound.
    Bind,
    /// A key was made void.
    Invalidate,
    /// A receive that took a send.
    Receive,
    /// A receive that took the immediate of a write.
    ReceiveImmediate,
    /// One that kvrail does not post.
    Other(u32),
}

/// The completion of one request.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion(sys::ibv_wc);

impl Completion {
    /// What the request was posted with.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended. Unless that is [`Status::Success`], only `id`, `qp` and `vendor_error` mean anything.
    pub fn status(&self) -> Status {
        Status::of(self.0.status)
    }

    /// Whether it ended well.
    pub fn is_success(&self) -> bool {
        self.0.status == sys::ibv_wc_status::IBV_WC_SUCCESS
    }

    /// What it was; `None` if it did not end well.
    pub fn opcode(&self) -> Option<Opcode> {
        use sys::ibv_wc_opcode as raw;
        if !self.is_success() {
            return None;
        }
        Some(match self.0.opcode {
            raw::IBV_WC_SEND => Opcode::Send,
            raw::IBV_WC_RDMA_WRITE => Opcode::Write,
            raw::IBV_WC_RDMA_READ => Opcode::Read,
            raw::IBV_WC_BIND_MW => Opcode::Bind,
            raw::IBV_WC_LOCAL_INV => Opcode::Invalidate,
            raw::IBV_WC_RECV => Opcode::Receive,
            raw::IBV_WC_RECV_RDMA_WITH_IMM => Opcode::ReceiveImmediate,
            other => Opcode::Other(other.0),
        })
    }

    /// Bytes that were received, or that came with the write whose immediate was received.
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate that was received, in this machine's byte order.
    pub fn immediate(&self) -> Option<u32> {
        // SAFETY: both members of the union are 32 plain bits.
        self.has(sys::ibv_wc_flags::IBV_WC_WITH_IMM).then(|| u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data }))
    }

    /// The key that the peer made void with its send.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        // SAFETY: both members of the union are 32 plain bits.
        self.has(sys::ibv_wc_flags::IBV_WC_WITH_INV).then_some(unsafe { self.0.__bindgen_anon_1.invalidated_rkey })
    }

    /// Number of the queue pair.
    pub fn qp(&self) -> u32 {
        self.0.qp_num
    }

    /// What the vendor has to say about an error.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    fn has(&self, flag: sys::ibv_wc_flags) -> bool {
        self.is_success() && self.0.wc_flags & flag.0 != 0
    }
}

impl Default for Completion {
    /// Room for one.
    fn default() -> Self {
        // SAFETY: all zeroes is a value of it.
        Self(unsafe { std::mem::zeroed() })
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Completion");
        out.field("id", &self.id()).field("qp", &self.qp()).field("status", &self.status());
        match self.opcode() {
            Some(opcode) => {
                out.field("opcode", &opcode).field("bytes", &self.bytes()).field("immediate", &self.immediate())
            }
            None => out.field("vendor_error", &self.vendor_error()),
        };
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_numbers_of_the_header() {
        // verbs.h, enum ibv_wc_status, counted by hand.
        for (number, status, name) in [
            (0, Status::Success, "IBV_WC_SUCCESS"),
            (4, Status::LocalProtection, "IBV_WC_LOC_PROT_ERR"),
            (5, Status::Flushed, "IBV_WC_WR_FLUSH_ERR"),
            (10, Status::RemoteAccess, "IBV_WC_REM_ACCESS_ERR"),
            (12, Status::RetriesExceeded, "IBV_WC_RETRY_EXC_ERR"),
            (13, Status::ReceiverNotReady, "IBV_WC_RNR_RETRY_EXC_ERR"),
            (21, Status::General, "IBV_WC_GENERAL_ERR"),
            (23, Status::TagRendezvous, "IBV_WC_TM_RNDV_INCOMPLETE"),
        ] {
            assert_eq!(Status::of(sys::ibv_wc_status(number)), status);
            assert_eq!(status.to_string(), name);
        }
        assert_eq!(Status::of(sys::ibv_wc_status(99)), Status::Other(99));
        assert_eq!(Status::Other(99).to_string(), "IBV_WC_99");
    }

    #[test]
    fn an_immediate_is_in_this_machines_order_and_only_there_when_one_came() {
        let mut completion = Completion::default();
        completion.0.opcode = sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        completion.0.__bindgen_anon_1.imm_data = 7_u32.to_be();
        assert_eq!(completion.immediate(), None);
        completion.0.wc_flags = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
        assert_eq!(completion.immediate(), Some(7));
        assert_eq!(completion.opcode(), Some(Opcode::ReceiveImmediate));
        completion.0.status = sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        assert_eq!((completion.immediate(), completion.opcode()), (None, None));
    }
}
