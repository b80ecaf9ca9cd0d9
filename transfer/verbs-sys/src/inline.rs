//! What verbs.h defines inline: calls through the table of operations that the provider has put into the context.
//!
//! Names, arguments and results are C's: 0 or an errno (a negative one from `ibv_poll_cq`). An operation that a
//! provider has left out is `EOPNOTSUPP`.

use std::mem::{offset_of, size_of};
use std::ptr;

use libc::{EINVAL, EOPNOTSUPP, c_int, c_uint};

use crate::bindings::*;

/// The extended context around a context, if the library is newer than that extension.
///
/// # Safety
///
/// `context` is open.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller's context is open. verbs.h marks the extended ones by this value, and puts them at this place.
    unsafe {
        let marked = (*context).abi_compat as usize == usize::MAX;
        marked.then(|| context.byte_sub(offset_of!(verbs_context, context)).cast())
    }
}

/// An operation of the extended context: there if the library knew the field, which then lies within `sz` of the end, and
/// the provider has filled it.
macro_rules! extended_operation {
    ($context:expr, $operation:ident) => {
        extended($context).and_then(|extended| {
            let reach = size_of::<verbs_context>() - offset_of!(verbs_context, $operation);
            if (*extended).sz < reach { None } else { (*extended).$operation }
        })
    };
}

/// Port attributes, whole. The exported `ibv_query_port` fills an older, shorter structure only.
///
/// # Safety
///
/// `context` is open and `attr` may be written.
pub unsafe fn query_port(library: &IbVerbs, context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller's context is open and `attr` may be written; all zeroes is a value of it, and its beginning is the
    // older structure.
    unsafe {
        ptr::write_bytes(attr, 0, 1);
        match extended_operation!(context, query_port) {
            Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
            None => library.ibv_query_port(context, port, attr.cast()),
        }
    }
}

/// Device attributes; only the first part is filled where the provider has no more.
///
/// # Safety
///
/// `context` is open and `attr` may be written.
pub unsafe fn ibv_query_device_ex(
    library: &IbVerbs,
    context: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller's context is open and `attr` may be written; all zeroes is a value of it.
    unsafe {
        ptr::write_bytes(attr, 0, 1);
        if let Some(query) = extended_operation!(context, query_device_ex) {
            let code = query(context, ptr::null(), attr, size_of::<ibv_device_attr_ex>());
            if code != EOPNOTSUPP && code != libc::ENOSYS {
                return code;
            }
        }
        ptr::write_bytes(attr, 0, 1);
        library.ibv_query_device(context, &raw mut (*attr).orig_attr)
    }
}

/// Takes up to `entries` completions off a queue; their number, or a negative value.
///
/// # Safety
///
/// `cq` is a live queue and `wc` has room for that many.
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue lives, and so does its context; there is room for what is asked.
    unsafe { (*(*cq).context).ops.poll_cq.map_or(-EOPNOTSUPP, |poll| poll(cq, entries, wc)) }
}

/// Asks for one event when the next completion comes.
///
/// # Safety
///
/// `cq` is a live queue.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's queue lives, and so does its context.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(EOPNOTSUPP, |notify| notify(cq, solicited_only)) }
}

/// Posts a list of requests; `bad` is set to the first that was not taken.
///
/// # Safety
///
/// `qp` is a live queue pair; the list is well formed, and the memory it names may be used as it says until completed.
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's queue pair lives, and so does its context; the list is as the caller promises.
    unsafe { (*(*qp).context).ops.post_send.map_or(EOPNOTSUPP, |post| post(qp, wr, bad)) }
}

/// Posts a list of receives; `bad` is set to the first that was not taken.
///
/// # Safety
///
/// As [`ibv_post_send`].
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*qp).context).ops.post_recv.map_or(EOPNOTSUPP, |post| post(qp, wr, bad)) }
}

/// Posts a list of receives to a shared queue; `bad` is set to the first that was not taken.
///
/// # Safety
///
/// As [`ibv_post_send`], with a live shared receive queue.
pub unsafe fn ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*srq).context).ops.post_srq_recv.map_or(EOPNOTSUPP, |post| post(srq, wr, bad)) }
}

/// Makes a memory window; null with errno set where that fails, null alone where the provider has none.
///
/// # Safety
///
/// `pd` is a live protection domain.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's domain lives, and so does its context.
    unsafe { (*(*pd).context).ops.alloc_mw.map_or(ptr::null_mut(), |alloc| alloc(pd, kind)) }
}

/// Frees a memory window.
///
/// # Safety
///
/// `mw` is a live window, and not used again.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's window lives, and so does its context.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(EOPNOTSUPP, |dealloc| dealloc(mw)) }
}

/// Binds a window of type 1.
///
/// # Safety
///
/// All three are live, and so is the region that `bind` names.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's objects live, and so does their context.
    unsafe {
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return EINVAL;
        }
        (*(*mw).context).ops.bind_mw.map_or(EOPNOTSUPP, |bind_mw| bind_mw(qp, mw, bind))
    }
}

/// The key with its last byte one higher: what a window is to be bound under next.
pub fn ibv_inc_rkey(rkey: c_uint) -> c_uint {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_byte_of_a_key_counts_up() {
        assert_eq!(ibv_inc_rkey(0x1234_5601), 0x1234_5602);
        assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
        assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
    }
}
