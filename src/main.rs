//! The one binary: subcommands only.

fn main() {}
