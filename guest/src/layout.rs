//! The memory layout and the protocol between the image and its host. The host includes this very
//! file.
//!
//! Guest-physical and guest-virtual addresses are the same. Everything between the areas is unmapped, so that running
//! off the end of one is a fault and never lands in another.

/// Size of a page.
pub(super) const PAGE: u64 = 4096;

/// Read-only: page tables, descriptor tables and fault stubs. The guest cannot even read them.
pub(super) const SYSTEM: u64 = 0x1000;
/// Read-only: text and read-only data. Also in `link.ld`.
pub(super) const IMAGE: u64 = 0x4_0000;
/// End of the area for text and read-only data.
pub(super) const IMAGE_END: u64 = 0x20_0000;

/// First address that differs between shells. Everything from here to [`SHELL_END`] is one block of the host's memory.
pub(super) const SHELL: u64 = 0x20_0000;
/// End of the block.
pub(super) const SHELL_END: u64 = 0x40_0000;

/// Input of a run; the guest may only read it.
pub(super) const INPUT: u64 = 0x20_0000;
/// Bytes of [`INPUT`].
pub(super) const INPUT_SIZE: u64 = 0x1_0000;
/// Output of a run.
pub(super) const OUTPUT: u64 = 0x22_0000;
/// Bytes of [`OUTPUT`].
pub(super) const OUTPUT_SIZE: u64 = 0x8000;
/// Where the processor saves state on a fault; the guest cannot touch it.
pub(super) const FAULT_STACK: u64 = 0x24_0000;
/// Lowest byte of the stack. The page below is never mapped.
pub(super) const STACK: u64 = 0x26_0000;
/// Bytes of [`STACK`].
pub(super) const STACK_SIZE: u64 = 0x1_0000;
/// Variables of the image. Also in `link.ld`.
pub(super) const DATA: u64 = 0x28_0000;
/// The largest size of [`DATA`].
pub(super) const DATA_SIZE: u64 = 0x8_0000;
/// The heap; how much of it is mapped depends on the program.
pub(super) const HEAP: u64 = 0x30_0000;
/// The largest size of the heap.
pub(super) const HEAP_SIZE: u64 = 0x10_0000;

/// Read-only, and mapped only while a program is initialised: the encoded program.
pub(super) const BLOB: u64 = 0x40_0000;
/// Bytes of [`BLOB`].
pub(super) const BLOB_SIZE: u64 = 0x10_0000;

/// The guest leaves by writing four bytes to this port: status in the top byte, length of the output below.
pub(super) const EXIT_PORT: u16 = 0x10;
/// The fault stubs report the vector to this port. The guest cannot use it.
pub(super) const FAULT_PORT: u16 = 0x20;

/// The tasks of the guest.
pub(super) mod task {
    /// Build the program from the blob and leave it in the heap.
    pub(crate) const INIT: u64 = 0;
    /// Run the program on the input.
    pub(crate) const RUN: u64 = 1;
    /// Touch every page, so that later runs find all of them in place.
    pub(crate) const TOUCH: u64 = 2;
    /// Use vector state beyond XMM, which faults where the host keeps it disabled.
    pub(crate) const WIDE: u64 = 3;
}

/// The guest's report of its result.
pub(super) mod status {
    /// The run succeeded; the output holds the result.
    pub(crate) const DONE: u8 = 1;
    /// The blob is not a program; the output says why.
    pub(crate) const REFUSED: u8 = 2;
    /// The code panicked; the output says where.
    pub(crate) const PANICKED: u8 = 3;
    /// The heap is used up.
    pub(crate) const OUT_OF_MEMORY: u8 = 4;
}
