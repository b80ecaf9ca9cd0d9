//! Two rails by hand: what the engine's tests cannot see from outside.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mailbox::Mailbox;
use crate::memory::{MemoryKind, Region};
use crate::plan::{Cause, Completion, Direction, Fate, Outcome, Piece, Refusal, SliceId};
use crate::session::lease::{Access, ByteRange, LeaseRequest, LeaseState, LeaseTable};
use crate::session::pipe::Pipe;
use crate::session::wire::{Borrow, Check, Message};
use crate::transport::onesided::{OneSided, Request, WorkStatus};
use crate::transport::sim::pair::{Posted, QueuePair, Word, WorkCompletion};
use crate::transport::sim::responder::Responder;
use crate::transport::sim::{Fabric, FabricOptions, Nic, SimDevice, rail};
use crate::transport::sys::{Poller, Readiness};
use crate::transport::{Job, Owner, PIECES_MAX, Post, PostError, Rail, RailError};

const LEN: usize = 1 << 20;
const STALE: Outcome = Outcome::Failed(Cause::Refused(Refusal::Stale), Fate::Settled);

fn owner(generation: u64) -> Arc<Owner> {
    Arc::new(Owner {
        generation,
        leases: LeaseTable::new(16),
        counters: Arc::default(),
        flipper: None,
        copy_gate: None,
    })
}

/// An initiator (1) and an owner (2) of memory, and the wire between them.
struct Bench {
    ours: OneSided<SimDevice>,
    theirs: OneSided<SimDevice>,
    /// They outlive the rails, as in an engine.
    nics: [Arc<Nic>; 2],
    owner: Arc<Owner>,
    source: Region,
    target: Region,
}

fn bench(options: FabricOptions) -> Bench {
    let fabric = Fabric::new(options);
    let nics = [1, 2].map(|generation| Nic::open(&fabric, generation).unwrap());
    let (a, b) = UnixStream::pair().unwrap();
    let owner = (owner(1), owner(2));
    let rail_of = |socket: UnixStream, owner: &Arc<Owner>, nic: &Arc<Nic>| {
        socket.set_nonblocking(true).unwrap();
        rail(OwnedFd::from(socket), Arc::clone(owner), Arc::clone(nic), owner.generation).unwrap()
    };
    let region = |fill: u8| {
        let region = Region::allocate(LEN, MemoryKind::Host).unwrap();
        region.write(0, &vec![fill; LEN]);
        region
    };
    let (ours, theirs) = (rail_of(a, &owner.0, &nics[0]), rail_of(b, &owner.1, &nics[1]));
    Bench { ours, theirs, nics, owner: owner.1, source: region(7), target: region(0) }
}

/// What a worker does when a rail's descriptor is ready, or it had better be looked at.
fn progress(rail: &mut impl Rail) -> Result<bool, RailError> {
    rail.ready(Readiness { readable: true, writable: true, ended: false });
    rail.progress(Instant::now())
}

impl Bench {
    fn lend(&self) -> Arc<LeaseState> {
        let (ranges, ttl) = (vec![ByteRange { offset: 0, len: LEN as u64 }], Duration::from_secs(60));
        let request = LeaseRequest { region: &self.target, ranges, access: Access::Write, ttl };
        self.owner.leases.grant(request, 16, Instant::now()).unwrap()
    }

    /// Posts slice `n`: `count` pieces of a byte each, from the one that is `n` pages on.
    fn post(&mut self, n: u64, count: usize, lease: &LeaseState) -> Result<(), PostError> {
        let region = self.source.clone();
        let job = Arc::new(Job { region, generation: 2, lease: lease.id, key: lease.key, checksum: false });
        let piece = |i: usize| Piece { local: n * 4096 + i as u64, remote: n * 4096 + i as u64, len: 1 };
        let pieces: Vec<Piece> = (0..count).map(piece).collect();
        let (id, direction) = (SliceId::from_bits(n), Direction::Write);
        self.ours.submit(&Post { id, job: &job, direction, pieces: &pieces, bytes: count as u64 }, Instant::now())
    }

    /// Lets both sides work until `count` slices have ended.
    fn completions(&mut self, count: usize) -> Vec<(u64, Outcome)> {
        let (mut ended, until) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        while ended.len() < count {
            assert!(Instant::now() < until, "only {ended:?}");
            progress(&mut self.ours).unwrap();
            progress(&mut self.theirs).unwrap();
            while let Some(Completion { slice, outcome }) = self.ours.completion() {
                if !matches!(outcome, Outcome::Waits | Outcome::Leaves) {
                    ended.push((slice.to_bits(), outcome));
                }
            }
        }
        ended
    }

    /// Lets both sides work until the owner has heard a word of ours.
    fn vouched(&mut self) -> u32 {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            assert!(Instant::now() < until, "nobody vouched");
            progress(&mut self.ours).unwrap();
            progress(&mut self.theirs).unwrap();
            if let Some(word) = self.theirs.vouched() {
                return word;
            }
        }
    }

    fn landed(&self, n: u64) -> bool {
        let mut byte = [0];
        self.target.read(n * 4096, &mut byte);
        byte == [7]
    }
}

#[test]
fn a_send_queue_is_bounded_and_has_room_again_when_it_has_drained() {
    let mut bench = bench(FabricOptions::default());
    let lease = bench.lend();
    let mut taken = 0;
    while bench.ours.room() > 0 {
        bench.post(taken, PIECES_MAX, &lease).unwrap();
        taken += 1;
    }
    assert_eq!(bench.post(taken, 1, &lease), Err(PostError::Full));
    assert_eq!(bench.post(taken, PIECES_MAX + 1, &lease), Err(PostError::Unreachable));
    assert!(bench.completions(taken as usize).iter().all(|(_, outcome)| *outcome == Outcome::Landed));
    assert!(bench.ours.room() > 0 && (0..taken).all(|n| bench.landed(n)));
}

#[test]
fn a_refused_request_flushes_its_queue_pair_and_the_rest_lands_through_the_next() {
    let mut bench = bench(FabricOptions { windows: true, ..FabricOptions::default() });
    let (gone, good) = (bench.lend(), bench.lend());
    gone.revoke();
    for round in 1..=20 {
        for (n, lease) in [&good, &gone, &good, &gone, &good].into_iter().enumerate() {
            bench.post(n as u64, 1, lease).unwrap();
        }
        let expected = [Outcome::Landed, STALE, Outcome::Landed, STALE, Outcome::Landed];
        assert_eq!(bench.completions(5), (0..).zip(expected).collect::<Vec<_>>(), "in order, each once");
        assert_eq!(good.landed(), 3 * round);
    }
    assert_eq!([0, 1, 2, 3, 4].map(|n| bench.landed(n)), [true, false, true, false, true]);
}

#[test]
fn an_error_flushes_all_that_is_outstanding_and_all_that_comes() {
    let bench = bench(FabricOptions { windows: true, ..FabricOptions::default() });
    let lease = bench.lend();
    let region = bench.source.clone();
    let job = Arc::new(Job { region, generation: 2, lease: lease.id, key: lease.key, checksum: false });
    let words = Arc::new(Mailbox::new(Poller::new().unwrap().1));
    let responder = Responder::open(bench.nics[0].fabric(), Arc::clone(&bench.owner), Arc::clone(&words), 1);
    let pair = QueuePair::new(1, Arc::clone(&responder), Arc::clone(&words));
    let pieces = || vec![Piece { local: 0, remote: 0, len: 1 }];
    let post = |id, direction| {
        let request = Arc::new(Request { id, job: Arc::clone(&job), direction, pieces: pieces(), bytes: 1 });
        pair.post(Posted::Request { request, keys: Vec::new() });
    };
    let completed = |word| match word {
        Word::Completed(WorkCompletion { id, status, .. }) => (id, status),
        Word::Vouched(_) => panic!("nobody vouched"),
    };
    let said = || words.take().into_iter().map(completed).collect::<Vec<_>>();
    // A read under a write lease is what the second one is.
    for (id, direction) in [(0, Direction::Write), (1, Direction::Read), (2, Direction::Write), (3, Direction::Write)] {
        post(id, direction);
    }
    (0..4).for_each(|_| pair.carry_out_next());
    let (ok, refused, flushed) = (WorkStatus::Success, WorkStatus::RemoteAccess, WorkStatus::Flushed);
    assert_eq!(said(), [(0, ok), (1, refused), (2, flushed), (3, flushed)]);
    post(4, Direction::Write);
    assert_eq!(said(), [(4, flushed)]);
    assert_eq!(lease.landed(), 1);
}

#[test]
fn a_word_comes_behind_what_it_vouches_for() {
    let mut bench = bench(FabricOptions { delay: Duration::from_millis(5), ..FabricOptions::default() });
    let lease = bench.lend();
    for n in 0..5 {
        bench.post(n, 1, &lease).unwrap();
        bench.completions(0);
    }
    bench.ours.vouch(5);
    assert_eq!(bench.vouched(), 5);
    assert!((0..5).all(|n| bench.landed(n)), "it had overtaken them");
    // Those between are stood for by the last.
    (6..9).for_each(|word| bench.ours.vouch(word));
    assert_eq!(bench.vouched(), 8);
}

#[test]
fn a_word_that_a_queue_pair_took_with_it_is_said_by_the_next() {
    let mut bench = bench(FabricOptions { delay: Duration::from_millis(2), windows: true, ..FabricOptions::default() });
    let (good, gone) = (bench.lend(), bench.lend());
    gone.revoke();
    bench.post(0, 1, &good).unwrap();
    assert_eq!(bench.completions(1).len(), 1, "there is a queue pair");
    // In one queue pair: an error, and behind it the word, which it flushes.
    bench.post(1, 1, &gone).unwrap();
    progress(&mut bench.ours).unwrap();
    bench.ours.vouch(7);
    assert_eq!(bench.vouched(), 7);
    assert_eq!(bench.completions(1), [(1, STALE)]);
    assert!(!bench.landed(1));
}

/// What an earlier queue pair had outstanding is seen while the next is being made, or after.
#[test]
fn an_earlier_queue_pairs_flush_does_not_end_the_next() {
    let mut bench = bench(FabricOptions::default());
    let lease = bench.lend();
    for n in 0..3 {
        let flushed = WorkCompletion { pair: 77, id: 1000, status: WorkStatus::Flushed };
        bench.ours.device().words.post(Word::Completed(flushed));
        bench.post(n, 1, &lease).unwrap();
        assert_eq!(bench.completions(1), [(n, Outcome::Landed)]);
        assert!(bench.ours.can_post(), "after slice {n}");
    }
}

#[test]
fn a_request_on_its_way_lands_without_the_owners_worker() {
    let mut bench = bench(FabricOptions::default());
    let lease = bench.lend();
    bench.post(0, 1, &lease).unwrap();
    bench.completions(1);
    // From here on nobody calls the owner's rail.
    bench.post(1, 1, &lease).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while bench.ours.completion().is_none() {
        assert!(Instant::now() < until, "never");
        progress(&mut bench.ours).unwrap();
    }
    assert!(bench.landed(1));
}

/// What is on the wire when one end closes: it does not land, whichever end it was.
#[test]
fn a_closed_rail_is_a_fence() {
    for theirs in [false, true] {
        let delay = Duration::from_millis(60);
        let mut bench = bench(FabricOptions { delay, ..FabricOptions::default() });
        let lease = bench.lend();
        bench.post(0, 1, &lease).unwrap();
        bench.completions(1);
        bench.post(1, 1, &lease).unwrap();
        let Bench { mut ours, theirs: their_rail, target, nics: _nics, .. } = bench;
        if theirs {
            drop(their_rail);
        } else {
            drop(ours);
            ours = their_rail;
        }
        std::thread::sleep(3 * delay);
        let mut byte = [0];
        target.read(4096, &mut byte);
        assert_eq!(byte, [0], "landed after the close");
        let ended = progress(&mut ours);
        assert!(matches!(ended, Err(RailError::Closed | RailError::Os(_))), "the other end notices: {ended:?}");
    }
}

/// Whatever a peer says on the rail's socket: it is an answer, or the end of the rail.
#[test]
fn what_makes_no_sense_ends_the_rail() {
    let pair = |bytes: &[u8]| Message::PairRequest { address: bytes.to_vec() };
    let check =
        || Check { id: 1, generation: 2, lease: 3, key: 4, read: false, crc: None, ranges: vec![(0, u32::MAX)] };
    for (message, fatal) in [
        (pair(&[1; 7]), true),
        (pair(&[]), true),
        (pair(&[1; 8]), false),
        (Message::PairReply { address: vec![1; 8] }, true),
        (Message::Checked { id: 9, status: 99, crc: 0 }, true),
        (Message::Checked { id: 9, status: 0, crc: 0 }, false),
        (Message::Check(check()), false),
        (Message::Check(Check { key: 5, ..check() }), false),
        (Message::Borrow(Borrow { generation: 2, lease: 3, key: 4, read: false }), false),
        (Message::Lent { lease: 3, status: 0, keys: Vec::new() }, true),
        (Message::Lent { lease: 3, status: 99, keys: Vec::new() }, true),
        (Message::Recall { lease: 3 }, false),
        (Message::Returned { lease: 3, landed: 1 }, true),
        (Message::Heartbeat { heard: 0 }, true),
    ] {
        let (a, b) = UnixStream::pair().unwrap();
        let nic = Nic::open(&Fabric::default(), 2).unwrap();
        b.set_nonblocking(true).unwrap();
        let mut rail = rail(OwnedFd::from(b), owner(2), nic, 0).unwrap();
        Pipe::new(OwnedFd::from(a.try_clone().unwrap())).send(&message).unwrap();
        let ended = progress(&mut rail);
        assert_eq!(matches!(ended, Err(RailError::Protocol(_))), fatal, "{message:?}: {ended:?}");
        assert!(rail.completion().is_none());
    }
}

#[test]
fn nothing_lands_before_it_is_due() {
    let delay = Duration::from_millis(20);
    let mut bench = bench(FabricOptions { delay, ..FabricOptions::default() });
    let lease = bench.lend();
    let posted = Instant::now();
    bench.post(0, 1, &lease).unwrap();
    bench.completions(1);
    assert!(posted.elapsed() >= 2 * delay, "{:?}", posted.elapsed());
}

/// Without windows the owner's NIC does not look at leases: a lease is out while it is used, and back when it is fenced.
#[test]
fn a_revoked_lease_comes_back_when_what_was_posted_has_landed() {
    let delay = Duration::from_millis(20);
    let mut bench = bench(FabricOptions { delay, ..FabricOptions::default() });
    let lease = bench.lend();
    bench.post(0, 1, &lease).unwrap();
    bench.completions(1);
    bench.post(1, 1, &lease).unwrap();
    progress(&mut bench.ours).unwrap();
    assert!(lease.revoke(), "it is out");
    bench.theirs.fence();
    progress(&mut bench.theirs).unwrap();
    assert!(!lease.fenced.is_set(), "something is under way");
    // One more, which is too late.
    bench.post(2, 1, &lease).unwrap();
    assert_eq!(bench.completions(2), [(2, STALE), (1, Outcome::Landed)], "the late one waits for nothing");
    let until = Instant::now() + Duration::from_secs(10);
    while !lease.fenced.is_set() {
        assert!(Instant::now() < until, "never");
        progress(&mut bench.ours).unwrap();
        progress(&mut bench.theirs).unwrap();
    }
    assert_eq!((lease.landed(), bench.landed(1), bench.landed(2)), (2, true, false));
    bench.post(3, 1, &lease).unwrap();
    assert_eq!(bench.completions(1), [(3, STALE)], "nor can it be borrowed again");
}

/// A borrower that does not give back loses its queue pairs, and what it had on the wire does not land.
#[test]
fn a_frozen_borrower_cannot_write_late() {
    let delay = Duration::from_millis(150);
    let mut bench = bench(FabricOptions { delay, ..FabricOptions::default() });
    let (lease, other) = (bench.lend(), bench.lend());
    bench.post(0, 1, &lease).unwrap();
    bench.completions(1);
    bench.post(1, 1, &lease).unwrap();
    progress(&mut bench.ours).unwrap();
    // From here on the borrower's worker stands still; its NIC does not.
    lease.revoke();
    bench.theirs.fence();
    assert!(progress(&mut bench.theirs).is_ok());
    let due = bench.theirs.wake_at().expect("it is waited for");
    assert!(due > Instant::now() && bench.theirs.progress(due - Duration::from_millis(1)).is_ok());
    assert!(!lease.fenced.is_set());
    let ended = bench.theirs.progress(due);
    assert!(matches!(ended, Err(RailError::Overdue)), "{ended:?}");
    let Bench { theirs, target, .. } = bench;
    drop(theirs);
    assert!(lease.fenced.is_set() && !other.is_revoked());
    std::thread::sleep(2 * delay);
    let mut byte = [0];
    target.read(4096, &mut byte);
    assert_eq!(byte, [0], "landed after the fence");
}
