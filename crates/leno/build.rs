//! Packs relative relocations, which the loader applies at each start of the program. Unpacked, they
//! are megabytes of the program's file that stay in memory.

use std::env;
use std::process::Command;

/// The first release of glibc whose loader reads packed ones.
const GLIBC: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name, value: &str| env::var(name).is_ok_and(|found| found == value);
    // The program runs with the glibc of this machine, or a newer one.
    let own = env::var("HOST").is_ok_and(|host| is("TARGET", &host)) && is("CARGO_CFG_TARGET_ENV", "gnu");
    if own && glibc().is_some_and(|version| version >= GLIBC) {
        println!("cargo:rustc-link-arg-bin=leno=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's glibc, such as `glibc 2.36`.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
