//! GPU memory: the same hand-off on a driver that is made up, which every machine has, and on the GPUs that there are.
//!
//! What needs a GPU is SKIPPED by name where there is none: a run of the first part alone says nothing about GPUs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_transfer::gpu::fake::{Fake, FakeDevice};
use kvrail_transfer::gpu::{Device, DevicePtr, Driver, Error, FlushScope, Gpus, MemoryType, StagingOptions, direct};
use kvrail_transfer::{
    Access, ByteRange, Direction, Engine, EngineConfig, LeaseRequest, Op, Region, TransferRequest, TransportKind,
};

use super::{Findings, Setting, Tier};

const BLOCK: u64 = 16 << 10;
const LONG: Duration = Duration::from_secs(60);

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    let bytes = if setting.tier == Tier::Quick { 4 << 20 } else { 64 << 20 };
    if let Err(error) = made_up(bytes, &mut findings).await {
        findings.failure(format!("a driver that is made up: {error}"));
    }
    match Gpus::open() {
        Ok(gpus) if gpus.count() > 0 => {
            let bytes = if setting.tier == Tier::Quick { 64 << 20 } else { 1 << 30 };
            if let Err(error) = real(&gpus, bytes, &mut findings).await {
                findings.failure(error);
            }
        }
        Ok(_) => findings.skip("everything on a GPU: libcuda starts, and there is no device"),
        Err(error) => findings.skip(format!("everything on a GPU: {error}")),
    }
    findings
}

async fn made_up(bytes: u64, findings: &mut Findings) -> Result<(), String> {
    let device = || {
        let driver: Arc<dyn Driver> = Fake::new(vec![FakeDevice::able("0000:44:00.0")], 1);
        Gpus::with(driver, StagingOptions::default()).and_then(|gpus| gpus.device(0)).map_err(|e| e.to_string())
    };
    let (near, far) = (device()?, device()?);
    for direction in [Direction::Write, Direction::Read] {
        hand_off(&near, &far, direction, bytes).await?;
    }
    findings
        .figure("a driver that is made up", format!("{} MiB written and read over tcp, every byte right", bytes >> 20));
    Ok(())
}

async fn real(gpus: &Gpus, bytes: u64, findings: &mut Findings) -> Result<(), String> {
    for ordinal in 0..gpus.count() {
        let device = gpus.device(ordinal).map_err(|e| e.to_string())?;
        let name = format!("GPU{ordinal} {}", device.name());
        findings.figure(&name, format!("{} {:?}", device.pci(), device.facts()));
        for direction in [Direction::Write, Direction::Read] {
            let seconds = hand_off(&device, &device, direction, bytes).await.map_err(|e| format!("{name}: {e}"))?;
            findings
                .figure(format!("{name} {direction:?} over tcp"), format!("{:.2} GB/s", bytes as f64 / seconds / 1e9));
        }
        memory(&device, &name, findings).map_err(|e| format!("{name}: {e}"))?;
    }
    findings.skip("opening a CUDA IPC handle: it takes a second process, which this suite does not start yet");
    findings.skip("GPUDirect RDMA: it takes a NIC beside the GPU, and a peer");
    Ok(())
}

/// Import, export and flush, of which a device has some.
fn memory(device: &Device, name: &str, findings: &mut Findings) -> Result<(), Error> {
    let owned = device.allocate(4 << 20)?;
    let imported = owned.part(5000, 1 << 20)?;
    findings.figure(format!("{name} import"), format!("{:?}, {}", imported.kind(), direct(&imported).path));
    let host = Box::new(0u8);
    let facts = device.pointer(DevicePtr(&raw const *host as u64))?;
    findings.check(facts.memory != MemoryType::Device, format!("{name}: host memory is taken for a device's"));
    owned.ipc_handle()?;
    findings.figure(format!("{name} CUDA IPC"), "a handle can be had");
    if device.facts().has_dma_buf {
        let exported = imported.export(0, 1 << 20)?;
        findings.figure(format!("{name} DMA-BUF"), format!("exported, the range begins at {}", exported.offset));
    } else {
        findings.skip(format!("{name} DMA-BUF: the device exports none"));
    }
    if device.facts().flushes_by_host {
        owned.flush(FlushScope::Owner)?;
        findings.figure(format!("{name} flush"), "by the host");
    } else {
        findings.skip(format!("{name} flush: the device has none for the host"));
    }
    Ok(())
}

/// Moves scattered blocks between two engines over TCP, after a mark of the device's, and compares every byte; seconds that it took.
async fn hand_off(near: &Device, far: &Device, direction: Direction, bytes: u64) -> Result<f64, String> {
    let told = |e: &dyn std::error::Error| e.to_string();
    let region = |device: &Device| device.allocate(bytes).map(Region::device).map_err(|e| told(&e));
    let (local, remote) = (region(near)?, region(far)?);
    let config = || EngineConfig { transports: vec![TransportKind::Tcp], ..EngineConfig::default() };
    let (a, b) = (Engine::start(config()).map_err(|e| told(&e))?, Engine::start(config()).map_err(|e| told(&e))?);
    let peer = a.connect(b.local_addr(), None).await.map_err(|e| told(&e))?;
    let blocks = bytes / BLOCK;
    let ops: Vec<Op> = (0..blocks).map(|n| Op::contiguous(n * BLOCK, (n * 37 % blocks) * BLOCK, BLOCK)).collect();
    let given: Vec<u8> = (0..bytes).map(|at| (at / 3 + at / 4096 * 31) as u8).collect();
    let (from, to, access) = match direction {
        Direction::Write => (&local, &remote, Access::Write),
        Direction::Read => (&remote, &local, Access::Read),
    };
    from.try_write(0, &given).map_err(|e| told(&e))?;
    to.try_write(0, &vec![0; bytes as usize]).map_err(|e| told(&e))?;
    let ranges = vec![ByteRange { offset: 0, len: bytes }];
    let lease = b.grant(LeaseRequest { region: &remote, ranges, access, ttl: LONG }).map_err(|e| told(&e))?;
    let ticket = lease.ticket();
    let began = Instant::now();
    let request =
        TransferRequest { deadline: began + LONG, ..TransferRequest::new(&local, &ticket, direction, ops.clone()) };
    let report = a.submit(&peer, request).map_err(|e| told(&e))?.await;
    let seconds = began.elapsed().as_secs_f64();
    report.status.map_err(|e| told(&e))?;
    let mut got = vec![0; bytes as usize];
    to.try_read(0, &mut got).map_err(|e| told(&e))?;
    for op in &ops {
        let (here, there) = (op.local.offset as usize, op.remote.offset as usize);
        let (source, target) = if direction == Direction::Write { (here, there) } else { (there, here) };
        let n = BLOCK as usize;
        if got[target..target + n] != given[source..source + n] {
            return Err(format!("{direction:?}: wrong bytes in the block at {target}"));
        }
    }
    lease.revoke().await;
    a.shutdown().await;
    b.shutdown().await;
    Ok(seconds)
}
