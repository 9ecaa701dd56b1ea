//! Builds the two guest images and writes them to the paths from which the engines embed them.

#[path = "build/guest.rs"]
mod guest;

use guest::Form;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).ok_or(format!("cargo sets no {name}"));
    let output = variable("OUT_DIR")?;
    let repository = variable("CARGO_MANIFEST_DIR")?.join("../..").canonicalize().map_err(|error| error.to_string())?;
    for source in [
        "guest/Cargo.toml",
        "guest/Cargo.lock",
        "guest/link.ld",
        "guest/src",
        "crates/policy/Cargo.toml",
        "crates/policy/src",
    ] {
        println!("cargo::rerun-if-changed={}", repository.join(source).display());
    }
    for source in ["build.rs", "build/guest.rs"] {
        println!("cargo::rerun-if-changed={source}");
    }
    // The file exists only if the script had to unpack a toolchain.
    let unpacked = repository.join("target/wasm-toolchain/ready");
    if unpacked.exists() {
        println!("cargo::rerun-if-changed={}", unpacked.display());
    }
    for (form, name) in [(Form::Elf, "leno-guest.elf"), (Form::Wasm, "leno-guest.wasm")] {
        let built = guest::build(form, &repository, &output.join("guest-target"), &[])?;
        copy(&built, &output.join(name))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}
