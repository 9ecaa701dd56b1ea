//! Space on a disk, which is reserved before it is used.

use std::io;
use std::ops::{AddAssign, SubAssign};

/// The space that a file typically takes on the disk besides its content, in bytes.
pub(crate) const INODE: u64 = 512;
/// The unit in which files take space on the disk, in bytes.
pub(crate) const BLOCK: u64 = 4096;

/// Space on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) bytes: u64,
    /// Inodes: files, folders, links and whiteouts.
    pub(crate) files: u64,
}

impl Space {
    /// Applies `operation` to the bytes of both, and to the files of both.
    pub(crate) fn zip(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        Self { bytes: operation(self.bytes, other.bytes), files: operation(self.files, other.files) }
    }

    pub(crate) fn fits(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.files <= limit.files
    }
}

impl AddAssign for Space {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_add);
    }
}

impl SubAssign for Space {
    fn sub_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_sub);
    }
}

/// Called to reserve space on the disk before it is used.
pub(crate) type ReserveSpace<'a> = &'a mut dyn FnMut(Space) -> io::Result<()>;

/// The bytes on the disk of a file that does not share its blocks.
pub(crate) fn blocks(length: usize) -> u64 {
    (length as u64).next_multiple_of(BLOCK)
}
