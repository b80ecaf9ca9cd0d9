//! What a command line asks for, checked as far as nothing but the command line is needed: the cells, the flows, the limits.

use std::time::Duration;

use super::cell::Cell;
use super::fault::{Act, Fault, schedule};
use super::options::Options;
use super::order::Limit;
use super::pattern::Flow;
use crate::far::Wire;
use crate::setting::SettingError;

/// Streams of a transport, at most; what the engine takes.
const STREAMS_MAX: u8 = 32;
/// Threads of a flow times transfers that each has under way, at most: as many as an engine takes in all.
const LANES_MAX: usize = 65_536;
/// Peers at most.
const PEERS_MAX: usize = 64;
/// Cells of a sweep at most: beyond, somebody has mistyped a range.
const CELLS_MAX: usize = 10_000;

/// A checked plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order in which they are measured: those with the same engines one after the other.
    pub cells: Vec<Cell>,
    /// Who moves bytes to whom.
    pub flows: Vec<Flow>,
    /// Peers of this process.
    pub peers: usize,
    /// When a cell ends.
    pub limit: Limit,
    /// What is done to it meanwhile, earliest first.
    pub acts: Vec<(Duration, Act)>,
    /// The engines' fault plan.
    pub slices: Option<String>,
}

impl Plan {
    /// Reads the options.
    ///
    /// # Errors
    /// [`SettingError`] for the first thing that makes no sense.
    pub fn new(options: &Options) -> Result<Self, SettingError> {
        let peers = peers(options)?;
        let flows = options.pattern.flows(peers);
        let flows = flows.map_err(|e| SettingError::new("pattern", options.pattern, e.to_string()))?;
        let cells = cells(options)?;
        let (acts, slices) = faults(options, peers, cells.len())?;
        if options.count == Some(0) {
            return Err(SettingError::new("count", 0, "one transfer at least"));
        }
        let limit = options.count.map_or(Limit::Time(options.seconds), Limit::Count);
        Ok(Self { cells, flows, peers, limit, acts, slices })
    }

    /// Bytes that the largest cell needs in one end of a flow.
    ///
    /// # Errors
    /// [`SettingError`] where they do not fit an address space.
    pub fn pool(&self, options: &Options) -> Result<u64, SettingError> {
        let bytes = |cell: &Cell| {
            let too_many =
                || SettingError::new("in-flight", cell.in_flight, format!("{cell} is more than memory can hold"));
            cell.layout(options.pool).bytes().ok_or_else(too_many)
        };
        self.cells.iter().try_fold(0, |most, cell| Ok(bytes(cell)?.max(most)))
    }
}

fn peers(options: &Options) -> Result<usize, SettingError> {
    let peers = if options.to.is_empty() { options.peers.unwrap_or(1) } else { options.to.len() };
    if peers == 0 || peers > PEERS_MAX {
        return Err(SettingError::new("peers", peers, format!("1 to {PEERS_MAX}")));
    }
    if let Some(twice) = options.to.iter().enumerate().find(|(n, peer)| options.to[..*n].contains(peer)) {
        return Err(SettingError::new("to", twice.1, "each peer once"));
    }
    Ok(peers)
}

fn wires(options: &Options) -> Result<Vec<Wire>, SettingError> {
    let wires = match (options.transports.is_empty(), options.to.is_empty()) {
        (true, _) if !options.rdma_rails.is_empty() => vec![Wire::Rdma],
        (true, true) if options.rails.is_empty() => vec![Wire::Tcp, Wire::Shm],
        (true, _) => vec![Wire::Tcp],
        (false, _) => options.transports.clone(),
    };
    if !options.to.is_empty() && wires.contains(&Wire::Shm) {
        return Err(SettingError::new(
            "transports",
            "shm",
            "two machines share no memory: tcp or rdma, or --peers for --to",
        ));
    }
    if let (Some(rail), false) = (options.rails.first(), wires.contains(&Wire::Tcp)) {
        return Err(SettingError::new("rails", rail, "they are TCP's: --transports tcp, or --rdma-rails"));
    }
    if let (Some(rail), false) = (options.rdma_rails.first(), wires.contains(&Wire::Rdma)) {
        return Err(SettingError::new("rdma-rails", rail, "they are RDMA's: --transports rdma, or --rails"));
    }
    Ok(wires)
}

/// Block sizes with their batches.
fn shapes(options: &Options) -> Result<Vec<(u64, usize)>, SettingError> {
    let Some(preset) = options.preset else {
        let blocks = options.block.iter().flat_map(|sizes| sizes.0.iter().copied());
        return Ok(blocks.flat_map(|block| options.batch.iter().map(move |batch| (block, *batch))).collect());
    };
    let block_tokens = options.block_tokens.unwrap_or(preset.block_tokens);
    for (flag, given, most) in [("tokens", options.tokens, 1 << 24), ("block-tokens", block_tokens, 1 << 16)] {
        if given == 0 || given > most {
            return Err(SettingError::new(flag, given, format!("1 to {most}")));
        }
    }
    let kv = preset.kv(options.tokens, block_tokens, options.dtype);
    Ok(vec![(kv.block_bytes, usize::try_from(kv.blocks).unwrap_or(usize::MAX))])
}

fn cells(options: &Options) -> Result<Vec<Cell>, SettingError> {
    let wires = wires(options)?;
    let shapes = shapes(options)?;
    for (flag, list) in [("batch", &options.batch), ("in-flight", &options.in_flight), ("threads", &options.threads)] {
        if list.contains(&0) {
            return Err(SettingError::new(flag, 0, "one at least"));
        }
    }
    if let Some((block, _)) = shapes.iter().find(|(block, _)| !block.is_multiple_of(8)) {
        return Err(SettingError::new("block", block, "a multiple of 8"));
    }
    if let Some(streams) = options.streams.iter().find(|streams| !(1..=STREAMS_MAX).contains(*streams)) {
        return Err(SettingError::new("streams", streams, format!("1 to {STREAMS_MAX}")));
    }
    let mut cells = Vec::new();
    for &wire in &wires {
        for &streams in &options.streams {
            for &op in &options.op {
                for &(block_bytes, batch) in &shapes {
                    for &threads in &options.threads {
                        for &in_flight in &options.in_flight {
                            if threads.saturating_mul(in_flight) > LANES_MAX {
                                let wanted = format!("with {threads} threads at most {}", LANES_MAX / threads);
                                return Err(SettingError::new("in-flight", in_flight, wanted));
                            }
                            cells.push(Cell { wire, op, block_bytes, batch, in_flight, threads, streams });
                        }
                    }
                    if cells.len() > CELLS_MAX {
                        let wanted = format!("a sweep of {CELLS_MAX} cells at most; give shorter lists");
                        return Err(SettingError::new("block", "…", wanted));
                    }
                }
            }
        }
    }
    Ok(cells)
}

type Faults = (Vec<(Duration, Act)>, Option<String>);

fn faults(options: &Options, peers: usize, cells: usize) -> Result<Faults, SettingError> {
    let acts = schedule(&options.fault);
    let refuse = |act: Act, wanted: String| Err(SettingError::new("fault", act, wanted));
    for &(at, act) in &acts {
        if cells > 1 {
            return refuse(
                act,
                format!("one cell, and there are {cells}: give one of each list, --transports among them"),
            );
        }
        if options.count.is_some() {
            return refuse(act, "--seconds, for there to be a time; not --count".into());
        }
        if at >= options.seconds {
            return refuse(
                act,
                format!("a time before the end, which is at {:?}; or longer --seconds", options.seconds),
            );
        }
        match act {
            Act::Rail { rail, .. } if rail >= options.rails.len() => {
                return refuse(act, format!("a place in --rails, which has {}", options.rails.len()));
            }
            Act::Peer { .. } if !options.to.is_empty() => {
                return refuse(act, "peers on other machines cannot be signalled: --peers".into());
            }
            Act::Peer { peer, .. } if peer == 0 || peer > peers => {
                return refuse(act, format!("a peer from 1 to {peers}"));
            }
            Act::Rail { .. } | Act::Peer { .. } => {}
        }
    }
    let mut slices = options.fault.iter().filter_map(|fault| match fault {
        Fault::Slices(plan) => Some(plan.clone()),
        Fault::At(..) => None,
    });
    let plan = slices.next();
    if let Some(second) = slices.next() {
        return Err(SettingError::new("fault", format!("slices:{second}"), "one plan for slices, all keys in it"));
    }
    Ok((acts, plan))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::transfer::OpKind;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn plan(line: &str) -> Result<Plan, SettingError> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Plan::new(&Line::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).options)
    }

    #[test]
    fn every_combination_is_a_cell_and_engines_change_seldom() {
        let plan = plan(
            "--block 4K..16K --batch 1,8 --threads 1,2 --in-flight 1 --streams 1,4 --op write,read --transports tcp,shm",
        )
        .unwrap();
        assert_eq!(plan.cells.len(), 3 * 2 * 2 * 2 * 2 * 2);
        let engines = |cell: &Cell| (cell.wire, cell.streams, cell.op);
        let changes = plan.cells.windows(2).filter(|pair| engines(&pair[0]) != engines(&pair[1])).count();
        assert_eq!(changes, 7);
        assert_eq!(plan.cells[0].op, OpKind::Write);
    }

    #[test]
    fn the_default_is_both_transports_between_two() {
        let default = plan("").unwrap();
        let wires: Vec<Wire> = default.cells.iter().map(|cell| cell.wire).collect();
        assert_eq!(wires, [Wire::Tcp, Wire::Tcp, Wire::Tcp, Wire::Shm, Wire::Shm, Wire::Shm]);
        assert_eq!((default.peers, default.flows.len()), (1, 1));
        assert_eq!(plan("--to 10.0.0.2:1,10.0.0.3:1 --pattern many-to-one").unwrap().cells.len(), 3, "tcp alone");
    }

    #[test]
    fn a_preset_is_one_shape() {
        let llama = plan("--preset llama-3-70b --tokens 8192 --transports tcp").unwrap();
        assert_eq!((llama.cells.len(), llama.cells[0].block_bytes, llama.cells[0].batch), (1, 32 << 10, 81_920));
        let deepseek = plan("--preset deepseek-v3 --tokens 64 --dtype fp8 --transports tcp").unwrap();
        assert_eq!((deepseek.cells[0].block_bytes, deepseek.cells[0].batch), (576 * 64, 61));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_flag() {
        for (line, flag) in [
            ("--block 12", "block"),
            ("--batch 0", "batch"),
            ("--threads 0", "threads"),
            ("--in-flight 1,0", "in-flight"),
            ("--in-flight 65536 --threads 2", "in-flight"),
            ("--streams 0", "streams"),
            ("--streams 33", "streams"),
            ("--count 0", "count"),
            ("--peers 0", "peers"),
            ("--peers 65", "peers"),
            ("--peers 2", "pattern"),
            ("--to 10.0.0.2:1 --transports shm", "transports"),
            ("--to 10.0.0.2:1,10.0.0.2:1 --pattern one-to-many", "to"),
            ("--rails 127.0.0.1 --transports shm", "rails"),
            ("--rdma-rails rxe0 --transports tcp", "rdma-rails"),
            ("--preset llama-3-70b --tokens 0", "tokens"),
            ("--preset llama-3-70b --block-tokens 0", "block-tokens"),
            ("--fault peer:1:kill@500ms", "fault"),
            ("--fault peer:2:kill@500ms --block 4K --transports tcp", "fault"),
            ("--fault peer:1:kill@1s --block 4K --transports tcp", "fault"),
            ("--fault peer:1:kill@500ms --count 5 --block 4K --transports tcp", "fault"),
            ("--fault rail:1:down@500ms --rails 127.0.0.1 --block 4K", "fault"),
            ("--fault peer:1:kill@500ms --to 10.0.0.2:1 --block 4K", "fault"),
            ("--fault slices:drop=1 --fault slices:drop=2", "fault"),
        ] {
            let error = plan(line).expect_err(line);
            assert_eq!(error.flag, flag, "{line}: {error}");
        }
    }
}
