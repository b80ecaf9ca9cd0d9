//! NCCL's topology XML: what clouds ship for `NCCL_TOPO_FILE`, and what `NCCL_TOPO_DUMP_FILE` (RCCL's too) writes.
//!
//! `system` holds `cpu`s (one a NUMA node), these hold `pci` elements, nested as the switches are; a `pci` is a switch, a GPU, a
//! NIC or something else by its class, or by what it holds. Files by hand leave much out: classes, children, speeds, GPUs.
//! NCCL knows no root complexes (its PHB is what `nvidia-smi` calls NODE), so the distances that come of it have none.

use roxmltree::{Document, Node, ParsingOptions};

use super::check::{GPUS_MAX, NICS_MAX, PORTS_MAX, SPEED_MAX, SWITCHES_MAX, finish};
use super::cpus::CpuSet;
use super::error::TopologyError;
use super::pci::PciAddress;
use super::types::{Gpu, LinkLayer, Nic, NicKind, NumaNode, Port, Source, Topology};

/// Elements of a document.
const NODES_MAX: u32 = 65_536;
/// Bytes of one tag: the parser compares all attributes of a tag with each other.
const TAG_BYTES_MAX: usize = 16 << 10;
/// Vendors of processors that KV lives on; a management controller's display has the same class.
const GPU_VENDORS: [&str; 3] = ["0x10de", "0x1002", "0x8086"];

type Result<T> = std::result::Result<T, TopologyError>;

pub(super) fn read(text: &str) -> Result<Topology> {
    tags_are_short(text)?;
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| TopologyError::Syntax {
        format: Source::NcclXml,
        line: error.pos().row as usize,
        says: error.to_string(),
    })?;
    let system = document.root_element();
    let mut reader = Reader { document: &document, topology: Topology::default(), host: None };
    reader.topology.source = Source::NcclXml;
    reader.system(system)?;
    let mut topology = reader.topology;
    number_the_gpus(&mut topology.gpus);
    name_the_nics(&mut topology.nics);
    finish(topology)
}

/// Finds a tag that is longer than any that NCCL writes.
fn tags_are_short(text: &str) -> Result<()> {
    let mut at = 0;
    while let Some(found) = text[at..].find('<') {
        let start = at + found;
        let rest = &text[start..];
        let len = if let Some(comment) = rest.strip_prefix("<!--") {
            comment.find("-->").map_or(rest.len(), |end| end + 7)
        } else if let Some(data) = rest.strip_prefix("<![CDATA[") {
            data.find("]]>").map_or(rest.len(), |end| end + 12)
        } else {
            let mut quoted = None;
            let end = rest.bytes().take(TAG_BYTES_MAX + 1).position(|byte| {
                match (quoted, byte) {
                    (None, b'"' | b'\'') => quoted = Some(byte),
                    (Some(quote), byte) if quote == byte => quoted = None,
                    _ => {}
                }
                quoted.is_none() && byte == b'>'
            });
            let Some(end) = end else {
                if rest.len() <= TAG_BYTES_MAX {
                    return Ok(()); // Unfinished: the parser says so.
                }
                let line = super::format::line_of(text.as_bytes(), start);
                let says = format!("a tag has more than {TAG_BYTES_MAX} bytes");
                return Err(TopologyError::Syntax { format: Source::NcclXml, line, says });
            };
            end + 1
        };
        at = start + len;
    }
    Ok(())
}

/// What stands above an element.
#[derive(Clone, Default)]
struct Above {
    numa: Option<u32>,
    switches: Vec<PciAddress>,
}

struct Reader<'d> {
    document: &'d Document<'d>,
    topology: Topology,
    /// Hash of the host that the file speaks of, where it says.
    host: Option<&'d str>,
}

impl<'d> Reader<'d> {
    fn wrong(&self, node: Node<'_, '_>, field: &str, found: &str, wants: impl std::fmt::Display) -> TopologyError {
        let line = self.document.text_pos_at(node.range().start).row as usize;
        TopologyError::field(Source::NcclXml, line, field, found, wants)
    }

    /// An attribute as a number, decimal.
    fn number<T: std::str::FromStr>(&self, node: Node<'_, '_>, name: &str, wants: &str) -> Result<Option<T>> {
        let Some(text) = node.attribute(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| self.wrong(node, name, text, wants))
    }

    fn system(&mut self, system: Node<'d, 'd>) -> Result<()> {
        if system.tag_name().name() != "system" {
            return Err(self.wrong(system, "the outermost element", system.tag_name().name(), "`system`"));
        }
        match system.attribute("version") {
            None | Some("1" | "2") => {}
            Some(other) => return Err(self.wrong(system, "version", other, "1 or 2")),
        }
        for child in system.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "cpu" => self.cpu(child)?,
                // NICs that no CPU owns stand here in some dumps.
                "nic" => self.nets(child, None, &Above::default())?,
                "pci" => self.pci(child, &Above::default())?,
                _ => {}
            }
        }
        Ok(())
    }

    fn cpu(&mut self, cpu: Node<'d, 'd>) -> Result<()> {
        if let Some(hash) = cpu.attribute("host_hash") {
            match self.host {
                Some(first) if first != hash => {
                    let wants = "one host a file (a dump of a machine of its own)";
                    return Err(self.wrong(cpu, "host_hash", hash, wants));
                }
                _ => self.host = Some(hash),
            }
        }
        let numa: Option<i64> = self.number(cpu, "numaid", "the number of a NUMA node, or -1 for none,")?;
        let numa = match numa {
            None | Some(-1) => None,
            Some(id) => match u32::try_from(id) {
                Ok(id) => Some(id),
                Err(_) => return Err(self.wrong(cpu, "numaid", &id.to_string(), "0 or more, or -1 for none,")),
            },
        };
        if let Some(id) = numa {
            let cpus = match cpu.attribute("affinity") {
                None | Some("") => CpuSet::default(),
                Some(mask) => CpuSet::from_mask(mask).map_err(|wants| self.wrong(cpu, "affinity", mask, wants))?,
            };
            self.topology.nodes.push(NumaNode { id, cpus, distances: Vec::new() });
        }
        let above = Above { numa, switches: Vec::new() };
        for child in cpu.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, &above)?,
                "nic" => self.nets(child, None, &above)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn pci(&mut self, pci: Node<'d, 'd>, above: &Above) -> Result<()> {
        let text = pci.attribute("busid").unwrap_or("");
        let address: PciAddress = text.parse().map_err(|wants| self.wrong(pci, "busid", text, wants))?;
        let holds = |name: &str| pci.children().any(|child| child.has_tag_name(name));
        let class = pci.attribute("class").map(str::trim).filter(|class| !class.is_empty());
        if let Some(class) = class
            && !class.strip_prefix("0x").is_some_and(|hex| hex.len() == 6 && u32::from_str_radix(hex, 16).is_ok())
        {
            return Err(self.wrong(pci, "class", class, "a class like 0x060400"));
        }
        let is = |prefixes: &[&str]| class.is_some_and(|class| prefixes.iter().any(|prefix| class.starts_with(prefix)));
        // What it holds goes before its class: some NICs and GPUs stand behind a bridge of their own.
        if holds("pci") || is(&["0x0604"]) {
            if above.switches.len() == SWITCHES_MAX {
                let line = self.document.text_pos_at(pci.range().start).row as usize;
                let says = format!("more than {SWITCHES_MAX} `pci` elements stand in each other");
                return Err(TopologyError::Syntax { format: Source::NcclXml, line, says });
            }
            let mut below = above.clone();
            below.switches.push(address);
            for child in pci.children().filter(|child| child.has_tag_name("pci")) {
                self.pci(child, &below)?;
            }
            return Ok(());
        }
        let vendor = pci.attribute("vendor").map(str::to_ascii_lowercase);
        let computes = vendor.is_none_or(|vendor| GPU_VENDORS.contains(&vendor.as_str()) || vendor == "0x0000");
        if holds("gpu") || (is(&["0x03", "0x12"]) && computes) {
            return self.gpu(pci, address, above);
        }
        // A leaf without a class is a NIC: so does AWS write its EFA devices.
        if holds("nic") || holds("net") || is(&["0x02"]) || (class.is_none() && !pci.has_children()) {
            let nic = pci.children().find(|child| child.has_tag_name("nic")).unwrap_or(pci);
            return self.nets(nic, Some((address, class)), above);
        }
        Ok(())
    }

    fn gpu(&mut self, pci: Node<'d, 'd>, address: PciAddress, above: &Above) -> Result<()> {
        let index = match pci.children().find(|child| child.has_tag_name("gpu")) {
            Some(gpu) => self.number(gpu, "dev", "the GPU's number")?,
            None => None,
        };
        self.topology.gpus.push(Gpu {
            index: index.unwrap_or(UNNUMBERED),
            pci: Some(address),
            numa: above.numa,
            switches: above.switches.clone(),
            ..Gpu::default()
        });
        within("GPUs", self.topology.gpus.len(), GPUS_MAX)
    }

    /// The `net`s of one device: its ports, or devices of their own where their names differ.
    fn nets(&mut self, nic: Node<'d, 'd>, pci: Option<(PciAddress, Option<&str>)>, above: &Above) -> Result<()> {
        let layer = pci.and_then(|(_, class)| match class?.get(..6)? {
            "0x0207" => Some(LinkLayer::Infiniband),
            "0x0200" => Some(LinkLayer::Ethernet),
            _ => None,
        });
        let blank = Nic {
            pci: pci.map(|(address, _)| address),
            numa: above.numa,
            switches: above.switches.clone(),
            ..Nic::default()
        };
        let first = self.topology.nics.len();
        for net in nic.children().filter(|child| child.has_tag_name("net")) {
            let name = net.attribute("name").unwrap_or("");
            let wants = "Mbit/s";
            let speed: Option<u64> = self.number(net, "speed", wants)?;
            let bits = |mbit: u64| mbit.checked_mul(1_000_000).filter(|bits| *bits <= SPEED_MAX);
            let speed_bit_s = match speed {
                None | Some(0) => None,
                Some(mbit) => Some(bits(mbit).ok_or_else(|| self.wrong(net, "speed", &mbit.to_string(), wants))?),
            };
            let number = self.number(net, "port", "a port's number")?.unwrap_or(1);
            let port = Port { number, speed_bit_s, link_layer: layer, ..Port::default() };
            let nics = &mut self.topology.nics;
            match nics[first..].iter_mut().find(|nic| nic.name == name) {
                Some(nic) if nic.ports.iter().any(|port| port.number == number) => {
                    let wants = "a port that the device does not have yet";
                    return Err(self.wrong(net, "port", &number.to_string(), wants));
                }
                Some(nic) => {
                    nic.ports.push(port);
                    within("ports of a NIC", nic.ports.len(), PORTS_MAX)?;
                }
                None => {
                    // Without a bus there is no saying what it is; verbs devices have a guid.
                    let sockets = net.attribute("guid").is_none() && pci.is_none();
                    let kind = if sockets { NicKind::Ethernet } else { NicKind::Rdma };
                    nics.push(Nic { name: name.to_owned(), kind, ports: vec![port], ..blank.clone() });
                }
            }
            within("NICs", self.topology.nics.len(), NICS_MAX)?;
        }
        if self.topology.nics.len() == first && pci.is_some() {
            let ports = vec![Port { number: 1, link_layer: layer, ..Port::default() }];
            self.topology.nics.push(Nic { ports, ..blank });
        }
        within("NICs", self.topology.nics.len(), NICS_MAX)
    }
}

/// Stands for a GPU's number until all are known.
const UNNUMBERED: u32 = u32::MAX;

fn within(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found <= limit { Ok(()) } else { Err(TopologyError::too_many(Source::NcclXml, what, found, limit)) }
}

/// GPUs without a number get the free ones in PCIe order.
fn number_the_gpus(gpus: &mut [Gpu]) {
    gpus.sort_by_key(|gpu| gpu.pci);
    let taken: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
    let mut free = (0..).filter(|index| !taken.contains(index));
    for gpu in gpus.iter_mut().filter(|gpu| gpu.index == UNNUMBERED) {
        gpu.index = free.next().unwrap_or(UNNUMBERED);
    }
}

/// NICs without a name get one by their place in PCIe order.
fn name_the_nics(nics: &mut [Nic]) {
    nics.sort_by_key(|nic| (nic.pci.is_none(), nic.pci));
    for (at, nic) in nics.iter_mut().enumerate() {
        // A name with a space, say, is the file's, and is refused with the others that are unsound.
        if nic.name.is_empty() {
            nic.name = format!("nic{at}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Distance, fixtures};
    use super::*;

    #[test]
    fn a_dump_is_read_whole() {
        let machine = read(fixtures::DUMP_XML).unwrap();
        assert_eq!(machine.gpus.len(), 2);
        let [gpu, other] = &machine.gpus[..] else { unreachable!() };
        assert_eq!((gpu.index, gpu.numa, gpu.pci), (0, Some(0), "0000:2c:00.0".parse().ok()));
        assert_eq!((other.index, other.numa), (1, Some(1)));
        let names: Vec<_> = machine.nics.iter().map(|nic| nic.name.as_str()).collect();
        assert_eq!(names, ["ibp0", "twin", "eno1"]);
        assert_eq!(machine.nics[0].speed_bit_s(), Some(400_000_000_000));
        assert_eq!(machine.nics[0].ports[0].link_layer, Some(LinkLayer::Infiniband));
        assert_eq!(machine.nics[1].ports.len(), 2, "one NIC with two ports");
        assert_eq!(machine.nics[1].speed_bit_s(), Some(200_000_000_000));
        assert_eq!((machine.nics[2].kind, machine.nics[2].pci), (NicKind::Ethernet, None));
        assert_eq!(machine.nodes[0].cpus.to_string(), "0-15");
        assert_eq!(machine.distance(gpu, &machine.nics[0]), Distance::SwitchTree);
        assert_eq!(machine.distance(gpu, &machine.nics[1]), Distance::OtherSocket);
        assert_eq!(machine.distance(other, &machine.nics[1]), Distance::SameNuma);
    }

    #[test]
    fn leaves_without_class_are_nics_and_gpus_get_numbers_by_address() {
        let machine = read(
            r#"<system version="1"><cpu numaid="-1"><pci busid="0000:50:00.0"><pci busid="0000:53:00.0"/>
            <pci busid="0000:52:00.0"/><pci busid="0000:54:00.0" class="0x010802"/></pci>
            <pci busid="0000:99:00.0" class="0x030200"/><pci busid="0000:07:00.0" class="0x030200" vendor="0x10DE"/>
            <pci busid="0000:03:00.0" class="0x030000" vendor="0x1a03"/></cpu></system>"#,
        )
        .unwrap();
        let nics: Vec<_> = machine.nics.iter().map(|nic| (nic.name.as_str(), nic.pci.unwrap().bus)).collect();
        assert_eq!(nics, [("nic0", 0x52), ("nic1", 0x53)]);
        let gpus: Vec<_> = machine.gpus.iter().map(|gpu| (gpu.index, gpu.pci.unwrap().bus, gpu.numa)).collect();
        assert_eq!(gpus, [(0, 0x07, None), (1, 0x99, None)]);
        assert!(machine.nodes.is_empty());
    }

    #[track_caller]
    fn refused(text: &str, parts: &[&str]) {
        let error = read(text).expect_err("wrong").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "`{error}` lacks one of {parts:?}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let cpu = |inside: &str| format!("<system version=\"1\">\n<cpu numaid=\"0\">\n{inside}\n</cpu></system>");
        refused("<graphs/>", &["line 1", "outermost", "`system`"]);
        refused("<system version=\"7\"/>", &["version", "`7`", "1 or 2"]);
        refused("<system>\n<cpu numaid=\"0\">", &["NCCL XML, line "]);
        refused("<system>\n<cpu numaid=0/></system>", &["NCCL XML, line 2"]);
        refused("<system>\n<cpu numaid=\"-2\"/></system>", &["line 2", "numaid"]);
        refused("<system>\n<cpu numaid=\"0\" affinity=\"q\"/></system>", &["line 2", "affinity", "mask"]);
        refused(&cpu("<pci busid=\"0000:zz:00.0\"/>"), &["line 3", "busid", "zz", "0000:3b:00.0"]);
        refused(&cpu("<pci/>"), &["line 3", "busid"]);
        refused(&cpu("<pci busid=\"0:1:0.0\" class=\"nic\"/>"), &["line 3", "class", "0x060400"]);
        let net = |net: &str| cpu(&format!("<pci busid=\"0:1:0.0\"><nic>{net}</nic></pci>"));
        refused(&net("<net name=\"a\" speed=\"fast\"/>"), &["line 3", "speed", "`fast`", "Mbit/s"]);
        refused(&net("<net name=\"a\" speed=\"99999999999999\"/>"), &["speed", "Mbit/s"]);
        refused(&net("<net name=\"a\"/><net name=\"a\"/>"), &["port"]);
        let two = "<system><cpu host_hash=\"0x1\"/>\n<cpu host_hash=\"0x2\"/></system>";
        refused(two, &["line 2", "host_hash", "one host"]);
        refused("<!DOCTYPE a [<!ENTITY b \"c\">]><system/>", &["NCCL XML"]);
        let deep = "<pci busid=\"0:1:0.0\">".repeat(40) + &"</pci>".repeat(40);
        refused(&cpu(&deep), &["stand in each other"]);
        let bottomless = "<pci busid=\"0:1:0.0\">".repeat(50_000);
        refused(&bottomless, &["NCCL XML"]);
        let wide: String = (0..100_000).map(|i| format!(" a{i}=\"\"")).collect();
        refused(&format!("<system\n{wide}/>"), &["a tag has more than"]);
        refused(&cpu(&"<pci busid=\"0:1:0.0\"/>".repeat(200)), &["NICs", "at most 128"]);
    }
}
