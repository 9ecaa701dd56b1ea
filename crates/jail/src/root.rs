//! The root of a container, as its jail's first process sets it up.
//!
//! The image is not trusted: its folders may be links. So the first process makes the image's root
//! its own before it mounts anything there, and lets go of the tree that the jail had before. It
//! takes everything that it mounts out of that tree ahead, as mounts that are attached nowhere.
//! From then on no path leads out of the image's root, and none may pass a link of `/proc` to an
//! open file.

use crate::view::{self, At, READ_ONLY};
use crate::wire::ContainerTask;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, readlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, mount_bind, move_mount, open_tree, unmount,
};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Where the jail's own tree has the image's root and the container's secrets, before the image's
/// root is the only one.
const ROOT: &str = "/.root";
const SECRETS: &str = "/.secrets";
/// The control groups, in the jail's tree and in the container.
const GROUPS: &str = "/sys/fs/cgroup";
/// Files that the jail has in place of the image's.
const OWN_FILES: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
/// Settings of the machine, which their owner may change: the container's root user owns those of
/// the jail's network.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// Paths that reveal properties of the machine that do not concern a container.
const MASKED_PATHS: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
];
/// The kernel gives a path up that leads upwards if another process of the machine mounts or
/// renames something meanwhile. Maximum number of tries.
const MAX_TRIES: usize = 1000;

/// Makes the jail's `/proc` and `/sys` those of a container, ahead of need.
pub(crate) fn prepare() -> io::Result<()> {
    DirBuilder::new().recursive(true).create(GROUPS).at(GROUPS)?;
    for path in MASKED_PATHS {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(metadata) if metadata.is_dir() => {
                let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
                mount("tmpfs", path, "tmpfs", flags, Some(c"size=0k,nr_inodes=1")).map_err(io::Error::from)
            }
            Ok(_) => mount_bind("/dev/null", path).map_err(io::Error::from),
        }
        .at(path)?;
    }
    for path in READ_ONLY_PATHS {
        match mount_bind(path, path) {
            Err(Errno::NOENT) => {}
            bound => {
                bound.at(path)?;
                view::set_attributes(CWD, Path::new(path), libc::MOUNT_ATTR_RDONLY, false).at(path)?;
            }
        }
    }
    Ok(())
}

/// Makes the image's root the only tree of this process, with the container's mounts in it.
/// `mounts`: the root, the visible paths and the folders of the machine.
pub(crate) fn enter(task: &ContainerTask, mounts: Vec<OwnedFd>) -> io::Result<()> {
    let mut given = mounts.into_iter();
    let root = given.next().ok_or(io::ErrorKind::InvalidData)?;
    if given.len() != task.visible.len() + task.folders.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    view::name_host(&task.hostname)?;
    let mounts = sources(task, given)?;
    replace_root(&root)?;
    drop(root);
    let root = here()?;
    for (path, mount) in &mounts {
        place(root.as_fd(), path, mount).at(path.display())?;
    }
    folder(root.as_fd(), &task.directory).at(task.directory.display())?;
    if task.read_only {
        // Other attributes stay.
        view::set_attributes(CWD, Path::new("/"), libc::MOUNT_ATTR_RDONLY, false).at("/")?;
    }
    Ok(())
}

/// The root of this process.
pub(crate) fn here() -> io::Result<OwnedFd> {
    rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).at("/")
}

/// Opens a path below a root, which links cannot leave.
pub(crate) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..MAX_TRIES {
        match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// The mounts of the container, attached nowhere, in the order in which they are attached, and the
/// paths to which.
fn sources(task: &ContainerTask, given: impl Iterator<Item = OwnedFd>) -> io::Result<Vec<(PathBuf, OwnedFd)>> {
    if task.own_group {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
        mount("cgroup2", GROUPS, "cgroup2", flags, None).at("cgroup v2")?;
    }
    let own = |path: &str, attributes: u64, recursive: bool| {
        let mount = copy(Path::new(path), attributes, recursive).at(path)?;
        Ok::<_, io::Error>((PathBuf::from(path), mount))
    };
    let mut mounts = vec![
        own("/proc", 0, true)?,
        // With devices, and writable ones below it: /dev/shm.
        own("/dev", libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID, true)?,
        own("/sys", READ_ONLY, true)?,
    ];
    for (path, size) in &task.volumes {
        mounts.push((path.clone(), in_memory(*size).at(path.display())?));
    }
    mounts.extend(task.visible.iter().chain(&task.folders).cloned().zip(given));
    // The last ones, so that no other mount hides them.
    if !task.secrets.is_empty() {
        write_secrets(&task.secrets)?;
        mounts.push((PathBuf::from(crate::SECRETS), copy(Path::new(SECRETS), READ_ONLY, false).at(crate::SECRETS)?));
    }
    for file in OWN_FILES {
        mounts.push(own(file, READ_ONLY, false)?);
    }
    Ok(mounts)
}

/// A copy of the mount at a path of this tree, which has these attributes besides. `recursive`:
/// with the mounts in it, as they are.
fn copy(path: &Path, attributes: u64, recursive: bool) -> io::Result<OwnedFd> {
    let below = if recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    let mount = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | below)?;
    if attributes != 0 {
        view::set_attributes(mount.as_fd(), Path::new(""), attributes, false)?;
    }
    Ok(mount)
}

/// A folder in memory that every user of the container may write to.
fn in_memory(size: u64) -> io::Result<OwnedFd> {
    let memory = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(memory.as_fd(), "source", "tmpfs")?;
    for option in view::volume_options(size) {
        if let Some((name, value)) = option.split_once('=') {
            fsconfig_set_string(memory.as_fd(), name, value)?;
        }
    }
    fsconfig_create(memory.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(memory.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// The users of a container trust each other, and only its program knows which of them needs a
/// secret.
fn write_secrets(secrets: &[(String, Vec<u8>)]) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(SECRETS).at(crate::SECRETS)?;
    for (name, contents) in secrets {
        let path = Path::new(SECRETS).join(name);
        let mut file = File::options().write(true).create_new(true).mode(0o444).open(&path).at(name)?;
        io::Write::write_all(&mut file, contents).at(name)?;
    }
    Ok(())
}

/// Makes a mount this process's root, and unmounts the tree that it had.
fn replace_root(root: &OwnedFd) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(ROOT).at("/")?;
    move_mount(root, "", CWD, ROOT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at("the image's root")?;
    rustix::process::chdir(ROOT).at("the image's root")?;
    // The old root is put above the new one, so `.` is the old one until it is unmounted.
    rustix::process::pivot_root(".", ".").at("the image's root")?;
    unmount(".", UnmountFlags::DETACH).at("the jail's files")?;
    rustix::process::chdir("/").at("/")
}

/// Attaches a mount to a path, which is created if it is missing.
fn place(root: BorrowedFd<'_>, path: &Path, mount: &OwnedFd) -> io::Result<()> {
    let is_folder = FileType::from_raw_mode(fstat(mount)?.st_mode).is_dir();
    let at = if is_folder { folder(root, path)? } else { file(root, path)? };
    let (at_stat, root_stat) = (fstat(&at)?, fstat(root)?);
    if (at_stat.st_dev, at_stat.st_ino) == (root_stat.st_dev, root_stat.st_ino) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "in the image it leads to the root"));
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", &at, "", flags)?)
}

/// Opens a folder, and makes it if it is missing.
fn folder(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match open(root, path, flags) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let (mut so_far, mut folder) = (PathBuf::from("/"), open(root, Path::new("/"), flags)?);
    for name in path.components().filter(|part| matches!(part, Component::Normal(_))) {
        so_far.push(name);
        folder = match open(root, &so_far, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // This fails at a link that leads nowhere.
                mkdirat(&folder, name.as_os_str(), Mode::from_raw_mode(0o755)).at(so_far.display())?;
                open(root, &so_far, flags)?
            }
            opened => opened.at(so_far.display())?,
        };
    }
    Ok(folder)
}

/// Opens a file, and makes it if it is missing or a link.
fn file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let name = path.file_name().unwrap_or(OsStr::new("."));
    let folder = folder(root, path.parent().unwrap_or(Path::new("/")))?;
    if readlinkat(&folder, name, Vec::new()).is_ok() {
        unlinkat(&folder, name, AtFlags::empty())?;
    }
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&folder, name, flags | OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let mode = Mode::from_raw_mode(0o644);
    Ok(openat(&folder, name, flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?)
}
