//! Who is there: registration, leases, generations, drain.
//!
//! A pure state machine ([`InMemory`]) behind [`Membership`], so that a shared store can take its place. `now` is the time
//! since the service started, passed in. Laws:
//! - Each registration is a new member with a new [`MemberId`], never used again: what an earlier life of the same node
//!   held or reported cannot be taken for this one's.
//! - A member whose lease ran out is gone at once; its node may register again, as a new member.
//! - Every string and number a node registers is bounded before it is stored.

mod memory;
mod node;

use std::time::Duration;

pub use memory::InMemory;
pub use node::{Load, Node, NodeError, Role};

/// One registration of one node. Never reused within the life of a conductor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u32);

/// A registered node and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// This registration.
    pub id: MemberId,
    /// What it registered.
    pub node: Node,
    /// What it last reported.
    pub load: Load,
    /// False from the moment its stream broke until it registers again or its lease runs out: last choice in routing.
    pub connected: bool,
    /// When its lease runs out, unless renewed.
    pub lease_until: Duration,
}

/// Why a registration or a report is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// What the node says of itself cannot be.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// There are as many members as the conductor takes.
    #[error("the conductor has {max} members already, the most it takes")]
    Full {
        /// The bound.
        max: usize,
    },
    /// The lease ran out, or the node registered anew elsewhere.
    #[error(
        "this registration is over (its lease ran out, or a newer one of the same node replaced it); register again"
    )]
    Unknown,
}

/// A successful registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The new member.
    pub id: MemberId,
    /// The earlier registration of the same node that this one ended: whoever keeps state of it drops that.
    pub replaced: Option<MemberId>,
}

/// The membership store.
pub trait Membership: Send {
    /// A node comes, or comes back.
    ///
    /// # Errors
    /// [`MembershipError::Node`] or [`MembershipError::Full`].
    fn handle_register(&mut self, node: Node, now: Duration) -> Result<Registered, MembershipError>;

    /// A member reports: renews its lease, and replaces its load unless the report is older than the last. True if the
    /// load was news.
    ///
    /// # Errors
    /// [`MembershipError::Unknown`].
    fn handle_load(&mut self, id: MemberId, load: Load, now: Duration) -> Result<bool, MembershipError>;

    /// Any other message of a member renews its lease too.
    ///
    /// # Errors
    /// [`MembershipError::Unknown`].
    fn handle_alive(&mut self, id: MemberId, now: Duration) -> Result<(), MembershipError>;

    /// A member's stream broke. It stays until its lease runs out. True if it was a member.
    fn handle_disconnected(&mut self, id: MemberId) -> bool;

    /// A member says goodbye. True if it was one.
    fn handle_leave(&mut self, id: MemberId) -> bool;

    /// Removes the members whose lease ran out by `now`, and names them.
    fn handle_timeout(&mut self, now: Duration) -> Vec<MemberId>;

    /// When [`Self::handle_timeout`] is next of use.
    fn poll_timeout(&self) -> Option<Duration>;

    /// One member.
    fn get(&self, id: MemberId) -> Option<&Member>;

    /// All members, ordered by id.
    fn members(&self) -> Vec<&Member>;
}
