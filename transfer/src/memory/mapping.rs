//! The mappings below regions: anonymous, memfd, a peer's memfd mapped read-only, and memory that somebody else mapped.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use super::MemoryError;

/// Start and granularity of mappings, so that the kernel can back them with huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// A range of mapped memory; what was mapped here is unmapped on drop.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// What the bytes stand on, and what goes when they are no longer needed.
enum Backing {
    /// Mapped here.
    Own {
        /// Bytes mapped: the length rounded up to whole pages.
        mapped: usize,
        /// Read-only descriptor of the memfd below, if there is one.
        share: Option<OwnedFd>,
    },
    /// Somebody else's memory, and what keeps it where it is.
    Foreign { _owner: Box<dyn Send + Sync> },
}

// SAFETY: an address, a length and an owner that may go to any thread; the type gives out raw pointers alone, and mapping
// and unmapping are not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the value behind a shared reference.
unsafe impl Sync for Mapping {}

fn os(what: &'static str, len: usize) -> MemoryError {
    MemoryError::Os { what, len, source: io::Error::last_os_error() }
}

fn rounded(len: usize) -> Result<usize, MemoryError> {
    if len == 0 {
        return Err(MemoryError::Length(len));
    }
    len.checked_next_multiple_of(4096).filter(|n| *n <= isize::MAX as usize / 2).ok_or(MemoryError::Length(len))
}

impl Mapping {
    /// Zeroed private memory.
    pub(crate) fn anonymous(len: usize) -> Result<Self, MemoryError> {
        let mapped = rounded(len)?;
        let base = map_aligned(mapped, libc::PROT_READ | libc::PROT_WRITE, None)?;
        Ok(Self { base, len, backing: Backing::Own { mapped, share: None } })
    }

    /// A new memfd, sealed against resizing, with a read-only descriptor to hand out.
    pub(crate) fn memfd(len: usize) -> Result<Self, MemoryError> {
        let mapped = rounded(len)?;
        // SAFETY: a NUL-terminated literal; flags are constants.
        let fd = unsafe { libc::memfd_create(c"kvrail".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(os("memfd_create", len));
        }
        // SAFETY: just returned by the kernel, owned by nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = libc::off_t::try_from(mapped).map_err(|_| MemoryError::Length(len))?;
        // SAFETY: plain system calls on a descriptor that we own.
        if unsafe { libc::ftruncate(fd, size) } != 0 {
            return Err(os("ftruncate", len));
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(os("F_ADD_SEALS", len));
        }
        let base = map_aligned(mapped, libc::PROT_READ | libc::PROT_WRITE, Some(&file))?;
        // The peer gets a descriptor that cannot be mapped for writing: it may read what we lend, never change it.
        let path = format!("/proc/self/fd/{fd}");
        // Made first: an error below unmaps it.
        let mut mapping = Self { base, len, backing: Backing::Own { mapped, share: None } };
        let share = std::fs::File::open(path).map_err(|source| MemoryError::Os { what: "reopen", len, source })?;
        mapping.backing = Backing::Own { mapped, share: Some(share.into()) };
        Ok(mapping)
    }

    /// Maps a peer's memfd read-only, after checking that it can neither shrink under us nor be shorter than it says.
    pub(crate) fn of_peer(file: &OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let mapped = rounded(len)?;
        // SAFETY: plain system call on an owned descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(MemoryError::NotSealed);
        }
        // SAFETY: `stat` is plain data, filled by the call.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live local.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(os("fstat", len));
        }
        if usize::try_from(stat.st_size).unwrap_or(0) < mapped {
            return Err(MemoryError::Length(len));
        }
        let base = map_aligned(mapped, libc::PROT_READ, Some(file))?;
        Ok(Self { base, len, backing: Backing::Own { mapped, share: None } })
    }

    /// Memory that is mapped already, and stays so while `owner` lives.
    ///
    /// # Safety
    /// As [`Region::register`](super::Region::register).
    pub(crate) unsafe fn foreign(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, MemoryError> {
        let fits = len > 0 && isize::try_from(len).is_ok() && (base.as_ptr() as usize).checked_add(len).is_some();
        if !fits {
            return Err(MemoryError::Length(len));
        }
        Ok(Self { base, len, backing: Backing::Foreign { _owner: owner } })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn share(&self) -> Option<&OwnedFd> {
        match &self.backing {
            Backing::Own { share, .. } => share.as_ref(),
            Backing::Foreign { .. } => None,
        }
    }

    /// Takes the descriptor out: nobody else will be given it.
    pub(crate) fn unshare(&mut self) -> Option<OwnedFd> {
        match &mut self.backing {
            Backing::Own { share, .. } => share.take(),
            Backing::Foreign { .. } => None,
        }
    }

    /// Backs `len` bytes from `offset` on with memory, as if each page had been written; contents stay. `len` is cut at the
    /// end of the mapping. What is behind foreign memory is its owner's affair.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        let Backing::Own { mapped, .. } = self.backing else { return Err(io::ErrorKind::Unsupported.into()) };
        let len = len.min(mapped.saturating_sub(offset));
        // SAFETY: a range inside the mapping (of nothing, if `offset` is past its end); no byte changes.
        let done =
            unsafe { libc::madvise(self.base.as_ptr().add(offset.min(mapped)).cast(), len, libc::MADV_POPULATE_WRITE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Address of `offset`, if the `len` bytes from there lie inside.
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: offset ≤ len of one mapping.
        Some(unsafe { self.base.as_ptr().add(usize::try_from(offset).ok()?) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::Own { mapped, .. } = self.backing {
            // SAFETY: the range was mapped by `map_aligned` with this length and is unmapped once.
            unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), mapped) };
        }
    }
}

/// Maps `len` bytes (whole pages) at a huge-page boundary and asks for huge pages.
fn map_aligned(len: usize, protection: i32, file: Option<&OwnedFd>) -> Result<NonNull<u8>, MemoryError> {
    // Reserve more address space than needed, then map over the aligned part of it and give the rest back.
    let reserve = len.checked_add(HUGE_PAGE).ok_or(MemoryError::Length(len))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh reservation at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), reserve, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(os("mmap", len));
    }
    let head = (start as usize).next_multiple_of(HUGE_PAGE) - start as usize;
    // SAFETY: `head` < HUGE_PAGE, inside the reservation.
    let base = unsafe { start.byte_add(head) };
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, -1),
    };
    // SAFETY: replaces pages of our own reservation alone: base + len ≤ start + reserve.
    let mapped = unsafe { libc::mmap(base, len, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED {
        let error = os("mmap", len);
        // SAFETY: the reservation is ours and nothing points into it.
        unsafe { libc::munmap(start, reserve) };
        return Err(error);
    }
    // SAFETY: head and tail of the reservation, outside the mapping.
    unsafe {
        if head > 0 {
            libc::munmap(start, head);
        }
        if HUGE_PAGE > head {
            libc::munmap(base.byte_add(len), HUGE_PAGE - head);
        }
        // Advice: a kernel without huge pages refuses it, and the mapping is as good.
        libc::madvise(base, len, libc::MADV_HUGEPAGE);
        // A forked child must not inherit pages that peers write to.
        if file.is_none() {
            libc::madvise(base, len, libc::MADV_DONTFORK);
        }
    }
    NonNull::new(base.cast()).ok_or(MemoryError::Length(len))
}

/// Copies `len` bytes between ranges that may be shared with other processes.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and the two must not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise. A concurrent writer on the other side gives torn bytes, which leases and
    // confirmations make unobservable; the copy itself is libc's memcpy and takes no decision on the contents.
    unsafe { libc::memcpy(to.cast(), from.cast(), len) };
}

/// As [`copy`], for ranges that may overlap: two of one region, say.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes.
pub(crate) unsafe fn copy_within(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the rest as in `copy`.
    unsafe { libc::memmove(to.cast(), from.cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_is_seen_by_a_read_only_mapping_of_it() {
        let owner = Mapping::memfd(10_000).unwrap();
        assert_eq!(owner.base() as usize % HUGE_PAGE, 0);
        let peer = Mapping::of_peer(owner.share().unwrap(), 10_000).unwrap();
        // SAFETY: both mappings are 10,000 bytes and alive.
        unsafe {
            *owner.base().add(9_999) = 7;
            assert_eq!(*peer.base().add(9_999), 7);
        }
    }

    #[test]
    fn the_shared_descriptor_cannot_be_mapped_for_writing() {
        let owner = Mapping::memfd(4096).unwrap();
        let error = map_aligned(4096, libc::PROT_READ | libc::PROT_WRITE, owner.share()).err().unwrap();
        assert!(matches!(error, MemoryError::Os { what: "mmap", .. }), "{error:?}");
    }

    #[test]
    fn a_peer_file_that_lies_about_its_length_or_can_shrink_is_refused() {
        let owner = Mapping::memfd(4096).unwrap();
        assert!(matches!(Mapping::of_peer(owner.share().unwrap(), 8192), Err(MemoryError::Length(8192))));
        let plain = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(matches!(Mapping::of_peer(&plain, 16), Err(MemoryError::NotSealed)));
    }

    #[test]
    fn foreign_memory_that_cannot_be_a_range_is_refused_and_its_owner_let_go() {
        let owner = std::sync::Arc::new(());
        let top = NonNull::new(std::ptr::without_provenance_mut(usize::MAX - 9)).unwrap();
        for (base, len) in [(NonNull::dangling(), 0), (NonNull::dangling(), usize::MAX), (top, 11)] {
            // SAFETY: refused before anything is touched.
            let refused = unsafe { Mapping::foreign(base, len, Box::new(std::sync::Arc::clone(&owner))) };
            assert!(matches!(refused, Err(MemoryError::Length(n)) if n == len));
        }
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }

    #[test]
    fn ranges_past_the_end_are_refused_without_overflow() {
        let m = Mapping::anonymous(100).unwrap();
        assert!(m.at(0, 100).is_some());
        assert!(m.at(100, 0).is_some());
        assert!(m.at(1, 100).is_none());
        assert!(m.at(u64::MAX, 2).is_none());
        assert!(matches!(Mapping::anonymous(0), Err(MemoryError::Length(0))));
    }
}
