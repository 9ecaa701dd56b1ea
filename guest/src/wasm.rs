//! The image as a WebAssembly module, for hosts without micro-VMs and for comparison.
//!
//! Exports: `memory`; `REPORT`, the address of three words (status, address, length) with the
//! result of the last call; `init(address, length)`, which reads the encoded program from the place
//! where the host put it; `input()`, the address at which the host shall put an input;
//! `run(length)`, which reads it from there.
#![cfg(target_arch = "wasm32")]
#![no_std]

extern crate alloc;

mod heap;
#[allow(dead_code)] // the rest is for the micro-VM
mod layout;
#[cfg(feature = "misbehave")]
mod misbehave;
mod program;

use core::cell::Cell;
use layout::{OUTPUT_SIZE, status};
use leno_policy::abi;

/// Status, address and length, read by the host when a call returns or traps.
pub struct Report([Cell<u32>; 3]);

// SAFETY: a guest has one thread.
unsafe impl Sync for Report {}

#[unsafe(no_mangle)]
static REPORT: Report = Report([const { Cell::new(0) }; 3]);

fn report(status: u8, text: &[u8]) {
    REPORT.0[0].set(u32::from(status));
    REPORT.0[1].set(text.as_ptr() as u32);
    REPORT.0[2].set(text.len() as u32);
}

/// Builds the program. The blob lies at the end of the memory; the heap may not grow into it.
#[unsafe(no_mangle)]
extern "C" fn init(address: usize, length: usize) {
    heap::bound(machine::heap_start(), address);
    // SAFETY: the host has put the blob there.
    let blob = unsafe { core::slice::from_raw_parts(address as *const u8, length) };
    match program::init(blob) {
        Ok(()) => report(status::DONE, &[]),
        Err(reason) => report(status::REFUSED, reason.leak().as_bytes()),
    }
}

/// The address for the next input: the top of the heap.
#[unsafe(no_mangle)]
extern "C" fn input() -> usize {
    heap::top()
}

/// Runs the program on `length` bytes at [`input`].
#[unsafe(no_mangle)]
extern "C" fn run(length: usize) {
    let address = heap::top();
    heap::bound(machine::heap_start(), machine::memory_size());
    heap::skip(length);
    // SAFETY: the host has put the input there, and nothing is allocated over it.
    let input = unsafe { core::slice::from_raw_parts(address as *const u8, length) };
    #[cfg(feature = "misbehave")]
    {
        let output = heap::zeroed(OUTPUT_SIZE as usize);
        if let Some(length) = misbehave::act(input, output) {
            report(status::DONE, output);
            return REPORT.0[2].set(length as u32); // which may be a lie
        }
    }
    let answer = program::answer(input);
    // The free part of the heap has space for an ordinary output; only a longer one needs more
    // memory, which every run would pay for.
    let rest = heap::rest(OUTPUT_SIZE as usize);
    match abi::encode(&answer, rest) {
        Some(length) => report(status::DONE, &rest[..length]),
        None => {
            let output = heap::zeroed(OUTPUT_SIZE as usize);
            let length = abi::write(&answer, output);
            report(status::DONE, &output[..length]);
        }
    }
}

mod machine {
    use super::{report, status};
    use core::arch::wasm32::{memory_grow, memory_size as pages, unreachable};

    const PAGE: usize = 0x1_0000;

    unsafe extern "C" {
        static __heap_base: u8;
    }

    /// First address after the variables.
    pub fn heap_start() -> usize {
        &raw const __heap_base as usize
    }

    /// End of the memory.
    pub fn memory_size() -> usize {
        pages(0) * PAGE
    }

    /// Asks the engine for memory up to `end`; the engine decides how much a program may have.
    pub fn grow(limit: usize, end: usize) -> Option<usize> {
        if limit < memory_size() {
            return None; // the blob is in the way, during `init`
        }
        let missing = (end - memory_size()).div_ceil(PAGE);
        (memory_grow(0, missing) != usize::MAX).then(memory_size)
    }

    /// Ends the run because the engine gives no more memory.
    pub fn out_of_memory() -> ! {
        report(status::OUT_OF_MEMORY, &[]);
        unreachable()
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    // Above the heap's top no memory is in use, and no other code runs any more.
    let top = heap::top();
    if top + 256 <= machine::memory_size() {
        // SAFETY: the bytes are inside the memory, and no block lies over them.
        let text = unsafe { core::slice::from_raw_parts_mut(top as *mut u8, 256) };
        let length = program::describe(info, text);
        report(status::PANICKED, &text[..length]);
    } else {
        report(status::PANICKED, &[]);
    }
    core::arch::wasm32::unreachable()
}
