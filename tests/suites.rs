//! The quick tiers of the promises, through the real binary: separate processes, real sockets, real clients.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kvrail_bench::suites::{self, Setting, Tier};

/// One cluster at a time: these machines are small, and a suite that starves another tells nothing.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn passes(name: &str) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_kvrail"));
    let setting = Setting {
        model: suites::model_of(&binary),
        binary,
        tier: Tier::Quick,
        seed: 1,
        root: Path::new(env!("CARGO_MANIFEST_DIR")).to_owned(),
    };
    let suite = suites::find(name).expect("a suite of that name");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let findings = runtime.block_on((suite.run)(setting));
    // What this machine does not let us look at is told above; `cargo xtask verify` does not call that a pass.
    assert!(findings.verdict() != "FAIL", "{name}: {:#?}", findings.failures);
}

#[test]
fn identity() {
    passes("identity");
}

#[test]
fn kv_moves() {
    passes("kv-moves");
}

#[test]
fn faults() {
    passes("faults");
}

#[test]
fn bad_input() {
    passes("bad-input");
}

#[test]
fn doctor() {
    passes("doctor");
}
