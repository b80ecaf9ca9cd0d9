//! scratch

#![forbid(unsafe_code)]

pub mod admin;
pub mod core;
pub mod events;
pub mod http;
pub mod index;
pub mod members;
pub mod metrics;
pub mod route;
pub mod service;
#[cfg(test)]
mod testing;
