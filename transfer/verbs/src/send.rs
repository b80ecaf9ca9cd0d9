//! Chains of requests: built once, posted with one doorbell, reused.
//!
//! A chain owns arrays of fixed size for requests, segments and inline bytes. Pushing writes into them, posting links them;
//! neither allocates. What a request names stays where it is: memory is named by key and address, not borrowed.

use std::mem::zeroed;
use std::ptr::{self, NonNull};

use kvrail_verbs_sys as sys;
use sys::{ibv_send_flags as send_flag, ibv_wr_opcode as opcode};

use crate::memory::{Access, MemoryRegion};
use crate::window::MemoryWindow;

/// A piece of registered memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// How long it is, in bytes.
    pub bytes: u32,
    /// Key of the region.
    pub lkey: u32,
}

impl Segment {
    pub(crate) fn raw(self) -> sys::ibv_sge {
        sys::ibv_sge { addr: self.address, length: self.bytes, lkey: self.lkey }
    }
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins.
    pub address: u64,
    /// Key of the region or window.
    pub rkey: u32,
}

/// What a request carries, or fills.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Pieces of registered memory, one after the other.
    Segments(&'a [Segment]),
    /// Bytes that travel inside the request; copied now. Not for READs.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// Nothing.
    pub const NONE: Self = Self::Segments(&[]);
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Writes into the peer's memory.
    Write(Remote),
    /// The same, and takes one of the peer's receives to hand over 32 bits.
    WriteImmediate(Remote, u32),
    /// Reads from the peer's memory.
    Read(Remote),
    /// Fills one of the peer's receives.
    Send,
    /// The same, with 32 bits.
    SendImmediate(u32),
    /// The same, and makes a key of the peer's void.
    SendInvalidate(u32),
    /// Makes a key of this side void: that of a window of type 2.
    Invalidate(u32),
    /// Binds a window of type 2 to a part of a region, for this queue pair.
    Bind {
        /// The window.
        window: &'a MemoryWindow,
        /// The region, with `WINDOW_BIND`.
        region: &'a MemoryRegion,
        /// Where the part begins.
        address: u64,
        /// How long it is, in bytes.
        bytes: u64,
        /// What the peer may do with it.
        access: Access,
        /// The key: [`MemoryWindow::next_rkey`].
        rkey: u32,
    },
}

bitflags::bitflags! {
    /// How a request behaves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u32 {
        /// It raises a completion. Without, only an error does, and the place it takes is free once a later one has completed.
        const SIGNALED = send_flag::IBV_SEND_SIGNALED.0;
        /// It starts when earlier READs are done.
        const FENCE = send_flag::IBV_SEND_FENCE.0;
        /// The peer's queue raises an event even if that waits for solicited ones only.
        const SOLICITED = send_flag::IBV_SEND_SOLICITED.0;
    }
}

/// A chain has no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chain is full")]
pub struct ChainFull;

/// Requests to be posted together.
pub struct SendChain {
    /// Until the chain is linked, `sg_list` holds the place of the first segment, or of the first inline byte.
    requests: Vec<sys::ibv_send_wr>,
    segments: Vec<sys::ibv_sge>,
    inline: Vec<u8>,
    /// Windows and regions that requests of the chain point to, with the request's place.
    bound: Vec<(usize, MemoryWindow, MemoryRegion)>,
    is_linked: bool,
}

// SAFETY: its pointers go into its own arrays, and to windows and regions that it holds.
unsafe impl Send for SendChain {}

impl SendChain {
    /// A chain with room for so many requests, with so many segments and inline bytes in all.
    pub fn with_capacity(requests: usize, segments: usize, inline_bytes: usize) -> Self {
        Self {
            requests: Vec::with_capacity(requests),
            // An inline request takes a segment as well.
            segments: Vec::with_capacity(segments + requests),
            inline: Vec::with_capacity(inline_bytes),
            bound: Vec::new(),
            is_linked: false,
        }
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Empties it, and keeps its arrays. Windows and regions that it binds are held until then.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
        self.inline.clear();
        self.bound.clear();
        self.is_linked = false;
    }

    /// Adds a request. `id` comes back with its completion.
    ///
    /// # Errors
    ///
    /// [`ChainFull`]; the chain is as it was.
    pub fn push(&mut self, id: u64, operation: Operation<'_>, data: Data<'_>, flags: Flags) -> Result<(), ChainFull> {
        let (segments, inline) = match data {
            Data::Segments(segments) => (segments.len(), 0),
            Data::Inline(bytes) => (1, bytes.len()),
        };
        let has_room = self.requests.len() < self.requests.capacity()
            && self.segments.len() + segments <= self.segments.capacity()
            && self.inline.len() + inline <= self.inline.capacity();
        if !has_room {
            return Err(ChainFull);
        }
        self.unlink();
        // SAFETY: all zeroes is a value of it.
        let mut raw: sys::ibv_send_wr = unsafe { zeroed() };
        raw.wr_id = id;
        raw.send_flags = flags.bits();
        raw.sg_list = ptr::without_provenance_mut(self.segments.len());
        raw.num_sge = i32::try_from(segments).map_err(|_| ChainFull)?;
        match data {
            Data::Segments(segments) => self.segments.extend(segments.iter().map(|segment| segment.raw())),
            Data::Inline(bytes) => {
                raw.send_flags |= send_flag::IBV_SEND_INLINE.0;
                let length = u32::try_from(bytes.len()).map_err(|_| ChainFull)?;
                self.segments.push(sys::ibv_sge { addr: self.inline.len() as u64, length, lkey: 0 });
                self.inline.extend_from_slice(bytes);
            }
        }
        self.set_operation(&mut raw, operation);
        self.requests.push(raw);
        Ok(())
    }

    fn set_operation(&mut self, raw: &mut sys::ibv_send_wr, operation: Operation<'_>) {
        let mut to = |remote: Remote| {
            raw.wr.rdma.remote_addr = remote.address;
            raw.wr.rdma.rkey = remote.rkey;
        };
        match operation {
            Operation::Write(remote) => {
                to(remote);
                raw.opcode = opcode::IBV_WR_RDMA_WRITE;
            }
            Operation::WriteImmediate(remote, immediate) => {
                to(remote);
                raw.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                raw.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            Operation::Read(remote) => {
                to(remote);
                raw.opcode = opcode::IBV_WR_RDMA_READ;
            }
            Operation::Send => raw.opcode = opcode::IBV_WR_SEND,
            Operation::SendImmediate(immediate) => {
                raw.opcode = opcode::IBV_WR_SEND_WITH_IMM;
                raw.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            Operation::SendInvalidate(rkey) => {
                raw.opcode = opcode::IBV_WR_SEND_WITH_INV;
                raw.__bindgen_anon_1.invalidate_rkey = rkey;
            }
            Operation::Invalidate(rkey) => {
                raw.opcode = opcode::IBV_WR_LOCAL_INV;
                raw.__bindgen_anon_1.invalidate_rkey = rkey;
            }
            Operation::Bind { window, region, address, bytes, access, rkey } => {
                raw.opcode = opcode::IBV_WR_BIND_MW;
                // SAFETY: every member of this union is plain data, and zeroes are a value of it.
                let bind = unsafe { &mut raw.__bindgen_anon_2.bind_mw };
                bind.mw = window.raw();
                bind.rkey = rkey;
                bind.bind_info.mr = region.raw();
                bind.bind_info.addr = address;
                bind.bind_info.length = bytes;
                bind.bind_info.mw_access_flags = access.bits();
                self.bound.push((self.requests.len(), window.clone(), region.clone()));
            }
        }
    }

    /// Has the last request raise a completion: with it, all before it are done as well.
    pub fn signal_last(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= send_flag::IBV_SEND_SIGNALED.0;
        }
    }

    /// Takes the first `count` requests away, those that a failed post has posted.
    pub fn discard(&mut self, count: usize) {
        self.unlink();
        self.requests.drain(..count.min(self.requests.len()));
        self.bound.retain_mut(|(place, _, _)| {
            *place = place.wrapping_sub(count);
            *place < usize::MAX / 2
        });
    }

    /// Turns places into pointers; the first request.
    pub(crate) fn link(&mut self) -> Option<NonNull<sys::ibv_send_wr>> {
        let count = self.requests.len();
        let (requests, segments) = (self.requests.as_mut_ptr(), self.segments.as_mut_ptr());
        if !self.is_linked {
            for place in 0..count {
                // SAFETY: `place` and its successor lie in the array. The segment's place was that of one of the request's, or
                // the array's end where it has none; an inline segment holds a place in the inline bytes.
                unsafe {
                    let request = &mut *requests.add(place);
                    request.next = if place + 1 < count { requests.add(place + 1) } else { ptr::null_mut() };
                    request.sg_list = segments.add(request.sg_list.addr());
                    if request.send_flags & send_flag::IBV_SEND_INLINE.0 != 0 {
                        let inline = &mut *request.sg_list;
                        inline.addr = self.inline.as_ptr().add(inline.addr as usize).expose_provenance() as u64;
                    }
                }
            }
            self.is_linked = true;
        }
        NonNull::new(requests).filter(|_| count > 0)
    }

    /// Turns pointers back into places, so that the arrays may change.
    fn unlink(&mut self) {
        if !std::mem::take(&mut self.is_linked) {
            return;
        }
        let (segments, inline) = (self.segments.as_ptr().addr(), self.inline.as_ptr().addr());
        for request in &mut self.requests {
            let place = (request.sg_list.addr() - segments) / size_of::<sys::ibv_sge>();
            request.sg_list = ptr::without_provenance_mut(place);
            if request.send_flags & send_flag::IBV_SEND_INLINE.0 != 0 {
                self.segments[place].addr -= inline as u64;
            }
        }
    }

    /// Which request a pointer that posting gave back is: how many come before it.
    pub(crate) fn place_of(&self, request: *const sys::ibv_send_wr) -> usize {
        let offset = request.addr().wrapping_sub(self.requests.as_ptr().addr());
        (offset / size_of::<sys::ibv_send_wr>()).min(self.requests.len())
    }

    /// Notes the keys of binds that were posted.
    pub(crate) fn note_binds(&self, posted: usize) {
        for (place, window, _) in self.bound.iter().filter(|(place, _, _)| *place < posted) {
            // SAFETY: the request is a bind, so this member is the one that was set.
            window.bound_under(unsafe { self.requests[*place].__bindgen_anon_2.bind_mw.rkey });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: Remote = Remote { address: 0x1000, rkey: 7 };

    fn segment(address: u64) -> Segment {
        Segment { address, bytes: 8, lkey: 1 }
    }

    /// Ids of a linked chain with the addresses of their segments, as a driver would walk it.
    fn walk(chain: &mut SendChain) -> Vec<(u64, Vec<u64>)> {
        let mut next = chain.link().map_or(ptr::null_mut(), NonNull::as_ptr);
        let mut seen = Vec::new();
        while !next.is_null() {
            // SAFETY: a linked chain.
            let request = unsafe { &*next };
            // SAFETY: as above.
            let segments = unsafe { std::slice::from_raw_parts(request.sg_list, request.num_sge as usize) };
            seen.push((request.wr_id, segments.iter().map(|s| s.addr).collect()));
            next = request.next;
        }
        seen
    }

    #[test]
    fn a_chain_is_linked_in_order_with_each_requests_own_segments() {
        let mut chain = SendChain::with_capacity(3, 3, 0);
        let two = [segment(1), segment(2)];
        chain.push(10, Operation::Write(REMOTE), Data::Segments(&two), Flags::empty()).expect("room");
        chain.push(11, Operation::Invalidate(9), Data::NONE, Flags::empty()).expect("room");
        assert_eq!(walk(&mut chain), [(10, vec![1, 2]), (11, vec![])]);
        chain.push(12, Operation::Read(REMOTE), Data::Segments(&[segment(3)]), Flags::SIGNALED).expect("room");
        let whole = [(10, vec![1, 2]), (11, vec![]), (12, vec![3])];
        assert_eq!(walk(&mut chain), whole, "a chain that was linked grows");
        assert_eq!(walk(&mut chain), whole, "and is linked once");
        chain.discard(1);
        assert_eq!(walk(&mut chain), whole[1..], "what was posted is taken off the front");
        chain.clear();
        assert!(chain.link().is_none());
    }

    #[test]
    fn inline_bytes_are_copied_and_pointed_to() {
        let mut chain = SendChain::with_capacity(2, 0, 6);
        let mut bytes = *b"abc";
        chain.push(1, Operation::Write(REMOTE), Data::Inline(&bytes), Flags::empty()).expect("room");
        bytes.fill(0);
        let first = chain.link().expect("one request");
        chain.push(2, Operation::Send, Data::Inline(b"def"), Flags::empty()).expect("room");
        assert_eq!(first, chain.link().expect("two requests"));
        for (place, wanted) in [b"abc", b"def"].into_iter().enumerate() {
            // SAFETY: a linked chain with two inline requests of three bytes.
            let found = unsafe {
                let segment = *chain.requests[place].sg_list;
                std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(segment.addr as usize), 3)
            };
            assert_eq!(found, wanted);
        }
        assert_eq!(chain.push(3, Operation::Send, Data::NONE, Flags::empty()), Err(ChainFull));
    }

    #[test]
    fn the_request_that_was_refused_is_found() {
        let mut chain = SendChain::with_capacity(3, 0, 0);
        for id in 0..3 {
            chain.push(id, Operation::Send, Data::NONE, Flags::empty()).expect("room");
        }
        let first = chain.link().expect("requests").as_ptr();
        for place in 0..3 {
            assert_eq!(chain.place_of(first.wrapping_add(place)), place);
        }
        assert_eq!(chain.place_of(ptr::null()), 3, "none: all were taken");
    }

    #[test]
    fn nothing_grows_past_what_was_asked_for() {
        let mut chain = SendChain::with_capacity(1, 1, 4);
        assert_eq!(chain.push(0, Operation::Send, Data::Inline(&[0; 5]), Flags::empty()), Err(ChainFull));
        let three = [segment(1); 3];
        assert_eq!(chain.push(0, Operation::Send, Data::Segments(&three), Flags::empty()), Err(ChainFull));
        assert!(chain.is_empty());
    }
}
