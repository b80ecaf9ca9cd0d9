//! What is refused, and what a reset queue pair lets through.

use std::time::Duration;

use kvrail_verbs::{Attributes, Change, Data, Error, Flags, Operation, QpState, Remote, SendChain, Status};

use crate::Outcome;
use crate::bench::{Bench, Options, pattern};

pub fn wrong_step(bench: &Bench) -> Outcome {
    let end = bench.end(0);
    let refused = end.qp.modify(&Change::to(QpState::ReadyToReceive).timeout(14)).expect_err("refused");
    let Error::Transition(refused) = refused else { panic!("{refused}") };
    assert_eq!((refused.from, refused.to), (QpState::Init, QpState::ReadyToReceive));
    assert!(refused.missing.contains(Attributes::PATH | Attributes::MTU | Attributes::DESTINATION));
    assert_eq!(refused.superfluous, Attributes::TIMEOUT);
    end.qp.to_error().expect("from everywhere");
    end.qp.to_reset().expect("from everywhere");
    assert_eq!(end.qp.status().expect("asked").state, QpState::Reset);
    Ok(())
}

pub fn wrong_key(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let (source, target) = (a.memory(4096, 1), b.memory(4096, 2));
    let wrong = Remote { address: target.address(), rkey: target.region.rkey() ^ 0x55 };
    let mut chain = SendChain::with_capacity(3, 3, 0);
    for (id, to) in [(1, wrong), (2, target.remote(0)), (3, target.remote(0))] {
        chain.push(id, Operation::Write(to), Data::Segments(&[source.whole()]), Flags::SIGNALED).expect("room");
    }
    a.qp.post_send(&mut chain).expect("posted");
    let ends: Vec<_> = a.completions(3).iter().map(|done| (done.id(), done.status())).collect();
    assert_eq!(ends, [(1, Status::RemoteAccess), (2, Status::Flushed), (3, Status::Flushed)]);
    assert_eq!(a.qp.status().expect("asked").state, QpState::Error);
    assert!(target.bytes() == pattern(2, 4096), "something landed");
    Ok(())
}

pub fn no_receive(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair_with(&Options { not_ready_retries: 1, ..Options::default() });
    let (source, target) = (a.memory(4096, 1), b.memory(4096, 2));
    a.post(1, Operation::Send, Data::Segments(&[source.whole()]));
    assert_eq!(a.completion().status(), Status::ReceiverNotReady);
    drop((a, b, source, target));

    let [a, b] = bench.pair();
    let (source, target) = (a.memory(4096, 3), b.memory(4096, 4));
    a.post(1, Operation::SendImmediate(9), Data::Segments(&[source.whole()]));
    assert!(a.is_quiet(Duration::from_millis(50)), "it waits");
    b.receive(5, &[target.whole()]);
    assert_eq!(a.completion().status(), Status::Success);
    let got = b.completion();
    assert_eq!((got.id(), got.bytes(), got.immediate()), (5, 4096, Some(9)));
    assert!(source.bytes() == target.bytes());
    Ok(())
}

/// Rung 2 of the fence ladder: what a sender has posted may be on its way when the receiver resets its queue pair.
pub fn reset_is_a_fence(bench: &Bench) -> Outcome {
    for round in 0..5 {
        let [a, b] = bench.pair_with(&Options { timeout: 12, retries: 1, ..Options::default() });
        let (source, target) = (a.memory(256 << 10, 1), b.memory(256 << 10, 2));
        let mut chain = SendChain::with_capacity(32, 32, 0);
        for id in 0..32 {
            let to = Operation::Write(target.remote(0));
            chain.push(id, to, Data::Segments(&[source.whole()]), Flags::SIGNALED).expect("room");
        }
        a.qp.post_send(&mut chain).expect("posted");
        std::thread::sleep(Duration::from_millis(round));
        b.qp.to_reset().expect("reset");
        target.fill(round as u8 + 100);
        let ends = a.completions(32);
        assert!(ends.iter().any(|done| !done.is_success()), "everything was done before the reset: nothing was shown");
        let lost = ends.iter().find(|done| !done.is_success()).expect("one failed");
        assert_eq!(lost.status(), Status::RetriesExceeded);
        std::thread::sleep(Duration::from_millis(50));
        assert!(target.bytes() == pattern(round as u8 + 100, 256 << 10), "something landed after the reset");
        assert_eq!(b.qp.status().expect("asked").state, QpState::Reset);
    }
    Ok(())
}
