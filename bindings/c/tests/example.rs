//! Programs in C, compiled as a reader would and run: the example, against the shared and against the static library, and what
//! callers get wrong.

mod common;

use common::{cc, here, library, run};

fn build_and_run(source: &str, link: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let mut compile = cc();
    compile.arg(here(source)).arg("-o").arg(&program).arg("-L").arg(library()).args(link);
    run(&mut compile).unwrap_or_else(|e| panic!("{e}"));
    run(std::process::Command::new("timeout").arg("120").arg(&program)).unwrap_or_else(|e| panic!("{e}"))
}

fn assert_told(output: &str) {
    println!("{output}");
    for line in
        ["every byte is right, 4194304 bytes landed", "the late write is refused: stale", "no late write has landed"]
    {
        assert!(output.contains(line), "{line}: {output}");
    }
}

#[test]
fn the_example_runs_with_the_shared_library() {
    assert_told(&build_and_run("examples/two_engines.c", &["-lkvrail_c", &rpath()]));
}

#[test]
fn what_callers_get_wrong_is_told_by_number_and_by_name() {
    let output = build_and_run("tests/wrong.c", &["-lkvrail_c", &rpath()]);
    assert!(output.ends_with("all is as promised\n"), "{output}");
}

fn rpath() -> String {
    format!("-Wl,-rpath,{}", library().display())
}

#[test]
fn the_example_runs_with_the_static_library() {
    let link = ["-Wl,-Bstatic", "-lkvrail_c", "-Wl,-Bdynamic", "-lpthread", "-ldl", "-lm", "-lgcc_s"];
    assert_told(&build_and_run("examples/two_engines.c", &link));
}
