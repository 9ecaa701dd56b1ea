//! Builds the two guest images, compiles the WebAssembly one to machine code, and writes them to the
//! paths from which the engines embed them.

#[path = "src/wasm/compiler.rs"]
mod compiler;
#[path = "build/guest.rs"]
mod guest;

use guest::Form;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wasmtime::Engine;

/// The platform of compiled images: the one for which `guest.rs` builds programs.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Features of processors that compiled images use: those of x86-64-v3, which servers have had for
/// ten years. A node without them compiles the image when it starts.
const FEATURES: [&str; 11] = [
    "has_sse3",
    "has_ssse3",
    "has_sse41",
    "has_sse42",
    "has_popcnt",
    "has_avx",
    "has_avx2",
    "has_fma",
    "has_bmi1",
    "has_bmi2",
    "has_lzcnt",
];

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
    for source in ["build.rs", "build/guest.rs", "src/wasm/compiler.rs"] {
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
    let compiled = compile(&output.join("leno-guest.wasm"));
    let compiled = compiled.map_err(|error| format!("the image cannot be compiled: {error:#}"))?;
    let path = output.join("leno-guest.cwasm");
    std::fs::write(&path, compiled).map_err(|error| format!("{}: {error}", path.display()))
}

/// Compiles an image. A node would spend more time on it than on the rest of its start.
fn compile(image: &Path) -> wasmtime::Result<Vec<u8>> {
    let mut config = compiler::config();
    // Traces of traps are not taken, so the tables for them would only take memory.
    config.target(TARGET)?.generate_address_map(false);
    for feature in FEATURES {
        // SAFETY: it is the name of a processor's feature, and an engine refuses code with one that its processor lacks.
        unsafe { config.cranelift_flag_enable(feature) };
    }
    Engine::new(&config)?.precompile_module(&std::fs::read(image)?)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}
