//! scratch

#![forbid(unsafe_code)]

pub mod events;
pub mod index;
pub mod members;
pub mod route;
#[cfg(test)]
mod testing;
