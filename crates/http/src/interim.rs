//! Interim responses (RFC 9110, 15.2) on their way from an upstream to a client.

use http::{Response, StatusCode};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

/// Bytes of interim responses that are passed on for one request.
pub const MAX_INTERIM_BYTES: usize = 48 * 1024;
/// The cost of each of them besides its fields.
const HEAD_COST: usize = 64;

/// An interim response.
pub type Interim = Response<()>;

/// Whether a proxy passes a status on. It answers `Expect: 100-continue` itself, and 101 ends the
/// exchange.
#[inline]
pub fn is_passed_on(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::CONTINUE && status != StatusCode::SWITCHING_PROTOCOLS
}

/// Bytes that an interim response costs.
pub fn cost(interim: &Interim) -> usize {
    let fields = interim.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    HEAD_COST + fields.sum::<usize>()
}

/// Interim responses that wait to be taken by one task. Atomic only because streams of connections
/// must be `Send`; a single thread uses it.
#[derive(Debug, Default)]
pub struct InterimQueue {
    is_waiting: AtomicBool,
    heads: Mutex<VecDeque<Interim>>,
    reader: Mutex<Option<Waker>>,
}

impl InterimQueue {
    /// Adds one, and wakes the task that takes them.
    pub fn push(&self, interim: Interim) {
        if let Ok(mut heads) = self.heads.lock() {
            heads.push_back(interim);
            self.is_waiting.store(true, Ordering::Relaxed);
        }
        if let Some(reader) = self.reader.lock().ok().and_then(|mut reader| reader.take()) {
            reader.wake();
        }
    }

    /// Whether one waits.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Takes the first one.
    #[inline]
    pub fn take(&self) -> Option<Interim> {
        if !self.is_waiting() {
            return None;
        }
        let mut heads = self.heads.lock().ok()?;
        let first = heads.pop_front();
        self.is_waiting.store(!heads.is_empty(), Ordering::Relaxed);
        first
    }

    /// Drops all of them.
    pub fn clear(&self) {
        while self.take().is_some() {}
    }

    /// Takes all of them, as HTTP/1.1 writes them. They wait until [`InterimQueue::written`].
    pub fn write_all(&self, into: &mut Vec<u8>) {
        if let Ok(mut heads) = self.heads.lock() {
            heads.drain(..).for_each(|interim| write(&interim, into));
        }
    }

    /// Those that were taken have been written.
    pub fn written(&self) {
        let is_empty = self.heads.lock().is_ok_and(|heads| heads.is_empty());
        self.is_waiting.store(!is_empty, Ordering::Relaxed);
    }

    /// Wakes the task when one is added.
    pub fn register(&self, waker: &Waker) {
        if let Ok(mut reader) = self.reader.lock()
            && !reader.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            *reader = Some(waker.clone());
        }
    }
}

/// An interim response as HTTP/1.1 writes it.
fn write(interim: &Interim, into: &mut Vec<u8>) {
    let status = interim.status();
    into.extend_from_slice(b"HTTP/1.1 ");
    into.extend_from_slice(status.as_str().as_bytes());
    into.push(b' ');
    into.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    into.extend_from_slice(b"\r\n");
    for (name, value) in interim.headers() {
        into.extend_from_slice(name.as_str().as_bytes());
        into.extend_from_slice(b": ");
        into.extend_from_slice(value.as_bytes());
        into.extend_from_slice(b"\r\n");
    }
    into.extend_from_slice(b"\r\n");
}
