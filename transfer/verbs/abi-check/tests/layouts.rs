//! Every structure and constant of ours that two other crates have too is the same there.

use abi_check::{Both, HEADERS};

/// Tells what came of it, and fails if anything differs, or if hardly anything was compared.
fn judge(name: &str, both: &Both) {
    let report = both.report();
    println!(
        "figure layouts against {name}: {} structures, {} fields, {} constants equal; {} newer here, {} newer there",
        report.structures,
        report.fields,
        report.constants,
        report.newer_here.len(),
        report.newer_there.len()
    );
    report.absent.iter().for_each(|name| println!("  not declared there: {name}"));
    report.newer_here.iter().for_each(|path| println!("  newer here: {path}"));
    report.newer_there.iter().for_each(|path| println!("  newer there: {path}"));
    report.differences.iter().for_each(|what| println!("  DIFFERENT: {what}"));
    assert!(report.differences.is_empty(), "{name}: {}", report.differences.join("; "));
    assert!(report.structures >= 50 && report.fields >= 300 && report.constants >= 150, "too little was compared");
}

#[test]
fn layouts_are_those_of_rdma_sys() {
    judge(&format!("rdma-sys, of the installed headers {HEADERS}"), &abi_check::rdma_sys());
}

#[test]
fn layouts_are_those_of_ibverbs_sys() {
    judge("ibverbs-sys, of rdma-core 55", &abi_check::ibverbs_sys());
}
