//! Files of real machines, read in place: each must give the plan that its owner would draw by hand. `KVRAIL_TOPO_DIR` names
//! their directory; without it these tests say that they are skipped.

use std::path::PathBuf;

use super::types::Topology;
use super::{Distance, Finding, Gpu, Plan, findings, read_file};

/// A machine's file, if it is to be had.
fn machine(name: &str) -> Option<Topology> {
    let Some(directory) = std::env::var_os("KVRAIL_TOPO_DIR") else {
        eprintln!("SKIPPED: KVRAIL_TOPO_DIR does not name the directory of {name}");
        return None;
    };
    let path = PathBuf::from(directory).join(name);
    Some(read_file(&path).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// The buses of each GPU's own NICs, by the GPU's bus: `(domain << 8 | bus)`.
fn buses(topology: &Topology) -> Vec<(u32, Vec<u32>)> {
    let bus = |pci: Option<super::PciAddress>| pci.map_or(0, |pci| pci.domain << 8 | u32::from(pci.bus));
    let plan = Plan::of(topology);
    let own = |at: usize| {
        plan.gpus[at].nics.iter().filter(|choice| choice.own).map(|choice| bus(topology.nics[choice.rail].pci))
    };
    topology.gpus.iter().enumerate().map(|(at, gpu)| (bus(gpu.pci), own(at).collect())).collect()
}

fn all_nearest_are(topology: &Topology, distance: Distance) {
    for gpu in Plan::of(topology).gpus {
        assert!(gpu.nics.iter().all(|choice| !choice.own || choice.distance == distance), "{gpu:?}");
    }
}

#[test]
fn azure_nd_v5_has_a_nic_beside_each_gpu() {
    let Some(machine) = machine("azure-ndv5-topo.xml") else { return };
    let gpus = [0x1, 0x2, 0x3, 0x8, 0x9, 0xa, 0xb, 0xc].map(|domain| domain << 8);
    let nics = (0x101..=0x108).map(|domain| vec![domain << 8]);
    assert_eq!(buses(&machine), gpus.into_iter().zip(nics).collect::<Vec<_>>());
    all_nearest_are(&machine, Distance::SameSwitch);
    let hosts = Plan::of(&machine).hosts;
    assert_eq!(hosts.iter().map(|host| host.own().count()).collect::<Vec<_>>(), [4, 4]);
    assert_eq!(findings(&machine), []);
}

#[test]
fn azure_nd_v4_has_two_gpus_and_two_nics_a_node() {
    let Some(machine) = machine("azure-ndv4-topo.xml") else { return };
    // GPUs in PCIe order are not in the order of the nodes; each still gets one of the two beside it.
    let pairs =
        [(1, 0x101), (2, 0x102), (3, 0x103), (4, 0x104), (0xb, 0x105), (0xc, 0x106), (0xd, 0x107), (0xe, 0x108)];
    assert_eq!(buses(&machine), pairs.map(|(gpu, nic)| (gpu << 8, vec![nic << 8])));
    all_nearest_are(&machine, Distance::SameSwitch);
    assert_eq!(machine.gpus.iter().map(|gpu| gpu.numa).collect::<Vec<_>>(), [1, 1, 0, 0, 3, 3, 2, 2].map(Some));
    assert_eq!(Plan::of(&machine).hosts.iter().map(|host| host.own().count()).collect::<Vec<_>>(), [2; 4]);
    assert_eq!(findings(&machine), []);
}

#[test]
fn aws_p4d_has_two_gpus_on_each_efa() {
    let Some(machine) = machine("aws-p4d-24xl-topo.xml") else { return };
    let pairs = [0x10, 0x10, 0x20, 0x20, 0x90, 0x90, 0xa0, 0xa0];
    assert_eq!(buses(&machine), pairs.map(|bus| (bus, vec![bus])));
    all_nearest_are(&machine, Distance::SameSwitch);
    assert_eq!(Plan::of(&machine).hosts.iter().map(|host| host.own().count()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(findings(&machine), []);
}

#[test]
fn aws_p5_has_four_efa_on_each_switch_and_gpus_that_come_live_take_them() {
    let Some(machine) = machine("aws-p5.48xl-topo.xml") else { return };
    assert_eq!((machine.nics.len(), machine.gpus.len()), (32, 0));
    assert_eq!(Plan::of(&machine).hosts.iter().map(|host| host.own().count()).collect::<Vec<_>>(), [16, 16]);
    assert_eq!(findings(&machine), [Finding::NoGpus]);
    // What the machine itself shows: GPUs behind the switches that the file names.
    let switches = [0x45, 0x56, 0x67, 0x78, 0x89, 0x9a, 0xab, 0xbc];
    let mut live = Topology::default();
    for (index, switch) in (0..).zip(switches) {
        let address = |bus: u8| format!("0000:{bus:02x}:00.0").parse().unwrap();
        live.gpus.push(Gpu {
            index,
            pci: Some(address(switch + 14)),
            switches: vec![address(switch)],
            ..Gpu::default()
        });
    }
    let whole = machine.over(&live).unwrap();
    let first = [0x4f, 0x60, 0x71, 0x82, 0x93, 0xa4, 0xb5, 0xc6];
    let expected = switches.iter().zip(first).map(|(switch, nic)| (u32::from(*switch) + 14, (nic..nic + 4).collect()));
    assert_eq!(buses(&whole), expected.collect::<Vec<_>>());
    assert_eq!(whole.gpus[7].numa, Some(1), "the file tells the node");
    all_nearest_are(&whole, Distance::SameSwitch);
    assert_eq!(findings(&whole), []);
}

#[test]
fn mi300x_has_a_nic_in_each_gpus_tree() {
    let Some(machine) = machine("rccl-topo_8p_940.xml") else { return };
    let gpus = [0x0c, 0x15, 0x1e, 0x69, 0x9f, 0xaf, 0xbf, 0xdf];
    let nics = [0x07, 0x10, 0x19, 0x64, 0x9a, 0xaa, 0xba, 0xda];
    assert_eq!(buses(&machine), gpus.into_iter().zip(nics).map(|(gpu, nic)| (gpu, vec![nic])).collect::<Vec<_>>());
    all_nearest_are(&machine, Distance::SwitchTree);
    assert!(machine.nics.iter().all(|nic| nic.speed_bit_s() == Some(400_000_000_000)));
    assert_eq!(machine.nics[3].name, "mlx5_3");
    assert_eq!(findings(&machine), []);
}

#[test]
fn h100_by_smi_is_one_to_one() {
    let Some(machine) = machine("smi-h100-8gpu-8nic-pix.txt") else { return };
    for (at, gpu) in Plan::of(&machine).gpus.iter().enumerate() {
        assert_eq!(gpu.own().collect::<Vec<_>>(), [format!("mlx5_{at}")]);
        let near = gpu.nics.iter().filter(|choice| choice.distance <= Distance::SameNuma).count();
        assert_eq!((near, gpu.penalty_ns[at]), (4, 0));
    }
    assert_eq!(machine.nodes[1].cpus.to_string(), "48-95,144-191");
    assert_eq!(machine.nics[7].numa, Some(1));
    assert_eq!(findings(&machine), []);
}

#[test]
fn a_vm_without_switches_is_divided_two_a_gpu() {
    let Some(machine) = machine("smi-vm-4gpu-8nic-all-phb.txt") else { return };
    for (at, gpu) in Plan::of(&machine).gpus.iter().enumerate() {
        assert_eq!(gpu.own().collect::<Vec<_>>(), [format!("mlx5_{}", 2 * at), format!("mlx5_{}", 2 * at + 1)]);
    }
    all_nearest_are(&machine, Distance::SameRoot);
    assert_eq!(findings(&machine), [Finding::NoSwitches]);
}
