//! Bodies in memory that functions share. Whoever can read that memory is told where the body is; everybody else gets a copy.

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Most bytes of one frame of a copy.
const CHUNK: usize = 64 << 10;

/// A body that is complete and lies in an arena.
#[derive(Clone, Debug)]
pub(crate) struct SharedBody {
    body: leno_shm::Body,
    /// Bytes that were copied already.
    read: u64,
    /// Everybody gets a copy.
    private: bool,
}

impl SharedBody {
    pub(crate) fn new(body: leno_shm::Body) -> Self {
        Self { body, read: 0, private: false }
    }

    /// A copy of the next bytes. `None`: there are no more.
    pub(crate) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let chunk = self.body.chunk(self.read, CHUNK)?;
        self.read += chunk.len() as u64;
        Some(Frame::data(chunk))
    }

    /// The body where it is. `None`: a part of it was copied already, or it is to be copied.
    pub(crate) fn whole(&self) -> Option<&leno_shm::Body> {
        (self.read == 0 && !self.private).then_some(&self.body)
    }

    pub(crate) fn keep_private(&mut self) {
        self.private = true;
    }

    /// Bytes that are left to read.
    pub(crate) fn left(&self) -> u64 {
        self.body.len().saturating_sub(self.read)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}
