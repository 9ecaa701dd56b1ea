//! The heap: a pointer that only moves up, because a run ends long before memory is worth reusing
//! and all memory is dropped with it. The block on top can grow in place and be given back, which
//! is the most frequent operation of strings and vectors.

use crate::machine;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;

/// The allocator.
pub struct Heap {
    top: Cell<usize>,
    limit: Cell<usize>,
}

// SAFETY: a guest has one thread.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { top: Cell::new(0), limit: Cell::new(0) };

/// Sets the end of the heap, and its start if it has none yet.
pub fn bound(start: usize, limit: usize) {
    if HEAP.top.get() == 0 {
        HEAP.top.set(start);
    }
    HEAP.limit.set(limit);
}

/// The first free address.
#[cfg(any(target_arch = "wasm32", feature = "misbehave"))]
pub fn top() -> usize {
    (HEAP.top.get() + 15) & !15
}

/// End of the heap.
#[cfg(all(target_arch = "x86_64", feature = "misbehave"))]
pub fn limit() -> usize {
    HEAP.limit.get()
}

/// Reserves `size` bytes from [`top`].
#[cfg(target_arch = "wasm32")]
pub fn skip(size: usize) {
    HEAP.place(top(), size);
}

/// A block of zeros that is never given back. Memory above the top has never been written.
#[cfg(target_arch = "wasm32")]
pub fn zeroed(size: usize) -> &'static mut [u8] {
    let start = top();
    HEAP.place(start, size);
    // SAFETY: the block is new, aligned for bytes, and inside the memory.
    unsafe { core::slice::from_raw_parts_mut(start as *mut u8, size) }
}

/// The free memory above the top, at most `size` bytes. The next block will overlap it.
#[cfg(target_arch = "wasm32")]
pub fn rest(size: usize) -> &'static mut [u8] {
    let start = top();
    let size = HEAP.limit.get().saturating_sub(start).min(size);
    // SAFETY: no block lies there, and it is inside the memory; the caller is done with it before another one is made.
    unsafe { core::slice::from_raw_parts_mut(start as *mut u8, size) }
}

impl Heap {
    fn place(&self, start: usize, size: usize) {
        match start.checked_add(size) {
            Some(end) if end <= self.limit.get() => self.top.set(end),
            Some(end) => match machine::grow(self.limit.get(), end) {
                Some(limit) => {
                    self.limit.set(limit);
                    self.top.set(end);
                }
                None => machine::out_of_memory(),
            },
            None => machine::out_of_memory(),
        }
    }
}

// SAFETY: blocks lie between `top` before and `top` after the call, so that they never overlap; `place` diverges rather
// than hand out memory beyond the limit.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = (self.top.get() + layout.align() - 1) & !(layout.align() - 1);
        self.place(start, layout.size());
        start as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if block as usize + layout.size() == self.top.get() {
            self.top.set(block as usize);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if block as usize + layout.size() == self.top.get() {
            self.place(block as usize, size);
            return block;
        }
        if size <= layout.size() {
            return block;
        }
        // SAFETY: the caller guarantees that `size` with this alignment is a valid layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as for any allocation; `size` is not zero by the contract of `realloc`.
        let moved = unsafe { self.alloc(wanted) };
        // SAFETY: the new block lies above the old one, so they do not overlap, and both hold `layout.size()` bytes.
        unsafe { core::ptr::copy_nonoverlapping(block, moved, layout.size()) };
        moved
    }
}
