//! Paths of an image's files.

use crate::refusal::{Outcome, wrong};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How many folders deep a file may be. Removing a tree takes a descriptor for each.
const MAX_DEPTH: usize = 128;
/// How long a path may be, in bytes.
pub(crate) const MAX_PATH: usize = 4095;
/// How long a name may be, in bytes.
const MAX_NAME: usize = 255;

/// A path relative to the root of an image, without `.`, `..` and doubled slashes. Empty: the root itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inside(Vec<u8>);

impl Inside {
    /// The root.
    pub(crate) fn root() -> Self {
        Self(Vec::new())
    }

    /// Parses a path. A leading `/` or `./` is taken off, as all tools do that unpack layers.
    pub(crate) fn new(path: &[u8]) -> Outcome<Self> {
        if path.is_empty() {
            return wrong("its path is empty");
        }
        if path.contains(&0) {
            return wrong("its path has a zero byte");
        }
        let mut inside = Self(Vec::with_capacity(path.len()));
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => continue,
                b".." => return wrong("its path has `..`, which could lead out of the image"),
                _ if name.len() > MAX_NAME => {
                    return wrong(format!("a name in its path is longer than {MAX_NAME} bytes"));
                }
                _ => inside.push(name),
            }
        }
        inside.bounded()
    }

    fn push(&mut self, name: &[u8]) {
        if !self.0.is_empty() {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(name);
    }

    fn bounded(self) -> Outcome<Self> {
        if self.0.len() > MAX_PATH || self.names().count() > MAX_DEPTH {
            return wrong(format!("its path is longer than {MAX_PATH} bytes or deeper than {MAX_DEPTH} folders"));
        }
        Ok(self)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The parent and the name in it; the root has neither.
    pub(crate) fn split(&self) -> (Self, &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (Self(self.0[..slash].to_vec()), &self.0[slash + 1..]),
            None => (Self::root(), &self.0),
        }
    }

    /// The path of a name in this folder. The name comes from a path or a link that has been
    /// checked, so only the whole may be too long.
    pub(crate) fn join(&self, name: &[u8]) -> Outcome<Self> {
        let mut path = self.clone();
        path.push(name);
        path.bounded()
    }

    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// Whether it is this folder or below it.
    pub(crate) fn is_in(&self, folder: &Self) -> bool {
        folder.is_root()
            || self.0.strip_prefix(&*folder.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }

    pub(crate) fn as_path(&self) -> &Path {
        if self.0.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

/// A folder sorts before all of its content, and that before the folder's next sibling.
impl Ord for Inside {
    fn cmp(&self, other: &Self) -> Ordering {
        let slash_first = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        self.0.iter().map(slash_first).cmp(other.0.iter().map(slash_first))
    }
}

impl PartialOrd for Inside {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
