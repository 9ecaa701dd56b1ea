//! Between sockets and hyper: bytes that were read ahead, and a watch on who takes too long.

use crate::http::activity::Activity;
use crate::listener::framing::Framing;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes that an HTTP/2 connection reads in one turn. Thousands of small frames fit into it; who is to take them must have a turn, too.
const TURN: usize = 32 * 1024;

/// How an HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection speaks, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detected {
    /// HTTP/1.0 or 1.1, or something that the parser will refuse.
    Http1,
    /// HTTP/2 with prior knowledge, or after ALPN.
    Http2,
    /// A TLS handshake where none is expected.
    Tls,
    /// It ended before it said anything.
    Nothing,
}

/// A stream whose first bytes were looked at; they are read again by whoever reads next.
#[derive(Debug)]
pub(super) struct ClientStream<T> {
    stream: T,
    ahead: Vec<u8>,
    passed: usize,
    activity: Arc<Activity>,
    closing: Closing,
    /// How requests of HTTP/1.1 are framed, if somebody wants to know.
    framing: Option<Framing>,
    /// Bytes read in this turn; `None`: as many as there are.
    turn: Option<usize>,
}

#[derive(Debug)]
enum Closing {
    No,
    /// Our half is closed. What the peer still sends is read and thrown away until then, and up to this many bytes: were it left
    /// unread, the kernel would reset the connection, and the answer with it (RFC 9112, 9.6).
    Lingering(Pin<Box<Sleep>>, usize),
    Done,
}

/// Longest time for which a peer may go on sending what nobody wants.
const LINGER: Duration = Duration::from_secs(2);
/// Most bytes of it.
const LINGER_BYTES: usize = 64 * 1024 * 1024;

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Of which nothing was read yet.
    pub(super) fn new(stream: T, activity: Arc<Activity>) -> Self {
        Self { stream, ahead: Vec::new(), passed: 0, activity, closing: Closing::No, framing: None, turn: None }
    }

    /// Holds what is read to the letter of HTTP/1.1.
    pub(super) fn strict(self) -> Self {
        Self { framing: Some(Framing::new()), ..self }
    }

    /// Reads no more than a part of what there is at once, and lets others have their turn before it goes on.
    pub(super) fn in_turns(self) -> Self {
        Self { turn: Some(0), ..self }
    }

    /// Waits for as many bytes as tell what the peer speaks.
    pub(super) async fn sniff(mut stream: T, activity: Arc<Activity>) -> io::Result<(Self, Detected)> {
        let mut ahead = Vec::with_capacity(2048);
        let spoken = loop {
            if stream.read_buf(&mut ahead).await? == 0 {
                break if ahead.is_empty() { Detected::Nothing } else { Detected::Http1 };
            }
            activity.received();
            let seen = ahead.len().min(PREFACE.len());
            if ahead[0] == 0x16 {
                break Detected::Tls;
            } else if ahead[..seen] != PREFACE[..seen] {
                break Detected::Http1;
            } else if seen == PREFACE.len() {
                break Detected::Http2;
            }
        };
        Ok((Self { ahead, ..Self::new(stream, activity) }, spoken))
    }
}

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Reads until the peer has closed its half too, or its time is over.
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
        ready!(self.as_mut().poll_bytes(cx, into))?;
        Poll::Ready(self.check(into, before))
    }
}

impl<T: AsyncRead + Unpin> ClientStream<T> {
    /// Lets pass what is framed as it must be.
    fn check(&mut self, into: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let count = into.filled().len() - before;
        let Some(framing) = &mut self.framing else { return Ok(()) };
        // What a tunnel carries is not framed. A client of a WebSocket waits for the answer before it says anything (RFC 6455, 4.1).
        if count == 0 || self.activity.has_tunnels() {
            return Ok(());
        }
        let good = framing.watch(&mut into.filled_mut()[before..]);
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
            self.activity.received();
        }
        if let Some(turn) = &mut self.turn {
            *turn = if polled.is_ready() { *turn + read } else { 0 };
        }
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

fn misframed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a chunked body is not framed as it must be")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sniff(bytes: &'static [u8]) -> (Vec<u8>, Detected) {
        let (mut stream, spoken) = ClientStream::sniff(bytes, Activity::new()).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        (all, spoken)
    }

    #[tokio::test]
    async fn the_first_bytes_tell() {
        for (bytes, spoken) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], Detected::Http1),
            (b"PRI / HTTP/1.1\r\n\r\n", Detected::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0", Detected::Http2),
            (b"PRI", Detected::Http1),
            (b"\x16\x03\x01", Detected::Tls),
            (b"", Detected::Nothing),
        ] {
            assert_eq!(sniff(bytes).await, (bytes.to_vec(), spoken));
        }
    }
}
