//! The engine that does not isolate: the same code, called as a function.

use crate::error::LoadError;
use leno_policy::abi;
use leno_policy::input::MAX_INPUT;
use leno_policy::outcome::MAX_OUTPUT;
use leno_policy::program::Program;

pub(crate) fn load(program: &[u8]) -> Result<Program, LoadError> {
    abi::init(program).map_err(|error| LoadError::Refused(error.to_string()))
}

/// Buffers for an input and an output, which are reused.
pub(crate) struct Buffers {
    pub input: Box<[u8]>,
    output: Box<[u8]>,
    /// The length of the current input.
    given: usize,
    /// The length of the current output.
    length: usize,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self { input: vec![0; MAX_INPUT].into(), output: vec![0; MAX_OUTPUT].into(), given: 0, length: 0 }
    }

    /// Runs the program on `input` bytes of input.
    pub(crate) fn run(&mut self, program: &Program, input: usize) {
        self.given = input;
        self.length = abi::run(program, &self.input[..input], &mut self.output);
    }

    /// Erases the input and the output of the last run.
    pub(crate) fn erase(&mut self) {
        self.input[..self.given].fill(0);
        self.output[..self.length].fill(0);
        (self.given, self.length) = (0, 0);
    }

    /// The output of the last run.
    pub(crate) fn output(&self) -> &[u8] {
        &self.output[..self.length]
    }
}
