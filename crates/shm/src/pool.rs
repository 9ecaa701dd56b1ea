//! An arena that this process writes: its memory, and who has which part of it.

use crate::arena;
use crate::mapping::Mapping;
use crate::slab::{Block, Full, Slab};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, mem};

/// A writable arena. It must be sealed, so that no other process writes to it.
#[derive(Debug)]
pub struct Pool {
    mapping: Mapping,
    slab: Mutex<Slab>,
}

/// A part of an arena, given back when it is dropped.
#[derive(Debug)]
pub struct Allocation {
    pool: Arc<Pool>,
    block: Block,
}

impl Pool {
    /// Makes an arena of so many bytes, rounded up to a multiple of [`arena::GRAIN`], and seals it. Returns it with a descriptor that is open for
    /// reading only.
    ///
    /// # Errors
    /// If the kernel does not make or map it.
    pub fn create(name: &str, bytes: u64) -> io::Result<(Arc<Self>, OwnedFd)> {
        let file = arena::UnsealedMemfd::create(name, bytes)?;
        let mapping = Mapping::writable(file.file(), arena::size(bytes))?;
        let file = file.seal()?;
        // SAFETY: no other process has had the file, and it is sealed.
        Ok((unsafe { Self::new(mapping) }, file))
    }

    /// Makes a pool of memory that is mapped for writing.
    ///
    /// # Safety
    /// The memory has no other writable mapping, and can have none from now on.
    #[must_use]
    pub unsafe fn new(mapping: Mapping) -> Arc<Self> {
        let slab = Mutex::new(Slab::new(mapping.length()));
        Arc::new(Self { mapping, slab })
    }

    /// Allocates a part of at least so many bytes. They keep their previous content.
    ///
    /// # Errors
    /// If there is no free part of that length.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Allocation, Full> {
        let block = self.slab().allocate(bytes)?;
        Ok(Allocation { pool: self.clone(), block })
    }

    /// The memory of the arena.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Bytes that are not allocated.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.slab().free_bytes()
    }

    fn slab(&self) -> MutexGuard<'_, Slab> {
        self.slab.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocation {
    /// Where it is, in units of [`crate::descriptor::UNIT`] bytes.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.block.slot()
    }

    /// Where it is, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.block.offset()
    }

    /// Its bytes: at least as many as were requested.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: only this allocation has this block of its arena; no other process writes to it,
        // and this one only with `&mut self`.
        unsafe { self.pool.mapping.slice(self.block.offset(), self.block.length()) }.unwrap_or_default()
    }

    /// Its bytes, for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for as long as the slice.
        unsafe { self.pool.mapping.slice_mut(self.block.offset(), self.block.length()) }.unwrap_or_default()
    }

    /// Gives back the bytes after the first `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        self.pool.slab().shrink(&mut self.block, bytes);
    }

    /// The arena that it is a part of.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let block = mem::replace(&mut self.block, Block::none());
        self.pool.slab().free(block);
    }
}
