//! The layers below one that is being made, as overlayfs shows them together.

use crate::beneath::{OPEN_FOLDER, is_opaque, is_whiteout, open_beneath, stat};
use crate::path::Inside;
use crate::refusal::Outcome;
use rustix::fs::{CWD, FileType, Mode};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The layers below, topmost first.
pub(crate) struct Lower {
    layers: Vec<OwnedFd>,
    /// The folder that was looked up last, in each layer that has it: entries of one folder come
    /// one after another.
    last: Option<(Inside, Vec<(u16, OwnedFd)>)>,
}

/// The file that the layers below show at a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Below {
    Nothing,
    /// A folder, merged from those of these layers, topmost first.
    Folder(Vec<u16>),
    /// A symbolic link in this layer, and its target.
    Symlink(u16, Vec<u8>),
    /// A file, or a FIFO, in this layer.
    Other(u16),
}

impl Lower {
    pub(crate) fn open(layers: &[&Path]) -> io::Result<Self> {
        let open = |path: &&Path| rustix::fs::openat(CWD, *path, OPEN_FOLDER, Mode::empty());
        let layers = layers.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { layers, last: None })
    }

    /// The layers whose roots are merged.
    pub(crate) fn root(&self) -> io::Result<Vec<u16>> {
        let mut merged = Vec::new();
        for (at, layer) in (0..).zip(&self.layers) {
            merged.push(at);
            if is_opaque(layer.as_fd())? {
                break;
            }
        }
        Ok(merged)
    }

    /// A folder of one layer. No link is followed.
    pub(crate) fn folder(&self, layer: u16, path: &Inside) -> Outcome<OwnedFd> {
        let root = self.layers.get(usize::from(layer)).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(open_beneath(root.as_fd(), path)?)
    }

    /// Looks a name up in a folder of these layers, all of which have the folder.
    pub(crate) fn look_up(&mut self, folder: &Inside, layers: &[u16], name: &[u8]) -> Outcome<Below> {
        if layers.is_empty() {
            return Ok(Below::Nothing);
        }
        if self.last.as_ref().is_none_or(|(last, _)| last != folder) {
            let open = |layer: &u16| Ok((*layer, self.folder(*layer, folder)?));
            let folders = layers.iter().map(open).collect::<Outcome<_>>()?;
            self.last = Some((folder.clone(), folders));
        }
        let mut merged = Vec::new();
        for (layer, fd) in self.last.iter().flat_map(|(_, folders)| folders).filter(|(layer, _)| layers.contains(layer))
        {
            let Some(stat) = stat(fd.as_fd(), name)? else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    merged.push(*layer);
                    let opened = rustix::fs::openat(fd, name, OPEN_FOLDER, Mode::empty())?;
                    if is_opaque(opened.as_fd())? {
                        break;
                    }
                }
                _ if !merged.is_empty() || is_whiteout(&stat) => break,
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(fd, name, Vec::new())?;
                    return Ok(Below::Symlink(*layer, target.into_bytes()));
                }
                _ => return Ok(Below::Other(*layer)),
            }
        }
        Ok(if merged.is_empty() { Below::Nothing } else { Below::Folder(merged) })
    }
}
