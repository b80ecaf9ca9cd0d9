//! The command line of the sweep.

use std::net::SocketAddr;
use std::time::Duration;

use kvrail_transfer::{RdmaRail, TcpRail};

use super::cell::OpKind;
use super::expect::Expect;
use super::fault::Fault;
use super::pattern::Pattern;
use super::preset::{Dtype, Preset};
use super::units::{Rate, Sizes, one_size, time, time_or_zero};
use crate::far::Wire;

/// Settings of the sweep. Every list is swept: one cell for each combination.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Bytes of a block: 4096, 64K, or a range that doubles, as 4K..4M
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "4K,64K,1M",
        help_heading = "What is moved"
    )]
    pub block: Vec<Sizes>,
    /// Blocks of a transfer, each at a place of its own on both sides
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16", help_heading = "What is moved")]
    pub batch: Vec<usize>,
    /// Blocks and batch of a model's KV instead: llama-3-70b, qwen3-32b, qwen3-235b-a22b, deepseek-v3
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["block", "batch"], help_heading = "What is moved")]
    pub preset: Option<Preset>,
    /// Tokens of the prompt whose KV is a transfer
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "preset", help_heading = "What is moved")]
    pub tokens: u64,
    /// Tokens of a block [default: 16; with latent attention 64]
    #[arg(long, value_name = "N", requires = "preset", help_heading = "What is moved")]
    pub block_tokens: Option<u64>,
    /// Width of the preset's numbers
    #[arg(long, value_name = "TYPE", default_value = "bf16", requires = "preset", help_heading = "What is moved")]
    pub dtype: Dtype,
    /// Who submits: the sender, or the receiver
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "write", help_heading = "What is moved")]
    pub op: Vec<OpKind>,
    /// Bytes of a pool, in each end of each flow: more than caches hold, or memory is not measured
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = one_size, help_heading = "What is moved")]
    pub pool: u64,

    /// Transfers that a thread has under way
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4", help_heading = "How it is moved")]
    pub in_flight: Vec<usize>,
    /// Threads that submit, in each flow
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", help_heading = "How it is moved")]
    pub threads: Vec<usize>,
    /// Streams of the transport to a peer (over RDMA: queue pairs each way)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", help_heading = "How it is moved")]
    pub streams: Vec<u8>,
    /// Transports: tcp, shm, rdma [default: tcp,shm; with --to, tcp]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "How it is moved")]
    pub transports: Vec<Wire>,
    /// Local addresses over which TCP goes, each ADDRESS[/PREFIX][@DEVICE][#RAIL]; without, the system routes
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "How it is moved")]
    pub rails: Vec<TcpRail>,
    /// NICs over which RDMA goes, each DEVICE[:PORT][@GID][#RAIL]; without, every one with an active port
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "How it is moved")]
    pub rdma_rails: Vec<RdmaRail>,

    /// Who moves bytes to whom, this process and its peers
    #[arg(long, value_enum, value_name = "PATTERN", default_value_t, help_heading = "Between whom")]
    pub pattern: Pattern,
    /// Peers that are started on this machine for this [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "to", help_heading = "Between whom")]
    pub peers: Option<usize>,
    /// Peers on other machines, by the addresses at which they serve
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Between whom")]
    pub to: Vec<SocketAddr>,
    /// Be such a peer, for any kvrail bench on another machine, until interrupted
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["to", "peers"], help_heading = "Between whom")]
    pub serve: Option<SocketAddr>,

    /// Time that is measured in each cell
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time, help_heading = "For how long")]
    pub seconds: Duration,
    /// Transfers of each flow in each cell, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "seconds", help_heading = "For how long")]
    pub count: Option<u64>,
    /// Time before that, which is not counted
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = time_or_zero, help_heading = "For how long")]
    pub warm_up: Duration,
    /// What goes wrong: rail:N:down@TIME, rail:N:up@TIME (the device of a rail of this machine, as root), peer:N:stop@TIME,
    /// peer:N:continue@TIME, peer:N:kill@TIME (a peer that was started here), slices:KEY=NUMBER,… (the engine's fault plan, all the
    /// time); can be given several times
    #[arg(long, value_name = "FAULT", help_heading = "For how long")]
    pub fault: Vec<Fault>,

    /// Look at every byte of every transfer at the moment its receiver is told; without, at what lies there after each cell
    #[arg(long, help_heading = "What is told")]
    pub verify: bool,
    /// What the rails of one machine carry together [default: what their devices say, where all do]
    #[arg(long, value_name = "RATE", help_heading = "What is told")]
    pub line_rate: Option<Rate>,
    /// Exit with status 3 when the best cell of a transport has less: 0.9line, 5GB/s, 40Gb/s, or of one: tcp=5GB/s
    #[arg(long, value_name = "[WIRE=]FLOOR", help_heading = "What is told")]
    pub expect: Vec<Expect>,
    /// Show throughput over time of every cell, not only of cells with faults
    #[arg(long, help_heading = "What is told")]
    pub timeline: bool,
    /// Print JSON on stdout instead of tables
    #[arg(long, help_heading = "What is told")]
    pub json: bool,
    /// Seed of the places and the contents
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "What is told")]
    pub seed: u64,
}
