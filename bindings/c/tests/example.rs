//! The example in C is compiled as a reader would and run: against the shared and against the static library.

mod common;

use common::{cc, here, library, run};

fn build_and_run(link: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("two_engines");
    let mut compile = cc();
    compile.arg(here("examples/two_engines.c")).arg("-o").arg(&program).arg("-L").arg(library()).args(link);
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
    let rpath = format!("-Wl,-rpath,{}", library().display());
    assert_told(&build_and_run(&["-lkvrail_c", &rpath]));
}

#[test]
fn the_example_runs_with_the_static_library() {
    assert_told(&build_and_run(&[
        "-Wl,-Bstatic",
        "-lkvrail_c",
        "-Wl,-Bdynamic",
        "-lpthread",
        "-ldl",
        "-lm",
        "-lgcc_s",
    ]));
}
