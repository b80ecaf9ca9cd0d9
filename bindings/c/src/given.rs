//! What a caller hands in: handles, texts, arrays, and places for results. Each is checked and named where it is wrong.
//!
//! # Ownership
//! A handle is a `Box` that was turned into a pointer; it comes back as a `Box` once, to be freed. Until then it is looked at
//! through shared references alone, so several threads may use it. Arrays and texts are the caller's and are not kept past the
//! call; results are written into places that need not hold anything before.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::status::Fault;

/// A place for a result; NULL where none is wanted or given.
pub(crate) type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// The thing behind a handle.
pub(crate) fn handle<'a, H>(handle: Option<&'a H>, name: &str) -> Result<&'a H, Fault> {
    handle.ok_or_else(|| Fault::argument(name, "is NULL"))
}

/// A place for a result that the caller must want.
pub(crate) fn place<'a, T>(place: Place<'a, T>, name: &str) -> Result<&'a mut MaybeUninit<T>, Fault> {
    place.ok_or_else(|| Fault::argument(name, "is NULL"))
}

/// A handle for the caller.
pub(crate) fn give<H>(place: &mut MaybeUninit<*mut H>, value: H) {
    place.write(Box::into_raw(Box::new(value)));
}

/// The caller's array.
///
/// # Safety
/// If `pointer` is not NULL, `count` elements must be readable there for as long as the result is used.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Fault::argument(name, "is NULL, with elements promised"));
    }
    if !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Fault::argument(name, "is not aligned, or longer than memory"));
    }
    // SAFETY: the caller's promise; NULL, alignment and size were checked.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The caller's buffer, to be written.
///
/// # Safety
/// If `pointer` is not NULL, `capacity` elements must be writable there, by nobody else, for as long as the result is used.
pub(crate) unsafe fn buffer<'a, T>(
    pointer: *mut T,
    capacity: usize,
    name: &str,
) -> Result<&'a mut [MaybeUninit<T>], Fault> {
    if capacity == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(Fault::argument(name, "is NULL, with room promised"));
    }
    if !pointer.is_aligned() || capacity > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Fault::argument(name, "is not aligned, or longer than memory"));
    }
    // SAFETY: the caller's promise; NULL, alignment and size were checked, and nothing is read before it is written.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), capacity) })
}

/// Writes as much of `from` as fits; whether all did.
pub(crate) fn fill<T: Copy>(to: &mut [MaybeUninit<T>], from: &[T]) -> bool {
    for (place, value) in to.iter_mut().zip(from) {
        place.write(*value);
    }
    from.len() <= to.len()
}

/// The caller's text; `None` for NULL.
///
/// # Safety
/// If `pointer` is not NULL it must be NUL-terminated and stay for as long as the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Fault> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Fault::argument(name, "is not UTF-8"))
}

/// A bound on waiting; negative is none.
pub(crate) fn timeout(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_and_nothing_is_an_empty_array() {
        let two = [1u32, 2];
        // SAFETY: NULL, an address that is refused unread, and a live array.
        unsafe {
            assert_eq!(array::<u32>(std::ptr::null(), 0, "x").unwrap(), &[] as &[u32]);
            assert!(array::<u32>(std::ptr::null(), 1, "x").is_err());
            assert!(array::<u32>(two.as_ptr().byte_add(1), 1, "x").is_err());
            assert!(array::<u32>(two.as_ptr(), usize::MAX, "x").is_err());
            assert_eq!(array(two.as_ptr(), 2, "x").unwrap(), two);
            assert_eq!(text(std::ptr::null(), "x").unwrap(), None);
            assert!(text(c"\xff".as_ptr(), "x").is_err());
        }
    }

    #[test]
    fn no_bound_is_none_and_zero_is_zero() {
        assert_eq!([timeout(-1), timeout(0), timeout(5)], [None, Some(Duration::ZERO), Some(Duration::from_millis(5))]);
    }
}
