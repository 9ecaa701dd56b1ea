//! Paths of the machine that a jail shows. The author of a document names them, and the node mounts
//! them with rights that the author does not have. So this module resolves and opens them with the
//! rights of the jail's account, judges the result, and mounts the very file that it has judged.

use crate::error::bad;
use crate::view;
use nix::unistd::{Gid as FsGid, Uid as FsUid, setfsgid, setfsuid};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Folders of the machine whose files no jail shows, even through a link.
const RESERVED: [&str; 6] = ["/proc", "/dev", "/sys", "/run", "/etc", "/.host"];

/// Of `/etc`, the machine's own: users, names of hosts, and the keys of services. A document may name
/// other files there, such as `/etc/nginx`.
const PRIVATE_SETTINGS: [&str; 20] = [
    "/etc/group",
    "/etc/group-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/krb5.keytab",
    "/etc/leno",
    "/etc/machine-id",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/passwd-",
    "/etc/resolv.conf",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
];

/// Gives this thread an account's rights on files. It keeps its other rights, so it can still
/// mount. The thread has to end afterwards.
pub(crate) fn take_rights(account: u32) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    // The calls return the previous ID. The second call of each shows whether the first one had an
    // effect.
    let (user, group) = (FsUid::from_raw(account), FsGid::from_raw(account));
    setfsgid(group);
    setfsuid(user);
    if setfsgid(group) == group && setfsuid(user) == user {
        Ok(())
    } else {
        Err(io::Error::other("the rights of the jail's account cannot be taken"))
    }
}

/// Resolves a path. Fails if jails may not show the file at its end.
pub(crate) fn resolved(path: &Path) -> io::Result<PathBuf> {
    let real = view::real(path).map_err(hinted)?;
    match unshowable(&real) {
        Some(reason) if real == path => Err(cannot(path, reason)),
        Some(reason) => Err(cannot(path, &format!("it leads to {}, and {reason}", real.display()))),
        None => Ok(real),
    }
}

/// Opens a path that [`resolved`] returned, for mounting. `root` is where paths of the machine begin.
///
/// # Errors
/// A component of the path has become a link, or this thread's account may not read the file, or it
/// is neither a file nor a folder.
pub(crate) fn open(root: BorrowedFd<'_>, real: &Path) -> io::Result<OwnedFd> {
    let explain = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        hinted(io::Error::new(error.kind(), format!("{}: {error}", real.display())))
    };
    let inside = real.strip_prefix("/").unwrap_or(real);
    let inside = if inside == Path::new("") { Path::new(".") } else { inside };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = openat2(root, inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).map_err(explain)?;
    let mode = fstat(&found).map_err(explain)?.st_mode;
    match FileType::from_raw_mode(mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(&found, ".", flags, Mode::empty()).map_err(explain)?;
        }
        // A program may be executable only, and not readable.
        FileType::RegularFile if mode & 0o001 != 0 => {}
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let path = format!("/proc/self/fd/{}", found.as_raw_fd());
            openat(CWD, path, flags, Mode::empty()).map_err(explain)?;
        }
        _ => return Err(cannot(real, "it is neither a file nor a folder")),
    }
    if leno_files::is_kernels(found.as_fd())? {
        return Err(cannot(real, "it is in a file system of the kernel's"));
    }
    Ok(found)
}

/// Fails if this thread's account may not show a path that [`resolved`] returned.
pub(crate) fn check(real: &Path) -> io::Result<()> {
    let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    open(root.as_fd(), real).map(drop)
}

/// Makes a read-only mount of each path, attached nowhere. `machine` is the root of the machine's
/// tree. Blocks as long as the file systems of the paths do.
pub(crate) fn mounts(machine: &Path, paths: &[PathBuf]) -> io::Result<Vec<OwnedFd>> {
    let root = openat(CWD, machine, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let table = if paths.is_empty() { String::new() } else { fs::read_to_string("/proc/thread-self/mountinfo")? };
    let mount = |path: &PathBuf| {
        let found = open(root.as_fd(), path)?;
        // Mounts inside a folder are shown with it.
        let here = machine.join(path.strip_prefix("/").unwrap_or(path));
        if let Some((kind, inner)) = kernel_mounts(&table).find(|(_, inner)| inner.starts_with(&here)) {
            return Err(cannot(path, &format!("{kind} is mounted at {} in it", inner.display())));
        }
        view::tree(found.as_fd()).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    paths.iter().map(mount).collect()
}

/// Kind and path of each mounted file system of the kernel.
fn kernel_mounts(table: &str) -> impl Iterator<Item = (&str, PathBuf)> {
    const KINDS: [&str; 18] = [
        "proc",
        "sysfs",
        "devpts",
        "devtmpfs",
        "cgroup",
        "cgroup2",
        "debugfs",
        "tracefs",
        "securityfs",
        "bpf",
        "configfs",
        "efivarfs",
        "pstore",
        "selinuxfs",
        "mqueue",
        "nsfs",
        "fusectl",
        "binfmt_misc",
    ];
    table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next().filter(|kind| KINDS.contains(kind))?;
        Some((kind, unescaped(before.split(' ').nth(4)?)))
    })
}

/// A path of a table of mounts, in which blanks, tabs, line ends and backslashes are octal.
fn unescaped(text: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    plain.iter().fold(text.to_owned(), |text, (octal, plain)| text.replace(octal, plain)).into()
}

/// Why no jail shows a path of the machine; `None`: by its name, one can.
pub(crate) fn unshowable(path: &Path) -> Option<&'static str> {
    let plain = path.is_absolute() && !path.components().any(|part| matches!(part, Component::ParentDir));
    if !plain {
        return Some("it is not an absolute path");
    }
    if path == Path::new("/") {
        return Some("that is all of the machine");
    }
    let is_in = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    let is_nameable = path.starts_with("/etc") && path != Path::new("/etc") && !is_in(&PRIVATE_SETTINGS);
    (is_in(&RESERVED) && !is_nameable && !view::is_setting(path)).then_some("a jail has a folder of its own there")
}

/// Fails for a path of `/etc`, but for the settings of every jail, that its document may not name.
/// `real` is the path to which its links lead, and `refusal` the reason for a path.
pub(crate) fn check_settings(path: &Path, real: &Path, refusal: impl Fn(&Path) -> Option<String>) -> io::Result<()> {
    let is_named = |path: &&Path| path.starts_with("/etc") && !view::is_setting(path);
    match [path, real].into_iter().filter(is_named).find_map(refusal) {
        Some(reason) => Err(cannot(path, &reason)),
        None => Ok(()),
    }
}

/// Adds a hint about the missing rights to an error.
fn hinted(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), format!("{error}; a jail shows what its own account may read"))
        }
        _ => error,
    }
}

fn cannot(path: &Path, reason: &str) -> io::Error {
    bad(format!("a jail cannot show {}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    fn root() -> OwnedFd {
        rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn what_a_link_leads_to_is_judged() {
        let folder = folder();
        for (target, reason) in [
            ("/", "all of the machine"),
            ("/proc", "folder of its own"),
            ("/proc/self/root", "all of the machine"),
            ("/etc/passwd", "folder of its own"),
            ("/run", "folder of its own"),
            ("/dev/shm", "folder of its own"),
        ] {
            let link = folder.path().join("link");
            symlink(target, &link).unwrap();
            let told = resolved(&link).unwrap_err().to_string();
            assert!(told.contains(reason) && told.contains("it leads to"), "{target}: {told}");
            fs::remove_file(link).unwrap();
        }
        assert_eq!(resolved(folder.path()).unwrap(), folder.path().canonicalize().unwrap());
    }

    #[test]
    fn settings_of_the_machine_are_shown_only_where_the_operator_permits_it() {
        let refused = |path: &str, real: &str| {
            check_settings(Path::new(path), Path::new(real), |_| Some("not listed".to_owned())).is_err()
        };
        assert!(refused("/etc/nginx", "/etc/nginx") && refused("/srv/shop/link", "/etc/nginx"));
        assert!(!refused("/etc/ssl", "/etc/ssl") && !refused("/srv/shop", "/srv/shop"));
        assert!(check_settings(Path::new("/etc/nginx"), Path::new("/etc/nginx"), |_| None).is_ok());
        for private in ["/etc", "/etc/shadow", "/etc/leno/node.token", "/etc/ssh/key"] {
            assert!(unshowable(Path::new(private)).is_some(), "{private}");
        }
    }

    #[test]
    fn a_link_that_comes_after_the_judgement_is_not_followed() {
        let folder = folder();
        let shown = folder.path().join("shown/inner");
        fs::create_dir_all(&shown).unwrap();
        let real = resolved(&shown).unwrap();
        assert!(open(root().as_fd(), &real).is_ok());
        for changed in [shown.clone(), folder.path().join("shown")] {
            fs::rename(&changed, folder.path().join("moved")).unwrap();
            symlink("/", &changed).unwrap();
            assert!(open(root().as_fd(), &real).is_err(), "{}", changed.display());
            fs::remove_file(&changed).unwrap();
            fs::rename(folder.path().join("moved"), &changed).unwrap();
        }
    }

    #[test]
    fn only_files_and_folders_are_shown() {
        let folder = folder();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let told = open(root().as_fd(), &socket).unwrap_err().to_string();
        assert!(told.contains("neither a file nor a folder"), "{told}");
        let told = open(root().as_fd(), Path::new("/proc/sys")).unwrap_err().to_string();
        assert!(told.contains("file system of the kernel"), "{told}");
    }

    #[test]
    fn mounts_of_the_kernel_are_found_by_their_place() {
        let table = "21 26 0:20 / /sys rw - sysfs sysfs rw\n98 26 0:21 / /srv/a\\040b/proc rw,nosuid shared:7 - proc proc rw\n\
                     99 26 8:1 / /srv rw - ext4 /dev/sda1 rw\n";
        let found: Vec<_> = kernel_mounts(table).collect();
        assert_eq!(found, [("sysfs", "/sys".into()), ("proc", PathBuf::from("/srv/a b/proc"))]);
    }

    #[test]
    fn others_closed_folders_are_not_opened_with_the_rights_of_the_node() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root has rights that a jail's account does not have");
            return;
        }
        let folder = folder();
        let home = folder.path().join("home");
        fs::create_dir_all(home.join("open")).unwrap();
        fs::write(home.join("open/file"), "x").unwrap();
        let try_all = |mode: u32| {
            fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
            let paths = [home.clone(), home.join("open"), home.join("open/file")];
            std::thread::spawn(move || {
                take_rights(0x7000_0001).unwrap();
                paths.map(|path| resolved(&path).and_then(|real| mounts(Path::new("/"), &[real])).is_ok())
            })
            .join()
            .unwrap()
        };
        assert_eq!(try_all(0o755), [true, true, true]);
        assert_eq!(try_all(0o711), [false, true, true], "it may be gone through, and not read");
        assert_eq!(try_all(0o700), [false, false, false]);
    }
}
