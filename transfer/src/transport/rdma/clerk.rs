//! The thread that does what would hold workers up: registering memory, which takes milliseconds a gigabyte and a second for pages
//! that are not there yet, and hearing what NICs report on their own.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvrail_verbs::AsyncEvent;

use crate::mailbox::Mailbox;
use crate::memory::Region;
use crate::session::lease::LeaseState;
use crate::transport::rdma::{Nic, memory};
use crate::transport::sys::Poller;

/// Memory is wanted by a rail. At most one for each part or lease that a rail waits for.
pub(super) struct Order {
    pub(super) nic: Arc<Nic>,
    pub(super) what: What,
    pub(super) to: Arc<Mailbox<Note>>,
}

/// What is to be registered.
pub(super) enum What {
    /// A part of a region.
    Part(Region, u32),
    /// What a lease is of, for it alone.
    Lease(Arc<LeaseState>),
}

/// What a rail is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A part that it wanted is registered now, or cannot be.
    Registered { region: u64, chunk: u32, made: bool },
    /// A lease that it lends is guarded now, or cannot be; by its key.
    Guarded { lease: u64, made: bool },
    /// The port of its NIC is down.
    PortDown,
    /// A queue pair of its NIC is in error.
    PairFailed { number: u32 },
    /// Its NIC has failed.
    Dead,
}

struct Desk {
    orders: Mailbox<Order>,
    closing: AtomicBool,
}

/// Handle of the thread; it ends with the last one.
pub(crate) struct Clerk(Arc<Desk>);

impl Clerk {
    /// Starts it for these NICs.
    pub(crate) fn start(nics: &[Arc<Nic>]) -> std::io::Result<Arc<Self>> {
        let (mut poller, waker) = Poller::new()?;
        for (key, nic) in (0..).zip(nics) {
            poller.add(nic.context.as_fd().as_raw_fd(), key)?;
        }
        let desk = Arc::new(Desk { orders: Mailbox::new(waker), closing: AtomicBool::new(false) });
        let (mine, nics) = (Arc::clone(&desk), nics.to_vec());
        std::thread::Builder::new().name("kvrail-clerk".into()).spawn(move || {
            while !mine.closing.load(Ordering::Acquire) {
                mine.orders.listen();
                mine.orders.take().into_iter().for_each(carry_out);
                nics.iter().for_each(|nic| hear(nic));
                if let Err(error) = poller.wait(None, |_, _| {}) {
                    tracing::error!(%error, "RDMA memory can no longer be registered");
                    return;
                }
            }
        })?;
        Ok(Arc::new(Self(desk)))
    }

    pub(super) fn order(&self, order: Order) {
        self.0.orders.post(order);
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::Release);
        self.0.orders.wake();
    }
}

fn carry_out(Order { nic, what, to }: Order) {
    let tell = |region: u64, made: Result<(), memory::RegisterError>| {
        if let Err(error) = &made {
            tracing::warn!(nic = %nic.name, region, error = %causes(error), "memory cannot be registered");
        }
        made.is_ok()
    };
    to.post(match what {
        What::Part(region, chunk) => {
            let made = tell(region.id(), memory::register(&region, &nic, chunk));
            Note::Registered { region: region.id(), chunk, made }
        }
        What::Lease(lease) => {
            // Pinned: its end, which takes its guards along, waits for this.
            let pin = lease.pin(Instant::now());
            let made = pin.is_ok_and(|pin| tell(lease.region, memory::guard(pin.region(), &nic, &lease)));
            Note::Guarded { lease: lease.key, made }
        }
    });
}

/// An error with its causes.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn hear(nic: &Nic) {
    // Bounded: a device that reports without end must not keep us from registering.
    for _ in 0..64 {
        let note = match nic.context.event() {
            Ok(None) => return,
            Ok(Some(AsyncEvent::PortError { port })) if port == u32::from(nic.name.port) => Note::PortDown,
            Ok(Some(AsyncEvent::QueuePairError { qp, .. })) => Note::PairFailed { number: qp },
            Ok(Some(AsyncEvent::DeviceFatal)) => Note::Dead,
            Ok(Some(event)) => {
                tracing::debug!(nic = %nic.name, ?event, "an RDMA device reports");
                continue;
            }
            Err(error) => {
                tracing::warn!(nic = %nic.name, error = %causes(&error), "an RDMA device cannot be heard");
                return;
            }
        };
        tracing::info!(nic = %nic.name, ?note, "an RDMA device reports");
        nic.tell(note);
    }
}
