//! The committed bindings belong to the committed generator. Needs neither libclang nor the headers; whether they are what it
//! writes is for `cargo xtask verbs-bindings --check`.

#[path = "../generate/src/stamp.rs"]
mod stamp;

use std::path::Path;

/// What the head of a generated file says after `//! name: `.
fn recorded<'a>(text: &'a str, name: &str) -> &'a str {
    let prefix = format!("//! {name}: ");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).expect("the head names it")
}

#[test]
fn generated_files_are_of_this_generator_and_nobody_edited_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let generator = root.join("generate");
    let inputs = stamp::inputs(&generator).expect("the generator is there");
    for name in ["src/bindings.rs", "src/layout.rs"] {
        let text = std::fs::read_to_string(root.join(name)).expect(name);
        assert_eq!(recorded(&text, "inputs"), inputs, "{name} is stale: run `cargo xtask verbs-bindings`");
        let (_, body) = text.split_once("\n\n").expect("a blank line ends the head");
        assert_eq!(recorded(&text, "body"), stamp::hex(body.as_bytes()), "{name} was edited by hand");
        assert_eq!(text, stamp::with_head(&generator, body).expect("stamped"), "{name}: the head was edited by hand");
    }
}
