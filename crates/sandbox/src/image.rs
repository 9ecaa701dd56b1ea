//! A program, built and ready to run.

use crate::kind::EngineKind;
use crate::microvm::{Machine, Snapshot};
use crate::wasm::{self, Wasm};
use leno_policy::program::Program;
use std::fmt;
use std::sync::Arc;

/// A program in the memory that its initialisation left, for one engine. Cloning is cheap; all clones share that memory.
#[derive(Clone)]
pub struct Image(Arc<Body>);

pub(crate) enum Body {
    Microvm(Arc<Machine>, Snapshot),
    Wasm(Arc<Wasm>, wasm::Snapshot),
    /// The program, and the length of its encoding.
    Inline(Box<Program>, usize),
}

impl Image {
    pub(crate) fn new(body: Body) -> Self {
        Self(Arc::new(body))
    }

    pub(crate) fn body(&self) -> &Body {
        &self.0
    }

    /// The engine it is for.
    pub fn kind(&self) -> EngineKind {
        match self.body() {
            Body::Microvm(..) => EngineKind::Microvm,
            Body::Wasm(..) => EngineKind::Wasm,
            Body::Inline(..) => EngineKind::Inline,
        }
    }

    /// Memory in bytes that this program costs while it is loaded. (Inline: the length of its encoding, because
    /// nothing says how much memory a value on the host's heap takes.)
    pub fn bytes(&self) -> usize {
        match self.body() {
            Body::Microvm(_, snapshot) => snapshot.bytes(),
            Body::Wasm(_, snapshot) => snapshot.bytes(),
            Body::Inline(_, encoded) => *encoded,
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Image").field("kind", &self.kind()).field("bytes", &self.bytes()).finish()
    }
}
