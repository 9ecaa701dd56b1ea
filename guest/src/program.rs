//! The program itself: built once, then found again in every copy of the memory in which it was
//! built.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::sync::atomic::{AtomicPtr, Ordering};
use leno_policy::abi;
use leno_policy::outcome::Output;
use leno_policy::program::Program;

static PROGRAM: AtomicPtr<Program> = AtomicPtr::new(core::ptr::null_mut());

/// Builds the program that `blob` encodes. It is never freed.
pub fn init(blob: &[u8]) -> Result<(), String> {
    let program = abi::init(blob).map_err(|error| error.to_string())?;
    PROGRAM.store(Box::into_raw(Box::new(program)), Ordering::Relaxed);
    Ok(())
}

/// Runs the program: encoded input in, encoded output out; returns the length of the output.
#[cfg(target_arch = "x86_64")]
pub fn run(input: &[u8], output: &mut [u8]) -> usize {
    #[cfg(feature = "misbehave")]
    if let Some(length) = crate::misbehave::act(input, output) {
        return length;
    }
    abi::write(&answer(input), output)
}

/// The program's answer to an encoded input.
pub fn answer(input: &[u8]) -> Output {
    // SAFETY: the pointer is null or was leaked by `init`, which nothing undoes.
    match unsafe { PROGRAM.load(Ordering::Relaxed).as_ref() } {
        Some(program) => abi::answer(program, input),
        None => panic!("run before init"),
    }
}

/// Writes `file:line` of a panic; returns the length.
pub fn describe(panic: &core::panic::PanicInfo, text: &mut [u8]) -> usize {
    let Some(place) = panic.location() else { return 0 };
    let mut digits = [0u8; 11];
    let mut start = digits.len();
    let mut line = place.line();
    while start > 1 {
        start -= 1;
        digits[start] = b'0' + (line % 10) as u8;
        line /= 10;
        if line == 0 {
            break;
        }
    }
    start -= 1;
    digits[start] = b':';
    let bytes = place.file().as_bytes().iter().chain(&digits[start..]);
    text.iter_mut().zip(bytes).map(|(to, from)| *to = *from).count()
}
