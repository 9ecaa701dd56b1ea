//! Behaviour that a sandbox must contain, and that tests request by name. The shipped image has
//! none of it.
//!
//! An input with `misbehave:` in it is an order: a name, a colon, and the rest as its argument. It
//! may be the whole input, or a header of a request. The program handles any other input.

use alloc::vec::Vec;
use core::hint::black_box;

#[cfg(target_arch = "x86_64")]
#[path = "misbehave/machine.rs"]
mod kind;
#[cfg(target_arch = "wasm32")]
#[path = "misbehave/module.rs"]
mod kind;

#[cfg(target_arch = "x86_64")]
pub use kind::keep_vectors;

/// Areas that a search tells apart: input, output, stack, variables, heap, registers.
const AREAS: usize = 6;

/// Variables in which a polluter leaves data.
struct Scratch(core::cell::UnsafeCell<[u8; 4096]>);

// SAFETY: a guest has one thread.
unsafe impl Sync for Scratch {}

static SCRATCH: Scratch = Scratch(core::cell::UnsafeCell::new([0; 4096]));

/// Carries out the order in `input`, if it is one; returns the length of the output.
pub fn act(input: &[u8], output: &mut [u8]) -> Option<usize> {
    const MARK: &[u8] = b"misbehave:";
    let order = &input[input.windows(MARK.len()).position(|window| window == MARK)? + MARK.len()..];
    let colon = order.iter().position(|byte| *byte == b':')?;
    let (name, argument) = (&order[..colon], &order[colon + 1..]);
    match name {
        b"spin" => loop {
            black_box(());
        },
        b"spin-writing" => loop {
            output[0] = black_box(output[0]).wrapping_add(1);
        },
        b"recurse" => output[0] = recurse(1) as u8,
        b"divide" => kind::divide(),
        b"panic" => panic!("as ordered"),
        b"exhaust-heap" => {
            let mut hoard = Vec::new();
            loop {
                hoard.push(black_box([1u8; 4096]));
            }
        }
        b"use-heap" => {
            let size = argument.iter().fold(0, |size, digit| size * 10 + usize::from(digit - b'0'));
            let block = alloc::vec![7u8; size];
            output[..8]
                .copy_from_slice(&(black_box(&block).iter().map(|byte| u64::from(*byte)).sum::<u64>()).to_le_bytes());
            return Some(8);
        }
        // Output of a false length, or that is no valid output.
        b"empty-output" => return Some(0),
        b"long-output" => return Some(output.len() + 1),
        b"huge-output" => return Some(usize::MAX),
        b"full-output" => {
            output.fill(0xff);
            return Some(output.len());
        }
        b"say" => {
            output[..argument.len()].copy_from_slice(argument);
            return Some(argument.len());
        }
        // Leaves the argument in all memory and registers that it can reach, for another run to
        // search for. A search is for the complement of its argument, so that the order itself does
        // not hold the searched bytes.
        b"pollute" => kind::pollute(argument, output),
        b"pollute-and-spin" => {
            kind::pollute(argument, output);
            loop {
                black_box(());
            }
        }
        b"pollute-and-fault" => {
            kind::pollute(argument, output);
            kind::fault();
        }
        b"pollute-and-search" => {
            kind::pollute(argument, output);
            return Some(report(kind::search(argument), output));
        }
        b"search" => {
            let wanted: Vec<u8> = argument.iter().map(|byte| !byte).collect();
            let found = kind::search(&wanted);
            return Some(report(found, output));
        }
        _ => kind::act(name, argument),
    }
    Some(1)
}

fn report(found: [u32; AREAS], output: &mut [u8]) -> usize {
    for (place, count) in output.chunks_mut(4).zip(found) {
        place.copy_from_slice(&count.to_le_bytes());
    }
    AREAS * 4
}

#[inline(never)]
#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    recurse(depth + 1) + frame[3]
}

/// Fills memory with copies of `marker`.
///
/// # Safety
/// The memory is writable, and nothing that is still needed lies in it.
unsafe fn fill(start: usize, end: usize, marker: &[u8]) {
    for (at, byte) in (start..end).zip(marker.iter().cycle()) {
        // SAFETY: by the contract of this function.
        unsafe { (at as *mut u8).write_volatile(*byte) };
    }
}

/// How often `wanted` begins in the memory, its own bytes not counted.
///
/// # Safety
/// The memory is readable.
unsafe fn count(start: usize, end: usize, wanted: &[u8]) -> u32 {
    let own = wanted.as_ptr() as usize;
    let mut found = 0;
    for at in start..(end + 1).saturating_sub(wanted.len()) {
        // SAFETY: by the contract of this function.
        let same = |index: usize| unsafe { ((at + index) as *const u8).read_volatile() } == wanted[index];
        if at != own && (0..wanted.len()).all(same) {
            found += 1;
        }
    }
    found
}

/// The address that an order's argument names, in hexadecimal digits.
fn address(argument: &[u8]) -> usize {
    argument.iter().fold(0, |address, digit| address << 4 | char::from(*digit).to_digit(16).unwrap_or(0) as usize)
}
