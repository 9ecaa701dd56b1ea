//! The access log: one line per exchange, as JSON or text, with the rule that decided.
//!
//! A line holds no token, no query and no header value, except for headers that the policy names.
//! Text that a client chose is escaped, so that clients cannot forge lines. Workers format lines
//! into buffers, and a thread writes them. If the thread cannot keep up or cannot write, lines are
//! lost and counted, and no request waits. Each namespace writes no more than its rate; refusals
//! have priority, and omitted lines are counted.

mod line;
mod object;

use crate::exchange::{ExchangeRecord, RecordedVerdict};
use crate::names::workload;
use leno_http::peer::TrafficDirection;
use leno_model::AccessLogSink;
use leno_namespaces::{Importance, Namespace, Namespaces, Source};
use leno_runtime::batch::{BatchBuffer, BatchExporter, Bounds};
use std::fs::File;
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
    exporter: BatchExporter<u8>,
    json: bool,
    unwritten: Arc<AtomicU64>,
}

/// One worker's end of the log.
#[derive(Debug)]
pub struct Lines {
    slot: BatchBuffer<u8>,
    json: bool,
    namespaces: Arc<Namespaces>,
    /// Where exchanges count that no function judged.
    none: Arc<Namespace>,
}

impl AccessLog {
    /// Opens the file to append, and creates it if it does not exist; without a file, opens
    /// standard output.
    pub fn open(sink: &AccessLogSink) -> io::Result<Self> {
        let mut output = match &sink.file {
            Some(path) => Output::File(LogFile::open(path)?),
            None => Output::Stdout,
        };
        let unwritten = Arc::new(AtomicU64::new(0));
        let count = unwritten.clone();
        let mut broken = false;
        let exporter = BatchExporter::start("access-log", BOUNDS, move |lines: &mut Vec<u8>| {
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
        Ok(Self { exporter, json: sink.json, unwritten })
    }

    /// The end for one worker.
    pub fn lines(&self, namespaces: &Arc<Namespaces>) -> Lines {
        let none = namespaces.of(Namespaces::NONE);
        Lines { slot: self.exporter.buffer(), json: self.json, namespaces: namespaces.clone(), none }
    }

    /// Number of lines that were lost.
    pub fn dropped(&self) -> u64 {
        self.exporter.dropped() + self.unwritten.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far are written, for some seconds at most.
    pub fn flush(&self) {
        let _ = self.exporter.flush();
    }
}

impl Lines {
    /// Adds a line, if the exchange's policy wants one and the rate of its namespace allows it.
    pub fn write(&self, observed: &ExchangeRecord) {
        if line::is_wanted(observed) {
            let importance = importance(observed);
            self.slot.append(|buffer| {
                let before = buffer.len();
                let line = if self.json { line::json(buffer, observed) } else { line::text(buffer, observed) };
                buffer.push(b'\n');
                let bytes = buffer.len() - before;
                if line.is_err() || !self.admits(observed, importance, bytes) {
                    buffer.truncate(before);
                }
            });
        }
    }

    fn admits(&self, observed: &ExchangeRecord, importance: Importance, bytes: usize) -> bool {
        let judged = observed.judged.as_ref().map(|judged| &*judged.function);
        let function = judged.or(observed.target.as_deref()).unwrap_or(Namespaces::NONE);
        let admits = |namespace: &Namespace| {
            namespace.log.admits(Source::AccessLog, importance, function, bytes, observed.ended)
        };
        match self.caller(observed, importance) {
            Some(caller) => admits(&caller),
            None => admits(observed.namespace.as_deref().unwrap_or(&self.none)),
        }
    }

    /// The namespace of a caller that another namespace's function has refused: its refused calls
    /// take nothing from the callee's rate.
    fn caller(&self, observed: &ExchangeRecord, importance: Importance) -> Option<Arc<Namespace>> {
        if importance != Importance::Refused || observed.direction != TrafficDirection::Inbound {
            return None;
        }
        let (namespace, _) = workload(observed.peer.identity.as_deref()?)?;
        let is_own = observed.namespace.as_ref().is_some_and(|own| **own.name() == *namespace);
        (!is_own).then(|| self.namespaces.of(namespace))
    }
}

fn importance(observed: &ExchangeRecord) -> Importance {
    match observed.judged.as_ref().map(|judged| &judged.verdict) {
        Some(RecordedVerdict::Allow { .. }) => Importance::Allowed,
        Some(_) | None => Importance::Refused,
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
    let file = leno_files::open_log(path, 0o666);
    file.map_err(|error| io::Error::new(error.kind(), format!("access log {}: {error}", path.display())))
}

#[cfg(test)]
mod tests;
