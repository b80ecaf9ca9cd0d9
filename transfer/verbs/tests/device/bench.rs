//! Two ends with a connected pair between them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::error::Error as _;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use kvrail_verbs::{
    Access, Capacity, Completion, CompletionChannel, CompletionQueue, Context, Data, Flags, Gid, GidEntry, GidKind,
    MemoryRegion, Mtu, Operation, Path, PortState, ProtectionDomain, QueuePair, ReceiveChain, Remote, Segment,
    SendChain, ToInit, ToRtr, ToRts, Verbs,
};

/// How long anything is waited for; a guest without hardware shares a busy processor.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The port that is used.
pub const PORT: u8 = 1;

/// Everything that a peer may do.
pub const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::WINDOW_BIND);

/// Two devices that reach each other, or one that reaches itself.
pub struct Bench {
    pub devices: [(Context, GidEntry); 2],
}

impl Bench {
    /// The first two devices with an active port, or why there are none.
    pub fn find() -> Result<Self, String> {
        let verbs = Verbs::open().map_err(|e| e.to_string())?;
        let devices = verbs.devices().map_err(|e| format!("{e}: {:?}", e.source().map(ToString::to_string)))?;
        let mut usable = Vec::new();
        for device in devices.iter() {
            let context = device.open().map_err(|e| e.to_string())?;
            if context.port(PORT).map_err(|e| e.to_string())?.state == PortState::Active
                && let Some(gid) = best(&context.gids(PORT).map_err(|e| e.to_string())?)
            {
                usable.push((context, gid));
            }
        }
        let first =
            usable.first().cloned().ok_or_else(|| format!("{} devices, none with an active port", devices.len()))?;
        let second = usable.get(1).cloned().unwrap_or_else(|| first.clone());
        Ok(Self { devices: [first, second] })
    }

    pub fn describe(&self) -> String {
        let told =
            |(context, entry): &(Context, GidEntry)| format!("{} {} {:?}", context.name(), entry.gid, entry.kind);
        self.devices.iter().map(told).collect::<Vec<_>>().join(", ")
    }

    pub fn end(&self, which: usize) -> End {
        End::new(&self.devices[which], &Options::default())
    }

    /// A connected pair: the first sends, the second answers.
    pub fn pair(&self) -> [End; 2] {
        self.pair_with(&Options::default())
    }

    pub fn pair_with(&self, options: &Options) -> [End; 2] {
        let ends = [0, 1].map(|which| End::new(&self.devices[which], options));
        ends[0].connect(&ends[1], options);
        ends[1].connect(&ends[0], options);
        ends
    }
}

/// A GID that others reach: RoCE v2 with an IPv4 address before one without, before any other.
fn best(gids: &[GidEntry]) -> Option<GidEntry> {
    let rank = |entry: &&GidEntry| (entry.kind == GidKind::RoceV2, entry.gid.is_ipv4(), !entry.gid.is_link_local());
    gids.iter().max_by_key(rank).copied()
}

/// How a pair is set up.
#[derive(Clone, Copy)]
pub struct Options {
    pub access: Access,
    pub timeout: u8,
    pub retries: u8,
    pub not_ready_retries: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { access: ALL, timeout: 16, retries: 7, not_ready_retries: 7 }
    }
}

/// One end: a device in use and one queue pair on it.
pub struct End {
    pub context: Context,
    pub gid: GidEntry,
    pub domain: ProtectionDomain,
    pub channel: CompletionChannel,
    pub queue: CompletionQueue,
    pub qp: QueuePair,
}

impl End {
    pub fn new((context, gid): &(Context, GidEntry), options: &Options) -> Self {
        let domain = context.protection_domain().expect("a domain");
        let channel = context.completion_channel().expect("a channel");
        let queue = context.completion_queue(256, Some(&channel)).expect("a queue");
        let qp = domain.queue_pair(&queue).capacity(Capacity::default()).build().expect("a queue pair");
        qp.to_init(ToInit { port: PORT, pkey_index: 0, access: options.access & !Access::WINDOW_BIND }).expect("init");
        Self { context: context.clone(), gid: *gid, domain, channel, queue, qp }
    }

    /// Takes the queue pair from `Init` to `ReadyToSend`.
    pub fn connect(&self, peer: &End, options: &Options) {
        connect(&self.qp, &peer.qp, self.gid, peer.gid.gid, peer.context.port(PORT).expect("a port").lid, options);
    }

    /// Registered memory, filled with a pattern that differs with the seed.
    pub fn memory(&self, bytes: usize, seed: u8) -> Memory {
        let memory = Memory::new(&self.domain, bytes, ALL);
        memory.fill(seed);
        memory
    }

    /// Posts one request, signalled.
    pub fn post(&self, id: u64, operation: Operation<'_>, data: Data<'_>) {
        let mut chain = SendChain::with_capacity(1, 8, 256);
        chain.push(id, operation, data, Flags::SIGNALED).expect("room");
        self.qp.post_send(&mut chain).expect("posted");
    }

    /// Posts a receive.
    pub fn receive(&self, id: u64, segments: &[Segment]) {
        let mut chain = ReceiveChain::with_capacity(1, segments.len());
        chain.push(id, segments).expect("room");
        self.qp.post_receive(&mut chain).expect("posted");
    }

    /// The next completion.
    pub fn completion(&self) -> Completion {
        self.completions(1)[0]
    }

    /// The next so many.
    pub fn completions(&self, count: usize) -> Vec<Completion> {
        let mut seen = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let mut room = [Completion::default(); 16];
        loop {
            self.queue.request_event(false).expect("asked");
            // Until it is empty: what is there already raises no event.
            while let done @ [_, ..] = self.queue.poll(&mut room).expect("polled") {
                seen.extend_from_slice(done);
            }
            if seen.len() >= count {
                return seen;
            }
            assert!(wait(&self.channel, deadline), "{} of {count} completions came", seen.len());
            while self.channel.event().expect("fetched").is_some() {}
        }
    }

    /// Whether nothing completes for a while.
    pub fn is_quiet(&self, time: Duration) -> bool {
        std::thread::sleep(time);
        self.queue.poll(&mut [Completion::default()]).expect("polled").is_empty()
    }
}

/// Takes a queue pair from `Init` to `ReadyToSend`.
pub fn connect(qp: &QueuePair, peer: &QueuePair, gid: GidEntry, to: Gid, lid: u16, options: &Options) {
    let path = Path {
        port: PORT,
        source_gid_index: gid.index as u8,
        destination_gid: Some(to),
        destination_lid: lid,
        service_level: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let sequence = |qp: &QueuePair| 0x1000 + qp.number();
    qp.to_rtr(ToRtr {
        path,
        mtu: Mtu::B1024,
        destination: peer.number(),
        receive_sequence: sequence(peer),
        reads_answered: 4,
        not_ready_timer: 12,
    })
    .expect("ready to receive");
    qp.to_rts(ToRts {
        timeout: options.timeout,
        retries: options.retries,
        not_ready_retries: options.not_ready_retries,
        send_sequence: sequence(qp),
        reads_started: 4,
    })
    .expect("ready to send");
}

/// Waits until a descriptor is readable; false once it is too late.
pub fn wait(fd: &impl AsFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&raw mut poll, 1, i32::try_from(left).unwrap_or(i32::MAX)) > 0 }
}

/// Registered memory of its own pages. The region goes first.
pub struct Memory {
    pub region: MemoryRegion,
    pages: Pages,
}

/// Zeroed pages.
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
    pub fn new(domain: &ProtectionDomain, bytes: usize, access: Access) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
        // SAFETY: not of size 0.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        // SAFETY: the pages are freed after the region, and only copied in and out of.
        let region = unsafe { domain.register(address, bytes, access) }.expect("registered");
        Self { region, pages: Pages { address, layout } }
    }

    pub fn len(&self) -> usize {
        self.pages.layout.size()
    }

    pub fn address(&self) -> u64 {
        self.pages.address.as_ptr().expose_provenance() as u64
    }

    pub fn fill(&self, seed: u8) {
        let bytes = pattern(seed, self.len());
        // SAFETY: as long as the pages.
        unsafe { self.pages.address.copy_from_nonoverlapping(NonNull::from(&bytes[..]).cast(), bytes.len()) };
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // SAFETY: as long as the pages.
        unsafe { self.pages.address.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), bytes.len()) };
        bytes
    }

    pub fn segment(&self, from: usize, bytes: usize) -> Segment {
        assert!(from + bytes <= self.len());
        Segment { address: self.address() + from as u64, bytes: bytes as u32, lkey: self.region.lkey() }
    }

    pub fn whole(&self) -> Segment {
        self.segment(0, self.len())
    }

    pub fn remote(&self, from: usize) -> Remote {
        Remote { address: self.address() + from as u64, rkey: self.region.rkey() }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place.wrapping_mul(31) >> 3) as u8 ^ (place as u8) ^ seed).collect()
}
