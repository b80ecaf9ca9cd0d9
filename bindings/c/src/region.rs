//! Memory: allocated by the engine, or the caller's own.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use kvrail_bindings::Code;
use kvrail_transfer::{MemoryKind, Region};

use crate::engine::kvrail_engine;
use crate::given::{give, handle, place};
use crate::status::{Fault, free, guard, guard_value, kvrail_status};

/// `kvrail_region_allocate`: a memfd that peers on the same host can map read-only.
pub const KVRAIL_MEMORY_SHARED: u32 = 0;
/// `kvrail_region_allocate`: memory private to this process.
pub const KVRAIL_MEMORY_HOST: u32 = 1;

/// Memory that can be lent and moved.
pub struct kvrail_region(pub(crate) Region);

/// Called once, when no engine touches registered memory any more.
pub type kvrail_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Calls the release function when the engine lets go of the memory.
struct Owner {
    release: kvrail_release,
    context: *mut c_void,
}

// SAFETY: the header asks for a release function and a context that any thread may use.
unsafe impl Send for Owner {}
// SAFETY: the context is handed to the release function and never looked at.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller gave the two for this one call.
            unsafe { release(self.context) }
        }
    }
}

/// Maps `len` zeroed bytes.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_region_allocate(
    engine: Option<&kvrail_engine>,
    len: usize,
    kind: u32,
    region: Option<&mut MaybeUninit<*mut kvrail_region>>,
) -> kvrail_status {
    guard(|| {
        let (engine, region) = (handle(engine, "engine")?, place(region, "region")?);
        let kind = match kind {
            KVRAIL_MEMORY_SHARED => MemoryKind::Shared,
            KVRAIL_MEMORY_HOST => MemoryKind::Host,
            _ => return Err(Fault::argument("kind", "is neither KVRAIL_MEMORY_SHARED nor KVRAIL_MEMORY_HOST")),
        };
        give(region, kvrail_region(engine.engine.allocate(len, kind)?));
        Ok(Code::Ok)
    })
}

/// Makes a region of the caller's memory. `release`, if there is one, is called once when no engine touches the memory any
/// more; not if this fails.
///
/// # Safety
/// `base` must be valid for `len` bytes, and stay so until `release` is called (for ever if there is none); `release` must
/// take `context` on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_region_register(
    base: *mut c_void,
    len: usize,
    release: kvrail_release,
    context: *mut c_void,
    region: Option<&mut MaybeUninit<*mut kvrail_region>>,
) -> kvrail_status {
    guard(|| {
        let region = place(region, "region")?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Fault::argument("base", "is NULL"))?;
        // An owner that has been refused must not tell the caller that its memory is free: it never was lent.
        let fits = len > 0 && isize::try_from(len).is_ok() && (base.as_ptr() as usize).checked_add(len).is_some();
        if !fits {
            return Err(Fault::new(Code::Memory, format!("a region of {len} bytes cannot be made there")));
        }
        // SAFETY: the caller's promise.
        let registered = unsafe { Region::register(base, len, Owner { release, context }) }?;
        give(region, kvrail_region(registered));
        Ok(Code::Ok)
    })
}

/// First byte; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_region_base(region: Option<&kvrail_region>) -> *mut c_void {
    guard_value(region, std::ptr::null_mut(), |region| region.0.as_ptr().cast())
}

/// Length in bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_region_len(region: Option<&kvrail_region>) -> usize {
    guard_value(region, 0, |region| region.0.len())
}

/// Frees the handle; the memory goes when no lease and no transfer needs it any more.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_region_free(region: Option<Box<kvrail_region>>) {
    free(region);
}
