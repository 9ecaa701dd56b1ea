//! Writes standard output and standard error of instances to the node's log, line by line. An
//! instance cannot flood the log.

use bytes::Bytes;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// The limit of lines of one instance.
const MOST_LINES: u32 = 1000;
/// The limit of bytes of a line; the rest is dropped.
const LONGEST_LINE: usize = 8192;
/// Bytes that a line counts for besides its text and its prefix.
const OVERHEAD: usize = 64;
/// The limit of bytes that are read at once.
const PIECE: usize = 16 * 1024;

/// One of an instance's two outputs.
#[derive(Clone)]
pub(super) struct Output(Arc<Mutex<Lines>>);

struct Lines {
    /// The name of the function and of the output, as in the log.
    prefix: Arc<str>,
    line: Vec<u8>,
    dropped: usize,
    logged: u32,
    admits: Arc<dyn Fn(usize) -> bool + Send + Sync>,
}

impl Output {
    pub(super) fn new(prefix: &Arc<str>, admits: &Arc<dyn Fn(usize) -> bool + Send + Sync>) -> Self {
        let lines = Lines { prefix: prefix.clone(), line: Vec::new(), dropped: 0, logged: 0, admits: admits.clone() };
        Self(Arc::new(Mutex::new(lines)))
    }

    fn take(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
    }
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let capacity = LONGEST_LINE.saturating_sub(self.line.len()).min(text.len());
            self.line.extend_from_slice(&text[..capacity]);
            self.dropped += text.len() - capacity;
            if ended {
                self.log();
            }
        }
    }

    fn log(&mut self) {
        let line = std::mem::take(&mut self.line);
        let dropped = std::mem::take(&mut self.dropped);
        self.logged = self.logged.saturating_add(1);
        if self.logged > MOST_LINES || !(self.admits)(line.len() + self.prefix.len() + OVERHEAD) {
            return;
        }
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line));
        let text = text.replace(|letter: char| letter.is_control() && letter != '\t', "?");
        let prefix = &self.prefix;
        match dropped {
            0 => tracing::info!(target: "instance", "{prefix} {text}"),
            _ => tracing::info!(target: "instance", "{prefix} {text}… [{dropped} bytes cut]"),
        }
        if self.logged == MOST_LINES {
            tracing::warn!(target: "instance", "{prefix} {MOST_LINES} lines of one instance; its further ones are dropped");
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.log();
        }
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PIECE)
    }
}

impl AsyncWrite for Output {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.take(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
