//! Machines for tests, in our own words: no real one is copied.

use super::read;
use super::types::Topology;

/// A dump of a machine with two sockets: a GPU beside an InfiniBand NIC, a GPU without, a NIC with two ports, and an interface.
pub(super) const DUMP_XML: &str = r#"<?xml version="1.0"?>
<!-- written by hand -->
<system version="1">
  <cpu host_hash="0xabc" numaid="0" affinity="0000ffff" arch="x86_64" vendor="Somebody" familyid="25" modelid="1">
    <pci busid="0000:2a:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:2b:00.0" class="0x060400" vendor="0x1000" device="0xc030">
        <pci busid="0000:2c:00.0" class="0x030200" vendor="0x10de" device="0x2330">
          <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:ff:1f.0" count="18" tclass="0x068000"/></gpu>
        </pci>
      </pci>
      <pci busid="0000:2d:00.0" class="0x020700" vendor="0x15b3" device="0x1021">
        <nic><net name="ibp0" dev="0" latency="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1" keep="1"/></nic>
      </pci>
      <pci busid="0000:2e:00.0" class="0x010802" vendor="0x144d" device="0xa80a"/>
    </pci>
    <nic><net name="eno1" dev="2" speed="10000" port="0" keep="1"/></nic>
  </cpu>
  <cpu host_hash="0xabc" numaid="1" affinity="ffff0000">
    <pci busid="0000:8c:00.0" class="0x120000" vendor="0x1002" device="0x74a1">
      <gpu dev="1" sm="304" gcn="gfx942" arch="38911" rank="1" gdr="1"><xgmi target="0000:2c:00.0" count="1"/></gpu>
    </pci>
    <pci busid="0000:9d:00.0" class="0x020000" vendor="0x15b3" device="0x101d">
      <nic>
        <net name="twin" dev="1" speed="100000" port="1" guid="0x2"/>
        <net name="twin" dev="1" speed="100000" port="2" guid="0x2"/>
      </nic>
    </pci>
  </cpu>
</system>
"#;

/// What a terminal shows: an underlined header, two legends.
pub(super) const SMI: &str =
    "\t\u{1b}[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m
GPU0\t X \tNV12\tPIX\tSYS\tNODE\t0-15\t0\tN/A
GPU1\tNV12\t X \tSYS\tPXB\tSYS\t16-31\t1\tN/A
NIC0\tPIX\tSYS\t X \tSYS\tNODE\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \tSYS\t\t\t
NIC2\tNODE\tSYS\tNODE\tSYS\t X \t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: rdma0
  NIC1: rdma1
  NIC2: store
";

/// Everything that our own format has.
pub(super) const OURS_TOML: &str = r#"
# a machine by hand
acs = ["0000:2b:00.0"]

[[node]]
id = 0
cpus = "0-15,32-47"
distances = [10, 21]

[[node]]
id = 1
cpus = "16-31,48-63"
distances = [21, 10]

[[gpu]]
index = 0
pci = "0000:2c:00.0"
numa = 0
root = "pci0000:29"
switches = ["0000:2a:00.0", "0000:2b:00.0"]

[[gpu]]
index = 1
numa = 1
distances = { left = "other-socket", right = "same-root", manage = "unknown" }

[[nic]]
name = "left"
pci = "0000:2d:00.0"
numa = 0
root = "pci0000:29"
switches = ["0000:2a:00.0", "0000:2b:00.0"]
rail = 1
interfaces = ["ens1np0"]
ports = [{ speed_bit_s = 400_000_000_000, link_layer = "ethernet", up = true, mtu = 9000, gids = ["::ffff:10.1.2.3", "fe80::1"] }]

[[nic]]
name = "right"
pci = "0000:8d:00.0"
numa = 1
rail = 0
use = true
ports = [{ number = 1, speed_bit_s = 200_000_000_000 }, { number = 2, speed_bit_s = 200_000_000_000, up = false }]

[[nic]]
name = "manage"
kind = "ethernet"
use = false
members = ["eno1", "eno2"]
function_of = "0000:8d:00.0"
"#;

/// One of each text format, read.
pub(super) fn all() -> Vec<(&'static str, Topology)> {
    let texts = [("xml", DUMP_XML), ("smi", SMI), ("toml", OURS_TOML)];
    texts.into_iter().map(|(name, text)| (name, read(text.as_bytes()).expect(name))).collect()
}
