//! Batches of copies between pinned host memory and a device, and the hold on what they touch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Device, Queue};
use crate::driver::{CopyRange, Way};
use crate::error::Error;
use crate::event::Event;
use crate::memory::DeviceMemory;
use crate::staging::{Chunk, Segment};

/// How long somebody who has to wait for a copy does. A chunk takes well below a millisecond; past this the device hangs.
pub(crate) const OVERDUE: Duration = Duration::from_secs(2);
/// Between two looks of somebody who waits.
const LOOK: Duration = Duration::from_micros(20);

/// Waits until `done` says so, within [`OVERDUE`].
pub(crate) fn wait_for(mut done: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        if done()? {
            return Ok(());
        }
        if start.elapsed() >= OVERDUE {
            return Err(Error::Overdue { ms: OVERDUE.as_millis() as u64 });
        }
        std::thread::sleep(LOOK);
    }
}

/// A batch of copies on its way. It holds both ends.
///
/// Dropped before it has ended it waits. Where that is in vain (a device that hangs, or has failed so that nothing tells any more) chunk and
/// memory are leaked: what may still be written is never given to anybody else.
#[must_use = "dropping it waits"]
pub struct Copying {
    event: Option<Event>,
    /// Taken only by `finish` and `drop`.
    held: Option<(Chunk, DeviceMemory, Arc<Queue>)>,
}

impl Copying {
    /// Copies between the first bytes of `chunk` and the segments, in order. The segments must lie in `memory` and fit the chunk.
    pub(crate) fn start(
        queue: &Arc<Queue>,
        way: Way,
        chunk: Chunk,
        memory: &DeviceMemory,
        segments: &[Segment],
    ) -> Result<Self, Error> {
        let device: &Device = &queue.device;
        let mut host = chunk.base() as u64;
        let ranges: Vec<CopyRange> = segments
            .iter()
            .map(|segment| {
                let (device, at) = (segment.address.0, host);
                host += segment.len;
                let (to, from) = if way == Way::ToHost { (at, device) } else { (device, at) };
                CopyRange { to, from, len: segment.len as usize }
            })
            .collect();
        debug_assert!(host - chunk.base() as u64 <= chunk.len() as u64, "segments fit the chunk");
        // SAFETY: the chunk is ours alone and pinned; the segments lie in `memory`; both are held until the copies have ended.
        let given = unsafe { device.driver().copy(device.context(), queue.raw, way, &ranges) };
        // SAFETY: our own stream.
        let event = unsafe { device.record(queue.raw) };
        let mut copying = Self { event: None, held: Some((chunk, memory.clone(), Arc::clone(queue))) };
        match event {
            Ok(event) => copying.event = Some(event),
            // Nothing will tell when they have ended: dropping `copying` leaks.
            Err(error) => return Err(error),
        }
        // Some may have been given: dropping `copying` waits for those.
        given.map(|()| copying)
    }

    /// Whether the copies have ended.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.event.as_ref().map_or(Ok(false), Event::is_done)
    }

    /// The chunk of copies that have ended.
    pub(crate) fn finish(mut self) -> Option<Chunk> {
        debug_assert!(matches!(self.is_done(), Ok(true)));
        self.held.take().map(|(chunk, ..)| chunk)
    }
}

impl Copying {
    /// Waits for the end, or leaks; true if they have ended.
    pub(crate) fn settle(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        let Some(held) = self.held.take() else { return true };
        let ended = self.event.as_ref().is_some_and(|event| wait_for(|| event.is_done()).is_ok());
        if !ended {
            held.0.leak();
            std::mem::forget((held.1, held.2));
        }
        ended
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.end();
    }
}
