//! What measures and breaks kvrail: suites behind `cargo xtask verify`, benchmarks, and the harness both stand on.
//!
//! Laws: a suite drives real processes through their public faces; every figure it prints was measured in that run;
//! nothing here is linked into the serving path, and no other crate knows this one but the binary and `xtask`.
//!
//! Map: [`client`] a small OpenAI client · [`answer`] one answer, token by token · [`cluster`] real processes on
//! loopback · [`prompts`] reproducible questions · [`suites`] the promises, one file each · [`stats`] interleaved rounds,
//! medians with their intervals · [`usage`] CPU time and run-queue delay · [`far`] two sides and how they talk · [`content`]
//! bytes that prove themselves · [`machine`] what figures hang on · [`setting`] what is wrong with a flag · [`transfer`] the transfer
//! engine swept over shapes, patterns and faults · [`compare`] the engine beside raw sockets and memcpy · [`serving`] separate pools beside one process · [`executor`] the executor beside
//! llama.cpp · [`show`] tables and progress · [`command`] `kvrail bench`.

#![forbid(unsafe_code)]

pub mod answer;
pub mod client;
pub mod cluster;
pub mod command;
pub mod compare;
pub mod content;
pub mod executor;
pub mod far;
pub mod machine;
pub mod prompts;
pub mod serving;
pub mod setting;
pub mod show;
pub mod stats;
pub mod suites;
pub mod transfer;
pub mod usage;
