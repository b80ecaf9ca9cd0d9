//! RDMA for real: the verbs layer and the rdma transport in the soft-RoCE machine, where queue pairs, one-sided writes and
//! completion errors are the kernel's own.

use super::guest::{self, Built, Guest, path};
use super::{Findings, Setting, Tier, abi};

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    guest::suite(setting, check).await
}

fn check(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let devices = guest::build(setting, "kvrail-verbs", &[])?;
    let said = Guest::new(setting, 2, 2).run(&[path(&devices, "device")?], &[])?;
    let (passed, all) = said.tests();
    let skipped = said.text.matches("SKIPPED").count();
    findings.figure("verbs layer", format!("{passed} of {all} tests, {skipped} of what the device has not"));
    findings.check(said.ok && passed + skipped == all && passed > 10, format!("the verbs layer: {}", said.text));

    let engine = guest::build(setting, "kvrail-transfer", &[])?;
    let links: &[u8] = if setting.tier == Tier::Quick { &[1] } else { &[1, 2, 4] };
    for rails in links {
        tests(&Guest::new(setting, 2, *rails), &engine, "conformance", &["rdma::"], &[], findings)?;
    }
    microbenchmark(setting, findings)?;
    if setting.tier == Tier::Full {
        let guards = [("KVRAIL_TEST_GUARDS", "1")];
        tests(&Guest::new(setting, 2, 2), &engine, "conformance", &["rdma::"], &guards, findings)?;
        tests(&Guest::new(setting, 2, 1), &engine, "links", &["sixty_four"], &[], findings)?;
        for binary in ["faults", "late_write", "processes"] {
            tests(&Guest::new(setting, 2, 2), &engine, binary, &["rdma::"], &[], findings)?;
        }
        abi::check(setting, findings)?;
    }
    Ok(())
}

/// `kvrail bench transfer` between two processes over all NICs that there are, every byte looked at when its receiver is told.
fn microbenchmark(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let binary = setting.binary.to_str().ok_or("the binary's path is no text")?;
    let flags = "bench transfer --transports rdma --block 64K,1M --batch 4 --count 20 --pool 16M --verify";
    let command: Vec<&str> = std::iter::once(binary).chain(flags.split(' ')).collect();
    let said = Guest::new(setting, 2, 2).run(&command, &[])?;
    let proof = said.text.lines().find(|line| line.contains("blocks looked at")).unwrap_or_default();
    findings.figure("kvrail bench transfer over rdma", proof);
    findings.check(said.ok && proof.contains("none wrong"), format!("kvrail {flags}: {}", said.text));
    Ok(())
}

/// Tests of one binary, all of which must pass.
///
/// # Errors
/// If there is no such binary, or the machine cannot be started.
pub fn tests(
    guest: &Guest<'_>,
    built: &Built,
    name: &str,
    args: &[&str],
    env: &[(&str, &str)],
    findings: &mut Findings,
) -> Result<(), String> {
    let said = guest.tests(path(built, name)?, args, env)?;
    let (passed, all) = said.tests();
    let nics = [guest.nics()].into_iter().chain(env.iter().map(|(name, _)| (*name).into()));
    let nics = nics.collect::<Vec<String>>().join(", ");
    findings.figure(format!("{name} over {nics}"), format!("{passed} of {all} tests"));
    said.figures().for_each(|(name, value)| findings.figure(name, value));
    findings.check(said.ok && passed == all && all > 0, format!("{name} over {nics}: {}", said.text));
    Ok(())
}
