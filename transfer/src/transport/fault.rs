//! Faults by seed: a decorator that drops, delays, duplicates and reorders slices, kills and freezes the stream beneath.
//!
//! It sits between the planner and a rail, where a fabric's faults would be seen: a dropped slice gets no word, a delayed
//! one is posted late (perhaps after its transfer was cancelled and its lease revoked), a duplicate arrives twice. The
//! same seed gives the same faults for the same slices.

use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::plan::{Completion, Direction, Piece, SliceId};
use crate::transport::gate::Gate;
use crate::transport::sys::Readiness;
use crate::transport::{Job, Post, PostError, Rail, RailError};

/// What goes wrong, for each slice that this engine sends. Probabilities are in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Decides which slices are hit.
    pub seed: u64,
    /// Slices that are never posted.
    pub drop_permille: u16,
    /// Slices that are posted twice.
    pub duplicate_permille: u16,
    /// Slices that are posted after the next one.
    pub reorder_permille: u16,
    /// Slices that wait for `delay`.
    pub delay_permille: u16,
    /// See `delay_permille`.
    pub delay: Duration,
    /// Streams break after this many slices.
    pub kill_after: Option<u32>,
    /// Streams stand still after this many slices, neither sending nor receiving, for `freeze`.
    pub freeze_after: Option<u32>,
    /// See `freeze_after`.
    pub freeze: Duration,
    /// Only so many openings of each stream are faulty; `None`: all.
    pub openings: Option<u32>,
    /// One bit is flipped in every so manieth write that this engine **receives**, after it landed and before its
    /// checksum is looked at: what a bad DIMM or cable does.
    pub flip_every: Option<u32>,
    /// These bits of one 16-bit word are flipped instead of one bit: 0x7C00 are the exponent of a half-precision number.
    pub flip_mask: Option<u16>,
    /// Workers wait here with a slice that they were given to send, before they post it.
    pub post_gate: Option<Gate>,
    /// Copies wait here when their lease has been checked: those into and out of memory that this engine lends, and over
    /// shared memory those of its own reads.
    pub copy_gate: Option<Gate>,
    /// What receivers allow is not looked at: this engine sends as if nobody limited it.
    pub ignores_limits: bool,
}

/// A fault plan's text is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault plan: `{part}`; expected KEY=NUMBER with a key of: {KEYS}")]
pub struct FaultPlanError {
    part: String,
}

const KEYS: &str = "seed, drop, duplicate, reorder, delay (all in thousandths), delay_ms, kill_after, freeze_after, freeze_ms, flip, mask, ignores_limits";

impl std::str::FromStr for FaultPlan {
    type Err = FaultPlanError;

    /// Reads `key=number,…`, like `drop=5,delay=10,delay_ms=20,seed=7`.
    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        for part in text.split(',') {
            let wrong = || FaultPlanError { part: part.to_owned() };
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let value: u32 = value.parse().map_err(|_| wrong())?;
            let permille = || u16::try_from(value).ok().filter(|&p| p <= 1000).ok_or_else(wrong);
            match key {
                "seed" => plan.seed = u64::from(value),
                "drop" => plan.drop_permille = permille()?,
                "duplicate" => plan.duplicate_permille = permille()?,
                "reorder" => plan.reorder_permille = permille()?,
                "delay" => plan.delay_permille = permille()?,
                "delay_ms" => plan.delay = Duration::from_millis(u64::from(value)),
                "kill_after" => plan.kill_after = Some(value),
                "freeze_after" => plan.freeze_after = Some(value),
                "freeze_ms" => plan.freeze = Duration::from_millis(u64::from(value)),
                "ignores_limits" if value <= 1 => plan.ignores_limits = value == 1,
                "flip" if value > 0 => plan.flip_every = Some(value),
                "mask" if value > 0 => plan.flip_mask = Some(u16::try_from(value).map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(plan)
    }
}

/// Flips bits in what lands, by a plan.
pub(crate) struct Flipper {
    every: u32,
    mask: Option<u16>,
    seen: AtomicU64,
}

impl Flipper {
    /// The flipper of a plan that flips.
    pub(crate) fn of(plan: Option<&FaultPlan>) -> Option<Self> {
        let plan = plan?;
        plan.flip_every.map(|every| Self { every, mask: plan.flip_mask, seen: AtomicU64::new(0) })
    }

    /// Flips one bit of the `len` bytes at `base`, or what the mask says of one of its words, if it is this write's turn.
    ///
    /// # Safety
    /// `base` must be writable for `len` bytes, and nobody else may be writing there.
    pub(crate) unsafe fn strike(&self, base: *mut u8, len: usize) {
        let n = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if !n.is_multiple_of(u64::from(self.every)) || len == 0 {
            return;
        }
        let bit = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
        let at = (bit / 8) as usize % len;
        let (at, flips) = match self.mask {
            Some(mask) => (at & !1, mask.to_le_bytes()),
            None => (at, [1 << (bit % 8), 0]),
        };
        for (at, flips) in (at..len).zip(flips) {
            // SAFETY: inside the bytes that the caller vouches for.
            unsafe { *base.add(at) ^= flips };
        }
    }
}

/// A slice that is held back.
struct Held {
    id: SliceId,
    job: Arc<Job>,
    direction: Direction,
    pieces: Vec<Piece>,
    bytes: u64,
    until: Instant,
}

/// A rail with faults.
pub(crate) struct Faulty {
    inner: Box<dyn Rail>,
    plan: FaultPlan,
    state: u64,
    posted: u32,
    held: VecDeque<Held>,
    frozen_until: Option<Instant>,
}

impl Faulty {
    /// `salt` tells the streams of an engine apart.
    pub(crate) fn new(inner: Box<dyn Rail>, plan: FaultPlan, salt: u64) -> Self {
        // Spread first: the last bit is lost to the state that must not be zero, and neighbouring seeds must differ.
        let state = (plan.seed ^ salt.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { inner, plan, state, posted: 0, held: VecDeque::new(), frozen_until: None }
    }

    fn hits(&mut self, permille: u16) -> bool {
        // xorshift64*: reproducible, and good enough to pick slices.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33 & 0x3ff < u64::from(permille) * 1024 / 1000
    }

    fn hold(&mut self, post: &Post<'_>, until: Instant) {
        let (id, job, direction, bytes) = (post.id, Arc::clone(post.job), post.direction, post.bytes);
        self.held.push_back(Held { id, job, direction, pieces: post.pieces.to_vec(), bytes, until });
    }

    fn release(&mut self, now: Instant) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { return };
            if held.until > now {
                self.held.push_back(held);
                continue;
            }
            let Held { id, job, direction, pieces, bytes, .. } = &held;
            let post = Post { id: *id, job, direction: *direction, pieces, bytes: *bytes };
            // A full queue drops it, which is one of the faults.
            let _ = self.inner.submit(&post, now);
        }
    }
}

impl Rail for Faulty {
    fn readiness(&self) -> RawFd {
        self.inner.readiness()
    }

    fn submit(&mut self, post: &Post<'_>, now: Instant) -> Result<(), PostError> {
        if let Some(gate) = &self.plan.post_gate {
            gate.pass();
        }
        self.posted += 1;
        if self.plan.freeze_after == Some(self.posted) {
            self.frozen_until = Some(now + self.plan.freeze);
        }
        if self.hits(self.plan.drop_permille) {
            return Ok(());
        }
        if self.hits(self.plan.delay_permille) {
            self.hold(post, now + self.plan.delay);
            return Ok(());
        }
        if self.hits(self.plan.reorder_permille) {
            self.hold(post, now + Duration::from_micros(200));
            return Ok(());
        }
        // A read that comes twice would be our own breach of the protocol, not a fabric's fault.
        if self.hits(self.plan.duplicate_permille) && post.direction == Direction::Write {
            self.inner.submit(post, now)?;
        }
        self.inner.submit(post, now)
    }

    fn progress(&mut self, now: Instant) -> Result<bool, RailError> {
        if self.plan.kill_after.is_some_and(|n| self.posted >= n) {
            return Err(RailError::Killed);
        }
        if let Some(until) = self.frozen_until {
            if now < until {
                return Ok(false);
            }
            self.frozen_until = None;
        }
        self.release(now);
        self.inner.progress(now)
    }

    fn ready(&mut self, is: Readiness) {
        self.inner.ready(is);
    }

    fn is_in_memory(&self) -> bool {
        self.inner.is_in_memory()
    }

    fn calls(&self) -> bool {
        // A frozen rail looks at nothing.
        self.frozen_until.is_none() && self.inner.calls()
    }

    fn doze(&mut self) -> bool {
        self.inner.doze() && self.frozen_until.is_none()
    }

    fn rouse(&mut self) {
        self.inner.rouse();
    }

    fn completion(&mut self) -> Option<Completion> {
        self.inner.completion()
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn is_mid_payload(&self) -> bool {
        self.inner.is_mid_payload()
    }

    fn vouch(&mut self, word: u32) {
        self.inner.vouch(word);
    }

    fn vouched(&mut self) -> Option<u32> {
        self.inner.vouched()
    }

    fn fence(&mut self) {
        self.inner.fence();
    }

    fn close(self: Box<Self>) -> Option<OwnedFd> {
        self.inner.close()
    }

    fn wake_at(&self) -> Option<Instant> {
        let ours = self.held.iter().map(|held| held.until).chain(self.frozen_until);
        // A frozen rail does not look at what waits beneath.
        let inner = if self.frozen_until.is_some() { None } else { self.inner.wake_at() };
        ours.chain(inner).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what it is given.
    #[derive(Default)]
    struct Sink(Arc<parking_lot::Mutex<Vec<u64>>>);

    impl Rail for Sink {
        fn readiness(&self) -> RawFd {
            -1
        }
        fn submit(&mut self, post: &Post<'_>, _: Instant) -> Result<(), PostError> {
            self.0.lock().push(post.id.to_bits());
            Ok(())
        }
        fn progress(&mut self, _: Instant) -> Result<bool, RailError> {
            Ok(false)
        }
        fn ready(&mut self, _: Readiness) {}
        fn completion(&mut self) -> Option<Completion> {
            None
        }
        fn room(&self) -> usize {
            1
        }
        fn fence(&mut self) {}
        fn close(self: Box<Self>) -> Option<OwnedFd> {
            None
        }
    }

    fn run(plan: FaultPlan, slices: u64) -> Vec<u64> {
        let seen = Arc::default();
        let mut rail = Faulty::new(Box::new(Sink(Arc::clone(&seen))), plan, 3);
        let region = crate::memory::Region::allocate(1, crate::memory::MemoryKind::Host).unwrap();
        let job = Arc::new(Job { region, generation: 0, lease: 0, key: 0, checksum: false });
        let start = Instant::now();
        for n in 0..slices {
            let (id, direction) = (SliceId::from_bits(n), Direction::Write);
            rail.submit(&Post { id, job: &job, direction, pieces: &[], bytes: 1 }, start).unwrap();
        }
        while let Some(at) = rail.wake_at() {
            rail.progress(at).unwrap();
        }
        let seen = seen.lock();
        seen.clone()
    }

    #[test]
    fn a_plan_is_read_from_text_and_what_is_wrong_is_named() {
        let plan: FaultPlan =
            "drop=5,delay=1000,delay_ms=20,seed=7,flip=2,mask=31744,ignores_limits=1".parse().unwrap();
        assert_eq!((plan.drop_permille, plan.delay_permille, plan.seed), (5, 1000, 7));
        assert_eq!((plan.flip_every, plan.flip_mask, plan.ignores_limits), (Some(2), Some(0x7c00), true));
        for wrong in ["", "drop", "drop=x", "drop=1001", "flip=0", "mask=0", "mask=65536", "drip=5"] {
            let error = wrong.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }

    #[test]
    fn a_flipper_flips_one_bit_of_every_nth_write() {
        let plan = FaultPlan { flip_every: Some(3), ..FaultPlan::default() };
        let flipper = Flipper::of(Some(&plan)).unwrap();
        let mut flipped = Vec::new();
        for _ in 0..9 {
            let mut bytes = [0u8; 100];
            // SAFETY: a local array.
            unsafe { flipper.strike(bytes.as_mut_ptr(), bytes.len()) };
            flipped.push(bytes.iter().map(|b| b.count_ones()).sum::<u32>());
        }
        assert_eq!(flipped, [0, 0, 1, 0, 0, 1, 0, 0, 1]);
        assert!(Flipper::of(Some(&FaultPlan::default())).is_none());
    }

    #[test]
    fn a_flipper_with_a_mask_flips_those_bits_of_one_word() {
        let plan = FaultPlan { flip_every: Some(1), flip_mask: Some(0x7c00), ..FaultPlan::default() };
        let flipper = Flipper::of(Some(&plan)).unwrap();
        for _ in 0..50 {
            let mut bytes = [0u8; 64];
            // SAFETY: a local array.
            unsafe { flipper.strike(bytes.as_mut_ptr(), bytes.len()) };
            let words: Vec<u16> = bytes.chunks(2).map(|w| u16::from_le_bytes([w[0], w[1]])).collect();
            let struck: Vec<u16> = words.into_iter().filter(|word| *word != 0).collect();
            assert_eq!(struck, [0x7c00]);
        }
    }

    #[test]
    fn no_plan_no_fault() {
        assert_eq!(run(FaultPlan::default(), 100), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_seed_hits_the_same_slices_and_about_as_many_as_asked() {
        let plan = FaultPlan { seed: 9, drop_permille: 100, duplicate_permille: 100, ..FaultPlan::default() };
        let first = run(plan.clone(), 2000);
        assert_eq!(first, run(plan.clone(), 2000));
        assert_ne!(first, run(FaultPlan { seed: 10, ..plan }, 2000));
        let distinct: std::collections::HashSet<_> = first.iter().collect();
        assert!((1700..1900).contains(&distinct.len()), "{} of 2000 came through", distinct.len());
        assert!((100..260).contains(&(first.len() - distinct.len())), "duplicates");
    }

    #[test]
    fn delayed_slices_come_late_and_all() {
        let delay = Duration::from_millis(5);
        let got = run(FaultPlan { seed: 1, delay_permille: 300, delay, ..FaultPlan::default() }, 200);
        assert_ne!(got, (0..200).collect::<Vec<_>>());
        let mut sorted = got.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..200).collect::<Vec<_>>());
    }
}
