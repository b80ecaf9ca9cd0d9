//! Finding and opening the library.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::IbVerbs;

/// Names under which the library is sought when none is given, in this order, where the dynamic linker looks.
pub const DEFAULT_NAMES: &[&str] = &["libibverbs.so.1", "libibverbs.so"];

/// Why there is no libibverbs to call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// Nothing that was tried could be opened.
    #[error("libibverbs cannot be opened; tried {}", list(.tried))]
    NotOpened {
        /// Each file that was tried, and what the dynamic linker said.
        tried: Vec<(PathBuf, String)>,
    },
    /// It was opened, and is not what it should be.
    #[error("{} is no libibverbs that can be used: it lacks {}", .path.display(), .missing.join(", "))]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// Symbols of [`REQUIRED`] that are not in it.
        missing: Vec<&'static str>,
    },
}

fn list(tried: &[(PathBuf, String)]) -> String {
    tried.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect::<Vec<_>>().join(", ")
}

macro_rules! required {
    ($($name:ident),* $(,)?) => {
        /// Symbols without which a library is refused. All are as old as rdma-core itself.
        pub const REQUIRED: &[&str] = &[$(stringify!($name)),*];

        fn missing(library: &IbVerbs) -> Vec<&'static str> {
            let mut missing = Vec::new();
            $(if library.$name.is_err() { missing.push(stringify!($name)); })*
            missing
        }
    };
}

required!(
    ibv_get_device_list,
    ibv_free_device_list,
    ibv_get_device_name,
    ibv_get_device_guid,
    ibv_open_device,
    ibv_close_device,
    ibv_get_async_event,
    ibv_ack_async_event,
    ibv_query_device,
    ibv_query_port,
    ibv_query_gid,
    ibv_alloc_pd,
    ibv_dealloc_pd,
    ibv_reg_mr,
    ibv_dereg_mr,
    ibv_create_comp_channel,
    ibv_destroy_comp_channel,
    ibv_create_cq,
    ibv_destroy_cq,
    ibv_get_cq_event,
    ibv_ack_cq_events,
    ibv_create_srq,
    ibv_modify_srq,
    ibv_query_srq,
    ibv_destroy_srq,
    ibv_create_qp,
    ibv_modify_qp,
    ibv_query_qp,
    ibv_destroy_qp,
);

/// Opens libibverbs: the file at `path`, or the first of [`DEFAULT_NAMES`] that opens. It stays in the process until that
/// ends, also when the value is dropped: providers and their threads go on using it.
///
/// # Errors
///
/// [`Unavailable`] tells what was tried and why each attempt failed.
///
/// # Safety
///
/// What is opened must be libibverbs: code of it runs.
pub unsafe fn open(path: Option<&Path>) -> Result<IbVerbs, Unavailable> {
    let names: Vec<PathBuf> =
        path.map_or_else(|| DEFAULT_NAMES.iter().map(PathBuf::from).collect(), |p| vec![p.into()]);
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: the caller vouches for what is opened.
        let opened = unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
        // SAFETY: symbols of libibverbs have the types that its header gives them.
        match opened.and_then(|library| unsafe { IbVerbs::from_library(library) }) {
            Ok(library) => {
                let missing = missing(&library);
                return if missing.is_empty() {
                    Ok(library)
                } else {
                    Err(Unavailable::Incomplete { path: name, missing })
                };
            }
            Err(e) => tried.push((name, e.to_string())),
        }
    }
    Err(Unavailable::NotOpened { tried })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_told_by_name() {
        // SAFETY: there is nothing to open.
        let refused = unsafe { open(Some(Path::new("/nonexistent/libibverbs.so"))) };
        let Err(Unavailable::NotOpened { tried }) = refused else { panic!("opened a file that does not exist") };
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].0, Path::new("/nonexistent/libibverbs.so"));
        assert!(tried[0].1.contains("/nonexistent"), "{}", tried[0].1);
    }

    #[test]
    fn another_library_is_refused_with_what_it_lacks() {
        // SAFETY: the C library is in the process already; opening it runs nothing.
        let refused = unsafe { open(Some(Path::new("libc.so.6"))) };
        let Err(Unavailable::Incomplete { missing, .. }) = refused else { panic!("took libc for libibverbs") };
        assert_eq!(missing, REQUIRED);
    }
}
