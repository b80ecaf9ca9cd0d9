//! The guard around every function, and what it makes of errors: a number, and a text that waits for whoever asks.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvrail_bindings::{Code, op_name};

/// How a call ended: 0 well, positive not over yet, negative an error ([`Code`]).
pub type kvrail_status = i32;

/// Number of this ABI. What is added leaves it; what changes or goes does not.
pub const KVRAIL_ABI_VERSION: u32 = 1;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// An error on its way to the caller.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    text: String,
}

impl Fault {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// An argument that makes no sense: its name, and what is wrong with it.
    pub(crate) fn argument(name: &str, what: &str) -> Self {
        Self::new(Code::InvalidArgument, format!("{name}: {what}"))
    }
}

/// Any of the engine's errors, with the system's words behind it if there are some.
impl<E: std::error::Error> From<E> for Fault
where
    Code: for<'a> From<&'a E>,
{
    fn from(error: E) -> Self {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Self { code: Code::from(&error), text: format!("{error}{source}") }
    }
}

/// Runs the body of a function. Nothing unwinds out of it, and an error leaves its text behind.
///
/// Engines are whole after a panic: their locks do not poison, and a handle is made after what it stands for.
pub(crate) fn guard(body: impl FnOnce() -> Result<Code, Fault>) -> kvrail_status {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => return code as kvrail_status,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Fault::new(Code::Internal, format!("a fault of kvrail, please report it: {words}"))
        }
    };
    let text = CString::new(fault.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has nobody left to read it.
    let _ = LAST.try_with(|last| last.replace(text));
    fault.code as kvrail_status
}

/// As [`guard`], for functions that cannot fail and have a value: `otherwise` where the handle is NULL or a fault of ours came
/// between.
pub(crate) fn guard_value<H, T>(handle: Option<&H>, otherwise: T, body: impl FnOnce(&H) -> T) -> T {
    let Some(handle) = handle else { return otherwise };
    catch_unwind(AssertUnwindSafe(|| body(handle))).unwrap_or(otherwise)
}

/// Frees a handle; NULL is nothing.
pub(crate) fn free<H>(handle: Option<Box<H>>) {
    // What goes with a handle may run a release function or end threads; nothing of it may unwind into the caller.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(handle)));
}

/// Number of the ABI that this library speaks; compare it with the header's `KVRAIL_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_abi_version() -> u32 {
    KVRAIL_ABI_VERSION
}

/// Version of the library, as text that is always there.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Text of this thread's last error, until its next one; empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Name of a status, as text that is always there; NULL for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_status_name(status: kvrail_status) -> *const c_char {
    Code::ALL.iter().find(|code| **code as kvrail_status == status).map_or(std::ptr::null(), |code| kept(code.name()))
}

/// Name of an op's status, as text that is always there; NULL for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_op_status_name(status: u8) -> *const c_char {
    op_name(status).map_or(std::ptr::null(), kept)
}

/// The name with a NUL behind it, kept for ever: there are as many as there are names.
fn kept(name: &'static str) -> *const c_char {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, PoisonError};
    static KEPT: LazyLock<Mutex<HashMap<&'static str, &'static CStr>>> = LazyLock::new(Mutex::default);
    let make = || &*Box::leak(CString::new(name).unwrap_or_default().into_boxed_c_str());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert_with(make).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> String {
        assert!(!pointer.is_null());
        // SAFETY: this module gives out NUL-terminated texts alone, and this thread makes no error meanwhile.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_status_and_its_words_are_the_text() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let status = guard(|| panic!("the {} fell off", "rail"));
        std::panic::set_hook(hook);
        assert_eq!(status, Code::Internal as i32);
        assert!(text(kvrail_error()).ends_with("the rail fell off"));
    }

    #[test]
    fn the_text_of_an_error_stays_until_the_next_one_and_in_its_thread() {
        assert_eq!(guard(|| Err(Fault::argument("ranges", "is NULL"))), Code::InvalidArgument as i32);
        assert_eq!(guard(|| Ok(Code::Pending)), 1);
        assert_eq!(text(kvrail_error()), "ranges: is NULL");
        assert_eq!(std::thread::spawn(|| text(kvrail_error())).join().unwrap(), "");
    }

    #[test]
    fn statuses_have_names_and_other_numbers_none() {
        assert_eq!(text(kvrail_status_name(Code::Stale as i32)), "stale");
        assert_eq!(kvrail_status_name(0), kvrail_status_name(0), "kept once");
        assert_eq!(text(kvrail_op_status_name(2)), "in_doubt");
        assert!(kvrail_status_name(12345).is_null() && kvrail_op_status_name(99).is_null());
    }
}
