//! Our end: kvrail-verbs.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use kvrail_verbs::{
    Access, Capacity, Completion, CompletionQueue, Context, Data, Flags, Gid, GidEntry, GidKind, MemoryRegion, Mtu,
    Operation, Path, ProtectionDomain, QueuePair, ReceiveChain, Segment, SendChain, ToInit, ToRtr, ToRts, Verbs,
};

use crate::wait;

/// The port that is used.
const PORT: u8 = 1;

/// Requests and receives that may wait at once.
const DEPTH: u32 = 64;

/// What either crate tells of a device.
#[derive(Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub guid: u64,
    /// Index, address, and whether it is one of RoCE v2.
    pub gids: Vec<(u32, [u8; 16], bool)>,
}

/// Where a queue pair is reached.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    pub num: u32,
    pub lid: u16,
    pub gid: [u8; 16],
}

/// All devices that are ready.
pub fn devices() -> Vec<Device> {
    let devices = Verbs::open().expect("libibverbs").devices().expect("a list");
    let told = devices.iter().map(|device| {
        let gids = device.open().expect("opened").gids(PORT).expect("GIDs");
        let gids = gids.iter().map(|entry| (entry.index, entry.gid.0, entry.kind == GidKind::RoceV2)).collect();
        Device { name: device.name(), guid: device.guid(), gids }
    });
    told.collect()
}

/// A device in use and one queue pair on it.
pub struct Ours {
    context: Context,
    gid: GidEntry,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pub qp: QueuePair,
}

impl Ours {
    pub fn new(nic: &str) -> Self {
        let devices = Verbs::open().expect("libibverbs").devices().expect("a list");
        let context = devices.find(nic).unwrap_or_else(|| panic!("there is no {nic}")).open().expect("opened");
        let gids = context.gids(PORT).expect("GIDs");
        let gid = gids.into_iter().find(|entry| entry.kind == GidKind::RoceV2 && entry.gid.is_ipv4());
        let gid = gid.expect("a GID with an IPv4 address");
        let domain = context.protection_domain().expect("a domain");
        let queue = context.completion_queue(4 * DEPTH, None).expect("a queue");
        let capacity = Capacity { sends: DEPTH, receives: DEPTH, receive_segments: 2, ..Default::default() };
        let qp = domain.queue_pair(&queue).capacity(capacity).build().expect("a queue pair");
        let access = Access::LOCAL_WRITE;
        qp.to_init(ToInit { port: PORT, pkey_index: 0, access }).expect("init");
        Self { context, gid, domain, queue, qp }
    }

    pub fn endpoint(&self) -> Endpoint {
        let lid = self.context.port(PORT).expect("a port").lid;
        Endpoint { num: self.qp.number(), lid, gid: self.gid.gid.0 }
    }

    /// Takes the queue pair to where it sends. The crate at the other end begins its packets with number 0.
    pub fn connect(&self, to: Endpoint) {
        let path = Path {
            port: PORT,
            source_gid_index: self.gid.index as u8,
            destination_gid: Some(Gid(to.gid)),
            destination_lid: to.lid,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let to_rtr = ToRtr {
            path,
            mtu: Mtu::B1024,
            destination: to.num,
            receive_sequence: 0,
            reads_answered: 1,
            not_ready_timer: 12,
        };
        self.qp.to_rtr(to_rtr).expect("ready to receive");
        let to_rts =
            ToRts { timeout: 16, retries: 7, not_ready_retries: 7, send_sequence: FIRST_SENT, reads_started: 1 };
        self.qp.to_rts(to_rts).expect("ready to send");
    }

    pub fn memory(&self, bytes: usize) -> Memory {
        Memory::new(&self.domain, bytes)
    }

    /// Posts one request, signalled.
    pub fn post(&self, id: u64, operation: Operation<'_>, data: Data<'_>) {
        let mut chain = SendChain::with_capacity(1, 1, 0);
        chain.push(id, operation, data, Flags::SIGNALED).expect("room");
        self.qp.post_send(&mut chain).expect("posted");
    }

    /// Posts a receive.
    pub fn receive(&self, id: u64, segments: &[Segment]) {
        let mut chain = ReceiveChain::with_capacity(1, segments.len());
        chain.push(id, segments).expect("room");
        self.qp.post_receive(&mut chain).expect("posted");
    }

    /// The next so many completions.
    pub fn completions(&self, count: usize) -> Vec<Completion> {
        wait(count, "ours", || {
            let mut room = [Completion::default(); 16];
            self.queue.poll(&mut room).expect("polled").to_vec()
        })
    }
}

/// Number of the first packet of ours.
pub const FIRST_SENT: u32 = 0x00ff_fff0;

/// Registered memory of its own pages. The region goes first.
pub struct Memory {
    region: MemoryRegion,
    pages: Pages,
}

struct Pages {
    address: NonNull<u8>,
    layout: Layout,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

impl Memory {
    fn new(domain: &ProtectionDomain, bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
        // SAFETY: not of size 0.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        // SAFETY: the pages are freed after the region, and only copied in and out of.
        let region = unsafe { domain.register(address, bytes, Access::LOCAL_WRITE) }.expect("registered");
        Self { region, pages: Pages { address, layout } }
    }

    pub fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.pages.layout.size());
        // SAFETY: as long as the pages.
        unsafe { self.pages.address.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.pages.layout.size()];
        // SAFETY: as long as the pages.
        unsafe { self.pages.address.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), bytes.len()) };
        bytes
    }

    pub fn segment(&self, from: usize, bytes: usize) -> Segment {
        assert!(from + bytes <= self.pages.layout.size());
        let address = self.pages.address.as_ptr().expose_provenance() as u64;
        Segment { address: address + from as u64, bytes: bytes as u32, lkey: self.region.lkey() }
    }
}
