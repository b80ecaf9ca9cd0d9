//! What measures and breaks kvrail: suites behind `cargo xtask verify`, benchmarks, and the harness both stand on.
//!
//! Laws: a suite drives real processes through their public faces; every figure it prints was measured in that run;
//! nothing here is linked into the serving path, and no other crate knows this one but the binary and `xtask`.
//!
//! Map: [`client`] a small OpenAI client · [`answer`] one answer, token by token · [`cluster`] real processes on
//! loopback · [`prompts`] reproducible questions · [`suites`] the promises, one file each.

#![forbid(unsafe_code)]

pub mod answer;
pub mod client;
pub mod cluster;
pub mod prompts;
pub mod suites;
