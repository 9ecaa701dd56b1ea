//! Compiles the service description without needing `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let description = "proto/inventory/v1/inventory.proto";
    println!("cargo::rerun-if-changed={description}");
    let files = protox::compile([description], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
