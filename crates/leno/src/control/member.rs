//! The identity of a control plane among those that share a store.

use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The identity of a data folder on this machine since its boot. A process that has it holds the
/// lock of the folder's file, so no other process with this identity runs. A copy of the folder has
/// another file, and another machine has another boot ID.
pub(super) struct Member {
    pub name: String,
    _lock: File,
}

impl Member {
    /// Locks the folder. `None`: another process has it.
    pub(super) fn of(data: &Path) -> Result<Option<Self>> {
        let path = data.join("member");
        let failed = || format!("{} cannot be used", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        let mut id = String::new();
        file.read_to_string(&mut id).with_context(failed)?;
        if id.is_empty() {
            id = random("uuid")?;
            file.write_all(id.as_bytes()).with_context(failed)?;
        }
        let boot = random("boot_id")?;
        let metadata = file.metadata().with_context(failed)?;
        let name = format!("{id}/{boot}/{}:{}", metadata.dev(), metadata.ino());
        Ok(Some(Self { name, _lock: file }))
    }
}

/// An ID of the kernel: of this boot, or a new one.
fn random(kind: &str) -> Result<String> {
    let path = format!("/proc/sys/kernel/random/{kind}");
    let id = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    Ok(id.trim().to_owned())
}
