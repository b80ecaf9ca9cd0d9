//! The far side: a process of its own that receives.

use std::io::{BufRead, Write};

use super::BenchError;
use super::control::{Ask, Reply};
use super::engine::Target;
use super::raw::Sink;
use super::shape::{Check, Shape};
use crate::usage::Usage;

enum Receiver {
    Engine(Target),
    Sockets(Sink),
}

/// Serves the near side until its input ends. Its caller is a program that was started as the far side.
///
/// # Errors
/// If stdin or stdout break; what goes wrong in a measurement is told to the near side instead.
pub fn far_side() -> std::io::Result<()> {
    let mut receiver = None;
    for line in std::io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(ask) => answer(&mut receiver, ask),
            Err(e) => Err(BenchError::Far(e.to_string())),
        };
        tell(&reply.unwrap_or_else(|e| Reply::Failed(e.to_string())))?;
    }
    Ok(())
}

fn tell(reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

fn answer(receiver: &mut Option<Receiver>, ask: Ask) -> Result<Reply, BenchError> {
    match ask {
        Ask::Engine { transport, bytes } => {
            let target = Target::new(transport, bytes)?;
            let reply = target.reply();
            *receiver = Some(Receiver::Engine(target));
            Ok(reply)
        }
        Ask::Sockets { bytes, connections } => {
            let sink = Sink::new(bytes, connections)?;
            let address = sink.address()?;
            *receiver = Some(Receiver::Sockets(sink));
            Ok(Reply::Sockets { address })
        }
        Ask::Expect { shape, tag, check } => {
            let receiver = receiver.as_mut().ok_or_else(|| BenchError::Far("nothing was started".into()))?;
            expect(receiver, &shape, tag, check)
        }
    }
}

fn expect(receiver: &mut Receiver, shape: &Shape, tag: u64, check: Check) -> Result<Reply, BenchError> {
    let moves = shape.moves();
    let ready = || tell(&Reply::Ready(Usage::own()));
    // Nothing stands between the word that the bytes are there and the look at them, but the reading of the clock.
    let (usage, (wrong, looked_at)) = match receiver {
        Receiver::Engine(target) => {
            ready()?;
            target.await_told(tag)?;
            (Usage::own(), check.wrong_blocks(shape, &moves, tag, |slot, block| target.read(slot, block)))
        }
        Receiver::Sockets(sink) => {
            let delay = sink.receive(shape, ready)?;
            let mut usage = Usage::own();
            usage.delay += delay;
            (usage, check.wrong_blocks(shape, &moves, tag, |slot, block| sink.read(slot, block)))
        }
    };
    Ok(Reply::Told { usage, wrong, looked_at })
}
