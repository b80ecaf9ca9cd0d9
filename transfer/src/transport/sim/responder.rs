//! The owner's end of a queue pair: checks each request against the leases and moves its bytes, without a worker.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::mailbox::Mailbox;
use crate::memory;
use crate::plan::{Direction, Refusal};
use crate::session::lease::Access;
use crate::telemetry::count;
use crate::transport::Owner;
use crate::transport::onesided::{Key, Request};
use crate::transport::sim::Fabric;
use crate::transport::sim::pair::{Posted, Word};

/// What a responder answers instead of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nak {
    /// No lease allows it (any more). On a wire there is no room for more of a reason than this.
    RemoteAccess,
    /// Nobody answers.
    NoResponder,
}

/// Serves the requests of one requester while it is open.
pub(super) struct Responder {
    number: u64,
    /// Number of the requester that it was made for.
    requester: u64,
    owner: Arc<Owner>,
    fabric: Fabric,
    /// Of the device that it belongs to.
    words: Arc<Mailbox<Word>>,
    /// Held while a request is carried out, so that closing waits for it.
    open: Mutex<bool>,
}

impl Responder {
    pub(super) fn open(fabric: &Fabric, owner: Arc<Owner>, words: Arc<Mailbox<Word>>, requester: u64) -> Arc<Self> {
        let number = crate::random::u64();
        let (fabric, open) = (fabric.clone(), Mutex::new(true));
        let responder = Arc::new(Self { number, requester, owner, fabric, words, open });
        responder.fabric.plug(&responder);
        responder
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Serves nothing from here on: when this returns, nothing is being carried out any more.
    pub(super) fn close(&self) {
        *self.open.lock() = false;
        self.fabric.unplug(self.number);
    }

    /// Carries a request out, or turns it away.
    pub(super) fn serve(&self, requester: u64, posted: &Posted) -> Result<(), Nak> {
        let open = self.open.lock();
        if !*open || requester != self.requester {
            return Err(Nak::NoResponder);
        }
        let carried_out = match posted {
            Posted::Request { request, .. } if self.fabric.options().windows => self.carry_out(request),
            Posted::Request { request, keys } => self.carry_out_unasked(request, keys),
            Posted::Vouch(word) => {
                self.words.post(Word::Vouched(*word));
                Ok(())
            }
        };
        carried_out.map_err(|_| {
            count(&self.owner.counters.frames_refused, 1);
            Nak::RemoteAccess
        })
    }

    /// As a NIC without windows does it: the key opens the region, and nobody asks for a lease.
    fn carry_out_unasked(&self, request: &Request, keys: &[Key]) -> Result<(), Refusal> {
        let region = keys.first().and_then(|key| self.fabric.region(key.key)).ok_or(Refusal::Stale)?;
        let mut flipper = self.owner.flipper.as_ref().filter(|_| request.direction == Direction::Write);
        for piece in &request.pieces {
            let local = request.job.region.at(piece.local, piece.len).ok_or(Refusal::Malformed)?;
            let lent = region.at(piece.remote, piece.len).ok_or(Refusal::OutsideLease)?;
            let len = piece.len as usize;
            self.owner.about_to_copy();
            // SAFETY: `at` proved both ranges; both regions are held until the copy is done. They may be one: the copy allows it.
            unsafe {
                match request.direction {
                    Direction::Write => memory::copy_within(local, lent, len),
                    Direction::Read => memory::copy_within(lent, local, len),
                }
                if let Some(flipper) = flipper.take() {
                    flipper.strike(lent, len);
                }
            }
        }
        Ok(())
    }

    fn carry_out(&self, request: &Request) -> Result<(), Refusal> {
        let (job, pieces) = (&request.job, &request.pieces);
        let access = match request.direction {
            Direction::Write => Access::Write,
            Direction::Read => Access::Read,
        };
        let ranges = pieces.iter().map(|piece| (piece.remote, piece.len));
        let pin = self.owner.admit(job.generation, job.lease, job.key, access, ranges, Instant::now())?;
        // One strike a request, as over the other transports.
        let mut flipper = self.owner.flipper.as_ref().filter(|_| access == Access::Write);
        for piece in pieces {
            // Revoked meanwhile: the fence waits for this loop alone, one piece at most.
            if pin.lease().is_revoked() {
                return Err(Refusal::Stale);
            }
            let local = job.region.at(piece.local, piece.len).ok_or(Refusal::Malformed)?;
            let lent = pin.region().at(piece.remote, piece.len).ok_or(Refusal::OutsideLease)?;
            let len = piece.len as usize;
            self.owner.about_to_copy();
            // SAFETY: `at` proved both ranges; the request's job and the pin keep their regions mapped, and the pin keeps the
            // lent one lent. Both may be of one region of this process: the copy allows that.
            unsafe {
                match access {
                    Access::Write => memory::copy_within(local, lent, len),
                    Access::Read => memory::copy_within(lent, local, len),
                }
                if let Some(flipper) = flipper.take() {
                    flipper.strike(lent, len);
                }
            }
        }
        match access {
            Access::Write => {
                pin.lease().add_landed(request.bytes);
                count(&self.owner.counters.bytes_received, request.bytes);
                Ok(())
            }
            Access::Read if pin.lease().holds(Instant::now()) => Ok(()),
            Access::Read => Err(Refusal::Stale),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.fabric.unplug(self.number);
    }
}
