//! Compiles the eBPF programs with clang.

use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // Debian's folder of the headers of the machine's architecture. Clang does not search it when
    // it compiles for the BPF target.
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    for name in ["direct", "intercept", "mesh", "pods", "queue"] {
        let source = format!("src/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .clang_args([&headers])
            .build_and_generate(folder.join(format!("{name}.skel.rs")))?;
        println!("cargo:rerun-if-changed={source}");
    }
    println!("cargo:rerun-if-changed=src/pods");
    Ok(())
}
