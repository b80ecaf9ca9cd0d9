//! Captured trees, written here file by file.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::{ffi::OsStrExt, fs::symlink};
use std::path::Path;

use super::super::hostile::{Random, exercise, mutate};
use super::super::{Distance, Finding, LinkLayer, NicKind, Plan, Topology, findings};
use super::read_sysfs;

/// A tree under a directory: files with their content, links with their target.
struct Captured {
    dir: tempfile::TempDir,
}

impl Captured {
    fn new() -> Self {
        let captured = Self { dir: tempfile::tempdir().unwrap() };
        captured.file("class/net/lo/mtu", "65536");
        captured.file("class/net/lo/type", "772");
        captured.file("class/net/bonding_masters", "bond0");
        captured
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, path: &str, content: &str) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// A PCI device at a path below `devices`.
    fn pci(&self, path: &str, class: &str, vendor: &str, numa: i32) -> &Self {
        let address = path.rsplit('/').next().unwrap();
        self.file(&format!("devices/{path}/class"), class)
            .file(&format!("devices/{path}/vendor"), vendor)
            .file(&format!("devices/{path}/numa_node"), &numa.to_string())
            .link(&format!("bus/pci/devices/{address}"), &format!("../../../devices/{path}"))
    }

    /// An RDMA device of a PCI device, with one port and one interface.
    fn rdma(&self, path: &str, name: &str, rate: &str, layer: &str) -> &Self {
        let at = format!("devices/{path}/infiniband/{name}");
        self.file(&format!("{at}/ports/1/rate"), rate)
            .file(&format!("{at}/ports/1/state"), "4: ACTIVE\n")
            .file(&format!("{at}/ports/1/link_layer"), layer)
            .file(&format!("{at}/ports/1/gids/0"), "fe80:0000:0000:0000:0a1b:2cff:fe3d:4e5f")
            .file(&format!("{at}/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0305")
            .file(&format!("{at}/ports/1/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000")
            .link(&format!("{at}/device"), "../..")
            .link(&format!("class/infiniband/{name}"), &format!("../../{at}"))
    }

    fn net(&self, path: &str, name: &str, mbit: &str, mtu: &str) -> &Self {
        let at = format!("devices/{path}/net/{name}");
        self.file(&format!("{at}/speed"), mbit)
            .file(&format!("{at}/mtu"), mtu)
            .file(&format!("{at}/type"), "1")
            .file(&format!("{at}/operstate"), "up")
            .link(&format!("{at}/device"), "../..")
            .link(&format!("class/net/{name}"), &format!("../../{at}"))
    }

    fn read(&self) -> Topology {
        read_sysfs(self.root()).unwrap()
    }

    #[track_caller]
    fn refused(&self, parts: &[&str]) {
        let error = read_sysfs(self.root()).expect_err("wrong").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "`{error}` lacks one of {parts:?}");
    }
}

/// Root port, switch (upstream port), then two downstream ports with a GPU and a NIC; a management NIC on the other socket.
const SWITCH: &str = "pci0000:20/0000:20:01.0/0000:21:00.0";

fn server() -> Captured {
    let captured = Captured::new();
    let (gpu, nic) = (format!("{SWITCH}/0000:22:00.0/0000:23:00.0"), format!("{SWITCH}/0000:22:04.0/0000:24:00.0"));
    captured
        .file("devices/system/node/node0/cpulist", "0-7\n")
        .file("devices/system/node/node0/distance", "10 21\n")
        .file("devices/system/node/node1/cpulist", "8-15\n")
        .file("devices/system/node/node1/distance", "21 10\n")
        .pci(&gpu, "0x030200", "0x10de", 0)
        .pci(&nic, "0x020000", "0x15b3", 0)
        .rdma(&nic, "mlx5_0", "400 Gb/sec (4X NDR)\n", "Ethernet")
        .net(&nic, "ens1np0", "400000", "9000")
        .pci("pci0000:80/0000:80:02.0/0000:81:00.0", "0x020000", "0x8086", 1)
        .net("pci0000:80/0000:80:02.0/0000:81:00.0", "eno1", "10000", "1500")
        .pci("pci0000:00/0000:00:1f.0", "0x030000", "0x1a03", -1);
    captured
}

#[test]
fn a_server_is_read_whole() {
    let captured = server();
    let machine = captured.read();
    let gpu = &machine.gpus[0];
    assert_eq!((machine.gpus.len(), gpu.numa, gpu.root.as_deref()), (1, Some(0), Some("pci0000:20")));
    assert_eq!(gpu.switches, ["0000:21:00.0".parse().unwrap()]);
    let names: Vec<_> = machine.nics.iter().map(|nic| (nic.name.as_str(), nic.kind)).collect();
    assert_eq!(names, [("mlx5_0", NicKind::Rdma), ("eno1", NicKind::Ethernet)], "ens1np0 is mlx5_0's own");
    let nic = &machine.nics[0];
    assert_eq!((nic.interfaces.as_slice(), nic.numa), (["ens1np0".to_owned()].as_slice(), Some(0)));
    let port = &nic.ports[0];
    assert_eq!((port.speed_bit_s, port.up, port.mtu), (Some(400_000_000_000), Some(true), Some(9000)));
    assert_eq!((port.link_layer, port.gids.len()), (Some(LinkLayer::Ethernet), 2));
    assert_eq!(machine.distance(gpu, nic), Distance::SameSwitch);
    assert_eq!(machine.distance(gpu, &machine.nics[1]), Distance::OtherSocket);
    assert_eq!(machine.nodes[1].cpus.to_string(), "8-15");
    let plan = Plan::of(&machine);
    assert_eq!(plan.gpus[0].own().collect::<Vec<_>>(), ["mlx5_0"]);
    assert_eq!(plan.gpus[0].nics[0].why, "same PCIe switch 0000:21:00.0");
    assert_eq!(findings(&machine), [Finding::NodeWithoutNic { node: 1 }], "eno1 is left out");
    // On a machine of one node, all is on it.
    let small = Captured::new();
    small.file("devices/system/node/node0/cpulist", "0-1").pci("pci0000:00/0000:00:03.0", "0x020000", "0x1af4", -1);
    assert_eq!(small.net("pci0000:00/0000:00:03.0", "eth0", "-1", "1500").read().nics[0].numa, Some(0));
    // The root of the whole file system works too, as does a capture without any device.
    let outer = tempfile::tempdir().unwrap();
    symlink(captured.root(), outer.path().join("sys")).unwrap();
    assert_eq!(read_sysfs(outer.path()).unwrap(), machine);
    assert_eq!(Captured::new().read().nics, []);
}

#[test]
fn acs_above_a_gpu_is_found() {
    let captured = server();
    let mut config = vec![0u8; 512];
    config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0, 0, 0, 0x0c, 0]);
    let port = captured.root().join(format!("devices/{SWITCH}/0000:22:00.0"));
    fs::write(port.join("config"), config).unwrap();
    captured.link("bus/pci/devices/0000:22:00.0", &format!("../../../devices/{SWITCH}/0000:22:00.0"));
    let told = findings(&captured.read());
    assert!(told.contains(&Finding::AcsOn { ports: vec!["0000:22:00.0".parse().unwrap()] }), "{told:?}");
}

#[test]
fn bonds_functions_and_devices_without_a_bus_are_told_apart() {
    let captured = Captured::new();
    let (a, b) = ("pci0000:40/0000:40:01.0/0000:41:00.0", "pci0000:40/0000:40:01.0/0000:41:00.1");
    captured
        .pci(a, "0x020000", "0x15b3", -1)
        .net(a, "eth0", "25000", "9000")
        .pci(b, "0x020000", "0x15b3", -1)
        .net(b, "eth1", "25000", "9000")
        .file("devices/virtual/net/bond0/mtu", "9000")
        .file("devices/virtual/net/bond0/type", "1")
        .file("devices/virtual/net/bond0/speed", "50000")
        .file("devices/virtual/net/bond0/operstate", "up")
        .file("devices/virtual/net/bond0/bonding/slaves", "eth0 eth1\n")
        .link("class/net/bond0", "../../devices/virtual/net/bond0")
        .file("devices/virtual/net/ifb0/mtu", "1500")
        .link("class/net/ifb0", "../../devices/virtual/net/ifb0")
        .pci("pci0000:40/0000:40:01.0/0000:41:02.0", "0x020000", "0x15b3", -1)
        .net("pci0000:40/0000:40:01.0/0000:41:02.0", "eth2", "-1", "1500")
        .link("devices/pci0000:40/0000:40:01.0/0000:41:02.0/physfn", "../0000:41:00.0")
        .file("devices/virtual/infiniband/rxe0/parent", "eth0")
        .file("devices/virtual/infiniband/rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)")
        .file("devices/virtual/infiniband/rxe0/ports/1/link_layer", "Ethernet")
        .link("class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0");
    let machine = captured.read();
    let nic = |name: &str| machine.nics.iter().find(|nic| nic.name == name).unwrap();
    assert_eq!(machine.nics.len(), 5);
    assert_eq!((nic("bond0").members.len(), nic("bond0").root.as_deref()), (2, Some("pci0000:40")));
    assert_eq!(nic("eth2").function_of, "0000:41:00.0".parse().ok());
    assert_eq!((nic("eth2").ports[0].speed_bit_s, nic("eth2").numa), (None, None));
    let rxe = nic("rxe0");
    assert_eq!(
        (rxe.kind, rxe.pci, rxe.interfaces.as_slice()),
        (NicKind::SoftRdma, nic("eth0").pci, ["eth0".to_owned()].as_slice())
    );
    let plan = Plan::of(&machine);
    assert_eq!(plan.hosts[0].own().collect::<Vec<_>>(), ["bond0"]);
    assert_eq!(findings(&machine), [Finding::NoGpus]);
}

#[test]
fn broken_trees_are_typed_errors() {
    let missing = read_sysfs(Path::new("/nonexistent/sys")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/sys"), "{missing}");
    Captured::new().link("class/net/a", "b").link("class/net/b", "a").refused(&["class/net/a", "cannot be followed"]);
    Captured::new().link("class/net/eth0", "../../devices/gone").refused(&["class/net/eth0", "cannot be followed"]);
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("mtu"), "1500").unwrap();
    Captured::new().link("class/net/eth0", outside.path().to_str().unwrap()).refused(&["leads out of the tree"]);
    server().file("class/infiniband/mlx5_0/ports/1/rate", "very fast").refused(&["ports/1/rate", "400 Gb/sec"]);
    server().file("class/infiniband/mlx5_0/ports/1/gids/0", "here").refused(&["gids/0", "a GID like"]);
    server().file("class/net/eno1/mtu", "many").refused(&["eno1/mtu", "`many`", "bytes"]);
    server().file("devices/system/node/node0/cpulist", "9-1").refused(&["node0/cpulist", "0-47,96-143"]);
    server().file("devices/system/node/node0/distance", "near far").refused(&["node0/distance", "10 21"]);
    let captured = server();
    fs::write(captured.root().join("class/net/eno1/operstate"), [0xff, 0xfe]).unwrap();
    captured.refused(&["eno1/operstate", "UTF-8"]);
    let captured = server();
    fs::create_dir_all(captured.root().join("bus/pci/devices").join(OsStr::from_bytes(&[0xff]))).unwrap();
    captured.refused(&["bus/pci/devices", "UTF-8"]);
}

#[test]
fn mutated_attributes_never_panic() {
    fn files(directory: &Path, all: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => files(&entry.path(), all),
                kind if kind.is_file() => all.push(entry.path()),
                _ => {}
            }
        }
    }
    let captured = server();
    let mut all = Vec::new();
    files(captured.root(), &mut all);
    all.sort();
    let (mut accepted, rounds) = (0, 300);
    for seed in 1..=rounds {
        let mut random = Random(seed);
        let path = &all[random.below(all.len())];
        let clean = fs::read(path).unwrap();
        let mut bytes = clean.clone();
        mutate(&mut bytes, &mut random);
        fs::write(path, bytes).unwrap();
        accepted += u64::from(exercise(read_sysfs(captured.root())));
        fs::write(path, clean).unwrap();
    }
    assert!(accepted > 0 && accepted < rounds, "{accepted} of {rounds} were accepted");
}
