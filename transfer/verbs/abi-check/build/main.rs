//! Writes the comparison: for every structure and enumeration that kvrail-verbs-sys declares, Rust that asks the compiler for
//! its layout and values in ours and in the other crate.
//!
//! Rust cannot ask whether a field exists, so the names are read from what bindgen wrote, on both sides; the numbers are the
//! compiler's. A crate does not tell where it generated its bindings: they lie in this build's directory, beside our own.
//!
//! `read` takes the names out of bindings, `write` asks for the numbers.

mod read;
mod write;

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use read::{Bindings, Declared, Field};
use write::{Asked, Names};

/// Ours, as committed.
const OURS: &str = "../../verbs-sys/src/bindings.rs";

/// Types that rdma-sys 0.3.0 writes by hand, because its bindgen had no unions, with their names there. All fields are there.
const BY_HAND: &[(&str, &str)] = &[
    ("ibv_gid", "ibv_gid"),
    ("ibv_gid__bindgen_ty_1", "ibv_gid_global_t"),
    ("ibv_async_event", "ibv_async_event"),
    ("ibv_async_event__bindgen_ty_1", "ibv_async_event_element_t"),
    ("ibv_wc", "ibv_wc"),
    ("ibv_wc__bindgen_ty_1", "imm_data_invalidated_rkey_union_t"),
    ("ibv_global_route", "ibv_global_route"),
    ("ibv_ah_attr", "ibv_ah_attr"),
    ("ibv_mw_bind_info", "ibv_mw_bind_info"),
    ("ibv_send_wr", "ibv_send_wr"),
    ("ibv_send_wr__bindgen_ty_1", "imm_data_invalidated_rkey_union_t"),
    ("ibv_send_wr__bindgen_ty_2", "wr_t"),
    ("ibv_send_wr__bindgen_ty_2__bindgen_ty_1", "rdma_t"),
    ("ibv_send_wr__bindgen_ty_2__bindgen_ty_2", "atomic_t"),
    ("ibv_send_wr__bindgen_ty_2__bindgen_ty_3", "ud_t"),
    ("ibv_send_wr__bindgen_ty_3", "qp_type_t"),
    ("ibv_send_wr__bindgen_ty_3__bindgen_ty_1", "xrc_t"),
    ("ibv_send_wr__bindgen_ty_4", "bind_mw_tso_union_t"),
    ("ibv_send_wr__bindgen_ty_4__bindgen_ty_1", "bind_mw_t"),
    ("ibv_send_wr__bindgen_ty_4__bindgen_ty_2", "tso_t"),
];

/// Fields that have another name in types of `BY_HAND`: type, ours, theirs.
const BY_ANOTHER_NAME: &[(&str, &str, &str)] = &[
    ("ibv_wc", "__bindgen_anon_1", "imm_data_invalidated_rkey_union"),
    ("ibv_send_wr", "__bindgen_anon_1", "imm_data_invalidated_rkey_union"),
    ("ibv_send_wr", "__bindgen_anon_2", "bind_mw_tso_union"),
    ("ibv_send_wr__bindgen_ty_1", "invalidate_rkey", "invalidated_rkey"),
];

/// What ibverbs-sys writes by hand, as far as it is public: ours, theirs. The others' places follow from these and the size.
const IBVERBS_WC: &[(&str, &str)] = &[
    ("__bindgen_anon_1", "imm_data"),
    ("qp_num", "qp_num"),
    ("src_qp", "src_qp"),
    ("wc_flags", "wc_flags"),
    ("pkey_index", "pkey_index"),
    ("slid", "slid"),
    ("sl", "sl"),
    ("dlid_path_bits", "dlid_path_bits"),
];

/// The rest of it.
const IBVERBS_WC_PRIVATE: &[&str] = &["wr_id", "status", "opcode", "vendor_err", "byte_len"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed={OURS}");
    let ours = Bindings::read(Path::new(OURS))?;
    let (rdma_sys, names) = rdma_sys(&ours)?;
    let asked = Asked { krate: "rdma_sys", ours: &ours, theirs: &rdma_sys, names, private: &[] };
    let mut text = asked.to_string();
    let ibverbs_sys = ibverbs_sys()?;
    let asked = Asked {
        krate: "ibverbs_sys",
        ours: &ours,
        theirs: &ibverbs_sys,
        names: Names::new(),
        private: IBVERBS_WC_PRIVATE,
    };
    text.push_str(&asked.to_string());
    std::fs::write(Path::new(&env::var("OUT_DIR")?).join("layouts.rs"), text)?;
    println!("cargo:rustc-env=ABI_CHECK_HEADERS={}", version("libibverbs"));
    Ok(())
}

/// What rdma-sys declares under our names, and the names there that are others.
fn rdma_sys(ours: &Bindings) -> Result<(Bindings, Names), Box<dyn Error>> {
    let mut theirs = Bindings::read(&generated("rdma-sys")?)?;
    for (our_name, _) in BY_HAND {
        let Some(mut declared) = ours.structures.get(*our_name).cloned() else { continue };
        for field in &mut declared.fields {
            let other = BY_ANOTHER_NAME.iter().find(|(of, name, _)| of == our_name && *name == field.ours);
            if let Some((_, _, other)) = other {
                field.theirs = (*other).to_owned();
            }
        }
        theirs.structures.insert((*our_name).to_owned(), declared);
    }
    Ok((theirs, BY_HAND.iter().copied().collect()))
}

/// What ibverbs-sys declares.
fn ibverbs_sys() -> Result<Bindings, Box<dyn Error>> {
    let mut theirs = Bindings::read(&generated("ibverbs-sys")?)?;
    let field =
        |(ours, theirs): &(&str, &str)| Field { ours: (*ours).into(), theirs: (*theirs).into(), has_size: true };
    let fields = IBVERBS_WC.iter().map(field).collect();
    theirs.structures.insert("ibv_wc".to_owned(), Declared { is_union: false, fields });
    Ok(theirs)
}

/// What pkg-config says of a library.
fn version(library: &str) -> String {
    let output = Command::new("pkg-config").args(["--modversion", library]).output();
    output.map_or_else(|_| "?".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The newest bindings that a crate has generated in this build's directory.
fn generated(package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = out.ancestors().find(|path| path.ends_with("build")).ok_or("OUT_DIR lies in no `build`")?;
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let below = directory.strip_prefix(root)?;
        let first = below.components().next().map(|c| c.as_os_str().to_string_lossy().into_owned());
        if first.is_some_and(|first| first != package && !is_of(&first, package)) || below.components().count() > 3 {
            continue;
        }
        for entry in std::fs::read_dir(&directory)?.flatten() {
            let path = entry.path();
            if path.ends_with("out/bindings.rs") {
                found.push((entry.metadata()?.modified()?, path));
            } else if path.is_dir() {
                open.push(path);
            }
        }
    }
    let (_, newest) =
        found.into_iter().max().ok_or_else(|| format!("{package} has generated nothing below {root:?}"))?;
    println!("cargo:rerun-if-changed={}", newest.display());
    Ok(newest)
}

/// Whether a directory's name is the package's with a hash behind it.
fn is_of(directory: &str, package: &str) -> bool {
    let hash = directory.strip_prefix(package).and_then(|rest| rest.strip_prefix('-'));
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
