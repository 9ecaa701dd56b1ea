//! A program, built and ready to run.

use crate::microvm::{Machine, Snapshot};
use crate::wasm::{self, Wasm};
use leno_policy::engine::EngineKind;
use leno_policy::program::Program;
use leno_policy::spec::ProgramSpec;
use std::fmt;
use std::sync::Arc;

/// A program in the memory that its initialisation left, for one engine. Cloning is cheap; all
/// clones share that memory.
#[derive(Clone)]
pub struct Image(Arc<Body>);

pub(crate) enum Body {
    Microvm(Arc<Machine>, Snapshot),
    Wasm(Arc<Wasm>, wasm::Snapshot),
    /// The program, and the length of its encoding.
    Inline(Box<Program>, usize),
    /// A program whose verdict does not depend on the request.
    Constant(Box<Program>),
}

impl Image {
    pub(crate) fn new(body: Body) -> Self {
        Self(Arc::new(body))
    }

    /// A program that gives every request the same verdict ([`Program::is_constant`]): it is called
    /// without a sandbox. `None`: it is not such a program.
    pub fn constant(spec: ProgramSpec) -> Option<Self> {
        let program = Program::new(spec);
        program.is_constant().then(|| Self::new(Body::Constant(Box::new(program))))
    }

    pub(crate) fn body(&self) -> &Body {
        &self.0
    }

    /// The kind of engine it is for.
    pub fn kind(&self) -> EngineKind {
        match self.body() {
            Body::Microvm(..) => EngineKind::Microvm,
            Body::Wasm(..) => EngineKind::Wasm,
            Body::Inline(..) => EngineKind::Inline,
            Body::Constant(_) => EngineKind::Constant,
        }
    }

    /// Memory in bytes that this program takes while it is loaded. (Inline: the length of its
    /// encoding, because the memory that a value takes on the host's heap is not known; constant:
    /// the program's own value.)
    pub fn bytes(&self) -> usize {
        match self.body() {
            Body::Microvm(_, snapshot) => snapshot.bytes(),
            Body::Wasm(_, snapshot) => snapshot.bytes(),
            Body::Inline(_, encoded) => *encoded,
            Body::Constant(_) => size_of::<Program>(),
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Image").field("kind", &self.kind()).field("bytes", &self.bytes()).finish()
    }
}
