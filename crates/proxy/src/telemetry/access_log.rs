//! The access log: one line per exchange, as JSON or text, with the rule that decided.
//!
//! A line holds no token, no query and no header value, except for headers that the policy names. Everything that a client chose is escaped, so that
//! nobody can forge lines. Workers format lines into buffers, and a thread writes them. If the thread cannot keep up or cannot write, lines are lost
//! and counted, and no request waits.

mod line;
mod object;

use crate::runtime::outbox::{Bounds, Outbox, Slot};
use crate::telemetry::observed::Observed;
use leno_config::slice::AccessLogSink;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds in bytes.
const BOUNDS: Bounds = Bounds { capacity: 1 << 20, enough: 1 << 16, pause: Duration::from_millis(500) };

/// A node's access log.
#[derive(Debug)]
pub struct AccessLog {
    outbox: Outbox<u8>,
    json: bool,
    unwritten: Arc<AtomicU64>,
}

/// One worker's end of the log.
#[derive(Debug)]
pub struct Lines {
    slot: Slot<u8>,
    json: bool,
}

impl AccessLog {
    /// Opens the file to append, and creates it if it does not exist; without a file, opens standard output.
    pub fn open(sink: &AccessLogSink) -> io::Result<Self> {
        let mut output = match &sink.file {
            Some(path) => Output::File(LogFile::open(path)?),
            None => Output::Stdout,
        };
        let unwritten = Arc::new(AtomicU64::new(0));
        let count = unwritten.clone();
        let mut broken = false;
        let outbox = Outbox::start("access-log", BOUNDS, move |lines: &mut Vec<u8>| {
            let result = output.write(lines);
            if let Err(error) = &result {
                let lost = lines.iter().filter(|byte| **byte == b'\n').count();
                count.fetch_add(lost as u64, Ordering::Relaxed);
                if !broken {
                    tracing::warn!(%error, "the access log cannot be written; lines are lost until it can");
                }
            }
            broken = result.is_err();
        })?;
        Ok(Self { outbox, json: sink.json, unwritten })
    }

    /// The end for one worker.
    pub fn lines(&self) -> Lines {
        Lines { slot: self.outbox.slot(), json: self.json }
    }

    /// Number of lines that were lost.
    pub fn dropped(&self) -> u64 {
        self.outbox.dropped() + self.unwritten.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far are written, for some seconds at most.
    pub fn flush(&self) {
        let _ = self.outbox.flush();
    }
}

impl Lines {
    /// Adds a line, if the exchange's policy wants one.
    pub fn write(&self, observed: &Observed) {
        if line::is_wanted(observed) {
            self.slot.append(|buffer| {
                let before = buffer.len();
                let line = if self.json { line::json(buffer, observed) } else { line::text(buffer, observed) };
                if line.is_err() {
                    buffer.truncate(before);
                } else {
                    buffer.push(b'\n');
                }
            });
        }
    }
}

enum Output {
    Stdout,
    File(LogFile),
}

impl Output {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::File(file) => file.write(lines),
        }
    }
}

/// A file that others may rotate: if it was moved or removed, it is made again under its name.
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open(path)? })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let (mine, named) = (self.file.metadata()?, std::fs::metadata(&self.path));
        let is_same = named.is_ok_and(|named| (named.dev(), named.ino()) == (mine.dev(), mine.ino()));
        if !is_same {
            self.file = open(&self.path)?;
        }
        self.file.write_all(lines)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("access log {}: {error}", path.display())))
}

#[cfg(test)]
mod tests;
