//! Why recorded requests cannot be judged again.

use leno_policy::spec::Direction;
use leno_sandbox::RunError;

/// Why recorded requests cannot be judged again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A program of the candidate cannot be loaded.
    #[error("its {direction:?} program cannot be loaded: {reason}")]
    Program {
        /// The direction of the program.
        direction: Direction,
        /// Why it cannot be loaded.
        reason: String,
    },
    /// The record has no inputs.
    #[error("another node judged it, or nothing was kept of it")]
    NoInputs,
    /// The program wants a signature verified.
    #[error("its token's signature was never verified, and is not kept")]
    NoSignature,
    /// The program reports that its input is invalid.
    #[error("the program could not read its input: {0}")]
    Unreadable(String),
    /// The program failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The request line is not recorded whole.
    #[error("its method, host or path is longer than what is kept")]
    CutRequestLine,
    /// The program reads a header that is not recorded.
    #[error("the value of its header {0} was not kept")]
    NoHeader(String),
    /// The program reads the query, which is not recorded.
    #[error("its query was not kept")]
    NoQuery,
    /// Names of header fields are missing in the record.
    #[error("it has more header fields than are kept")]
    TooManyHeaders,
    /// The token is not recorded.
    #[error("its token was not kept: it is none that is signed, it is too long, or there were several")]
    NoToken,
    /// The recorded program looked for no token in this header.
    #[error("nobody looked for a token in its header {0} when it was made")]
    NoTokenHeader(String),
    /// The recorded program looked for no token in the query.
    #[error("nobody looked for a token in its query when it was made")]
    NoTokenQuery,
    /// The recorded program looked for no token in the cookies.
    #[error("nobody looked for a token in its cookies when it was made")]
    NoTokenCookie,
    /// A policy that a replay leaves out refused the request.
    #[error("{0} refused it, and that is not replayed")]
    NotReplayed(String),
    /// The candidate asks an authorizer that was not asked.
    #[error("the external authorizer {0} would have to be asked")]
    Authorizer(String),
    /// The keys of the token's issuer are not known.
    #[error("this node has not fetched the key set of its token's issuer")]
    KeysPending,
    /// The record has no verdict.
    #[error("it was not judged")]
    NotJudged,
    /// The recorded program failed.
    #[error("there was no verdict to rely on when it was made")]
    NoVerdict,
}
