//! TCP over several rails: they carry together what plain sockets carry on the same links, and a slow one does not hold
//! up a fast one.
//!
//! Two hosts out of network namespaces, rails of 250 Mbit/s; in turns the engine and plain sockets, one connection a rail,
//! each with its share of the blocks. The quick tier moves and checks bytes over two rails and judges no clock.

pub mod fabric;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use fabric::{Fabric, Host};

use super::python::output;
use super::{Findings, Setting, Tier};
use crate::compare::{Pair, Report};

/// Throughput over equal rails against plain sockets on the same links, at least.
const EQUAL_FLOOR: f64 = 0.98;
/// Time over unequal rails against what both would take together at the speed that plain sockets find on each, at most.
const UNEQUAL_CEILING: f64 = 1.08;
/// Mbit/s of a rail.
const RATE: u32 = 250;
/// Mbit/s of the slow one of two.
const SLOW: u32 = 60;
/// Bytes of a block.
const BLOCK: usize = 32 << 10;
/// Blocks that a rail of [`RATE`] moves in two seconds.
const BLOCKS_A_RAIL: usize = 2048;
/// Calm rounds behind every ratio.
const ROUNDS: usize = 9;

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    tokio::task::spawn_blocking(move || {
        let mut findings = Findings::default();
        if let Err(why) = Fabric::new(&[RATE]) {
            findings.skip(format!("all of it: two hosts out of network namespaces cannot be made here: {why}"));
            return findings;
        }
        if let Err(error) = measure(&setting, &mut findings) {
            findings.failure(error);
        }
        findings
    })
    .await
    .unwrap_or_default()
}

fn measure(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    if setting.tier == Tier::Quick {
        let pair = compare(setting, &[RATE; 2], BLOCKS_A_RAIL / 4, 2)?;
        findings.figure("2 rails", told(&pair));
        return Ok(());
    }
    let mut alone = 0.0;
    for rails in [1, 2, 4, 8] {
        let pair = compare(setting, &vec![RATE; rails], BLOCKS_A_RAIL * rails, ROUNDS)?;
        findings.figure(format!("{rails} × {RATE} Mbit/s"), told(&pair));
        let ratio = pair.ratio.median;
        findings.check(
            ratio >= EQUAL_FLOOR,
            format!("{rails} rails carry {ratio:.3} of what plain sockets do, {EQUAL_FLOOR} promised"),
        );
        if rails == 1 {
            alone = pair.gb_per_s[1].median;
        }
    }
    let slow = compare(setting, &[SLOW], BLOCKS_A_RAIL / 4, ROUNDS)?;
    findings.figure(format!("1 × {SLOW} Mbit/s"), told(&slow));
    let both = compare(setting, &[RATE, SLOW], BLOCKS_A_RAIL, ROUNDS)?;
    findings.figure(format!("{RATE} and {SLOW} Mbit/s"), told(&both));
    let stretch = (alone + slow.gb_per_s[1].median) / both.gb_per_s[0].median;
    findings.figure("time over the unequal two, to the ideal", format!("{stretch:.3}"));
    findings.check(
        stretch <= UNEQUAL_CEILING,
        format!("unequal rails took {stretch:.3} of the ideal time, {UNEQUAL_CEILING} promised"),
    );
    Ok(())
}

fn told(pair: &Pair) -> String {
    let [ours, theirs] = &pair.gb_per_s;
    format!(
        "{:.1} MB/s, {:.3} [{:.3}, {:.3}] of plain sockets' {:.1}, CPU {:.2} of theirs ({} rounds, −{}; {} blocks verified)",
        ours.median * 1e3,
        pair.ratio.median,
        pair.ratio.low,
        pair.ratio.high,
        theirs.median * 1e3,
        pair.cpu_ratio.median,
        pair.kept,
        pair.discarded,
        pair.blocks_verified,
    )
}

/// The engine beside plain sockets between two hosts with these rails.
fn compare(setting: &Setting, mbits: &[u32], blocks: usize, rounds: usize) -> Result<Pair, String> {
    let fabric = Fabric::new(mbits)?;
    let receiver = Receiver::start(setting, &fabric)?;
    let mut near = fabric.command(Host::A, &setting.binary);
    near.args(["bench", "compare", "--json", "--verify", "--batch", "0", "--transports", "tcp"]);
    near.args(["--to", &receiver.address, "--rails", &fabric.rails(Host::A), "--block-bytes", &BLOCK.to_string()]);
    near.args(["--blocks", &blocks.to_string(), "--rounds", &rounds.to_string(), "--seed", &setting.seed.to_string()]);
    let (ok, text) = output(&near)?;
    if !ok {
        return Err(format!("{near:?}: {text}"));
    }
    let report: Report = serde_json::from_str(&text).map_err(|e| format!("{near:?}: {e}: {text}"))?;
    report.pairs.into_iter().next().ok_or_else(|| "a report without a pair".into())
}

/// The bench that receives, ended when it is dropped.
struct Receiver {
    child: Child,
    address: String,
}

impl Receiver {
    fn start(setting: &Setting, fabric: &Fabric) -> Result<Self, String> {
        let address = fabric.rail(Host::B, 0);
        let listen = format!("{}:0", address.split('/').next().unwrap_or_default());
        let mut command = fabric.command(Host::B, &setting.binary);
        command.args(["bench", "transfer", "--serve", &listen, "--rails", &fabric.rails(Host::B)]);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let address = line.trim().strip_prefix("serving at ").map(str::to_owned);
        let mut receiver = Self { child, address: String::new() };
        receiver.address = address.ok_or_else(|| format!("{command:?} said {line:?}: {read:?}"))?;
        Ok(receiver)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
