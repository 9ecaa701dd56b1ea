//! Opens the folders that operators list.
//!
//! A program may write to a listed folder, and to the folders in it. Another listed folder may be
//! one of these, and the program could replace it by a link. So the path of a listed folder is
//! resolved part by part, and its links are followed only where they are root's alone.

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Maximum number of links on the way, as in the kernel.
const MAX_LINKS: usize = 40;

/// Opens a listed folder. Links on the way are followed if they and all folders that lead to them
/// belong to root, and no other account may write to these folders.
///
/// # Errors
/// If another account could have made a link on the way, or the folder cannot be opened. Blocks as
/// long as the file system does.
pub(crate) fn open_listed(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || open("/", flags | OFlags::DIRECTORY, Mode::empty());
    let (mut here, mut path) = (root()?, PathBuf::from("/"));
    // The first file on the way that another account may change.
    let mut foreign = (!is_roots(&fstat(&here)?)).then(|| path.clone());
    let (mut rest, mut links) = (names(folder), 0);
    while let Some(name) = rest.pop() {
        match openat(&here, &name, flags | OFlags::DIRECTORY, Mode::empty()) {
            Ok(next) => {
                here = next;
                enter(&mut path, &name);
                if foreign.is_none() && !is_roots(&fstat(&here)?) {
                    foreign = Some(path.clone());
                }
                continue;
            }
            Err(Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        let link = openat(&here, &name, flags, Mode::empty())?;
        let found = fstat(&link)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            return Err(Errno::NOTDIR.into());
        }
        let at = path.join(&name);
        if let Some(foreign) = foreign.take().or_else(|| (found.st_uid != 0).then(|| at.clone())) {
            return Err(refusal(&at, &foreign));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = PathBuf::from(OsString::from_vec(readlinkat(&link, "", Vec::new())?.into_bytes()));
        if target.is_absolute() {
            (here, path) = (root()?, PathBuf::from("/"));
        }
        rest.extend(names(&target));
    }
    Ok(here)
}

/// The parts of a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let inner = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    inner.rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// Appends a part to a path that has no links.
fn enter(path: &mut PathBuf, name: &OsStr) {
    if name == ".." {
        path.pop();
    } else {
        path.push(name);
    }
}

/// Whether only root may change the entries of a folder. The bits of the group include the rights
/// that an access control list gives to accounts.
fn is_roots(folder: &Stat) -> bool {
    folder.st_uid == 0 && folder.st_mode & 0o022 == 0
}

fn refusal(link: &Path, foreign: &Path) -> io::Error {
    let (link, foreign) = (link.display(), foreign.display());
    let text = format!(
        "{link} is a link, and other accounts than root may change {foreign}: list the folder to which the link leads, \
         or give {foreign} to root and let no other account write there"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    fn told(path: &Path) -> String {
        let error = open_listed(path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    }

    #[test]
    fn a_folder_without_links_on_the_way_is_opened_whoever_owns_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "").unwrap();
        assert_eq!(fstat(open_listed(&inner).unwrap()).unwrap().st_ino, inode(&inner));
        assert_eq!(fstat(open_listed(Path::new("/")).unwrap()).unwrap().st_ino, inode(Path::new("/")));
        assert_eq!(open_listed(&inner.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(open_listed(&inner.join("file")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn a_link_that_replaces_a_part_of_the_path_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        fs::create_dir_all(own("mine/a/b")).unwrap();
        fs::create_dir_all(own("other/b")).unwrap();
        assert!(open_listed(&own("mine/a/b")).is_ok());
        for (part, target) in [
            ("mine/a/b", own("other/b")),
            ("mine/a/b", "../../other/b".into()),
            ("mine/a", own("other")),
            ("mine/a", "../other".into()),
            ("mine", own("other")),
            ("mine/a", "/proc/self/cwd".into()),
            ("mine/a", "a".into()),
        ] {
            fs::rename(own(part), own("away")).unwrap();
            symlink(&target, own(part)).unwrap();
            let told = told(&own("mine/a/b"));
            assert!(told.contains(&format!("{} is a link", own(part).display())), "{part} {target:?}: {told}");
            fs::remove_file(own(part)).unwrap();
            fs::rename(own("away"), own(part)).unwrap();
        }
    }

    /// Folders in `/tmp` cannot show it: all accounts may write to `/tmp`.
    #[test]
    fn a_link_of_root_alone_is_followed() {
        let Some(folder) = tempfile::tempdir_in("/run").ok().filter(|folder| {
            let root = [Path::new("/"), Path::new("/run"), folder.path()];
            root.iter().all(|path| open_listed(path).and_then(|found| Ok(is_roots(&fstat(&found)?))).unwrap_or(false))
        }) else {
            eprintln!("skipped: only root makes links that it alone may change");
            return;
        };
        let own = |name: &str| folder.path().join(name);
        for inner in ["data/a", "links"] {
            fs::create_dir_all(own(inner)).unwrap();
            fs::set_permissions(own(inner), Permissions::from_mode(0o755)).unwrap();
        }
        symlink("../data", own("links/relative")).unwrap();
        symlink(own("data/a"), own("links/absolute")).unwrap();
        symlink("relative/../links/./absolute", own("links/both")).unwrap();
        symlink("loop", own("links/loop")).unwrap();
        for name in ["links/relative/a", "links/absolute", "links/both"] {
            assert_eq!(fstat(open_listed(&own(name)).unwrap()).unwrap().st_ino, inode(&own("data/a")), "{name}");
        }
        let error = open_listed(&own("links/loop")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));

        // Its target may belong to another account, but links from there on are not followed.
        chown(own("data"), Some(4321), Some(4321)).unwrap();
        assert!(open_listed(&own("links/relative/a")).is_ok());
        symlink("a", own("data/next")).unwrap();
        assert!(told(&own("links/relative/next")).contains(&format!("may change {}:", own("data").display())));

        lchown(own("links/relative"), Some(4321), None).unwrap();
        let link = own("links/relative").display().to_string();
        assert!(told(&own("links/relative/a")).contains(&format!("{link} is a link, and other accounts")));
        for (mode, owner) in [(0o775, 0), (0o757, 0), (0o1777, 0), (0o755, 4321)] {
            fs::set_permissions(own("links"), Permissions::from_mode(mode)).unwrap();
            chown(own("links"), Some(owner), None).unwrap();
            let told = told(&own("links/absolute"));
            assert!(told.contains(&format!("may change {}:", own("links").display())), "{mode:o} {owner}: {told}");
        }
    }
}
