//! GPUs as CUDA's driver tells them, and which way their memory takes to NICs.

use std::path::Path;

use kvrail_transfer::gpu::{
    AllocationKind, Error, Gpus, KernelFacts, WritesOrdering, nic_facts,
    order::{Consumer, Flush, flush},
    path::{Choice, MemoryFacts, NicFacts, Path as Way, choose},
};
use serde_json::json;

use super::finding::{Finding, State};

/// Asks the driver of this machine.
pub fn examine() -> Vec<Finding> {
    judge(Gpus::open(), nic_facts(), KernelFacts::read(Path::new("/")))
}

/// What follows from the driver, libibverbs (none: not installed) and the kernel.
fn judge(gpus: Result<Gpus, Error>, nics: Option<NicFacts>, kernel: KernelFacts) -> Vec<Finding> {
    let gpus = match gpus {
        Ok(gpus) if gpus.count() > 0 => gpus,
        Ok(_) => return vec![Finding::new("gpu driver", State::Note, "libcuda starts, and there is no device")],
        Err(error) => {
            return vec![
                Finding::new("gpu driver", State::Note, format!("{error}: device memory cannot be moved"))
                    .advise("host memory needs none"),
            ];
        }
    };
    let version = gpus.version().unwrap_or(0);
    let says = format!("CUDA {}.{}, {} device(s)", version / 1000, version % 1000 / 10, gpus.count());
    let mut findings = vec![Finding::new("gpu driver", State::Good, says).facts(json!({"version": version}))];
    findings.extend((0..gpus.count()).map(|ordinal| device(&gpus, ordinal, nics, kernel)));
    findings
}

fn device(gpus: &Gpus, ordinal: u32, nics: Option<NicFacts>, kernel: KernelFacts) -> Finding {
    let (name, pci, bytes, facts) = match gpus.describe(ordinal) {
        Ok(told) => told,
        Err(error) => return Finding::new("gpu memory", State::Missing, format!("device {ordinal}: {error}")),
    };
    let memory = MemoryFacts { kind: AllocationKind::Plain, is_rdma_capable: true, is_one_mapping: true };
    let Choice { path, lacks } = choose(&facts, &memory, &nics.unwrap_or(NicFacts { takes_dma_buf: false }), &kernel);
    let why: Vec<String> = lacks.iter().map(ToString::to_string).collect();
    let visible = match flush(&facts, path, Consumer::Owner) {
        _ if path == Way::Staged => "",
        Flush::None => ", visible without a flush",
        Flush::Driver(_) => ", flushed by the driver",
        Flush::LoopbackRead => ", flushed by a loopback READ",
    };
    let ordering = match facts.ordering {
        WritesOrdering::None => "none",
        WritesOrdering::Owner => "owner",
        WritesOrdering::AllDevices => "all devices",
    };
    let facts = json!({
        "device": ordinal, "name": name, "pci": pci, "bytes": bytes, "gpudirect_rdma": facts.has_rdma, "dma_buf": facts.has_dma_buf,
        "flushes_by_host": facts.flushes_by_host, "writes_ordering": ordering, "peer_memory": kernel.has_peer_memory,
        "path": path.to_string(), "lacks": why,
    });
    let says =
        format!("GPU{ordinal} {name} at {pci}: over TCP staged through pinned host memory; over RDMA {path}{visible}");
    match path {
        Way::Staged => {
            let mut says = format!("{says}, which is TCP: {}", why.join("; "));
            if nics.is_none() {
                says.push_str("; libibverbs is not installed");
            }
            let advice = "modprobe nvidia_peermem, or the open kernel modules and rdma-core 34 for DMA-BUF";
            Finding::new("gpu memory", State::Missing, says).advise(advice)
        }
        Way::DmaBuf | Way::PeerMemory => {
            Finding::new("gpu memory", State::Note, format!("{says} (never run on a GPU yet)"))
        }
    }
    .facts(facts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvrail_transfer::gpu::fake::{Fake, FakeDevice};
    use kvrail_transfer::gpu::{Driver, StagingOptions, Unavailable};

    use super::*;

    fn two() -> Result<Gpus, Error> {
        let driver: Arc<dyn Driver> =
            Fake::new(vec![FakeDevice::able("0000:44:00.0"), FakeDevice::plain("0000:45:00.0")], 0);
        Gpus::with(driver, StagingOptions::default())
    }

    #[test]
    fn without_a_driver_the_reason_is_told_and_nothing_is_wrong() {
        let findings = judge(Err(Unavailable::NoLibrary.into()), None, KernelFacts::default());
        assert_eq!((findings.len(), findings[0].state), (1, State::Note));
        assert!(findings[0].says.contains("there is no libcuda"), "{}", findings[0].says);
    }

    #[test]
    fn each_device_has_its_path_and_what_was_missing() {
        let findings = judge(two(), Some(NicFacts { takes_dma_buf: true }), KernelFacts::default());
        assert!(findings[0].says.starts_with("CUDA 12.8, 2 device(s)"), "{}", findings[0].says);
        assert!(findings[1].says.contains("GPUDirect by DMA-BUF, flushed by the driver"), "{}", findings[1].says);
        assert!(findings[2].says.contains("staged") && findings[2].says.contains("no GPUDirect RDMA"));
        assert_eq!(findings[2].state, State::Missing);
        let findings = judge(two(), None, KernelFacts { has_peer_memory: true });
        assert!(findings[1].says.contains("GPUDirect by peer memory"), "{}", findings[1].says);
        let findings = judge(two(), None, KernelFacts::default());
        assert!(findings[1].says.contains("libibverbs is not installed"), "{}", findings[1].says);
    }
}
