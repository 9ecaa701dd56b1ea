//! Host memory that a guest can access.

use std::io;
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 * 1024 * 1024;

/// A block of zeroed memory at an address that does not change, aligned to 2 MiB, so that the
/// kernel can back it, and the guest's view of it, with one huge page: fewer faults when a shell is
/// new, fewer misses in nested page walks later.
pub(super) struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the block is owned by this value alone, and every access goes through `&self` or `&mut self`.
unsafe impl Send for Memory {}
// SAFETY: `&self` only reads.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `length` bytes, a multiple of the page size.
    pub(super) fn new(length: usize) -> io::Result<Self> {
        let reserved = length + HUGE_PAGE;
        // SAFETY: asks for a new private mapping wherever the kernel likes; nothing existing is touched.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = (start as usize).next_multiple_of(HUGE_PAGE) - start as usize;
        // SAFETY: `before` is less than `HUGE_PAGE`, so the block and both ends lie inside the mapping just made. The
        // ends are given back; advice about the rest is only advice.
        let block = unsafe {
            let block = start.byte_add(before);
            if before > 0 {
                libc::munmap(start, before);
            }
            libc::munmap(block.byte_add(length), HUGE_PAGE - before);
            libc::madvise(block, length, libc::MADV_HUGEPAGE);
            block
        };
        let start = NonNull::new(block.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { start, length })
    }

    /// Address for `KVM_SET_USER_MEMORY_REGION`.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes long and lives as long as `self`. Guests write to it only inside
        // `Shell::enter`, which borrows it mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the block that `new` kept; the VM that used it is gone, because a shell drops it first.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
