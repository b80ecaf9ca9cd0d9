//! Our verbs layer against two others: layouts and values against `rdma-sys` and `ibverbs-sys`, traffic against `ibverbs`, in the
//! soft-RoCE machine. They are built here and nowhere else, for they need headers, CMake and an old libclang.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::guest::{self, Guest, path};
use super::{Findings, Setting, verbs};

/// The crate that compares. No member: nothing of kvrail's own may need what it needs.
const MANIFEST: &str = "transfer/verbs/abi-check/Cargo.toml";

/// Directories of a libclang that rdma-sys' bindgen understands: 19 is too new for it.
const LIBCLANG: &[&str] = &["/usr/lib/llvm-14/lib", "/usr/lib/llvm-15/lib", "/usr/lib/llvm-13/lib"];

/// Programs and libraries that must be there: what asks for each, and Debian's package.
const NEEDED: &[(&[&str], &str)] = &[
    (&["pkg-config", "--version"], "pkg-config"),
    (&["cmake", "--version"], "cmake"),
    (&["pkg-config", "--exists", "libibverbs"], "libibverbs-dev"),
    (&["pkg-config", "--exists", "librdmacm"], "librdmacm-dev"),
    (&["pkg-config", "--exists", "libnl-3.0"], "libnl-3-dev"),
    (&["pkg-config", "--exists", "libnl-route-3.0"], "libnl-route-3-dev"),
];

/// Builds the crate and runs it in the machine.
///
/// # Errors
/// If it does not build, or the machine cannot be started.
pub fn check(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let (libclang, missing) = (libclang(), missing());
    let (Some(libclang), []) = (libclang.as_ref().and_then(|path| path.to_str()), &missing[..]) else {
        let packages = if libclang.is_none() { [&missing[..], &["libclang-14-dev"]].concat() } else { missing };
        let how = format!("apt-get install {}", packages.join(" "));
        findings.skip(format!("layouts and traffic against the crates rdma-sys and ibverbs: {how}"));
        return Ok(());
    };
    let target = setting.root.join("target/abi-check");
    let arguments = ["--manifest-path", MANIFEST, "--locked", "--target-dir", &target.display().to_string()];
    let built = guest::build_with(setting, &arguments, &[("LIBCLANG_PATH", libclang)])?;
    let machine = Guest::new(setting, 2, 1);
    let said = machine.run(&[path(&built, "layouts")?, "--test-threads", "1", "--nocapture"], &[])?;
    said.figures().for_each(|(name, value)| findings.figure(name, value));
    let (passed, all) = said.tests();
    findings.check(said.ok && passed == all && all > 0, format!("layouts: {}", said.text));
    verbs::tests(&machine, &built, "interop", &[], &[], findings)
}

/// Where a libclang lies that is old enough, if there is one; the user's word is taken.
fn libclang() -> Option<PathBuf> {
    let named = std::env::var_os("LIBCLANG_PATH").filter(|v| !v.is_empty()).map(PathBuf::from);
    // The library, and the compiler's own headers, which are another package's.
    let is_there = |directory: &&&str| ["libclang.so.1", "clang"].iter().all(|f| Path::new(directory).join(f).exists());
    named.or_else(|| LIBCLANG.iter().find(is_there).map(PathBuf::from))
}

/// Debian's packages that are not there.
fn missing() -> Vec<&'static str> {
    let is_there = |command: &[&str]| {
        let output = Command::new(command[0]).args(&command[1..]).output();
        output.is_ok_and(|output| output.status.success())
    };
    NEEDED.iter().filter(|(command, _)| !is_there(command)).map(|(_, package)| *package).collect()
}
