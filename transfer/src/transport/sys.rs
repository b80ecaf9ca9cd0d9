//! The system calls below the streams: scatter/gather I/O with descriptors, epoll, eventfd.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Most gather entries of one call (`IOV_MAX` on Linux).
pub(crate) const IOV_MAX: usize = 1024;
/// Most descriptors taken from one message; a peer that sends more loses them.
const FDS_MAX: usize = 4;

/// A list of memory ranges for one call.
///
/// It is plain data until it is handed to [`send`] or [`recv`]; what it points to is the builder's responsibility.
#[derive(Default)]
pub(crate) struct IoVec {
    items: Vec<libc::iovec>,
    /// First item that is not used up.
    at: usize,
    /// Bytes not used up.
    left: usize,
}

// SAFETY: addresses and lengths; dereferenced only by the calls below, whose contracts name who keeps the memory alive.
unsafe impl Send for IoVec {}

impl IoVec {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.at = 0;
        self.left = 0;
    }

    /// Appends a range; one that continues the last is merged with it.
    pub(crate) fn push(&mut self, base: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        self.left += len;
        if let Some(last) = self.items.last_mut()
            && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base
        {
            last.iov_len += len;
            return;
        }
        self.items.push(libc::iovec { iov_base: base.cast(), iov_len: len });
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Marks `n` bytes as used up.
    pub(crate) fn advance(&mut self, mut n: usize) {
        debug_assert!(n <= self.left);
        self.left -= n;
        while n > 0 {
            let item = &mut self.items[self.at];
            if n < item.iov_len {
                item.iov_base = item.iov_base.wrapping_byte_add(n);
                item.iov_len -= n;
                return;
            }
            n -= item.iov_len;
            self.at += 1;
        }
    }

    /// The ranges that are left.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        self.items[self.at..].iter().map(|i| (i.iov_base.cast::<u8>(), i.iov_len))
    }

    /// Copies `from` into the next ranges and marks them as used up.
    ///
    /// # Safety
    /// The ranges must be writable and must not overlap `from`, which must not be longer than what is left.
    pub(crate) unsafe fn fill(&mut self, from: &[u8]) {
        let mut rest = from;
        for (base, len) in self.rest() {
            let n = len.min(rest.len());
            // SAFETY: the caller's promise for `n` ≤ `len` bytes.
            unsafe { crate::memory::copy(rest.as_ptr(), base, n) };
            rest = &rest[n..];
            if rest.is_empty() {
                break;
            }
        }
        self.advance(from.len() - rest.len());
    }
}

/// Sends from the next ranges of `iov`, with a descriptor if one is given. `Ok(None)`: would block.
///
/// # Safety
/// The ranges that are left must be readable during the call.
pub(crate) unsafe fn send(fd: RawFd, iov: &mut IoVec, pass: Option<RawFd>) -> io::Result<Option<usize>> {
    let count = (iov.items.len() - iov.at).min(IOV_MAX);
    // SAFETY: `msghdr` is plain data, zero is its empty state.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.items[iov.at..].as_mut_ptr();
    message.msg_iovlen = count;
    let mut control = ControlBuffer([0; 64]);
    if let Some(pass) = pass {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
        // SAFETY: the buffer is aligned and has room for one header and one descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(pass);
        }
    }
    // SAFETY: the ranges are the caller's promise, the rest are live locals.
    let sent = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    match blocking(sent)? {
        Some(sent) => {
            iov.advance(sent);
            Ok(Some(sent))
        }
        None => Ok(None),
    }
}

/// Sends bytes without blocking. `Ok(None)`: would block.
pub(crate) fn send_bytes(fd: RawFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: reads within a live slice.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    blocking(sent)
}

/// Receives bytes without blocking. `Ok(None)`: would block; `Ok(Some(0))`: the peer closed.
pub(crate) fn recv_bytes(fd: RawFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: writes within a live exclusive slice.
    let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    blocking(got)
}

/// Room for the control messages of one call, aligned as the kernel wants it.
#[repr(align(8))]
struct ControlBuffer([u8; 64]);

/// What a descriptor that is watched by its edges has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// There is something to receive, or it has ended.
    pub(crate) readable: bool,
    /// It takes what is sent.
    pub(crate) writable: bool,
    /// Behind what there is to receive comes its end, of which no other edge tells.
    pub(crate) ended: bool,
}

/// What [`recv`] got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes that went to the ranges.
    pub(crate) direct: usize,
    /// Bytes that went to the tail.
    pub(crate) staged: usize,
    /// There may be more to receive. Otherwise the socket was emptied: a descriptor that is watched by its edges tells of what comes.
    pub(crate) more: bool,
}

/// Receives into the next ranges of `iov`, then into `tail`. `Ok(None)`: would block. A peer that closed gives no bytes.
///
/// # Safety
/// The ranges that are left must be writable during the call, and must not overlap `tail`.
pub(crate) unsafe fn recv(
    fd: RawFd,
    iov: &mut IoVec,
    tail: &mut [u8],
    fds: Option<&mut Vec<OwnedFd>>,
) -> io::Result<Option<Received>> {
    // The tail rides behind the ranges for this call alone.
    let ranges = iov.items.len();
    iov.items.push(libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() });
    let count = (ranges + 1 - iov.at).min(IOV_MAX);
    let is_whole = count == ranges + 1 - iov.at;
    // SAFETY: `msghdr` is plain data, zero is its empty state.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.items[iov.at..].as_mut_ptr();
    message.msg_iovlen = count;
    let mut control = ControlBuffer([0; 64]);
    if fds.is_some() {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only; the buffer is longer than the space for FDS_MAX descriptors.
        message.msg_controllen = unsafe { libc::CMSG_SPACE((FDS_MAX * size_of::<RawFd>()) as u32) } as usize;
    }
    // SAFETY: the ranges are the caller's promise, the rest are live locals.
    let got = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    iov.items.truncate(ranges);
    // A message with descriptors ends a receive early.
    let mut more = fds.is_some() && message.msg_controllen > 0 || !is_whole;
    if let (Some(fds), true) = (fds, got >= 0) {
        // SAFETY: the kernel filled the control buffer; headers are walked within the length that it gave.
        unsafe { take_fds(&message, fds) };
    }
    match blocking(got)? {
        None => Ok(None),
        Some(got) => {
            more |= got == iov.left + tail.len();
            let direct = got.min(iov.left);
            iov.advance(direct);
            Ok(Some(Received { direct, staged: got - direct, more }))
        }
    }
}

/// # Safety
/// `message` must be as the kernel left it after a successful receive.
unsafe fn take_fds(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: the control buffer outlives this call and was filled by the kernel; each descriptor in it is new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(head) = header.as_ref() {
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                let bytes = head.cmsg_len - libc::CMSG_LEN(0) as usize;
                for n in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(n).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn blocking(result: isize) -> io::Result<Option<usize>> {
    match usize::try_from(result) {
        Ok(n) => Ok(Some(n)),
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            }
        }
    }
}

fn no_events() -> Vec<libc::epoll_event> {
    vec![libc::epoll_event { events: 0, u64: 0 }; 64]
}

/// A set of descriptors to wait for.
pub(crate) struct Poller {
    epoll: Arc<OwnedFd>,
    wake: Arc<OwnedFd>,
    events: Vec<libc::epoll_event>,
}

/// Key of the poller's own wake-up descriptor.
const WAKE: u64 = u64::MAX;

/// Wakes a [`Poller`] from any thread.
#[derive(Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of a live local to an eventfd; a full counter is a wake-up already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<(Self, Waker)> {
        // SAFETY: plain system calls; the descriptors are new and ours.
        let (epoll, wake) = unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if epoll < 0 {
                return Err(io::Error::last_os_error());
            }
            let epoll = OwnedFd::from_raw_fd(epoll);
            let wake = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if wake < 0 {
                return Err(io::Error::last_os_error());
            }
            (epoll, OwnedFd::from_raw_fd(wake))
        };
        let wake = Arc::new(wake);
        let waker = Waker(Arc::clone(&wake));
        let poller = Self { epoll: Arc::new(epoll), wake, events: no_events() };
        poller.control(libc::EPOLL_CTL_ADD, poller.wake.as_raw_fd(), WAKE, libc::EPOLLIN)?;
        Ok((poller, waker))
    }

    /// The same set, for another thread to wait for: each word goes to one of the two.
    pub(crate) fn twin(&self) -> Self {
        Self { epoll: Arc::clone(&self.epoll), wake: Arc::clone(&self.wake), events: no_events() }
    }

    /// Readable when something is ready: a poller can be watched by another.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn control(&self, op: i32, fd: RawFd, key: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: descriptors are open, the event is a live local.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), op, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Watches both directions, edge-triggered. Closing the descriptor ends it.
    pub(crate) fn add(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, key, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET)
    }

    /// Stops watching a descriptor that is to be given away.
    pub(crate) fn remove(&self, fd: RawFd) {
        // Fails only for a descriptor that is not watched, which is what is wanted.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits up to `timeout` (for ever without one) and calls `ready` with each key, and whether it may be read and written.
    pub(crate) fn wait(
        &mut self,
        timeout: Option<std::time::Duration>,
        mut ready: impl FnMut(u64, Readiness),
    ) -> io::Result<()> {
        // Rounded up: waking before the time is due would spin.
        let millis = timeout.map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let room = self.events.len() as i32;
        // SAFETY: the buffer has `room` events.
        let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), room, millis) };
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        for event in &self.events[..n as usize] {
            let key = event.u64;
            if key == WAKE {
                let mut drain = [0u8; 8];
                // SAFETY: reads eight bytes into a live local.
                unsafe { libc::read(self.wake.as_raw_fd(), drain.as_mut_ptr().cast(), drain.len()) };
            } else {
                let bits = event.events as i32;
                let broken = bits & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
                let ended = broken || bits & libc::EPOLLRDHUP != 0;
                let readable = ended || bits & libc::EPOLLIN != 0;
                ready(key, Readiness { readable, writable: broken || bits & libc::EPOLLOUT != 0, ended });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_advance_across_items() {
        let mut bytes = [0u8; 100];
        let base = bytes.as_mut_ptr();
        let mut iov = IoVec::default();
        iov.push(base, 10);
        iov.push(base.wrapping_add(10), 10);
        iov.push(base.wrapping_add(50), 5);
        assert_eq!((iov.items.len(), iov.left()), (2, 25));
        iov.advance(22);
        assert_eq!(iov.rest().collect::<Vec<_>>(), [(base.wrapping_add(52), 3)]);
        iov.advance(3);
        assert_eq!((iov.left(), iov.rest().count()), (0, 0));
    }

    #[test]
    fn what_is_received_past_the_ranges_goes_to_the_tail() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let text = *b"headPAYLOADtail";
        let mut out = IoVec::default();
        out.push(text.as_ptr().cast_mut(), text.len());
        // SAFETY: `text` lives.
        assert_eq!(unsafe { send(a.as_raw_fd(), &mut out, Some(a.as_raw_fd())) }.unwrap(), Some(15));
        let (mut first, mut tail, mut fds) = ([0u8; 11], [0u8; 32], Vec::new());
        let mut into = IoVec::default();
        into.push(first.as_mut_ptr(), 11);
        // SAFETY: `first` and `tail` live and are distinct.
        let got = unsafe { recv(b.as_raw_fd(), &mut into, &mut tail, Some(&mut fds)) }.unwrap();
        assert_eq!(got, Some(Received { direct: 11, staged: 4, more: true }));
        assert_eq!((&first, &tail[..4], fds.len()), (b"headPAYLOAD", &b"tail"[..], 1));
        // SAFETY: as above; nothing is left to read.
        assert_eq!(unsafe { recv(b.as_raw_fd(), &mut into, &mut tail, None) }.unwrap(), None);
    }
}
