//! Receives: where sends of the peer go, and what immediates take.

use std::ptr;

use kvrail_verbs_sys as sys;

use crate::error::PostError;
use crate::send::{ChainFull, Segment};

/// Receives to be posted together; built once and reused, as [`SendChain`](crate::SendChain) is.
pub struct ReceiveChain {
    /// `sg_list` holds the place of the first segment until the chain is posted, and again after.
    requests: Vec<sys::ibv_recv_wr>,
    segments: Vec<sys::ibv_sge>,
}

// SAFETY: its pointers go into its own arrays.
unsafe impl Send for ReceiveChain {}

impl ReceiveChain {
    /// A chain with room for so many receives, with so many segments in all.
    pub fn with_capacity(receives: usize, segments: usize) -> Self {
        Self { requests: Vec::with_capacity(receives), segments: Vec::with_capacity(segments) }
    }

    /// Receives in it.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Empties it, and keeps its arrays.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
    }

    /// Adds a receive; one for immediates needs no segments. `id` comes back with its completion.
    ///
    /// # Errors
    ///
    /// [`ChainFull`]; the chain is as it was.
    pub fn push(&mut self, id: u64, segments: &[Segment]) -> Result<(), ChainFull> {
        let has_room = self.requests.len() < self.requests.capacity()
            && self.segments.len() + segments.len() <= self.segments.capacity();
        let count = i32::try_from(segments.len()).ok().filter(|_| has_room).ok_or(ChainFull)?;
        let sg_list = ptr::without_provenance_mut(self.segments.len());
        self.requests.push(sys::ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge: count });
        self.segments.extend(segments.iter().map(|segment| segment.raw()));
        Ok(())
    }

    /// Takes the first `count` receives away, those that a failed post has posted.
    pub fn discard(&mut self, count: usize) {
        self.requests.drain(..count.min(self.requests.len()));
    }

    /// Links the chain and has it posted.
    pub(crate) fn post(
        &mut self,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> Result<(), PostError> {
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let (requests, segments) = (self.requests.as_mut_ptr(), self.segments.as_mut_ptr());
        for place in 0..count {
            // SAFETY: `place` and its successor lie in the array; the segment's place does in its own, or is its end.
            unsafe {
                let request = &mut *requests.add(place);
                request.next = if place + 1 < count { requests.add(place + 1) } else { ptr::null_mut() };
                request.sg_list = segments.add(request.sg_list.addr());
            }
        }
        let mut bad = requests;
        let code = post(requests, &raw mut bad);
        for request in &mut self.requests {
            let place = (request.sg_list.addr() - segments.addr()) / size_of::<sys::ibv_sge>();
            request.sg_list = ptr::without_provenance_mut(place);
        }
        if code == 0 {
            return Ok(());
        }
        let offset = bad.addr().wrapping_sub(self.requests.as_ptr().addr());
        let posted = (offset / size_of::<sys::ibv_recv_wr>()).min(count);
        Err(PostError { posted, errno: code.abs() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_linked_in_order_and_a_refusal_tells_where() {
        let mut chain = ReceiveChain::with_capacity(3, 2);
        let segment = |address| Segment { address, bytes: 8, lkey: 1 };
        chain.push(1, &[segment(10)]).expect("room");
        chain.push(2, &[]).expect("room");
        chain.push(3, &[segment(30)]).expect("room");
        assert_eq!(chain.push(4, &[]), Err(ChainFull));
        for _ in 0..2 {
            let mut seen = Vec::new();
            let outcome = chain.post(|mut next, bad| {
                while !next.is_null() {
                    // SAFETY: a linked chain.
                    let request = unsafe { &*next };
                    // SAFETY: as above; the segment is read where there is one.
                    let address = (request.num_sge > 0).then(|| unsafe { (*request.sg_list).addr });
                    seen.push((request.wr_id, address));
                    if request.wr_id == 3 {
                        // SAFETY: it may be written.
                        unsafe { *bad = next };
                    }
                    next = request.next;
                }
                libc::ENOMEM
            });
            assert_eq!(outcome, Err(PostError { posted: 2, errno: libc::ENOMEM }));
            assert_eq!(seen, [(1, Some(10)), (2, None), (3, Some(30))], "as often as it is posted");
        }
    }
}
