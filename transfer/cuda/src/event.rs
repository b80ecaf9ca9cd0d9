//! Points in a stream's work: what the executor has computed when a transfer may begin, what a copy has moved when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::Device;
use crate::driver::{EventHandle, Stream};
use crate::error::Error;

/// A mark behind what a stream had been given. Cheap to clone.
#[derive(Clone)]
pub struct Event(Arc<Inner>);

struct Inner {
    raw: EventHandle,
    device: Device,
    /// Seen once, true for ever: an event here is recorded once.
    done: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made in `record`, destroyed once; the driver keeps what still waits for it.
        let _ = unsafe { self.device.driver().destroy_event(self.device.context(), self.raw) };
    }
}

impl Device {
    /// Marks what `stream` has been given so far: a kernel that writes a layer, say. A transfer that is submitted with the mark does not
    /// read the memory before the stream has passed it.
    ///
    /// # Safety
    /// `stream` is a live stream of this device's primary context (or 0, the default one): `torch.cuda.current_stream().cuda_stream`,
    /// say.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn record(&self, stream: Stream) -> Result<Event, Error> {
        let raw = self.driver().event(self.context())?;
        let event = Event(Arc::new(Inner { raw, device: self.clone(), done: AtomicBool::new(false) }));
        // SAFETY: the caller vouches for the stream, the event was just made.
        unsafe { self.driver().record(self.context(), raw, stream) }?;
        Ok(event)
    }
}

impl Event {
    /// Whether the stream has passed the mark. Does not block.
    ///
    /// # Errors
    /// What went wrong on the device, of whatever the stream was given: then it never will.
    pub fn is_done(&self) -> Result<bool, Error> {
        if self.0.done.load(Ordering::Acquire) {
            return Ok(true);
        }
        // SAFETY: the event lives as long as `self`.
        let done = unsafe { self.0.device.driver().query(self.0.device.context(), self.0.raw) }?;
        if done {
            self.0.done.store(true, Ordering::Release);
        }
        Ok(done)
    }

    /// Has a stream of the same driver wait for it.
    pub(crate) fn before(&self, device: &Device, stream: Stream) -> Result<(), Error> {
        // SAFETY: the event lives, and `stream` is the caller's own.
        unsafe { device.driver().wait(device.context(), stream, self.0.raw) }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("done", &self.0.done.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}
