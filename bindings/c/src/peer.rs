//! Connecting to other engines.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::pin::pin;

use kvrail_bindings::{Code, wait};
use kvrail_transfer::Peer;

use crate::engine::kvrail_engine;
use crate::given::{give, handle, place, text};
use crate::status::{Fault, free, guard, guard_value, kvrail_status};

/// A connected engine.
pub struct kvrail_peer(pub(crate) Peer);

/// Connects to the engine at `address` (`ADDRESS:PORT`), or finds the session that is there. Blocks, within the engine's
/// `connect_timeout_ms`. `generation` 0 takes whatever engine answers.
///
/// # Safety
/// `address` must be NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_connect(
    engine: Option<&kvrail_engine>,
    address: *const c_char,
    generation: u64,
    peer: Option<&mut MaybeUninit<*mut kvrail_peer>>,
) -> kvrail_status {
    guard(|| {
        let (engine, peer) = (handle(engine, "engine")?, place(peer, "peer")?);
        // SAFETY: the caller's promise.
        let address = unsafe { text(address, "address") }?.ok_or_else(|| Fault::argument("address", "is NULL"))?;
        let address = address.parse().map_err(|_| Fault::argument("address", "must be ADDRESS:PORT"))?;
        let connecting = engine.engine.connect(address, (generation != 0).then_some(generation));
        // The engine bounds it.
        let connected = wait(pin!(connecting), None);
        let connected = connected.ok_or_else(|| Fault::new(Code::Internal, "a wait without a bound has ended"))??;
        give(peer, kvrail_peer(connected));
        Ok(Code::Ok)
    })
}

/// Random number of the peer's start; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_peer_generation(peer: Option<&kvrail_peer>) -> u64 {
    guard_value(peer, 0, |peer| peer.0.generation())
}

/// Not 0 while the session stands.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_peer_is_alive(peer: Option<&kvrail_peer>) -> i32 {
    guard_value(peer, 0, |peer| peer.0.is_alive().into())
}

/// Frees the handle; the session stays in the engine.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_peer_free(peer: Option<Box<kvrail_peer>>) {
    free(peer);
}
