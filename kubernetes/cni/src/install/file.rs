//! Changes of files that other programs change too.

use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::TempPath;

/// The beginning of the names of temporary files. Runtimes read no file with such a name.
pub(crate) const TEMPORARY: &str = ".leno-cni.";

/// How often a change is tried while other programs replace the file.
const MAX_TRIES: usize = 32;

/// Reads a file of bounded size.
pub(crate) fn read(file: &Path) -> std::io::Result<(String, Metadata)> {
    let opened = File::open(file)?;
    let metadata = opened.metadata()?;
    let mut text = String::new();
    opened.take(crate::MAX_CONFIGURATION + 1).read_to_string(&mut text)?;
    if text.len() as u64 > crate::MAX_CONFIGURATION {
        return Err(std::io::Error::other(format!("it has more than {} bytes", crate::MAX_CONFIGURATION)));
    }
    Ok((text, metadata))
}

/// Makes a temporary file in a folder, with these contents and a mode, on disk.
pub(crate) fn temporary(folder: &Path, contents: &[u8], mode: u32) -> std::io::Result<TempPath> {
    let mut made = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
    made.write_all(contents)?;
    made.as_file().set_permissions(PermissionsExt::from_mode(mode))?;
    made.as_file().sync_all()?;
    Ok(made.into_temp_path())
}

/// Makes a temporary file that has the mode and the owner of another.
fn alike(folder: &Path, contents: &[u8], metadata: &Metadata) -> std::io::Result<TempPath> {
    let made = temporary(folder, contents, metadata.mode() & 0o7777)?;
    if rustix::process::geteuid().is_root() {
        fchown(File::open(&made)?, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    Ok(made)
}

/// Changes a file as a whole, and loses no change that another program makes meanwhile by replacing
/// it. `change` gives the new text, or `None` if the text is right. Returns whether there was a
/// change.
///
/// The new file and the old one change places, so that the old one can be compared with the text
/// that was changed. If they differ, another program was quicker, and its text is the next to be
/// changed.
pub(crate) fn edit<E: From<std::io::Error>>(
    file: &Path,
    change: impl Fn(&str) -> Result<Option<String>, E>,
) -> Result<bool, E> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let (mut text, mut metadata) = read(file)?;
    let mut expected = text.clone();
    for _ in 0..MAX_TRIES {
        let new = match change(&text)? {
            Some(new) => new,
            None if text == expected => return Ok(false),
            // The text of the other program goes back as it was.
            None => text.clone(),
        };
        let made = alike(folder, new.as_bytes(), &metadata)?;
        match renameat_with(CWD, &*made, CWD, file, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(std::io::Error::from(Errno::NOENT).into()),
            // Some network file systems cannot exchange files.
            Err(Errno::INVAL | Errno::NOSYS) => {
                made.persist(file).map_err(|error| error.error)?;
                return Ok(true);
            }
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let displaced = read(&made);
        match displaced {
            Ok((displaced, _)) if displaced == expected => {
                File::open(folder)?.sync_all()?;
                return Ok(true);
            }
            Ok((displaced, its)) if change(&displaced).is_ok() => {
                (text, metadata, expected) = (displaced, its, new);
            }
            // The other program is not done with its file, which goes back to its place.
            _ => {
                renameat_with(CWD, &*made, CWD, file, RenameFlags::EXCHANGE).map_err(std::io::Error::from)?;
                return Err(std::io::Error::other("another program is about to write it").into());
            }
        }
    }
    Err(std::io::Error::other("other programs replace it all the time").into())
}

/// Makes a file with these contents and this mode, unless it has them.
pub(crate) fn put(file: &Path, contents: &[u8], mode: u32) -> std::io::Result<bool> {
    if let Ok(metadata) = file.symlink_metadata()
        && metadata.is_file()
        && metadata.mode() & 0o7777 == mode
        && metadata.len() == contents.len() as u64
        && std::fs::read(file)? == contents
    {
        return Ok(false);
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    temporary(folder, contents, mode)?.persist(file).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()?;
    Ok(true)
}

/// Removes a file if it is there. Returns whether it was.
pub(crate) fn remove(file: &Path) -> std::io::Result<bool> {
    match std::fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes temporary files that an installer left when it was killed.
pub(crate) fn remove_temporary(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}
