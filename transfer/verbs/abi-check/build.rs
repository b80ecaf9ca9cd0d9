//! Writes the comparison: for every structure and enumeration that kvrail-verbs-sys declares, Rust that asks the compiler for
//! its layout and values in ours and in the other crate.
//!
//! Rust cannot ask whether a field exists, so the names are read from what bindgen wrote, on both sides; the numbers are the
//! compiler's. A crate does not tell where it generated its bindings: they lie in this build's directory, beside our own.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use syn::{Fields, ImplItem, Item, Type};

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

/// What ibverbs-sys writes by hand, as far as it is public.
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

/// A structure or union as its declaration reads.
#[derive(Clone, Default)]
struct Declared {
    is_union: bool,
    /// Names, ours first, and whether the field has a size of its own: parts of a union that bindgen made a structure have
    /// none.
    fields: Vec<(String, String, bool)>,
}

/// One file of bindings.
#[derive(Default)]
struct Bindings {
    structures: BTreeMap<String, Declared>,
    /// Each enumeration's type, its constants, and what turns one of them into a number.
    enumerations: BTreeMap<String, Enumeration>,
    /// Constants that belong to no type in Rust.
    loose: BTreeSet<String>,
    aliases: BTreeSet<String>,
}

#[derive(Default)]
struct Enumeration {
    tail: &'static str,
    is_module: bool,
    constants: BTreeSet<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={OURS}");
    let ours = Bindings::read(Path::new(OURS))?;
    let (rdma_sys, ibverbs_sys) = (generated("rdma-sys")?, generated("ibverbs-sys")?);
    let mut text = String::new();
    let mut theirs = Bindings::read(&rdma_sys)?;
    let mut names = BTreeMap::new();
    for (our_name, their_name) in BY_HAND {
        let Some(declared) = ours.structures.get(*our_name) else { continue };
        let mut declared = declared.clone();
        for (our_field, their_field, _) in &mut declared.fields {
            let other = BY_ANOTHER_NAME.iter().find(|(of, field, _)| of == our_name && field == our_field);
            if let Some((_, _, other)) = other {
                *their_field = (*other).to_owned();
            }
        }
        names.insert(*our_name, *their_name);
        theirs.structures.insert((*our_name).to_owned(), declared);
    }
    compare(&mut text, "rdma_sys", &ours, &theirs, &names, &[])?;

    let mut theirs = Bindings::read(&ibverbs_sys)?;
    let fields = IBVERBS_WC.iter().map(|(ours, theirs)| ((*ours).to_owned(), (*theirs).to_owned(), true)).collect();
    theirs.structures.insert("ibv_wc".to_owned(), Declared { is_union: false, fields });
    compare(
        &mut text,
        "ibverbs_sys",
        &ours,
        &theirs,
        &BTreeMap::new(),
        &["wr_id", "status", "opcode", "vendor_err", "byte_len"],
    )?;

    std::fs::write(Path::new(&env::var("OUT_DIR")?).join("layouts.rs"), text)?;
    println!("cargo:rustc-env=ABI_CHECK_HEADERS={}", version("libibverbs"));
    Ok(())
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

impl Bindings {
    fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut all = Self::default();
        for item in syn::parse_file(&text)?.items {
            all.note(item);
        }
        Ok(all)
    }

    fn note(&mut self, item: Item) {
        match item {
            Item::Struct(item) => match item.fields {
                Fields::Named(fields) => self.declare(item.ident.to_string(), false, &fields),
                _ => self.enumeration(item.ident.to_string(), ".0"),
            },
            Item::Union(item) => self.declare(item.ident.to_string(), true, &item.fields),
            Item::Impl(item) if item.trait_.is_none() => {
                let Type::Path(of) = *item.self_ty else { return };
                let Some(of) = of.path.get_ident().map(ToString::to_string) else { return };
                let constants = item.items.into_iter().filter_map(|item| match item {
                    ImplItem::Const(item) => Some(item.ident.to_string()),
                    _ => None,
                });
                let constants: Vec<_> = constants.collect();
                if !constants.is_empty() {
                    self.enumeration(of.clone(), ".0");
                    self.enumerations.get_mut(&of).into_iter().for_each(|e| e.constants.extend(constants.clone()));
                }
            }
            Item::Enum(item) => {
                let name = item.ident.to_string();
                self.enumeration(name.clone(), "");
                let variants = item.variants.into_iter().map(|variant| variant.ident.to_string());
                self.enumerations.get_mut(&name).into_iter().for_each(|e| e.constants.extend(variants.clone()));
            }
            Item::Mod(item) => {
                let items = item.content.map(|(_, items)| items).unwrap_or_default();
                let constants = items.into_iter().filter_map(|item| match item {
                    Item::Const(item) => Some(item.ident.to_string()),
                    _ => None,
                });
                let constants = constants.collect();
                let of = Enumeration { tail: "", is_module: true, constants };
                self.enumerations.insert(item.ident.to_string(), of);
            }
            Item::Const(item) => {
                self.loose.insert(item.ident.to_string());
            }
            Item::Type(item) => {
                self.aliases.insert(item.ident.to_string());
            }
            _ => {}
        }
    }

    fn enumeration(&mut self, name: String, tail: &'static str) {
        self.enumerations.entry(name).or_default().tail = tail;
    }

    /// Notes a structure, unless nothing of it is known, or it is no structure of C's.
    fn declare(&mut self, name: String, is_union: bool, fields: &syn::FieldsNamed) {
        let sized = |field: &syn::Field| match &field.ty {
            Type::Path(path) => path.path.segments.last().is_none_or(|last| last.ident != "__BindgenUnionField"),
            _ => true,
        };
        let named = fields.named.iter().filter_map(|field| {
            let name = field.ident.as_ref()?.to_string();
            Some((name.clone(), name, sized(field)))
        });
        let fields: Vec<_> = named.filter(|(name, ..)| name != "bindgen_union_field").collect();
        let is_foreign = fields.iter().any(|(name, ..)| name == "_opaque" || name == "__library");
        if !is_foreign && !name.starts_with("__") {
            self.structures.insert(name, Declared { is_union, fields });
        }
    }

    /// What a constant is called in Rust; `None` if it is not there.
    fn constant(&self, of: &str, name: &str) -> Option<String> {
        match self.enumerations.get(of) {
            Some(e) => e.constants.contains(name).then(|| format!("{of}::{name}{}", e.tail)),
            None => self.loose.contains(name).then(|| name.to_owned()),
        }
    }

    /// The type of an enumeration, if it is there.
    fn type_of(&self, of: &str) -> Option<String> {
        match self.enumerations.get(of) {
            Some(e) => Some(if e.is_module { format!("{of}::Type") } else { of.to_owned() }),
            None => self.aliases.contains(of).then(|| of.to_owned()),
        }
    }
}

/// Writes the function that looks at both. `names` are types that are called otherwise there, `hidden` fields of `ibv_wc`
/// that are private there.
fn compare(
    text: &mut String,
    krate: &str,
    ours: &Bindings,
    theirs: &Bindings,
    names: &BTreeMap<&str, &str>,
    hidden: &[&str],
) -> Result<(), std::fmt::Error> {
    writeln!(
        text,
        "/// What ours and `{krate}` declare.\npub fn {krate}() -> Both {{\n let mut both = Both::default();"
    )?;
    for (name, our) in &ours.structures {
        let Some(their) = theirs.structures.get(name) else {
            writeln!(text, " both.structure(structure!({name:?}, kvrail_verbs_sys::{name}));")?;
            continue;
        };
        let their_name = names.get(name.as_str()).copied().unwrap_or(name);
        let (a, b) = (format!("kvrail_verbs_sys::{name}"), format!("{krate}::{their_name}"));
        writeln!(text, " both.structure(structure!({name:?}, {a}, {b}).with(vec![")?;
        for (field, _, _) in &our.fields {
            let other = their.fields.iter().find(|(ours, ..)| ours == field);
            let place = |of: &str, field: &str, sized: bool| match sized {
                true => format!("Some(place!({of}, {field}, sized))"),
                false => format!("Some(place!({of}, {field}))"),
            };
            let sized = !our.is_union && !their.is_union && other.is_none_or(|(_, _, sized)| *sized);
            let there = match other {
                Some((_, other, _)) => place(&b, other, sized),
                None if name == "ibv_wc" && hidden.contains(&field.as_str()) => continue,
                None => "None".to_owned(),
            };
            writeln!(text, "  field({field:?}, {}, {there}),", place(&a, field, sized && there != "None"))?;
        }
        for (field, other, _) in &their.fields {
            if !our.fields.iter().any(|(ours, ..)| ours == field) {
                writeln!(text, "  field({other:?}, None, Some(place!({b}, {other}))),")?;
            }
        }
        writeln!(text, " ]));")?;
    }
    for (name, our) in &ours.enumerations {
        let size = |krate: &str, of: &str| format!("Some(size_of::<{krate}::{of}>())");
        let there = theirs.type_of(name).map_or_else(|| "None".to_owned(), |of| size(krate, &of));
        writeln!(text, " both.enumeration({name:?}, {}, {there}, vec![", size("kvrail_verbs_sys", name))?;
        for constant in &our.constants {
            let value = |krate: &str, path: Option<String>| match path {
                Some(path) => format!("Some({krate}::{path} as i64)"),
                None => "None".to_owned(),
            };
            let (a, b) = (ours.constant(name, constant), theirs.constant(name, constant));
            writeln!(text, "  ({constant:?}, {}, {}),", value("kvrail_verbs_sys", a), value(krate, b))?;
        }
        for constant in theirs.enumerations.get(name).into_iter().flat_map(|e| &e.constants) {
            if !our.constants.contains(constant) {
                writeln!(text, "  ({constant:?}, None, Some(0)),")?;
            }
        }
        writeln!(text, " ]);")?;
    }
    writeln!(text, " both\n}}\n")
}
