//! The stream between a socket and hyper. It replays bytes that were read ahead, checks how
//! requests are framed, and notes activity for the timeouts.

use crate::listener::refused_streams::{Outgoing, Resets};
use http::StatusCode;
use leno_http::activity::Activity;
use leno_http::framing::{Framing, escape};
use leno_http::inflow::{Frames, PeerSettings, TURN};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

/// The HTTP/2 connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol of a connection, detected from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectedProtocol {
    /// HTTP/1.0, HTTP/1.1, or something that the HTTP/1.1 parser will refuse.
    Http1,
    /// HTTP/2 with prior knowledge, or after ALPN.
    Http2,
    /// A TLS handshake where plain text is expected.
    Tls,
    /// The connection ended before its first byte.
    Nothing,
}

/// A client's stream. The bytes that detection has read are returned again to the next reader.
#[derive(Debug)]
pub(super) struct ClientStream<T> {
    stream: T,
    ahead: Vec<u8>,
    passed: usize,
    activity: Arc<Activity>,
    closing: Closing,
    /// Checks how HTTP/1.1 requests are framed; `None`: no check.
    framing: Option<Framing>,
    /// Counts empty HTTP/2 frames; `None`: no check.
    frames: Option<Frames>,
    /// Bytes read in this turn; `None`: turns are not limited.
    turn: Option<usize>,
    /// Interim responses (HTTP/1.1), and the number of their bytes that are written.
    interim: (Vec<u8>, usize),
    /// HTTP/2: finds resets among the written frames. Also the bytes that go before a reset, and
    /// the number of them that are written.
    outgoing: Option<Box<(Outgoing, Vec<u8>, usize)>>,
    /// HTTP/1.1: how many exchanges had begun when everything was last written.
    written: u64,
    /// HTTP/1.1: the status by which the parser refuses a head. The parser's answer gives no
    /// reason, so the proxy writes another one instead.
    refused: Option<StatusCode>,
}

#[derive(Debug)]
enum Closing {
    No,
    /// The proxy's half is closed. Further bytes from the peer are read and discarded until the
    /// timer fires, and up to this many bytes. If they stayed unread, the kernel would reset the
    /// connection, and the response would be lost with it (RFC 9112, 9.6).
    Lingering(Pin<Box<Sleep>>, usize),
    Done,
}

/// How long a peer may go on sending bytes that are discarded.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are discarded.
const LINGER_BYTES: usize = 64 * 1024 * 1024;

impl<T: AsyncRead + Unpin> ClientStream<T> {
    pub(super) fn new(stream: T, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            ahead: Vec::new(),
            passed: 0,
            activity,
            closing: Closing::No,
            framing: None,
            frames: None,
            turn: None,
            interim: (Vec::new(), 0),
            outgoing: None,
            written: 0,
            refused: None,
        }
    }

    /// A stream whose first bytes were read already.
    pub(super) fn begun(stream: T, ahead: Vec<u8>, activity: Arc<Activity>) -> Self {
        activity.received(ahead.len());
        Self { ahead, ..Self::new(stream, activity) }
    }

    /// Checks that everything read is framed exactly as HTTP/1.1 says.
    pub(super) fn strict(self) -> Self {
        Self { framing: Some(Framing::default()), ..self }
    }

    /// Reads at most [`TURN`] bytes at once, and then lets other tasks have their turn. Bounds the
    /// empty HTTP/2 frames, keeps the client's SETTINGS, and lets the connection decide about
    /// resets.
    pub(super) fn http2(self, settings: Arc<PeerSettings>, resets: Resets) -> Self {
        let outgoing = Some(Box::new((Outgoing::new(resets), Vec::new(), 0)));
        Self { turn: Some(0), frames: Some(Frames::of_client(settings)), outgoing, ..self }
    }

    /// Reads as many bytes as it takes to detect the protocol.
    pub(super) async fn sniff(mut stream: T, activity: Arc<Activity>) -> io::Result<(Self, DetectedProtocol)> {
        let mut ahead = Vec::with_capacity(2048);
        let spoken = loop {
            let count = stream.read_buf(&mut ahead).await?;
            if count == 0 {
                break if ahead.is_empty() { DetectedProtocol::Nothing } else { DetectedProtocol::Http1 };
            }
            activity.received(count);
            let seen = ahead.len().min(PREFACE.len());
            if ahead[0] == 0x16 {
                break DetectedProtocol::Tls;
            } else if ahead[..seen] != PREFACE[..seen] {
                break DetectedProtocol::Http1;
            } else if seen == PREFACE.len() {
                break DetectedProtocol::Http2;
            }
        };
        Ok((Self { ahead, ..Self::new(stream, activity) }, spoken))
    }
}

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Reads until the peer has closed its half too, or a limit is reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Closing::Lingering(timer, left) = &mut self.closing else { return Poll::Ready(()) };
        let mut scratch = [0; 16 * 1024];
        while *left > 0 {
            let mut into = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut into) {
                Poll::Ready(Ok(())) if !into.filled().is_empty() => *left = left.saturating_sub(into.filled().len()),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return timer.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ClientStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.framing.as_ref().is_some_and(Framing::is_broken) {
            return Poll::Ready(Err(misframed()));
        }
        let before = into.filled().len();
        loop {
            ready!(self.as_mut().poll_bytes(cx, into))?;
            self.check(into, before)?;
            // Bytes that must be escaped are read again.
            if into.filled().len() > before || !self.framing.as_ref().is_some_and(Framing::is_unescaped) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Keeps the new bytes up to the first one that is framed wrongly.
    fn check(&mut self, into: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let count = into.filled().len() - before;
        if let Some(frames) = &mut self.frames {
            frames.watch(&into.filled()[before..])?;
            self.activity.hold(frames.block());
            return Ok(());
        }
        let Some(framing) = &mut self.framing else { return Ok(()) };
        // The bytes of a tunnel have no HTTP framing. They cannot come too early: a WebSocket
        // client waits for the response before it sends anything (RFC 6455, 4.1).
        if count == 0 || self.activity.has_tunnels() {
            return Ok(());
        }
        let good = framing.watch(&mut into.filled_mut()[before..]);
        if framing.is_unescaped() {
            let mut escaped = escape(&into.filled()[before + good..]);
            escaped.extend_from_slice(&self.ahead[self.passed..]);
            (self.ahead, self.passed) = (escaped, 0);
            into.set_filled(before + good);
            return Ok(());
        }
        if good < count {
            into.set_filled(before + good);
            if good == 0 {
                return Err(misframed());
            }
        }
        Ok(())
    }

    fn poll_bytes(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.passed < self.ahead.len() {
            let count = into.remaining().min(self.ahead.len() - self.passed);
            into.put_slice(&self.ahead[self.passed..self.passed + count]);
            self.passed += count;
            if self.passed == self.ahead.len() {
                self.ahead = Vec::new();
                self.passed = 0;
            }
            return Poll::Ready(Ok(()));
        }
        if self.turn.is_some_and(|read| read >= TURN) {
            self.turn = Some(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        let read = into.filled().len() - before;
        if read > 0 {
            // Over HTTP/2 the frames show which bytes belong to a head.
            self.activity.received(if self.frames.is_some() { 0 } else { read });
        }
        if let Some(turn) = &mut self.turn {
            *turn = if polled.is_ready() { *turn + read } else { 0 };
        }
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> ClientStream<T> {
    /// Writes interim responses (HTTP/1.1). hyper flushes when it has nothing left to write, so
    /// they come between messages.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (bytes, written) = &mut self.interim;
        if bytes.is_empty() {
            self.activity.interim().write_all(bytes);
        }
        while *written < bytes.len() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[*written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += count;
        }
        self.interim = (Vec::new(), 0);
        self.activity.interim().written();
        // The response waits for the interim responses.
        cx.waker().wake_by_ref();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> ClientStream<T> {
    /// Writes HTTP/2 frames up to the next reset, and writes the reset once it is decided.
    fn poll_write_frames(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(outgoing) = &mut self.outgoing else { return Poll::Ready(Ok(0)) };
        let (frames, before, written) = &mut **outgoing;
        let mut count = bytes.len();
        loop {
            while *written < before.len() {
                let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &before[*written..]))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                *written += count;
            }
            (*before, *written) = (Vec::new(), 0);
            match frames.until_reset(&bytes[..count]) {
                // The connection decides after this call, and polls again.
                Some(0) => match frames.before_reset(bytes) {
                    Some(decided) => *before = decided,
                    None => return Poll::Pending,
                },
                Some(end) => count = end,
                None => break,
            }
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, &bytes[..count]);
        if let Poll::Ready(Ok(count)) = polled {
            frames.written(&bytes[..count]);
        }
        self.note_sent(&polled);
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.interim.0.is_empty() {
            ready!(self.poll_interim(cx))?;
        }
        if self.refuses(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        if self.outgoing.is_some() {
            return self.poll_write_frames(cx, bytes);
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_sent(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.interim().is_waiting() {
            ready!(self.poll_interim(cx))?;
        }
        // hyper flushes when it has nothing left to write.
        if !self.activity.is_busy() {
            self.written = self.activity.begun();
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        loop {
            match &self.closing {
                Closing::No => {
                    ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
                    self.closing = match self.activity.has_unread() {
                        true => Closing::Lingering(Box::pin(tokio::time::sleep(LINGER)), LINGER_BYTES),
                        false => Closing::Done,
                    };
                }
                Closing::Lingering(..) => {
                    ready!(self.poll_linger(cx));
                    self.closing = Closing::Done;
                }
                Closing::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.interim.0.is_empty() {
            ready!(self.poll_interim(cx))?;
        }
        if bytes.iter().find(|bytes| !bytes.is_empty()).is_some_and(|bytes| self.refuses(bytes)) {
            return Poll::Ready(Ok(bytes.iter().map(|bytes| bytes.len()).sum()));
        }
        if self.outgoing.as_ref().is_some_and(|outgoing| outgoing.0.has_reset(bytes) || !outgoing.1.is_empty()) {
            let first = bytes.iter().find(|bytes| !bytes.is_empty());
            return first.map_or(Poll::Ready(Ok(0)), |first| self.poll_write_frames(cx, first));
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        if let (Some(outgoing), Poll::Ready(Ok(count))) = (&mut self.outgoing, &polled) {
            let mut left = *count;
            for bytes in bytes {
                let count = left.min(bytes.len());
                outgoing.0.written(&bytes[..count]);
                left -= count;
            }
        }
        self.note_sent(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<T> ClientStream<T> {
    fn note_sent(&mut self, polled: &Poll<io::Result<usize>>) {
        if let (Some(frames), Poll::Ready(Ok(count))) = (&mut self.frames, polled) {
            frames.sent(*count);
        }
    }
}

impl<T> ClientStream<T> {
    /// Whether hyper writes the answer by which its parser refuses a head: no response to a request
    /// is left to be written.
    fn refuses(&mut self, bytes: &[u8]) -> bool {
        if self.refused.is_some() {
            return true;
        }
        let is_answer = self.framing.is_some()
            && !self.activity.is_busy()
            && self.written == self.activity.begun()
            && !self.activity.has_tunnels();
        if is_answer && let Some([a, b, c, ..]) = bytes.strip_prefix(b"HTTP/1.1 ") {
            self.refused = StatusCode::from_bytes(&[*a, *b, *c]).ok().filter(StatusCode::is_client_error);
        }
        self.refused.is_some()
    }

    /// The status by which the parser has refused a head.
    pub(super) fn refused(&self) -> Option<StatusCode> {
        self.refused
    }

    pub(super) fn framing(&self) -> Option<&Framing> {
        self.framing.as_ref()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> ClientStream<T> {
    /// Writes the last answer, and reads until the client has closed too: it may still be sending.
    pub(super) async fn end_with(mut self, answer: &[u8]) -> io::Result<()> {
        self.refused = None;
        self.stream.write_all(answer).await?;
        self.activity.leave_unread();
        poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await
    }
}

fn misframed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a chunked body is not framed as it must be")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sniff(bytes: &'static [u8]) -> (Vec<u8>, DetectedProtocol) {
        let (mut stream, spoken) = ClientStream::sniff(bytes, Activity::new()).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        (all, spoken)
    }

    #[tokio::test]
    async fn the_first_bytes_tell() {
        for (bytes, spoken) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], DetectedProtocol::Http1),
            (b"PRI / HTTP/1.1\r\n\r\n", DetectedProtocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0", DetectedProtocol::Http2),
            (b"PRI", DetectedProtocol::Http1),
            (b"\x16\x03\x01", DetectedProtocol::Tls),
            (b"", DetectedProtocol::Nothing),
        ] {
            assert_eq!(sniff(bytes).await, (bytes.to_vec(), spoken));
        }
    }
}
