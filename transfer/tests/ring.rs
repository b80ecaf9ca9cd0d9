//! What a peer on the same host may do to the ring that it shares with an engine: a typed end of its stream, and nothing else.

mod common;
#[path = "common/slate.rs"]
mod slate;
#[path = "common/zombie.rs"]
mod zombie;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::testing::{Head, fields};
use kvrail_transfer::*;
use slate::{DATA, PUT_AT, TAKEN_AT, pass, sealed};
use zombie::{SLICE, Zombie};

const SHM: TransportKind = TransportKind::Shm;

/// An owner with a MiB lent for writing, and the lease.
fn owner() -> (Engine, Region, Lease) {
    // Long enough that a test's own silence does not end its session.
    let owner = Engine::start(EngineConfig { peer_timeout: Duration::from_secs(30), ..config(SHM) }).unwrap();
    let target = owner.allocate(1 << 20, MemoryKind::Shared).unwrap();
    target.write(0, &[7; 1 << 20]);
    let lease = lend_all(&owner, &target, Access::Write);
    (owner, target, lease)
}

#[tokio::test]
async fn heads_by_hand_are_served_and_go_round_the_ring() {
    let (owner, target, lease) = owner();
    let mut zombie = Zombie::connect(SHM, owner.local_addr(), 5);
    let ticket = fields(&lease.ticket().to_bytes());
    // 84 bytes a head: more than the ring holds in all.
    let slices = 2 * DATA / 84;
    for id in 0..slices {
        zombie.send(id, ticket, (id % 16) * u64::from(SLICE)).unwrap();
        assert_eq!(zombie.ack(), (id, 0));
    }
    assert!(bytes(&target)[..16 * SLICE as usize].iter().all(|byte| *byte == 0xee));
    assert_eq!(lease.bytes_landed(), slices * u64::from(SLICE));
}

#[tokio::test]
async fn a_ring_that_breaks_the_protocol_ends_its_stream_and_nothing_else() {
    let (owner, target, lease) = owner();
    let ticket = fields(&lease.ticket().to_bytes());
    let range = [(0, 512)];
    type Break = Box<dyn Fn(&mut Zombie)>;
    let say = |head: Vec<u8>| -> Break { Box::new(move |zombie| zombie.say(&head).unwrap()) };
    let count = |at: u64, value: u64| -> Break {
        Box::new(move |zombie| {
            let slates = zombie.slates.as_ref().unwrap();
            slates.mine.write_all_at(&value.to_le_bytes(), at).unwrap();
            zombie.socket.write_all(&[0]).unwrap();
        })
    };
    let mut unsealed = Head::new(2, 1, ticket, &[]).sealed();
    unsealed[20] ^= 1;
    let cases: Vec<(&str, Break)> = vec![
        ("put past the end", count(PUT_AT, u64::MAX)),
        ("put more than fits", count(PUT_AT, DATA + 4096)),
        ("put backwards", count(PUT_AT, 1)),
        ("random", say(pattern(3, 4096))),
        ("bad seal", say(unsealed)),
        ("payload in the ring", say(Head::new(1, 1, ticket, &range).sealed())),
        ("data in the ring", say(Head::new(4, 1, ticket, &[]).with(4, &512u32.to_le_bytes()).sealed())),
        ("copy out of nothing", {
            let head = Head::new(2, 1, ticket, &range).with(40, &99u64.to_le_bytes());
            say(Head { bytes: [&head.bytes[..], &[0; 8]].concat() }.sealed())
        }),
        ("export without a descriptor", say(Head::new(7, 4096, [0; 3], &[]).with(40, &[3]).sealed())),
        (
            "descriptors without an export",
            Box::new(|zombie| {
                let file = sealed(4096);
                (0..200).for_each(|_| pass(&zombie.socket, file.as_fd()));
            }),
        ),
    ];
    for (n, (what, act)) in cases.into_iter().enumerate() {
        let mut zombie = Zombie::connect(SHM, owner.local_addr(), 10 + n as u64);
        // It has been served, so the ring is joined.
        zombie.send(7, ticket, 0).unwrap();
        assert_eq!(zombie.ack(), (7, 0));
        // Where descriptors are many the stream may end under the last of them.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&mut zombie)));
        assert!(acted.is_ok() || what.starts_with("descriptors"), "{what}");
        assert!(zombie.is_closed(), "{what}");
    }
    assert!(bytes(&target)[SLICE as usize..].iter().all(|byte| *byte == 7), "beside the first slice");
    assert_serves(&owner, SHM).await;
}

#[tokio::test]
async fn a_slate_that_is_none_ends_its_stream() {
    let (owner, _target, _lease) = owner();
    let short = sealed(4096);
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    let null: std::os::fd::OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for (n, file) in [short, unsealed, null].into_iter().enumerate() {
        let mut zombie = Zombie::arrive(SHM, owner.local_addr(), 50 + n as u64);
        pass(&zombie.socket, file.as_fd());
        assert!(zombie.is_closed(), "{n}");
    }
    assert_serves(&owner, SHM).await;
}

/// Who takes more than was put is found when room is needed.
#[tokio::test]
async fn taken_counts_that_cannot_be_harm_nobody() {
    let (owner, _target, lease) = owner();
    let ticket = fields(&lease.ticket().to_bytes());
    let mut zombie = Zombie::connect(SHM, owner.local_addr(), 5);
    let lie = (1u64 << 63).to_le_bytes();
    zombie.slates.as_ref().unwrap().mine.write_all_at(&lie, TAKEN_AT).unwrap();
    // Acknowledgements fill the owner's ring, for nobody takes them.
    let ended = (0..4 * DATA / 76).any(|id| zombie.send(id, ticket, 0).is_err());
    assert!(ended || zombie.is_closed());
    assert_serves(&owner, SHM).await;
}

/// The socket's end is the stream's, at once, and what was put before counts.
#[tokio::test]
async fn what_was_put_before_the_end_counts() {
    let (owner, target, lease) = owner();
    let ticket = fields(&lease.ticket().to_bytes());
    let mut zombie = Zombie::connect(SHM, owner.local_addr(), 5);
    zombie.send(1, ticket, u64::from(SLICE)).unwrap();
    // The stream's alone: where the session ends, its streams are closed whatever they hold.
    rustix::net::shutdown(&zombie.socket, rustix::net::Shutdown::Both).unwrap();
    eventually("the last slice lands", || lease.bytes_landed() == u64::from(SLICE)).await;
    assert!(bytes(&target)[SLICE as usize..2 * SLICE as usize].iter().all(|byte| *byte == 0xee));
    eventually("the stream ends", || owner.stats().streams == 0).await;
    assert_eq!(owner.stats().peers, 1);
    drop(zombie);
    eventually("its session ends", || owner.stats().peers == 0).await;
    assert_serves(&owner, SHM).await;
}

/// Both sides sleep all the time, and are woken by each other, by callers that drive and by callers that do not: no word is lost, or its
/// slice would have to be sent again.
#[tokio::test]
async fn sides_that_sleep_and_wake_lose_no_word() {
    let sleepy = || EngineConfig { spin: Duration::from_micros(3), ..config(SHM) };
    let (owner, writer) = (Engine::start(sleepy()).unwrap(), Engine::start(sleepy()).unwrap());
    let peer = within(writer.connect(owner.local_addr(), None)).await.unwrap();
    let (source, target) = (region(&writer, 4096, &pattern(1, 4096)), region(&owner, 4096, &[]));
    let lease = lend_all(&owner, &target, Access::Write);
    let ticket = lease.ticket();
    for n in 0..4000u32 {
        let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, 64)]);
        let transfer = writer.submit(&peer, ask).unwrap();
        if n % 3 > 0 {
            transfer.drive();
        }
        let report = within(transfer).await;
        assert_eq!((report.status, report.retried_bytes), (Ok(()), 0), "write {n}");
        // Now and then for so long that the other side falls asleep at any step.
        let pause = Duration::from_micros(u64::from(n.wrapping_mul(2_654_435_761) >> 24));
        let since = Instant::now();
        while n % 2 == 0 && since.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
    assert_eq!(lease.bytes_landed(), 4000 * 64);
}
