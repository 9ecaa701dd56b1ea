//! The file system of a jail: the programs and libraries of the machine, the function's folder, and
//! the paths that the function's definition names, all read-only; and a private `/tmp`. The program
//! cannot name any other file of the machine.
//!
//! The base is created ahead of need. Where the node cannot make the mounts of a function's own
//! paths ([`tree`]), the machine's tree stays under [`HOST`] until the function is known.

use crate::wire::{Kind, Task};
use rustix::fs::{CWD, FileType, RawMode};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::mount::{mount, mount_bind_recursive, mount_change, move_mount, open_tree, unmount};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// The mount point of the machine's tree while the jail is created.
pub(crate) const HOST: &str = "/.host";
/// An empty folder, which overlayfs needs while the jail is created.
const NOTHING: &str = "/.nothing";
/// Largest settings file of the machine that a jail copies.
const LARGEST_COPY: u64 = 1 << 20;
/// The machine's programs and libraries. A symbolic link on the machine is one in the jail, too.
pub(crate) const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// The machine's settings that programs need; `*` stands for the rest of a name. None of them
/// reveals the machine's users, network or secrets. Of PHP's, pools are left out: they may hold
/// secrets.
const SETTINGS: [&str; 29] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/dotnet",
    "/etc/fonts",
    "/etc/ImageMagick-*",
    "/etc/java*",
    "/etc/jvm*",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/mono",
    "/etc/perl",
    "/etc/php/*/cgi",
    "/etc/php/*/cli",
    "/etc/php/*/fpm/conf.d",
    "/etc/php/*/fpm/php.ini",
    "/etc/php/*/mods-available",
    "/etc/php.d",
    "/etc/php.ini",
    "/etc/pki",
    "/etc/protocols",
    "/etc/python3*",
    "/etc/R",
    "/etc/services",
    "/etc/ssl",
    "/var/lib/gems",
];
/// Settings that differ from the machine's. Only the first user exists. Servers look up the names of
/// the others, even if they do not change to them.
const OWN: [(&str, &str); 6] = [
    (
        "/etc/passwd",
        "leno:x:1000:1000::/tmp:/bin/sh\nroot:x:0:0::/root:/usr/sbin/nologin\ndaemon:x:1:1::/usr/sbin:/usr/sbin/nologin\n\
         www-data:x:33:33::/var/www:/usr/sbin/nologin\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n",
    ),
    ("/etc/group", "leno:x:1000:\nroot:x:0:\ndaemon:x:1:\nwww-data:x:33:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:2\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("/etc/host.conf", "multi on\n"),
];
const DEVICES: [&str; 5] = ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
const LINKS: [(&str, &str); 7] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/var/lock", "/run/lock"),
    ("/var/run", "/run"),
    ("/var/tmp", "/tmp"),
];
/// Mount attributes of the machine's files in a jail.
pub(crate) const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
/// Size that suffices for folders, links, the files of [`OWN`], and secrets.
const ROOT_SIZE: &CStr = c"mode=755,size=16m";
/// Limits on an instance's writes to `/tmp` and to `/dev/shm`, each.
const SCRATCH_SIZE: &CStr = c"mode=1777,size=64m,nr_inodes=16384";

/// Makes the base of a new tree, and makes it this process's root. `keeps_host`: the node will make
/// no mounts. Returns why files of the machine are the same as other jails', if they are. A container
/// has its image in place of the machine's programs and settings.
pub(crate) fn prepare(kind: Kind, keeps_host: bool) -> io::Result<Option<String>> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).at("/")?;
    // The new root is mounted over a folder that every machine has. When it becomes the root, it uncovers that folder.
    temporary("/tmp", ROOT_SIZE)?;
    let host = format!("/tmp{HOST}");
    DirBuilder::new().mode(0o700).create(&host).at(&host)?;
    rustix::process::pivot_root("/tmp", &host).at("the new root")?;
    rustix::process::chdir("/").at("/")?;

    for folder in ["/dev/shm", "/etc", "/proc", "/run", "/tmp", "/var"] {
        DirBuilder::new().recursive(true).create(folder).at(folder)?;
    }
    DirBuilder::new().mode(0o700).create(NOTHING).at(NOTHING)?;
    let mut shared = None;
    if kind == Kind::Process {
        let programs = PROGRAMS.into_iter().map(PathBuf::from);
        for path in programs.chain(SETTINGS.into_iter().flat_map(matching)) {
            shared = show_own(&path)?.or(shared);
        }
    }
    fs::remove_dir(NOTHING).at(NOTHING)?;
    for (file, text) in OWN {
        fs::write(file, text).at(file)?;
    }
    for device in DEVICES {
        bind(&on_host(Path::new(device)), Path::new(device)).at(device)?;
    }
    for (link, to) in LINKS {
        symlink(to, link).at(link)?;
    }
    temporary("/tmp", SCRATCH_SIZE)?;
    temporary("/dev/shm", SCRATCH_SIZE)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).at("/proc")?;
    if !keeps_host {
        let_go()?;
    }
    Ok(shared)
}

/// Shows a file or a folder of the machine's programs or settings, with inodes of this jail, so
/// that locks and watches on them are the jail's. If that is not possible, shows the machine's
/// inodes, and returns the reason: such as a file system that is mounted below.
fn show_own(path: &Path) -> io::Result<Option<String>> {
    let from = on_host(path);
    let own = match fs::symlink_metadata(&from) {
        Ok(metadata) if metadata.is_dir() => own_folder(&from, path),
        Ok(metadata) if metadata.is_file() && metadata.len() > LARGEST_COPY => Err(io::ErrorKind::FileTooLarge.into()),
        Ok(metadata) if metadata.is_file() => parent(path).and_then(|()| fs::copy(&from, path)).map(drop),
        _ => return show(path, path).map(|()| None),
    };
    let Err(error) = own else { return Ok(None) };
    show(path, path)?;
    Ok(Some(format!("{}: {error}", path.display())))
}

/// Overlayfs gives each file a new inode. The contents are the same memory for all jails.
fn own_folder(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(to)?;
    let layers = CString::new(format!("lowerdir={}:{NOTHING}", from.display()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    Ok(mount("overlay", to, "overlay", flags, Some(layers.as_c_str()))?)
}

/// Unmounts the machine's tree.
fn let_go() -> io::Result<()> {
    unmount(HOST, UnmountFlags::DETACH).at(HOST)?;
    fs::remove_dir(HOST).at(HOST)
}

/// The folder in which a program starts that has no folder of the machine. It is empty at first, and
/// the jail's.
pub(crate) const EMPTY: &str = "/tmp";

/// Makes the jail's host name resolve. Otherwise `getaddrinfo` asks the node for it, which knows the
/// names of callees only.
pub(crate) fn name_host(hostname: &str) -> io::Result<()> {
    let hosts = format!("127.0.0.1 localhost {hostname}\n::1 localhost\n");
    fs::write("/etc/hosts", hosts).at("/etc/hosts")?;
    fs::write("/etc/hostname", format!("{hostname}\n")).at("/etc/hostname")
}

/// Shows the function's own paths. From here on the root is read-only. `mounts` are the mounts of
/// the visible paths, from [`tree`], and then those of the folders. If the machine's tree is still
/// there, it is unmounted now.
pub(crate) fn complete(task: &Task, mounts: &[OwnedFd], keeps_host: bool) -> io::Result<()> {
    let Task { visible, links, volumes, folders, secrets, .. } = task;
    if mounts.len() != visible.len() + folders.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (shown, writable) = mounts.split_at(visible.len());
    for ((_, in_jail), mount) in visible.iter().zip(shown) {
        attach(mount, in_jail).at(in_jail.display())?;
    }
    for ((_, in_jail), mount) in folders.iter().zip(writable) {
        make_folder(in_jail)?;
        attach(mount, in_jail).at(in_jail.display())?;
    }
    for (path, size) in volumes {
        make_folder(path)?;
        let options = CString::new(volume_options(*size).join(","))?;
        temporary(path, &options).at(path.display())?;
    }
    for (link, target) in links {
        parent(link).and_then(|()| symlink(target, link)).at(link.display())?;
    }
    if !secrets.is_empty() {
        DirBuilder::new().mode(0o700).create(crate::SECRETS).at(crate::SECRETS)?;
    }
    for (name, contents) in secrets {
        let path = Path::new(crate::SECRETS).join(name);
        let mut file = File::options().write(true).create_new(true).mode(0o400).open(&path).at(name)?;
        io::Write::write_all(&mut file, contents).at(name)?;
    }
    if keeps_host {
        let_go()?;
    }
    set_attributes(CWD, Path::new("/"), libc::MOUNT_ATTR_RDONLY, false).at("/")
}

/// Shows a file or a folder of the machine, with all mounts in it. Does nothing if the machine does
/// not have it.
fn show(on_machine: &Path, in_jail: &Path) -> io::Result<()> {
    let from = on_host(on_machine);
    match fs::symlink_metadata(&from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).at(on_machine.display()),
        Ok(metadata) if metadata.is_symlink() => {
            parent(in_jail)?;
            fs::read_link(&from).and_then(|to| symlink(to, in_jail)).at(on_machine.display())
        }
        Ok(_) => {
            bind(&from, in_jail).at(on_machine.display())?;
            set_attributes(CWD, in_jail, READ_ONLY, true).at(on_machine.display())
        }
    }
}

/// Resolves a path of the machine.
pub(crate) fn real(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Makes a read-only mount of a file or a folder that is attached nowhere.
pub(crate) fn tree(found: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let mount = open_tree(found, "", flags | OpenTreeFlags::AT_EMPTY_PATH)?;
    set_attributes(mount.as_fd(), Path::new(""), READ_ONLY, true)?;
    Ok(mount)
}

/// Makes a mount of a folder that the program can write to, attached nowhere. `users` is a user
/// namespace that maps the owners; `None`: the only user of the jail is the node's account.
pub(crate) fn folder(path: &Path, users: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, path, flags | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    match users {
        Some(users) => set_attributes_mapped(mount.as_fd(), attributes, users)?,
        None => set_attributes(mount.as_fd(), Path::new(""), attributes, false)?,
    }
    Ok(mount)
}

/// Makes a mount of an open folder whose owner `users` maps, attached nowhere.
pub(crate) fn host_folder(found: BorrowedFd<'_>, users: BorrowedFd<'_>, writable: bool) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(found, "", flags | OpenTreeFlags::AT_EMPTY_PATH)?;
    let read_only = if writable { 0 } else { libc::MOUNT_ATTR_RDONLY };
    set_attributes_mapped(mount.as_fd(), libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | read_only, users)?;
    Ok(mount)
}

/// The location of a folder of the machine while the jail is created, as [`folder`] mounts it.
pub(crate) fn folder_on_host(path: &Path) -> io::Result<OwnedFd> {
    folder(&on_host(path), None).at(path.display())
}

fn attach(mount: &OwnedFd, to: &Path) -> io::Result<()> {
    place(to, rustix::fs::fstat(mount)?.st_mode)?;
    Ok(move_mount(mount, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    place(to, rustix::fs::stat(from)?.st_mode)?;
    Ok(mount_bind_recursive(from, to)?)
}

/// Makes a file or a folder of that mode as a mount point.
fn place(path: &Path, mode: RawMode) -> io::Result<()> {
    if FileType::from_raw_mode(mode).is_dir() {
        return DirBuilder::new().recursive(true).create(path);
    }
    parent(path)?;
    File::create(path).map(drop)
}

fn parent(of: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(of.parent().unwrap_or(of))
}

fn temporary(place: impl AsRef<Path>, options: &CStr) -> io::Result<()> {
    let place = place.as_ref();
    mount("tmpfs", place, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options)).at(place.display())
}

/// Makes a folder for a volume.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(path).map_err(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            let text =
                format!("the volume {}: make an empty folder there, which the jail shows read-only", path.display());
            io::Error::new(error.kind(), text)
        }
        kind => io::Error::new(kind, format!("the volume {}: {error}", path.display())),
    })
}

/// Mount options of a folder in memory that every user of the jail may write to.
pub(crate) fn volume_options(size: u64) -> [String; 3] {
    ["mode=1777".to_owned(), format!("size={size}"), format!("nr_inodes={}", (size / 4096).max(1024))]
}

/// The location of a path of the machine while the jail is created.
fn on_host(path: &Path) -> PathBuf {
    Path::new(HOST).join(path.strip_prefix("/").unwrap_or(path))
}

/// Adds attributes to a mount, or to all mounts below a path. Other attributes stay. A remount
/// would replace them, which a jail may not do to all mounts.
pub(crate) fn set_attributes(at: BorrowedFd<'_>, path: &Path, attributes: u64, recursive: bool) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    mount_setattr(at, path, &attributes, recursive)
}

/// Adds attributes to a mount that is attached nowhere, and has it show owners as a user namespace maps them.
pub(crate) fn set_attributes_mapped(mount: BorrowedFd<'_>, attributes: u64, users: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: attributes | libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::from(users.as_raw_fd().unsigned_abs()),
    };
    mount_setattr(mount, Path::new(""), &attributes, false)
}

fn mount_setattr(at: BorrowedFd<'_>, path: &Path, attributes: &libc::mount_attr, recursive: bool) -> io::Result<()> {
    const AT_RECURSIVE: libc::c_int = 0x8000;
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let flags = if recursive { AT_RECURSIVE | libc::AT_EMPTY_PATH } else { libc::AT_EMPTY_PATH };
    // SAFETY: the path ends with a zero, and the kernel reads `attributes` only, of the size given.
    #[expect(unsafe_code, reason = "no library has this call yet")]
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the base of every jail shows a path already.
pub(crate) fn shows(path: &Path) -> bool {
    PROGRAMS.iter().any(|program| path.starts_with(program))
}

/// Whether a path is one of the machine's settings that every jail shows.
pub(crate) fn is_setting(path: &Path) -> bool {
    SETTINGS.iter().any(|setting| {
        let mut parts = path.components();
        Path::new(setting)
            .components()
            .all(|wanted| parts.next().is_some_and(|part| fits(wanted.as_os_str(), part.as_os_str())))
    })
}

/// Whether a name is one that a part of [`SETTINGS`] stands for.
fn fits(wanted: &OsStr, name: &OsStr) -> bool {
    match wanted.as_bytes().strip_suffix(b"*") {
        Some(prefix) => name.as_bytes().starts_with(prefix),
        None => name == wanted,
    }
}

/// The paths of the machine that one of [`SETTINGS`] stands for.
fn matching(setting: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for wanted in Path::new(setting).components().skip(1).map(|part| part.as_os_str()) {
        if !wanted.as_bytes().ends_with(b"*") {
            found.iter_mut().for_each(|path| path.push(wanted));
            continue;
        }
        let inside = |path: &PathBuf| {
            let entries = fs::read_dir(on_host(path)).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name()).filter(|name| fits(wanted, name));
            names.map(|name| path.join(name)).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(inside).collect();
    }
    found
}

/// Adds the path to an error.
pub(crate) trait At<T> {
    fn at(self, place: impl std::fmt::Display) -> io::Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, place: impl std::fmt::Display) -> io::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            io::Error::new(error.kind(), format!("{place}: {error}"))
        })
    }
}
