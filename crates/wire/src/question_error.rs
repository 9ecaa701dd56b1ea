//! Why a question or an answer is refused.

use crate::encoding::EncodingError;
use leno_model::{BadFunctionId, FunctionId};

/// Maximum number of candidates in one question.
pub(crate) const MAX_CANDIDATES: usize = 200;
/// Maximum size of the candidates of one question, in bytes.
pub(crate) const MAX_CANDIDATE_BYTES: usize = 8 << 20;

/// A question that one end cannot encode or decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuestion {
    /// The node got more candidates than it accepts.
    #[error("there are too many candidates in one question")]
    TooManyCandidates,
    /// The control plane has more candidates than a node accepts.
    #[error(
        "a node takes at most {MAX_CANDIDATES} functions and {} MiB of programs at once, and there are {functions} and {bytes} bytes",
        MAX_CANDIDATE_BYTES >> 20
    )]
    #[allow(missing_docs, reason = "the message names them")]
    TooLarge { functions: usize, bytes: usize },
    /// A candidate has a field or variant that this release does not know. The error names the
    /// field.
    #[error("a candidate cannot be read: {0}")]
    Candidate(EncodingError),
    /// A candidate cannot be encoded.
    #[error(transparent)]
    Encoding(EncodingError),
    /// The question has an invalid function name.
    #[error(transparent)]
    Function(#[from] BadFunctionId),
    /// The question has too many namespaces, or a position that no node answered.
    #[error("the question has too many namespaces, or too long a position")]
    ViewTooLarge,
    /// A later release has this kind of question.
    #[error("this release does not know the question")]
    Unknown,
}

/// An answer that does not fit the question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// A later release has this kind of answer.
    #[error("the answer is of a kind that this release does not know")]
    Unknown,
    /// The answer has an invalid function name.
    #[error(transparent)]
    Function(#[from] BadFunctionId),
    /// A time in the answer is not representable.
    #[error("{0}")]
    Time(String),
    /// The answer is about a function that the question does not name.
    #[error("it answered about {0}, which nobody asked about")]
    OtherFunction(FunctionId),
    /// The answer has more bytes than the question permits.
    #[error("it answered more than it was asked for")]
    TooLong,
    /// The answer is of another kind than the question.
    #[error("it answered something else")]
    OtherKind,
}
