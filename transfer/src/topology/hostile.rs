//! Whatever the bytes, a reader ends with a topology or an error that says something: seeded mutations of each format.

use super::fixtures::{DUMP_XML, OURS_TOML, SMI};
use super::{Plan, TopologyError, findings, pair, rails, read};
use crate::plan::RailId;

/// xorshift64*: enough to scatter mutations, and the same in every run.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Pieces that mean something to one of the formats.
const WORDS: [&str; 18] = [
    "<",
    ">",
    "/>",
    "\"",
    "[[nic]]",
    "[[gpu]]\n",
    "{",
    "}",
    "0x0604",
    "ffff:ff:1f.7",
    "-1",
    "4294967295",
    "18446744073709551616",
    "SYS",
    "\t",
    "\n",
    "\u{1b}[",
    "é",
];

pub(super) fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
            3 => drop(bytes.drain(at..(at + random.below(40)).min(bytes.len()))),
            // A piece comes twice.
            4 => {
                let again = bytes[at..(at + random.below(400)).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, again);
            }
            _ => {
                let digits: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    bytes[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
                }
            }
        }
    }
    if random.below(8) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
}

/// All that is made of a topology; the laws of a plan hold for every machine.
pub(super) fn exercise(result: Result<super::Topology, TopologyError>) -> bool {
    let topology = match result {
        Ok(topology) => topology,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 1000, "{text}");
            return false;
        }
    };
    let plan = Plan::of(&topology);
    let used = topology.nics.len() - plan.left_out.len();
    assert_eq!(plan.gpus.len(), topology.gpus.len());
    assert!(topology.nics.len() <= RailId::MAX_RAILS);
    for memory in plan.gpus.iter().chain(&plan.hosts) {
        assert_eq!((memory.nics.len(), memory.penalty_ns.len()), (used, topology.nics.len()));
        assert_eq!(memory.own().next().is_some(), used > 0, "every memory gets NICs");
        assert!(used == 0 || memory.penalty_ns.contains(&0));
    }
    assert_eq!(used == 0, topology.nics.iter().all(|nic| nic.used == Some(false)), "rules leave a NIC");
    assert_eq!(rails(&topology).iter().flatten().count(), used);
    assert!(pair(&topology, &topology).len() >= used);
    assert!(findings(&topology).iter().all(|finding| !finding.to_string().is_empty()));
    let toml = topology.to_toml().expect("what was read can be written");
    let mut again = read(toml.as_bytes()).unwrap_or_else(|error| panic!("{error}: {toml}"));
    again.source = topology.source;
    assert_eq!(again, topology);
    true
}

#[test]
fn mutated_files_never_panic() {
    for (name, clean) in [("xml", DUMP_XML), ("smi", SMI), ("toml", OURS_TOML)] {
        let json = serde_json::to_string(&read(clean.as_bytes()).unwrap()).unwrap();
        for (name, clean) in [(name, clean), ("json", json.as_str())] {
            let (mut accepted, rounds) = (0, 1500);
            for seed in 1..=rounds {
                let mut bytes = clean.as_bytes().to_vec();
                mutate(&mut bytes, &mut Random(seed));
                accepted += u64::from(exercise(read(&bytes)));
            }
            // Both kinds must have been seen, or the mutations test nothing.
            assert!(accepted > 0 && accepted < rounds, "{name}: {accepted} of {rounds} were accepted");
        }
    }
}

#[test]
fn every_truncation_ends() {
    for clean in [DUMP_XML, SMI, OURS_TOML] {
        for len in 0..clean.len() {
            exercise(read(&clean.as_bytes()[..len]));
        }
    }
}
