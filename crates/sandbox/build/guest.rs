//! Builds the guest images with a separate run of cargo. Used by the build script, and by tests for
//! an image that misbehaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The two forms of the same image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Elf,
    Wasm,
}

const SCRIPT: &str = "scripts/wasm-toolchain.sh";

/// Builds `form` of the guest in `repository` into `target` and returns the path of the file.
pub(crate) fn build(form: Form, repository: &Path, target: &Path, features: &[&str]) -> Result<PathBuf, String> {
    let guest = repository.join("guest");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars() {
        // The settings of the outer build (flags, wrappers, lints, coverage) are not meant for the
        // image.
        let outer = name.starts_with("CARGO_PROFILE_")
            || name.starts_with("CARGO_BUILD_")
            || name.starts_with("CARGO_TARGET_")
            || name.starts_with("CARGO_CFG_")
            || name.starts_with("CARGO_FEATURE_")
            || name.starts_with("CLIPPY_")
            || name.starts_with("LLVM_PROFILE");
        if outer {
            cargo.env_remove(name);
        }
    }
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTDOC",
        "RUSTC_LINKER",
        "RUSTC_BOOTSTRAP",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "OUT_DIR",
        "CARGO_MAKEFLAGS",
        "MAKEFLAGS",
        "CARGO_INCREMENTAL",
    ] {
        cargo.env_remove(name);
    }
    cargo.arg("build").arg("--release").arg("--quiet").args(["--config", "term.color='never'"]);
    cargo.arg("--manifest-path").arg(guest.join("Cargo.toml")).arg("--target-dir").arg(target).current_dir(&guest);
    if !features.is_empty() {
        cargo.arg("--features").arg(features.join(","));
    }
    let built = match form {
        Form::Elf => elf(&mut cargo, &guest),
        Form::Wasm => wasm(&mut cargo, repository)?,
    };
    let output = cargo.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the {form:?} image of the guest cannot be built:\n{said}"));
    }
    Ok(target.join(built))
}

/// A freestanding program for the host's own target: no start files, no libraries, addresses by the
/// linker script.
fn elf(cargo: &mut Command, guest: &Path) -> &'static str {
    let script = format!("-Clink-arg=-Wl,-T,{}", guest.join("link.ld").display());
    let flags = [
        "-Crelocation-model=static",
        "-Clink-arg=-nostdlib",
        "-Clink-arg=-nostartfiles",
        "-Clink-arg=-static",
        "-Clink-arg=-no-pie",
        &script,
        "-Clink-arg=-Wl,--build-id=none",
        "-Clink-arg=-Wl,-z,noexecstack",
        "-Clink-arg=-Wl,-z,norelro",
        "-Cstrip=symbols",
    ];
    cargo.args(["--bin", "leno-guest", "--target", "x86_64-unknown-linux-gnu"]);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    "x86_64-unknown-linux-gnu/release/leno-guest"
}

/// A module with its stack below its variables, so that a stack overflow is an access outside of
/// the memory.
fn wasm(cargo: &mut Command, repository: &Path) -> Result<&'static str, String> {
    let mut flags = vec![
        "-Clink-arg=--stack-first".to_owned(),
        "-Clink-arg=-zstack-size=65536".to_owned(),
        // The memory is erased for every run, so it is no larger than a common run needs; the heap
        // grows when a run needs more.
        "-Clink-arg=--initial-memory=131072".to_owned(),
        // The host restores the stack pointer between two runs.
        "-Clink-arg=--export=__stack_pointer".to_owned(),
        "-Cstrip=symbols".to_owned(),
    ];
    cargo.args(["--lib", "--target", "wasm32-unknown-unknown"]);
    let unpacked = repository.join("target/wasm-toolchain");
    if let Ok(linker) = fs::read_to_string(unpacked.join("ready")) {
        // A whole toolchain, unpacked by the script; its standard library is built together with
        // the module.
        cargo.env("RUSTC", unpacked.join("usr/bin/rustc"));
        cargo.env("LD_LIBRARY_PATH", unpacked.join("usr/lib/x86_64-linux-gnu"));
        cargo.env("RUSTC_BOOTSTRAP", "1");
        cargo.args(["-Zbuild-std=core,alloc", "-Zbuild-std-features=compiler-builtins-mem"]);
        flags.push(format!("-Clinker={}", unpacked.join(linker.trim()).display()));
    } else if !has_wasm_target() {
        return Err(format!(
            "no Rust toolchain here builds wasm32-unknown-unknown; run {SCRIPT} (`make setup` does), then build again"
        ));
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    Ok("wasm32-unknown-unknown/release/leno_guest.wasm")
}

fn has_wasm_target() -> bool {
    let output =
        Command::new("rustc").args(["--print", "target-libdir", "--target", "wasm32-unknown-unknown"]).output();
    output.is_ok_and(|output| {
        let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        fs::read_dir(directory).is_ok_and(|mut files| {
            files.any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libcore-")))
        })
    })
}
