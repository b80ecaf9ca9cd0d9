//! A driver without a GPU, for tests: device memory is host memory behind addresses that no host can dereference.
//!
//! It is stricter than a GPU. Copies are done when somebody has asked for them often enough and not before, so bytes that are used
//! too early are wrong bytes; freeing what a copy still touches panics; a range outside its allocation is refused; every call is
//! written down, and any can be made to fail.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{
    Attribute, Context, CopyRange, DevicePtr, Driver, EventHandle, FlushScope, IPC_HANDLE_BYTES, MemoryType,
    PointerFacts, Stream, Way,
};
use crate::error::Error;
use crate::memory::AllocationKind;

/// Not canonical on x86-64 and past what a 48-bit arm64 maps: a host that dereferences it faults.
const FIRST_ADDRESS: u64 = 0x00f0_0000_0000_0000;
/// Between allocations; a step of 2 MiB and some, so that none begins on a page by chance alone.
const APART: u64 = (2 << 20) + 512;

/// A device that is made up.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    /// Its PCI address.
    pub pci: String,
    /// Attributes that are not 0.
    pub attributes: HashMap<Attribute, i32>,
}

impl FakeDevice {
    /// One that has everything: GPUDirect RDMA, DMA-BUF, a flush by the host; it sees no remote write in order by itself.
    #[must_use]
    pub fn able(pci: &str) -> Self {
        use Attribute::{DmaBuf, FlushWritesOptions, Rdma, RdmaWithVmm};
        Self { pci: pci.into(), attributes: [Rdma, RdmaWithVmm, DmaBuf, FlushWritesOptions].map(|a| (a, 1)).into() }
    }

    /// One that has nothing of it.
    #[must_use]
    pub fn plain(pci: &str) -> Self {
        Self { pci: pci.into(), attributes: HashMap::new() }
    }
}

struct Block {
    bytes: Vec<u8>,
    device: u32,
    kind: AllocationKind,
    is_managed: bool,
    is_rdma_capable: bool,
    /// Bytes of a mapping, of memory that is mapped.
    mapping: u64,
    /// How often another process has it open.
    opened: usize,
}

enum Work {
    Copy(Way, CopyRange),
    Write(DevicePtr, Vec<u8>),
    Mark(usize),
    Wait(usize),
}

#[derive(Default)]
struct Line {
    work: VecDeque<Work>,
    is_held: bool,
}

#[derive(Default)]
struct State {
    devices: Vec<FakeDevice>,
    lag: u32,
    blocks: BTreeMap<u64, Block>,
    /// Addresses of opened handles, and the allocations behind them.
    aliases: BTreeMap<u64, u64>,
    pinned: HashMap<usize, Box<[u8]>>,
    lines: HashMap<usize, Line>,
    /// Stream of each event that was recorded, and how often it was asked for.
    marks: HashMap<usize, (usize, u32)>,
    done: HashSet<usize>,
    failing: Vec<(&'static str, u32, i32)>,
    calls: Vec<String>,
    next: u64,
}

/// The driver.
pub struct Fake(Mutex<State>);

const INVALID_VALUE: i32 = 1;

impl Fake {
    /// With these devices. A copy ends when its event has been asked for more than `lag` times.
    #[must_use]
    pub fn new(devices: Vec<FakeDevice>, lag: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { devices, lag, next: 1, ..State::default() })))
    }

    /// The call of this name fails with `code`, once, after it has succeeded `after` times more.
    pub fn fail(&self, call: &'static str, after: u32, code: i32) {
        self.0.lock().failing.push((call, after, code));
    }

    /// Names of the calls since the last time, in order; queries left out.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().calls)
    }

    /// An allocation of somebody else's: a framework's.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn foreign(&self, device: u32, bytes: u64, kind: AllocationKind) -> DevicePtr {
        self.0.lock().block(device, bytes, kind)
    }

    /// Changes what the driver says of an allocation: managed, reachable by NICs, bytes of each mapping.
    ///
    /// # Panics
    /// If there is none.
    pub fn declare(&self, address: DevicePtr, is_managed: bool, is_rdma_capable: bool, mapping: u64) {
        let mut state = self.0.lock();
        let block = state.blocks.get_mut(&address.0).expect("an allocation");
        (block.is_managed, block.is_rdma_capable, block.mapping) = (is_managed, is_rdma_capable, mapping);
    }

    /// Writes device memory at once, as a kernel that has ended.
    ///
    /// # Panics
    /// If the range is none.
    pub fn poke(&self, address: DevicePtr, bytes: &[u8]) {
        let mut state = self.0.lock();
        let to = state.device_bytes(address.0, bytes.len()).expect("a range of device memory");
        // SAFETY: a range of a block; the lock keeps others away.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// What device memory holds now, copies that have not ended not among it.
    ///
    /// # Panics
    /// If the range is none.
    #[must_use]
    pub fn peek(&self, address: DevicePtr, len: usize) -> Vec<u8> {
        let mut state = self.0.lock();
        let from = state.device_bytes(address.0, len).expect("a range of device memory");
        // SAFETY: as in `poke`.
        unsafe { std::slice::from_raw_parts(from, len) }.to_vec()
    }

    /// A stream of an executor's.
    #[must_use]
    pub fn executor(&self) -> Stream {
        let mut state = self.0.lock();
        let id = state.id();
        state.lines.insert(id, Line::default());
        Stream(id)
    }

    /// Launches a kernel that writes; done when somebody asks for an event behind it.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn launch(&self, stream: Stream, address: DevicePtr, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.lines.get_mut(&stream.0).expect("a stream").work.push_back(Work::Write(address, bytes.to_vec()));
    }

    /// Stops every stream from here on (a device that hangs), or lets them go.
    pub fn hold(&self, hold: bool) {
        self.0.lock().lines.values_mut().for_each(|line| line.is_held = hold);
    }

    /// Stops one stream, or lets it go.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn hold_stream(&self, stream: Stream, hold: bool) {
        self.0.lock().lines.get_mut(&stream.0).expect("a stream").is_held = hold;
    }

    /// Allocations of device memory that are there.
    #[must_use]
    pub fn allocations(&self) -> usize {
        self.0.lock().blocks.len()
    }

    /// Pinned buffers that are there.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.0.lock().pinned.len()
    }

    /// Handles that are open.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.0.lock().aliases.len()
    }

    fn begin(&self, call: &'static str) -> Result<parking_lot::MutexGuard<'_, State>, Error> {
        let mut state = self.0.lock();
        if call != "query" {
            state.calls.push(call.into());
        }
        if let Some(place) = state.failing.iter().position(|(name, ..)| *name == call) {
            let (_, after, code) = &mut state.failing[place];
            if *after == 0 {
                let code = *code;
                state.failing.remove(place);
                return Err(Error::Driver { call, code });
            }
            *after -= 1;
        }
        Ok(state)
    }
}

impl State {
    fn id(&mut self) -> usize {
        self.next += 1;
        self.next as usize
    }

    fn block(&mut self, device: u32, bytes: u64, kind: AllocationKind) -> DevicePtr {
        let last = self.blocks.last_key_value().map(|(base, block)| base + block.bytes.len() as u64);
        let base = last.map_or(FIRST_ADDRESS, |end| end.next_multiple_of(512) + APART);
        let block = Block {
            bytes: vec![0xdd; bytes as usize],
            device,
            kind,
            is_managed: false,
            is_rdma_capable: true,
            mapping: bytes,
            opened: 0,
        };
        self.blocks.insert(base, block);
        DevicePtr(base)
    }

    /// The allocation that an address lies in: its base as it is seen there, and its true base.
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        let alias = self.aliases.range(..=address).next_back();
        let seen = alias.map(|(seen, real)| (*seen, *real)).filter(|(seen, real)| {
            let bytes = self.blocks.get(real).map_or(0, |block| block.bytes.len() as u64);
            address - seen < bytes
        });
        seen.or_else(|| {
            let (base, block) = self.blocks.range(..=address).next_back()?;
            (address - base < block.bytes.len() as u64).then_some((*base, *base))
        })
    }

    fn device_bytes(&mut self, address: u64, len: usize) -> Option<*mut u8> {
        let (seen, real) = self.find(address)?;
        let offset = usize::try_from(address - seen).ok()?;
        self.blocks.get_mut(&real)?.bytes.get_mut(offset..offset.checked_add(len)?).map(<[u8]>::as_mut_ptr)
    }

    fn host_bytes(&mut self, address: u64, len: usize) -> Option<*mut u8> {
        self.pinned.values_mut().find_map(|buffer| {
            let offset = (address as usize).checked_sub(buffer.as_ptr() as usize)?;
            buffer.get_mut(offset..offset.checked_add(len)?).map(<[u8]>::as_mut_ptr)
        })
    }

    fn ends(&mut self, way: Way, range: &CopyRange) -> Option<(*mut u8, *mut u8)> {
        let CopyRange { to, from, len } = *range;
        let to = if way == Way::ToHost { self.host_bytes(to, len) } else { self.device_bytes(to, len) };
        let from = if way == Way::ToDevice { self.host_bytes(from, len) } else { self.device_bytes(from, len) };
        to.zip(from)
    }

    /// Does what a stream was given, as far as it may.
    fn run(&mut self, stream: usize) {
        while self.lines.get(&stream).is_some_and(|line| !line.is_held && !line.work.is_empty()) {
            if let Some(Work::Wait(event)) = self.lines[&stream].work.front() {
                let event = *event;
                let other = self.marks.get(&event).map_or(stream, |(other, _)| *other);
                if other != stream {
                    self.run(other);
                }
                if !self.done.contains(&event) {
                    return;
                }
            }
            match self.lines.get_mut(&stream).and_then(|line| line.work.pop_front()) {
                Some(Work::Copy(way, range)) => {
                    let (to, from) = self.ends(way, &range).expect("the range was there when it was given");
                    // SAFETY: both are ranges of buffers of ours, which are distinct; the lock keeps others away.
                    unsafe { std::ptr::copy(from, to, range.len) };
                }
                Some(Work::Write(address, bytes)) => {
                    let to = self.device_bytes(address.0, bytes.len()).expect("a range of device memory");
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                }
                Some(Work::Mark(event)) => drop(self.done.insert(event)),
                Some(Work::Wait(_)) | None => {}
            }
        }
    }

    /// Whether a copy that has not been done touches these addresses.
    fn is_touched(&self, base: u64, len: usize) -> bool {
        let overlaps = |start: u64, n: usize| start < base + len as u64 && base < start + n as u64;
        self.lines.values().flat_map(|line| &line.work).any(|work| match work {
            Work::Copy(_, range) => overlaps(range.to, range.len) || overlaps(range.from, range.len),
            Work::Write(address, bytes) => overlaps(address.0, bytes.len()),
            Work::Mark(_) | Work::Wait(_) => false,
        })
    }
}

fn invalid(call: &'static str) -> Error {
    Error::Driver { call, code: INVALID_VALUE }
}

impl Driver for Fake {
    fn version(&self) -> Result<i32, Error> {
        self.begin("version").map(|_| 12_080)
    }

    fn devices(&self) -> Result<u32, Error> {
        self.begin("devices").map(|state| state.devices.len() as u32)
    }

    fn name(&self, device: u32) -> Result<String, Error> {
        self.begin("name").map(|_| format!("Fake GPU {device}"))
    }

    fn pci(&self, device: u32) -> Result<String, Error> {
        let state = self.begin("pci")?;
        state.devices.get(device as usize).map(|device| device.pci.clone()).ok_or_else(|| invalid("pci"))
    }

    fn total_bytes(&self, _: u32) -> Result<u64, Error> {
        self.begin("total_bytes").map(|_| 80 << 30)
    }

    fn attribute(&self, device: u32, attribute: Attribute) -> Result<i32, Error> {
        let state = self.begin("attribute")?;
        let device = state.devices.get(device as usize).ok_or_else(|| invalid("attribute"))?;
        Ok(device.attributes.get(&attribute).copied().unwrap_or(0))
    }

    fn retain(&self, device: u32) -> Result<Context, Error> {
        self.begin("retain").map(|_| Context(device as usize))
    }

    fn release(&self, _: u32) -> Result<(), Error> {
        self.begin("release").map(drop)
    }

    fn allocate(&self, context: Context, bytes: u64) -> Result<DevicePtr, Error> {
        self.begin("allocate").map(|mut state| state.block(context.0 as u32, bytes, AllocationKind::Plain))
    }

    unsafe fn free(&self, _: Context, address: DevicePtr) -> Result<(), Error> {
        let mut state = self.begin("free")?;
        let block = state.blocks.get(&address.0).ok_or_else(|| invalid("free"))?;
        assert!(!state.is_touched(address.0, block.bytes.len()), "device memory freed under a copy");
        assert!(block.opened == 0, "device memory freed while another process has it open");
        state.blocks.remove(&address.0);
        Ok(())
    }

    fn allocate_pinned(&self, _: Context, bytes: usize) -> Result<NonNull<u8>, Error> {
        let mut state = self.begin("allocate_pinned")?;
        let mut buffer = vec![0xee; bytes].into_boxed_slice();
        let base = NonNull::new(buffer.as_mut_ptr()).ok_or_else(|| invalid("allocate_pinned"))?;
        state.pinned.insert(base.as_ptr() as usize, buffer);
        Ok(base)
    }

    unsafe fn free_pinned(&self, _: Context, address: NonNull<u8>) -> Result<(), Error> {
        let mut state = self.begin("free_pinned")?;
        let base = address.as_ptr() as usize;
        let len = state.pinned.get(&base).ok_or_else(|| invalid("free_pinned"))?.len();
        assert!(!state.is_touched(base as u64, len), "pinned memory freed under a copy");
        state.pinned.remove(&base);
        Ok(())
    }

    fn pointer(&self, _: Context, address: DevicePtr) -> Result<PointerFacts, Error> {
        let state = self.begin("pointer")?;
        let Some((seen, real)) = state.find(address.0) else {
            return Ok(PointerFacts {
                memory: MemoryType::Other,
                is_managed: false,
                device: u32::MAX,
                allocation: (address, 0),
                mapping: (address, 0),
                is_ipc_capable: false,
                is_pooled: false,
                is_rdma_capable: true,
            });
        };
        let block = &state.blocks[&real];
        let within = (address.0 - seen) / block.mapping.max(1) * block.mapping;
        Ok(PointerFacts {
            memory: MemoryType::Device,
            is_managed: block.is_managed,
            device: block.device,
            allocation: (DevicePtr(seen), block.bytes.len() as u64),
            mapping: (DevicePtr(seen + within), block.mapping),
            is_ipc_capable: block.kind == AllocationKind::Plain,
            is_pooled: block.kind == AllocationKind::Pool,
            is_rdma_capable: block.is_rdma_capable,
        })
    }

    fn sync_memops(&self, _: Context, _: DevicePtr) -> Result<(), Error> {
        self.begin("sync_memops").map(drop)
    }

    fn dma_buf(&self, _: Context, address: DevicePtr, bytes: u64) -> Result<OwnedFd, Error> {
        drop(self.begin("dma_buf")?);
        if !address.0.is_multiple_of(4096) || !bytes.is_multiple_of(4096) {
            return Err(invalid("dma_buf"));
        }
        // SAFETY: a literal with its NUL, and a constant.
        let fd = unsafe { libc::memfd_create(c"kvrail-fake-dma-buf".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(invalid("dma_buf"));
        }
        // SAFETY: just made, owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn ipc_handle(&self, _: Context, address: DevicePtr) -> Result<[u8; IPC_HANDLE_BYTES], Error> {
        let state = self.begin("ipc_handle")?;
        let (base, _) = state.find(address.0).ok_or_else(|| invalid("ipc_handle"))?;
        let mut handle = [0; IPC_HANDLE_BYTES];
        handle[..8].copy_from_slice(&base.to_le_bytes());
        Ok(handle)
    }

    fn ipc_open(&self, _: Context, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<DevicePtr, Error> {
        let mut state = self.begin("ipc_open")?;
        let base = handle.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        state.blocks.get_mut(&base).ok_or_else(|| invalid("ipc_open"))?.opened += 1;
        let alias = state.aliases.last_key_value().map_or(FIRST_ADDRESS << 1, |(last, _)| last + (1 << 40));
        state.aliases.insert(alias, base);
        Ok(DevicePtr(alias))
    }

    unsafe fn ipc_close(&self, _: Context, address: DevicePtr) -> Result<(), Error> {
        let mut state = self.begin("ipc_close")?;
        let base = *state.aliases.get(&address.0).ok_or_else(|| invalid("ipc_close"))?;
        let len = state.blocks.get(&base).map_or(0, |block| block.bytes.len());
        assert!(!state.is_touched(address.0, len), "closed under a copy");
        state.aliases.remove(&address.0);
        if let Some(block) = state.blocks.get_mut(&base) {
            block.opened -= 1;
        }
        Ok(())
    }

    fn stream(&self, _: Context) -> Result<Stream, Error> {
        let mut state = self.begin("stream")?;
        let id = state.id();
        state.lines.insert(id, Line::default());
        Ok(Stream(id))
    }

    unsafe fn destroy_stream(&self, _: Context, stream: Stream) -> Result<(), Error> {
        let mut state = self.begin("destroy_stream")?;
        state.run(stream.0);
        state.lines.remove(&stream.0);
        Ok(())
    }

    fn event(&self, _: Context) -> Result<EventHandle, Error> {
        self.begin("event").map(|mut state| EventHandle(state.id()))
    }

    unsafe fn destroy_event(&self, _: Context, event: EventHandle) -> Result<(), Error> {
        let mut state = self.begin("destroy_event")?;
        // A stream that waits for it goes on waiting for what was marked, as with a true driver: its mark stays.
        let is_waited_for = |line: &Line| line.work.iter().any(|work| matches!(work, Work::Wait(id) if *id == event.0));
        if !state.lines.values().any(is_waited_for) {
            state.marks.remove(&event.0);
        }
        Ok(())
    }

    unsafe fn record(&self, _: Context, event: EventHandle, stream: Stream) -> Result<(), Error> {
        let mut state = self.begin("record")?;
        state.marks.insert(event.0, (stream.0, 0));
        let line = state.lines.get_mut(&stream.0).ok_or_else(|| invalid("record"))?;
        line.work.push_back(Work::Mark(event.0));
        Ok(())
    }

    unsafe fn query(&self, _: Context, event: EventHandle) -> Result<bool, Error> {
        let mut state = self.begin("query")?;
        let lag = state.lag;
        let (stream, asked) = state.marks.get_mut(&event.0).ok_or_else(|| invalid("query"))?;
        *asked += 1;
        let (stream, asked) = (*stream, *asked);
        if asked > lag {
            state.run(stream);
        }
        Ok(state.done.contains(&event.0))
    }

    unsafe fn wait(&self, _: Context, stream: Stream, event: EventHandle) -> Result<(), Error> {
        let mut state = self.begin("wait")?;
        let line = state.lines.get_mut(&stream.0).ok_or_else(|| invalid("wait"))?;
        line.work.push_back(Work::Wait(event.0));
        Ok(())
    }

    unsafe fn copy(&self, _: Context, stream: Stream, way: Way, ranges: &[CopyRange]) -> Result<(), Error> {
        let mut state = self.begin("copy")?;
        if ranges.iter().any(|range| state.ends(way, range).is_none()) {
            return Err(invalid("copy"));
        }
        let line = state.lines.get_mut(&stream.0).ok_or_else(|| invalid("copy"))?;
        line.work.extend(ranges.iter().map(|range| Work::Copy(way, *range)));
        Ok(())
    }

    fn flush(&self, _: Context, scope: FlushScope) -> Result<(), Error> {
        let mut state = self.begin("flush")?;
        state.calls.push(format!("flush {scope:?}"));
        Ok(())
    }
}
