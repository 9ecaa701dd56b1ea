//! The installer: puts the plug-in and its entry on a node, and keeps them there.
//!
//! Other programs write the same folders: the cluster's network when it starts or is upgraded, and
//! other chained plug-ins. The installer changes nothing but Leno's entry and program, and puts them
//! back when another program removes them.

mod conflist;
mod file;
mod watch;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use conflist::{ConflistError, list_of, single_of, with_entry, without_entry};
pub use watch::run;

use crate::plugin::Options;

/// The mode of the program: root writes it, everyone may run it.
const PROGRAM_MODE: u32 = 0o755;

/// Where and how to install.
#[derive(Clone, Debug)]
pub struct Installer {
    /// The folder of network configurations, usually `/etc/cni/net.d`.
    pub configuration_folder: PathBuf,
    /// The folder of plug-ins, usually `/opt/cni/bin`.
    pub binary_folder: PathBuf,
    /// The file in the folder of configurations. By default the first one, as runtimes do.
    pub file: Option<String>,
    /// The options of the entry.
    pub options: Options,
    /// The program to install: this one.
    pub program: PathBuf,
}

/// The outcome of an installation.
#[derive(Debug, PartialEq, Eq)]
pub enum InstallOutcome {
    /// Program and entry are in place.
    In {
        /// The file with the entry.
        file: PathBuf,
        /// Whether anything had to be changed.
        changed: bool,
    },
    /// The folder has no configuration of a network yet.
    NoNetwork,
}

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file cannot be changed.
    #[error("{}: {reason}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error.
        reason: FileError,
    },
    /// The options of the entry are wrong.
    #[error("{0}")]
    Options(String),
    /// The installer cannot wait for changes of folders or for signals.
    #[error("cannot watch {subject}: {reason}")]
    Watch {
        /// Folders or signals.
        subject: &'static str,
        /// The system's error.
        reason: std::io::Error,
    },
    /// No network configuration has the entry.
    #[error("no file in {} has an entry of leno-cni", .0.display())]
    NotInstalled(PathBuf),
}

/// An error of one file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system's error.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The contents.
    #[error(transparent)]
    Contents(#[from] ConflistError),
}

/// Names the file of an error.
fn of<E: Into<FileError>>(file: &Path) -> impl Fn(E) -> InstallError {
    move |reason| InstallError::File { file: file.to_owned(), reason: reason.into() }
}

impl Installer {
    /// The entry, as text.
    fn entry(&self) -> Result<String, InstallError> {
        self.options.check().map_err(InstallError::Options)?;
        Ok(serde_json::json!({"type": crate::NAME, "leno": self.options}).to_string())
    }

    fn installed_program(&self) -> PathBuf {
        self.binary_folder.join(crate::NAME)
    }

    /// The files that runtimes read, in their order.
    fn configurations(&self) -> Result<Vec<PathBuf>, InstallError> {
        let failed = of::<std::io::Error>(&self.configuration_folder);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.configuration_folder).map_err(&failed)? {
            let path = entry.map_err(&failed)?.path();
            if matches!(ending(&path), "conf" | "conflist" | "json") && path.is_file() {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Installs the program and the entry. Does nothing if both are as they should be.
    pub fn apply(&self) -> Result<InstallOutcome, InstallError> {
        let entry = self.entry()?;
        // The program first: a runtime starts no pod if a plug-in of its list is missing.
        let target = self.installed_program();
        let program = std::fs::read(&self.program).map_err(of(&self.program))?;
        let mut changed = file::put(&target, &program, PROGRAM_MODE).map_err(of(&target))?;
        let files = self.configurations()?;
        let mut chosen = None;
        for path in &files {
            let wanted = match &self.file {
                // A file of one plug-in becomes a list of the same name.
                Some(name) => {
                    path.file_name().is_some_and(|is| is == name.as_str())
                        || *path == list_path(&self.configuration_folder.join(name))
                }
                None => true,
            };
            if !wanted {
                continue;
            }
            match add(path, &entry) {
                Ok((path, added)) => {
                    changed |= added;
                    chosen = Some(path);
                    break;
                }
                // Runtimes look at the next file then.
                Err(InstallError::File { reason: FileError::Contents(ConflistError::Empty), .. })
                    if self.file.is_none() => {}
                Err(error) => return Err(error),
            }
        }
        let Some(chosen) = chosen else { return Ok(InstallOutcome::NoNetwork) };
        // A runtime that reads several files would start the plug-in several times.
        for path in files.iter().filter(|path| **path != chosen && ending(path) == "conflist") {
            changed |= file::edit(path, |text| without_entry(text).map_err(FileError::from)).unwrap_or_default();
        }
        Ok(InstallOutcome::In { file: chosen, changed })
    }

    /// Checks that program and entry are in place, without changing anything. Returns the file with
    /// the entry.
    pub fn check(&self) -> Result<PathBuf, InstallError> {
        let target = self.installed_program();
        target.metadata().map_err(of(&target))?;
        for path in self.configurations()? {
            let (text, _) = file::read(&path).map_err(of(&path))?;
            if ending(&path) == "conflist" && without_entry(&text).map_err(of(&path))?.is_some() {
                return Ok(path);
            }
        }
        Err(InstallError::NotInstalled(self.configuration_folder.clone()))
    }

    /// Removes the entry from all files, and then the program.
    pub fn remove(&self) -> Result<(), InstallError> {
        let mut failure = None;
        for path in self.configurations()? {
            if ending(&path) == "conflist" {
                failure = failure.or(take_out(&path).err());
            }
        }
        // With an entry left, pods need the program.
        if let Some(failure) = failure {
            return Err(failure);
        }
        let target = self.installed_program();
        file::remove(&target).map_err(of(&target))?;
        self.remove_temporary()
    }

    /// Removes temporary files of installers that were killed.
    fn remove_temporary(&self) -> Result<(), InstallError> {
        for folder in [&self.configuration_folder, &self.binary_folder] {
            file::remove_temporary(folder).map_err(of(folder))?;
        }
        Ok(())
    }
}

fn ending(path: &Path) -> &str {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

/// The file of the list that replaces a file of one plug-in. Runtimes sort it where that file was,
/// and its name says where it comes from: `10-net.conf.conflist`.
fn list_path(single: &Path) -> PathBuf {
    let mut name = single.as_os_str().to_owned();
    name.push(".conflist");
    name.into()
}

/// Adds the entry to a file. Returns the file that has it, which is another one if the file had a
/// single plug-in.
fn add(path: &Path, entry: &str) -> Result<(PathBuf, bool), InstallError> {
    if ending(path) == "conflist" {
        let changed = file::edit(path, |text| with_entry(text, entry).map_err(FileError::from)).map_err(of(path))?;
        return Ok((path.to_owned(), changed));
    }
    let list = list_path(path);
    let (mut text, metadata) = file::read(path).map_err(of(path))?;
    loop {
        let contents = list_of(&text, entry).map_err(of(path))?;
        file::put(&list, contents.as_bytes(), metadata.mode() & 0o7777).map_err(of(&list))?;
        // Out of the way first: the file may be a newer one than the text that was read.
        let folder = path.parent().unwrap_or(Path::new("."));
        let aside = file::temporary(folder, b"", 0o600).map_err(of(folder))?;
        match std::fs::rename(path, &aside) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((list, true)),
            Err(error) => return Err(of(path)(error)),
        }
        let newer = file::read(&aside).map_err(of(path))?.0;
        if newer == text {
            return Ok((list, true));
        }
        if let Err(error) = list_of(&newer, entry) {
            // Perhaps another program is about to write it.
            aside.persist(path).map_err(|error| of(path)(error.error))?;
            return Err(of(path)(error));
        }
        text = newer;
    }
}

/// Takes the entry out of a list. A list that the installer made of a single plug-in becomes that
/// plug-in again.
fn take_out(path: &Path) -> Result<(), InstallError> {
    file::edit(path, |text| without_entry(text).map_err(FileError::from)).map_err(of(path))?;
    let single = path.with_extension("");
    if !matches!(ending(&single), "conf" | "json") {
        return Ok(());
    }
    let (text, metadata) = file::read(path).map_err(of(path))?;
    let Some(plugin) = single_of(&text).map_err(of(path))? else { return Ok(()) };
    if !single.exists() {
        file::put(&single, plugin.as_bytes(), metadata.mode() & 0o7777).map_err(of(&single))?;
    }
    file::remove(path).map_err(of(path))?;
    Ok(())
}
