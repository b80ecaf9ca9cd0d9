//! What throughput was expected, and whether it was there.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::units::Rate;
use crate::far::Wire;

/// A floor of the command line: of the best cell of one transport, or of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expect {
    /// Of which transport.
    pub wire: Option<Wire>,
    /// How much.
    pub floor: Floor,
}

/// How much is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// A part of the line rate.
    Line(f64),
    /// A rate.
    Rate(Rate),
}

/// Not an expectation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no floor; 0.9line, 5GB/s or 40Gb/s is wanted, or one of them for a transport, as tcp=5GB/s")]
pub struct ExpectError(String);

impl FromStr for Expect {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let wrong = || ExpectError(text.to_owned());
        let (wire, floor) = match text.split_once('=') {
            Some((wire, floor)) => (Some(wire.parse().map_err(|_| wrong())?), floor),
            None => (None, text),
        };
        let floor = match floor.strip_suffix("line") {
            Some(part) => {
                let part: f64 = part.parse().map_err(|_| wrong())?;
                if !part.is_finite() || part <= 0.0 {
                    return Err(wrong());
                }
                Floor::Line(part)
            }
            None => Floor::Rate(floor.parse().map_err(|_| wrong())?),
        };
        Ok(Self { wire, floor })
    }
}

/// An expectation that does not hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum Missed {
    /// The best cell was slower.
    #[error("{wire}: {floor_gb_per_s:.3} GB/s were expected, the best cell has {best_gb_per_s:.3}")]
    Slower {
        /// The transport.
        wire: Wire,
        /// What was expected.
        floor_gb_per_s: f64,
        /// What the best cell has.
        best_gb_per_s: f64,
    },
    /// Nothing of that transport was measured.
    #[error("{wire}: a floor was expected of it, and it was not measured")]
    NotMeasured {
        /// The transport.
        wire: Wire,
    },
}

/// What of the expectations does not hold. `best` are the transports that were measured, each with its best cell's bytes a
/// second; `line` is what the pattern carries at line rate.
#[must_use]
pub fn judge(expectations: &[Expect], best: &[(Wire, f64)], line: Option<Rate>) -> Vec<Missed> {
    let mut missed = Vec::new();
    for expect in expectations {
        let floor = match (expect.floor, line) {
            (Floor::Rate(rate), _) => rate.0,
            (Floor::Line(part), Some(line)) => part * line.0,
            // Refused before anything was measured.
            (Floor::Line(_), None) => continue,
        };
        if let Some(wire) = expect.wire.filter(|wire| best.iter().all(|(measured, _)| measured != wire)) {
            missed.push(Missed::NotMeasured { wire });
        }
        let slower = best.iter().filter(|(wire, rate)| expect.wire.is_none_or(|w| w == *wire) && *rate < floor);
        missed.extend(slower.map(|&(wire, rate)| Missed::Slower {
            wire,
            floor_gb_per_s: floor / 1e9,
            best_gb_per_s: rate / 1e9,
        }));
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(text: &str) -> Vec<String> {
        let best = [(Wire::Tcp, 4e9), (Wire::Shm, 9e9)];
        judge(&[text.parse().unwrap()], &best, Some(Rate(5e9))).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn floors_are_judged_by_the_best_cell_of_each_transport() {
        assert!(missed("4GB/s").is_empty() && missed("0.8line").is_empty() && missed("shm=9GB/s").is_empty());
        assert_eq!(missed("0.9line"), ["tcp: 4.500 GB/s were expected, the best cell has 4.000"]);
        assert_eq!(missed("80Gb/s").len(), 2);
        assert_eq!(missed("rdma=1MB/s"), ["rdma: a floor was expected of it, and it was not measured"]);
    }

    #[test]
    fn what_is_no_floor_is_refused() {
        for bad in ["", "0.9", "line", "0line", "nanline", "-1line", "udp=1GB/s", "5GB"] {
            assert!(bad.parse::<Expect>().unwrap_err().to_string().contains("0.9line"), "{bad}");
        }
    }
}
