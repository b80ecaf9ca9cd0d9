//! Writes `../src/bindings.rs` and `../src/layout.rs` from rdma-core's headers; with `--check` it says whether what is
//! there is what it would write.
//!
//! The headers are those that a crate carries which `Cargo.lock` names with its checksum: cargo fetches it, nothing of it
//! is compiled. Both files open with a hash of all that decides them (`stamp`), so that a test without libclang
//! notices when one was changed and the other was not.

mod headers;
mod stamp;
mod wanted;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use bindgen::{Builder, EnumVariation, Formatter, RustEdition, RustTarget};

fn main() -> ExitCode {
    match run(std::env::args().any(|argument| argument == "--check")) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(check: bool) -> Result<ExitCode, Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let generated = generate(&headers::directory(here)?)?;
    let (layout, bindings) = split(&generated);
    let mut stale = false;
    for (name, body) in [("bindings.rs", bindings), ("layout.rs", layout)] {
        let path = here.join("../src").join(name);
        let text = stamp::with_head(here, &body)?;
        if check {
            let same = std::fs::read_to_string(&path).is_ok_and(|there| there == text);
            println!("{name}: {}", if same { "fresh" } else { "not what the generator writes" });
            stale |= !same;
        } else {
            std::fs::write(&path, &text)?;
            println!("{name}: {} lines", text.lines().count());
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn generate(include: &Path) -> Result<String, Box<dyn Error>> {
    let mut builder = Builder::default()
        .header_contents("wanted.h", "#include <infiniband/verbs.h>\n")
        .clang_arg(format!("-I{}", include.display()))
        .clang_args(headers::compiler_includes()?)
        .clang_arg("--target=x86_64-unknown-linux-gnu")
        .dynamic_library_name("IbVerbs")
        .dynamic_link_require_all(false)
        .default_enum_style(EnumVariation::NewType { is_bitfield: false, is_global: false })
        .rust_edition(RustEdition::Edition2024)
        .rust_target(RustTarget::stable(90, 0).map_err(|e| e.to_string())?)
        .formatter(Formatter::Prettyplease)
        .disable_header_comment()
        .generate_comments(false)
        .prepend_enum_name(false)
        .derive_default(false)
        .wrap_unsafe_ops(true)
        .layout_tests(true)
        .merge_extern_blocks(true);
    for name in wanted::FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in wanted::TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in wanted::BITS {
        builder = builder.bitfield_enum(name);
    }
    for pattern in wanted::PARTS {
        builder = builder.blocklist_type(pattern);
    }
    for name in wanted::FROM_LIBC {
        builder = builder.blocklist_type(name).raw_line(format!("use libc::{name};"));
    }
    for name in wanted::OPAQUE {
        builder = builder.blocklist_type(name);
        builder = builder.raw_line(format!("#[repr(C)]\npub struct {name} {{\n    _opaque: [u8; 0],\n}}"));
    }
    Ok(builder.generate()?.to_string())
}

/// Parts the assertions about sizes and offsets, which hold for one architecture, from everything else.
fn split(generated: &str) -> (String, String) {
    let (mut layout, mut bindings) = (String::from("use super::bindings::*;\n"), String::new());
    let mut lines = generated.lines().peekable();
    while let Some(line) = lines.next() {
        let assertion = line.starts_with("#[allow(clippy::unnecessary_operation")
            && lines.peek().is_some_and(|next| next.starts_with("const _: () = {"));
        if !assertion {
            bindings.push_str(line);
            bindings.push('\n');
            continue;
        }
        for line in lines.by_ref() {
            layout.push_str(line);
            layout.push('\n');
            if line == "};" {
                break;
            }
        }
    }
    (layout, bindings)
}
