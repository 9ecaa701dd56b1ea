//! Compiles the messages without needing `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let description = "proto/boutique.proto";
    println!("cargo::rerun-if-changed={description}");
    let files = protox::compile([description], ["proto"])?;
    // With `Bytes`, functions pass pictures on without copying them.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
