//! Tests of the crate against the fake driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fake::{Fake, FakeDevice};
use crate::*;

const CHUNK: usize = 4096;

fn gpus_with(lag: u32, chunks_max: usize) -> (Arc<Fake>, Device) {
    let fake = Fake::new(vec![FakeDevice::able("0000:44:00.0"), FakeDevice::plain("0000:45:00.0")], lag);
    let options = StagingOptions { chunk_bytes: CHUNK, chunks_max };
    let driver: Arc<dyn Driver> = fake.clone();
    let device = Gpus::with(driver, options).unwrap().device(0).unwrap();
    fake.calls().clear();
    (fake, device)
}

fn gpus() -> (Arc<Fake>, Device) {
    gpus_with(2, 8)
}

struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn segments(memory: &DeviceMemory, places: &[(u64, u64)]) -> Vec<Segment> {
    places.iter().map(|&(at, len)| Segment { address: memory.at(at, len).unwrap(), len }).collect()
}

#[test]
fn facts_are_read_and_a_device_that_is_not_there_is_named() {
    let (fake, device) = gpus();
    assert_eq!((device.name(), device.pci()), ("Fake GPU 0", "0000:44:00.0"));
    assert!(device.facts().has_rdma && device.facts().has_dma_buf && device.facts().flushes_by_host);
    assert_eq!(device.facts().ordering, WritesOrdering::None);
    let gpus = Gpus::with(fake, StagingOptions::default()).unwrap();
    assert_eq!(gpus.device(7).unwrap_err(), Error::NoDevice { ordinal: 7, count: 2 });
    assert_eq!(gpus.device(1).unwrap().facts(), &DeviceFacts::default());
    assert!(gpus.device(1).unwrap().is(&gpus.device(1).unwrap()), "always the same");
}

#[test]
fn memory_is_freed_with_its_last_handle() {
    let (fake, device) = gpus();
    let memory = device.allocate(10_000).unwrap();
    let other = memory.clone();
    drop(memory);
    assert_eq!(fake.allocations(), 1);
    assert!(other.at(0, 10_000).is_some() && other.at(1, 10_000).is_none() && other.at(u64::MAX, 2).is_none());
    drop(other);
    assert_eq!(fake.allocations(), 0);
    assert!(matches!(device.allocate(0), Err(Error::Refused(Refusal::Range { .. }))));
    fake.fail("allocate", 0, 2);
    let error = device.allocate(1).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
}

#[test]
fn what_cannot_be_imported_is_refused_by_name_and_its_owner_let_go() {
    let (fake, device) = gpus();
    let gone = Arc::new(AtomicBool::new(false));
    let refused = |address, len| {
        gone.store(false, Ordering::SeqCst);
        // SAFETY: the fake's allocations stay for the test.
        let error = unsafe { device.import(address, len, Owner(Arc::clone(&gone))) }.unwrap_err();
        assert!(gone.load(Ordering::SeqCst));
        let Error::Refused(refusal) = error else { panic!("{error}") };
        refusal
    };
    let plain = fake.foreign(0, 8192, AllocationKind::Plain);
    assert!(matches!(refused(plain, 0), Refusal::Range { .. }));
    assert!(matches!(refused(DevicePtr(u64::MAX), 2), Refusal::Range { .. }));
    assert!(matches!(refused(DevicePtr(0x7fff_0000), 16), Refusal::NotDevice { .. }), "a host pointer");
    let (inside, length) = (plain.plus(4096).unwrap(), 4097);
    assert!(matches!(refused(inside, length), Refusal::NotDevice { .. }), "its end is nothing that the driver knows");
    let elsewhere = fake.foreign(1, 4096, AllocationKind::Plain);
    assert_eq!(refused(elsewhere, 16), Refusal::OtherDevice { is: 1, wanted: 0 });
    let managed = fake.foreign(0, 4096, AllocationKind::Plain);
    fake.declare(managed, true, true, 4096);
    assert_eq!(refused(managed, 16), Refusal::Managed);
    // The end lies in another allocation of the same device.
    let next = fake.foreign(0, 4096, AllocationKind::Plain);
    assert!(matches!(refused(plain, next.0 - plain.0 + 16), Refusal::OutsideAllocation { allocated: 8192, .. }));
}

#[test]
fn imported_memory_is_kept_and_not_freed() {
    let (fake, device) = gpus();
    let base = fake.foreign(0, 8192, AllocationKind::Pool);
    let gone = Arc::new(AtomicBool::new(false));
    // SAFETY: as above.
    let memory = unsafe { device.import(base.plus(100).unwrap(), 1000, Owner(Arc::clone(&gone))) }.unwrap();
    assert_eq!((memory.kind(), memory.allocation()), (AllocationKind::Pool, (base, 8192)));
    assert!(!gone.load(Ordering::SeqCst));
    drop(memory);
    assert!(gone.load(Ordering::SeqCst));
    assert_eq!(fake.allocations(), 1, "it is its owner's");
}

#[test]
fn a_part_keeps_the_whole() {
    let (fake, device) = gpus();
    let whole = device.allocate(8192).unwrap();
    let part = whole.part(100, 50).unwrap();
    assert!(whole.part(8192, 1).is_err());
    drop(whole);
    assert_eq!((part.len(), fake.allocations()), (50, 1));
    drop(part);
    assert_eq!(fake.allocations(), 0);
}

#[test]
fn an_export_is_of_whole_pages_and_says_where_the_range_begins() {
    let (fake, device) = gpus();
    let base = fake.foreign(0, 1 << 20, AllocationKind::Plain);
    // SAFETY: as above.
    let memory = unsafe { device.import(base.plus(5000).unwrap(), 10_000, ()) }.unwrap();
    let exported = memory.export(0, 10_000).unwrap();
    assert_eq!(exported.offset, (base.0 + 5000) % 4096);
    assert!(memory.export(9000, 1001).is_err() && memory.export(0, 0).is_err());
    fake.fail("dma_buf", 0, 801);
    let refused = memory.export(0, 1).unwrap_err();
    assert_eq!(refused, Error::Driver { call: "dma_buf", code: 801 });
}

#[test]
fn what_has_no_export_says_why() {
    let (fake, device) = gpus();
    // SAFETY: as above.
    let import = |base, len| unsafe { device.import(base, len, ()) }.unwrap();
    let pooled = fake.foreign(0, 8192, AllocationKind::Pool);
    fake.declare(pooled, false, false, 8192);
    assert!(matches!(import(pooled, 8192).export(0, 1), Err(Error::Refused(Refusal::Pool { .. }))));
    assert!(matches!(import(pooled, 8192).ipc_handle(), Err(Error::Refused(Refusal::Pool { .. }))));
    let mapped = fake.foreign(0, 8192, AllocationKind::Virtual);
    fake.declare(mapped, false, true, 4096);
    assert_eq!(import(mapped, 8192).export(0, 1).unwrap_err(), Refusal::ManyMappings.into());
    assert!(import(mapped, 4096).export(0, 4096).is_ok(), "one of them is no trouble");
    assert!(matches!(import(mapped, 4096).ipc_handle(), Err(Error::Refused(Refusal::Virtual { .. }))));
    let plain = Gpus::with(fake, StagingOptions::default()).unwrap().device(1).unwrap();
    assert_eq!(plain.allocate(4096).unwrap().export(0, 1).unwrap_err(), Refusal::NoDmaBuf.into());
}

#[test]
fn an_opened_allocation_is_closed_after_its_last_range_and_its_owner_keeps_it_until_then() {
    let (fake, device) = gpus();
    let memory = device.allocate(8192).unwrap();
    fake.poke(memory.address(), &pattern(8192));
    let handle = memory.ipc_handle().unwrap();
    drop(memory);
    assert_eq!(fake.allocations(), 1, "quarantined by the handle");
    let opened = device.open_ipc(&handle.bytes).unwrap();
    assert!(matches!(opened.range(8000, 193), Err(Error::Refused(Refusal::OutsideAllocation { .. }))));
    assert!(opened.range(u64::MAX, 1).is_err() && opened.range(0, 0).is_err());
    let range = opened.range(100, 4000).unwrap();
    drop(opened);
    assert_eq!(fake.opened(), 1, "a range holds it");
    let mut seen = Vec::<u8>::new();
    let lane = device.lane().unwrap();
    lane.pull(&range, segments(&range, &[(0, 4000)]), |base, len| {
        // SAFETY: what is shown is there for the call.
        seen.extend(unsafe { std::slice::from_raw_parts(base, len) });
    })
    .unwrap();
    assert_eq!(seen, pattern(8192)[100..4100]);
    drop(range);
    assert_eq!(fake.opened(), 0);
    drop(handle);
    assert_eq!(fake.allocations(), 0);
    assert!(device.open_ipc(&[0; IPC_HANDLE_BYTES]).is_err());
}

/// Drives a pipeline out of a device, as a sender does; how often it had to wait.
fn send(outgoing: &mut Outgoing) -> (Vec<u8>, usize) {
    let (mut bytes, mut waits) = (Vec::new(), 0);
    loop {
        match outgoing.next().unwrap() {
            // SAFETY: there until the next call.
            Next::Bytes { base, len } => bytes.extend(unsafe { std::slice::from_raw_parts(base, len) }),
            Next::Wait => waits += 1,
            Next::End => return (bytes, waits),
        }
        assert!(waits < 10_000, "it never ends");
    }
}

#[test]
fn scattered_blocks_leave_in_order_whatever_chunk_they_fall_into() {
    let (fake, device) = gpus();
    let memory = device.allocate(100_000).unwrap();
    let bytes = pattern(100_000);
    fake.poke(memory.address(), &bytes);
    let places = [(70_000, 5000), (0, 1), (4096, 4096), (99_999, 1), (10_000, 30_000)];
    let lane = device.lane().unwrap();
    let (sent, waits) = send(&mut lane.outgoing(&memory, segments(&memory, &places), None).unwrap());
    let wanted: Vec<u8> =
        places.iter().flat_map(|&(at, len)| bytes[at as usize..(at + len) as usize].to_vec()).collect();
    assert_eq!(sent, wanted);
    assert!(waits > 0, "copies take their time");
    assert_eq!(device.staging_bytes(), 0, "all chunks are back");
    assert!(fake.pinned() <= 2, "two chunks are enough: {}", fake.pinned());
}

#[test]
fn scattered_blocks_land_in_order_and_only_then_have_landed() {
    let (fake, device) = gpus();
    let memory = device.allocate(100_000).unwrap();
    let bytes = pattern(40_000);
    let lane = device.lane().unwrap();
    let places = [(50_000, 9000), (0, 4096), (80_000, 20_000), (10_000, 6904)];
    let mut incoming = lane.incoming(&memory, segments(&memory, &places));
    let (mut given, mut waits) = (0, 0);
    loop {
        match incoming.space().unwrap() {
            Space::Bytes { base, len } => {
                // SAFETY: room of `len` bytes, ours until the next call.
                unsafe { std::ptr::copy_nonoverlapping(bytes[given..].as_ptr(), base, len) };
                given += len;
            }
            Space::Wait => waits += 1,
            Space::Full => break,
        }
    }
    assert_eq!(given, 40_000);
    assert!(waits > 0);
    assert!(!incoming.has_landed().unwrap(), "copies lag behind");
    while !incoming.has_landed().unwrap() {}
    let mut from = 0;
    for (at, len) in places {
        assert_eq!(fake.peek(memory.at(at, len).unwrap(), len as usize), bytes[from..from + len as usize]);
        from += len as usize;
    }
    assert_eq!(device.staging_bytes(), 0);
}

#[test]
fn nothing_is_read_before_the_executors_mark() {
    let (fake, device) = gpus();
    let memory = device.allocate(4096).unwrap();
    let executor = fake.executor();
    fake.hold_stream(executor, true);
    fake.launch(executor, memory.address(), &pattern(4096));
    // SAFETY: a stream of the fake.
    let mark = unsafe { device.record(executor) }.unwrap();
    let lane = device.lane().unwrap();
    let mut outgoing = lane.outgoing(&memory, segments(&memory, &[(0, 4096)]), Some(&mark)).unwrap();
    // Waiting for it does not need the handle.
    drop(mark);
    for _ in 0..100 {
        assert_eq!(outgoing.next().unwrap(), Next::Wait, "the kernel has not ended");
    }
    fake.hold_stream(executor, false);
    assert_eq!(send(&mut outgoing).0, pattern(4096));
}

#[test]
fn the_bound_of_chunks_makes_callers_wait_and_each_way_has_its_own() {
    let (_fake, device) = gpus_with(0, 2);
    let memory = device.allocate(100_000).unwrap();
    let lane = device.lane().unwrap();
    let of = |places: &[(u64, u64)]| segments(&memory, places);
    let mut first = lane.outgoing(&memory, of(&[(0, 50_000)]), None).unwrap();
    assert!(matches!(first.next().unwrap(), Next::Bytes { .. }));
    let mut second = lane.outgoing(&memory, of(&[(0, 10)]), None).unwrap();
    assert_eq!(second.next().unwrap(), Next::Wait, "both chunks are out");
    let mut incoming = lane.incoming(&memory, of(&[(60_000, 10)]));
    assert!(matches!(incoming.space().unwrap(), Space::Bytes { .. }), "what comes has chunks of its own");
    drop(first);
    while second.next().unwrap() == Next::Wait {}
}

#[test]
fn a_pipeline_that_is_given_up_waits_for_its_copies_before_anything_is_freed() {
    let (fake, device) = gpus_with(5, 8);
    let memory = device.allocate(8192).unwrap();
    let lane = device.lane().unwrap();
    let mut outgoing = lane.outgoing(&memory, segments(&memory, &[(0, 8192)]), None).unwrap();
    assert_eq!(outgoing.next().unwrap(), Next::Wait);
    drop(memory);
    // The fake panics at what is freed under a copy.
    drop(outgoing);
    assert_eq!((fake.allocations(), device.staging_bytes()), (0, 0));
}

#[test]
fn a_device_that_hangs_costs_memory_and_never_gives_it_to_somebody_else() {
    let (fake, device) = gpus();
    let memory = device.allocate(4096).unwrap();
    let lane = device.lane().unwrap();
    fake.hold(true);
    let error = lane.push(&memory, segments(&memory, &[(0, 4096)]), |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Overdue { .. }));
    drop(memory);
    assert_eq!(fake.allocations(), 1, "quarantined for ever");
    assert_eq!(device.staging_bytes(), CHUNK as u64);
}

#[test]
fn every_call_of_a_copy_may_fail_and_nothing_is_freed_under_it() {
    for call in ["allocate_pinned", "copy", "event", "record", "query"] {
        let (fake, device) = gpus();
        let memory = device.allocate(20_000).unwrap();
        let lane = device.lane().unwrap();
        fake.fail(call, 1, 719);
        let pushed = lane.push(&memory, segments(&memory, &[(0, 20_000)]), |_, _| {});
        assert_eq!(pushed.unwrap_err(), Error::Driver { call, code: 719 }, "{call}");
        fake.fail(call, 1, 700);
        let pulled = lane.pull(&memory, segments(&memory, &[(0, 20_000)]), |_, _| {});
        // Of pinned memory there is some by now, and only the second copy is asked for anew.
        assert!(pulled.is_err() || call == "allocate_pinned", "{call}");
    }
}

#[test]
fn what_is_given_up_is_settled_unless_a_copy_is_in_doubt() {
    let (fake, device) = gpus_with(3, 8);
    let memory = device.allocate(20_000).unwrap();
    let lane = device.lane().unwrap();
    let begin = || lane.incoming(&memory, segments(&memory, &[(0, 20_000)]));
    let mut whole = begin();
    whole.space().unwrap();
    whole.space().unwrap();
    assert!(whole.settle(), "its copy has been waited for");
    for call in ["copy", "event", "record"] {
        let mut doubtful = begin();
        doubtful.space().unwrap();
        fake.fail(call, 0, 719);
        assert!(doubtful.space().is_err());
        assert!(!doubtful.settle(), "{call}: bytes may land yet");
    }
}

#[test]
fn a_flush_says_its_scope() {
    let (fake, device) = gpus();
    let memory = device.allocate(4096).unwrap();
    memory.share_with_nic().unwrap();
    memory.flush(FlushScope::Owner).unwrap();
    assert!(fake.calls().ends_with(&["sync_memops".into(), "flush".into(), "flush Owner".into()]));
    fake.fail("flush", 0, 801);
    assert!(memory.flush(FlushScope::AllDevices).is_err());
}
