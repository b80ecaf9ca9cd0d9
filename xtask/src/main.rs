//! Repository tasks: `cargo xtask verify NAME`, `cargo xtask tidy`.

fn main() {}
