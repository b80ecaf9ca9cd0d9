//! Odd machines: what their owners would expect.

use super::types::Topology;
use super::{Distance, Finding, MemoryPlan, Plan, findings, read};

fn machine(toml: &str) -> Topology {
    read(toml.as_bytes()).unwrap()
}

fn own(plan: &MemoryPlan) -> Vec<&str> {
    plan.own().collect()
}

/// Own NICs of each GPU.
fn drawn(topology: &Topology) -> Vec<Vec<String>> {
    Plan::of(topology).gpus.iter().map(|gpu| gpu.own().map(str::to_owned).collect()).collect()
}

fn list(name: &str, count: usize, each: impl Fn(usize) -> String) -> String {
    let items: Vec<String> = (0..count).map(|at| format!("{{ {} }}", each(at))).collect();
    format!("{name} = [{}]\n", items.join(", "))
}

#[test]
fn thirty_two_nics_for_eight_gpus_are_four_each() {
    let switch = |at: usize| format!("switches = [\"0000:{:02x}:00.0\"], numa = {}", 0x10 + at, at / 4);
    let toml = list("gpu", 8, |at| format!("index = {at}, {}", switch(at)))
        + &list("nic", 32, |at| format!("name = \"efa{at}\", {}", switch(at / 4)));
    let drawn = drawn(&machine(&toml));
    assert_eq!(drawn[0], ["efa0", "efa1", "efa2", "efa3"]);
    assert_eq!(drawn[7], ["efa28", "efa29", "efa30", "efa31"]);
}

#[test]
fn a_flat_machine_is_divided_by_order_and_told_so() {
    let toml = list("gpu", 4, |at| format!("index = {at}, root = \"pci0000:00\""))
        + &list("nic", 8, |at| format!("name = \"mlx5_{at}\", root = \"pci0000:00\""));
    let flat = machine(&toml);
    assert_eq!(drawn(&flat)[1], ["mlx5_2", "mlx5_3"]);
    let plan = Plan::of(&flat);
    let order: Vec<_> = plan.gpus[1].nics.iter().map(|choice| choice.nic.as_str()).collect();
    assert_eq!(order[..4], ["mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"], "it spills on the next, not all on the first");
    assert_eq!(plan.gpus[1].nics[0].why, "same root complex pci0000:00; its share of 8 that are as near");
    let findings = findings(&flat);
    assert!(findings.contains(&Finding::NoSwitches) && findings.contains(&Finding::NoNuma), "{findings:?}");
}

#[test]
fn nothing_known_is_still_a_plan() {
    let toml = list("gpu", 3, |at| format!("index = {at}")) + &list("nic", 5, |at| format!("name = \"n{at}\""));
    let dark = machine(&toml);
    assert_eq!(drawn(&dark), [["n0", "n3", "n4"], ["n1", "n3", "n4"], ["n2", "n3", "n4"]]);
    assert_eq!(Plan::of(&dark).gpus[0].nics[0].distance, Distance::Unknown);
    assert_eq!(own(&Plan::of(&dark).hosts[0]).len(), 5, "host memory is striped over all");
}

#[test]
fn nics_behind_only_some_gpus_are_divided_among_the_rest_too() {
    let numa = |at: usize| at / 4;
    let toml = list("gpu", 8, |at| {
        let switch =
            if at % 4 == 0 { format!(", switches = [\"0000:{:02x}:00.0\"]", 0x10 + at) } else { String::new() };
        format!("index = {at}, numa = {}{switch}", numa(at))
    }) + &list("nic", 4, |at| match at % 2 {
        0 => format!("name = \"n{at}\", numa = {}, switches = [\"0000:{:02x}:00.0\"]", at / 2, 0x10 + at * 2),
        _ => format!("name = \"n{at}\", numa = {}", at / 2),
    });
    let machine = machine(&toml);
    let drawn = drawn(&machine);
    for nic in ["n0", "n1", "n2", "n3"] {
        assert_eq!(drawn.iter().filter(|own| own.contains(&nic.to_owned())).count(), 2, "{nic}: {drawn:?}");
    }
    assert_eq!(
        (drawn[0].as_slice(), drawn[4].as_slice()),
        (["n0".to_owned()].as_slice(), ["n2".to_owned()].as_slice())
    );
    let told = findings(&machine);
    assert!(told.contains(&Finding::GpuWithoutNearNic { gpu: 1, nearest: Distance::SameNuma }), "{told:?}");
}

#[test]
fn a_node_without_nics_goes_to_the_nearest_that_has_some() {
    let machine = machine(
        r#"
        node = [{ id = 0, distances = [10, 12, 32] }, { id = 1, distances = [12, 10, 32] }, { id = 2, distances = [32, 32, 10] }]
        gpu = [{ index = 0, numa = 1 }]
        nic = [{ name = "near", numa = 0 }, { name = "far", numa = 2 }]
        "#,
    );
    let plan = Plan::of(&machine);
    assert_eq!((own(&plan.gpus[0]), own(&plan.hosts[1])), (vec!["near"], vec!["near"]));
    assert_eq!(own(&plan.hosts[2]), ["far"]);
    let told = findings(&machine);
    assert!(told.contains(&Finding::NodeWithoutNic { node: 1 }), "{told:?}");
    assert!(told.contains(&Finding::NicOnFarSocket { nic: "far".into(), node: 2 }), "{told:?}");
    assert!(told.contains(&Finding::GpuWithoutNearNic { gpu: 0, nearest: Distance::OtherSocket }), "{told:?}");
}

#[test]
fn a_slow_nic_is_not_striped_over_unless_it_is_all_there_is() {
    let slow = "name = \"manage\", ports = [{ speed_bit_s = 25_000_000_000 }]";
    let toml = list("gpu", 1, |_| "index = 0, numa = 0".into())
        + &list("nic", 3, |at| match at {
            0 => slow.to_owned(),
            _ => format!(
                "name = \"fast{at}\", numa = 1, ports = [{{ speed_bit_s = {} }}]",
                400_000_000_000u64 / at as u64
            ),
        });
    let machine = machine(&toml);
    let plan = Plan::of(&machine);
    assert_eq!(plan.left_out.len(), 1);
    assert_eq!(plan.left_out[0].1.to_string(), "25 Gbit/s beside 400 Gbit/s: nothing is striped over it");
    let at = machine.nics.iter().position(|nic| nic.name == "manage").unwrap();
    assert_eq!(plan.gpus[0].penalty_ns[at], u32::MAX);
    assert!(
        findings(&machine)
            .iter()
            .any(|finding| matches!(finding, Finding::MixedSpeeds { speeds } if speeds.len() == 2))
    );
    let alone = read(list("nic", 1, |_| slow.to_owned()).as_bytes()).unwrap();
    assert_eq!(own(&Plan::of(&alone).hosts[0]), ["manage"]);
}

#[test]
fn bonds_functions_and_links_that_are_down_are_left_out() {
    let machine = machine(
        r#"
        [[nic]]
        name = "bond0"
        members = ["eth0", "eth1"]
        kind = "ethernet"
        [[nic]]
        name = "eth0"
        kind = "ethernet"
        pci = "0000:41:00.0"
        [[nic]]
        name = "vf"
        kind = "ethernet"
        pci = "0000:42:00.1"
        function_of = "0000:42:00.0"
        [[nic]]
        name = "pf"
        kind = "ethernet"
        pci = "0000:42:00.0"
        [[nic]]
        name = "dark"
        kind = "ethernet"
        ports = [{ up = false }]
        [[nic]]
        name = "rxe0"
        kind = "soft-rdma"
        "#,
    );
    let plan = Plan::of(&machine);
    assert_eq!(own(&plan.hosts[0]), ["pf", "bond0"]);
    let why = |name: &str| plan.left_out.iter().find(|(nic, _)| nic == name).unwrap().1.to_string();
    assert!(why("eth0").contains("shares its wires with bond0"));
    assert!(why("vf").contains("virtual function"));
    assert!(why("dark").contains("down"));
    assert!(why("rxe0").contains("in software"));
}

#[test]
fn what_is_said_by_hand_stands() {
    let machine = machine(
        r#"
        gpu = [{ index = 0, numa = 0, distances = { b = "same-switch" } }]
        [[nic]]
        name = "a"
        numa = 0
        ports = [{ speed_bit_s = 400_000_000_000 }]
        [[nic]]
        name = "b"
        numa = 1
        use = true
        ports = [{ speed_bit_s = 25_000_000_000, up = false }]
        [[nic]]
        name = "c"
        use = false
        "#,
    );
    let plan = Plan::of(&machine);
    assert_eq!(own(&plan.gpus[0]), ["b"]);
    assert!(plan.gpus[0].nics[0].why.starts_with("same switch, says the file"), "{}", plan.gpus[0].nics[0].why);
    assert_eq!(*plan.gpus[0].penalty_ns, [45_000, 0, u32::MAX]);
    assert!(findings(&machine).contains(&Finding::LinkDown { nic: "b".into(), port: 1 }));
}

#[test]
fn ports_are_looked_at() {
    let machine = machine("[[nic]]\nname = \"r\"");
    assert!(findings(&machine).contains(&Finding::NoGpus));
    let port = |port: &str| {
        let toml = format!("acs = [\"0000:2b:00.0\"]\nnic = [{{ name = \"r\", numa = 0, ports = [{{ {port} }}] }}]");
        findings(&read(toml.as_bytes()).unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let told = port("link_layer = \"ethernet\", mtu = 1500, gids = [\"fe80::2\"]");
    assert!(told.contains("ACS is on at 0000:2b:00.0"), "{told}");
    assert!(told.contains("r port 1 has an MTU of 1500"), "{told}");
    assert!(told.contains("link-local GIDs alone"), "{told}");
    let told = port("link_layer = \"infiniband\", gids = [\"fe80::2\"], up = false");
    assert!(told.contains("r port 1 is down") && !told.contains("link-local"), "{told}");
}
