//! Programs of the machine: how the node describes one, and the part of it that the jail receives.

use crate::account::FIRST_ACCOUNT;
use crate::container::{self, Volume, WritableFolder};
use crate::dependencies::Dependencies;
use crate::error::bad;
use crate::host::{HOST_NEEDS_ROOT, HostFolder, Owners};
use crate::shown::{self, resolved};
use crate::view::{self, real};
use crate::wire::{MOST_DESCRIPTORS, Task};
use leno_files::{FileAccess, Owner};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// A program to run in a jail. It cannot be printed: it holds secrets.
#[derive(Clone, Default)]
pub struct Program {
    /// The namespace whose threads open its paths.
    pub namespace: String,
    /// Its name and arguments.
    pub argv: Vec<String>,
    /// Its working directory, which the jail shows. `/`: it has none of the machine, and starts in an
    /// empty one of the jail.
    pub directory: PathBuf,
    /// All of its environment.
    pub environment: BTreeMap<String, String>,
    /// The jail's host name, at most 64 bytes.
    pub hostname: String,
    /// Other files and folders that the jail shows, read-only.
    pub visible: Vec<PathBuf>,
    /// Folders in memory. `/tmp` may be one, in place of the one that every jail has.
    pub volumes: Vec<Volume>,
    /// Where the dependencies of the program may be, which the jail shows without being told.
    pub access: FileAccess,
    /// Folders of the machine that it can write to.
    pub folders: Vec<WritableFolder>,
    /// Folders that the machine has for other purposes too.
    pub host: Vec<HostFolder>,
    /// Names and contents of files in [`crate::SECRETS`].
    pub secrets: Vec<(String, Vec<u8>)>,
    /// Soft limit on file descriptors; `None`: the node's.
    pub descriptors: Option<u64>,
    /// Limit on processes and threads; `None`: [`crate::DEFAULT_PROCESSES`].
    pub processes: Option<u32>,
}

/// Looks for dependencies that a program would lack in a jail on this machine, without starting it. Its document
/// is a file, and may name any. Blocks as long as the file systems do.
pub fn examine(program: Program) -> Vec<String> {
    let account = rustix::process::geteuid().is_root().then_some(FIRST_ACCOUNT);
    let examine = move || {
        if let Some(Err(error)) = account.map(shown::take_rights) {
            return vec![error.to_string()];
        }
        match task(Program { access: FileAccess::Any, ..program }) {
            Ok((task, mut lacks)) => {
                lacks.extend(missing_script(&task));
                lacks.extend(hidden_configuration(&task));
                let variables = task.environment.iter().filter(|(name, _)| *name != "PATH");
                lacks.extend(hidden(&task, variables.flat_map(|(_, value)| value.split(':'))));
                lacks
            }
            Err(error) => vec![error.to_string()],
        }
    };
    // The thread that takes the rights ends with them.
    std::thread::spawn(examine).join().unwrap_or_default()
}

/// The script of an interpreter, if there is no such file.
fn missing_script(task: &Task) -> Option<String> {
    const SCRIPTS: [&str; 12] = ["cjs", "jar", "js", "lua", "mjs", "php", "pl", "py", "r", "rb", "sh", "ts"];
    let mut arguments = task.argv.iter().skip(1).map(String::as_str);
    let script = match arguments.next()? {
        "-jar" => arguments.next()?,
        first => first,
    };
    let extension = Path::new(script).extension().and_then(OsStr::to_str)?;
    let found = fs::symlink_metadata(task.directory.join(script));
    let is_missing = found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    (SCRIPTS.contains(&extension) && !script.starts_with('-') && is_missing)
        .then(|| format!("there is no file `{script}` in {}", task.directory.display()))
}

/// The configuration that a server reads without being told, if the jail does not show it.
fn hidden_configuration(task: &Task) -> Option<String> {
    /// Programs, the options that name another file, and their own.
    const SERVERS: [(&str, &str, &str); 6] = [
        ("nginx", "-c", "/etc/nginx"),
        ("apache2", "-f", "/etc/apache2"),
        ("apache2ctl", "-f", "/etc/apache2"),
        ("apachectl", "-f", "/etc/apache2"),
        ("httpd", "-f", "/etc/httpd"),
        ("postfix", "-c", "/etc/postfix"),
    ];
    let name = task.executable.file_name().and_then(OsStr::to_str)?;
    let (_, option, folder) = SERVERS.iter().find(|(program, ..)| *program == name)?;
    let hidden = !is_shown(task, Path::new(folder)) && Path::new(folder).exists();
    (hidden && !task.argv.iter().any(|argument| argument == option))
        .then(|| format!("{name} reads {folder}, which the jail does not show: add `readOnlyPaths: [{folder}]`"))
}

/// Whether the jail has a path.
fn is_shown(task: &Task, path: &Path) -> bool {
    /// Folders that every jail has.
    const OWN: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];
    let visible = task.visible.iter().map(|(_, in_jail)| in_jail);
    let written = task.volumes.iter().map(|(folder, _)| folder).chain(task.folders.iter().map(|(_, in_jail)| in_jail));
    let shown = OWN.iter().map(Path::new).chain(visible.chain(written).map(PathBuf::as_path));
    view::shows(path) || view::is_setting(path) || shown.into_iter().any(|shown| path.starts_with(shown))
}

/// Paths of the machine in the arguments, and among `others`, that the jail does not show.
fn hidden<'a>(task: &'a Task, others: impl Iterator<Item = &'a str>) -> Vec<String> {
    /// Most words that are looked at.
    const MAX_WORDS: usize = 64;
    let arguments =
        task.argv.iter().skip(1).map(|argument| argument.split_once('=').map_or(&**argument, |(_, path)| path));
    let words = arguments.chain(others).take(MAX_WORDS).map(Path::new);
    let paths = words.filter(|path| path.is_absolute() && path.parent().is_some());
    // The jail's own `/tmp` is for files that the program makes: a folder of the same name says nothing.
    let is_there = |path: &Path| match fs::metadata(path) {
        Ok(metadata) => metadata.is_file() || !path.starts_with("/tmp") && !path.starts_with("/var/tmp"),
        Err(_) => false,
    };
    let hidden = paths.filter(|path| !is_shown(task, path) && is_there(path));
    let explain = |path: &Path| match shown::unshowable(path) {
        None => format!("the jail does not show {0}: add `readOnlyPaths: [{0}]`", path.display()),
        Some(_) => format!("the jail does not show {}: copy it into the working directory", path.display()),
    };
    hidden.map(explain).collect()
}

/// Decides which paths a jail has to show for a program, and mounts them as far as the node can.
/// `account` is the jail's own, with its user namespace; `None`: the node cannot mount. Blocks as
/// long as the file systems do, on a thread that ends afterwards. Also returns the dependencies of
/// the program that the jail lacks.
pub(crate) fn prepared(
    program: Program,
    account: Option<(u32, OwnedFd)>,
    owners: &Owners,
) -> io::Result<(Task, Vec<OwnedFd>, Vec<String>)> {
    // Whether a file exists is nothing that a tenant may find out by an argument.
    let is_operators = matches!(program.access, FileAccess::Any);
    let told = |(task, mut notes): (Task, Vec<String>)| {
        if is_operators {
            notes.extend(hidden(&task, std::iter::empty()));
        }
        (task, notes)
    };
    let Some((account, users)) = account else {
        if !program.host.is_empty() {
            return Err(bad(HOST_NEEDS_ROOT.to_owned()));
        }
        let (task, notes) = told(task(program)?);
        return Ok((task, Vec::new(), notes));
    };
    let folders = container::folders(&program.folders, users.as_fd())?;
    let user = Owner { user: account, group: account };
    let host = owners.mounts(&program.host, user)?;
    shown::take_rights(account)?;
    let (task, notes) = told(task(program)?);
    let mounts = mounts(&task)?.into_iter().chain(folders).chain(host).collect();
    Ok((task, mounts, notes))
}

/// Decides which paths the jail has to show for a program.
fn task(program: Program) -> io::Result<(Task, Vec<String>)> {
    let Program { namespace, argv, directory, environment, hostname, visible, volumes, folders, access, .. } = program;
    let Program { secrets, descriptors, processes, host, .. } = program;
    let host = host.into_iter().map(|HostFolder { source, path, .. }| WritableFolder { source, path });
    let folders: Vec<WritableFolder> = folders.into_iter().chain(host).collect();
    let volumes = container::volumes(&volumes)?;
    let directory = without_dots(directory)?;
    let visible = visible.into_iter().map(without_dots).collect::<io::Result<Vec<_>>>()?;
    let mut shown: Vec<(PathBuf, PathBuf)> = Vec::new();
    let has_folder = directory != Path::new("/");
    // The outer paths first, so that inner ones are found in them.
    let mut wanted: Vec<&PathBuf> = visible.iter().chain(has_folder.then_some(&directory)).collect();
    wanted.sort();
    for path in wanted {
        if view::shows(path) || shown.iter().any(|(_, shown)| path.starts_with(shown)) {
            real(path)?;
            continue;
        }
        if let Some(reason) = shown::unshowable(path) {
            return Err(bad(format!("a jail cannot show {}: {reason}", path.display())));
        }
        let real = resolved(path)?;
        shown::check_settings(path, &real, |path| access.refusal(&namespace, path))?;
        shown.push((real, path.clone()));
    }
    let mut dependencies = Dependencies::new(&directory, environment.get("PATH"), shown, &access, &namespace);
    let executable = dependencies.command(&argv)?;
    let Dependencies { shown: visible, links, notes, .. } = dependencies;
    for volume in volumes.iter().map(|(path, _)| path).chain(folders.iter().map(|folder| &folder.path)) {
        if view::shows(volume) || view::is_setting(volume) {
            return Err(bad(format!("the volume {} is in a folder of the machine's programs", volume.display())));
        }
        if let Some((_, hidden)) = visible.iter().find(|(_, shown)| shown.starts_with(volume)) {
            return Err(bad(format!("the volume {} would hide {}", volume.display(), hidden.display())));
        }
    }
    let directory = if has_folder { directory } else { PathBuf::from(view::EMPTY) };
    let folders = folders.into_iter().map(|folder| (folder.source, folder.path)).collect();
    let task = Task {
        argv,
        executable,
        directory,
        environment,
        hostname,
        visible,
        links,
        volumes,
        folders,
        secrets,
        descriptors,
        processes,
    };
    Ok((task, notes.into_iter().collect()))
}

/// The mounts of a task's visible paths. Without root, the jails open the paths, with the same
/// account and the same result.
fn mounts(task: &Task) -> io::Result<Vec<OwnedFd>> {
    if task.visible.len() + task.folders.len() + 3 > MOST_DESCRIPTORS {
        return Err(bad(format!("a jail shows at most {} paths", MOST_DESCRIPTORS - 3)));
    }
    let real: Vec<PathBuf> = task.visible.iter().map(|(real, _)| real.clone()).collect();
    shown::mounts(Path::new("/"), &real)
}

/// A path in which `..` is resolved: its meaning depends on the links before it.
fn without_dots(path: PathBuf) -> io::Result<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) { real(&path) } else { Ok(path) }
}
