//! Memory files: their creation, and the seals that leave one process alone able to write to each.
//!
//! A file can never shrink or grow, so a reader is never killed by `SIGBUS`. The producer maps the
//! file for writing; then the file is sealed against writing. From then on the kernel allows writes
//! only through the mappings that already exist. Readers get a descriptor that is open for reading
//! only.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create, open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Smallest size of an arena, in bytes. Sizes are multiples of it.
pub const GRAIN: u64 = 64 << 10;

/// A memory file that may still be mapped for writing.
#[derive(Debug)]
pub struct UnsealedMemfd(OwnedFd);

impl UnsealedMemfd {
    /// Makes a file of so many bytes, rounded up to a multiple of [`GRAIN`]. The kernel allocates
    /// memory on the first write.
    ///
    /// # Errors
    /// If the kernel makes none of that size.
    pub fn create(name: &str, bytes: u64) -> io::Result<Self> {
        let bytes = size(bytes);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3 such files can be executed.
            Err(rustix::io::Errno::INVAL) => memfd_create(name, flags),
            made => made,
        }?;
        // A process with a descriptor cannot reopen the file for writing.
        fchmod(&file, Mode::RUSR)?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Self(file))
    }

    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.0
    }

    /// Seals the file: existing writable mappings stay valid, and no new one can be made. Returns
    /// the file open for reading only.
    ///
    /// # Errors
    /// If the file cannot be sealed, because another process that holds it has sealed it already,
    /// or if `/proc` is not mounted.
    pub fn seal(self) -> io::Result<OwnedFd> {
        fcntl_add_seals(&self.0, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let path = format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd());
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// The size of an arena for which so many bytes were requested.
#[must_use]
pub fn size(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX - GRAIN + 1)
}

#[cfg(test)]
#[expect(unsafe_code, reason = "what is wrong has to be tried")]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::{Errno, pwrite};
    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect};
    use std::os::fd::BorrowedFd;

    fn map(file: BorrowedFd<'_>, protection: ProtFlags) -> Result<*mut std::ffi::c_void, Errno> {
        // SAFETY: the kernel chooses the address, and the mapping stays until the end of the test.
        unsafe { mmap(std::ptr::null_mut(), GRAIN as usize, protection, MapFlags::SHARED, file, 0) }
    }

    #[test]
    fn a_sealed_arena_is_written_by_nobody_but_who_has_mapped_it() {
        let arena = UnsealedMemfd::create("test", 1).unwrap();
        let writable = arena.file().try_clone().unwrap();
        assert_eq!(ftruncate(&writable, 0), Err(Errno::PERM), "it cannot shrink under a reader");
        let producer = Mapping::writable(&writable, GRAIN).unwrap();
        let reader = arena.seal().unwrap();

        // SAFETY: no other code refers to these bytes.
        unsafe { producer.slice_mut(0, 5) }.unwrap().copy_from_slice(b"hello");
        let mapped = Mapping::readable(&reader, GRAIN).unwrap();
        let mut read = [0; 5];
        mapped.read(0, &mut read).unwrap();
        assert_eq!(&read, b"hello");

        // With a descriptor for reading.
        assert_eq!(map(reader.as_fd(), ProtFlags::READ | ProtFlags::WRITE), Err(Errno::ACCESS));
        assert_eq!(pwrite(&reader, b"x", 0), Err(Errno::BADF));
        let shared = map(reader.as_fd(), ProtFlags::READ).unwrap();
        // SAFETY: no code uses this mapping.
        let protect = unsafe { mprotect(shared, GRAIN as usize, MprotectFlags::READ | MprotectFlags::WRITE) };
        assert_eq!(protect, Err(Errno::ACCESS));

        // With a descriptor for writing: the producer's, or one that a process gets by reopening
        // the file, which root can.
        let anew = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let anew = open(anew, OFlags::RDWR, Mode::empty());
        for file in [Ok(writable), anew].into_iter().flatten() {
            assert_eq!(map(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
            assert_eq!(pwrite(&file, b"x", 0), Err(Errno::PERM));
            assert_eq!(
                fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1),
                Err(Errno::PERM)
            );
            assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
            let shared = map(file.as_fd(), ProtFlags::READ).unwrap();
            // SAFETY: as above.
            let protect = unsafe { mprotect(shared, GRAIN as usize, MprotectFlags::READ | MprotectFlags::WRITE) };
            assert_eq!(protect, Err(Errno::ACCESS));
            // SAFETY: as above.
            assert!(unsafe { madvise(shared, GRAIN as usize, Advice::LinuxRemove) }.is_err());
        }
    }

    #[test]
    fn who_seals_an_arena_first_has_none() {
        let arena = UnsealedMemfd::create("test", 1).unwrap();
        fcntl_add_seals(arena.file(), SealFlags::SEAL).unwrap();
        assert!(arena.seal().is_err());
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let arena = UnsealedMemfd::create("test", 1).unwrap();
        let mapping = Mapping::readable(arena.file(), GRAIN).unwrap();
        let mut two = [0; 2];
        assert!(mapping.read(GRAIN - 2, &mut two).is_ok());
        for offset in [GRAIN - 1, GRAIN, u64::MAX - 1, u64::MAX] {
            let error = mapping.read(offset, &mut two).unwrap_err();
            assert_eq!(error.to_string(), format!("2 bytes at {offset} are not within an arena of 65536"));
        }
        assert_eq!([size(0), size(1), size(GRAIN), size(GRAIN + 1)], [GRAIN, GRAIN, GRAIN, 2 * GRAIN]);
    }
}
