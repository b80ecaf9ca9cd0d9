//! Many senders into one slow link: it stays full, is shared by weight, a short transfer passes, and who ignores its credit is cut.
//!
//! Over TCP nine hosts out of network namespaces, joined by a switch whose port to the receiver is slow. Over RDMA five hosts of the
//! soft-RoCE machine, where that port has 128 KiB of buffer. Either is measured by `transfer/tests/incast_speed.rs` and judged here; the
//! quick tier judges no clock.

use super::guest::{self, Built, Guest, path};
use super::rails::fabric::Switch;
use super::{Findings, Setting, Tier, python};

/// Hosts that send over TCP, and what the receiver's link carries, Mbit/s.
const SENDERS: usize = 8;
const RATE: u32 = 250;
/// Rounds of the full tier.
const ROUNDS: u32 = 5;

/// A number that was measured, and what is promised of it.
enum Bound {
    Least(f64),
    Most(f64),
    /// Of another number, so many times, and one more.
    MostOf(&'static str, f64, &'static str),
    /// Told only.
    Told,
}
use Bound::{Least, Most, MostOf, Told};

const TCP: [(&str, Bound); 18] = [
    ("tcp engine MB/s", Told),
    ("tcp plain sockets MB/s", Told),
    ("tcp ratio", Least(0.98)),
    ("tcp jain", Least(0.95)),
    ("tcp short alone ms", Told),
    ("tcp short p50 ms", Told),
    ("tcp slice ms", Told),
    ("tcp short p99 ms", MostOf("tcp short alone ms", 2.0, "tcp slice ms")),
    ("tcp 256 KiB p50 ms", Told),
    ("tcp with shorts MB/s", Told),
    ("tcp weight 1", Least(0.9)),
    ("tcp weight 1", Most(1.1)),
    ("tcp weight 2", Least(0.9)),
    ("tcp weight 2", Most(1.1)),
    ("tcp weight 4", Least(0.9)),
    ("tcp weight 4", Most(1.1)),
    ("tcp weights MB/s", Told),
    ("tcp cheat cut after ms", Most(100.0)),
];
/// Others are unharmed after that; the measurement begins with the cut.
const TCP_CHEAT: [(&str, Bound); 2] =
    [("tcp beside a cheat ratio", Least(0.95)), ("tcp beside a cheat jain", Least(0.95))];
const RDMA: [(&str, Bound); 10] = [
    ("rdma engine MB/s", Told),
    ("rdma two in flight MB/s", Told),
    ("rdma two in flight p99 ms", Told),
    ("rdma ratio", Least(0.97)),
    ("rdma drops after the first round trip", Most(0.0)),
    ("rdma p50 post to visible ms", Told),
    ("rdma p99 post to visible ms", Most(10.0)),
    ("rdma p99 from submit, of fair", Most(1.3)),
    ("rdma cheat cut after ms", Most(100.0)),
    ("rdma beside a cheat MB/s", Told),
];

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        if let Err(error) = check(&setting, &mut findings) {
            findings.failure(error);
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

fn check(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    // What is measured is a release build.
    let built = guest::build(setting, "kvrail-transfer", &["--release"])?;
    match Switch::new(SENDERS + 1, RATE) {
        Ok(switch) => over_tcp(setting, &built, &switch, findings)?,
        Err(why) => {
            findings.skip(format!("the part over TCP: hosts out of network namespaces cannot be made here: {why}"))
        }
    }
    match Guest::missing(setting) {
        None => over_rdma(setting, &built, findings),
        Some(why) => {
            findings.skip(format!("the part over RDMA: the soft-RoCE machine cannot be had here: {why}"));
            Ok(())
        }
    }
}

fn rounds(setting: &Setting) -> String {
    if setting.tier == Tier::Quick { 1 } else { ROUNDS }.to_string()
}

fn over_tcp(setting: &Setting, built: &Built, switch: &Switch, findings: &mut Findings) -> Result<(), String> {
    let mut command = std::process::Command::new(path(built, "incast_speed")?);
    command.args(["--ignored", "--exact", "over_tcp", "--nocapture"]);
    command.env("KVRAIL_INCAST", switch.hosts()).env("KVRAIL_ROUNDS", rounds(setting));
    let (ok, text) = python::output(&command)?;
    findings.check(ok, &text);
    judge(setting, &text, TCP.iter().chain(&TCP_CHEAT), findings);
    Ok(())
}

fn over_rdma(setting: &Setting, built: &Built, findings: &mut Findings) -> Result<(), String> {
    let rounds = rounds(setting);
    let said = Guest::new(setting, 5, 1).tests(
        path(built, "incast_speed")?,
        &["--exact", "over_rdma"],
        &[("KVRAIL_ROUNDS", &rounds)],
    )?;
    findings.check(said.ok, &said.text);
    judge(setting, &said.text, RDMA.iter(), findings);
    Ok(())
}

/// Holds what was measured against what is promised. A number that is missing is a failure, too.
fn judge<'a>(
    setting: &Setting,
    text: &str,
    bounds: impl Iterator<Item = &'a (&'a str, Bound)>,
    findings: &mut Findings,
) {
    let value = |name: &str| -> Option<f64> {
        text.lines()
            .find_map(|line| line.split_once("value ")?.1.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
    };
    for (name, bound) in bounds {
        let Some(found) = value(name) else {
            findings.failure(format!("{name} was not measured"));
            continue;
        };
        let (holds, promised) = match bound {
            Told => (true, String::new()),
            Least(least) => (found >= *least, format!("{least} at least")),
            Most(most) => (found <= *most, format!("{most} at most")),
            MostOf(other, times, more) => {
                let most = value(other).zip(value(more)).map_or(0.0, |(other, more)| other * times + more);
                (found <= most, format!("{most:.2} at most"))
            }
        };
        let told = if promised.is_empty() { format!("{found:.3}") } else { format!("{found:.3} ({promised})") };
        findings.figure(*name, told);
        findings.check(holds || setting.tier == Tier::Quick, format!("{name} is {found:.3}, promised is {promised}"));
    }
}
