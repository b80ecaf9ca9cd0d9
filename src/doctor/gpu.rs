//! GPUs, and the library that speaks to them.

use serde_json::json;

use super::{
    finding::{Finding, State},
    root::Root,
};

/// Looks for GPUs. The built-in executor computes on the CPU; what is found here is for what comes.
pub fn examine(root: &Root) -> Vec<Finding> {
    let library = root.library("libcuda.so.1");
    let gpus: Vec<String> = root
        .list("proc/driver/nvidia/gpus")
        .into_iter()
        .map(|address| {
            let information = root.read(&format!("proc/driver/nvidia/gpus/{address}/information")).unwrap_or_default();
            let model = information.lines().find_map(|line| line.strip_prefix("Model:")).unwrap_or("unknown").trim();
            format!("{model} at {address}")
        })
        .collect();
    let amd = root.list("sys/class/kfd/kfd/topology/nodes").len();
    let facts = json!({"nvidia": gpus, "libcuda": library, "amd_topology_nodes": amd});
    let computes = "prompts and answers are computed on the CPU";
    let finding = match (gpus.as_slice(), &library) {
        ([], None) if amd > 0 => {
            Finding::new("gpu", State::Note, format!("AMD devices are here, and not used by this version: {computes}"))
        }
        ([], None) => {
            let advice = "the built-in executor needs none";
            Finding::new("gpu", State::Note, format!("none, and no libcuda: {computes}")).advise(advice)
        }
        ([], Some(path)) => {
            let advice = "in a container, the runtime must pass the devices in";
            Finding::new("gpu", State::Note, format!("{path} is here and no NVIDIA device: {computes}")).advise(advice)
        }
        (some, library) => {
            let driver =
                library.as_deref().map_or_else(|| "libcuda is missing".into(), |path| format!("libcuda is {path}"));
            let says = format!("{}; {driver}. This version does not compute on GPUs yet: {computes}", some.join(", "));
            Finding::new("gpu", State::Note, says)
        }
    };
    vec![finding.facts(facts)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tree;

    #[test]
    fn gpus_are_named_and_not_promised() {
        let information =
            ("proc/driver/nvidia/gpus/0000:44:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5");
        let (_dir, root) = tree(&[information, ("usr/lib64/libcuda.so.1", "")]);
        let says = examine(&root).remove(0).says;
        assert!(
            says.starts_with("NVIDIA H100 80GB HBM3 at 0000:44:00.0; libcuda is /usr/lib64/libcuda.so.1"),
            "{says}"
        );
        assert!(says.contains("computed on the CPU"), "{says}");
        let (_dir, root) = tree(&[]);
        assert!(examine(&root)[0].says.starts_with("none, and no libcuda"));
    }
}
