//! The output of instances on standard output and standard error, line by line.

use leno_model::{Output, OutputLine, OutputMark, OutputQuery};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

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
    lines: VecDeque<OutputLine>,
    bytes: usize,
    /// Number of lines so far, the dropped ones included.
    pushed: u64,
}

impl OutputBuffer {
    pub(crate) fn new(began: SystemTime) -> Self {
        Self { began, lines: VecDeque::new(), bytes: 0, pushed: 0 }
    }

    /// Adds a line. Drops the oldest ones if there are more than `most` bytes.
    pub(crate) fn push(&mut self, line: OutputLine, most: usize) {
        self.bytes += LINE + line.text.len();
        self.lines.push_back(line);
        self.pushed += 1;
        while self.bytes > most && self.lines.len() > 1 {
            if let Some(oldest) = self.lines.pop_front() {
                self.bytes -= LINE + oldest.text.len();
            }
        }
    }

    /// Reads further output of the instance with this number.
    pub(crate) fn read(&self, instance: u64, query: &OutputQuery, output: &mut Output) {
        let began_ms = millis(self.began);
        let is_it = |mark: &&OutputMark| (mark.instance, mark.began_ms) == (instance, began_ms);
        let first = self.pushed - self.lines.len() as u64;
        let next = match query.after.iter().find(is_it) {
            Some(mark) => mark.next.min(self.pushed),
            None => {
                let tail = query.tail.map_or(usize::MAX, |tail| usize::try_from(tail).unwrap_or(usize::MAX));
                self.pushed - tail.min(self.lines.len()) as u64
            }
        };
        output.dropped += first.saturating_sub(next);
        let mut next = next.max(first);
        let mut bytes: usize = output.lines.iter().map(|line| line.text.len()).sum();
        let skipped = usize::try_from(next - first).unwrap_or(usize::MAX);
        for line in self.lines.iter().skip(skipped) {
            if bytes >= usize::try_from(query.limit).unwrap_or(usize::MAX) {
                output.more = true;
                break;
            }
            bytes += line.text.len() + LINE;
            next += 1;
            output.lines.push(line.clone());
        }
        output.marks.push(OutputMark { instance, began_ms, next });
    }

    /// The lines, oldest first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &OutputLine> {
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
    use leno_model::{FunctionId, OutputStream};
    use tokio::io::BufReader;

    async fn lines(input: &[u8], limit: usize) -> Vec<String> {
        let mut lines = Vec::new();
        // A tiny buffer, so that lines span several reads.
        read_lines(BufReader::with_capacity(3, input), limit, |line| lines.push(line), |_| Duration::ZERO).await;
        lines
    }

    fn line(number: u64, text: &str) -> OutputLine {
        let (at, stream) = (SystemTime::UNIX_EPOCH, OutputStream::Stdout);
        OutputLine { instance: number, at, stream, text: text.to_owned() }
    }

    fn query(after: Vec<OutputMark>, limit: u32) -> OutputQuery {
        let function = FunctionId::new("orders", "order-service").unwrap();
        OutputQuery { function, instance: None, previous: false, attempt: None, tail: None, after, limit }
    }

    fn read(kept: &OutputBuffer, query: &OutputQuery) -> (Vec<String>, Output) {
        let mut read = Output::default();
        kept.read(1, query, &mut read);
        (read.lines.iter().map(|line| line.text.clone()).collect(), read)
    }

    #[test]
    fn the_latest_lines_are_kept_and_what_a_reader_missed_is_counted() {
        let mut kept = OutputBuffer::new(SystemTime::UNIX_EPOCH);
        let all = query(Vec::new(), u32::MAX);
        for number in 0..3 {
            kept.push(line(1, &number.to_string()), 1000);
        }
        let (lines, first) = read(&kept, &all);
        assert_eq!((lines, first.dropped, first.more), (vec!["0".to_owned(), "1".into(), "2".into()], 0, false));
        for number in 3..100 {
            kept.push(line(1, &number.to_string()), 1000);
        }
        assert!(kept.bytes <= 1000 && kept.lines.len() > 10);
        let on = OutputQuery { after: first.marks, ..all.clone() };
        let (lines, read_on) = read(&kept, &on);
        assert_eq!(lines.len() as u64 + read_on.dropped, 97);
        assert_eq!(lines.last().unwrap(), "99");
        let (lines, _) = read(&kept, &OutputQuery { after: read_on.marks, ..all.clone() });
        assert!(lines.is_empty());
        let (lines, tail) = read(&kept, &OutputQuery { tail: Some(2), ..all });
        assert_eq!((lines, tail.dropped), (vec!["98".to_owned(), "99".into()], 0));
    }

    #[test]
    fn a_reader_gets_so_much_at_a_time_and_loses_nothing() {
        let mut kept = OutputBuffer::new(SystemTime::UNIX_EPOCH);
        (0..50).for_each(|number| kept.push(line(1, &number.to_string()), 100_000));
        let (mut found, mut after) = (Vec::new(), Vec::new());
        loop {
            let (lines, read) = read(&kept, &query(after, 200));
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
        let after = vec![OutputMark { instance: 1, began_ms: 0, next: 70 }];
        assert_eq!(read(&kept, &query(after, 1000)).0, ["new"]);
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
