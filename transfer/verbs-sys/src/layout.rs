//! Provisional and empty: `cargo xtask verbs-bindings` writes it.
