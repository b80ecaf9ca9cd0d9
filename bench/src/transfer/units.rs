//! Sizes, rates and times as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A text that is no size, rate or time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}`: {wanted} is wanted")]
pub struct UnitError {
    given: String,
    wanted: &'static str,
}

const SIZE: &str = "a size in bytes, as 4096, 64K, 1M or 2G (powers of 1024), or a range that doubles, as 4K..64M,";
const RATE: &str = "a rate above 0, as 5GB/s (bytes) or 40Gb/s (bits, decimal),";
const TIME: &str = "a time above 0, as 2, 2s or 250ms,";

/// One size, or all from one to another by doubling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

impl FromStr for Sizes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError { given: text.to_owned(), wanted: SIZE };
        let Some((first, last)) = text.split_once("..") else {
            return Ok(Self(vec![size(text).ok_or_else(wrong)?]));
        };
        let (first, last) = (size(first).ok_or_else(wrong)?, size(last).ok_or_else(wrong)?);
        if first > last {
            return Err(wrong());
        }
        let doubled = std::iter::successors(Some(first), |size| size.checked_mul(2));
        Ok(Self(doubled.take_while(|size| *size <= last).collect()))
    }
}

/// One size.
///
/// # Errors
/// [`UnitError`] for any other text.
pub fn one_size(text: &str) -> Result<u64, UnitError> {
    size(text).ok_or_else(|| UnitError { given: text.to_owned(), wanted: SIZE })
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

/// A size, in the largest unit that divides it.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let unit = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Rate(pub f64);

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError { given: text.to_owned(), wanted: RATE };
        let at = text.find(|c: char| c.is_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = (&text[..at], &text[at..]);
        let (scale, rest) = match unit.as_bytes().first() {
            Some(b'G') => (1e9, &unit[1..]),
            Some(b'M') => (1e6, &unit[1..]),
            Some(b'k' | b'K') => (1e3, &unit[1..]),
            _ => (1.0, unit),
        };
        // Where a bit and a byte differ by one letter's case, nothing is guessed.
        let bytes = match rest {
            "B/s" => 1.0,
            "b/s" | "bit/s" => 1.0 / 8.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let rate = number * scale * bytes;
        if rate.is_finite() && rate > 0.0 { Ok(Self(rate)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} GB/s", self.0 / 1e9)
    }
}

/// A time.
///
/// # Errors
/// [`UnitError`] for any other text.
pub fn time(text: &str) -> Result<Duration, UnitError> {
    let wrong = || UnitError { given: text.to_owned(), wanted: TIME };
    let (number, scale) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * scale;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero()).ok_or_else(wrong)
}

/// A time, or none at all.
///
/// # Errors
/// [`UnitError`] for any other text.
pub fn time_or_zero(text: &str) -> Result<Duration, UnitError> {
    if matches!(text, "0" | "0s" | "0ms") { Ok(Duration::ZERO) } else { time(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_are_read_and_shown() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("4096"), Ok(vec![4096]));
        assert_eq!(sizes("64k"), Ok(vec![65536]));
        assert_eq!(sizes("2MiB"), Ok(vec![2 << 20]));
        assert_eq!(sizes("4K..20K"), Ok(vec![4096, 8192, 16384]));
        for bad in ["", "0", "K", "4X", "-1", "8K..4K", "1..", "99999999999G", "4 K"] {
            assert!(sizes(bad).unwrap_err().to_string().contains("wanted"), "{bad}");
        }
        assert_eq!(show_size(65536), "64K");
        assert_eq!(show_size(1000), "1000");
        assert_eq!(one_size(&show_size(73_728)), Ok(73_728));
    }

    #[test]
    fn bits_and_bytes_are_told_apart() {
        assert_eq!("5GB/s".parse(), Ok(Rate(5e9)));
        assert_eq!("40Gb/s".parse(), Ok(Rate(5e9)));
        assert_eq!("40Gbit/s".parse(), Ok(Rate(5e9)));
        assert_eq!("250.5MB/s".parse(), Ok(Rate(250.5e6)));
        for bad in ["5", "5G", "5gb/s", "0GB/s", "-1GB/s", "GB/s", "nanGB/s", "infGB/s", "5Gbps", "1e400B/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(time("2"), Ok(Duration::from_secs(2)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "0", "-1s", "s", "ms", "nan", "1e30", "3m"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(time_or_zero("0s"), Ok(Duration::ZERO));
    }
}
