//! The operations of the bare machine.

use crate::layout::{self, EXIT_PORT, PAGE, status};
use core::arch::asm;

/// Ends the run.
pub fn exit(status: u8, length: usize) -> ! {
    let word = u32::from(status) << 24 | (length as u32).min(0xff_ffff);
    // SAFETY: the write ends this run; the host does not resume it.
    unsafe { asm!("out dx, eax", "ud2", in("dx") EXIT_PORT, in("eax") word, options(noreturn, nostack)) }
}

/// A heap cannot grow here: the host maps as much as the program may have.
pub fn grow(_limit: usize, _end: usize) -> Option<usize> {
    None
}

/// Ends the run because the heap is used up.
pub fn out_of_memory() -> ! {
    exit(status::OUT_OF_MEMORY, 0)
}

/// Reads or writes one byte in every page that a run can reach.
pub fn touch(heap_end: u64) {
    let stack_in_use = stack_pointer() & !(PAGE - 1);
    for (start, end) in [
        (layout::OUTPUT, layout::OUTPUT + layout::OUTPUT_SIZE),
        (layout::STACK, stack_in_use),
        (layout::HEAP, heap_end),
    ] {
        for page in (start..end).step_by(PAGE as usize) {
            // SAFETY: these pages are mapped writable, and nothing lives in them yet.
            unsafe { (page as *mut u8).write_volatile(0) };
        }
    }
    unsafe extern "C" {
        static image_end: u8;
    }
    for (start, end) in
        [(layout::INPUT, layout::INPUT + layout::INPUT_SIZE), (layout::IMAGE, &raw const image_end as u64)]
    {
        for page in (start..end).step_by(PAGE as usize) {
            // SAFETY: these pages are mapped readable.
            unsafe { (page as *const u8).read_volatile() };
        }
    }
}

/// Uses instructions that are available only where registers wider than XMM are enabled, and fault
/// otherwise.
pub fn use_wide_state() {
    // SAFETY: reads a register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") _, out("edx") _, options(nomem, nostack, preserves_flags)) };
}

fn stack_pointer() -> u64 {
    let pointer;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}
