//! Compiles the .proto files with protox, so that no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["common", "prefill", "decode", "conductor"].map(|name| format!("kvrail/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=kvrail");
    let descriptors = protox::compile(&files, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
