//! Reliable queue pairs.
//!
//! | file | room |
//! |---|---|
//! | `mod` | the queue pair: changing, asking, posting |
//! | `builder` | how one is made |
//! | `attributes` | what each step up is given |
//! | `states` | which step takes which attributes, as a table |

pub(crate) mod attributes;
pub(crate) mod builder;
pub(crate) mod states;

use std::fmt;
use std::mem::zeroed;
use std::ptr::NonNull;

use kvrail_verbs_sys as sys;

use crate::error::{Error, PostError, check};
use crate::memory::ProtectionDomain;
use crate::qp::attributes::{Change, ToInit, ToRtr, ToRts};
use crate::qp::builder::Capacity;
use crate::qp::states::{Attributes, QpState};
use crate::queue::CompletionQueue;
use crate::receive::ReceiveChain;
use crate::send::SendChain;
use crate::shared::SharedReceiveQueue;

/// A reliable queue pair. Destroyed when dropped; once that has returned, its peer reaches nothing through it any more.
pub struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    domain: ProtectionDomain,
    sends: CompletionQueue,
    receives: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    capacity: Capacity,
    /// It was destroyed, or an attempt was made: dropping it makes none.
    is_spent: bool,
}

// SAFETY: libibverbs allows every verb of a queue pair from every thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.is_spent {
            let code = self.take_away();
            self.domain.context().count_undestroyed(code);
        }
    }
}

/// What a queue pair says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStatus {
    /// Its state. One that failed is in `Error` before anybody asked it to be.
    pub state: QpState,
    /// Number of the peer's queue pair; 0 before there is one.
    pub destination: u32,
    /// Next packet number to send.
    pub send_sequence: u32,
    /// Next packet number that is expected.
    pub receive_sequence: u32,
}

impl QueuePair {
    pub(crate) fn adopt(
        raw: NonNull<sys::ibv_qp>,
        domain: ProtectionDomain,
        sends: CompletionQueue,
        receives: CompletionQueue,
        shared: Option<SharedReceiveQueue>,
        capacity: Capacity,
    ) -> Self {
        Self { raw, domain, sends, receives, shared, capacity, is_spent: false }
    }

    /// Destroys it: 0, or an errno, after which it is still there.
    fn take_away(&self) -> i32 {
        // SAFETY: done once with success, by its only owner; its queues and its domain are dropped after it. Events about it are
        // acknowledged where they are fetched.
        unsafe { self.domain.context().library().ibv_destroy_qp(self.raw()) }
    }

    /// Destroys it and says whether that worked, which dropping does not: once it has, its peer reaches nothing through it
    /// any more, and nothing of it touches memory on this side.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]; it is still there then, for ever.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.is_spent = true;
        let code = self.take_away();
        if code != 0 {
            self.domain.context().count_undestroyed(code);
        }
        self.check(code, "ibv_destroy_qp")
    }

    fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Its number: what the peer and events name it by.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives; its number does not change.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// What it holds at once: as asked for, or more.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The domain it is in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Where its requests complete.
    pub fn sends_to(&self) -> &CompletionQueue {
        &self.sends
    }

    /// Where its receives complete.
    pub fn receives_to(&self) -> &CompletionQueue {
        &self.receives
    }

    /// The shared queue that it takes receives from.
    pub fn shared(&self) -> Option<&SharedReceiveQueue> {
        self.shared.as_ref()
    }

    /// Changes its state or attributes. Takes a system call to find out where it stands, and one to change it.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] before anything was tried; [`Error::Verb`] from the driver.
    pub fn modify(&self, change: &Change) -> Result<(), Error> {
        let from = self.status()?.state;
        states::check(from, change.to, change.attributes)?;
        let mut raw = change.raw;
        let mask = change.attributes.bits().cast_signed();
        let library = self.domain.context().library();
        // SAFETY: the queue pair lives; the attributes that the mask names are set.
        let code = unsafe { library.ibv_modify_qp(self.raw(), &raw mut raw, mask) };
        self.check(code, "ibv_modify_qp")
    }

    /// From `Reset` to `Init`.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify).
    pub fn to_init(&self, to: ToInit) -> Result<(), Error> {
        self.modify(&to.into())
    }

    /// From `Init` to `ReadyToReceive`.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify); `ETIMEDOUT` or `ENETUNREACH` where there is no way to the peer.
    pub fn to_rtr(&self, to: ToRtr) -> Result<(), Error> {
        self.modify(&to.into())
    }

    /// From `ReadyToReceive` to `ReadyToSend`.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify).
    pub fn to_rts(&self, to: ToRts) -> Result<(), Error> {
        self.modify(&to.into())
    }

    /// To `Error`: what is posted is flushed. Packets of the peer that are under way may still land: no fence.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify).
    pub fn to_error(&self) -> Result<(), Error> {
        self.modify(&Change::to(QpState::Error))
    }

    /// To `Reset`: what is posted is forgotten without a completion, and once this has returned nothing of the peer lands
    /// any more.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify).
    pub fn to_reset(&self) -> Result<(), Error> {
        self.modify(&Change::to(QpState::Reset))
    }

    /// What it says about itself. A system call.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn status(&self) -> Result<QpStatus, Error> {
        let asked =
            Attributes::STATE | Attributes::DESTINATION | Attributes::SEND_SEQUENCE | Attributes::RECEIVE_SEQUENCE;
        // SAFETY: all zeroes is a value of both.
        let (mut attr, mut init): (sys::ibv_qp_attr, sys::ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
        let library = self.domain.context().library();
        let mask = asked.bits().cast_signed();
        // SAFETY: the queue pair lives; both structures may be written.
        let code = unsafe { library.ibv_query_qp(self.raw(), &raw mut attr, mask, &raw mut init) };
        self.check(code, "ibv_query_qp")?;
        Ok(QpStatus {
            state: QpState::of(attr.qp_state),
            destination: attr.dest_qp_num,
            send_sequence: attr.sq_psn,
            receive_sequence: attr.rq_psn,
        })
    }

    /// Posts a chain with one doorbell. The chain is not emptied: it can be posted again, or [`SendChain::clear`]ed.
    ///
    /// # Errors
    ///
    /// [`PostError`] with how many were posted before one was refused; [`SendChain::discard`] takes those away.
    pub fn post_send(&self, chain: &mut SendChain) -> Result<(), PostError> {
        let Some(first) = chain.link() else { return Ok(()) };
        let mut bad = first.as_ptr();
        // SAFETY: the queue pair lives. The chain is linked, its segments and inline data lie in it, and what it binds is
        // held by it. Requests name memory by key, and what a NIC does under a key was agreed where it was registered.
        let code = unsafe { sys::ibv_post_send(self.raw(), first.as_ptr(), &raw mut bad) };
        if code == 0 {
            chain.note_binds(chain.len());
            return Ok(());
        }
        let posted = chain.place_of(bad);
        chain.note_binds(posted);
        Err(PostError { posted, errno: code.abs() })
    }

    /// Posts receives with one doorbell. The chain is not emptied.
    ///
    /// # Errors
    ///
    /// [`PostError`] with how many were posted before one was refused.
    pub fn post_receive(&self, chain: &mut ReceiveChain) -> Result<(), PostError> {
        let raw = self.raw();
        // SAFETY: the queue pair lives; the chain is linked and its segments lie in it.
        chain.post(|first, bad| unsafe { sys::ibv_post_recv(raw, first, bad) })
    }

    fn check(&self, code: i32, verb: &'static str) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        check(code, verb, &format!("{} queue pair {}", self.domain.context().name(), self.number()))
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.domain.context().name();
        f.debug_struct("QueuePair").field("device", &device).field("number", &self.number()).finish()
    }
}
