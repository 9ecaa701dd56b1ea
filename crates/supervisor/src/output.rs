//! The output of instances on standard output and standard error, line by line.

use crate::instance_id::InstanceId;
use leno_model::FunctionId;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime};
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
    /// When it was read.
    pub at: SystemTime,
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

/// If the pause would be shorter, the output is read on at once.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// Bytes that a line counts besides its text, so that empty lines count.
pub(crate) const LINE: usize = 64;

/// The latest output of one instance, bounded in bytes.
#[derive(Debug)]
pub(crate) struct OutputBuffer {
    /// Distinguishes it from the output of another instance with the same number, which a restarted
    /// node may have.
    began: SystemTime,
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// Number of lines so far, the dropped ones included.
    pushed: u64,
}

/// A query of the output of a function's instances.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Only of the instance with this number.
    pub instance: Option<u64>,
    /// Only of the instance that ended last.
    pub previous: bool,
    /// Of an instance that is not in `after`, only so many of the last lines.
    pub tail: Option<usize>,
    /// The positions that the client has already read.
    pub after: Vec<Mark>,
    /// Bytes of lines after which no further line is taken.
    pub limit: usize,
}

/// How far the output of an instance was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the instance.
    pub instance: u64,
    /// When the first of its lines was kept, in milliseconds since 1970.
    pub began_ms: u64,
    /// The number of the line to begin with.
    pub next: u64,
}

/// The result of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// By instance, oldest first.
    pub lines: Vec<LogLine>,
    /// How far each instance was read.
    pub marks: Vec<Mark>,
    /// Lines that were dropped before they were read.
    pub dropped: u64,
    /// There are more lines.
    pub more: bool,
}

impl Read {
    /// Bytes of the lines.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.text.len()).sum()
    }

    /// Reads further output of one instance.
    pub(crate) fn take(&mut self, instance: InstanceId, kept: &OutputBuffer, reading: &Reading) {
        let began_ms = millis(kept.began);
        let is_it = |mark: &&Mark| (mark.instance, mark.began_ms) == (instance.number, began_ms);
        let first = kept.pushed - kept.lines.len() as u64;
        let next = match reading.after.iter().find(is_it) {
            Some(mark) => mark.next.min(kept.pushed),
            None => {
                let tail = reading.tail.unwrap_or(usize::MAX).min(kept.lines.len());
                kept.pushed - tail as u64
            }
        };
        self.dropped += first.saturating_sub(next);
        let mut next = next.max(first);
        let mut bytes = self.bytes();
        let skipped = usize::try_from(next - first).unwrap_or(usize::MAX);
        for line in kept.lines.iter().skip(skipped) {
            if bytes >= reading.limit {
                self.more = true;
                break;
            }
            bytes += line.text.len() + LINE;
            next += 1;
            self.lines.push(line.clone());
        }
        self.marks.push(Mark { instance: instance.number, began_ms, next });
    }
}

impl OutputBuffer {
    pub(crate) fn new(began: SystemTime) -> Self {
        Self { began, lines: VecDeque::new(), bytes: 0, pushed: 0 }
    }

    /// Adds a line. Drops the oldest ones if there are more than `most` bytes.
    pub(crate) fn push(&mut self, line: LogLine, most: usize) {
        self.bytes += LINE + line.text.len();
        self.lines.push_back(line);
        self.pushed += 1;
        while self.bytes > most && self.lines.len() > 1 {
            if let Some(oldest) = self.lines.pop_front() {
                self.bytes -= LINE + oldest.text.len();
            }
        }
    }

    /// The lines, oldest first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &LogLine> {
        self.lines.iter()
    }
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Reads lines until the input ends and passes them to `each`. The rest of a line longer than
/// `limit` bytes is dropped, because a function must not be able to make the node hold an endless
/// line in memory. After each piece, calls `pace` with the number of its bytes, and waits for the
/// returned time.
pub(crate) async fn read_lines<R: AsyncBufRead + Unpin>(
    mut input: R,
    limit: usize,
    mut each: impl FnMut(String),
    pace: impl Fn(usize) -> Duration,
) {
    let mut line = Vec::new();
    let mut dropped = 0_usize;
    while let Ok(chunk) = input.fill_buf().await {
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let content = &chunk[..end.unwrap_or(chunk.len())];
        let capacity = limit.saturating_sub(line.len()).min(content.len());
        line.extend_from_slice(&content[..capacity]);
        dropped += content.len() - capacity;
        let used = content.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            each(text(&line, dropped));
            line.clear();
            dropped = 0;
        }
        let pause = pace(used);
        if pause >= SHORTEST_PAUSE {
            tokio::time::sleep(pause).await;
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
        read_lines(BufReader::with_capacity(3, input), limit, |line| lines.push(line), |_| Duration::ZERO).await;
        lines
    }

    fn line(number: u64, text: &str) -> LogLine {
        let function = FunctionId::new("orders", "order-service").unwrap();
        let instance = InstanceId { number, revision: 0 };
        LogLine { function, instance, at: SystemTime::UNIX_EPOCH, stream: Stream::Stdout, text: text.to_owned() }
    }

    fn read(kept: &OutputBuffer, reading: &Reading) -> (Vec<String>, Read) {
        let mut read = Read::default();
        read.take(InstanceId { number: 1, revision: 0 }, kept, reading);
        (read.lines.iter().map(|line| line.text.clone()).collect(), read)
    }

    #[test]
    fn the_latest_lines_are_kept_and_what_a_reader_missed_is_counted() {
        let mut kept = OutputBuffer::new(SystemTime::UNIX_EPOCH);
        let all = Reading { limit: usize::MAX, ..Reading::default() };
        for number in 0..3 {
            kept.push(line(1, &number.to_string()), 1000);
        }
        let (lines, first) = read(&kept, &all);
        assert_eq!((lines, first.dropped, first.more), (vec!["0".to_owned(), "1".into(), "2".into()], 0, false));
        for number in 3..100 {
            kept.push(line(1, &number.to_string()), 1000);
        }
        assert!(kept.bytes <= 1000 && kept.lines.len() > 10);
        let on = Reading { after: first.marks, ..all.clone() };
        let (lines, read_on) = read(&kept, &on);
        assert_eq!(lines.len() as u64 + read_on.dropped, 97);
        assert_eq!(lines.last().unwrap(), "99");
        let (lines, _) = read(&kept, &Reading { after: read_on.marks, ..all.clone() });
        assert!(lines.is_empty());
        let (lines, tail) = read(&kept, &Reading { tail: Some(2), ..all });
        assert_eq!((lines, tail.dropped), (vec!["98".to_owned(), "99".into()], 0));
    }

    #[test]
    fn a_reader_gets_so_much_at_a_time_and_loses_nothing() {
        let mut kept = OutputBuffer::new(SystemTime::UNIX_EPOCH);
        (0..50).for_each(|number| kept.push(line(1, &number.to_string()), 100_000));
        let (mut found, mut after) = (Vec::new(), Vec::new());
        loop {
            let (lines, read) = read(&kept, &Reading { limit: 200, after, ..Reading::default() });
            assert!(lines.len() < 10);
            found.extend(lines);
            after = read.marks;
            if !read.more {
                break;
            }
        }
        assert!(found.iter().map(|line| line.parse::<usize>().unwrap()).eq(0..50));
    }

    #[test]
    fn another_instance_of_the_same_number_is_read_from_its_first_line() {
        let mut kept = OutputBuffer::new(SystemTime::UNIX_EPOCH + Duration::from_secs(1));
        kept.push(line(1, "new"), 1000);
        let after = vec![Mark { instance: 1, began_ms: 0, next: 70 }];
        assert_eq!(read(&kept, &Reading { after, limit: 1000, ..Reading::default() }).0, ["new"]);
    }

    #[test]
    fn a_line_longer_than_all_that_is_kept_is_kept_alone() {
        let mut kept = OutputBuffer::new(SystemTime::UNIX_EPOCH);
        (0..3).for_each(|_| kept.push(line(1, &"x".repeat(5000)), 1000));
        assert_eq!((kept.lines.len(), kept.pushed), (1, 3));
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
