//! The engine that does not isolate: the same code, called as a function.

use crate::engine::LoadError;
use leno_policy::abi;
use leno_policy::outcome::MAX_OUTPUT;
use leno_policy::program::Program;

pub(crate) fn load(program: &[u8]) -> Result<Program, LoadError> {
    abi::init(program).map_err(|error| LoadError::Refused(error.to_string()))
}

/// Runs the program; the buffer holds the output.
pub(crate) fn run(program: &Program, input: &[u8], mut output: Vec<u8>) -> Vec<u8> {
    output.resize(MAX_OUTPUT, 0);
    let length = abi::run(program, input, &mut output);
    output.truncate(length);
    output
}
