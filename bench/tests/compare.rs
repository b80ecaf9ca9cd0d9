//! The comparison between two real processes. Its own main: started with `far-side`, this program is the other one.

use std::process::ExitCode;

use clap::Parser;
use kvrail_bench::compare::{self, Options};
use kvrail_bench::far::{self, BenchError, FarSide, Wire};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    options: Options,
}

fn options(line: &str) -> Options {
    Command::parse_from(std::iter::once("bench").chain(line.split_whitespace())).options
}

fn far_command() -> FarSide {
    let program = std::env::current_exe().expect("this program");
    FarSide::Start { program, args: vec!["far-side".into()] }
}

/// Both transports move every byte; the report has all its parts, and expectations are judged.
fn a_small_run_verifies_every_byte_and_reports() {
    let options = options(
        "--blocks 1000 --block-bytes 4096 --rounds 2 --batch 5000 --verify --expect 0.000001 --expect cpu=1000000 \
         --expect tcp=1000000",
    );
    let report = compare::run(&options, &far_command()).expect("a report");
    let judged: Vec<_> = report.pairs.iter().filter(|pair| pair.judged).map(|pair| pair.transport).collect();
    assert_eq!(judged, [Wire::Tcp, Wire::Shm]);
    // Where the engine copies with several threads, one thread is beside it as well.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(report.pairs.len(), if cores > 1 { 3 } else { 2 });
    for pair in &report.pairs {
        assert!(pair.kept >= 1 && pair.kept + pair.discarded >= 2, "{pair:?}");
        // Two contenders a pair, each with all its blocks looked at.
        assert_eq!(pair.blocks_verified, 2 * 1000 * (pair.kept + pair.discarded));
        assert!(pair.gb_per_s.iter().all(|i| i.median > 0.0) && pair.cpu_s_per_gb.iter().all(|i| i.median > 0.0));
    }
    assert!(report.batches.iter().all(|b| b.descriptors == 5000 && b.submit_ns > 0.0 && b.total_ns >= b.submit_ns));
    assert_eq!(report.missed.len(), 1, "{:?}", report.missed);
    assert!(report.missed[0].starts_with("tcp:"), "{:?}", report.missed);
}

/// Settings that make no sense are refused before anything is started.
fn senseless_settings_are_refused() {
    for line in ["--blocks 0", "--block-bytes 12", "--rounds 0", "--blocks 10 --batch 1000000", "--blocks 100000000"] {
        let error = compare::run(&options(line), &far_command()).expect_err(line);
        assert!(matches!(error, BenchError::Setting(_)), "{line}: {error}");
    }
}

/// A far side that is none ends the bench with an error, not with a hang.
fn a_far_side_that_says_nothing_is_an_error() {
    let silent = FarSide::Start { program: "true".into(), args: Vec::new() };
    let error = compare::run(&options("--blocks 10 --batch 0"), &silent).expect_err("no far side");
    assert!(matches!(error, BenchError::Far(_)), "{error}");
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("far-side") {
        return far::far_side().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let tests: [(&str, fn()); 3] = [
        ("a_small_run_verifies_every_byte_and_reports", a_small_run_verifies_every_byte_and_reports),
        ("senseless_settings_are_refused", senseless_settings_are_refused),
        ("a_far_side_that_says_nothing_is_an_error", a_far_side_that_says_nothing_is_an_error),
    ];
    println!("\nrunning {} tests", tests.len());
    for (name, test) in tests {
        // A failed assertion ends the program with a message and a status that cargo reports.
        test();
        println!("test {name} ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n", tests.len());
    ExitCode::SUCCESS
}
