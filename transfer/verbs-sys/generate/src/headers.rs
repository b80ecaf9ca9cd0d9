//! Where the headers lie.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate that carries them, as in `Cargo.toml`.
const CARRIER: &str = "rdma-mummy-sys";

/// Their directory inside it.
const INSIDE: &str = "rdma-core-mummy/include";

/// Has cargo fetch the carrier and returns the directory to give as `-I`.
pub fn directory(here: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = here.join("Cargo.toml");
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--manifest-path"])
        .arg(&manifest)
        .output()?;
    if !metadata.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&metadata.stderr)).into());
    }
    let metadata = String::from_utf8(metadata.stdout)?;
    // A path in cargo's own output, which escapes nothing that a registry's directory contains.
    let of_carrier = metadata
        .split("\"manifest_path\":\"")
        .filter_map(|rest| rest.split('"').next())
        .map(Path::new)
        .find(|path| path.components().any(|c| c.as_os_str().to_string_lossy().starts_with(CARRIER)))
        .ok_or_else(|| format!("cargo has not fetched {CARRIER}"))?;
    let include = of_carrier.with_file_name(INSIDE);
    match include.join("infiniband/verbs.h").is_file() {
        true => Ok(include),
        false => Err(format!("{} has no infiniband/verbs.h", include.display()).into()),
    }
}

/// Arguments with the C compiler's own headers (`stddef.h`), which a libclang from a wheel comes without.
pub fn compiler_includes() -> Result<Vec<String>, Box<dyn Error>> {
    let output = Command::new("cc").arg("-print-file-name=include").output()?;
    let path = String::from_utf8(output.stdout)?;
    Ok(vec!["-idirafter".into(), path.trim().into()])
}
