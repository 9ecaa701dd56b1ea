//! Bodies in memory that functions share. An instance that can read that memory reads the body in
//! place; other readers get a copy.

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Most bytes of one frame of a copy.
const CHUNK: usize = 64 << 10;

/// A body that is complete and lies in an arena.
#[derive(Clone, Debug)]
pub struct SharedBody {
    body: leno_shm::Body,
    /// Bytes that were copied already.
    read: u64,
    /// Each reader gets a copy.
    private: bool,
}

impl SharedBody {
    /// A body of which nothing was read.
    pub fn new(body: leno_shm::Body) -> Self {
        Self { body, read: 0, private: false }
    }

    /// A copy of the next bytes. `None`: there are no more.
    pub(crate) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let chunk = self.body.chunk(self.read, CHUNK)?;
        self.read += chunk.len() as u64;
        Some(Frame::data(chunk))
    }

    /// The body in place. `None`: a part of it was copied already, or each reader gets a copy.
    pub(crate) fn whole(&self) -> Option<&leno_shm::Body> {
        (self.read == 0 && !self.private).then_some(&self.body)
    }

    /// From now on, each reader gets a copy.
    pub(crate) fn keep_private(&mut self) {
        self.private = true;
    }

    /// Bytes that are left to read.
    pub(crate) fn left(&self) -> u64 {
        self.body.len().saturating_sub(self.read)
    }

    /// The bytes that are left, exactly.
    pub(crate) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}
