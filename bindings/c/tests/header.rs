//! The header, which is written by hand, against the library: constants, structures, functions. Each comparison goes both
//! ways, by way of the C compiler.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

use common::{cc, here, run};
use kvrail_bindings::{Code, op_name};
use kvrail_c::*;

fn header() -> String {
    std::fs::read_to_string(here("include/kvrail.h")).unwrap()
}

/// Compiles and runs a `main` of these statements, with the header before it.
fn told_by_c(statements: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("probe.c"), directory.path().join("probe"));
    let text = format!("#include <kvrail.h>\n#include <stdio.h>\nint main(void) {{\n{statements}return 0;\n}}\n");
    std::fs::write(&source, text).unwrap();
    run(cc().arg(&source).arg("-o").arg(&program)).unwrap_or_else(|e| panic!("{e}"));
    run(&mut std::process::Command::new(program)).unwrap_or_else(|e| panic!("{e}"))
}

/// Lines `NAME NUMBER`.
fn numbers(text: &str) -> BTreeMap<String, i64> {
    let pair = |line: &str| line.split_once(' ').map(|(name, n)| (name.to_owned(), n.parse().unwrap()));
    text.lines().filter_map(pair).collect()
}

/// Every constant of the library, by its name in C.
fn constants() -> BTreeMap<String, i64> {
    let code = |code: &Code| {
        let prefix = if (*code as i32) < 0 { "KVRAIL_E_" } else { "KVRAIL_" };
        (format!("{prefix}{}", code.name().to_uppercase()), i64::from(*code as i32))
    };
    let ops = (0u8..).map_while(|n| Some((format!("KVRAIL_OP_{}", op_name(n)?.to_uppercase()), i64::from(n))));
    let others = [
        ("KVRAIL_ABI_VERSION", i64::from(KVRAIL_ABI_VERSION)),
        ("KVRAIL_SHM", i64::from(KVRAIL_SHM)),
        ("KVRAIL_TCP", i64::from(KVRAIL_TCP)),
        ("KVRAIL_RDMA", i64::from(KVRAIL_RDMA)),
        ("KVRAIL_ADDRESS_MAX", KVRAIL_ADDRESS_MAX as i64),
        ("KVRAIL_MEMORY_SHARED", i64::from(KVRAIL_MEMORY_SHARED)),
        ("KVRAIL_MEMORY_HOST", i64::from(KVRAIL_MEMORY_HOST)),
        ("KVRAIL_ACCESS_WRITE", i64::from(KVRAIL_ACCESS_WRITE)),
        ("KVRAIL_ACCESS_READ", i64::from(KVRAIL_ACCESS_READ)),
        ("KVRAIL_WRITE", i64::from(KVRAIL_WRITE)),
        ("KVRAIL_READ", i64::from(KVRAIL_READ)),
        ("KVRAIL_CLASS_KV", i64::from(KVRAIL_CLASS_KV)),
        ("KVRAIL_CLASS_CONTROL", i64::from(KVRAIL_CLASS_CONTROL)),
        ("KVRAIL_CLASS_REPLICATION", i64::from(KVRAIL_CLASS_REPLICATION)),
        ("KVRAIL_CLASS_WEIGHTS", i64::from(KVRAIL_CLASS_WEIGHTS)),
        ("KVRAIL_CHECKSUM_DEFAULT", i64::from(KVRAIL_CHECKSUM_DEFAULT)),
        ("KVRAIL_NOTIFICATION_MAX", KVRAIL_NOTIFICATION_MAX as i64),
    ];
    Code::ALL.iter().map(code).chain(ops).chain(others.map(|(name, n)| (name.to_owned(), n))).collect()
}

#[test]
fn every_constant_is_in_the_header_with_its_value_and_no_other_is() {
    let ours = constants();
    let print = |name: &String| format!("printf(\"%s %lld\\n\", \"{name}\", (long long)({name}));\n");
    assert_eq!(numbers(&told_by_c(&ours.keys().map(print).collect::<String>())), ours);

    // `NAME = …` in an enumeration, `#define NAME …` elsewhere.
    let text = header();
    let declared = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let name = line.strip_prefix("#define ").unwrap_or(line).split(' ').next()?;
        let is_constant = line.starts_with("#define ") || line.contains(" = ");
        (is_constant && name.starts_with("KVRAIL_") && name != "KVRAIL_H").then(|| name.to_owned())
    });
    assert_eq!(declared.collect::<BTreeSet<_>>(), ours.into_keys().collect());
}

/// Size of a structure, offset of each of its fields.
macro_rules! layout {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        [$((stringify!($name), size_of::<$name>(), vec![$((stringify!($field), offset_of!($name, $field))),*])),*]
    };
}

#[test]
fn every_structure_has_the_same_layout_on_both_sides() {
    let structures = layout! {
        kvrail_config {
            size, transports, listen, tcp_rails, rdma_rails, streams_per_peer, workers, checksum, guard_leases,
            heartbeat_ms, peer_timeout_ms, connect_timeout_ms, peers_max, leases_max, transfers_max, notifications_max,
        }
        kvrail_range { offset, len }
        kvrail_strided { offset, len, stride, count, reserved }
        kvrail_op { local, remote }
        kvrail_request {
            size, direction, region, ticket, ops, deadline_ms, transfer_class, tenant, checksum, notification_len,
            notification,
        }
        kvrail_report { status, memory_is_free, bytes, retried_bytes, queued_ns, wire_ns, ops }
    };
    let (mut probe, mut ours) = (String::new(), BTreeMap::new());
    for (name, size, fields) in structures {
        probe += &format!("printf(\"{name} %zu\\n\", sizeof({name}));\n");
        ours.insert(name.to_owned(), size as i64);
        for (field, offset) in fields {
            probe += &format!("printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));\n");
            ours.insert(format!("{name}.{field}"), offset as i64);
        }
    }
    assert_eq!(numbers(&told_by_c(&probe)), ours);
    let defined = header().lines().filter(|line| line.starts_with("typedef struct") && line.ends_with('{')).count();
    assert_eq!(defined, ours.keys().filter(|name| !name.contains('.')).count(), "and no other structure is defined");
}

/// What cbindgen makes of the functions in the sources: their declarations, without the types.
fn declared_by_the_library() -> String {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Type,
        no_includes: true,
        usize_is_size_t: true,
        documentation: false,
        export: cbindgen::ExportConfig { item_types: vec![cbindgen::ItemType::Functions], ..Default::default() },
        ..Default::default()
    };
    let made = cbindgen::generate_with_config(env!("CARGO_MANIFEST_DIR"), config).expect("the sources are understood");
    let mut text = Vec::new();
    made.write(&mut text);
    String::from_utf8(text).unwrap()
}

fn functions(text: &str) -> BTreeSet<String> {
    let code: String = text.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = code.match_indices('(').filter_map(|(at, _)| code[..at].rsplit(|c| !word(c)).next());
    names.filter(|name| name.starts_with("kvrail_")).map(str::to_owned).collect()
}

/// Whether the header and these declarations can stand in one file: a compiler refuses two declarations of one function
/// that differ in anything.
fn agree(declarations: &str) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("both.c");
    std::fs::write(&source, format!("#include <kvrail.h>\n{declarations}\n")).unwrap();
    run(cc().arg("-fsyntax-only").arg(source))
}

#[test]
fn every_function_is_declared_as_it_is_and_no_other_is() {
    let declarations = declared_by_the_library();
    assert_eq!(functions(&header()), functions(&declarations));
    assert!(functions(&declarations).len() > 40, "{declarations}");
    agree(&declarations).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_declaration_that_differs_is_noticed() {
    for wrong in [
        "uint64_t kvrail_abi_version(void);",
        "kvrail_status kvrail_transfer_wait(kvrail_transfer *transfer, int64_t timeout_ms);",
        "kvrail_status kvrail_transfer_wait(const kvrail_transfer *transfer, int32_t timeout_ms);",
    ] {
        assert!(agree(wrong).is_err_and(|words| words.contains("conflicting types")), "{wrong}");
    }
}

#[test]
fn the_header_is_one_for_cxx_as_well() {
    let cxx = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("header.cc");
    std::fs::write(&source, "#include <kvrail.h>\nint main() { return kvrail_error() == nullptr; }\n").unwrap();
    let mut compile = std::process::Command::new(&cxx);
    compile.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(here("include")).arg(source);
    match compile.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => println!("skipped: no {}", cxx.display()),
        Err(error) => panic!("{error}"),
    }
}
