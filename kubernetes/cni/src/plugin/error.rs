//! Errors in the form of the CNI specification.

use std::fmt::Display;

/// A code of the specification, or one of this plug-in (from 100).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The configuration has a version that the plug-in does not know.
    IncompatibleVersion = 1,
    /// A variable of the environment is missing or wrong.
    Environment = 4,
    /// A stream or file failed.
    Io = 5,
    /// The configuration or the result before cannot be decoded.
    Decode = 6,
    /// The configuration is readable, and wrong.
    Configuration = 7,
    /// The runtime should try again later.
    TryAgainLater = 11,
    /// The agent refuses the pod.
    Refused = 100,
}

/// An error that the runtime reads from the output.
#[derive(Debug, PartialEq, Eq)]
pub struct CniError {
    /// The code.
    pub code: ErrorCode,
    /// One sentence.
    pub message: String,
    /// The cause, and the remedy.
    pub details: String,
}

impl CniError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>, details: impl Display) -> Self {
        Self { code, message: message.into(), details: details.to_string() }
    }

    /// The error as the output of the plug-in.
    pub fn to_json(&self, version: &str) -> String {
        let Self { code, message, details } = self;
        serde_json::json!({"cniVersion": version, "code": *code as u32, "msg": message, "details": details}).to_string()
    }
}
