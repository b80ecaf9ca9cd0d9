//! Their end: the crate `ibverbs`, which links libibverbs and has its bindings from rdma-core's own headers.

use std::ops::Range;

use ibverbs::{CompletionQueue, MemoryRegion, PreparedQueuePair, ProtectionDomain, QueuePair, QueuePairEndpoint};

use crate::ours::{Device, Endpoint, FIRST_SENT};
use crate::wait;

/// Requests and receives that may wait at once.
const DEPTH: u32 = 64;

/// 1024 bytes a packet, as verbs number it.
const MTU: u32 = 3;

/// A queue pair that is not connected yet.
pub struct Unconnected<'a> {
    domain: &'a ProtectionDomain<'a>,
    queue: &'a CompletionQueue<'a>,
    qp: PreparedQueuePair<'a>,
}

/// A queue pair that is.
pub struct Theirs<'a> {
    domain: &'a ProtectionDomain<'a>,
    queue: &'a CompletionQueue<'a>,
    qp: QueuePair<'a>,
    /// Where it is reached.
    pub endpoint: Endpoint,
}

/// All devices that are ready.
pub fn devices() -> Vec<Device> {
    let devices = ibverbs::devices().expect("a list");
    let told = devices.iter().map(|device| {
        let context = device.open().expect("opened");
        let gids = context.gid_table().iter().map(|entry| (entry.gid_index, bytes(entry.gid), is_v2(entry))).collect();
        // As the library gives it: in network order.
        let guid = u64::from_be(device.guid().expect("a GUID").into());
        Device { name: name(&device), guid, gids }
    });
    told.collect()
}

fn name(device: &ibverbs::Device<'_>) -> String {
    device.name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_v2(entry: &ibverbs::GidEntry) -> bool {
    entry.gid_type == ibverbs_sys::IBV_GID_TYPE_ROCE_V2
}

fn bytes(gid: ibverbs::Gid) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gid.subnet_prefix().to_be_bytes());
    bytes[8..].copy_from_slice(&gid.interface_id().to_be_bytes());
    bytes
}

/// Opens a device and makes a queue pair, for as long as the call takes.
pub fn with(nic: &str, use_it: impl FnOnce(Unconnected<'_>)) {
    let devices = ibverbs::devices().expect("a list");
    let device = devices.iter().find(|device| name(device) == nic).unwrap_or_else(|| panic!("there is no {nic}"));
    let context = device.open().expect("opened");
    // RoCE v2 with an IPv4 address.
    let is_ipv4 = |gid: ibverbs::Gid| gid.subnet_prefix() == 0 && gid.interface_id() >> 32 == 0xffff;
    let gid = context.gid_table().iter().find(|entry| is_v2(entry) && is_ipv4(entry.gid));
    let gid = gid.expect("a GID with an IPv4 address").gid_index;
    let queue = context.create_cq(4 * DEPTH as i32, 0).expect("a queue");
    let domain = context.alloc_pd().expect("a domain");
    let qp = domain
        .create_qp(&queue, &queue, ibverbs::ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(gid)
        .set_max_send_wr(DEPTH)
        .set_max_recv_wr(DEPTH)
        .set_path_mtu(MTU)
        .set_timeout(16)
        .set_retry_count(7)
        .set_rnr_retry(7)
        .set_rq_psn(FIRST_SENT)
        .allow_remote_rw()
        .build()
        .expect("a queue pair");
    use_it(Unconnected { domain: &domain, queue: &queue, qp });
}

impl<'a> Unconnected<'a> {
    /// Takes the queue pair to where it receives and sends.
    pub fn connect(self, to: Endpoint) -> Theirs<'a> {
        let QueuePairEndpoint { num, lid, gid } = self.qp.endpoint();
        let endpoint = Endpoint { num, lid, gid: bytes(gid.expect("an index was set")) };
        let gid = ibverbs_sys::ibv_gid { raw: to.gid };
        let remote = QueuePairEndpoint { num: to.num, lid: to.lid, gid: Some(gid.into()) };
        let qp = self.qp.handshake(remote).expect("connected");
        Theirs { domain: self.domain, queue: self.queue, qp, endpoint }
    }
}

impl Theirs<'_> {
    pub fn memory(&self, bytes: usize) -> MemoryRegion<u8> {
        self.domain.allocate(bytes).expect("registered")
    }

    /// Sends a part of the memory.
    pub fn send(&mut self, memory: &mut MemoryRegion<u8>, range: Range<usize>, id: u64) {
        // SAFETY: the memory is kept until the completion has come.
        unsafe { self.qp.post_send(memory, range, id) }.expect("posted");
    }

    /// Posts a part of the memory as a receive.
    pub fn receive(&mut self, memory: &mut MemoryRegion<u8>, range: Range<usize>, id: u64) {
        // SAFETY: the memory is kept until the completion has come.
        unsafe { self.qp.post_receive(memory, range, id) }.expect("posted");
    }

    /// The next so many completions.
    pub fn completions(&self, count: usize) -> Vec<ibverbs::ibv_wc> {
        wait(count, "theirs", || {
            let mut room = [ibverbs::ibv_wc::default(); 16];
            self.queue.poll(&mut room).expect("polled").to_vec()
        })
    }
}
