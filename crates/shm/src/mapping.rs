//! Memory that is shared with other processes. This module does all access by raw pointers and
//! checks all bounds; other modules see copies, apart from `pool`, which borrows the memory that
//! this process alone writes.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

/// A memory file, mapped as a whole. Others may be writing to it at any time.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    writable: bool,
}

/// The requested range is not within the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset} are not within an arena of {arena}")]
pub struct OutOfBounds {
    /// Offset of the range, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// Bytes of the arena.
    pub arena: u64,
}

// SAFETY: the memory belongs to the process, not to a thread, and is unmapped once. All access is by raw pointers, in the methods below.
unsafe impl Send for Mapping {}
// SAFETY: as above. Two threads write to different blocks, as the methods that write require.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file for reading. Its size must be sealed and at least `length`: reading beyond the
    /// end would kill the process with `SIGBUS`.
    ///
    /// # Errors
    /// If the kernel does not map it, or `length` is 0.
    pub fn readable(file: impl AsFd, length: u64) -> io::Result<Self> {
        Self::new(file, length, ProtFlags::READ)
    }

    /// Maps a file for reading and writing. As above.
    ///
    /// # Errors
    /// As for [`Mapping::readable`], and if the file is open for reading only, or sealed.
    pub fn writable(file: impl AsFd, length: u64) -> io::Result<Self> {
        Self::new(file, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn new(file: impl AsFd, length: u64, protection: ProtFlags) -> io::Result<Self> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        // SAFETY: the kernel chooses an address at which nothing is.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, length, writable: protection.contains(ProtFlags::WRITE) })
    }

    /// Asks for large pages, where the kernel gives them for shared memory. The mapping works the
    /// same without.
    pub fn advise_large_pages(&self) {
        // SAFETY: this changes the pages behind the memory, not its content.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxHugepage) };
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// Checks that a range is within it.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, offset: u64, length: u64) -> Result<(), OutOfBounds> {
        self.at(offset, length).map(drop)
    }

    fn at(&self, offset: u64, length: u64) -> Result<NonNull<u8>, OutOfBounds> {
        let arena = self.length();
        if offset.checked_add(length).is_none_or(|end| end > arena) {
            return Err(OutOfBounds { offset, length, arena });
        }
        // SAFETY: the offset is not beyond the mapping, whose length is a `usize`.
        Ok(unsafe { self.start.add(offset as usize) })
    }

    /// Copies from the mapping. Another process may have written the bytes meanwhile, so they may
    /// be anything; but each is read once, and the copy does not change.
    ///
    /// # Errors
    /// If the range is not within it.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, into.len() as u64)?;
        // SAFETY: the whole range is mapped for reading. It does not overlap `into`, which is
        // borrowed exclusively.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len()) };
        // Keeps the compiler from reading the memory again in place of the copy.
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Bytes of it, in place.
    ///
    /// # Errors
    /// If the range is not within it.
    ///
    /// # Safety
    /// No thread or process may write to this range while the slice is used.
    pub unsafe fn slice(&self, offset: u64, length: u64) -> Result<&[u8], OutOfBounds> {
        let start = self.at(offset, length)?;
        // SAFETY: all of it is mapped for reading for as long as `self` is there; the rest is the caller's promise.
        Ok(unsafe { NonNull::slice_from_raw_parts(start, length as usize).as_ref() })
    }

    /// Bytes of it, in place and to be written.
    ///
    /// # Errors
    /// If the range is not within it.
    ///
    /// # Panics
    /// If it is mapped for reading only.
    ///
    /// # Safety
    /// No other code of this process may use these bytes meanwhile, and no other process may write
    /// to them.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the bytes are nobody else's")]
    pub unsafe fn slice_mut(&self, offset: u64, length: u64) -> Result<&mut [u8], OutOfBounds> {
        assert!(self.writable, "the arena is mapped for reading only");
        let start = self.at(offset, length)?;
        // SAFETY: all of it is mapped for writing for as long as `self` is there; the rest is the caller's promise.
        Ok(unsafe { NonNull::slice_from_raw_parts(start, length as usize).as_mut() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and a borrower of it keeps `self` alive.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
