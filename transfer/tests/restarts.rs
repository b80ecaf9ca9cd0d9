//! Slices that outlive a restart, of their sender or of the owner of the memory, over each transport with sockets: sent by
//! hand, by somebody who has not noticed.
//!
//! They fail where the fence is switched off, like those of `late_write`.

#[macro_use]
mod common;
#[path = "common/slate.rs"]
mod slate;
#[path = "common/zombie.rs"]
mod zombie;

use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::testing::fields;
use kvrail_transfer::testing::status::{OK, STALE};
use kvrail_transfer::*;
use zombie::{SLICE, Zombie};

const LEN: usize = 1 << 20;

over_tcp_and_shm!(
    a_slice_delayed_past_its_senders_restart_never_lands,
    a_slice_delayed_past_its_owners_restart_never_lands,
);

/// The sender comes back under a new generation while what it was before still has a slice to send.
async fn a_slice_delayed_past_its_senders_restart_never_lands(kind: TransportKind) {
    let silence = Duration::from_secs(30);
    let owner = Engine::start(EngineConfig { peer_timeout: silence, ..config(kind) }).unwrap();
    let target = region(&owner, LEN, &[]);
    let lease = lend_all(&owner, &target, Access::Write);
    let ticket = fields(&lease.ticket().to_bytes());
    let mut before = Zombie::connect(kind, owner.local_addr(), 5);
    before.send(1, ticket, 0).unwrap();
    assert_eq!(before.ack(), (1, OK), "so far its slices land");
    let _after = Zombie::connect(kind, owner.local_addr(), 6);
    eventually("the first is over", || owner.stats().peers_lost == 1).await;
    within(lease.revoke()).await;
    let fresh = reuse(&target);
    // Refused by a stream that is closed, or lost in one that is being closed.
    let _ = before.send(2, ticket, u64::from(SLICE));
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(bytes(&target) == fresh, "{LATE_WRITE}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(before.is_closed(), "the old generation's stream is open");
}

/// The owner comes back under a new generation, at the same address, and lends its new memory while a slice for the old one is
/// still to come.
async fn a_slice_delayed_past_its_owners_restart_never_lands(kind: TransportKind) {
    let first = engine(kind);
    let (memory, address) = (region(&first, LEN, &[]), first.local_addr());
    let lease = lend_all(&first, &memory, Access::Write);
    let old = fields(&lease.ticket().to_bytes());
    within(first.shutdown()).await;
    let second = Engine::start(EngineConfig { listen: address, ..config(kind) }).unwrap();
    let target = region(&second, LEN, &[]);
    let lease = lend_all(&second, &target, Access::Write);
    let new = fields(&lease.ticket().to_bytes());
    let fresh = reuse(&target);
    let mut sender = Zombie::connect(kind, address, 5);
    // The slice as it is; and with all but the generation right, in case that numbers and keys come again.
    for (id, ticket) in [(1, old), (2, [old[0], new[1], new[2]])] {
        sender.send(id, ticket, 0).unwrap();
        let word = sender.ack();
        assert!(bytes(&target) == fresh, "{LATE_WRITE}");
        assert_eq!(word, (id, STALE));
    }
    sender.send(3, new, 0).unwrap();
    assert_eq!(sender.ack(), (3, OK), "with the right one it lands");
}
