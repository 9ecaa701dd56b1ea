//! Files that only this account can read: tokens, and the file of contexts.

use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const MAX_BYTES: u64 = 1 << 20;

/// Reads a file that only this account can read.
pub(crate) fn read(path: &Path) -> Result<String> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    ensure!(
        found.mode() & 0o077 == 0 && [0, geteuid().as_raw()].contains(&found.uid()),
        "other accounts can read it (mode {:o}, account {}); chown it, and chmod 600 it",
        found.mode() & 0o777,
        found.uid()
    );
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The token in a file.
pub(crate) fn token(path: &Path) -> Result<String> {
    let text = read(path).with_context(|| format!("the token cannot be read from {}", path.display()))?;
    let token = text.trim();
    ensure!(
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "{} does not hold a token: expected one line, as `leno token create` prints it",
        path.display()
    );
    Ok(token.to_owned())
}
