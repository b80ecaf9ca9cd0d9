//! Bytes as steps of a conversation: what a fuzzer changes are lengths, bodies and order, while prefixes, numbers and checksums
//! come out right often enough to be let in.
//!
//! A step is one byte that says which, two of length, and so many bytes (or what is left).

use kvrail_transfer::testing;

/// Longest step.
const STEP_MAX: usize = 4096;
/// Longest payload behind a head.
const PAYLOAD_MAX: usize = 64 << 10;

/// Splits an input into steps.
pub fn steps(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[which, low, high], rest) = input.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes([low, high])).min(STEP_MAX).min(rest.len());
        let (step, rest) = rest.split_at(len);
        input = rest;
        Some((which, step))
    })
}

/// A step, as [`steps`] reads it.
#[must_use]
pub fn step(which: u8, bytes: &[u8]) -> Vec<u8> {
    [&[which][..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

/// Messages of a control connection: as they are, with a prefix, or numbered as a session wants them.
#[must_use]
pub fn messages(input: &[u8]) -> Vec<u8> {
    let (mut said, mut number) = (Vec::new(), 0u64);
    for (which, step) in steps(input) {
        match which % 4 {
            0 => said.extend(step),
            1 => said.extend(testing::message(step)),
            // The more usual: it is what gets furthest.
            _ => {
                number += 1;
                let body =
                    [&[25][..], &number.to_le_bytes(), &[0; 8], &(step.len() as u16).to_le_bytes(), step].concat();
                said.extend(testing::message(&body));
            }
        }
    }
    said
}

/// Frames of a data stream: as they are, sealed, or sealed and under the ticket of what may be written or read; followed by
/// the payload that they say, or not.
#[must_use]
pub fn frames(input: &[u8], tickets: [[u64; 3]; 2]) -> Vec<u8> {
    let mut said = Vec::new();
    for (which, step) in steps(input) {
        if which % 4 == 0 {
            said.extend(step);
            continue;
        }
        let mut bytes = step.to_vec();
        bytes.resize(step.len().max(64), 0);
        if let Some([generation, lease, key]) = usize::from(which % 4).checked_sub(2).map(|which| tickets[which]) {
            for (at, value) in [(16, lease), (24, key), (32, generation)] {
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        let payload = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        said.extend(testing::Head { bytes }.sealed());
        if which & 4 != 0 {
            said.resize(said.len() + payload.min(PAYLOAD_MAX), which);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_made() {
        let input = [step(1, b"one"), step(7, b""), step(2, b"three")].concat();
        let read: Vec<_> = steps(&input).collect();
        assert_eq!(read, [(1, &b"one"[..]), (7, b""), (2, b"three")]);
        assert_eq!(
            steps(&[1, 255, 255, 9]).collect::<Vec<_>>(),
            [(1, &[9][..])],
            "a hostile length ends with the input"
        );
        assert_eq!(steps(&[1, 2]).count(), 0);
    }
}
