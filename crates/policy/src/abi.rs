//! How a program is carried into a sandbox and out of it: bytes in the
//! [postcard](https://postcard.jamesmunns.com/wire-format) encoding.

use crate::input::RequestInput;
use crate::outcome::Output;
use crate::program::Program;
use crate::spec::ProgramSpec;
use alloc::string::ToString;
use core::fmt;

/// The blob does not encode a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadProgram(postcard::Error);

impl fmt::Display for BadProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program cannot be decoded: {}", self.0)
    }
}

impl core::error::Error for BadProgram {}

/// Builds a program from an encoded [`ProgramSpec`].
pub fn init(blob: &[u8]) -> Result<Program, BadProgram> {
    postcard::from_bytes::<ProgramSpec>(blob).map(Program::new).map_err(BadProgram)
}

/// An encoded input without its time: equal inputs get equal decisions within the decision's
/// [window](crate::outcome::Window).
pub fn without_time(input: &[u8]) -> &[u8] {
    input.get(size_of::<u64>()..).unwrap_or_default()
}

/// Runs a program once: decodes a [`RequestInput`] and encodes an [`Output`]. Returns the length of the
/// output. The output is always valid if `output` holds some hundred bytes: an unreadable input, or
/// an outcome that does not fit, becomes [`Output::Unreadable`].
pub fn run(program: &Program, input: &[u8], output: &mut [u8]) -> usize {
    write(&answer(program, input), output)
}

/// The output of a program for an encoded [`RequestInput`].
pub fn answer(program: &Program, input: &[u8]) -> Output {
    match postcard::from_bytes::<RequestInput<'_>>(input) {
        Ok(input) => program.judge(&input),
        Err(error) => Output::Unreadable(error.to_string()),
    }
}

/// Encodes an output if it fits, and returns the length.
pub fn encode(output: &Output, area: &mut [u8]) -> Option<usize> {
    postcard::to_slice(output, area).ok().map(|written| written.len())
}

/// Encodes an output, or an explanation that it does not fit.
pub fn write(output: &Output, area: &mut [u8]) -> usize {
    let excuse = || Output::Unreadable("the outcome is larger than the output area".to_string());
    encode(output, area).or_else(|| encode(&excuse(), area)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
