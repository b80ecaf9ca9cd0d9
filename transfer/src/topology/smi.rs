//! What `nvidia-smi topo -m` prints, as people paste it: a matrix, affinities, a legend of NIC names. Without addresses and
//! speeds: for tests, and for `kvrail doctor` on a machine that only its output was sent from.

use super::check::{GPUS_MAX, NICS_MAX, finish};
use super::cpus::CpuSet;
use super::error::TopologyError;
use super::types::{Distance, Gpu, Nic, NumaNode, Port, Source, Topology};

type Result<T> = std::result::Result<T, TopologyError>;

/// Titles of the columns after the matrix; they have spaces in them.
const TITLES: [&str; 3] = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"];

/// The line that names the columns: devices alone, and titles after them.
pub(super) fn is_header(line: &str) -> bool {
    let line = plain(line);
    let first = line.split_whitespace().next();
    first.is_some_and(|word| is_device(word, "GPU")) && !line.contains('=') && {
        let second = line.split_whitespace().nth(1);
        second.is_none_or(|word| cell(word).is_none()) && !line.contains(':')
    }
}

fn is_device(word: &str, stem: &str) -> bool {
    word.strip_prefix(stem).is_some_and(|number| number.len() < 5 && number.parse::<u32>().is_ok())
}

/// Without the escape sequences that underline the header on a terminal.
fn plain(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            plain.push(character);
        } else if characters.next() == Some('[') {
            // A control sequence ends with a byte of @ to ~.
            characters.by_ref().find(|c| ('@'..='~').contains(c));
        }
    }
    plain
}

/// What a cell says: `None` if it says nothing known, `Some(None)` where there is no distance (the device itself, NVLink).
fn cell(word: &str) -> Option<Option<Distance>> {
    Some(match word {
        "X" => None,
        "PIX" => Some(Distance::SameSwitch),
        "PXB" => Some(Distance::SwitchTree),
        "PHB" => Some(Distance::SameRoot),
        "NODE" => Some(Distance::SameNuma),
        "SYS" => Some(Distance::OtherSocket),
        "N/A" => Some(Distance::Unknown),
        _ => return word.strip_prefix("NV").and_then(|links| links.parse::<u16>().ok()).map(|_| None),
    })
}

/// Fields of a row: by tabs where there are any, or else by white space.
fn fields(line: &str, titles: bool) -> Vec<&str> {
    if line.contains('\t') {
        return line.split('\t').map(str::trim).collect();
    }
    let matrix = if titles { line.find(TITLES[0]).map_or(line, |at| &line[..at]) } else { line };
    let mut fields: Vec<_> = if titles { vec![""] } else { Vec::new() };
    fields.extend(matrix.split_whitespace());
    if titles {
        fields.extend(TITLES.iter().filter(|title| line.contains(**title)));
    }
    fields
}

pub(super) fn read(text: &str) -> Result<Topology> {
    let lines: Vec<(usize, String)> = text.lines().enumerate().map(|(at, line)| (at + 1, plain(line))).collect();
    let Some(header_at) = lines.iter().position(|(_, line)| is_header(line)) else {
        return Err(TopologyError::Unrecognised);
    };
    let header = fields(&lines[header_at].1, true);
    let columns: Vec<&str> =
        header.iter().skip(1).take_while(|name| !TITLES.contains(name) && !name.is_empty()).copied().collect();
    let wrong = |line: usize, field: &str, found: &str, wants: &str| {
        TopologyError::field(Source::NvidiaSmi, line, field, found, wants)
    };
    let titles: Vec<&str> = header[1 + columns.len()..].to_vec();
    let (gpus, nics): (Vec<usize>, Vec<usize>) = (0..columns.len()).partition(|at| is_device(columns[*at], "GPU"));
    for (what, found, limit) in [("GPUs", gpus.len(), GPUS_MAX), ("NICs", nics.len(), NICS_MAX)] {
        if found > limit {
            return Err(TopologyError::too_many(Source::NvidiaSmi, what, found, limit));
        }
    }
    let mut rows: Vec<Option<Row>> = vec![None; columns.len()];
    for (number, line) in &lines[header_at + 1..] {
        let parts = fields(line, false);
        let Some(column) = columns.iter().position(|name| parts.first() == Some(name)) else { continue };
        if rows[column].is_some() {
            return Err(wrong(*number, columns[column], "there twice", "one row for each device"));
        }
        rows[column] = Some(Row::read(*number, &columns, &parts, &titles)?);
    }
    let last = lines.len();
    let rows: Vec<Row> = rows
        .into_iter()
        .zip(&columns)
        .map(|(row, name)| row.ok_or_else(|| wrong(last, name, "without a row", "a row for each column")))
        .collect::<Result<_>>()?;
    for &gpu in &gpus {
        for &nic in &nics {
            if rows[gpu].cells[nic] != rows[nic].cells[gpu] {
                let field = format!("{} in row {}", columns[gpu], columns[nic]);
                let word = |cell: Option<Distance>| cell.map_or("X", Distance::word);
                let wants = format!("what row {} says ({})", columns[gpu], word(rows[gpu].cells[nic]));
                return Err(wrong(rows[nic].line, &field, word(rows[nic].cells[gpu]), &wants));
            }
        }
    }
    finish(build(&columns, &gpus, &nics, &rows, &legend(&lines[header_at..])))
}

#[derive(Clone)]
struct Row {
    line: usize,
    cells: Vec<Option<Distance>>,
    cpus: CpuSet,
    numa: Option<u32>,
}

impl Row {
    fn read(line: usize, columns: &[&str], parts: &[&str], titles: &[&str]) -> Result<Self> {
        let name = parts[0];
        let wrong = |field: String, found: &str, wants: &str| {
            TopologyError::field(Source::NvidiaSmi, line, field, found, wants)
        };
        let mut cells = Vec::with_capacity(columns.len());
        for (at, column) in columns.iter().enumerate() {
            let word = parts.get(at + 1).copied().unwrap_or("");
            let wants = "X, PIX, PXB, PHB, NODE, SYS or NV with a number";
            cells.push(cell(word).ok_or_else(|| wrong(format!("{column} in row {name}"), word, wants))?);
        }
        let after = |title: &str| {
            let at = titles.iter().position(|t| *t == title)?;
            parts.get(1 + columns.len() + at).copied().filter(|text| !text.is_empty() && *text != "N/A")
        };
        let cpus = match after(TITLES[0]) {
            None => CpuSet::default(),
            Some(text) => {
                text.parse().map_err(|_| wrong(format!("{} of {name}", TITLES[0]), text, "a list like 0-47,96-143"))?
            }
        };
        // A GPU near several nodes has a list; the first is the nearest.
        let numa = match after(TITLES[1]) {
            None => None,
            Some(text) => {
                let first = text.split([',', '-']).next().unwrap_or(text);
                let node = first
                    .parse()
                    .map_err(|_| wrong(format!("{} of {name}", TITLES[1]), text, "a node's number, or N/A,"))?;
                Some(node)
            }
        };
        Ok(Self { line, cells, cpus, numa })
    }
}

/// `NIC0: mlx5_0` lines.
fn legend(lines: &[(usize, String)]) -> Vec<(&str, &str)> {
    let pairs = lines.iter().filter_map(|(_, line)| line.trim().split_once(':'));
    pairs.map(|(key, name)| (key.trim(), name.trim())).filter(|(key, _)| is_device(key, "NIC")).collect()
}

fn build(columns: &[&str], gpus: &[usize], nics: &[usize], rows: &[Row], legend: &[(&str, &str)]) -> Topology {
    let mut topology = Topology { source: Source::NvidiaSmi, ..Topology::default() };
    let name = |nic: usize| {
        let told = legend.iter().find(|(key, _)| *key == columns[nic]).map(|(_, name)| *name);
        told.unwrap_or(columns[nic]).to_owned()
    };
    for &nic in nics {
        // A NIC's node is not printed; it is that of a GPU which shares one with it.
        let near = |gpu: &&usize| rows[**gpu].cells[nic].is_some_and(|distance| distance <= Distance::SameNuma);
        let numa = gpus.iter().find(near).and_then(|gpu| rows[*gpu].numa);
        let ports = vec![Port { number: 1, ..Port::default() }];
        topology.nics.push(Nic { name: name(nic), numa, ports, ..Nic::default() });
    }
    for &gpu in gpus {
        let row = &rows[gpu];
        let distances = nics.iter().filter_map(|nic| Some((name(*nic), row.cells[*nic]?))).collect();
        let index = columns[gpu].trim_start_matches("GPU").parse().unwrap_or_default();
        topology.gpus.push(Gpu { index, numa: row.numa, distances, ..Gpu::default() });
        if let Some(id) = row.numa
            && topology.nodes.iter().all(|node| node.id != id)
        {
            topology.nodes.push(NumaNode { id, cpus: row.cpus.clone(), distances: Vec::new() });
        }
    }
    topology
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn a_terminals_output_is_read() {
        let machine = read(fixtures::SMI).unwrap();
        assert_eq!(machine.gpus.len(), 2);
        let names: Vec<_> = machine.nics.iter().map(|nic| (nic.name.as_str(), nic.numa)).collect();
        assert_eq!(names, [("rdma0", Some(0)), ("rdma1", Some(1)), ("store", Some(0))]);
        let distances = |gpu: usize| {
            machine.nics.iter().map(|nic| machine.distance(&machine.gpus[gpu], nic).word()).collect::<Vec<_>>()
        };
        assert_eq!(distances(0), ["PIX", "SYS", "NODE"]);
        assert_eq!(distances(1), ["SYS", "PXB", "SYS"]);
        assert_eq!(machine.nodes[1].cpus.to_string(), "16-31");
    }

    #[test]
    fn spaces_for_tabs_names_for_numbers_and_no_affinity_are_read_too() {
        let old = "        GPU0    mlx5_0  mlx5_10 CPU Affinity    NUMA Affinity\n\
                   GPU0     X      PHB     SYS     0-7     N/A\n\
                   mlx5_0  PHB      X      SYS\nmlx5_10 SYS     SYS      X \n\nLegend:\n\n  X    = Self\n";
        let machine = read(old).unwrap();
        assert_eq!(machine.nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["mlx5_0", "mlx5_10"]);
        assert_eq!((machine.gpus[0].numa, machine.nodes.len()), (None, 0));
        assert_eq!(machine.distance(&machine.gpus[0], &machine.nics[0]), Distance::SameRoot);
    }

    #[track_caller]
    fn refused(text: &str, parts: &[&str]) {
        let error = read(text).expect_err("wrong").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "`{error}` lacks one of {parts:?}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        refused("\tGPU0\tNIC0\nGPU0\t X \tFAR\nNIC0\tPIX\t X ", &["line 2", "NIC0 in row GPU0", "`FAR`", "NODE"]);
        refused("\tGPU0\tNIC0\nGPU0\t X ", &["line 2", "NIC0 in row GPU0"]);
        refused("\tGPU0\tNIC0\nGPU0\t X \tPIX", &["NIC0", "without a row"]);
        refused("\tGPU0\tNIC0\nGPU0\t X \tPIX\nNIC0\tSYS\t X ", &["line 3", "GPU0 in row NIC0", "(PIX)"]);
        refused("\tGPU0\nGPU0\t X \nGPU0\t X ", &["line 3", "one row"]);
        refused("\tGPU0\tCPU Affinity\nGPU0\t X \tall", &["line 2", "CPU Affinity of GPU0", "0-47"]);
        refused("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0\tnear", &["NUMA Affinity of GPU0", "N/A"]);
    }
}
