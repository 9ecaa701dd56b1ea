//! Bodies in memory that functions share. Whoever can read that memory is told where the body is; everybody else gets a copy.

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use leno_chain::Body as Shared;

/// Most bytes of one frame of a copy.
const CHUNK: u64 = 64 << 10;

/// A body that is complete and lies in an arena.
#[derive(Clone, Debug)]
pub(crate) struct SharedBody {
    body: Shared,
    /// Bytes that were copied already.
    read: u64,
}

impl SharedBody {
    pub(crate) fn new(body: Shared) -> Self {
        Self { body, read: 0 }
    }

    /// A copy of the next bytes. `None`: there are no more.
    pub(crate) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let length = CHUNK.min(self.left());
        if length == 0 {
            return None;
        }
        let mut bytes = BytesMut::zeroed(usize::try_from(length).unwrap_or_default());
        self.body.copy(self.read, &mut bytes);
        self.read += length;
        Some(Frame::data(bytes.freeze()))
    }

    /// The body where it is. `None`: a part of it was copied already.
    pub(crate) fn whole(&self) -> Option<&Shared> {
        (self.read == 0).then_some(&self.body)
    }

    /// Bytes that are left to read.
    pub(crate) fn left(&self) -> u64 {
        self.body.length().saturating_sub(self.read)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left())
    }
}
