//! Frames: a fixed header, a list of entries, and for some kinds a payload.
//!
//! All numbers are little-endian. The header's own CRC32 covers header and list, always: a flipped bit of an offset must
//! not send a payload astray. The payload's CRC32 is optional.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | flags: 1 = payload CRC present |
//! | 2..4 | entries |
//! | 4..8 | payload bytes described |
//! | 8..16 | slice id, the sender's |
//! | 16..24 | lease |
//! | 24..32 | lease key |
//! | 32..40 | generation of the lease's engine |
//! | 40..48 | region (shm: the region that the payload lies in) |
//! | 48..52 | payload CRC |
//! | 52..56 | status |
//! | 56..60 | zero |
//! | 60..64 | CRC of bytes 0..60 and the list |

use crate::plan::{Cause, Fate, Outcome, Refusal};

pub(crate) const HEADER_BYTES: usize = 64;
/// Most entries of a frame.
pub(crate) const ENTRIES_MAX: usize = 1024;
/// Most payload bytes of a frame.
pub(crate) const PAYLOAD_MAX: u64 = 64 << 20;
/// Longest header and list.
pub(crate) const HEAD_MAX: usize = HEADER_BYTES + ENTRIES_MAX * 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Payload follows, to be written to the listed ranges.
    Write = 1,
    /// The receiver is to copy the listed ranges out of an exported region.
    WriteRef = 2,
    /// The listed ranges are wanted.
    Read = 3,
    /// Payload of a read.
    Data = 4,
    /// Last word on a read: whether the lease held until its end.
    End = 5,
    /// Statuses of slices that were written or turned away.
    Ack = 6,
    /// A descriptor travels with this frame: a region is exported.
    Export = 7,
    /// The ranges of a read may be copied out of an exported region.
    Ref = 8,
    /// The copy is made: did the lease hold?
    Confirm = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Write,
            2 => Self::WriteRef,
            3 => Self::Read,
            4 => Self::Data,
            5 => Self::End,
            6 => Self::Ack,
            7 => Self::Export,
            8 => Self::Ref,
            9 => Self::Confirm,
            _ => return None,
        })
    }

    fn entry_bytes(self) -> usize {
        match self {
            Self::Write | Self::Read | Self::Ack => 12,
            Self::WriteRef => 20,
            Self::Data | Self::End | Self::Export | Self::Ref | Self::Confirm => 0,
        }
    }
}

/// How a slice went, on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Ok = 0,
    Stale = 1,
    OutsideLease = 2,
    Malformed = 3,
    Corrupt = 4,
    Unreachable = 5,
}

impl Status {
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Ok,
            1 => Self::Stale,
            2 => Self::OutsideLease,
            3 => Self::Malformed,
            4 => Self::Corrupt,
            5 => Self::Unreachable,
            _ => return None,
        })
    }

    pub(crate) fn outcome(self) -> Outcome {
        let cause = match self {
            Self::Ok => return Outcome::Landed,
            Self::Stale => Cause::Refused(Refusal::Stale),
            Self::OutsideLease => Cause::Refused(Refusal::OutsideLease),
            Self::Malformed => Cause::Refused(Refusal::Malformed),
            Self::Corrupt => Cause::Corrupt,
            Self::Unreachable => Cause::PathFault,
        };
        Outcome::Failed(cause, Fate::Settled)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Stale => Self::Stale,
            Refusal::OutsideLease => Self::OutsideLease,
            Refusal::Malformed => Self::Malformed,
        }
    }
}

/// A header, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) payload_crc: Option<u32>,
    pub(crate) entries: u16,
    pub(crate) bytes: u32,
    pub(crate) id: u64,
    pub(crate) lease: u64,
    pub(crate) key: u64,
    pub(crate) generation: u64,
    pub(crate) region: u64,
    pub(crate) status: u32,
}

impl Header {
    pub(crate) fn new(kind: Kind, id: u64) -> Self {
        Self {
            kind,
            payload_crc: None,
            entries: 0,
            bytes: 0,
            id,
            lease: 0,
            key: 0,
            generation: 0,
            region: 0,
            status: 0,
        }
    }

    /// Bytes of the list behind it.
    pub(crate) fn list_bytes(&self) -> usize {
        usize::from(self.entries) * self.kind.entry_bytes()
    }

    /// Writes the header to the front of `head`, whose list is in place, and seals both.
    pub(crate) fn seal(&self, head: &mut [u8]) {
        head[0] = self.kind as u8;
        head[1] = u8::from(self.payload_crc.is_some());
        head[2..4].copy_from_slice(&self.entries.to_le_bytes());
        head[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        for (field, value) in [self.id, self.lease, self.key, self.generation, self.region].into_iter().enumerate() {
            head[8 + 8 * field..16 + 8 * field].copy_from_slice(&value.to_le_bytes());
        }
        head[48..52].copy_from_slice(&self.payload_crc.unwrap_or(0).to_le_bytes());
        head[52..56].copy_from_slice(&self.status.to_le_bytes());
        head[56..60].fill(0);
        let crc = seal_crc(head);
        head[60..64].copy_from_slice(&crc.to_le_bytes());
    }

    /// Takes the first [`HEADER_BYTES`] of `bytes` apart; the seal is checked by [`sealed`] once the list is there.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, &'static str> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let kind = Kind::from_byte(bytes[0]).ok_or("unknown frame kind")?;
        if bytes[1] > 1 {
            return Err("unknown frame flags");
        }
        let header = Self {
            kind,
            payload_crc: (bytes[1] == 1).then(|| u32_at(48)),
            entries: u16::from_le_bytes([bytes[2], bytes[3]]),
            bytes: u32_at(4),
            id: u64_at(8),
            lease: u64_at(16),
            key: u64_at(24),
            generation: u64_at(32),
            region: u64_at(40),
            status: u32_at(52),
        };
        if usize::from(header.entries) > ENTRIES_MAX {
            return Err("too many entries in a frame");
        }
        if u64::from(header.bytes) > PAYLOAD_MAX {
            return Err("frame too long");
        }
        Ok(header)
    }
}

fn seal_crc(head: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..60]);
    crc.update(&head[HEADER_BYTES..]);
    crc.finalize()
}

/// Whether header and list (all of `head`) arrived as they were sent.
pub(crate) fn sealed(head: &[u8]) -> bool {
    head.len() >= HEADER_BYTES && seal_crc(head).to_le_bytes() == head[60..64]
}

/// An entry of a list: a range (`key` an offset), or a status (`key` a slice id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) value: u32,
    /// Offset in the exported region; [`Kind::WriteRef`] alone.
    pub(crate) source: u64,
}

/// Appends an entry of a list for `kind`.
pub(crate) fn push_entry(head: &mut Vec<u8>, kind: Kind, entry: Entry) {
    head.extend_from_slice(&entry.key.to_le_bytes());
    head.extend_from_slice(&entry.value.to_le_bytes());
    if kind == Kind::WriteRef {
        head.extend_from_slice(&entry.source.to_le_bytes());
    }
}

/// The entries of `list`.
pub(crate) fn entries(list: &[u8], kind: Kind) -> impl Iterator<Item = Entry> + Clone + '_ {
    list.chunks_exact(kind.entry_bytes().max(1)).map(|raw| {
        let u64_at = |at: usize| raw[at..at + 8].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
        Entry {
            key: u64_at(0),
            value: u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]),
            source: if raw.len() >= 20 { u64_at(12) } else { 0 },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut head = vec![0; HEADER_BYTES];
        for n in 0..3u32 {
            push_entry(&mut head, Kind::WriteRef, Entry { key: u64::from(n) << 33, value: n, source: 7 });
        }
        let mut header = Header::new(Kind::WriteRef, 42);
        header.entries = 3;
        header.bytes = 3;
        header.payload_crc = Some(9);
        header.seal(&mut head);
        head
    }

    #[test]
    fn a_frame_comes_back() {
        let head = sample();
        let header = Header::parse(head.first_chunk().unwrap()).unwrap();
        assert_eq!((header.id, header.payload_crc, header.list_bytes()), (42, Some(9), 60));
        assert!(sealed(&head));
        let list: Vec<_> = entries(&head[HEADER_BYTES..], header.kind).collect();
        assert_eq!(list[2], Entry { key: 2 << 33, value: 2, source: 7 });
    }

    #[test]
    fn every_flipped_bit_of_header_and_list_is_caught() {
        let head = sample();
        for bit in 0..head.len() * 8 {
            let mut bad = head.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!sealed(&bad), "bit {bit}");
        }
    }

    #[test]
    fn limits_are_refused_by_name() {
        let mut head = sample();
        head[2..4].copy_from_slice(&2000u16.to_le_bytes());
        assert_eq!(Header::parse(head.first_chunk().unwrap()), Err("too many entries in a frame"));
        let mut head = sample();
        head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Header::parse(head.first_chunk().unwrap()), Err("frame too long"));
        let mut head = sample();
        head[0] = b'G';
        assert_eq!(Header::parse(head.first_chunk().unwrap()), Err("unknown frame kind"));
    }
}
