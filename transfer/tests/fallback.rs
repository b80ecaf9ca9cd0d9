//! Where shared memory was wanted and TCP is used, the log and the counters say so, and why (law 5).

mod common;

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use common::*;
use kvrail_transfer::*;
use tracing::field::{Field, Visit};
use tracing::span;

/// Warnings of one thread, as text.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

const LEN: usize = 1 << 20;

/// A pair that speaks `kinds`, and what moving private memory between them comes to: `None` where it is refused.
async fn move_private(kinds: &[TransportKind], direction: Direction) -> (Engine, Option<Report>, Vec<String>) {
    let start = || Engine::start(EngineConfig { transports: kinds.to_vec(), ..config(kinds[0]) }).unwrap();
    let (a, b) = (start(), start());
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let private = |engine: &Engine| engine.allocate(LEN, MemoryKind::Host).unwrap();
    let (here, there, access) = match direction {
        Direction::Write => (private(&a), region(&b, LEN, &[]), Access::Write),
        Direction::Read => (region(&a, LEN, &[]), private(&b), Access::Read),
    };
    let (lease, warnings) = (lend_all(&b, &there, access), Warnings::default());
    let submit = || a.submit(&peer, request(&here, &lease.ticket(), direction, vec![Op::contiguous(0, 0, LEN as u64)]));
    let mut report = None;
    for _ in 0..2 {
        match tracing::subscriber::with_default(warnings.clone(), submit) {
            Ok(transfer) => report = Some(within(transfer).await),
            Err(error) => assert!(matches!(error, SubmitError::PrivateMemory), "{error}"),
        }
    }
    let lines = warnings.0.lock().unwrap().clone();
    (a, report, lines)
}

#[tokio::test]
async fn private_memory_goes_over_tcp_and_that_is_said() {
    for direction in [Direction::Write, Direction::Read] {
        let (engine, report, lines) = move_private(&[TransportKind::Shm, TransportKind::Tcp], direction).await;
        let report = report.expect("it is moved");
        assert!(report.status.is_ok() && report.bytes_by_rail.iter().all(|r| r.transport == TransportKind::Tcp));
        assert_eq!(engine.stats().fallbacks.private_memory, 2, "{direction:?}: each transfer counts");
        let [line] = &lines[..] else { panic!("{direction:?}: once a session: {lines:?}") };
        for part in ["wanted=\"shm\"", "used=\"tcp\"", "private to its process"] {
            assert!(line.contains(part), "{line}");
        }
    }
}

#[tokio::test]
async fn where_tcp_is_what_was_wanted_nothing_is_said() {
    let (engine, report, lines) = move_private(&[TransportKind::Tcp], Direction::Write).await;
    assert!(report.is_some_and(|report| report.status.is_ok()) && lines.is_empty(), "{lines:?}");
    assert_eq!(engine.stats().fallbacks, Fallbacks::default());
}

#[tokio::test]
async fn where_nothing_else_is_allowed_it_is_refused() {
    let (engine, report, lines) = move_private(&[TransportKind::Shm], Direction::Write).await;
    assert!(report.is_none() && lines.is_empty(), "{lines:?}");
    assert_eq!(engine.stats().fallbacks, Fallbacks::default());
}
