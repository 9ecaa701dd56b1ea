//! Compiled components in files. Compiling an interpreter takes half a minute, at each start of a
//! node.
#![allow(unsafe_code)] // machine code is read back

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use std::fs::{self, DirBuilder, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Bytes of all files. Beyond that, those that were not used for the longest time are removed.
const SIZE: u64 = 1 << 30;

/// Permission bits of group and others to write.
const WRITABLE: u32 = 0o022;

/// A folder of compiled components. A file begins with the SHA-256 of the rest, and its name is the
/// hash of the component and of the engine's settings.
#[derive(Clone, Debug)]
pub struct CompiledComponents(PathBuf);

impl CompiledComponents {
    /// Makes the folder, for this account only.
    ///
    /// # Errors
    /// The folder cannot be made, or another account can write to it: its files are machine code
    /// that this process runs.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        if is_private(&fs::metadata(&folder)?) {
            return Ok(Self(folder));
        }
        let reason = format!("{} is not this account's alone (chmod 700, chown)", folder.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }

    /// The component, from its file if there is a usable one. Otherwise it is compiled, and the
    /// file is written.
    pub(super) fn component(&self, engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Component> {
        let path = self.path(engine, bytes);
        match read(&path) {
            // SAFETY: Only this account could write the file, and its checksum is that of what this
            // function wrote. The engine checks that it has the same release and settings.
            Ok(Some(code)) => match unsafe { Component::deserialize(engine, &code) } {
                Ok(component) => return Ok(component),
                Err(error) => tracing::debug!("{}: {error:#}; it is compiled again", path.display()),
            },
            Ok(None) => tracing::warn!("{} is damaged; the component is compiled again", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("{} cannot be read: {error}", path.display()),
        }
        let component = Component::from_binary(engine, bytes)?;
        let code = component.serialize()?;
        if let Err(error) = self.write(&path, &code) {
            tracing::warn!("{} cannot be written, so the next start compiles again: {error}", path.display());
        }
        Ok(component)
    }

    fn path(&self, engine: &Engine, bytes: &[u8]) -> PathBuf {
        let mut settings = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut settings);
        let hash = digest(&SHA256, bytes);
        let hex = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.0.join(format!("{hex}-{:016x}", settings.finish()))
    }

    /// Writes a file whole or not at all, and removes old ones.
    fn write(&self, path: &Path, code: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        file.write_all(digest(&SHA256, code).as_ref())?;
        file.write_all(code)?;
        file.persist(path)?;
        let mut files = fs::read_dir(&self.0)?
            .map(|entry| entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))))
            .collect::<io::Result<Vec<_>>>()?;
        files.sort_by_key(|(_, metadata)| std::cmp::Reverse(metadata.modified().ok()));
        let mut total = 0;
        for (old, metadata) in files {
            total += metadata.len();
            if total > SIZE && old != path {
                fs::remove_file(old)?;
            }
        }
        Ok(())
    }
}

/// The code in a file; `None`: the file is damaged.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    if !is_private(&file.metadata()?) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another account can write to it"));
    }
    // The age is that of the last use.
    file.set_modified(SystemTime::now())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes.len() < SHA256_OUTPUT_LEN {
        return Ok(None);
    }
    let code = bytes.split_off(SHA256_OUTPUT_LEN);
    Ok((digest(&SHA256, &code).as_ref() == bytes).then_some(code))
}

fn is_private(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & WRITABLE == 0
}
