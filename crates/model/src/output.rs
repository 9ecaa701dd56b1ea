//! The output of instances, and queries of it.

use crate::FunctionId;
use std::time::SystemTime;

/// The stream to which a line was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Number of the instance that wrote it.
    pub instance: u64,
    /// When the node read it.
    pub at: SystemTime,
    /// The stream to which it was written.
    pub stream: OutputStream,
    /// The line without its end. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// A position in the output of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputMark {
    /// Number of the instance.
    pub instance: u64,
    /// When the instance began to write, in milliseconds since 1970.
    pub began_ms: u64,
    /// The number of the next line.
    pub next: u64,
}

/// A query for the output of instances of a function or job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputQuery {
    /// The function.
    pub function: FunctionId,
    /// Only of the instance with this number.
    pub instance: Option<u64>,
    /// Only of the instance that ended last.
    pub previous: bool,
    /// Only of this run of a job; `None`: of the last one.
    pub attempt: Option<u32>,
    /// Maximum number of lines of each instance that is not in `after`: its last ones.
    pub tail: Option<u32>,
    /// How far the reader has read each instance.
    pub after: Vec<OutputMark>,
    /// Bytes of lines after which no further line is taken.
    pub limit: u32,
}

/// Output of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Lines by instance, oldest first.
    pub lines: Vec<OutputLine>,
    /// How far each instance was read.
    pub marks: Vec<OutputMark>,
    /// Number of lines that the node dropped before anyone read them.
    pub dropped: u64,
    /// The node has more lines.
    pub more: bool,
}
