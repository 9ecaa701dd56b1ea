//! Follows the frames of an HTTP/2 connection (RFC 9113, 4.1), and bounds those that carry no
//! message further.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Frames without progress that an HTTP/2 peer may send at once, and in a second.
const IDLE_FRAMES: u32 = 20_000;
/// A smaller refill is a flood. Without this limit, a flood would cause a refill with each frame.
const LEAST_REFILL: u32 = IDLE_FRAMES / 20;
/// Payload bytes of a control frame that cost as much as another frame.
const BYTES_PER_FRAME: u32 = 512;
/// Length of the preface of a client (RFC 9113, 3.4).
const PREFACE: usize = 24;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_HEADERS: u8 = 4;
/// Frames that a frame with data, or the end of a stream, pays for.
const PROGRESS: u32 = 2;
/// Sent bytes that pay for one frame. An answer to a PING has 17.
const SENT_PER_FRAME: usize = 256;

/// Counts the HTTP/2 frames of a peer that carry no message further: SETTINGS, PING, WINDOW_UPDATE,
/// PRIORITY, unknown ones, empty DATA, and HEADERS of which no stream comes to its end. Frames with
/// data, ends of streams, and bytes sent to the peer give some back.
#[derive(Debug)]
pub struct Frames {
    /// The beginning of a frame's head that has arrived.
    head: [u8; 9],
    known: usize,
    /// Bytes to skip: the rest of a payload, or of the preface.
    skip: usize,
    /// Frames that the peer may still send.
    left: u32,
    refilled: Instant,
    sent: usize,
    /// Bytes of the block of header fields that has begun, and whether its last frame has begun.
    block: (usize, bool),
    /// The SETTINGS frame that is being read: the part of an entry that has arrived.
    setting: Option<([u8; 6], usize)>,
    /// Where the peer's SETTINGS are kept.
    settings: Option<Arc<PeerSettings>>,
}

/// The SETTINGS of an HTTP/2 peer (RFC 9113, 6.5.2) that limit the frames sent to it, and whether it
/// takes new streams at all.
#[derive(Debug)]
pub struct PeerSettings {
    streams: AtomicU32,
    head: AtomicU32,
    known: AtomicBool,
    leaves: AtomicBool,
    /// The task that waits for the first SETTINGS frame.
    waiting: Mutex<Option<Waker>>,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            streams: AtomicU32::new(u32::MAX),
            head: AtomicU32::new(u32::MAX),
            known: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            waiting: Mutex::new(None),
        }
    }
}

impl PeerSettings {
    /// Streams that the peer takes at a time (SETTINGS_MAX_CONCURRENT_STREAMS).
    #[inline]
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Bytes of a head that the peer takes (SETTINGS_MAX_HEADER_LIST_SIZE).
    #[inline]
    pub fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    /// Whether the peer has announced that it takes no new streams (GOAWAY).
    #[inline]
    pub fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    /// Waits for the first SETTINGS frame.
    pub async fn known(&self) {
        poll_fn(|cx| {
            if self.known.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            if let Ok(mut waiting) = self.waiting.lock() {
                *waiting = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn set(&self, [a, b, value @ ..]: [u8; 6]) {
        let value = u32::from_be_bytes(value);
        match u16::from_be_bytes([a, b]) {
            3 => self.streams.store(value, Ordering::Relaxed),
            6 => self.head.store(value, Ordering::Relaxed),
            _ => {}
        }
    }

    fn arrived(&self) {
        if !self.known.swap(true, Ordering::Relaxed)
            && let Some(waiting) = self.waiting.lock().ok().and_then(|mut waiting| waiting.take())
        {
            waiting.wake();
        }
    }
}

impl Frames {
    /// Frames of a server. Its SETTINGS are kept.
    pub(crate) fn of_server(settings: Arc<PeerSettings>) -> Self {
        Self { settings: Some(settings), ..Self::new() }
    }

    fn new() -> Self {
        Self {
            head: [0; 9],
            known: 0,
            skip: 0,
            left: IDLE_FRAMES,
            refilled: Instant::now(),
            sent: 0,
            block: (0, false),
            setting: None,
            settings: None,
        }
    }

    /// Frames of a client, which begins with the preface. Its SETTINGS are kept.
    pub fn of_client(settings: Arc<PeerSettings>) -> Self {
        Self { skip: PREFACE, settings: Some(settings), ..Self::new() }
    }

    /// Follows the next bytes. Fails if there are too many frames without progress.
    pub fn watch(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let (skipped, rest) = bytes.split_at(self.skip.min(bytes.len()));
                self.skip -= skipped.len();
                bytes = rest;
                self.end_block();
                if self.setting.is_some() {
                    self.read_settings(skipped);
                }
                continue;
            }
            let taken = (self.head.len() - self.known).min(bytes.len());
            self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == self.head.len() {
                self.known = 0;
                self.frame()?;
            }
        }
        Ok(())
    }

    fn frame(&mut self) -> io::Result<()> {
        let [a, b, c, kind, flags, ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.skip = length as usize;
        if kind == 1 || kind == 9 {
            self.block = (self.block.0 + self.skip, flags & END_HEADERS != 0);
            self.end_block();
        }
        if kind == SETTINGS && flags & ACK == 0 && self.settings.is_some() {
            self.setting = Some(([0; 6], 0));
            self.read_settings(&[]);
        }
        if kind == GOAWAY
            && let Some(settings) = &self.settings
        {
            settings.leaves.store(true, Ordering::Relaxed);
        }
        let (is_data, has_end) = (kind == 0, kind <= 1 && flags & END_STREAM != 0);
        if has_end || (is_data && length > 0) {
            self.left = self.left.saturating_add(PROGRESS).min(IDLE_FRAMES);
        }
        if is_data && (has_end || length > 0) {
            return Ok(());
        }
        let cost = if is_data { 1 } else { 1 + length / BYTES_PER_FRAME };
        if self.left < cost {
            self.refill()?;
        }
        self.left = self.left.saturating_sub(cost);
        Ok(())
    }

    /// Reads a part of a SETTINGS frame.
    fn read_settings(&mut self, bytes: &[u8]) {
        let (Some((entry, known)), Some(settings)) = (&mut self.setting, &self.settings) else { return };
        for byte in bytes {
            entry[*known] = *byte;
            *known += 1;
            if *known == entry.len() {
                settings.set(*entry);
                *known = 0;
            }
        }
        if self.skip == 0 {
            settings.arrived();
            self.setting = None;
        }
    }

    fn end_block(&mut self) {
        if self.skip == 0 && self.block.1 {
            self.block = (0, false);
        }
    }

    /// Bytes of an unfinished block of header fields.
    #[inline]
    pub fn block(&self) -> usize {
        self.block.0
    }

    fn refill(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.refilled).min(Duration::from_secs(1));
        let more = u32::try_from(u128::from(IDLE_FRAMES) * passed.as_micros() / 1_000_000).unwrap_or(IDLE_FRAMES);
        if more < LEAST_REFILL {
            return Err(io::Error::other("the peer floods the connection with HTTP/2 frames that carry nothing"));
        }
        (self.left, self.refilled) = (more, now);
        Ok(())
    }

    /// Bytes were sent to the peer, which may answer with WINDOW_UPDATEs.
    #[inline]
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= SENT_PER_FRAME {
            let frames = u32::try_from(self.sent / SENT_PER_FRAME).unwrap_or(IDLE_FRAMES);
            self.left = self.left.saturating_add(frames).min(IDLE_FRAMES);
            self.sent %= SENT_PER_FRAME;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = vec![length_bytes[1], length_bytes[2], length_bytes[3], kind, flags, 0, 0, 0, 1];
        frame.resize(9 + length, 0);
        frame
    }

    /// A peer for which no time passes.
    fn at_once() -> Frames {
        Frames { refilled: Instant::now() + Duration::from_secs(3600), ..Frames::new() }
    }

    #[test]
    fn frames_that_carry_nothing_are_bounded() {
        // HEADERS, PRIORITY, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION, an unknown kind, and
        // empty DATA.
        for (kind, length) in [(1, 30), (2, 5), (4, 0), (6, 8), (8, 4), (9, 100), (77, 0), (0, 0)] {
            let (mut frames, one) = (at_once(), frame(kind, 0, length));
            let many = (0..2 * IDLE_FRAMES).take_while(|_| frames.watch(&one).is_ok()).count();
            assert_eq!(many, IDLE_FRAMES as usize, "kind {kind}");
        }
        let (mut frames, large) = (at_once(), frame(4, 0, 16 * 1024));
        let many = (0..2 * IDLE_FRAMES).take_while(|_| frames.watch(&large).is_ok()).count();
        assert!(many < 1000, "a large frame costs more: {many}");
    }

    #[test]
    fn an_unfinished_block_is_known_by_its_length() {
        let mut frames = at_once();
        let (head, more, last) = (frame(1, 0, 1000), frame(9, 0, 500), frame(9, END_HEADERS, 7));
        frames.watch(&head[..9]).unwrap();
        assert_eq!(frames.block(), 1000);
        frames.watch(&[&head[9..], &more].concat()).unwrap();
        assert_eq!(frames.block(), 1500);
        frames.watch(&last[..10]).unwrap();
        assert_eq!(frames.block(), 1507);
        frames.watch(&last[10..]).unwrap();
        assert_eq!(frames.block(), 0);
        frames.watch(&frame(1, END_HEADERS, 0)).unwrap();
        frames.watch(&frame(0, 0, 5000)).unwrap();
        assert_eq!(frames.block(), 0);
    }

    #[test]
    fn messages_are_not() {
        let (mut frames, head) = (at_once(), frame(1, 0, 100));
        let (data, end) = (frame(0, 0, 10), frame(0, END_STREAM, 0));
        for _ in 0..3 * IDLE_FRAMES {
            frames.watch(&head).unwrap();
            frames.watch(&data).unwrap();
            frames.watch(&frame(8, 0, 4)).unwrap();
            frames.watch(&end).unwrap();
        }
        for _ in 0..3 * IDLE_FRAMES {
            frames.watch(&frame(1, END_STREAM, 100)).unwrap();
        }
        for _ in 0..3 * IDLE_FRAMES {
            frames.sent(4096);
            frames.watch(&frame(8, 0, 4)).unwrap();
        }
        let mut slow = Frames::new();
        for _ in 0..3 {
            (0..IDLE_FRAMES).for_each(|_| slow.watch(&frame(6, 0, 8)).unwrap());
            slow.refilled = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        }
    }

    #[test]
    fn settings_of_the_peer_are_kept() {
        let mut entries = frame(SETTINGS, 0, 0);
        entries[2] = 12;
        entries.extend([0, 3, 0, 0, 0, 7, 0, 6, 0, 0, 0x40, 0]);
        for piece in 1..=entries.len() {
            let settings = Arc::new(PeerSettings::default());
            let mut frames = Frames::of_server(settings.clone());
            frames.watch(&frame(SETTINGS, ACK, 0)).unwrap();
            assert!(!settings.known.load(Ordering::Relaxed));
            entries.chunks(piece).for_each(|piece| frames.watch(piece).unwrap());
            assert!(settings.known.load(Ordering::Relaxed));
            assert_eq!((settings.streams(), settings.head()), (7, 16 * 1024));
        }
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(kinds in prop::collection::vec((0..10_u8, 0..2_u8, 0..40_usize), 0..40), piece in 1..50_usize) {
            let mut bytes = vec![7; PREFACE];
            kinds.iter().for_each(|(kind, flags, length)| bytes.extend(frame(*kind, *flags, *length)));
            let (mut whole, mut pieces) = (Frames::of_client(Arc::default()), Frames::of_client(Arc::default()));
            whole.watch(&bytes).unwrap();
            bytes.chunks(piece).for_each(|piece| pieces.watch(piece).unwrap());
            prop_assert_eq!((whole.left, whole.skip, whole.known), (pieces.left, pieces.skip, pieces.known));
            prop_assert_eq!((whole.skip, whole.known), (0, 0));
        }
    }
}
