//! A peer that keeps to no law, over real NICs: rails by hand. In the soft-RoCE machine, with `KVRAIL_TEST_RDMA=ours/theirs`.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_verbs::CompletionChannel;

use crate::memory::{MemoryKind, Region};
use crate::plan::{Direction, Piece};
use crate::session::lease::{Access, ByteRange, LeaseRequest, LeaseState, LeaseTable};
use crate::session::pipe::Pipe;
use crate::session::wire::{Borrow, Message};
use crate::transport::onesided::{Device, Key, OneSided, Request, Side};
use crate::transport::rdma::clerk::Clerk;
use crate::transport::rdma::pair::Requester;
use crate::transport::rdma::{Nic, RdmaRail, memory, rail};
use crate::transport::sys::{Poller, Readiness};
use crate::transport::{Job, Owner, Rail, RailError};

const LEN: usize = 1 << 20;
const LENT: ByteRange = ByteRange { offset: 64 << 10, len: 64 << 10 };
/// Whatever it is.
const READY: Readiness = Readiness { readable: true, writable: true, ended: false };
const LONG: Duration = Duration::from_secs(20);

/// An owner's rail, and at its other end a stranger that speaks the protocol and posts what it likes.
struct Bench<D: Device> {
    rail: OneSided<D>,
    owner: Arc<Owner>,
    memory: Region,
    lease: Arc<LeaseState>,
    pipe: Pipe,
    nic: Arc<Nic>,
    _channel: CompletionChannel,
    requester: Requester,
    source: Region,
}

fn nics() -> Vec<RdmaRail> {
    let named = std::env::var("KVRAIL_TEST_RDMA").expect("KVRAIL_TEST_RDMA");
    named.split('/').map(|side| side.split(',').next().unwrap().parse().unwrap()).collect()
}

fn bench(guards: bool) -> Bench<impl Device> {
    let nics = Nic::open_all(&nics()).unwrap();
    let clerk = Clerk::start(&nics).unwrap();
    let (ours, theirs) = (Arc::clone(&nics[1]), Arc::clone(&nics[0]));
    let (a, b) = UnixStream::pair().unwrap();
    [&a, &b].into_iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let leases = LeaseTable::new(4);
    let owner = Arc::new(Owner { generation: 2, leases, counters: Arc::default(), flipper: None, copy_gate: None });
    let rail = rail(OwnedFd::from(a), Arc::clone(&owner), ours, clerk, guards).unwrap();
    let region = |fill: u8| {
        let region = Region::allocate(LEN, MemoryKind::Host).unwrap();
        region.write(0, &vec![fill; LEN]);
        region
    };
    let (memory, source) = (region(0), region(7));
    let request = LeaseRequest { region: &memory, ranges: vec![LENT], access: Access::Write, ttl: LONG };
    let lease = owner.leases.grant(request, 4, Instant::now()).unwrap();
    let channel = theirs.context.completion_channel().unwrap();
    let requester = Requester::new(&theirs, &channel).unwrap();
    memory::register(&source, &theirs, 0).unwrap();
    let pipe = Pipe::new(OwnedFd::from(b));
    Bench { rail, owner, memory, lease, pipe, nic: theirs, _channel: channel, requester, source }
}

impl<D: Device> Bench<D> {
    /// Lets the owner's worker work until the stranger is told something.
    fn hear(&mut self) -> Message {
        let until = Instant::now() + LONG;
        loop {
            assert!(Instant::now() < until, "never told");
            self.rail.ready(READY);
            self.rail.progress(Instant::now()).unwrap();
            if let Some(message) = self.pipe.receive().unwrap() {
                return message;
            }
        }
    }

    /// A queue pair to the owner, and the keys of the lease.
    fn borrow(&mut self) -> Vec<Key> {
        self.pipe.send(&Message::PairRequest { address: self.requester.address().to_bytes() }).unwrap();
        let Message::PairReply { address } = self.hear() else { panic!("no queue pair") };
        let far = super::address::Address::from_bytes(&address).unwrap();
        self.requester.connect(&self.nic, &far).unwrap();
        let (lease, key) = (self.lease.id, self.lease.key);
        self.pipe.send(&Message::Borrow(Borrow { lease, key, generation: 2, read: false })).unwrap();
        let Message::Lent { status: 0, keys, .. } = self.hear() else { panic!("not lent") };
        keys
    }

    /// Writes `len` bytes at `offset` of the owner's memory with this key, whatever it opens.
    fn write(&mut self, key: u32, offset: u64, len: u64) {
        let local = Key {
            offset: 0,
            len: LEN as u64,
            key: self.source.registrations().key(&self.nic, 0, Side::Local).unwrap(),
            address: 0,
        };
        let pieces = vec![Piece { local: 0, remote: offset, len }];
        let job = Job { region: self.source.clone(), generation: 2, lease: 0, key: 0, checksum: false };
        let request = Request { id: 1, job: Arc::new(job), direction: Direction::Write, pieces, bytes: len };
        let remote = Key { offset: 0, len: u64::MAX, key, address: 0 };
        self.requester.post(&Arc::new(request), &[local], &[remote]).unwrap();
        self.requester.ring().unwrap();
    }

    /// Sleeps in the rail's own poller as a worker does, until the rail ends.
    fn ended(&mut self) -> (RailError, Duration) {
        let (mut poller, since) = (Poller::new().unwrap().0, Instant::now());
        poller.add(self.rail.readiness(), 1).unwrap();
        loop {
            assert!(since.elapsed() < LONG, "the rail did not end");
            match self.rail.progress(Instant::now()) {
                Err(error) => return (error, since.elapsed()),
                Ok(true) => {}
                Ok(false) => {
                    let rail = &mut self.rail;
                    poller.wait(Some(Duration::from_secs(1)), |_, is| rail.ready(is)).unwrap();
                }
            }
        }
    }

    fn is_untouched(&self, range: std::ops::Range<usize>) -> bool {
        let mut bytes = vec![1; range.len()];
        self.memory.read(range.start as u64, &mut bytes);
        bytes.iter().all(|byte| *byte == 0)
    }
}

/// Past the end, before the beginning, across the end: the NIC turns it away, the owner hears of it and ends the rail.
#[test]
#[ignore = "RDMA NICs of two hosts are named in KVRAIL_TEST_RDMA, say rxa0/rxb0"]
fn an_overrun_of_a_guarded_lease_lands_nowhere_and_is_found_at_once() {
    let end = LENT.offset + LENT.len;
    for (offset, len) in [(end, 4096), (LENT.offset - 4096, 4096), (end - 4096, 8192), (end, 1)] {
        let mut bench = bench(true);
        let keys = bench.borrow();
        assert_eq!(keys.iter().map(|key| (key.offset, key.len)).collect::<Vec<_>>(), [(LENT.offset, LENT.len)]);
        bench.write(keys[0].key, offset, len);
        let (error, after) = bench.ended();
        println!("figure overrun found after: {:.1} ms", after.as_secs_f64() * 1e3);
        assert!(matches!(error, RailError::Nic(_)), "{error}");
        assert!(after < Duration::from_millis(100), "{after:?}");
        assert!(bench.is_untouched(0..LEN), "bytes outside the lease at {offset}");
        drop(bench.rail);
        assert_eq!(bench.owner.leases.len(), 1, "the lease outlives the rail");
    }
}

/// A guard opens what was lent, and nothing once the lease is fenced, although the queue pair stands.
#[test]
#[ignore = "RDMA NICs of two hosts are named in KVRAIL_TEST_RDMA, say rxa0/rxb0"]
fn a_guards_key_opens_the_lease_and_dies_with_it() {
    let mut bench = bench(true);
    let keys = bench.borrow();
    bench.write(keys[0].key, LENT.offset, LENT.len);
    let until = Instant::now() + LONG;
    while bench.is_untouched(LENT.offset as usize..(LENT.offset + LENT.len) as usize) {
        assert!(Instant::now() < until, "the lease is not open");
    }
    bench.memory.write(0, &vec![0; LEN]);
    bench.lease.revoke();
    bench.rail.fence();
    assert!(matches!(bench.hear(), Message::Recall { .. }));
    bench.pipe.send(&Message::Returned { lease: bench.lease.id, landed: LENT.len }).unwrap();
    while !bench.lease.fenced.is_set() {
        assert!(Instant::now() < until, "never fenced");
        bench.rail.ready(READY);
        bench.rail.progress(Instant::now()).unwrap();
    }
    bench.memory.write(0, &vec![0; LEN]);
    bench.write(keys[0].key, LENT.offset, LENT.len);
    bench.ended();
    assert!(bench.is_untouched(0..LEN), "a write after the lease was given back");
}

/// What is said in the documents, so that it stays true: a key that opens a region opens all of it.
#[test]
#[ignore = "RDMA NICs of two hosts are named in KVRAIL_TEST_RDMA, say rxa0/rxb0"]
fn without_guards_a_lease_binds_honest_peers_alone() {
    let mut bench = bench(false);
    let keys = bench.borrow();
    assert_eq!(keys[0].offset, 0);
    bench.write(keys[0].key, 0, 4096);
    let until = Instant::now() + LONG;
    while bench.is_untouched(0..4096) {
        assert!(Instant::now() < until, "it did not land");
    }
}
