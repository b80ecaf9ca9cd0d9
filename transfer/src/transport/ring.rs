//! Bytes from one process of a host to another through memory that both have mapped, and back: no system call while both look.
//!
//! Each side has a *slate*: a memfd that it alone can write, and of which the other has a descriptor for reading. So neither can touch
//! what the other says, and every word in shared memory has one writer.
//!
//! | bytes of a slate | what its owner says |
//! |---|---|
//! | 0..8 | bytes that it has ever put into its data |
//! | 128..136 | bytes that it has ever taken out of the other's |
//! | 256..260 | whether it sleeps (1), and whether it waits for room (2); above these the number of the sleep |
//! | 4096.. | data: byte `n` lies at `n` modulo [`DATA_BYTES`] |
//!
//! **Sleep.** Who is about to sleep says so, and looks once more; who has put or taken something looks whether the other sleeps, and rings
//! then, once a sleep. A full fence stands between the two steps on both sides, so that one of the two sees the other's: no
//! wake-up is lost. How it rings is the caller's affair.
//!
//! **Distrust.** The other side may write anything at any time. Counts are checked before they are used, and are wrong or harmless; bytes are
//! copied out before anybody judges them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::memory::{Mapping, MemoryError, copy};

/// Bytes under way in each direction, at most.
pub(crate) const DATA_BYTES: usize = 64 << 10;
const DATA_AT: usize = 4096;
const SLATE_BYTES: usize = DATA_AT + DATA_BYTES;

/// Places of the counts: lines of their own, and not neighbours, which processors fetch in pairs.
const PUT_AT: usize = 0;
const TAKEN_AT: usize = 128;
const STATE_AT: usize = 256;

const ASLEEP: u32 = 1;
const WANTS_ROOM: u32 = 2;
/// Step of the number of the sleep.
const SLEEP: u32 = 4;

/// The other side's counts cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Impossible;

/// Both slates, as one side has them.
pub(crate) struct Ring {
    mine: Mapping,
    /// Not there until the other side has introduced itself.
    theirs: Option<Mapping>,
    /// What our slate says, for we do not read it.
    put: u64,
    taken: u64,
    state: u32,
    /// Of ours, what the other side had taken when we last needed to know.
    seen_taken: u64,
    /// State in which the bell was rung last.
    rung: u32,
    /// Something was put, or taken, since we last looked whether the other side sleeps.
    has_put: bool,
    has_taken: bool,
    /// There was no room for all that was to be put.
    full: bool,
}

impl Ring {
    /// A slate of our own, and the descriptor by which the other side reads it.
    pub(crate) fn new() -> Result<(Self, OwnedFd), MemoryError> {
        let mut mine = Mapping::memfd(SLATE_BYTES)?;
        let card = mine.unshare().ok_or(MemoryError::NotSealed)?;
        let ring = Self {
            mine,
            theirs: None,
            put: 0,
            taken: 0,
            state: 0,
            seen_taken: 0,
            rung: 0,
            has_put: false,
            has_taken: false,
            full: false,
        };
        Ok((ring, card))
    }

    /// The other side's slate has come.
    pub(crate) fn join(&mut self, card: &OwnedFd) -> Result<(), MemoryError> {
        self.theirs = Some(Mapping::of_peer(card, SLATE_BYTES)?);
        Ok(())
    }

    pub(crate) fn is_joined(&self) -> bool {
        self.theirs.is_some()
    }

    /// Puts what there is room for; how many bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<usize, Impossible> {
        let mut room = DATA_BYTES as u64 - (self.put - self.seen_taken);
        if room < bytes.len() as u64
            && let Some(theirs) = &self.theirs
        {
            let taken = acquire(word(theirs, TAKEN_AT));
            room = (DATA_BYTES as u64).checked_sub(self.put.wrapping_sub(taken)).ok_or(Impossible)?;
            self.seen_taken = taken;
        }
        let len = bytes.len().min(room as usize);
        self.full = len < bytes.len();
        if len == 0 {
            return Ok(0);
        }
        let (at, first) = place(self.put, len);
        // SAFETY: two ranges inside the data of our slate (`place`), which nobody else writes; what the other side still reads of them is
        // what it has said to have taken, or its own loss.
        unsafe {
            copy(bytes.as_ptr(), self.mine.base().add(DATA_AT + at), first);
            copy(bytes.as_ptr().add(first), self.mine.base().add(DATA_AT), len - first);
        }
        self.put += len as u64;
        word(&self.mine, PUT_AT).store(self.put, Ordering::Release);
        self.has_put = true;
        Ok(len)
    }

    /// Takes what is there and fits; how many bytes.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> Result<usize, Impossible> {
        let Some(theirs) = &self.theirs else { return Ok(0) };
        let there = acquire(word(theirs, PUT_AT)).wrapping_sub(self.taken);
        if there > DATA_BYTES as u64 {
            return Err(Impossible);
        }
        let len = into.len().min(there as usize);
        if len == 0 {
            return Ok(0);
        }
        let (at, first) = place(self.taken, len);
        // SAFETY: two ranges inside the data of the other's slate (`place`), which stays mapped and cannot shrink; `into` is ours alone. A
        // writer meanwhile gives torn bytes, which are judged after they were copied.
        unsafe {
            copy(theirs.base().add(DATA_AT + at), into.as_mut_ptr(), first);
            copy(theirs.base().add(DATA_AT), into.as_mut_ptr().add(first), len - first);
        }
        self.taken += len as u64;
        word(&self.mine, TAKEN_AT).store(self.taken, Ordering::Release);
        self.has_taken = true;
        Ok(len)
    }

    /// Whether there is something to take.
    pub(crate) fn has_more(&self) -> bool {
        self.theirs.as_ref().is_some_and(|theirs| word(theirs, PUT_AT).load(Ordering::Relaxed) != self.taken)
    }

    /// Whether there is something to do: to take, or to put where there was no room.
    pub(crate) fn calls(&self) -> bool {
        let Some(theirs) = &self.theirs else { return false };
        word(theirs, PUT_AT).load(Ordering::Relaxed) != self.taken
            || (self.full && word(theirs, TAKEN_AT).load(Ordering::Relaxed) != self.seen_taken)
    }

    /// After putting and taking: whether the other side sleeps, and is to be woken for it.
    pub(crate) fn is_to_ring(&mut self) -> bool {
        let (has_put, has_taken) = (std::mem::take(&mut self.has_put), std::mem::take(&mut self.has_taken));
        if !has_put && !has_taken {
            return false;
        }
        // Before we know its slate it may sleep, or not; it has said nothing that could be taken.
        let Some(theirs) = &self.theirs else { return true };
        fence(Ordering::SeqCst);
        let state = flag(theirs).load(Ordering::Relaxed);
        let matters = state & ASLEEP != 0 && (has_put || state & WANTS_ROOM != 0);
        if !matters || state == self.rung {
            return false;
        }
        self.rung = state;
        true
    }

    /// We are about to sleep: from here on the other side rings. True: something has come before it knew, so do not.
    pub(crate) fn doze(&mut self) -> bool {
        let room = if self.full { WANTS_ROOM } else { 0 };
        self.say((self.state & !(ASLEEP | WANTS_ROOM)).wrapping_add(SLEEP) | ASLEEP | room);
        fence(Ordering::SeqCst);
        self.calls()
    }

    /// We look by ourselves again.
    pub(crate) fn rouse(&mut self) {
        if self.state & ASLEEP != 0 {
            self.say(self.state & !(ASLEEP | WANTS_ROOM));
        }
    }

    fn say(&mut self, state: u32) {
        self.state = state;
        flag(&self.mine).store(state, Ordering::Release);
    }
}

/// Where `len` bytes from count `from` on lie in the data, and how many of them before its end.
fn place(from: u64, len: usize) -> (usize, usize) {
    let at = (from % DATA_BYTES as u64) as usize;
    (at, len.min(DATA_BYTES - at))
}

/// Reads a word that another process writes, and what it wrote before. The slate may be mapped for reading alone, where nothing but a
/// relaxed load is allowed.
fn acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// A count of a slate.
fn word(slate: &Mapping, at: usize) -> &AtomicU64 {
    debug_assert!(at + size_of::<u64>() <= DATA_AT);
    // SAFETY: inside the mapping, which is page-aligned and of SLATE_BYTES, and aligned; it lives as long as the reference. All that either
    // process does to it is atomic, and it is stored to only where we mapped it for writing, our own.
    unsafe { AtomicU64::from_ptr(slate.base().add(at).cast()) }
}

/// The state of a slate.
fn flag(slate: &Mapping) -> &AtomicU32 {
    // SAFETY: as for `word`.
    unsafe { AtomicU32::from_ptr(slate.base().add(STATE_AT).cast()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn pair() -> (Ring, Ring) {
        let ((mut a, a_card), (mut b, b_card)) = (Ring::new().unwrap(), Ring::new().unwrap());
        a.join(&b_card).unwrap();
        b.join(&a_card).unwrap();
        (a, b)
    }

    fn text(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|n| (n.wrapping_mul(seed | 1) >> 3) as u8).collect()
    }

    #[test]
    fn what_is_put_is_taken_in_order_round_and_round() {
        let (mut a, mut b) = pair();
        let (mut said, mut heard) = (Vec::<u8>::new(), Vec::<u8>::new());
        for round in 0..500u64 {
            let bytes = text(round, 1 + (round as usize * 977) % 3000);
            assert_eq!(a.put(&bytes), Ok(bytes.len()));
            said.extend(&bytes);
            let mut into = vec![0; 1 + (round as usize * 331) % 4000];
            while b.has_more() {
                let n = b.take(&mut into).unwrap();
                heard.extend(&into[..n]);
            }
        }
        assert!(said.len() > 4 * DATA_BYTES);
        assert!(said == heard);
        assert!(!b.calls() && !a.calls());
    }

    #[test]
    fn a_full_ring_takes_no_more_and_calls_when_there_is_room() {
        let (mut a, mut b) = pair();
        let bytes = text(3, DATA_BYTES + 100);
        assert_eq!(a.put(&bytes), Ok(DATA_BYTES));
        assert_eq!(a.put(&bytes[DATA_BYTES..]), Ok(0));
        assert!(!a.calls(), "nothing has changed");
        assert!(!a.doze());
        let mut into = vec![0; 64];
        assert_eq!(b.take(&mut into), Ok(64));
        assert!(b.is_to_ring(), "who waits for room is woken for room");
        assert!(a.calls());
        a.rouse();
        assert_eq!(a.put(&bytes[DATA_BYTES..]), Ok(64));
        let mut rest = vec![0; 2 * DATA_BYTES];
        let n = b.take(&mut rest).unwrap();
        assert!([into, rest[..n].to_vec()].concat() == bytes[..DATA_BYTES + 64]);
    }

    #[test]
    fn the_bell_is_rung_once_a_sleep_and_only_for_who_sleeps() {
        let (mut a, mut b) = pair();
        a.put(b"one").unwrap();
        assert!(!a.is_to_ring(), "it is awake");
        assert!(b.doze(), "there is something");
        b.rouse();
        b.take(&mut [0; 16]).unwrap();
        assert!(!b.is_to_ring() && !b.doze());
        a.put(b"two").unwrap();
        assert!(a.is_to_ring());
        a.put(b"three").unwrap();
        assert!(!a.is_to_ring(), "it has been rung for already");
        b.rouse();
        b.take(&mut [0; 16]).unwrap();
        assert!(!b.doze());
        assert!(!a.is_to_ring(), "nothing was put since");
        a.put(b"four").unwrap();
        assert!(a.is_to_ring(), "another sleep");
        // Room alone wakes nobody who does not wait for it.
        a.doze();
        b.take(&mut [0; 16]).unwrap();
        assert!(!b.is_to_ring());
    }

    #[test]
    fn before_the_other_side_is_known_it_is_rung_for() {
        let ((mut a, a_card), (mut b, b_card)) = (Ring::new().unwrap(), Ring::new().unwrap());
        a.put(b"early").unwrap();
        assert!(a.is_to_ring());
        assert_eq!(a.put(&text(1, DATA_BYTES)), Ok(DATA_BYTES - 5));
        assert!(!b.has_more() && !b.calls());
        assert_eq!(b.take(&mut [0; 8]), Ok(0));
        b.join(&a_card).unwrap();
        let mut into = [0; 8];
        assert_eq!(b.take(&mut into), Ok(8));
        assert_eq!(&into[..5], b"early");
        a.join(&b_card).unwrap();
        assert!(a.calls(), "there is room");
    }

    /// A slate by somebody who means no good: the file, and the ring that reads it.
    fn lies() -> (std::fs::File, Ring) {
        use rustix::fs::{MemfdFlags, SealFlags};
        let file = rustix::fs::memfd_create("lies", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, SLATE_BYTES as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let (mut ring, _card) = Ring::new().unwrap();
        ring.join(&file).unwrap();
        (file.into(), ring)
    }

    #[test]
    fn counts_that_cannot_be_are_refused_and_nothing_outside_is_read() {
        use std::os::unix::fs::FileExt;
        let most = DATA_BYTES as u64;
        for put in [most + 1, u64::MAX, u64::MAX / 2, 1 << 32] {
            let (file, mut ring) = lies();
            file.write_all_at(&put.to_le_bytes(), PUT_AT as u64).unwrap();
            assert!(ring.calls() && ring.has_more());
            assert_eq!(ring.take(&mut vec![0; 2 * DATA_BYTES]), Err(Impossible));
        }
        for taken in [1, most, u64::MAX] {
            let (file, mut ring) = lies();
            assert_eq!(ring.put(&text(1, DATA_BYTES - 10)), Ok(DATA_BYTES - 10));
            file.write_all_at(&most.wrapping_add(taken).to_le_bytes(), TAKEN_AT as u64).unwrap();
            assert_eq!(ring.put(&text(1, 100)), Err(Impossible), "{taken}");
            assert_eq!(ring.put(b"again and nothing else"), Err(Impossible));
        }
        // A count that runs backwards is one that cannot be, too.
        let (file, mut ring) = lies();
        file.write_all_at(&most.to_le_bytes(), PUT_AT as u64).unwrap();
        assert_eq!(ring.take(&mut [0; 100]), Ok(100));
        file.write_all_at(&99u64.to_le_bytes(), PUT_AT as u64).unwrap();
        assert_eq!(ring.take(&mut [0; 100]), Err(Impossible));
    }

    #[test]
    fn any_state_of_the_other_side_is_borne() {
        use std::os::unix::fs::FileExt;
        let (file, mut ring) = lies();
        for state in (0..64).chain(u32::MAX - 64..=u32::MAX) {
            file.write_all_at(&state.to_le_bytes(), STATE_AT as u64).unwrap();
            ring.put(b"x").unwrap();
            let rung = [ring.is_to_ring(), ring.is_to_ring()];
            assert_eq!(rung, [state & ASLEEP != 0, false], "{state}");
        }
    }

    #[test]
    fn a_slate_that_is_too_short_or_can_shrink_is_refused() {
        use rustix::fs::{MemfdFlags, SealFlags};
        let (mut ring, _card) = Ring::new().unwrap();
        for (len, seals) in [(SLATE_BYTES as u64, SealFlags::GROW), (4096, SealFlags::SHRINK), (0, SealFlags::SHRINK)] {
            let file = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            assert!(ring.join(&file).is_err(), "{len} {seals:?}");
        }
        assert!(!ring.is_joined());
    }

    /// Two threads that sleep until they are rung, over a ring that is often full: each byte arrives, and nobody sleeps for ever.
    #[test]
    fn no_wake_up_is_lost() {
        const BYTES: usize = 64 * DATA_BYTES;
        static OVER: AtomicBool = AtomicBool::new(false);
        let (mut a, mut b) = pair();
        let ((ring_a, bell_a), (ring_b, bell_b)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let sleep = |ring: &mut Ring, bell: &mpsc::Receiver<()>| {
            if !ring.doze() {
                // A lost wake-up would be seen as this time's end.
                assert!(
                    bell.recv_timeout(Duration::from_secs(20)).is_ok() || OVER.load(Ordering::SeqCst),
                    "asleep for ever"
                );
            }
            ring.rouse();
        };
        let sender = std::thread::spawn(move || {
            let (bytes, mut sent) = (text(7, BYTES), 0);
            while sent < BYTES {
                let until = (sent + 1 + (sent * 7919) % 20_000).min(BYTES);
                sent += a.put(&bytes[sent..until]).unwrap();
                if a.is_to_ring() {
                    ring_b.send(()).unwrap();
                }
                if sent < until {
                    sleep(&mut a, &bell_a);
                }
            }
            a
        });
        let (expected, mut heard, mut into) = (text(7, BYTES), 0, vec![0; 9000]);
        while heard < BYTES {
            let n = b.take(&mut into).unwrap();
            assert!(into[..n] == expected[heard..heard + n]);
            heard += n;
            if b.is_to_ring() {
                ring_a.send(()).unwrap();
            }
            if n == 0 {
                sleep(&mut b, &bell_b);
            }
        }
        OVER.store(true, Ordering::SeqCst);
        sender.join().unwrap();
    }
}
