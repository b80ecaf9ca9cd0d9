//! Conductor and gateway from outside: real servers on loopback, decode nodes whose tokens are scripted.

mod bad_input;
mod conductor;
mod migration;
mod openai;
mod support;
mod survival;
