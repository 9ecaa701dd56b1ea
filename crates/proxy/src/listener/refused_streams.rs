//! HTTP/2 streams that the library refuses by itself: it resets them or answers 431, and does not
//! report them to its caller. So the stream below finds both among the written frames. It holds
//! each reset back until the connection has decided which bytes go before it.

use http::HeaderValue;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Length of a frame's head, and of a RST_STREAM frame.
const HEAD: usize = 9;
const RESET: usize = HEAD + 4;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The library's response has a status and nothing else. Each response of the proxy is longer: it
/// has a date and a request ID.
const BARE: usize = 8;
/// Maximum number of bare responses that are remembered.
const MOST_BARE: usize = 128;
/// Maximum number of remembered ranges of streams without a request.
const MOST_GAPS: usize = 64;

/// A reset that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub stream: u32,
    pub code: u32,
}

/// The events that a connection gets about its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// This reset waits for a decision.
    Reset(Reset),
    /// The library has answered 431 on this stream.
    Answered(u32),
}

/// The state that the connection and the stream below it share. A single thread uses it.
#[derive(Clone, Debug, Default)]
pub(super) struct Resets(Arc<Mutex<ResetState>>);

#[derive(Debug, Default)]
struct ResetState {
    asked: Option<Reset>,
    /// The bytes to write before the reset.
    before: Option<Vec<u8>>,
    /// The latest streams that the library has answered.
    answered: Vec<u32>,
    /// How many of the last ones the connection has not seen yet.
    unknown: usize,
}

impl Resets {
    /// The next event that the connection has not seen, or the reset that it has to decide.
    pub(super) fn next(&self) -> Option<Event> {
        let mut undecided = self.lock();
        if let Some(reset) = undecided.asked.filter(|_| undecided.before.is_none()) {
            return Some(Event::Reset(reset));
        }
        let index = undecided.answered.len() - undecided.unknown;
        let stream = undecided.answered.get(index).copied()?;
        undecided.unknown -= 1;
        Some(Event::Answered(stream))
    }

    fn lock(&self) -> MutexGuard<'_, ResetState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the reset be written, after these bytes.
    pub(super) fn decide(&self, before: Vec<u8>) {
        self.lock().before = Some(before);
    }

    fn ask(&self, reset: Reset) -> Option<Vec<u8>> {
        let mut undecided = self.lock();
        if undecided.answered.contains(&reset.stream) {
            return Some(Vec::new());
        }
        undecided.asked = Some(reset);
        let before = undecided.before.take()?;
        undecided.asked = None;
        Some(before)
    }
}

/// Follows the frames that are written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    at: Place,
    resets: Resets,
}

/// The position in a frame where the written bytes end.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    head: [u8; HEAD],
    known: usize,
    skip: usize,
    /// The next reset was decided.
    is_decided: bool,
}

impl Outgoing {
    pub(super) fn new(resets: Resets) -> Self {
        Self { resets, ..Self::default() }
    }

    /// How many of these bytes may be written before the next reset; `None`: all.
    pub(super) fn until_reset(&self, bytes: &[u8]) -> Option<usize> {
        { self.at }.walk(bytes, |_| {})
    }

    /// Whether a reset that is not decided is among these bytes.
    pub(super) fn has_reset(&self, bytes: &[IoSlice<'_>]) -> bool {
        let mut at = self.at;
        bytes.iter().any(|bytes| at.walk(bytes, |_| {}).is_some())
    }

    /// Follows bytes that were written.
    pub(super) fn written(&mut self, bytes: &[u8]) {
        let mut at = std::mem::take(&mut self.at);
        let mut rest = bytes;
        // The walk stops at resets. All resets that were written had been decided.
        while let Some(end) = at.walk(rest, |head| self.note(head)) {
            at.is_decided = true;
            rest = &rest[end..];
        }
        self.at = at;
    }

    /// The bytes to write before the reset with which these bytes begin, once it is decided.
    pub(super) fn before_reset(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let number = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_be_bytes);
        let (stream, code) = (number(5), number(HEAD));
        let before = self.resets.ask(Reset { stream, code })?;
        self.at.is_decided = true;
        Some(before)
    }

    /// Notes a bare response of the library.
    fn note(&self, head: &[u8; HEAD]) {
        let [a, b, c, HEADERS, flags, stream @ ..] = *head else { return };
        if u32::from_be_bytes([0, a, b, c]) as usize <= BARE && flags & END_STREAM != 0 {
            let mut undecided = self.resets.lock();
            if undecided.answered.len() == MOST_BARE {
                undecided.answered.remove(0);
            }
            undecided.answered.push(u32::from_be_bytes(stream));
            undecided.unknown = (undecided.unknown + 1).min(MOST_BARE);
        }
    }
}

impl Place {
    /// Goes on to the end of the bytes, or to the next undecided reset, and returns the position of
    /// that reset.
    fn walk(&mut self, bytes: &[u8], mut seen: impl FnMut(&[u8; HEAD])) -> Option<usize> {
        let mut rest = bytes;
        loop {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = &rest[skipped..];
            if rest.is_empty() {
                return None;
            }
            // The library writes a reset in one piece.
            if self.known == 0 && rest.len() >= RESET && rest[3] == RST_STREAM && !self.is_decided {
                return Some(bytes.len() - rest.len());
            }
            let taken = (HEAD - self.known).min(rest.len());
            self.head[self.known..self.known + taken].copy_from_slice(&rest[..taken]);
            self.known += taken;
            rest = &rest[taken..];
            if self.known == HEAD {
                let [a, b, c, kind, ..] = self.head;
                (self.known, self.skip) = (0, u32::from_be_bytes([0, a, b, c]) as usize);
                self.is_decided &= kind != RST_STREAM;
                seen(&self.head);
            }
        }
    }
}

/// Which of a client's streams have brought a request.
#[derive(Debug, Default)]
pub(super) struct AcceptedStreams {
    /// The stream after the latest one that has brought a request.
    next: u32,
    /// Ranges of earlier streams that have brought no request.
    gaps: Vec<(u32, u32)>,
}

impl AcceptedStreams {
    /// Notes that the request of a stream has come. Requests come in the order of their streams.
    pub(super) fn accept(&mut self, stream: u32) {
        if stream > self.next.max(1) {
            if self.gaps.len() == MOST_GAPS {
                self.gaps.remove(0);
            }
            self.gaps.push((self.next, stream));
        }
        self.next = stream.saturating_add(2);
    }

    /// Whether a stream has not brought a request.
    pub(super) fn is_without(&self, stream: u32) -> bool {
        stream >= self.next || self.gaps.iter().any(|(from, to)| (*from..*to).contains(&stream))
    }
}

/// HEADERS that answer a stream with 400 and end it. They do not change the state of the field
/// compression (RFC 7541, 6.2.2), and do not count against a flow-control window, which the library
/// counts. So the reason is in a field (RFC 9209) instead of content.
pub(super) fn answer(stream: u32, request_id: &HeaderValue, reason: &str) -> Vec<u8> {
    /// `:status: 400`, and the name `content-length`, in the static table.
    const BAD_REQUEST: u8 = 0x80 | 12;
    const CONTENT_LENGTH: [u8; 2] = [0x0f, 28 - 15];
    let mut fields = vec![BAD_REQUEST];
    let text = |text: &[u8]| {
        let text = &text[..text.len().min(126)];
        [&[text.len() as u8], text].concat()
    };
    let status = format!("leno; error=http_request_error; details=\"{reason}\"");
    fields.extend([&CONTENT_LENGTH[..], &text(b"0")].concat());
    for (name, value) in [("x-request-id", request_id.as_bytes()), ("proxy-status", status.as_bytes())] {
        fields.extend([&[0][..], &text(name.as_bytes()), &text(value)].concat());
    }
    let length = (fields.len() as u32).to_be_bytes();
    let head = [&length[1..], &[HEADERS, END_STREAM | END_HEADERS], &stream.to_be_bytes()].concat();
    [head, fields].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    #[test]
    fn resets_are_found_wherever_writes_end() {
        let reset = frame(RST_STREAM, 0, 3, &1_u32.to_be_bytes());
        let before = [frame(4, 0, 0, &[]), frame(HEADERS, 5, 1, &[0; 40]), frame(0, 1, 1, &[RST_STREAM; 100])].concat();
        let all = [&before[..], &reset, &frame(8, 0, 0, &[0; 4])].concat();
        for piece in 1..all.len() {
            let resets = Resets::default();
            let mut outgoing = Outgoing::new(resets.clone());
            let mut at = 0;
            while at < all.len() {
                match outgoing.until_reset(&all[at..]) {
                    Some(0) => {
                        assert_eq!(at, before.len(), "in pieces of {piece}");
                        assert_eq!(outgoing.before_reset(&all[at..]), None);
                        assert_eq!(resets.next(), Some(Event::Reset(Reset { stream: 3, code: 1 })));
                        resets.decide(Vec::new());
                        assert_eq!(resets.next(), None);
                        assert_eq!(outgoing.before_reset(&all[at..]), Some(Vec::new()));
                    }
                    until => {
                        let count = until.unwrap_or(all.len() - at).min(piece);
                        outgoing.written(&all[at..at + count]);
                        at += count;
                    }
                }
            }
        }
    }

    #[test]
    fn the_librarys_own_answers_are_known() {
        let mut outgoing = Outgoing::default();
        outgoing.written(&frame(HEADERS, END_STREAM | END_HEADERS, 7, &[0x48, 2, 1, 2]));
        outgoing.written(&frame(HEADERS, END_STREAM | END_HEADERS, 9, &[0x48; 60]));
        let reset = frame(RST_STREAM, 0, 7, &1_u32.to_be_bytes());
        assert_eq!(outgoing.until_reset(&reset), Some(0));
        assert_eq!(outgoing.before_reset(&reset), Some(Vec::new()));
        assert_eq!(outgoing.resets.next(), Some(Event::Answered(7)));
        assert_eq!(outgoing.resets.next(), None);
    }

    #[test]
    fn streams_without_a_request_are_known() {
        let mut accepted = AcceptedStreams::default();
        assert!(accepted.is_without(1));
        for stream in [1, 3, 9, 11] {
            accepted.accept(stream);
        }
        let without: Vec<_> = (1..16).step_by(2).filter(|stream| accepted.is_without(*stream)).collect();
        assert_eq!(without, [5, 7, 13, 15]);
        (100..1000).for_each(|number| accepted.accept(10 * number + 1));
        assert!(accepted.gaps.len() <= MOST_GAPS);
    }
}
