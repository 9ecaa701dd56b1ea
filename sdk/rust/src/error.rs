//! What can go wrong once there is a link.

use leno_shm::head::BadHead;
use leno_shm::slab::Full;

/// Why something did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no room in this program's arena.
    #[error(transparent)]
    Full(#[from] Full),
    /// The head is one that everybody refuses.
    #[error(transparent)]
    Head(#[from] BadHead),
    /// The head is longer than may be.
    #[error("the head has {0} bytes, and may have {1}")]
    TooLong(usize, u32),
    /// The buffer is another chain's.
    #[error("the buffer belongs to another link")]
    OtherLink,
    /// There is no answer: whoever had to give it has failed.
    #[error("the call has failed")]
    Failed,
    /// An answer was awaited, and no thread is in [`Chain::serve`](crate::Chain::serve).
    #[error("no thread serves the chain, so nobody would read the answer")]
    NotServed,
    /// The link has ended.
    #[error("the link to the node has ended")]
    Ended,
}
