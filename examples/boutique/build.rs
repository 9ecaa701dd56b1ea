//! Compiles the messages without needing `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let description = "proto/boutique.proto";
    println!("cargo::rerun-if-changed={description}");
    let files = protox::compile([description], ["proto"])?;
    // Pictures are passed on as the part of the message that they came in.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
