//! Which format a text is in, told by its content.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::TopologyError;
use super::types::{Source, Topology};
use super::{nccl, ours, smi};

/// Bytes of a topology file, at most. The largest machine known (32 NICs, 8 GPUs, every link listed) has a hundredth of it.
pub const BYTES_MAX: usize = 2 << 20;

/// Reads a topology file in any of the formats.
///
/// # Errors
/// [`TopologyError::Io`] if it cannot be read; else as [`read`].
pub fn read_file(path: &Path) -> Result<Topology, TopologyError> {
    let io = |source| TopologyError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // Not by its size beforehand: a pipe has none.
    File::open(path).map_err(io)?.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    read(&bytes)
}

/// Reads a topology in any of the formats: NCCL's XML, our TOML, JSON, or what `nvidia-smi topo -m` prints.
///
/// # Errors
/// Says which format it took the text for, the line or field that is wrong, and what would be right.
///
/// ```
/// use kvrail_transfer::topology::{Distance, read};
/// let machine = read(br#"
/// gpu = [{ index = 0, numa = 0, switches = ["0000:11:00.0"] }]
/// nic = [{ name = "mlx5_0", numa = 0, switches = ["0000:11:00.0"] }, { name = "mlx5_1", numa = 1 }]
/// "#)?;
/// let [near, far] = [0, 1].map(|nic| machine.distance(&machine.gpus[0], &machine.nics[nic]));
/// assert_eq!((near, far), (Distance::SameSwitch, Distance::OtherSocket));
/// # Ok::<(), kvrail_transfer::topology::TopologyError>(())
/// ```
pub fn read(bytes: &[u8]) -> Result<Topology, TopologyError> {
    let text = std::str::from_utf8(bytes.get(..BYTES_MAX + 1).unwrap_or(bytes)).or_else(|error| {
        // The bound may have cut a character in two; the length is told below.
        match error.error_len() {
            None if bytes.len() > BYTES_MAX => Ok(""),
            _ => Err(TopologyError::NotText { line: line_of(bytes, error.valid_up_to()) }),
        }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let source = recognise(text)?;
    if bytes.len() > BYTES_MAX {
        return Err(TopologyError::too_many(source, "bytes", bytes.len(), BYTES_MAX));
    }
    match source {
        Source::NcclXml => nccl::read(text),
        Source::NvidiaSmi => smi::read(text),
        Source::Json => ours::read_json(text),
        Source::Toml | Source::Sysfs => ours::read_toml(text),
    }
}

fn recognise(text: &str) -> Result<Source, TopologyError> {
    let start = text.trim_start();
    if start.starts_with('<') {
        return Ok(Source::NcclXml);
    }
    if start.starts_with('{') {
        return Ok(Source::Json);
    }
    if text.lines().any(smi::is_header) {
        return Ok(Source::NvidiaSmi);
    }
    let is_toml = |line: &str| {
        let line = line.trim_start();
        line.starts_with('[') || line.split_once('=').is_some_and(|(key, _)| !key.is_empty() && !key.starts_with('#'))
    };
    if text.lines().any(is_toml) { Ok(Source::Toml) } else { Err(TopologyError::Unrecognised) }
}

/// The line of a byte, counted from 1.
pub(super) fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_tells_the_format() {
        assert_eq!(recognise("\n <!-- mine --><system/>").unwrap(), Source::NcclXml);
        assert_eq!(recognise("{}").unwrap(), Source::Json);
        assert_eq!(recognise("# by hand\n[[nic]]\nname = \"a\"").unwrap(), Source::Toml);
        assert_eq!(recognise("# seen\n\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-3").unwrap(), Source::NvidiaSmi);
        for neither in ["", "hello", "# only a comment = 1"] {
            assert!(matches!(recognise(neither), Err(TopologyError::Unrecognised)), "{neither}");
        }
        assert!(matches!(read(b"a = 1\n\xff"), Err(TopologyError::NotText { line: 2 })));
        let long = [b"a = \"".as_slice(), &vec![b'x'; BYTES_MAX]].concat();
        assert!(read(&long).unwrap_err().to_string().contains("at most 2097152 would be right"));
    }
}
