//! Bytes that move.

use std::time::Duration;

use kvrail_verbs::{Data, Flags, Opcode, Operation, PortState, QpState, SendChain, Status};

use crate::Outcome;
use crate::bench::{Bench, PORT, pattern};

pub fn attributes(bench: &Bench) -> Outcome {
    for (context, entry) in &bench.devices {
        let (device, port) = (context.attributes().expect("device"), context.port(PORT).expect("port"));
        println!("  {}: {device:?}", context.name());
        println!("  {}: {port:?}, {} bit/s", context.name(), port.bits_per_second());
        assert!(device.qp_max > 0 && device.segments_max > 0 && device.ports >= 1);
        assert_eq!(port.state, PortState::Active);
        assert!(port.mtu_active.is_some() && port.mtu_active <= port.mtu_max);
        assert!(context.gids(PORT).expect("GIDs").contains(entry));
        let error = context.port(200).expect_err("there is no such port");
        assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    }
    Ok(())
}

pub fn write_and_read(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let bytes = 1 << 20;
    let (source, target) = (a.memory(bytes, 1), b.memory(bytes, 2));
    a.post(7, Operation::Write(target.remote(0)), Data::Segments(&[source.whole()]));
    let done = a.completion();
    assert_eq!((done.id(), done.status(), done.opcode()), (7, Status::Success, Some(Opcode::Write)));
    assert_eq!(done.qp(), a.qp.number());
    assert!(target.bytes() == source.bytes(), "what was written is not what is there");
    target.fill(3);
    a.post(8, Operation::Read(target.remote(4096)), Data::Segments(&[source.segment(0, bytes - 4096)]));
    let done = a.completion();
    assert_eq!((done.id(), done.status(), done.opcode()), (8, Status::Success, Some(Opcode::Read)));
    assert!(source.bytes()[..bytes - 4096] == target.bytes()[4096..], "what was read is not what is there");
    assert!(b.is_quiet(Duration::from_millis(20)), "the owner hears nothing of either");
    assert_eq!(a.context.undestroyed() + b.context.undestroyed(), 0);
    Ok(())
}

pub fn write_immediate(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let (source, target) = (a.memory(8192, 4), b.memory(8192, 5));
    b.receive(21, &[]);
    let data = [source.segment(0, 5000)];
    a.post(1, Operation::WriteImmediate(target.remote(0), 0xdead_0042), Data::Segments(&data));
    let told = b.completion();
    assert_eq!((told.id(), told.status(), told.opcode()), (21, Status::Success, Some(Opcode::ReceiveImmediate)));
    assert_eq!((told.immediate(), told.bytes(), told.qp()), (Some(0xdead_0042), 5000, b.qp.number()));
    assert!(target.bytes()[..5000] == source.bytes()[..5000], "told before it was there");
    assert!(target.bytes()[5000..] == pattern(5, 8192)[5000..], "more was written than was sent");
    assert_eq!(a.completion().opcode(), Some(Opcode::Write));
    Ok(())
}

pub fn gather(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let (source, target) = (a.memory(65536, 6), b.memory(65536, 7));
    let pieces = [source.segment(40000, 3000), source.segment(10, 1), source.segment(20000, 9000)];
    a.post(1, Operation::Write(target.remote(100)), Data::Segments(&pieces));
    assert_eq!(a.completion().status(), Status::Success);
    let (from, to) = (source.bytes(), target.bytes());
    let wanted = [&from[40000..43000], &from[10..11], &from[20000..29000]].concat();
    assert!(to[100..100 + wanted.len()] == wanted, "the pieces do not lie one after the other");
    assert!(to[..100] == pattern(7, 65536)[..100], "bytes before the target changed");
    Ok(())
}

pub fn inline(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let target = b.memory(4096, 8);
    assert!(a.qp.capacity().inline_bytes >= 64, "{:?}", a.qp.capacity());
    let mut bytes = pattern(9, 64);
    let mut chain = SendChain::with_capacity(1, 0, 64);
    chain.push(1, Operation::Write(target.remote(8)), Data::Inline(&bytes), Flags::SIGNALED).expect("room");
    let wanted = bytes.clone();
    bytes.fill(0);
    a.qp.post_send(&mut chain).expect("posted");
    chain.clear();
    assert_eq!(a.completion().status(), Status::Success);
    assert_eq!(target.bytes()[8..72], wanted);
    Ok(())
}

pub fn chain(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let (source, target) = (a.memory(64 << 10, 10), b.memory(64 << 10, 11));
    let mut chain = SendChain::with_capacity(16, 16, 0);
    for round in 0..3 {
        source.fill(round + 20);
        chain.clear();
        for place in 0..16 {
            let data = [source.segment(place * 4096, 4096)];
            // Backwards at the target, so that order shows.
            let to = Operation::Write(target.remote((15 - place) * 4096));
            chain.push(place as u64, to, Data::Segments(&data), Flags::empty()).expect("room");
        }
        chain.signal_last();
        a.qp.post_send(&mut chain).expect("posted");
        let done = a.completion();
        assert_eq!((done.id(), done.status()), (15, Status::Success), "the last alone completes");
        let (from, to) = (source.bytes(), target.bytes());
        for place in 0..16 {
            assert!(from[place * 4096..][..4096] == to[(15 - place) * 4096..][..4096], "piece {place}");
        }
        assert!(a.is_quiet(Duration::from_millis(5)));
    }
    Ok(())
}

pub fn full_queue(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let (source, target) = (a.memory(4096, 1), b.memory(4096, 2));
    // Drivers grant more than was asked for, and may not say so.
    let count = 4 * a.qp.capacity().sends as usize + 8;
    let mut chain = SendChain::with_capacity(count, count, 0);
    for id in 0..count {
        let flags = if id % 16 == 15 { Flags::SIGNALED } else { Flags::empty() };
        let data = [source.segment(0, 8)];
        chain.push(id as u64, Operation::Write(target.remote(0)), Data::Segments(&data), flags).expect("room");
    }
    chain.signal_last();
    let (mut seen, mut refusals) = (Vec::new(), 0);
    while let Err(refused) = a.qp.post_send(&mut chain) {
        assert!(refused.posted < chain.len(), "{refused}");
        chain.discard(refused.posted);
        refusals += 1;
        seen.extend(a.completions(1));
    }
    assert!(refusals > 0, "{count} requests fit");
    while seen.last().is_none_or(|done| done.id() != count as u64 - 1) {
        seen.extend(a.completions(1));
    }
    assert!(seen.iter().all(|done| done.is_success()));
    assert_eq!(seen.len(), count.div_ceil(16), "each that was signalled, once");
    assert!(source.bytes()[..8] == target.bytes()[..8]);
    Ok(())
}

pub fn many_pairs(bench: &Bench) -> Outcome {
    let pairs: Vec<_> = (0..64).map(|_| bench.pair()).collect();
    let memories: Vec<_> =
        pairs.iter().zip(0..).map(|([a, b], seed)| (a.memory(65536, seed), b.memory(65536, 255 - seed))).collect();
    for ([a, _], (source, target)) in pairs.iter().zip(&memories) {
        for id in 0..2 {
            a.post(id, Operation::Write(target.remote(0)), Data::Segments(&[source.whole()]));
        }
    }
    for ([a, b], (source, target)) in pairs.iter().zip(&memories) {
        assert!(a.completions(2).iter().all(|done| done.is_success()));
        assert!(source.bytes() == target.bytes());
        assert_eq!(b.qp.status().expect("asked").state, QpState::ReadyToSend);
        assert_eq!(a.qp.status().expect("asked").destination, b.qp.number());
    }
    Ok(())
}
