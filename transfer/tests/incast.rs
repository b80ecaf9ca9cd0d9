//! Several senders and one receiver, real engines: limits come and go, nobody waits for ever, who ignores them is cut.

mod common;

use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;

const LEN: usize = 4 << 20;

/// An engine with one NIC: over TCP an address of 127/8 of its own.
fn host(test: u8, host: u8, kind: TransportKind, faults: Option<FaultPlan>) -> Engine {
    let tcp_rails = vec![format!("127.{test}.0.{host}/24").parse().unwrap()];
    Engine::start(EngineConfig { tcp_rails, faults, ..config(kind) }).unwrap()
}

/// What an engine sends to another, again and again.
struct Load {
    engine: Engine,
    peer: Peer,
    source: Region,
    target: Region,
    lease: Lease,
    seed: u64,
}

impl Load {
    async fn new(engine: Engine, owner: &Engine, seed: u64) -> Self {
        let peer = within(engine.connect(owner.local_addr(), None)).await.unwrap();
        let (source, target) = (region(&engine, LEN, &pattern(seed, LEN)), region(owner, LEN, &[]));
        let lease = lend_all(owner, &target, Access::Write);
        Self { engine, peer, source, target, lease, seed }
    }

    /// Moves it all so many times, two at once; the statuses.
    async fn run(&self, times: usize) -> Vec<Result<(), TransferError>> {
        let mut statuses = Vec::new();
        for _ in 0..times.div_ceil(2) {
            let both = [(); 2].map(|()| {
                let ops = vec![Op::contiguous(0, 0, LEN as u64)];
                self.engine.submit(&self.peer, request(&self.source, &self.lease.ticket(), Direction::Write, ops))
            });
            for transfer in both.into_iter().flatten() {
                statuses.push(within(transfer).await.status);
            }
        }
        statuses
    }

    fn assert_arrived(&self) {
        assert!(bytes(&self.target) == pattern(self.seed, LEN), "seed {}", self.seed);
    }
}

async fn senders(test: u8, owner: &Engine, kind: TransportKind, faults: [Option<FaultPlan>; 3]) -> Vec<Load> {
    let mut loads = Vec::new();
    for (number, faults) in (1..).zip(faults) {
        loads.push(Load::new(host(test, 10 + number, kind, faults), owner, number.into()).await);
    }
    loads
}

async fn several_are_limited_and_all_arrives(kind: TransportKind, test: u8) {
    let owner = host(test, 1, kind, None);
    let loads = senders(test, &owner, kind, [None, None, None]).await;
    assert!(loads[0].run(8).await.iter().all(Result::is_ok));
    assert_eq!(owner.stats().senders_limited, 0, "one sender is not limited");
    let all = tokio::join!(loads[0].run(24), loads[1].run(24), loads[2].run(24));
    for statuses in [all.0, all.1, all.2] {
        assert!(statuses.len() == 24 && statuses.iter().all(Result::is_ok), "{statuses:?}");
    }
    loads.iter().for_each(Load::assert_arrived);
    let stats = owner.stats();
    assert!(stats.senders_limited >= 3 && stats.protocol_errors == 0, "{stats:?}");
    // Alone again: as fast as before, and not limited anew.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = owner.stats().senders_limited;
    assert!(loads[2].run(16).await.iter().all(Result::is_ok));
    assert_eq!(owner.stats().senders_limited, before);
}

#[tokio::test]
async fn several_are_limited_and_all_arrives_over_tcp() {
    several_are_limited_and_all_arrives(TransportKind::Tcp, 61).await;
}

#[tokio::test]
async fn several_are_limited_and_all_arrives_over_one_sided_rails() {
    several_are_limited_and_all_arrives(TransportKind::Sim, 62).await;
}

async fn who_ignores_its_limit_is_cut(kind: TransportKind, test: u8) {
    let owner = host(test, 1, kind, None);
    let cheats = FaultPlan { ignores_limits: true, ..FaultPlan::default() };
    let loads = senders(test, &owner, kind, [None, None, Some(cheats)]).await;
    let start = Instant::now();
    let cheat = async {
        let statuses = loads[2].run(100).await;
        (statuses, start.elapsed())
    };
    let (first, second, (cheat, cut_after)) = tokio::join!(loads[0].run(40), loads[1].run(40), cheat);
    assert!(first.iter().chain(&second).all(Result::is_ok), "the others are unharmed: {first:?} {second:?}");
    assert!(cheat.len() < 100 && cheat.iter().any(Result::is_err), "it was cut: {} sent", cheat.len());
    assert!(!loads[2].peer.is_alive() && cut_after < Duration::from_secs(5));
    assert!(owner.stats().rejections["overdrawn"] >= 1, "{:?}", owner.stats().rejections);
    loads[..2].iter().for_each(Load::assert_arrived);
}

#[tokio::test]
async fn who_ignores_its_limit_is_cut_over_tcp() {
    who_ignores_its_limit_is_cut(TransportKind::Tcp, 63).await;
}

#[tokio::test]
async fn who_ignores_its_limit_is_cut_over_one_sided_rails() {
    who_ignores_its_limit_is_cut(TransportKind::Sim, 64).await;
}

/// One of the limited dies with credit in hand: the others take its part, and nothing is left of it.
async fn a_limited_sender_dies(kind: TransportKind, test: u8) {
    let owner = host(test, 1, kind, None);
    let mut loads = senders(test, &owner, kind, [None, None, None]).await;
    let dies = loads.pop().unwrap();
    let death = async {
        for _ in 0..2 {
            let ops = vec![Op::contiguous(0, 0, LEN as u64)];
            let ticket = dies.lease.ticket();
            let ask = request(&dies.source, &ticket, Direction::Write, ops);
            drop(dies.engine.submit(&dies.peer, ask));
        }
        eventually("limits", || owner.stats().senders_limited > 0).await;
        within(dies.engine.shutdown()).await;
    };
    let (first, second, ()) = tokio::join!(loads[0].run(24), loads[1].run(24), death);
    assert!(first.iter().chain(&second).all(Result::is_ok), "{first:?} {second:?}");
    loads.iter().for_each(Load::assert_arrived);
    assert_eq!(owner.stats().rejections["overdrawn"], 0);
}

#[tokio::test]
async fn a_limited_sender_dies_over_tcp() {
    a_limited_sender_dies(TransportKind::Tcp, 65).await;
}

#[tokio::test]
async fn a_limited_sender_dies_over_one_sided_rails() {
    a_limited_sender_dies(TransportKind::Sim, 66).await;
}

/// Streams break again and again under limits: what was on the way is lost and sent anew, and nobody is accused.
#[tokio::test]
async fn streams_of_limited_senders_break() {
    let owner = host(67, 1, TransportKind::Tcp, None);
    let breaks = |seed| Some(FaultPlan { seed, kill_after: Some(40), openings: Some(3), ..FaultPlan::default() });
    let loads = senders(67, &owner, TransportKind::Tcp, [breaks(1), breaks(2), None]).await;
    let all = tokio::join!(loads[0].run(24), loads[1].run(24), loads[2].run(24));
    for statuses in [all.0, all.1, all.2] {
        assert!(statuses.iter().all(Result::is_ok), "{statuses:?}");
    }
    loads.iter().for_each(Load::assert_arrived);
    assert_eq!(owner.stats().rejections["overdrawn"], 0);
}

/// What an engine reads and what others write to it share its NIC.
#[tokio::test]
async fn reads_are_limited_with_the_writes_of_others() {
    for (kind, test) in [(TransportKind::Tcp, 68), (TransportKind::Sim, 69)] {
        let owner = host(test, 1, kind, None);
        let writer = Load::new(host(test, 11, kind, None), &owner, 1).await;
        let source = host(test, 12, kind, None);
        let peer = within(owner.connect(source.local_addr(), None)).await.unwrap();
        let (there, here) = (region(&source, LEN, &pattern(7, LEN)), region(&owner, LEN, &[]));
        let lease = lend_all(&source, &there, Access::Read);
        let reads = async {
            for _ in 0..16 {
                let ops = vec![Op::contiguous(0, 0, LEN as u64)];
                let ticket = lease.ticket();
                let ask = request(&here, &ticket, Direction::Read, ops);
                assert_eq!(within(owner.submit(&peer, ask).unwrap()).await.status, Ok(()));
            }
        };
        let (written, ()) = tokio::join!(writer.run(32), reads);
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        assert!(bytes(&here) == pattern(7, LEN));
        writer.assert_arrived();
        let stats = owner.stats();
        assert!(stats.senders_limited >= 2 && stats.rejections["overdrawn"] == 0, "{kind:?}: {stats:?}");
    }
}
