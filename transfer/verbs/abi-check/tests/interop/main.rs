//! Reliable queue pairs with kvrail-verbs at one end and the crate `ibverbs` at the other: what either sends, the other has.
//!
//! Needs NICs, which `KVRAIL_TEST_RDMA` names as for every test of kvrail's: two hosts with a slash between, `rxa0/rxb0`. Each
//! test runs twice, the second time with the crates on each other's NIC. The crate has no READ and no WRITE of its own; its
//! memory is written and read by ours.
//!
//! | file | room |
//! |---|---|
//! | `ours`, `theirs` | one end each: a device in use, a queue pair, its completions |

mod ours;
mod theirs;

use std::time::{Duration, Instant};

use kvrail_verbs::{Data, Opcode, Operation, Remote, Status};

use ours::Ours;
use theirs::Theirs;

/// How long a completion is waited for; a guest shares a busy processor.
const PATIENCE: Duration = Duration::from_secs(30);

/// Room of every buffer.
const ROOM: usize = 1 << 20;

/// Lengths of messages: around a packet's 1024 bytes, a page, and all there is.
const LENGTHS: [usize; 9] = [1, 1023, 1024, 1025, 4096, 65_537, 300_001, ROOM - 1, ROOM];

/// NICs of the two hosts.
fn nics() -> [String; 2] {
    let named = std::env::var("KVRAIL_TEST_RDMA").expect("KVRAIL_TEST_RDMA names the NICs of two hosts");
    let (a, b) = named.split_once('/').expect("a slash between the hosts");
    [a, b].map(|host| host.split(',').next().unwrap_or_default().to_owned())
}

/// Runs a test with a connected pair, on both NICs in both ways; tells how many messages and bytes it found right.
fn both_ways(what: &str, test: impl Fn(&Ours, &mut Theirs<'_>) -> (usize, usize)) {
    let [a, b] = nics();
    let (mut messages, mut bytes) = (0, 0);
    for (our_nic, their_nic) in [(&a, &b), (&b, &a)] {
        let ours = Ours::new(our_nic);
        theirs::with(their_nic, |theirs| {
            let theirs = &mut theirs.connect(ours.endpoint());
            ours.connect(theirs.endpoint);
            let right = test(&ours, theirs);
            (messages, bytes) = (messages + right.0, bytes + right.1);
        });
    }
    if messages > 0 {
        println!("figure RC traffic with the ibverbs crate, {what}: {messages} messages, {bytes} bytes right");
    }
}

/// Asks until there are so many.
fn wait<T>(count: usize, who: &str, mut poll: impl FnMut() -> Vec<T>) -> Vec<T> {
    let (mut seen, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        seen.extend(poll());
        if seen.len() >= count {
            return seen;
        }
        assert!(Instant::now() < deadline, "{} of {count} completions of {who} came", seen.len());
        // Who polls without a rest keeps the packets from being handled.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|place| ((place.wrapping_mul(31) >> 3) ^ place ^ (place >> 11) ^ seed.wrapping_mul(57)) as u8)
        .collect()
}

/// Fails with the first byte that is not as it should be: `wanted`, then what was there before.
fn same(found: &[u8], wanted: &[u8], before: &[u8]) {
    let should = wanted.iter().chain(&before[wanted.len()..]);
    if let Some((place, (found, should))) = found.iter().zip(should).enumerate().find(|(_, (a, b))| a != b) {
        panic!("byte {place} of {}: {found:#x} instead of {should:#x}", wanted.len());
    }
    assert_eq!(found.len(), before.len());
}

#[test]
#[should_panic(expected = "byte 2 of 2: 0x9 instead of 0x3")]
fn a_byte_past_the_end_is_told() {
    same(&[1, 2, 9], &[1, 2], &[0, 0, 3]);
}

#[test]
#[ignore = "needs NICs"]
fn ours_sends() {
    both_ways("ours sends", |ours, theirs| {
        let (source, mut target) = (ours.memory(ROOM), theirs.memory(ROOM));
        for (round, length) in LENGTHS.into_iter().enumerate() {
            let (sent, before) = (pattern(round, ROOM), pattern(round + 100, ROOM));
            source.fill(&sent);
            target.copy_from_slice(&before);
            theirs.receive(&mut target, 0..ROOM, 500 + round as u64);
            let (operation, immediate) = match round % 2 {
                0 => (Operation::Send, None),
                _ => (Operation::SendImmediate(0xab00_0000 + round as u32), Some(0xab00_0000 + round as u32)),
            };
            ours.post(round as u64, operation, Data::Segments(&[source.segment(0, length)]));
            let done = ours.completions(1)[0];
            assert_eq!((done.id(), done.status()), (round as u64, Status::Success));
            assert_eq!(done.opcode(), Some(Opcode::Send));
            let told = theirs.completions(1)[0];
            assert_eq!((told.wr_id(), told.error(), told.len()), (500 + round as u64, None, length));
            assert_eq!(told.opcode(), ibverbs::ibv_wc_opcode::IBV_WC_RECV);
            assert_eq!((told.qp_num, told.imm_data().map(u32::from_be)), (theirs.endpoint.num, immediate));
            same(&target, &sent[..length], &before);
        }
        (LENGTHS.len(), LENGTHS.iter().sum())
    });
}

#[test]
#[ignore = "needs NICs"]
fn theirs_sends() {
    both_ways("theirs sends", |ours, theirs| {
        let (mut source, target) = (theirs.memory(ROOM), ours.memory(ROOM));
        for (round, length) in LENGTHS.into_iter().enumerate() {
            let (sent, before) = (pattern(round + 200, ROOM), pattern(round + 300, ROOM));
            source.copy_from_slice(&sent);
            target.fill(&before);
            // In two pieces, which the message fills one after the other.
            ours.receive(700 + round as u64, &[target.segment(0, 1000), target.segment(1000, ROOM - 1000)]);
            theirs.send(&mut source, 0..length, round as u64);
            let done = theirs.completions(1)[0];
            assert_eq!((done.wr_id(), done.error()), (round as u64, None));
            let told = ours.completions(1)[0];
            assert_eq!((told.id(), told.status(), told.bytes()), (700 + round as u64, Status::Success, length as u32));
            assert_eq!((told.opcode(), told.immediate()), (Some(Opcode::Receive), None));
            assert_eq!(told.qp(), ours.qp.number());
            same(&target.bytes(), &sent[..length], &before);
        }
        (LENGTHS.len(), LENGTHS.iter().sum())
    });
}

#[test]
#[ignore = "needs NICs"]
fn both_send_at_once() {
    const COUNT: usize = 32;
    const LENGTH: usize = ROOM / COUNT;
    both_ways("both send at once", |ours, theirs| {
        let (mut their_source, mut their_target) = (theirs.memory(ROOM), theirs.memory(ROOM));
        let (our_source, our_target) = (ours.memory(ROOM), ours.memory(ROOM));
        let (from_us, from_them) = (pattern(1, ROOM), pattern(2, ROOM));
        our_source.fill(&from_us);
        their_source.copy_from_slice(&from_them);
        for place in 0..COUNT {
            let range = place * LENGTH..(place + 1) * LENGTH;
            theirs.receive(&mut their_target, range, place as u64);
            ours.receive(place as u64, &[our_target.segment(place * LENGTH, LENGTH)]);
        }
        for place in 0..COUNT {
            let range = place * LENGTH..(place + 1) * LENGTH;
            ours.post(1000, Operation::Send, Data::Segments(&[our_source.segment(range.start, LENGTH)]));
            theirs.send(&mut their_source, range, 1000);
        }
        assert!(ours.completions(2 * COUNT).iter().all(|done| done.is_success() && done.qp() == ours.qp.number()));
        assert!(theirs.completions(2 * COUNT).iter().all(|done| done.is_valid()));
        same(&their_target, &from_us, &from_us);
        same(&our_target.bytes(), &from_them, &from_them);
        (2 * COUNT, 2 * ROOM)
    });
}

#[test]
#[ignore = "needs NICs"]
fn ours_writes_and_reads_memory_of_theirs() {
    both_ways("ours writes, and reads back", |ours, theirs| {
        let (mut target, back) = (theirs.memory(ROOM), ours.memory(ROOM));
        let source = ours.memory(ROOM);
        let remote = Remote { address: target.as_ptr().expose_provenance() as u64, rkey: target.rkey().key };
        for (round, length) in LENGTHS.into_iter().enumerate() {
            let (written, before) = (pattern(round + 400, ROOM), pattern(round + 500, ROOM));
            source.fill(&written);
            target.copy_from_slice(&before);
            let data = [source.segment(0, length)];
            if round % 2 == 0 {
                ours.post(1, Operation::Write(remote), Data::Segments(&data));
            } else {
                let mut nothing = theirs.memory(1);
                theirs.receive(&mut nothing, 0..1, 9);
                ours.post(1, Operation::WriteImmediate(remote, round as u32), Data::Segments(&data));
                let told = theirs.completions(1)[0];
                assert_eq!((told.wr_id(), told.error(), told.len()), (9, None, length));
                assert_eq!(told.opcode(), ibverbs::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
                assert_eq!(told.imm_data().map(u32::from_be), Some(round as u32));
            }
            let done = ours.completions(1)[0];
            assert_eq!((done.id(), done.status(), done.opcode()), (1, Status::Success, Some(Opcode::Write)));
            same(&target, &written[..length], &before);
            back.fill(&vec![0; ROOM]);
            ours.post(2, Operation::Read(remote), Data::Segments(&[back.segment(0, ROOM)]));
            let done = ours.completions(1)[0];
            assert_eq!((done.id(), done.status(), done.opcode()), (2, Status::Success, Some(Opcode::Read)));
            same(&back.bytes(), &written[..length], &before);
        }
        (2 * LENGTHS.len(), LENGTHS.iter().sum::<usize>() + LENGTHS.len() * ROOM)
    });
}

#[test]
#[ignore = "needs NICs"]
fn a_key_that_theirs_took_back_is_refused() {
    both_ways("a void key is refused", |ours, theirs| {
        let source = ours.memory(4096);
        let target = theirs.memory(4096);
        let remote = Remote { address: target.as_ptr().expose_provenance() as u64, rkey: target.rkey().key };
        drop(target);
        ours.post(1, Operation::Write(remote), Data::Segments(&[source.segment(0, 4096)]));
        assert_eq!(ours.completions(1)[0].status(), Status::RemoteAccess);
        (0, 0)
    });
}

#[test]
#[ignore = "needs NICs"]
fn both_see_the_same_devices() {
    let ours = ours::devices();
    let theirs = theirs::devices();
    assert_eq!(ours, theirs);
    println!("figure devices that both see alike, with GUIDs and GIDs: {}", ours.len());
    assert!(nics().iter().all(|nic| ours.iter().any(|device| device.name == *nic)));
}
