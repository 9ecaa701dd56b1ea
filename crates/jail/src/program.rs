//! Programs of the machine: how the node describes one, and the part of it that the jail receives.

use crate::container::{self, Volume};
use crate::error::bad;
use crate::shown::{self, resolved};
use crate::view::{self, real};
use crate::wire::{MOST_DESCRIPTORS, Task};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// A program to run in a jail. It cannot be printed: it holds secrets.
#[derive(Clone, Default)]
pub struct Program {
    /// The namespace whose threads open its paths.
    pub namespace: String,
    /// Its name and arguments.
    pub argv: Vec<String>,
    /// Its working directory. The jail shows it.
    pub directory: PathBuf,
    /// All of its environment.
    pub environment: BTreeMap<String, String>,
    /// The jail's host name, at most 64 bytes.
    pub hostname: String,
    /// Other files and folders that the jail shows, read-only.
    pub visible: Vec<PathBuf>,
    /// Folders in memory. `/tmp` may be one, in place of the one that every jail has.
    pub volumes: Vec<Volume>,
    /// Names and contents of files in [`crate::SECRETS`].
    pub secrets: Vec<(String, Vec<u8>)>,
    /// Soft limit on file descriptors; `None`: the node's.
    pub descriptors: Option<u64>,
    /// Limit on processes and threads; `None`: [`crate::DEFAULT_PROCESSES`].
    pub processes: Option<u32>,
}

/// Decides which paths a jail has to show for a program, and mounts them as far as the node can.
/// `account` is the jail's own. Blocks as long as the file systems do, on a thread that ends
/// afterwards.
pub(crate) fn prepared(program: Program, account: Option<u32>) -> io::Result<(Task, Vec<OwnedFd>)> {
    if let Some(account) = account {
        shown::take_rights(account)?;
    }
    let task = task(program)?;
    let mounts = mounts(&task)?;
    Ok((task, mounts))
}

/// Decides which paths the jail has to show for a program.
fn task(program: Program) -> io::Result<Task> {
    let Program { argv, directory, environment, hostname, visible, volumes, secrets, .. } = program;
    let Program { descriptors, processes, .. } = program;
    let volumes = container::volumes(&volumes)?;
    let name = argv.first().ok_or_else(|| bad("the command is empty".to_owned()))?;
    let directory = without_dots(directory)?;
    let visible = visible.into_iter().map(without_dots).collect::<io::Result<Vec<_>>>()?;
    let executable = located(name, &directory, environment.get("PATH"))?;
    let mut shown: Vec<(PathBuf, PathBuf)> = Vec::new();
    // The outer paths first, so that inner ones are found in them.
    let mut wanted: Vec<&PathBuf> = visible.iter().chain([&directory, &executable]).collect();
    wanted.sort();
    for path in wanted {
        if view::shows(path) || shown.iter().any(|(_, shown)| path.starts_with(shown)) {
            real(path)?;
            continue;
        }
        if let Some(reason) = shown::unshowable(path) {
            return Err(bad(format!("a jail cannot show {}: {reason}", path.display())));
        }
        shown.push((resolved(path)?, path.clone()));
    }
    for (volume, _) in &volumes {
        if view::shows(volume) || view::is_setting(volume) {
            return Err(bad(format!("the volume {} is in a folder of the machine's programs", volume.display())));
        }
        if let Some((_, hidden)) = shown.iter().find(|(_, shown)| shown.starts_with(volume)) {
            return Err(bad(format!("the volume {} would hide {}", volume.display(), hidden.display())));
        }
    }
    let visible = shown;
    Ok(Task { argv, executable, directory, environment, hostname, visible, volumes, secrets, descriptors, processes })
}

/// The mounts of a task's visible paths. Only root can make them. Without root, the jails open the
/// paths, with the same account and the same result.
fn mounts(task: &Task) -> io::Result<Vec<OwnedFd>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Vec::new());
    }
    if task.visible.len() + 3 > MOST_DESCRIPTORS {
        return Err(bad(format!("a jail shows at most {} paths", MOST_DESCRIPTORS - 3)));
    }
    let real: Vec<PathBuf> = task.visible.iter().map(|(real, _)| real.clone()).collect();
    shown::mounts(Path::new("/"), &real)
}

/// A path in which `..` is resolved: its meaning depends on the links before it.
fn without_dots(path: PathBuf) -> io::Result<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) { real(&path) } else { Ok(path) }
}

/// Finds the file that a command names, as a shell would.
fn located(name: &str, directory: &Path, path: Option<&String>) -> io::Result<PathBuf> {
    if name.contains('/') {
        // Removes the `.` of `./program`, which would break `starts_with`.
        return without_dots(directory.join(name).components().collect());
    }
    let folders = std::env::split_paths(path.map_or("", String::as_str));
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("`{name}` is in no folder of PATH")))
}
