//! Lease tickets: what the owner of memory hands to a peer, by whatever way, so that it may use a lease.

use crate::session::codec::{DecodeError, Reader, Writer};
use crate::session::lease::{Access, ByteRange, LeaseState, covers};

const MAGIC: u32 = u32::from_le_bytes(*b"kvlt");
const VERSION: u8 = 1;

/// Most ranges of a ticket, after merging.
pub(crate) const RANGES_MAX: usize = 65_536;

/// The right to use a lease; opaque bytes outside this crate.
///
/// It holds a secret key: whoever has the ticket may use the lease.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseTicket {
    pub(crate) generation: u64,
    pub(crate) lease: u64,
    pub(crate) key: u64,
    pub(crate) region: u64,
    pub(crate) shared: bool,
    /// A device's memory that no NIC reaches.
    pub(crate) staged: bool,
    pub(crate) access: Access,
    pub(crate) ranges: Box<[ByteRange]>,
}

/// Why bytes are not a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// Not a ticket at all, or cut short, or changed on the way.
    #[error("not an intact lease ticket")]
    Malformed,
    /// A ticket of a version that this build does not know.
    #[error("lease ticket of version {0}, this build knows {VERSION}")]
    Version(u8),
}

impl From<DecodeError> for TicketError {
    fn from(_: DecodeError) -> Self {
        Self::Malformed
    }
}

impl LeaseTicket {
    pub(crate) fn of(lease: &LeaseState, generation: u64) -> Self {
        Self {
            generation,
            lease: lease.id,
            key: lease.key,
            region: lease.region,
            shared: lease.shared,
            staged: lease.staged,
            access: lease.access,
            ranges: lease.ranges.clone(),
        }
    }

    /// Generation of the engine that owns the memory.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What it allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Lent ranges of the owner's region: sorted, merged.
    #[must_use]
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    pub(crate) fn covers(&self, offset: u64, len: u64) -> bool {
        covers(&self.ranges, offset, len)
    }

    /// The ticket as bytes, checksummed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(48 + 6 * self.ranges.len());
        out.u32(MAGIC);
        out.u8(VERSION);
        out.u8(u8::from(self.access == Access::Read) | u8::from(self.shared) << 1 | u8::from(self.staged) << 2);
        out.u64(self.generation);
        out.u64(self.lease);
        out.u64(self.key);
        out.u64(self.region);
        out.varint(self.ranges.len() as u64);
        let mut end = 0;
        for range in &self.ranges {
            // Sorted and disjoint: gaps are small numbers.
            out.varint(range.offset - end);
            out.varint(range.len);
            end = range.offset + range.len;
        }
        let mut bytes = out.into_inner();
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`TicketError`] for anything else, whoever made it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        let Some((body, crc)) = bytes.split_last_chunk::<4>() else { return Err(TicketError::Malformed) };
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(TicketError::Malformed);
        }
        let mut input = Reader::new(body);
        if input.u32()? != MAGIC {
            return Err(TicketError::Malformed);
        }
        let version = input.u8()?;
        if version != VERSION {
            return Err(TicketError::Version(version));
        }
        let flags = input.u8()?;
        let (generation, lease, key, region) = (input.u64()?, input.u64()?, input.u64()?, input.u64()?);
        let count = input.varint()?;
        // Each range takes two bytes at least: a count cannot ask for more memory than the ticket is long.
        if flags > 7 || count == 0 || count > RANGES_MAX as u64 || count > input.remaining() as u64 / 2 {
            return Err(TicketError::Malformed);
        }
        let mut ranges = Vec::with_capacity(count as usize);
        let mut end = 0u64;
        for index in 0..count {
            let (gap, len) = (input.varint()?, input.varint()?);
            let offset = end.checked_add(gap).ok_or(TicketError::Malformed)?;
            end = offset.checked_add(len).ok_or(TicketError::Malformed)?;
            if len == 0 || (index > 0 && gap == 0) {
                return Err(TicketError::Malformed);
            }
            ranges.push(ByteRange { offset, len });
        }
        if input.remaining() != 0 {
            return Err(TicketError::Malformed);
        }
        let access = if flags & 1 == 0 { Access::Write } else { Access::Read };
        let (shared, staged) = (flags & 2 != 0, flags & 4 != 0);
        Ok(Self { generation, lease, key, region, shared, staged, access, ranges: ranges.into() })
    }
}

impl std::fmt::Debug for LeaseTicket {
    // Without the key: a log line must not grant access.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseTicket")
            .field("generation", &self.generation)
            .field("lease", &self.lease)
            .field("access", &self.access)
            .field("ranges", &self.ranges.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> LeaseTicket {
        LeaseTicket {
            generation: 3,
            lease: 4,
            key: 5,
            region: 6,
            shared: true,
            staged: true,
            access: Access::Read,
            ranges: [ByteRange { offset: 0, len: 16 }, ByteRange { offset: 1 << 40, len: 1 << 33 }].into(),
        }
    }

    #[test]
    fn bytes_come_back_and_every_flipped_bit_is_caught() {
        let bytes = ticket().to_bytes();
        assert_eq!(LeaseTicket::from_bytes(&bytes), Ok(ticket()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LeaseTicket::from_bytes(&bad), Err(TicketError::Malformed), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(LeaseTicket::from_bytes(&bytes[..cut]), Err(TicketError::Malformed));
        }
    }

    #[test]
    fn a_huge_count_and_another_version_are_refused_by_name() {
        let reseal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = ticket().to_bytes();
            bytes.truncate(bytes.len() - 4);
            change(&mut bytes);
            let crc = crc32fast::hash(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            LeaseTicket::from_bytes(&bytes)
        };
        assert_eq!(reseal(&|b| b[4] = 9), Err(TicketError::Version(9)));
        assert_eq!(
            reseal(&|b| {
                b.truncate(38);
                b.extend([0xff, 0xff, 0x03]);
            }),
            Err(TicketError::Malformed)
        );
    }

    #[test]
    fn a_log_line_does_not_hold_the_key() {
        let mut t = ticket();
        t.key = 0x5ec2_e7ba_dc0f_fee5;
        let line = format!("{t:?}");
        assert!(!line.contains(&t.key.to_string()) && !line.contains("key"));
    }
}
