//! Sets of CPUs, in the two spellings that files have.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// CPU numbers are below this (the kernel's own limit is 8192).
const CPUS_MAX: u32 = 1 << 16;
/// Ranges in one set.
const RANGES_MAX: usize = 4096;

/// A set of CPUs: ranges with both ends in it, ascending and apart. Spelled `0-47,96-143`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(Vec<(u32, u32)>);

/// This is no set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list like 0-47,96-143 (or a mask like 00ff,ffff0000 in NCCL's files) would be right")]
pub struct NotCpus;

impl CpuSet {
    /// No CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|&(first, last)| first..=last)
    }

    /// From hexadecimal words of 32 bits, the highest first, as `local_cpus` and NCCL's `affinity` have it.
    ///
    /// # Errors
    /// If a word is none, or there are too many.
    pub fn from_mask(text: &str) -> Result<Self, NotCpus> {
        let words: Vec<&str> = text.trim().split(',').collect();
        if words.len() * 32 > CPUS_MAX as usize {
            return Err(NotCpus);
        }
        let mut ranges = Vec::new();
        for (word, base) in words.iter().rev().zip((0u32..).step_by(32)) {
            if word.is_empty() || word.len() > 8 || !word.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(NotCpus);
            }
            let bits = u32::from_str_radix(word, 16).map_err(|_| NotCpus)?;
            ranges.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| (base + bit, base + bit)));
        }
        Self::from_ranges(ranges)
    }

    fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Result<Self, NotCpus> {
        ranges.sort_unstable();
        let mut apart: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match apart.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => apart.push((first, last)),
            }
        }
        if apart.len() > RANGES_MAX { Err(NotCpus) } else { Ok(Self(apart)) }
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Self, NotCpus> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let cpu = |digits: &str| match digits.parse::<u32>() {
            Ok(cpu) if cpu < CPUS_MAX => Ok(cpu),
            _ => Err(NotCpus),
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (cpu(first.trim())?, cpu(last.trim())?);
            if first > last || ranges.len() == RANGES_MAX {
                return Err(NotCpus);
            }
            ranges.push((first, last));
        }
        Self::from_ranges(ranges)
    }
}

impl TryFrom<String> for CpuSet {
    type Error = NotCpus;

    fn try_from(text: String) -> Result<Self, NotCpus> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_say_the_same() {
        let set: CpuSet = "8-15,0-3,4,6".parse().unwrap();
        assert_eq!(set.to_string(), "0-4,6,8-15");
        assert_eq!(set.iter().count(), 14);
        assert_eq!(CpuSet::from_mask("ff5f").unwrap(), set);
        assert_eq!(CpuSet::from_mask("00000001,80000000").unwrap().to_string(), "31-32");
        assert!("".parse::<CpuSet>().unwrap().is_empty());
        for wrong in ["a", "3-1", "1-", "-1", "65536", "0-4294967295", "1,,2"] {
            assert_eq!(wrong.parse::<CpuSet>(), Err(NotCpus), "{wrong}");
        }
        for wrong in ["", "xyz", "fffffffff", "1,,1"] {
            assert_eq!(CpuSet::from_mask(wrong), Err(NotCpus), "{wrong}");
        }
    }
}
