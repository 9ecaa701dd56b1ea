//! Folders that a layer only implies, because its archive has entries below them and none for them. On top of the layers below they would hide the
//! attributes that those gave them: `/tmp` would no longer be writable. They get what is below.

use crate::tree::{Attributes, Inside, Outcome, Refusal, apply, is_opaque, is_whiteout, open_beneath, stat, wrong};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// `lower` are the layers below, topmost first.
pub(crate) fn settle(root: &Path, implied: &[Inside], lower: &[&Path]) -> Outcome<()> {
    let open = |path: &Path| {
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    let own = open(root)?;
    let lower: Vec<OwnedFd> = lower.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
    for path in implied {
        if hides_what_is_below(&own, path)? {
            continue;
        }
        if let Some(below) = look_up(&lower, path)? {
            let folder = File::from(open_beneath(own.as_fd(), path)?);
            let attributes = Attributes {
                uid: below.st_uid,
                gid: below.st_gid,
                mode: below.st_mode & 0o7777,
                mtime: (below.st_mtime, below.st_mtime_nsec as u32),
                xattrs: Vec::new(),
            };
            apply(&folder, &attributes)?;
        }
    }
    Ok(())
}

/// Whether a folder around it is opaque.
fn hides_what_is_below(own: &OwnedFd, path: &Inside) -> Outcome<bool> {
    let mut at = path.clone();
    while !at.is_root() {
        at = at.split().0;
        if is_opaque(open_beneath(own.as_fd(), &at)?.as_fd())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The folder as overlayfs would show it.
fn look_up(lower: &[OwnedFd], path: &Inside) -> Outcome<Option<Stat>> {
    'layers: for layer in lower {
        let mut at = Inside::new(b".")?;
        let mut folder = layer.try_clone()?;
        let mut opaque = is_opaque(folder.as_fd())?;
        for name in path.names() {
            at = at.join(name);
            match stat(folder.as_fd(), name)? {
                None if opaque => return Ok(None),
                None => continue 'layers,
                Some(stat) if is_whiteout(&stat) => return Ok(None),
                Some(stat) => match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => {}
                    FileType::Symlink => {
                        let at = at.as_path().display();
                        return wrong(format!(
                            "it has entries below `{at}` and none for it, and a layer below has a symbolic link there, which they would hide; build the image with the entries where the link leads"
                        ));
                    }
                    _ => return Ok(None),
                },
            }
            folder = open_beneath(folder.as_fd(), &Inside::new(name)?)?;
            opaque |= is_opaque(folder.as_fd())?;
        }
        return Ok(Some(rustix::fs::fstat(&folder).map_err(Refusal::from)?));
    }
    Ok(None)
}
