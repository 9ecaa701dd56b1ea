//! Misbehaviour of a WebAssembly module.

use super::{AREAS, SCRATCH, address, count, fill};
use crate::heap;
use core::arch::wasm32::{memory_grow, memory_size, unreachable};
use core::hint::black_box;

pub fn act(name: &[u8], argument: &[u8]) {
    let at = address(argument);
    // SAFETY: none of this is safe; the sandbox has to contain it.
    unsafe {
        match name {
            b"read" => drop(black_box((at as *const u64).read_volatile())),
            b"write" => (at as *mut u64).write_volatile(0xdead_beef),
            b"execute" => core::mem::transmute::<usize, extern "C" fn()>(at)(),
            b"undefined" => unreachable(),
            b"grow" => {
                if memory_grow(0, at) == usize::MAX {
                    panic!("refused");
                }
            }
            _ => panic!("unknown order"),
        }
    }
}

pub fn fault() -> ! {
    unreachable()
}

pub fn divide() {
    let divisor = black_box(0u32);
    // SAFETY: none; the promise is a lie, which removes the language's check, and the instruction's own traps.
    unsafe { core::hint::assert_unchecked(divisor != 0) };
    black_box(black_box(1) / divisor);
}

pub fn pollute(marker: &[u8], output: &mut [u8]) {
    let output_start = output.as_mut_ptr() as usize;
    let here = black_box([0u8; 16]);
    // SAFETY: only memory that nothing uses any more: the stack lies at the bottom, below the variables.
    unsafe {
        fill(output_start, output_start + output.len(), marker);
        fill(64, here.as_ptr() as usize - 512, marker);
        fill(SCRATCH.0.get() as usize, SCRATCH.0.get() as usize + 4096, marker);
        fill(heap::top(), memory_size(0) * 0x1_0000, marker);
    }
}

pub fn search(wanted: &[u8]) -> [u32; AREAS] {
    let end = memory_size(0) * 0x1_0000;
    let data = crate::machine::heap_start();
    // SAFETY: all of the memory is readable.
    unsafe {
        let stack = count(16, 0x1_0000, wanted);
        let variables = count(0x1_0000, data, wanted);
        let heap = count(data, end, wanted);
        // Input and output lie on the heap; there are no registers.
        [0, 0, stack, variables, heap, 0]
    }
}
