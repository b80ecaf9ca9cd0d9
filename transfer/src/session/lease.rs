//! Leases at the owner: who may touch which ranges until when, and the fence behind a revocation.
//!
//! Each lease is one atomic word: a *revoked* bit and a count of *pins*. A worker pins a lease for as long as bytes of one
//! frame may land (or leave) under it, and a revoked lease gives no new pin. So `revoked ∧ pins = 0` is the fence: from
//! there no byte can land. A revocation that meets pins wakes the workers, which turn what is still to come of such
//! frames away from the memory (see `transport::stream`), so the fence never waits for a peer.
//!
//! The table's lock is taken to grant, to fence and when a worker meets a lease for the first time, never per frame.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::gpu;
use crate::memory::{Region, WeakRegion};
use crate::plan::Refusal;
use crate::sync::Event;

const REVOKED: u64 = 1 << 63;

/// A range of a region, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl ByteRange {
    /// End of the range, if it does not pass the end of the address space.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// What a lease lets its holder do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Write the ranges.
    Write,
    /// Read the ranges.
    Read,
}

/// What [`Engine::grant`](crate::Engine::grant) is asked for.
#[derive(Clone, Debug)]
pub struct LeaseRequest<'a> {
    /// Memory that is lent.
    pub region: &'a Region,
    /// Ranges of it; overlapping and adjacent ones are merged.
    pub ranges: Vec<ByteRange>,
    /// What the holder may do.
    pub access: Access,
    /// How long; afterwards the lease is revoked by itself.
    pub ttl: Duration,
}

/// Why a lease was not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// No range, or an empty one.
    #[error("a lease needs at least one range, and none may be empty")]
    Empty,
    /// A range passes the end of the region.
    #[error("range {range:?} passes the end of a region of {len} bytes")]
    OutOfRegion {
        /// The range.
        range: ByteRange,
        /// Length of the region in bytes.
        len: usize,
    },
    /// More ranges than a ticket may carry, after merging.
    #[error("{given} separate ranges, at most {limit} fit a lease")]
    TooManyRanges {
        /// Ranges after merging.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// More leases than the engine keeps.
    #[error("{limit} leases are out already")]
    TooManyLeases {
        /// The limit.
        limit: usize,
    },
    /// The engine has been shut down.
    #[error("the engine is shut down")]
    Stopped,
}

/// Sorts and merges ranges; refuses empty ones and those past `len`.
pub(crate) fn normalise(mut ranges: Vec<ByteRange>, len: usize) -> Result<Box<[ByteRange]>, LeaseError> {
    if ranges.is_empty() {
        return Err(LeaseError::Empty);
    }
    for range in &ranges {
        if range.len == 0 {
            return Err(LeaseError::Empty);
        }
        if range.end().is_none_or(|end| end > len as u64) {
            return Err(LeaseError::OutOfRegion { range: *range, len });
        }
    }
    ranges.sort_unstable();
    let mut merged: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.offset <= last.offset + last.len => {
                last.len = last.len.max(range.offset + range.len - last.offset);
            }
            _ => merged.push(range),
        }
    }
    Ok(merged.into_boxed_slice())
}

/// Whether `[offset, offset + len)` lies in one of the sorted, merged `ranges`.
pub(crate) fn covers(ranges: &[ByteRange], offset: u64, len: u64) -> bool {
    let Some(end) = offset.checked_add(len) else { return false };
    let after = ranges.partition_point(|r| r.offset <= offset);
    after > 0 && end <= ranges[after - 1].offset + ranges[after - 1].len
}

/// One lease, shared by its owner's handle, the table and the workers that have met it.
pub(crate) struct LeaseState {
    pub(crate) id: u64,
    /// Random: knowing a lease's number is not enough to use it.
    pub(crate) key: u64,
    pub(crate) access: Access,
    /// Number of the region, and whether peers can map it: what tickets say.
    pub(crate) region: u64,
    pub(crate) shared: bool,
    /// And whether it is a device's and no NIC reaches it.
    pub(crate) staged: bool,
    pub(crate) ranges: Box<[ByteRange]>,
    pub(crate) deadline: Instant,
    /// The memory; let go of at the fence, whoever remembers the lease.
    memory: Mutex<Option<Region>>,
    word: AtomicU64,
    landed: AtomicU64,
    pub(crate) fenced: Arc<Event>,
    table: Weak<LeaseTable>,
}

impl LeaseState {
    /// Takes a pin, unless the lease has ended.
    pub(crate) fn pin(self: &Arc<Self>, now: Instant) -> Result<Pin, Refusal> {
        let before = self.word.fetch_add(1, Ordering::AcqRel);
        let mut pin = Pin { lease: Arc::clone(self), region: None };
        // Dropping the pin on these paths gives it back, and fences if it was the last.
        if before & REVOKED != 0 {
            return Err(Refusal::Stale);
        }
        if now >= self.deadline && !fencing_is_off() {
            return Err(Refusal::Stale);
        }
        // There until the fence, which comes after this pin.
        pin.region.clone_from(&self.memory.lock());
        Ok(pin)
    }

    /// A pin for this kind of access to these ranges, offset and length each.
    pub(crate) fn admit(
        self: &Arc<Self>,
        access: Access,
        mut ranges: impl Iterator<Item = (u64, u64)>,
        now: Instant,
    ) -> Result<Pin, Refusal> {
        if self.access != access || !ranges.all(|(offset, len)| covers(&self.ranges, offset, len)) {
            return Err(Refusal::OutsideLease);
        }
        self.pin(now)
    }

    /// Whether the lease has ended.
    pub(crate) fn is_revoked(&self) -> bool {
        self.word.load(Ordering::Acquire) & REVOKED != 0
    }

    /// Whether a read that finished by `now` was covered by the lease all along.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        !self.is_revoked() && (now < self.deadline || fencing_is_off())
    }

    /// Ends the lease. True when the caller must wake the workers, because pins are out.
    pub(crate) fn revoke(&self) -> bool {
        if fencing_is_off() {
            // The owner is told of a fence that is not there: what its tests must notice.
            self.fenced.set();
            return false;
        }
        let before = self.word.fetch_or(REVOKED, Ordering::AcqRel);
        if before == 0 {
            self.fence();
        }
        before & REVOKED == 0 && before != 0
    }

    fn fence(&self) {
        if let Some(table) = self.table.upgrade().filter(|_| !fencing_is_off()) {
            table.remove(self);
        }
        // Outside of the lock: the last hold of a region unmaps it, or runs what its owner wants run.
        let memory = self.memory.lock().take();
        if let Some(memory) = &memory {
            memory.registrations().unguard(self.key);
        }
        if self.access == Access::Write
            && let Some(Err(error)) = memory.as_ref().map(Region::make_visible)
        {
            tracing::error!(%error, "what NICs wrote to a device may not be visible there");
        }
        drop(memory);
        self.fenced.set();
    }

    pub(crate) fn add_landed(&self, bytes: u64) {
        self.landed.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn landed(&self) -> u64 {
        self.landed.load(Ordering::Relaxed)
    }
}

/// The law's tests show that they can fail: a build for them may switch fencing off for a process, and no other can. Then
/// leases do not end, frames of another generation are taken, and a dead session's streams stay open.
#[cfg(feature = "no-fence")]
pub(crate) fn fencing_is_off() -> bool {
    std::env::var_os("KVRAIL_TEST_NO_FENCE").is_some()
}

#[cfg(not(feature = "no-fence"))]
#[inline]
pub(crate) const fn fencing_is_off() -> bool {
    false
}

/// While it lives, bytes may move under the lease.
pub(crate) struct Pin {
    lease: Arc<LeaseState>,
    /// None only in a pin that is not handed out.
    region: Option<Region>,
}

impl Pin {
    /// The memory that is lent.
    pub(crate) fn region(&self) -> &Region {
        self.region.as_ref().expect("a pin that is handed out has its region")
    }

    pub(crate) fn lease(&self) -> &Arc<LeaseState> {
        &self.lease
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Before the fence: who is told of it may want the memory back.
        self.region = None;
        if self.lease.word.fetch_sub(1, Ordering::AcqRel) == REVOKED | 1 {
            self.lease.fence();
        }
    }
}

#[derive(Default)]
struct Entries {
    by_id: HashMap<u64, Arc<LeaseState>>,
    by_deadline: BTreeSet<(Instant, u64)>,
}

/// Every lease that is out or waits for its fence.
pub(crate) struct LeaseTable {
    entries: RwLock<Entries>,
    next: AtomicU64,
    limit: usize,
    /// Device memory that has been lent: no more than there are such regions.
    devices: Mutex<Vec<WeakRegion>>,
}

impl LeaseTable {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { entries: RwLock::default(), next: AtomicU64::new(1), limit, devices: Mutex::default() })
    }

    pub(crate) fn grant(
        self: &Arc<Self>,
        request: LeaseRequest<'_>,
        ranges_limit: usize,
        now: Instant,
    ) -> Result<Arc<LeaseState>, LeaseError> {
        let ranges = normalise(request.ranges, request.region.len())?;
        if ranges.len() > ranges_limit {
            return Err(LeaseError::TooManyRanges { given: ranges.len(), limit: ranges_limit });
        }
        let far = now + Duration::from_secs(365 * 24 * 3600);
        let lease = Arc::new(LeaseState {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            key: crate::random::u64(),
            access: request.access,
            region: request.region.id(),
            shared: request.region.share().is_some(),
            staged: gpu::is_staged(request.region),
            ranges,
            deadline: now.checked_add(request.ttl).map_or(far, |d| d.min(far)),
            memory: Mutex::new(Some(request.region.clone())),
            word: AtomicU64::new(0),
            landed: AtomicU64::new(0),
            fenced: Arc::default(),
            table: Arc::downgrade(self),
        });
        if request.region.device_memory().is_some() {
            let mut devices = self.devices.lock();
            devices.retain(|known| known.upgrade().is_some_and(|known| known.id() != request.region.id()));
            devices.push(request.region.downgrade());
        }
        let mut entries = self.entries.write();
        if entries.by_id.len() >= self.limit {
            return Err(LeaseError::TooManyLeases { limit: self.limit });
        }
        entries.by_deadline.insert((lease.deadline, lease.id));
        entries.by_id.insert(lease.id, Arc::clone(&lease));
        Ok(lease)
    }

    /// The lease of this number, if the key fits.
    pub(crate) fn find(&self, id: u64, key: u64) -> Option<Arc<LeaseState>> {
        self.entries.read().by_id.get(&id).filter(|lease| lease.key == key).cloned()
    }

    /// Makes what NICs have written to devices visible there; false where one refuses. Called before anybody is told that bytes are there.
    pub(crate) fn make_visible(&self) -> bool {
        let lent: Vec<Region> = self.devices.lock().iter().filter_map(WeakRegion::upgrade).collect();
        lent.iter().all(|region| {
            let flushed = region.make_visible();
            flushed.inspect_err(|error| tracing::error!(%error, "a device does not flush what NICs wrote")).is_ok()
        })
    }

    fn remove(&self, lease: &LeaseState) {
        let mut entries = self.entries.write();
        entries.by_deadline.remove(&(lease.deadline, lease.id));
        entries.by_id.remove(&lease.id);
    }

    /// Leases out or waiting for their fence.
    pub(crate) fn len(&self) -> usize {
        self.entries.read().by_id.len()
    }

    pub(crate) fn quarantined(&self) -> usize {
        self.entries.read().by_id.values().filter(|l| l.word.load(Ordering::Relaxed) & REVOKED != 0).count()
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.entries.read().by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Revokes what has expired; true when workers must be woken.
    pub(crate) fn expire(&self, now: Instant) -> bool {
        let mut wake = false;
        loop {
            let due = {
                let mut entries = self.entries.write();
                match entries.by_deadline.first() {
                    Some(&(deadline, id)) if deadline <= now => {
                        entries.by_deadline.pop_first();
                        entries.by_id.get(&id).cloned()
                    }
                    _ => return wake,
                }
            };
            // Outside the lock: the fence takes it again.
            wake |= due.is_some_and(|lease| lease.revoke());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryKind;

    fn r(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    fn table_and_lease(ttl: Duration) -> (Arc<LeaseTable>, Arc<LeaseState>) {
        let region = Region::allocate(4096, MemoryKind::Host).unwrap();
        let table = LeaseTable::new(2);
        let request = LeaseRequest { region: &region, ranges: vec![r(0, 100)], access: Access::Write, ttl };
        let lease = table.grant(request, 16, Instant::now()).unwrap();
        (table, lease)
    }

    #[test]
    fn ranges_merge_and_cover_exactly_their_bytes() {
        let ranges = normalise(vec![r(50, 10), r(0, 10), r(10, 5), r(55, 20)], 100).unwrap();
        assert_eq!(&*ranges, &[r(0, 15), r(50, 25)]);
        assert!(covers(&ranges, 0, 15) && covers(&ranges, 74, 1) && covers(&ranges, 50, 25));
        assert!(
            !covers(&ranges, 0, 16) && !covers(&ranges, 15, 1) && !covers(&ranges, 49, 2) && !covers(&ranges, 75, 1)
        );
        assert!(!covers(&ranges, u64::MAX, 2));
        assert!(matches!(normalise(vec![r(90, 11)], 100), Err(LeaseError::OutOfRegion { .. })));
        assert!(matches!(normalise(vec![r(u64::MAX, 2)], 100), Err(LeaseError::OutOfRegion { .. })));
        assert!(matches!(normalise(vec![r(1, 0)], 100), Err(LeaseError::Empty)));
    }

    #[test]
    fn a_revoked_lease_is_fenced_when_the_last_pin_goes_and_gives_no_new_one() {
        let (table, lease) = table_and_lease(Duration::from_secs(60));
        let now = Instant::now();
        let (first, second) = (lease.pin(now).unwrap(), lease.pin(now).unwrap());
        assert!(lease.revoke(), "pins are out: workers must be woken");
        assert!(!lease.revoke(), "and only once");
        assert_eq!(lease.pin(now).err(), Some(Refusal::Stale));
        drop(first);
        assert!(!lease.fenced.is_set());
        assert_eq!((table.len(), table.quarantined()), (1, 1));
        drop(second);
        assert!(lease.fenced.is_set());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn the_fence_lets_go_of_the_memory_whoever_remembers_the_lease() {
        let gone = Arc::new(());
        let bytes = Box::leak(Box::new([0u8; 16]));
        let owner = Arc::clone(&gone);
        let region = Region::of_static(bytes, owner);
        let table = LeaseTable::new(2);
        let ttl = Duration::from_secs(60);
        let request = LeaseRequest { region: &region, ranges: vec![r(0, 16)], access: Access::Write, ttl };
        let lease = table.grant(request, 16, Instant::now()).unwrap();
        drop(region);
        let pin = lease.pin(Instant::now()).unwrap();
        lease.revoke();
        assert_eq!(Arc::strong_count(&gone), 2, "bytes may still move");
        drop(pin);
        assert!(lease.fenced.is_set());
        assert_eq!(Arc::strong_count(&gone), 1, "a stream may remember the lease, and the owner its handle");
    }

    #[test]
    fn what_nics_wrote_to_a_device_is_flushed_before_anybody_hears_of_it() {
        use crate::gpu::{Driver, Gpus, StagingOptions, fake};
        let fake = fake::Fake::new(vec![fake::FakeDevice::able("0000:44:00.0")], 0);
        let driver: Arc<dyn Driver> = fake.clone();
        let device = Gpus::with(driver, StagingOptions::default()).unwrap().device(0).unwrap();
        let region = Region::device(device.allocate(4096).unwrap());
        let table = LeaseTable::new(2);
        let request =
            |access| LeaseRequest { region: &region, ranges: vec![r(0, 16)], access, ttl: Duration::from_secs(60) };
        let lease = table.grant(request(Access::Write), 16, Instant::now()).unwrap();
        let flushes = || fake.calls().iter().filter(|call| *call == "flush Owner").count();
        assert!(table.make_visible());
        assert_eq!(flushes(), 0, "no NIC reaches it: staged bytes need none");
        region.registrations().note_device();
        assert!(table.make_visible());
        assert_eq!(flushes(), 1, "before a notification");
        lease.revoke();
        assert_eq!((lease.fenced.is_set(), flushes()), (true, 1), "and before the fence is told");
        let read = table.grant(request(Access::Read), 16, Instant::now()).unwrap();
        read.revoke();
        assert_eq!(flushes(), 0, "nobody wrote");
        fake.fail("flush", 0, 719);
        assert!(!table.make_visible(), "who waits for a notification is not told");
    }

    #[test]
    fn expiry_refuses_pins_at_once_and_fences_by_the_timer() {
        let (table, lease) = table_and_lease(Duration::from_millis(5));
        let later = Instant::now() + Duration::from_millis(10);
        assert_eq!(lease.pin(later).err(), Some(Refusal::Stale));
        assert!(!table.expire(later), "nothing is pinned");
        assert!(lease.fenced.is_set());
        assert_eq!((table.len(), table.next_expiry()), (0, None));
    }

    #[test]
    fn the_table_is_bounded_and_wants_the_key() {
        let (table, lease) = table_and_lease(Duration::from_secs(60));
        assert!(table.find(lease.id, lease.key).is_some());
        assert!(table.find(lease.id, lease.key ^ 1).is_none());
        let region = Region::allocate(1, MemoryKind::Host).unwrap();
        let ask = || LeaseRequest {
            region: &region,
            ranges: vec![r(0, 1)],
            access: Access::Read,
            ttl: Duration::from_secs(1),
        };
        table.grant(ask(), 16, Instant::now()).unwrap();
        assert_eq!(table.grant(ask(), 16, Instant::now()).err(), Some(LeaseError::TooManyLeases { limit: 2 }));
    }
}
