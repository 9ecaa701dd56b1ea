//! Errors of an established link.

use leno_shm::head::BadHead;
use leno_shm::slab::Full;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is not enough memory in this program's arena.
    #[error(transparent)]
    Full(#[from] Full),
    /// The head is invalid.
    #[error(transparent)]
    Head(#[from] BadHead),
    /// The head exceeds its limit.
    #[error("the head has {0} bytes, and may have {1}")]
    TooLong(usize, u32),
    /// The buffer belongs to another chain.
    #[error("the buffer belongs to another link")]
    OtherLink,
    /// There is no answer: the callee, or the node, has failed.
    #[error("the call has failed")]
    Failed,
    /// An answer was awaited, and no thread is in [`Chain::serve`](crate::Chain::serve).
    #[error("no thread serves the chain, so nobody would read the answer")]
    NotServed,
    /// The link has ended.
    #[error("the link to the node has ended")]
    Ended,
}
