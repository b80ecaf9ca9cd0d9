//! The table over libcuda, called: a library written in C stands in for it (`libcuda.c`), and is found as libcuda is found, by the dynamic
//! linker. It looks at arguments and at whether a context is current; it is no GPU.
//!
//! Each test runs itself again with the library's directory in `LD_LIBRARY_PATH`, which is read when a process starts.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvrail_cuda::{
    AllocationKind, Error, FlushScope, Gpus, KernelFacts, Segment, Stream, Unavailable, WritesOrdering, path,
};

/// Builds the library; none where there is no C compiler.
fn library(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libcuda.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(dir.join("libcuda.so")).args(flags).arg(source);
    match cc.status() {
        Ok(status) => {
            assert!(status.success(), "{cc:?}");
            Some(dir)
        }
        Err(error) => {
            println!("SKIPPED: no C compiler: {error}");
            None
        }
    }
}

/// Runs a test of this binary against a library.
fn with(name: &str, flags: &[&str], test: &str) {
    let Some(dir) = library(name, flags) else { return };
    let me = std::env::current_exe().unwrap();
    let output = Command::new(me)
        .args(["--exact", "--ignored", "--nocapture", test])
        .env("LD_LIBRARY_PATH", dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_driver_is_called_as_its_header_says() {
    with("whole", &["-DBATCH"], "whole");
}

#[test]
fn a_driver_without_its_newer_functions_does_what_it_can() {
    with("older", &[], "older");
}

#[test]
fn a_driver_that_lacks_a_function_or_does_not_start_is_a_typed_error() {
    with("too_old", &["-DTOO_OLD"], "too_old");
    with("no_device", &["-DNO_DEVICE"], "no_device");
}

fn round_trip() -> Gpus {
    let gpus = Gpus::open().unwrap();
    assert_eq!((gpus.count(), gpus.version().unwrap()), (2, 12_080));
    let device = gpus.device(0).unwrap();
    assert_eq!((device.name(), device.pci()), ("first", "0000:44:00.0"));
    assert_eq!(device.facts().ordering, WritesOrdering::Owner);
    assert!(device.facts().has_rdma && !device.facts().has_rdma_vmm && device.facts().flushes_by_host);
    let memory = device.allocate(300_000).unwrap();
    assert!(memory.kind() == AllocationKind::Plain && memory.facts().is_rdma_capable);
    let segments = || {
        [(200_000, 50_000), (0, 100), (1000, 99_000)]
            .map(|(at, len)| Segment { address: memory.at(at, len).unwrap(), len })
    };
    let lane = device.lane().unwrap();
    let bytes: Vec<u8> = (0..149_100).map(|n| (n % 251) as u8).collect();
    let mut given = 0;
    lane.push(&memory, segments(), |base, len| {
        // SAFETY: room of `len` bytes that is ours for the call.
        unsafe { std::ptr::copy_nonoverlapping(bytes[given..].as_ptr(), base, len) };
        given += len;
    })
    .unwrap();
    let mut got = Vec::new();
    lane.pull(&memory, segments(), |base, len| {
        // SAFETY: `len` bytes that are there for the call.
        got.extend_from_slice(unsafe { std::slice::from_raw_parts(base, len) });
    })
    .unwrap();
    assert!(got == bytes);
    // SAFETY: the default stream.
    let mark = unsafe { device.record(Stream(0)) }.unwrap();
    assert!(!mark.is_done().unwrap() && mark.is_done().unwrap() && mark.is_done().unwrap());
    memory.share_with_nic().unwrap();
    let handle = memory.ipc_handle().unwrap();
    let opened = device.open_ipc(&handle.bytes).unwrap();
    assert!(opened.range(0, 1000).is_ok());
    gpus
}

#[test]
#[ignore = "run by `a_driver_is_called_as_its_header_says`"]
fn whole() {
    let gpus = round_trip();
    let device = gpus.device(0).unwrap();
    let memory = device.allocate(20_000).unwrap();
    assert_eq!(memory.export(100, 5000).unwrap().offset, (memory.address().0 + 100) % 4096);
    memory.flush(FlushScope::Owner).unwrap();
    memory.flush(FlushScope::AllDevices).unwrap();
    let nic = path::NicFacts { takes_dma_buf: true };
    let choice = path::choose(device.facts(), memory.facts(), &nic, &KernelFacts::default());
    assert_eq!(choice.path, path::Path::DmaBuf);
}

#[test]
#[ignore = "run by `a_driver_without_its_newer_functions_does_what_it_can`"]
fn older() {
    let memory = round_trip().device(0).unwrap().allocate(20_000).unwrap();
    assert_eq!(memory.export(0, 1).unwrap_err(), Error::Unsupported { call: "cuMemGetHandleForAddressRange" });
    assert_eq!(memory.flush(FlushScope::Owner).unwrap_err(), Error::Unsupported { call: "cuFlushGPUDirectRDMAWrites" });
}

#[test]
#[ignore = "run by `a_driver_that_lacks_a_function_or_does_not_start_is_a_typed_error`"]
fn too_old() {
    let error = Gpus::open().unwrap_err();
    assert_eq!(error, Error::Unavailable(Unavailable::TooOld { name: "cuMemcpyDtoDAsync_v2" }));
}

#[test]
#[ignore = "run by `a_driver_that_lacks_a_function_or_does_not_start_is_a_typed_error`"]
fn no_device() {
    let error = Gpus::open().unwrap_err();
    assert_eq!(error, Error::Unavailable(Unavailable::Init { code: 100 }));
    assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE"));
}
