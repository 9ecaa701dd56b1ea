//! The files that pods leave on the machine, when Leno is removed from it.

use leno_cni::enforced::ENFORCED_FILE;
use leno_cni::protocol::SOCKET;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The machine's files, as its first process sees them. A container's own mounts cannot be removed.
const MACHINE: &str = "/proc/1/root";

/// Removes the kernel's programs, which are pinned below `pins`, and the folders that the CNI plug-in
/// and the node share. A folder with other files stays.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_files(pins: &Path) -> io::Result<()> {
    allowed(ErrorKind::NotFound, fs::remove_dir_all(pins))?;
    for file in [SOCKET, ENFORCED_FILE] {
        let Some(folder) = Path::new(file).parent() else { continue };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (name, is_socket) = (entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_socket()));
            // Sockets for the CNI plug-in and for the next agent, and the list, also of killed processes.
            if is_socket || name == "enforced" || name.to_string_lossy().starts_with(".enforced.") {
                allowed(ErrorKind::NotFound, fs::remove_file(entry.path()))?;
            }
        }
        let folder = PathBuf::from(format!("{MACHINE}{}", folder.display()));
        match fs::remove_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                tracing::warn!("{} has other files, and stays", folder.display());
            }
            removed => allowed(ErrorKind::NotFound, removed)?,
        }
    }
    Ok(())
}

fn allowed(kind: ErrorKind, outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == kind { Ok(()) } else { Err(error) })
}
