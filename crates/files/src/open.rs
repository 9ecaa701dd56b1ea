//! Opens and reads regular files.

use crate::FileAccess;
use crate::listed::open_listed;
use rustix::fs::{
    FileType, Mode, OFlags, ResolveFlags, fcntl_getfl, fcntl_setfl, fstat, fstatfs, open as open_path, openat2,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit of a read. Without it, a file system that answers byte by byte could hold a
/// thread for ever.
pub(crate) const MAX_READ_TIME: Duration = Duration::from_secs(5);
/// The kernel asks to resolve a path again if a folder on the way is renamed meanwhile.
const RESOLVE_TRIES: usize = 8;

/// File systems whose regular files the kernel or a driver generates during the read. Reading some
/// of them never ends or has effects (`/proc/kmsg`, `/sys/kernel/tracing/trace_pipe`), others show
/// the node's memory and environment. The numbers are the magic numbers of `statfs(2)`.
const KERNEL_FILE_SYSTEMS: [u64; 25] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x4249_4e4d, // binfmt_misc
    0x1cd1,      // devpts
    0x1980_0202, // mqueue
    0x6e73_6673, // nsfs
    0x6573_5543, // fusectl
    0x0904_1934, // anonymous inodes
    0x0765_5821, // resctrl
    0x6759_6969, // rpc_pipefs
    0x6e66_7364, // nfsd
    0xabba_1974, // xenfs
    0x9fa2,      // usbdevfs
    0x5345_434d, // secretmem
];

/// Opens a regular file for reading. Opening has no effect if the path names something else, such
/// as a device, a terminal, a FIFO, or a socket.
///
/// # Errors
/// If `access` does not admit the path, the path names no regular file, or opening fails. Blocks as
/// long as the file system does: see [`crate::readers`].
pub fn open(path: &Path, access: &FileAccess) -> io::Result<File> {
    let found = locate(path, access, OFlags::empty())?;
    check_regular(found.as_fd())?;
    Ok(File::from(reopen(found.as_fd())?))
}

/// Opens a folder, for [`rustix::fs::openat2`] and the like.
///
/// # Errors
/// As [`open`].
pub fn open_directory(path: &Path, access: &FileAccess) -> io::Result<OwnedFd> {
    locate(path, access, OFlags::DIRECTORY)
}

/// Opens one of the operator's logs for appending, and creates it with this mode if it does not
/// exist. A FIFO without a reader is an error: the open does not block until a reader comes.
///
/// # Errors
/// If it cannot be opened.
pub fn open_log(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
    let log = open_path(path, flags | OFlags::NONBLOCK, Mode::from_raw_mode(mode))?;
    fcntl_setfl(&log, fcntl_getfl(&log)?.difference(OFlags::NONBLOCK))?;
    Ok(File::from(log))
}

/// Reads a regular file.
///
/// # Errors
/// As [`open`]; also if the file holds more than `limit` bytes, or reading takes longer than 5 s and a second for each MiB of `limit`.
pub fn read(path: &Path, access: &FileAccess, limit: u64) -> io::Result<Vec<u8>> {
    contents(open(path, access)?, limit, Instant::now() + MAX_READ_TIME + Duration::from_secs(limit >> 20))
}

/// Opens a regular file in a folder. No link leads out of the folder.
///
/// # Errors
/// As [`open`].
pub fn open_in(folder: BorrowedFd<'_>, name: &Path) -> io::Result<File> {
    let found = resolve_beneath(folder, name, OFlags::PATH)?;
    check_regular(found.as_fd())?;
    Ok(File::from(reopen(found.as_fd())?))
}

fn contents(file: File, limit: u64, end: Instant) -> io::Result<Vec<u8>> {
    let large = || io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes"));
    let size = file.metadata()?.len();
    if size > limit {
        return Err(large());
    }
    let mut value = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    let (mut file, mut piece) = (file.take(limit + 1), vec![0; 64 << 10]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => value.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "reading it takes too long"));
        }
    }
    if value.len() as u64 > limit { Err(large()) } else { Ok(value) }
}

/// Finds a path without opening the file there.
fn locate(path: &Path, access: &FileAccess, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let FileAccess::Beneath(folders) = access else { return Ok(open_path(path, flags, Mode::empty())?) };
    let list: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let text = match &list[..] {
        [] => "no folder is permitted".to_owned(),
        list => format!("it is in none of the permitted folders ({})", list.join(", ")),
    };
    let mut found = Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    for (folder, rest) in FileAccess::holders(folders, path) {
        found = open_listed(folder).and_then(|folder| resolve_beneath(folder.as_fd(), rest, flags));
        if found.is_ok() {
            break;
        }
    }
    found
}

fn resolve_beneath(folder: BorrowedFd<'_>, rest: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0..RESOLVE_TRIES;
    loop {
        match openat2(folder, rest, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if tries.next().is_some() => {}
            Err(Errno::XDEV) => {
                let text = "a link leads out of the folders that may be named; links in them must be relative";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            found => return Ok(found?),
        }
    }
}

/// Fails unless reading the file ends and has no effects.
fn check_regular(found: BorrowedFd<'_>) -> io::Result<()> {
    let kind = match FileType::from_raw_mode(fstat(found)?.st_mode) {
        FileType::RegularFile if !is_kernels(found)? => return Ok(()),
        FileType::RegularFile => "made up by the kernel",
        FileType::Directory => "a folder",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink | FileType::Unknown => "no file",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}; expected a regular file")))
}

/// Whether a file or a folder is in a file system of the kernel, such as procfs.
///
/// # Errors
/// If the file system does not report its type.
pub fn is_kernels(found: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(KERNEL_FILE_SYSTEMS.contains(&(fstatfs(found)?.f_type as u64 & 0xffff_ffff)))
}

/// Opens a file that `locate` has found, even if its path leads to another one now.
fn reopen(found: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Without `NONBLOCK`, the open would wait for another process to release its lease.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(open_path(format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn refusal(path: &Path, access: &FileAccess) -> String {
        read(path, access, 100).unwrap_err().to_string()
    }

    #[test]
    fn special_files_are_refused_without_opening_them() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        symlink("/dev/ptmx", folder.path().join("link")).unwrap();
        symlink("loop", folder.path().join("loop")).unwrap();
        let own = |name: &str| folder.path().join(name);
        for (path, reason) in [
            (fifo.clone(), "a FIFO"),
            (own("socket"), "a socket"),
            (own("link"), "a device"),
            (own("loop"), "symbolic links"),
            (own(""), "a folder"),
            ("/dev/ptmx".into(), "a device"),
            ("/dev/zero".into(), "a device"),
            ("/dev/tty".into(), "a device"),
            ("/proc/kmsg".into(), "made up by the kernel"),
            ("/proc/self/environ".into(), "made up by the kernel"),
            ("/sys/kernel/uevent_seqnum".into(), "made up by the kernel"),
            ("/proc/self/fd/0".into(), ""),
        ] {
            let told = refusal(&path, &FileAccess::Any);
            assert!(told.contains(reason), "{}: {told}", path.display());
        }
        // Opening the FIFO would unblock its writer.
        let writer = OFlags::WRONLY | OFlags::NONBLOCK;
        assert_eq!(open_path(&fifo, writer, Mode::empty()).err(), Some(Errno::NXIO), "no reader was ever there");
    }

    #[test]
    fn a_log_is_no_fifo_that_nobody_reads() {
        let folder = tempfile::tempdir().unwrap();
        let (fifo, log) = (folder.path().join("fifo"), folder.path().join("log"));
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(open_log(&fifo, 0o600).unwrap_err().raw_os_error(), Some(Errno::NXIO.raw_os_error()));
        for _ in 0..2 {
            std::io::Write::write_all(&mut open_log(&log, 0o600).unwrap(), b"line\n").unwrap();
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "line\nline\n");
        assert!(!fcntl_getfl(open_log(&log, 0o600).unwrap()).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_file_is_bounded_also_while_it_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [b'x'; 100]).unwrap();
        assert_eq!(read(&path, &FileAccess::Any, 100).unwrap().len(), 100);
        fs::write(&path, [b'x'; 101]).unwrap();
        assert_eq!(refusal(&path, &FileAccess::Any), "it has more than 100 bytes");
        let file = open(&path, &FileAccess::Any).unwrap();
        fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        let error = contents(file, 1000, Instant::now() + MAX_READ_TIME).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn links_inside_a_folder_are_followed_and_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        for inner in ["mine/archive/x", "mine/live/x", "mine/..2026", "other"] {
            fs::create_dir_all(own(inner)).unwrap();
        }
        fs::write(own("mine/archive/x/chain1.pem"), "chain").unwrap();
        fs::write(own("mine/..2026/token"), "token").unwrap();
        fs::write(own("other/token"), "other").unwrap();
        // The links of certbot and the kubelet.
        symlink("../../archive/x/chain1.pem", own("mine/live/x/chain.pem")).unwrap();
        symlink("..2026", own("mine/..data")).unwrap();
        symlink("..data/token", own("mine/token")).unwrap();
        symlink("../other/token", own("mine/up")).unwrap();
        symlink(own("other/token"), own("mine/absolute")).unwrap();
        symlink("/", own("mine/all")).unwrap();
        symlink("/proc/self/cwd", own("mine/magic")).unwrap();
        let access = FileAccess::Beneath(vec![own("elsewhere"), own("mine")]);
        for (name, contents) in
            [("mine/live/x/chain.pem", "chain"), ("mine/token", "token"), ("mine/..data/token", "token")]
        {
            assert_eq!(read(&own(name), &access, 100).unwrap(), contents.as_bytes(), "{name}");
        }
        for name in
            ["mine/up", "mine/absolute", "mine/all/etc/passwd", "mine/magic", "mine/../other/token", "other/token"]
        {
            let error = read(&own(name), &access, 100).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}: {error}");
        }
        assert!(open_directory(&own("mine/archive"), &access).is_ok());
        assert!(open_directory(&own("other"), &access).is_err());
        assert!(refusal(&own("mine/token"), &FileAccess::default()).contains("no folder"));
    }

    #[test]
    fn a_permitted_folder_that_a_link_replaces_gives_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        fs::create_dir_all(own("shop/certs")).unwrap();
        fs::create_dir_all(own("other")).unwrap();
        fs::write(own("shop/certs/key"), "mine").unwrap();
        fs::write(own("other/key"), "other").unwrap();
        let access = FileAccess::Beneath(vec![own("shop/certs")]);
        assert_eq!(read(&own("shop/certs/key"), &access, 100).unwrap(), b"mine");
        fs::rename(own("shop/certs"), own("shop/away")).unwrap();
        symlink(own("other"), own("shop/certs")).unwrap();
        let told = refusal(&own("shop/certs/key"), &access);
        assert!(told.contains(&format!("{} is a link", own("shop/certs").display())), "{told}");
    }

    #[test]
    fn a_file_that_is_replaced_meanwhile_is_read_as_it_is_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        fs::create_dir_all(own("mine/folder")).unwrap();
        fs::create_dir_all(own("other")).unwrap();
        fs::write(own("mine/folder/file"), "mine").unwrap();
        fs::write(own("other/file"), "other").unwrap();
        let (path, access) = (own("mine/changing/file"), FileAccess::Beneath(vec![own("mine")]));
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Points `mine/changing` in turn to a permitted folder, twice out of it, and to a
            // folder with a FIFO as the file.
            scope.spawn(|| {
                for round in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let next = own("mine/next");
                    let target = ["folder", "../other", "/proc/self/cwd", "fifos"][round % 4];
                    symlink(target, &next).unwrap();
                    fs::rename(&next, own("mine/changing")).unwrap();
                }
            });
            fs::create_dir(own("mine/fifos")).unwrap();
            rustix::fs::mkfifoat(CWD, own("mine/fifos/file"), Mode::RUSR | Mode::WUSR).unwrap();
            let mut read_it = 0;
            while read_it < 500 {
                match read(&path, &access, 100) {
                    Ok(contents) => {
                        assert_eq!(contents, b"mine");
                        read_it += 1;
                    }
                    Err(error) => assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}"),
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
