//! Engines: starting, stopping, what they are.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::pin::pin;

use kvrail_bindings::{Code, wait};
use kvrail_transfer::Engine;

use crate::config::kvrail_config;
use crate::events::Arrivals;
use crate::given::{buffer, fill, give, handle, place, timeout};
use crate::status::{Fault, free, guard, guard_value, kvrail_status};

/// Room that an address takes as text, its NUL included.
pub const KVRAIL_ADDRESS_MAX: usize = 64;

/// An engine. Freeing the handle does not stop the engine while peers, leases or transfers of it have handles.
pub struct kvrail_engine {
    pub(crate) engine: Engine,
    pub(crate) arrivals: Arrivals,
}

/// Starts an engine; a `config` of NULL is the default.
///
/// # Safety
/// The texts in `config` must be NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_engine_start(
    config: Option<&kvrail_config>,
    engine: Option<&mut MaybeUninit<*mut kvrail_engine>>,
) -> kvrail_status {
    guard(|| {
        let engine = place(engine, "engine")?;
        let config = config.copied().unwrap_or_default();
        // SAFETY: the caller's promise.
        let started = Engine::start(unsafe { config.read() }?)?;
        give(engine, kvrail_engine { engine: started, arrivals: Arrivals::default() });
        Ok(Code::Ok)
    })
}

/// Where peers connect to, as `ADDRESS:PORT`; `KVRAIL_ADDRESS_MAX` bytes are always enough.
///
/// # Safety
/// `text` must be writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_engine_address(
    engine: Option<&kvrail_engine>,
    text: *mut c_char,
    capacity: usize,
) -> kvrail_status {
    guard(|| {
        let address = format!("{}\0", handle(engine, "engine")?.engine.local_addr());
        // SAFETY: the caller's promise; a byte is a byte.
        let text = unsafe { buffer(text.cast::<u8>(), capacity, "text") }?;
        if capacity < address.len() {
            return Err(Fault::new(Code::TooSmall, format!("text: {} bytes are wanted", address.len())));
        }
        fill(text, address.as_bytes());
        Ok(Code::Ok)
    })
}

/// Random number of this start; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_engine_generation(engine: Option<&kvrail_engine>) -> u64 {
    guard_value(engine, 0, |engine| engine.engine.generation())
}

/// Ends sessions, transfers and threads; pending if that takes longer than the bound.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_engine_stop(engine: Option<&kvrail_engine>, timeout_ms: i64) -> kvrail_status {
    guard(|| {
        let stopping = pin!(handle(engine, "engine")?.engine.shutdown());
        Ok(wait(stopping, timeout(timeout_ms)).map_or(Code::Pending, |()| Code::Ok))
    })
}

/// Frees the handle.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_engine_free(engine: Option<Box<kvrail_engine>>) {
    free(engine);
}
