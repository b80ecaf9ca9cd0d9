//! The transfer engine.

pub mod plan;
