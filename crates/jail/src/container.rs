//! Containers: how the node describes one, and the part of it that the jail receives.

use crate::error::bad;
use crate::host::HostFolder;
use crate::overlay::{MOST_LAYERS, Root};
use crate::user::{self, User};
use crate::wire::{ContainerTask, MOST_DESCRIPTORS};
use crate::{SECRETS, shown, view};
use leno_files::Owner;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Default limit, in bytes, on a container's writes to its root, and default size of a folder in
/// memory.
pub const DEFAULT_WRITABLE: u64 = 64 << 20;
/// Descriptors that come with a container besides those of visible paths: the task, two outputs and the root.
const OTHER_DESCRIPTORS: usize = 4;
/// Maximum number of folders in memory.
const MOST_VOLUMES: usize = 64;
/// Search path for commands if neither the image nor the function gives one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Folders that the jail itself provides in every container.
const OWN: [&str; 3] = ["/proc", "/dev", "/sys"];

/// An image that is unpacked on this machine. The names are those of the OCI image configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// One folder for each layer, the bottom one first. Files have the owners that the image gives
    /// (0 to 65535). Files that a layer removes are marked as overlayfs does it (devices 0/0,
    /// `trusted.overlay.opaque`). The folders must not change while a container uses them.
    pub layers: Vec<PathBuf>,
    /// `User`: `user` or `user:group`, by name or number. Empty: root.
    pub user: String,
    /// `Env`: `NAME=value`.
    pub environment: Vec<String>,
    /// `Entrypoint`.
    pub entrypoint: Vec<String>,
    /// `Cmd`.
    pub command: Vec<String>,
    /// `WorkingDir`; empty: `/`.
    pub directory: String,
    /// `StopSignal`, such as `SIGQUIT`, `QUIT`, `3` or `SIGRTMIN+3`; empty: SIGTERM.
    pub stop_signal: String,
}

/// A folder in memory, empty at first. Its files count against the container's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The path at which the container sees the folder. It is created if the image has nothing at
    /// this path; otherwise it hides the image's files.
    pub path: PathBuf,
    /// How many bytes it holds.
    pub size: u64,
}

/// A folder of the machine that a program can write to. The machine's IDs of the jail's users are
/// not on the disk: there the owner of a file has the number that the jail knows, where the node is
/// root, and is the node's account otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritableFolder {
    /// Its path on the machine. The node opens it with its own rights.
    pub source: PathBuf,
    /// Its path in the jail.
    pub path: PathBuf,
}

/// A container to run in a jail. It cannot be printed: it holds secrets.
#[derive(Clone)]
pub struct Container {
    /// The namespace whose threads open its paths.
    pub namespace: String,
    /// The image.
    pub image: Image,
    /// Instead of the image's entrypoint and command.
    pub command: Option<Vec<String>>,
    /// Instead of the image's command, after the entrypoint or [`Container::command`].
    pub args: Option<Vec<String>>,
    /// Instead of the image's working directory. It is made if it is missing.
    pub directory: Option<PathBuf>,
    /// Instead of the image's user.
    pub user: Option<String>,
    /// Variables besides those of the image, or in place of them.
    pub environment: BTreeMap<String, String>,
    /// The jail's host name, at most 64 bytes.
    pub hostname: String,
    /// Files and folders of the machine that the container sees under the same path, read-only.
    /// They hide the image's files at these paths.
    pub visible: Vec<PathBuf>,
    /// Names and contents of files in [`crate::SECRETS`]. All users of the container may read them.
    pub secrets: Vec<(String, Vec<u8>)>,
    /// Folders in memory. `/tmp` is always one.
    pub volumes: Vec<Volume>,
    /// Folders of the machine that it can write to.
    pub folders: Vec<WritableFolder>,
    /// Folders that the machine has for other purposes too.
    pub host: Vec<HostFolder>,
    /// Soft limit on file descriptors; `None`: the node's.
    pub descriptors: Option<u64>,
    /// Limit on processes and threads of each of its users; `None`: [`crate::DEFAULT_PROCESSES`].
    pub processes: Option<u32>,
    /// The container may only write to volumes, `/tmp` and `/dev/shm`.
    pub read_only: bool,
    /// The jail was moved into its own control group (v2). The container sees it, read-only,
    /// because programs read their limits there.
    pub own_group: bool,
    /// Maximum number of bytes that the container may write to its root. They are in memory, and
    /// count against the container's limit on memory.
    pub writable: u64,
}

impl Default for Container {
    fn default() -> Self {
        Self {
            namespace: String::new(),
            image: Image::default(),
            command: None,
            args: None,
            directory: None,
            user: None,
            environment: BTreeMap::new(),
            hostname: String::new(),
            visible: Vec::new(),
            secrets: Vec::new(),
            volumes: Vec::new(),
            folders: Vec::new(),
            host: Vec::new(),
            descriptors: None,
            processes: None,
            read_only: false,
            own_group: false,
            writable: DEFAULT_WRITABLE,
        }
    }
}

/// A container, divided into the part that the jail receives and the part that the node mounts for
/// it.
pub(crate) struct ContainerPlan {
    pub task: ContainerTask,
    layers: Vec<PathBuf>,
    host: Vec<HostFolder>,
    writable: u64,
}

impl ContainerPlan {
    /// Checks a container.
    pub(crate) fn new(container: Container) -> io::Result<Self> {
        let Container { image, secrets, descriptors, hostname, read_only, own_group, writable, .. } = &container;
        if image.layers.is_empty() || image.layers.len() > MOST_LAYERS {
            return Err(bad(format!("an image has 1 to {MOST_LAYERS} layers, not {}", image.layers.len())));
        }
        let directory = container.directory.clone().unwrap_or_else(|| image.directory.clone().into());
        let directory = if directory == Path::new("") { PathBuf::from("/") } else { directory };
        plain(&directory)?;
        let shown = container.visible.len() + container.folders.len() + container.host.len();
        if shown + OTHER_DESCRIPTORS > MOST_DESCRIPTORS {
            return Err(bad(format!("a jail shows at most {} paths", MOST_DESCRIPTORS - OTHER_DESCRIPTORS)));
        }
        let folders = container.folders.iter().map(|folder| &folder.path);
        for path in container.visible.iter().chain(folders).chain(container.host.iter().map(|folder| &folder.path)) {
            separate(path)?;
        }
        let task = ContainerTask {
            argv: argv(&container)?,
            directory,
            user: container.user.clone().unwrap_or_else(|| image.user.clone()),
            environment: environment(&container)?,
            hostname: hostname.clone(),
            visible: container.visible.clone(),
            volumes: with_tmp(&container.volumes)?,
            folders: container.folders.iter().map(|folder| folder.path.clone()).collect(),
            secrets: secrets.clone(),
            descriptors: *descriptors,
            processes: container.processes,
            read_only: *read_only,
            own_group: *own_group,
            stop_signal: signal(&image.stop_signal)?,
        };
        let (layers, host) = (image.layers.clone(), container.host.clone());
        Ok(Self { task, layers, host, writable: *writable })
    }

    /// Mounts the root. Blocks. `users` and `owner`: see [`Root`].
    pub(crate) fn mount(&self, users: OwnedFd, owner: u32) -> io::Result<OwnedFd> {
        Root { layers: self.layers.clone(), users, owner, writable: self.writable }.mount()
    }

    /// The mounts in the order in which the jail expects them: those of folders that the container
    /// may write to come last.
    pub(crate) fn arranged(
        &mut self,
        root: OwnedFd,
        mut shown: Vec<OwnedFd>,
        mut folders: Vec<OwnedFd>,
        host: Vec<OwnedFd>,
    ) -> Vec<OwnedFd> {
        for (HostFolder { path, writable, .. }, mount) in self.host.drain(..).zip(host) {
            let (paths, mounts) = match writable {
                true => (&mut self.task.folders, &mut folders),
                false => (&mut self.task.visible, &mut shown),
            };
            paths.push(path);
            mounts.push(mount);
        }
        std::iter::once(root).chain(shown).chain(folders).collect()
    }

    /// The machine's IDs of the user that is to own the files of `host`: the container's first one,
    /// which its image may name. `root`: see [`ContainerPlan::mount`]; `owner`: the machine's ID of
    /// the container's root user.
    pub(crate) fn user(&self, root: &OwnedFd, owner: u32) -> io::Result<Owner> {
        if self.host.is_empty() {
            return Ok(Owner { user: owner, group: owner });
        }
        let User { user, group, .. } = user::find(root.as_fd(), &self.task.user)?;
        Ok(Owner { user: owner + user, group: owner + group })
    }
}

/// Mounts paths of the machine for a container whose root user has the machine ID `owner`. Blocks
/// as long as the file systems of the paths do, on a thread that ends afterwards.
pub(crate) fn shown(paths: &[PathBuf], owner: u32) -> io::Result<Vec<OwnedFd>> {
    shown::take_rights(owner)?;
    let resolve = |path: &PathBuf| {
        let real = shown::resolved(path)?;
        let reason = "a container has the files of its image there";
        shown::check_settings(path, &real, |_| Some(reason.to_owned()))?;
        Ok(real)
    };
    let real = paths.iter().map(resolve).collect::<io::Result<Vec<_>>>()?;
    shown::mounts(Path::new("/"), &real)
}

/// Mounts folders that a program can write to, attached nowhere. `users` is the jail's user
/// namespace: it maps the owners.
pub(crate) fn folders(folders: &[WritableFolder], users: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mount = |WritableFolder { source, .. }: &WritableFolder| {
        view::folder(source, Some(users)).map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::EINVAL) => "; its file system has no idmapped mounts (ext4, xfs, btrfs and others have)",
                _ => "",
            };
            io::Error::new(error.kind(), format!("{}: {error}{hint}", source.display()))
        })
    };
    folders.iter().map(mount).collect()
}

fn argv(Container { image, command, args, .. }: &Container) -> io::Result<Vec<String>> {
    let (first, then) = match (command, args) {
        (Some(command), args) => (command, args.as_deref().unwrap_or_default()),
        (None, args) => (&image.entrypoint, args.as_deref().unwrap_or(&image.command)),
    };
    let argv: Vec<String> = first.iter().chain(then).cloned().collect();
    if argv.first().is_none_or(String::is_empty) {
        return Err(bad("the image names no program (Entrypoint, Cmd); give a `command`".to_owned()));
    }
    match argv.iter().find(|argument| argument.contains('\0')) {
        Some(argument) => Err(bad(format!("the command: {argument:?} has a zero byte"))),
        None => Ok(argv),
    }
}

fn environment(Container { image, environment: own, .. }: &Container) -> io::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
    // A program could not find an entry that is not `NAME=value`.
    all.extend(
        image
            .environment
            .iter()
            .filter_map(|entry| entry.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    all.extend(own.clone());
    match all.iter().find(|(name, value)| name.is_empty() || name.contains(['\0', '=']) || value.contains('\0')) {
        // A value may be a secret.
        Some((name, _)) => Err(bad(format!(
            "the environment variable {name:?} cannot be set: an empty name, `=` in it, or a zero byte"
        ))),
        None => Ok(all),
    }
}

/// The folders in memory of a container: `/tmp` is always one.
fn with_tmp(wanted: &[Volume]) -> io::Result<Vec<(PathBuf, u64)>> {
    let tmp = Volume { path: "/tmp".into(), size: DEFAULT_WRITABLE };
    let all: Vec<Volume> = std::iter::once(tmp).chain(wanted.iter().cloned()).collect();
    volumes(&all)
}

/// Paths and sizes of folders in memory. Of two at one path, the last one counts.
pub(crate) fn volumes(wanted: &[Volume]) -> io::Result<Vec<(PathBuf, u64)>> {
    if wanted.len() > MOST_VOLUMES + 1 {
        return Err(bad(format!("there are at most {MOST_VOLUMES} volumes, not {}", wanted.len())));
    }
    let mut all = BTreeMap::new();
    for Volume { path, size } in wanted {
        separate(path)?;
        if *size == 0 {
            return Err(bad(format!("the volume {} has no size", path.display())));
        }
        all.insert(path.clone(), *size);
    }
    // The outer ones first: an inner one is mounted in them.
    Ok(all.into_iter().collect())
}

/// Fails if the container may not have a mount at a path: at its root, or in the jail's own
/// folders.
fn separate(path: &Path) -> io::Result<()> {
    plain(path)?;
    let reserved = OWN.iter().chain([&SECRETS]).find(|reserved| path.starts_with(reserved));
    match reserved {
        _ if path == Path::new("/") => Err(bad("`/` is the jail's root".to_owned())),
        Some(reserved) => Err(bad(format!("{}: a jail has its own {reserved}", path.display()))),
        None => Ok(()),
    }
}

fn plain(path: &Path) -> io::Result<()> {
    let up = path.components().any(|part| part == Component::ParentDir);
    let text = path.to_str().filter(|text| !text.contains('\0'));
    if path.is_absolute() && !up && text.is_some() {
        Ok(())
    } else {
        Err(bad(format!("{}: give an absolute path without `..`", path.display())))
    }
}

/// The number of a signal. `RTMIN` is the C library's, as images mean it.
fn signal(text: &str) -> io::Result<i32> {
    let unknown =
        || bad(format!("the image's StopSignal `{text}` is no signal; it would be such as SIGTERM, QUIT or 3"));
    if text.is_empty() {
        return Ok(libc::SIGTERM);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    let real_time = |text: &str, sign: char| match text {
        "" => Some(0),
        text => text
            .strip_prefix(sign)
            .and_then(|number| number.parse::<i32>().ok())
            .filter(|number| (0..64).contains(number)),
    };
    let number = if let Ok(number) = name.parse::<i32>() {
        Some(number)
    } else if let Some(more) = name.strip_prefix("RTMIN") {
        real_time(more, '+').map(|more| first + more)
    } else if let Some(less) = name.strip_prefix("RTMAX") {
        real_time(less, '-').map(|less| last - less)
    } else {
        format!("SIG{name}").parse::<Signal>().ok().map(|signal| signal as i32)
    };
    number.filter(|number| (1..32).contains(number) || (first..=last).contains(number)).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn container(entrypoint: &str, command: &str) -> Container {
        let image = Image {
            layers: vec!["/".into()],
            entrypoint: words(entrypoint),
            command: words(command),
            ..Image::default()
        };
        Container { image, ..Container::default() }
    }

    fn refusal(container: Container) -> String {
        ContainerPlan::new(container).err().unwrap().to_string()
    }

    #[test]
    fn command_and_args_replace_what_the_image_has() {
        let argv = |command: Option<&str>, args: Option<&str>| {
            let container =
                Container { command: command.map(words), args: args.map(words), ..container("entry", "one two") };
            super::argv(&container).unwrap().join(" ")
        };
        assert_eq!(argv(None, None), "entry one two");
        assert_eq!(argv(None, Some("three")), "entry three");
        assert_eq!(argv(Some("other"), None), "other", "the image's command belongs to its entrypoint");
        assert_eq!(argv(Some("other"), Some("three")), "other three");
        assert!(refusal(container("", "")).contains("give a `command`"));
    }

    #[test]
    fn the_functions_variables_win() {
        let mut container = container("entry", "");
        container.image.environment = words("A=image B=image nonsense");
        container.environment = BTreeMap::from([("B".to_owned(), "own".to_owned())]);
        let all = environment(&container).unwrap();
        let expected = [("A", "image"), ("B", "own"), ("PATH", PATH)];
        assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        container.environment.insert("BAD".to_owned(), "secret\0".to_owned());
        let error = refusal(container);
        assert!(error.contains("BAD") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("", 15), ("SIGQUIT", 3), ("quit", 3), ("2", 2), ("SIGRTMIN+3", 37), ("RTMAX-1", 63)] {
            assert_eq!(signal(text).unwrap(), number, "{text}");
        }
        for text in ["SIGNOTHING", "0", "32", "65", "-1", "RTMIN+99", "RTMIN-1"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let volume =
            |path: &str, size| Container { volumes: vec![Volume { path: path.into(), size }], ..container("a", "") };
        assert!(refusal(volume("/proc/x", 1)).contains("its own /proc"));
        assert!(refusal(volume("/run/secrets", 1)).contains("its own /run/secrets"));
        assert!(refusal(volume("/", 1)).contains("root"));
        assert!(refusal(volume("data", 1)).contains("absolute"));
        assert!(refusal(volume("/a/../b", 1)).contains("absolute"));
        assert!(refusal(volume("/data", 0)).contains("no size"));
        let layers = vec![PathBuf::from("/"); MOST_LAYERS + 1];
        let image = Image { layers, ..Image::default() };
        assert!(refusal(Container { image, ..container("a", "") }).contains("1 to 500 layers, not 501"));
    }
}
