//! Changes to a queue pair: what each step is given, typed.

use std::mem::zeroed;

use kvrail_verbs_sys as sys;

use crate::gid::Gid;
use crate::memory::Access;
use crate::port::Mtu;
use crate::qp::states::{Attributes, QpState};

/// A change of any kind: the next state, and attributes with the values that are set.
#[derive(Clone, Copy)]
pub struct Change {
    pub(crate) raw: sys::ibv_qp_attr,
    pub(crate) to: QpState,
    pub(crate) attributes: Attributes,
}

/// For [`ToInit`] and its followers: each sets a field and notes that it is set.
macro_rules! set {
    ($change:ident, $($attribute:ident: $field:ident = $value:expr),* $(,)?) => {{
        $($change.raw.$field = $value; $change.attributes |= Attributes::$attribute;)*
    }};
}

impl Change {
    /// A change to a state, with no other attribute.
    pub fn to(to: QpState) -> Self {
        // SAFETY: all zeroes is a value of it.
        let mut raw: sys::ibv_qp_attr = unsafe { zeroed() };
        raw.qp_state = to.raw();
        Self { raw, to, attributes: Attributes::STATE }
    }

    /// The attributes that it has.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Sets what the peer may do.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        set!(self, ACCESS: qp_access_flags = access.bits());
        self
    }

    /// Sets the port.
    #[must_use]
    pub fn port(mut self, port: u8) -> Self {
        set!(self, PORT: port_num = port);
        self
    }

    /// Sets the partition key.
    #[must_use]
    pub fn pkey_index(mut self, index: u16) -> Self {
        set!(self, PKEY_INDEX: pkey_index = index);
        self
    }

    /// Sets the time until an answer is missed: 4.096 µs · 2^`timeout`; 0 waits for ever.
    #[must_use]
    pub fn timeout(mut self, timeout: u8) -> Self {
        set!(self, TIMEOUT: timeout = timeout);
        self
    }

    /// Sets how long a peer is told to wait, as in [`ToRtr::not_ready_timer`].
    #[must_use]
    pub fn not_ready_timer(mut self, timer: u8) -> Self {
        set!(self, NOT_READY_TIMER: min_rnr_timer = timer);
        self
    }
}

/// From `Reset` to `Init`.
#[derive(Clone, Copy, Debug)]
pub struct ToInit {
    /// Port of this side.
    pub port: u8,
    /// Place of the partition key in the port's table; 0 is the default partition.
    pub pkey_index: u16,
    /// What the peer may do through this queue pair, region and window allowing.
    pub access: Access,
}

impl From<ToInit> for Change {
    fn from(to: ToInit) -> Self {
        Self::to(QpState::Init).port(to.port).pkey_index(to.pkey_index).access(to.access)
    }
}

/// The way to a peer.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Port of this side.
    pub port: u8,
    /// Place of this side's address in its GID table.
    pub source_gid_index: u8,
    /// Address of the peer; `None` on InfiniBand within a subnet, where the LID alone does.
    pub destination_gid: Option<Gid>,
    /// LID of the peer, on InfiniBand.
    pub destination_lid: u16,
    /// Service level (InfiniBand), or priority (RoCE, where it is not taken from the traffic class): 0 to 7 or 15.
    pub service_level: u8,
    /// Traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Hops, at most.
    pub hop_limit: u8,
    /// Flow label, 20 bits; 0 has the driver choose.
    pub flow_label: u32,
}

impl Path {
    fn raw(&self) -> sys::ibv_ah_attr {
        // SAFETY: all zeroes is a value of it.
        let mut raw: sys::ibv_ah_attr = unsafe { zeroed() };
        raw.port_num = self.port;
        raw.dlid = self.destination_lid;
        raw.sl = self.service_level;
        if let Some(gid) = self.destination_gid {
            raw.is_global = 1;
            raw.grh.dgid = gid.raw();
            raw.grh.sgid_index = self.source_gid_index;
            raw.grh.traffic_class = self.traffic_class;
            raw.grh.hop_limit = self.hop_limit;
            raw.grh.flow_label = self.flow_label;
        }
        raw
    }
}

/// From `Init` to `ReadyToReceive`.
#[derive(Clone, Copy, Debug)]
pub struct ToRtr {
    /// The way to the peer.
    pub path: Path,
    /// MTU of that way.
    pub mtu: Mtu,
    /// Number of the peer's queue pair.
    pub destination: u32,
    /// First packet number, 24 bits: the peer's [`ToRts::send_sequence`].
    pub receive_sequence: u32,
    /// READs of the peer that are answered at once: at least the peer's [`ToRts::reads_started`].
    pub reads_answered: u8,
    /// How long a peer that found no receive waits: code of table 45 of the specification, 1 for 10 µs, 12 for 640 µs, 0 for 655 ms.
    pub not_ready_timer: u8,
}

impl From<ToRtr> for Change {
    fn from(to: ToRtr) -> Self {
        let mut change = Self::to(QpState::ReadyToReceive);
        set!(change,
            PATH: ah_attr = to.path.raw(),
            MTU: path_mtu = to.mtu.raw(),
            DESTINATION: dest_qp_num = to.destination,
            RECEIVE_SEQUENCE: rq_psn = to.receive_sequence & 0xff_ffff,
            READS_ANSWERED: max_dest_rd_atomic = to.reads_answered,
            NOT_READY_TIMER: min_rnr_timer = to.not_ready_timer,
        );
        change
    }
}

/// From `ReadyToReceive` to `ReadyToSend`.
#[derive(Clone, Copy, Debug)]
pub struct ToRts {
    /// Time until an answer is missed: 4.096 µs · 2^n; 14 is 67 ms. 0 waits for ever.
    pub timeout: u8,
    /// Attempts after a missed answer, up to 7.
    pub retries: u8,
    /// Attempts after the peer had no receive, up to 6; 7 is for ever.
    pub not_ready_retries: u8,
    /// First packet number, 24 bits.
    pub send_sequence: u32,
    /// READs that are under way at once.
    pub reads_started: u8,
}

impl From<ToRts> for Change {
    fn from(to: ToRts) -> Self {
        let mut change = Self::to(QpState::ReadyToSend);
        set!(change,
            TIMEOUT: timeout = to.timeout,
            RETRIES: retry_cnt = to.retries,
            NOT_READY_RETRIES: rnr_retry = to.not_ready_retries,
            SEND_SEQUENCE: sq_psn = to.send_sequence & 0xff_ffff,
            READS_STARTED: max_rd_atomic = to.reads_started,
        );
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::states::check;

    #[test]
    fn typed_changes_have_what_their_step_needs() {
        let access = Access::REMOTE_WRITE;
        let init = Change::from(ToInit { port: 1, pkey_index: 0, access });
        assert_eq!(check(QpState::Reset, init.to, init.attributes), Ok(()));
        let path = Path {
            port: 1,
            source_gid_index: 1,
            destination_gid: Some(Gid([1; 16])),
            destination_lid: 0,
            service_level: 3,
            traffic_class: 104,
            hop_limit: 64,
            flow_label: 0,
        };
        let rtr = Change::from(ToRtr {
            path,
            mtu: Mtu::B1024,
            destination: 17,
            receive_sequence: 0x1ff_ffff,
            reads_answered: 4,
            not_ready_timer: 12,
        });
        assert_eq!(check(QpState::Init, rtr.to, rtr.attributes), Ok(()));
        assert_eq!(rtr.raw.rq_psn, 0xff_ffff, "24 bits");
        assert_eq!((rtr.raw.ah_attr.is_global, rtr.raw.ah_attr.grh.traffic_class), (1, 104));
        let to = ToRts { timeout: 14, retries: 7, not_ready_retries: 7, send_sequence: 1, reads_started: 4 };
        let rts = Change::from(to);
        assert_eq!(check(QpState::ReadyToReceive, rts.to, rts.attributes), Ok(()));
    }
}
