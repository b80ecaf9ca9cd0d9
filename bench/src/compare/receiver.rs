//! What receives on the far side of a comparison: an engine, or plain sockets.

use super::engine::Target;
use super::raw::Sink;
use super::shape::{Check, Shape};
use crate::far::{BenchError, Place, Reply, Wire};
use crate::usage::Usage;

/// What has been started, and the bytes of its pool.
#[derive(Default)]
pub enum Receiver {
    /// Nothing yet.
    #[default]
    None,
    /// kvrail's engine.
    Engine(Box<Target>, usize),
    /// Plain sockets.
    Sockets(Sink, usize),
}

impl Receiver {
    /// An engine with a pool of `bytes` that may be written.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_engine(&mut self, transport: Wire, bytes: usize, place: &Place) -> Result<Reply, BenchError> {
        let target = Target::new(transport, bytes, place)?;
        let reply = target.reply();
        *self = Self::Engine(Box::new(target), bytes);
        Ok(reply)
    }

    /// Plain sockets that write into a pool of `bytes`.
    ///
    /// # Errors
    /// If they cannot listen.
    pub fn start_sockets(&mut self, bytes: usize, connections: usize, place: &Place) -> Result<Reply, BenchError> {
        let sink = Sink::new(bytes, connections, place)?;
        let addresses = sink.addresses()?;
        *self = Self::Sockets(sink, bytes);
        Ok(Reply::Sockets { addresses })
    }

    /// Tells that it is ready, waits for the transfer with this tag, and looks at it.
    ///
    /// # Errors
    /// If nothing was started, the transfer does not come, or nobody hears that it is expected.
    pub fn expect(
        &mut self,
        shape: &Shape,
        tag: u64,
        check: Check,
        tell: &mut dyn FnMut(&Reply) -> std::io::Result<()>,
    ) -> Result<Reply, BenchError> {
        let pool = match self {
            Self::None => return Err(BenchError::Far("nothing was started".into())),
            Self::Engine(_, bytes) | Self::Sockets(_, bytes) => *bytes,
        };
        if !shape.fits(pool) {
            return Err(BenchError::Far(format!("{shape:?} does not fit a pool of {pool} bytes")));
        }
        let moves = shape.moves();
        let mut ready = || tell(&Reply::Ready(Usage::own()));
        // Nothing stands between the word that the bytes are there and the look at them, but the reading of the clock.
        let (usage, (wrong, looked_at)) = match self {
            Self::None => return Err(BenchError::Far("nothing was started".into())),
            Self::Engine(target, _) => {
                ready()?;
                target.await_told(tag)?;
                (Usage::own(), check.wrong_blocks(shape, &moves, tag, |slot, block| target.read(slot, block)))
            }
            Self::Sockets(sink, _) => {
                let delay = sink.receive(shape, ready)?;
                let mut usage = Usage::own();
                usage.delay += delay;
                (usage, check.wrong_blocks(shape, &moves, tag, |slot, block| sink.read(slot, block)))
            }
        };
        Ok(Reply::Told { usage, wrong, looked_at })
    }
}
