//! The engine that does not isolate: the same code, called as a function.

use crate::error::LoadError;
use leno_policy::abi;
use leno_policy::input::MAX_INPUT;
use leno_policy::outcome::MAX_OUTPUT;
use leno_policy::program::Program;

pub(crate) fn load(program: &[u8]) -> Result<Program, LoadError> {
    abi::init(program).map_err(|error| LoadError::Refused(error.to_string()))
}

/// Room for an input and an output, used again and again.
pub(crate) struct Buffers {
    pub input: Box<[u8]>,
    output: Box<[u8]>,
    /// Of the input that is there.
    given: usize,
    /// Of the output that is there.
    length: usize,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self { input: vec![0; MAX_INPUT].into(), output: vec![0; MAX_OUTPUT].into(), given: 0, length: 0 }
    }

    /// Runs the program on so many bytes of input.
    pub(crate) fn run(&mut self, program: &Program, input: usize) {
        self.given = input;
        self.length = abi::run(program, &self.input[..input], &mut self.output);
    }

    /// Erases what the last run was given, and what it left.
    pub(crate) fn erase(&mut self) {
        self.input[..self.given].fill(0);
        self.output[..self.length].fill(0);
        (self.given, self.length) = (0, 0);
    }

    /// What the last run left.
    pub(crate) fn output(&self) -> &[u8] {
        &self.output[..self.length]
    }
}
