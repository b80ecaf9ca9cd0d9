//! Staging: device memory moves over sockets, and by NICs that do not reach it, through chunks of pinned host memory.
//!
//! Two pipelines of at most [`DEPTH`] chunks each. [`Outgoing`] copies the next chunk from the device while the one before is being
//! sent; [`Incoming`] copies a chunk to the device while the next is being received. Neither blocks: each says `Wait` where a copy
//! has not ended or no chunk is free, and that is the back-pressure.
//!
//! Chunks come from a pool with a bound for each way, so that what waits to be sent never keeps what was received from landing. They
//! are pinned once and kept: pinning takes longer than copying.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::copy::{Copying, wait_for};
use crate::device::{Device, Queue, Raw};
use crate::driver::{DevicePtr, Way};
use crate::error::Error;
use crate::event::Event;
use crate::memory::DeviceMemory;

/// Chunks that one pipeline holds at most: one with the device, one with the wire.
pub const DEPTH: usize = 2;

/// Bounds of a device's staging memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingOptions {
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Chunks each way, at most.
    pub chunks_max: usize,
}

impl Default for StagingOptions {
    /// At most 64 MiB of pinned memory a device.
    fn default() -> Self {
        Self { chunk_bytes: 1 << 20, chunks_max: 32 }
    }
}

struct Pinned(NonNull<u8>);

// SAFETY: an address of pinned memory that every thread may use; whoever has it has it alone.
unsafe impl Send for Pinned {}

#[derive(Default)]
struct Shelf {
    free: Vec<Pinned>,
    /// Made and not freed or leaked; `free` among them.
    made: usize,
}

/// Pinned chunks of one device.
pub(crate) struct Pool {
    raw: Arc<Raw>,
    options: StagingOptions,
    /// One for each way.
    shelves: [Mutex<Shelf>; 2],
}

impl Pool {
    pub(crate) fn new(raw: Arc<Raw>, options: StagingOptions) -> Arc<Self> {
        Arc::new(Self { raw, options, shelves: Default::default() })
    }

    pub(crate) fn bytes_out(&self) -> u64 {
        let out = self.shelves.iter().map(|shelf| {
            let shelf = shelf.lock();
            shelf.made - shelf.free.len()
        });
        (out.sum::<usize>() * self.options.chunk_bytes) as u64
    }

    /// A chunk, or `None` at the bound.
    fn take(self: &Arc<Self>, way: Way) -> Result<Option<Chunk>, Error> {
        let mut shelf = self.shelves[usize::from(way == Way::ToDevice)].lock();
        let base = match shelf.free.pop() {
            Some(base) => base,
            None if shelf.made >= self.options.chunks_max => return Ok(None),
            None => {
                let base = self.raw.driver.allocate_pinned(self.raw.context, self.options.chunk_bytes)?;
                shelf.made += 1;
                Pinned(base)
            }
        };
        Ok(Some(Chunk { base: Some(base), way, pool: Arc::clone(self) }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for shelf in &mut self.shelves {
            for Pinned(base) in shelf.get_mut().free.drain(..) {
                // SAFETY: allocated in `take`, free of copies (or it would not be back), freed once.
                let _ = unsafe { self.raw.driver.free_pinned(self.raw.context, base) };
            }
        }
    }
}

/// A chunk of pinned memory; it goes back to its pool when it is dropped.
pub struct Chunk {
    /// Taken only by `leak` and `drop`.
    base: Option<Pinned>,
    way: Way,
    pool: Arc<Pool>,
}

// SAFETY: who has a reference gets a raw pointer of it and no more.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ref().map_or(std::ptr::null_mut(), |pinned| pinned.0.as_ptr())
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.pool.options.chunk_bytes
    }

    /// It never goes back: something may still write it. It counts against the bound for ever, which is told as a bound that is met.
    pub(crate) fn leak(mut self) {
        self.base = None;
        // The pool keeps the context, which must outlive what may still be under way.
        std::mem::forget(Arc::clone(&self.pool));
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(base) = self.base.take() {
            self.pool.shelves[usize::from(self.way == Way::ToDevice)].lock().free.push(base);
        }
    }
}

/// A run of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: DevicePtr,
    /// Its bytes.
    pub len: u64,
}

/// What is to be copied still, chunk by chunk.
struct Plan(VecDeque<Segment>);

impl Plan {
    fn bytes(&self) -> u64 {
        self.0.iter().map(|segment| segment.len).sum()
    }

    /// The next segments, together at most `bytes` long.
    fn take(&mut self, bytes: usize) -> (Vec<Segment>, usize) {
        let (mut taken, mut room) = (Vec::new(), bytes as u64);
        while room > 0
            && let Some(first) = self.0.front_mut()
        {
            let len = first.len.min(room);
            if len > 0 {
                taken.push(Segment { address: first.address, len });
            }
            room -= len;
            first.len -= len;
            first.address = DevicePtr(first.address.0 + len);
            if first.len == 0 {
                self.0.pop_front();
            }
        }
        (taken, bytes - room as usize)
    }
}

/// A stream of copies of one owner's: what it is given is done in order. Cheap to clone.
#[derive(Clone)]
pub struct Lane(Arc<Queue>);

impl Device {
    /// A lane of its own for one sender or receiver.
    ///
    /// # Errors
    /// What the driver says.
    pub fn lane(&self) -> Result<Lane, Error> {
        Ok(Lane(Arc::new(self.queue()?)))
    }
}

impl Lane {
    /// The device that it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Begins to copy segments of `memory`, which must lie in it, to the host; not before `after` has passed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn outgoing(
        &self,
        memory: &DeviceMemory,
        segments: impl IntoIterator<Item = Segment>,
        after: Option<&Event>,
    ) -> Result<Outgoing, Error> {
        debug_assert!(memory.device().is(self.device()));
        if let Some(event) = after {
            event.before(&self.0.device, self.0.raw)?;
        }
        let plan = Plan(segments.into_iter().collect());
        Ok(Outgoing { lane: self.clone(), memory: memory.clone(), plan, copying: VecDeque::new(), current: None })
    }

    /// Begins to take bytes for segments of `memory`, which must lie in it.
    #[must_use]
    pub fn incoming(&self, memory: &DeviceMemory, segments: impl IntoIterator<Item = Segment>) -> Incoming {
        debug_assert!(memory.device().is(self.device()));
        let plan = Plan(segments.into_iter().collect());
        Incoming {
            lane: self.clone(),
            memory: memory.clone(),
            plan,
            copying: VecDeque::new(),
            current: None,
            in_doubt: false,
        }
    }

    /// Shows the bytes of segments, chunk by chunk; blocks. For what is short or rare.
    ///
    /// # Errors
    /// What the driver says; [`Error::Overdue`].
    pub fn pull(
        &self,
        memory: &DeviceMemory,
        segments: impl IntoIterator<Item = Segment>,
        mut show: impl FnMut(*const u8, usize),
    ) -> Result<(), Error> {
        let mut outgoing = self.outgoing(memory, segments, None)?;
        loop {
            let mut next = Next::Wait;
            wait_for(|| {
                next = outgoing.next()?;
                Ok(next != Next::Wait)
            })?;
            match next {
                Next::Bytes { base, len } => show(base, len),
                Next::Wait | Next::End => return Ok(()),
            }
        }
    }

    /// Has bytes written for segments, chunk by chunk; blocks until they are on the device. The caller fills all that it is shown.
    ///
    /// # Errors
    /// What the driver says; [`Error::Overdue`].
    pub fn push(
        &self,
        memory: &DeviceMemory,
        segments: impl IntoIterator<Item = Segment>,
        mut fill: impl FnMut(*mut u8, usize),
    ) -> Result<(), Error> {
        let mut incoming = self.incoming(memory, segments);
        loop {
            let mut space = Space::Wait;
            wait_for(|| {
                space = incoming.space()?;
                Ok(space != Space::Wait)
            })?;
            match space {
                Space::Bytes { base, len } => fill(base, len),
                Space::Wait | Space::Full => return wait_for(|| incoming.has_landed()),
            }
        }
    }
}

/// What an [`Outgoing`] has for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Bytes to send; there until the next call.
    Bytes {
        /// The first.
        base: *mut u8,
        /// How many.
        len: usize,
    },
    /// None yet: ask again.
    Wait,
    /// None any more.
    End,
}

/// Bytes on their way from a device to the wire.
pub struct Outgoing {
    lane: Lane,
    memory: DeviceMemory,
    plan: Plan,
    /// In order, with the bytes that each will hold.
    copying: VecDeque<(Copying, usize)>,
    /// Handed out last.
    current: Option<Chunk>,
}

// SAFETY: its pointers are addresses of chunks that it holds.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Bytes that [`next`](Self::next) has not handed out.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.plan.bytes() + self.copying.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>()
    }

    /// Whether a copy is under way: it will not be long. Otherwise whoever waits does so for a chunk.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// The next bytes. Those handed out before are given back: they must have been sent.
    ///
    /// # Errors
    /// What the driver says; nothing more comes then.
    #[allow(clippy::should_implement_trait, reason = "it may have to wait")]
    pub fn next(&mut self) -> Result<Next, Error> {
        self.current = None;
        self.fill()?;
        match self.copying.front() {
            None if self.plan.0.is_empty() => Ok(Next::End),
            Some((copying, _)) if copying.is_done()? => {
                let Some((copying, len)) = self.copying.pop_front() else { return Ok(Next::Wait) };
                self.current = copying.finish();
                // Beside the one that is sent now.
                self.fill()?;
                let base = self.current.as_ref().map_or(std::ptr::null_mut(), Chunk::base);
                Ok(Next::Bytes { base, len })
            }
            _ => Ok(Next::Wait),
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        while self.copying.len() + usize::from(self.current.is_some()) < DEPTH && !self.plan.0.is_empty() {
            let queue = &self.lane.0;
            let Some(chunk) = queue.device.pool().take(Way::ToHost)? else { return Ok(()) };
            let (segments, bytes) = self.plan.take(chunk.len());
            let copying = Copying::start(queue, Way::ToHost, chunk, &self.memory, &segments)?;
            self.copying.push_back((copying, bytes));
        }
        Ok(())
    }
}

/// What an [`Incoming`] has for its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Room for bytes; there until the next call, which says that they are filled.
    Bytes {
        /// The first.
        base: *mut u8,
        /// How many.
        len: usize,
    },
    /// None yet: ask again.
    Wait,
    /// All have been taken; [`Incoming::has_landed`] says when they are on the device.
    Full,
}

/// Bytes on their way from the wire to a device.
pub struct Incoming {
    lane: Lane,
    memory: DeviceMemory,
    plan: Plan,
    copying: VecDeque<Copying>,
    /// Handed out to be filled, and where its bytes go.
    current: Option<(Chunk, Vec<Segment>)>,
    /// Copies were begun and nothing says how they end.
    in_doubt: bool,
}

// SAFETY: its pointers are addresses of chunks that it holds.
unsafe impl Send for Incoming {}

impl Incoming {
    /// Bytes that [`space`](Self::space) has not handed out room for.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.plan.bytes()
    }

    /// As [`Outgoing::is_copying`].
    #[must_use]
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Gives up: no more is copied, and what was begun is waited for, a bounded time. False where that was in vain: bytes may land yet.
    #[must_use]
    pub fn settle(mut self) -> bool {
        self.copying.drain(..).fold(!self.in_doubt, |all, copying| copying.settle() && all)
    }

    /// Room for the next bytes. What was handed out before has been filled, and goes to the device.
    ///
    /// # Errors
    /// What the driver says; nothing more lands then.
    pub fn space(&mut self) -> Result<Space, Error> {
        let queue = &self.lane.0;
        if let Some((chunk, segments)) = self.current.take() {
            let begun = Copying::start(queue, Way::ToDevice, chunk, &self.memory, &segments);
            self.in_doubt |= begun.is_err();
            self.copying.push_back(begun?);
        }
        if self.plan.0.is_empty() {
            return Ok(Space::Full);
        }
        self.has_landed()?;
        if self.copying.len() >= DEPTH {
            return Ok(Space::Wait);
        }
        let Some(chunk) = self.lane.0.device.pool().take(Way::ToDevice)? else { return Ok(Space::Wait) };
        let (segments, len) = self.plan.take(chunk.len());
        let base = chunk.base();
        self.current = Some((chunk, segments));
        Ok(Space::Bytes { base, len })
    }

    /// Whether everything that was filled is on the device, for every kernel that is launched from here on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn has_landed(&mut self) -> Result<bool, Error> {
        while let Some(first) = self.copying.front() {
            if !first.is_done()? {
                return Ok(false);
            }
            drop(self.copying.pop_front().and_then(Copying::finish));
        }
        Ok(self.current.is_none() && self.plan.0.is_empty())
    }
}
