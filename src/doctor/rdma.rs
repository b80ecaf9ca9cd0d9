//! RDMA devices, and the library that speaks to them.

use serde_json::json;

use super::{
    finding::{Finding, State},
    root::Root,
};

/// Looks for RDMA. This version moves KV over TCP and shared memory; what is found here is for what comes.
pub fn examine(root: &Root) -> Vec<Finding> {
    let library = root.library("libibverbs.so.1");
    let devices = root.list("sys/class/infiniband");
    let mut findings: Vec<Finding> = devices.iter().map(|device| describe(root, device)).collect();
    let with = match &library {
        Some(path) => format!("the verbs library is {path}"),
        None => "the verbs library (libibverbs.so.1) is not installed".into(),
    };
    let facts = json!({"devices": devices, "library": library});
    if devices.is_empty() {
        let modules = root.exists("sys/module/rdma_rxe");
        let soft =
            if modules { "; the module for RDMA in software (rdma_rxe) is loaded, without a device" } else { "" };
        let says = format!("no device{soft}; {with}. KV between machines moves over TCP");
        let advice = "with an RDMA NIC: install rdma-core and the NIC's driver; in a container, pass /dev/infiniband";
        findings.push(Finding::new("rdma", State::Missing, says).advise(advice).facts(facts));
        return findings;
    }
    let access = root.exists("dev/infiniband/uverbs0");
    let says = format!(
        "{} device(s); {with}. This version does not use RDMA yet: KV between machines moves over TCP",
        devices.len()
    );
    let finding = Finding::new("rdma", State::Note, says).facts(facts);
    findings.push(match (library.is_some(), access) {
        (false, _) => finding.advise("install rdma-core (it has libibverbs), so that later versions find it"),
        (true, false) => {
            finding.advise("/dev/infiniband/uverbs0 is not here: load ib_uverbs, or pass /dev/infiniband in")
        }
        (true, true) => finding,
    });
    findings.push(peer_memory(root));
    findings
}

fn describe(root: &Root, device: &str) -> Finding {
    let at = |file: &str| format!("sys/class/infiniband/{device}/{file}");
    let port = root.list(&at("ports")).into_iter().next().unwrap_or_else(|| "1".into());
    let of_port = |file: &str| root.read(&at(&format!("ports/{port}/{file}"))).unwrap_or_else(|| "unknown".into());
    // "4: ACTIVE" and "400 Gb/sec (4X NDR)"
    let state = of_port("state");
    let state = state.rsplit(": ").next().unwrap_or_default();
    let (rate, layer) = (of_port("rate"), of_port("link_layer"));
    let numa = root.number::<i64>(&at("device/numa_node")).filter(|node| *node >= 0);
    let says = format!("{device}: port {port} {state}, {rate}, {layer}");
    let says = numa.map_or_else(|| says.clone(), |node| format!("{says}, NUMA node {node}"));
    let facts = json!({"device": device, "state": state, "rate": rate, "link_layer": layer, "numa_node": numa});
    Finding::new("rdma device", State::Note, says).facts(facts)
}

/// What lets a NIC read a GPU's memory.
fn peer_memory(root: &Root) -> Finding {
    if root.exists("sys/module/nvidia_peermem") {
        return Finding::new("gpudirect", State::Note, "nvidia_peermem is loaded: NICs can reach GPU memory");
    }
    Finding::new(
        "gpudirect",
        State::Note,
        "nvidia_peermem is not loaded; newer kernels and NICs do without it (DMA-BUF)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tree;

    #[test]
    fn a_device_is_described_and_not_promised() {
        let (_dir, root) = tree(&[
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)"),
            ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand"),
            ("sys/class/infiniband/mlx5_0/device/numa_node", "0"),
        ]);
        let findings = examine(&root);
        assert_eq!(findings[0].says, "mlx5_0: port 1 ACTIVE, 400 Gb/sec (4X NDR), InfiniBand, NUMA node 0");
        assert!(findings[1].says.contains("does not use RDMA yet"), "{}", findings[1].says);
        assert!(findings[1].advice.as_ref().unwrap().contains("rdma-core"));
    }

    #[test]
    fn without_a_device_tcp_is_named() {
        let (_dir, root) = tree(&[("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "")]);
        let finding = examine(&root).remove(0);
        assert!(finding.says.contains("no device") && finding.says.contains("over TCP"), "{}", finding.says);
        assert!(finding.says.contains("/usr/lib/x86_64-linux-gnu/libibverbs.so.1"), "{}", finding.says);
    }
}
