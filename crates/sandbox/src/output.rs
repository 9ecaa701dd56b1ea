//! Checks the output of a sandbox. It is untrusted until then: the input may have exploited the
//! program.

use leno_policy::outcome::{
    Decision, Denial, HeaderEdit, MAX_CLAUSE, MAX_OUTPUT, MAX_PRINCIPAL, MAX_RULE, Output, Verdict,
};

/// An output with more edits than this is treated as an attack.
const MAX_EDITS: usize = 512;
/// The longest header value. (Heads in all are limited to less than an output.)
const MAX_VALUE: usize = 16 * 1024;

/// Framing belongs to the runtime (RFC 9110, 7.6.1; RFC 9112, 6): edits of it by a program could
/// smuggle requests.
const FORBIDDEN: [&str; 9] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why an output is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// It is not the encoding of an output.
    #[error("it cannot be decoded: {0}")]
    Encoding(postcard::Error),
    /// There are bytes after its end.
    #[error("{0} bytes follow its end")]
    Excess(usize),
    /// It has too many elements of a kind.
    #[error("too many {0}")]
    TooMany(&'static str),
    /// An element is longer than its limit.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// A name that is not a field name (RFC 9110, 5.1), or that of a field that programs may not
    /// edit.
    #[error("header name {0:?} is not allowed")]
    HeaderName(String),
    /// A value that is not a field value (RFC 9110, 5.5).
    #[error("the value of header {0:?} is not allowed")]
    HeaderValue(String),
    /// A status that is not valid for a denial.
    #[error("status {0} is none that refuses")]
    Status(u16),
    /// An invalid path.
    #[error("the path is not one")]
    Path,
}

/// Decodes and validates. It accepts any bytes, and is bounded: every element of the result takes
/// at least one of at most [`MAX_OUTPUT`] bytes, and the decoder never reserves more than a
/// mebibyte in advance.
pub(crate) fn decode(bytes: &[u8]) -> Result<Output, OutputError> {
    if bytes.len() > MAX_OUTPUT {
        return Err(OutputError::Excess(bytes.len() - MAX_OUTPUT));
    }
    let (output, rest) = postcard::take_from_bytes::<Output>(bytes).map_err(OutputError::Encoding)?;
    if !rest.is_empty() {
        return Err(OutputError::Excess(rest.len()));
    }
    match &output {
        Output::Decided(decision) => decided(decision)?,
        Output::Unverified(signature) => {
            denial(&signature.denial)?;
            few(signature.keys.len(), "keys")?;
            few(signature.failure.len(), "counters")?;
        }
        Output::Unreadable(reason) => short(reason, MAX_CLAUSE, "the reason")?,
    }
    Ok(output)
}

fn decided(decision: &Decision) -> Result<(), OutputError> {
    verdict(&decision.verdict)?;
    decision.audit.iter().try_for_each(verdict)?;
    short(decision.principal.as_deref().unwrap_or_default(), MAX_PRINCIPAL, "the principal")?;
    if decision.path.as_ref().is_some_and(|path| !is_path(path)) {
        return Err(OutputError::Path);
    }
    few(decision.takes.len(), "counters")?;
    few(decision.asks.len(), "authorizers")?;
    edits(&decision.request_edits)
}

fn verdict(verdict: &Verdict) -> Result<(), OutputError> {
    match verdict {
        Verdict::Allow { rule } => short(rule, MAX_RULE, "the rule's name"),
        Verdict::Deny(found) => denial(found),
    }
}

fn denial(denial: &Denial) -> Result<(), OutputError> {
    if !(400..=599).contains(&denial.status) {
        return Err(OutputError::Status(denial.status));
    }
    short(&denial.rule, MAX_RULE, "the rule's name")?;
    short(&denial.clause, MAX_CLAUSE, "the clause")?;
    few(denial.headers.len(), "headers")?;
    denial.headers.iter().try_for_each(|(name, value)| header(name, value))
}

fn edits(edits: &[HeaderEdit]) -> Result<(), OutputError> {
    few(edits.len(), "header edits")?;
    edits.iter().try_for_each(|edit| match edit {
        HeaderEdit::Set(name, value) | HeaderEdit::Append(name, value) => header(name, value),
        HeaderEdit::Remove(name) => header(name, ""),
    })
}

fn few(count: usize, what: &'static str) -> Result<(), OutputError> {
    if count > MAX_EDITS { Err(OutputError::TooMany(what)) } else { Ok(()) }
}

fn short(text: &str, most: usize, what: &'static str) -> Result<(), OutputError> {
    if text.len() > most { Err(OutputError::TooLong(what)) } else { Ok(()) }
}

fn header(name: &str, value: &str) -> Result<(), OutputError> {
    let token = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > 256 || !name.bytes().all(token) || FORBIDDEN.contains(&name) {
        return Err(OutputError::HeaderName(name.chars().take(64).collect()));
    }
    let visible = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    if value.len() > MAX_VALUE || !value.bytes().all(visible) {
        return Err(OutputError::HeaderValue(name.to_owned()));
    }
    Ok(())
}

/// Origin form (RFC 9112, 3.2.1), without characters that could end the request line.
fn is_path(path: &str) -> bool {
    path == "*" || (path.starts_with('/') && path.bytes().all(|byte| (b'!'..=b'~').contains(&byte)))
}

#[cfg(test)]
mod tests;
