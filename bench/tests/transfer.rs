//! The sweep between real processes. Its own main: started with `far-side` this program is a peer, with `serve` one that serves.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use clap::Parser;
use kvrail_bench::far::{self, BenchError, FarSide, Wire};
use kvrail_bench::suites::rails::fabric::{Fabric, Host};
use kvrail_bench::transfer::{self, Missed, Options, Report};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn options(line: &str) -> Options {
    Line::parse_from(std::iter::once("bench").chain(line.split_whitespace())).options
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

fn far_command() -> FarSide {
    let program = std::env::current_exe().expect("this program");
    FarSide::Start { program, args: vec!["far-side".into()] }
}

fn try_run(line: &str) -> Result<Report, BenchError> {
    transfer::run(&options(line), &far_command())
}

fn run(line: &str) -> Report {
    try_run(line).unwrap_or_else(|error| panic!("{line}: {error:?}"))
}

/// Every cell moves what it says, both ways over both transports, and every byte is looked at when its receiver is told.
fn a_sweep_moves_and_verifies_every_byte() {
    let report = run(
        "--block 4K,20000 --batch 1,9 --op write,read --in-flight 2 --threads 2 --streams 2 --pool 1M --count 40 --warm-up 20ms \
         --transports tcp,shm --verify",
    );
    assert_eq!(report.cells.len(), 2 * 2 * 2 * 2);
    for figures in &report.cells {
        let cell = &figures.cell;
        assert_eq!((figures.transfers, figures.failed), (40, 0), "{cell}");
        assert_eq!(figures.bytes, 40 * cell.batch as u64 * cell.block_bytes, "{cell}");
        assert_eq!(figures.blocks_verified, 40 * cell.batch as u64, "{cell}");
        assert!(figures.gb_per_s > 0.0 && figures.cpu_s_per_gb > 0.0, "{cell}");
        assert_eq!([figures.post, figures.wire, figures.visible].map(|times| times.samples), [40; 3], "{cell}");
        assert!(figures.visible.p50_us >= figures.post.p50_us && figures.post.p50_us > 0.0, "{figures:?}");
        assert_eq!(figures.rails.iter().map(|rail| rail.bytes).sum::<u64>(), figures.bytes, "{figures:?}");
    }
    let text = report.text(true);
    assert!(text.contains("tcp write") && text.contains("shm read") && text.contains("none wrong"), "{text}");
    let json = serde_json::to_string(&report).expect("JSON");
    assert_eq!(serde_json::from_str::<Report>(&json).expect("its own JSON").cells.len(), 16);
}

/// For a time instead of a count, and with what lies there looked at afterwards.
fn a_cell_of_time_ends_and_is_looked_at_afterwards() {
    let report = run("--block 32K --batch 4 --pool 2M --seconds 300ms --warm-up 0 --op write,read --transports tcp");
    for figures in &report.cells {
        assert!(figures.transfers > 0 && figures.seconds >= 0.25, "{figures:?}");
        assert!(figures.blocks_verified > 0 && figures.blocks_verified <= 64, "{figures:?}");
        assert!(figures.timeline.gb_per_s.len() >= 2 && figures.timeline.events.is_empty(), "{figures:?}");
    }
}

/// All members move what the pattern has them move, in both roles at once.
fn every_flow_of_a_pattern_moves_its_bytes() {
    for (pattern, peers, flows) in
        [("many-to-one", 3, 3), ("one-to-many", 2, 2), ("all-to-all", 2, 6), ("pairwise", 3, 2)]
    {
        for op in ["write", "read"] {
            let report = run(&format!(
                "--pattern {pattern} --peers {peers} --op {op} --block 16K --batch 4 --in-flight 2 --pool 512K --count 20 --warm-up 0 \
                 --transports tcp --verify"
            ));
            let figures = &report.cells[0];
            assert_eq!((report.flows.len(), figures.transfers), (flows, 20 * flows as u64), "{pattern} {op}");
            assert!(figures.flow_gb_per_s.iter().all(|rate| *rate > 0.0) && figures.fairness > 0.0, "{figures:?}");
            assert_eq!(figures.blocks_verified, 80 * flows as u64, "{pattern} {op}");
        }
    }
}

/// One flipped bit among many transfers ends the bench, whether each transfer is looked at or what lies there in the end.
fn a_flipped_bit_is_found() {
    for how in ["--verify", ""] {
        let line = format!(
            "--block 64K --batch 4 --pool 1M --count 30 --warm-up 0 --transports tcp --fault slices:flip=5 {how}"
        );
        let error = try_run(&line).expect_err(&line);
        assert!(matches!(error, BenchError::Wrong { wrong: 1.., .. }), "{line}: {error:?}");
    }
}

/// What is dropped on the way is sent again, told, and right.
fn dropped_slices_are_sent_again_and_counted() {
    let report = run(
        "--block 256K --batch 8 --pool 4M --count 60 --warm-up 0 --transports tcp --fault slices:drop=60,seed=3 --verify",
    );
    let figures = &report.cells[0];
    assert!(figures.retried_bytes > 0 && figures.failed == 0 && figures.transfers == 60, "{figures:?}");
}

/// A peer that stands still and goes on is seen on the timeline, and the bench ends with figures.
fn a_stopped_peer_is_on_the_timeline() {
    let report =
        run("--block 64K --batch 4 --pool 4M --seconds 2 --warm-up 100ms --transports tcp --fault peer:1:stop@500ms \
         --fault peer:1:continue@1500ms");
    let timeline = &report.cells[0].timeline;
    let told: Vec<&str> = timeline.events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(told, ["peer 1 stopped (SIGSTOP)", "peer 1 continued (SIGCONT)"]);
    assert!(timeline.gb_per_s[7..14].iter().all(|rate| *rate == 0.0), "nothing landed meanwhile: {timeline:?}");
    assert!(timeline.gb_per_s[..4].iter().any(|rate| *rate > 0.0), "{timeline:?}");
    assert!(timeline.gb_per_s[15..].iter().any(|rate| *rate > 0.0), "it went on: {timeline:?}");
    assert!(report.text(false).contains("peer 1 stopped"));
}

/// A peer that is killed costs its own flows alone.
fn a_killed_peer_leaves_the_others_alone() {
    let report = run(
        "--pattern one-to-many --peers 2 --block 64K --batch 4 --pool 4M --seconds 1500ms --warm-up 100ms --transports tcp \
         --fault peer:2:kill@500ms",
    );
    let figures = &report.cells[0];
    assert!(figures.failed > 0 && figures.first_failure.is_some(), "{figures:?}");
    assert!(figures.flow_gb_per_s[0] > 0.0 && figures.timeline.events.len() == 1, "{figures:?}");
}

/// A floor is judged by what was measured, and told by transport.
fn a_missed_floor_is_told() {
    let report = run(
        "--block 64K --pool 1M --count 5 --warm-up 0 --transports tcp --line-rate 1GB/s --expect 1kB/s --expect tcp=1000000GB/s \
         --expect shm=1kB/s --expect 0.0001line",
    );
    assert!(
        matches!(report.missed[..], [Missed::Slower { wire: Wire::Tcp, .. }, Missed::NotMeasured { wire: Wire::Shm }]),
        "{:?}",
        report.missed
    );
}

/// What cannot be is refused by the flag that it hangs on, before anything is started.
fn senseless_settings_are_refused_by_their_flag() {
    for (line, flag) in [
        ("--expect 0.9line", "expect"),
        ("--pool 1G --in-flight 100000 --block 1G --batch 1", "in-flight"),
        ("--block 1G --batch 1000", "pool"),
        ("--rails 127.0.0.1 --block 4K --fault rail:0:down@500ms", "fault"),
        ("--rails 192.0.2.1 --block 4K --fault rail:0:down@500ms", "fault"),
    ] {
        match try_run(line) {
            Err(BenchError::Setting(error)) => assert_eq!(error.flag, flag, "{line}: {error}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// RDMA without the device that was asked for says what the engine says, and nothing takes its place.
fn rdma_without_its_device_is_the_engines_error() {
    let error = try_run("--transports rdma --rdma-rails nosuch0 --block 4K").expect_err("no such device");
    let mut causes = vec![error.to_string()];
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    assert!(causes.join(": ").contains("RDMA"), "{causes:?}");
}

/// A far side that is none ends the bench with an error, not with a hang.
fn a_far_side_that_says_nothing_is_an_error() {
    let silent = FarSide::Start { program: "true".into(), args: Vec::new() };
    let error = transfer::run(&options("--block 4K --transports tcp"), &silent).expect_err("no far side");
    assert!(matches!(error, BenchError::Far(_)), "{error}");
}

/// A program that serves, ended when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that serves at an address, over rails; where.
fn serve(mut program: Command, listen: &str, rails: &str) -> (Server, String) {
    let mut child = program.args(["serve", listen, rails]).stdout(Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving at ").expect("where it serves").to_owned();
    (Server(child), address)
}

/// Peers that serve are told by address, over several rails, and one run after the other.
fn peers_that_serve_are_used_over_rails() {
    let (servers, addresses): (Vec<Server>, Vec<String>) =
        (0..2).map(|_| serve(this_program(), "127.0.0.1:0", "")).unzip();
    let to = addresses.join(",");
    for pattern in ["many-to-one", "all-to-all"] {
        let report = run(&format!(
            "--to {to} --pattern {pattern} --rails 127.0.0.1,127.0.0.2 --streams 4 --block 64K --batch 8 --pool 4M --count 40 --warm-up 0 \
             --verify"
        ));
        let figures = &report.cells[0];
        assert_eq!(figures.transfers, 40 * report.flows.len() as u64);
        assert_eq!(figures.rails.len(), 2, "{figures:?}");
        assert!(figures.rails.iter().all(|rail| rail.bytes > 0), "{figures:?}");
    }
    drop(servers);
    let error = try_run(&format!("--to {} --block 4K", addresses[0])).expect_err("nobody serves there any more");
    assert!(matches!(&error, BenchError::Far(what) if what.contains(&addresses[0])), "{error}");
}

/// A rail that goes down costs no transfer: the other one carries what it had, and it comes back. Between two hosts out of
/// network namespaces, where the system lets us make them.
fn a_rail_that_goes_down_costs_no_transfer() {
    let fabric = match Fabric::new(&[400, 400]) {
        Ok(fabric) => fabric,
        Err(why) => return println!("not looked at, no network namespaces here: {why}"),
    };
    let program = std::env::current_exe().expect("this program");
    let listen = fabric.rail(Host::B, 0).replace("/24", ":0");
    let (_server, to) = serve(fabric.command(Host::B, &program), &listen, &fabric.rails(Host::B));
    let mut near = fabric.command(Host::A, &program);
    near.args([
        "near",
        "--to",
        &to,
        "--rails",
        &fabric.rails(Host::A),
        "--block",
        "64K",
        "--batch",
        "4",
        "--pool",
        "4M",
    ]);
    near.args(["--seconds", "4", "--warm-up", "300ms", "--fault", "rail:1:down@1s", "--fault", "rail:1:up@2500ms"]);
    let output = near.output().expect("the near side");
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let figures = &report.cells[0];
    assert_eq!((figures.failed, figures.timeline.events.len()), (0, 2), "{figures:?}");
    assert!(figures.rails.iter().all(|rail| rail.bytes > 0), "{figures:?}");
    let landed: f64 = figures.timeline.gb_per_s[16..24].iter().sum();
    assert!(landed > 0.0, "the other rail carried on: {:?}", figures.timeline);
    // The rail that the talk goes over is not one to take down.
    let mut near = fabric.command(Host::A, &program);
    near.args([
        "near",
        "--to",
        &to,
        "--rails",
        &fabric.rails(Host::A),
        "--block",
        "64K",
        "--fault",
        "rail:0:down@500ms",
    ]);
    let output = near.output().expect("the near side");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--fault rail 0"), "{said}");
}

/// Runs the options and prints the report as JSON.
fn near(line: &str) -> ExitCode {
    match try_run(line) {
        Ok(report) => println!("{}", serde_json::to_string(&report).expect("JSON")),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("far-side") => return far::far_side().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Some("near") => return near(&words[1..].join(" ")),
        Some("serve") => {
            let listen = words[1].parse().expect("an address");
            let rails = words[2].split(',').filter(|rail| !rail.is_empty()).map(|rail| rail.parse().expect("a rail"));
            return far::serve(listen, &rails.collect::<Vec<_>>(), &[])
                .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
        _ => {}
    }
    let tests: [(&str, fn()); 13] = [
        ("a_sweep_moves_and_verifies_every_byte", a_sweep_moves_and_verifies_every_byte),
        ("a_cell_of_time_ends_and_is_looked_at_afterwards", a_cell_of_time_ends_and_is_looked_at_afterwards),
        ("every_flow_of_a_pattern_moves_its_bytes", every_flow_of_a_pattern_moves_its_bytes),
        ("a_flipped_bit_is_found", a_flipped_bit_is_found),
        ("dropped_slices_are_sent_again_and_counted", dropped_slices_are_sent_again_and_counted),
        ("a_stopped_peer_is_on_the_timeline", a_stopped_peer_is_on_the_timeline),
        ("a_killed_peer_leaves_the_others_alone", a_killed_peer_leaves_the_others_alone),
        ("a_missed_floor_is_told", a_missed_floor_is_told),
        ("senseless_settings_are_refused_by_their_flag", senseless_settings_are_refused_by_their_flag),
        ("rdma_without_its_device_is_the_engines_error", rdma_without_its_device_is_the_engines_error),
        ("a_far_side_that_says_nothing_is_an_error", a_far_side_that_says_nothing_is_an_error),
        ("peers_that_serve_are_used_over_rails", peers_that_serve_are_used_over_rails),
        ("a_rail_that_goes_down_costs_no_transfer", a_rail_that_goes_down_costs_no_transfer),
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
