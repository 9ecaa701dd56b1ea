//! What instances write to standard output and standard error, line by line.

use crate::instance_id::InstanceId;
use leno_config::id::FunctionId;
use std::fmt;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// The stream to which a line was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of an instance's output. It displays with a prefix: `orders/order-service[3] text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Function of the instance.
    pub function: FunctionId,
    /// The instance that wrote the line.
    pub instance: InstanceId,
    /// The stream to which it was written.
    pub stream: Stream,
    /// The line without its end. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] {}", self.function, self.instance, self.text)
    }
}

/// Reads lines until the input ends and passes them to `each`. The rest of a line longer than `limit` bytes is dropped, because a function must not
/// be able to make the node hold an endless line in memory.
pub(crate) async fn read_lines<R: AsyncBufRead + Unpin>(mut input: R, limit: usize, mut each: impl FnMut(String)) {
    let mut line = Vec::new();
    let mut dropped = 0_usize;
    while let Ok(chunk) = input.fill_buf().await {
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let content = &chunk[..end.unwrap_or(chunk.len())];
        let room = limit.saturating_sub(line.len()).min(content.len());
        line.extend_from_slice(&content[..room]);
        dropped += content.len() - room;
        let used = content.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            each(text(&line, dropped));
            line.clear();
            dropped = 0;
        }
    }
    if !line.is_empty() || dropped > 0 {
        each(text(&line, dropped));
    }
}

fn text(line: &[u8], dropped: usize) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut text = String::from_utf8_lossy(line).into_owned();
    if dropped > 0 {
        text.push_str(&format!("… [{dropped} bytes cut]"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::BufReader;

    async fn lines(input: &[u8], limit: usize) -> Vec<String> {
        let mut lines = Vec::new();
        // A tiny buffer, so that lines span several reads.
        read_lines(BufReader::with_capacity(3, input), limit, |line| lines.push(line)).await;
        lines
    }

    #[tokio::test]
    async fn lines_are_split_and_the_last_needs_no_end() {
        assert_eq!(lines(b"one\r\n\ntwo\nthree", 100).await, ["one", "", "two", "three"]);
    }

    #[tokio::test]
    async fn long_lines_are_cut() {
        assert_eq!(lines(b"0123456789\nok\n", 4).await, ["0123… [6 bytes cut]", "ok"]);
    }

    #[tokio::test]
    async fn bytes_that_are_not_utf8_are_replaced() {
        assert_eq!(lines(b"a\xffb\n", 100).await, ["a\u{fffd}b"]);
    }
}
