//! Raw addresses into ops: for callers that register ranges of their address space and then move between addresses.
//!
//! An engine moves between one region of each side at a time, so runs are grouped by the pair of buffers that they lie in.
//! Looking up a run costs a binary search, and nothing where it lies in the buffers of the run before it.

use std::collections::HashMap;

use kvrail_transfer::Op;

/// A registered range of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Buffer {
    /// Offset of the range in this buffer, if all of it lies there.
    fn offset_of(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        (offset <= self.len && len <= self.len - offset).then_some(offset)
    }
}

/// Buffers by address; none overlap. The place of a buffer in the list that it was made from is its name.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    sorted: Vec<(Buffer, usize)>,
}

impl Buffers {
    /// Sorts them.
    #[must_use]
    pub fn new(all: &[Buffer]) -> Self {
        let mut sorted: Vec<_> = all.iter().copied().enumerate().map(|(place, buffer)| (buffer, place)).collect();
        sorted.sort_unstable_by_key(|(buffer, _)| buffer.address);
        Self { sorted }
    }

    /// Index in `sorted` of the buffer that holds the range, and the range's offset there.
    fn find(&self, address: u64, len: u64, guess: usize) -> Option<(usize, u64)> {
        let at = |index: usize| Some((index, self.sorted.get(index)?.0.offset_of(address, len)?));
        at(guess).or_else(|| {
            let after = self.sorted.partition_point(|(buffer, _)| buffer.address <= address);
            at(after.checked_sub(1)?)
        })
    }
}

/// What moves between one buffer of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Place of the local buffer.
    pub local: usize,
    /// Place of the remote buffer.
    pub remote: usize,
    /// The runs, in the order in which they were given.
    pub ops: Vec<Op>,
}

/// Why runs cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The three lists differ in length.
    Unlike {
        /// Local addresses.
        local: usize,
        /// Remote addresses.
        remote: usize,
        /// Lengths.
        lens: usize,
    },
    /// Not all of a run's local side lies in one registered buffer.
    Local {
        /// Its place in the lists.
        index: usize,
    },
    /// The same of its remote side.
    Remote {
        /// Its place in the lists.
        index: usize,
    },
}

impl std::error::Error for RunError {}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unlike { local, remote, lens } => {
                write!(f, "{local} local addresses, {remote} remote ones and {lens} lengths")
            }
            Self::Local { index } => write!(f, "run {index}: its local side lies in no registered buffer"),
            Self::Remote { index } => {
                write!(f, "run {index}: its remote side lies in no buffer that the peer registered")
            }
        }
    }
}

/// Groups runs by the buffers that they lie in: `lens[i]` bytes between `from[i]` here and `to[i]` there.
///
/// # Errors
/// Names the first run that lies in no buffer.
pub fn group(
    local: &Buffers,
    remote: &Buffers,
    from: &[u64],
    to: &[u64],
    lens: &[u64],
) -> Result<Vec<Group>, RunError> {
    if from.len() != to.len() || from.len() != lens.len() {
        return Err(RunError::Unlike { local: from.len(), remote: to.len(), lens: lens.len() });
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut by_pair: HashMap<(usize, usize), usize> = HashMap::new();
    let (mut pair, mut current) = ((0, 0), None);
    for (index, ((&here, &there), &len)) in from.iter().zip(to).zip(lens).enumerate() {
        let (a, here) = local.find(here, len, pair.0).ok_or(RunError::Local { index })?;
        let (b, there) = remote.find(there, len, pair.1).ok_or(RunError::Remote { index })?;
        let place = match current {
            Some(place) if pair == (a, b) => place,
            _ => *by_pair.entry((a, b)).or_insert_with(|| {
                groups.push(Group { local: local.sorted[a].1, remote: remote.sorted[b].1, ops: Vec::new() });
                groups.len() - 1
            }),
        };
        (pair, current) = ((a, b), Some(place));
        groups[place].ops.push(Op::contiguous(here, there, len));
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(all: &[(u64, u64)]) -> Buffers {
        Buffers::new(&all.iter().map(|&(address, len)| Buffer { address, len }).collect::<Vec<_>>())
    }

    #[test]
    fn runs_are_grouped_by_their_buffers_and_keep_their_order() {
        let local = buffers(&[(5000, 1000), (1000, 1000)]);
        let remote = buffers(&[(90_000, 4096)]);
        let groups = group(&local, &remote, &[5000, 1990, 5990], &[90_000, 90_100, 94_086], &[10, 10, 10]).unwrap();
        let first = Group { local: 0, remote: 0, ops: vec![Op::contiguous(0, 0, 10), Op::contiguous(990, 4086, 10)] };
        let second = Group { local: 1, remote: 0, ops: vec![Op::contiguous(990, 100, 10)] };
        assert_eq!(groups, [first, second]);
    }

    #[test]
    fn a_run_that_lies_in_no_buffer_or_passes_its_end_is_named() {
        let (local, remote) = (buffers(&[(1000, 100), (1100, 100)]), buffers(&[(7, 50)]));
        let one = |from, to, len| group(&local, &remote, &[1000, from], &[7, to], &[1, len]);
        assert_eq!(one(999, 7, 1), Err(RunError::Local { index: 1 }));
        assert_eq!(one(1099, 7, 2), Err(RunError::Local { index: 1 }), "two buffers are two buffers");
        assert_eq!(one(1000, 56, 2), Err(RunError::Remote { index: 1 }));
        assert_eq!(one(1000, 6, 1), Err(RunError::Remote { index: 1 }));
        assert_eq!(one(1000, 7, u64::MAX), Err(RunError::Local { index: 1 }));
        assert!(one(1199, 56, 1).is_ok());
        assert_eq!(group(&local, &remote, &[1000], &[], &[1]), Err(RunError::Unlike { local: 1, remote: 0, lens: 1 }));
        assert_eq!(group(&Buffers::default(), &remote, &[1], &[7], &[1]), Err(RunError::Local { index: 0 }));
        assert_eq!(group(&local, &remote, &[], &[], &[]), Ok(vec![]));
    }
}
