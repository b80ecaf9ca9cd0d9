//! The safe layer on a real device: one binary, with a part that runs anywhere.
//!
//! Without an RDMA device the device tests are skipped, and it says so. A machine without one gets soft-RoCE devices from the
//! kernel's `rdma_rxe`. `KVRAIL_TEST_LINK_DOWN=1` allows the last test to take a network interface down and up again.
//!
//! | file | room |
//! |---|---|
//! | `bench` | devices, memory, connected pairs, waiting for completions |
//! | `anywhere` | what needs no device |
//! | `data` | bytes that move |
//! | `faults` | what is refused, and what a reset queue pair lets through |
//! | `windows` | memory windows of type 2 |
//! | `events` | shared queues, asynchronous events |

mod anywhere;
mod bench;
mod data;
mod events;
mod faults;
mod windows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use bench::Bench;

/// A test that could not run here says why.
type Outcome = Result<(), String>;

type Free = (&'static str, fn() -> Outcome);

type Test = (&'static str, fn(&Bench) -> Outcome);

const ANYWHERE: &[Free] = &[
    ("an absent library is a typed error that names what was tried", anywhere::absent_library),
    ("a machine without devices is an empty list or a typed error", anywhere::no_devices),
];

const ON_DEVICES: &[Test] = &[
    ("devices tell what they can do", data::attributes),
    ("a wrong step is refused before the driver is asked", faults::wrong_step),
    ("written and read bytes are the right ones", data::write_and_read),
    ("a write's immediate takes a receive and tells the bytes", data::write_immediate),
    ("several segments arrive as one piece", data::gather),
    ("inline bytes are those of the time they were pushed", data::inline),
    ("a chain goes with one post and completes with its last", data::chain),
    ("a full queue says what it took, and takes the rest later", data::full_queue),
    ("sixty-four pairs work side by side", data::many_pairs),
    ("a wrong key is refused, and what follows is flushed", faults::wrong_key),
    ("a peer without a receive is told from one that gets it late", faults::no_receive),
    ("nothing lands after a reset has returned", faults::reset_is_a_fence),
    ("a window opens its range and no more, until it is made void", windows::bound_range),
    ("a destroyed window's key is void", windows::destroyed),
    ("a region with a window does not go quietly", windows::region_in_use),
    ("a shared queue serves several pairs and tells when it runs low", events::shared_queue),
    ("a port that goes down and up is reported", events::port_down_and_up),
];

fn main() -> ExitCode {
    // As the usual harness: one word filters, flags are for that harness.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let is_wanted = |name: &str| filter.is_none_or(|word| name.contains(word.as_str()));
    let mut failed = 0;
    for (name, test) in ANYWHERE.iter().filter(|(name, _)| is_wanted(name)) {
        failed += usize::from(!run(name, test));
    }
    match Bench::find() {
        Ok(bench) => {
            println!("devices: {}", bench.describe());
            for (name, test) in ON_DEVICES.iter().filter(|(name, _)| is_wanted(name)) {
                failed += usize::from(!run(name, || test(&bench)));
            }
        }
        Err(why) => println!("SKIPPED: {} device tests, for there is no RDMA device: {why}", ON_DEVICES.len()),
    }
    if failed > 0 {
        println!("{failed} tests failed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(name: &str, test: impl FnOnce() -> Outcome) -> bool {
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(test));
    let told = match &outcome {
        Ok(Ok(())) => "ok".to_owned(),
        Ok(Err(why)) => format!("SKIPPED: {why}"),
        Err(_) => "FAILED".to_owned(),
    };
    println!("test {name} ... {told} ({} ms)", started.elapsed().as_millis());
    outcome.is_ok()
}
