//! Between sockets and hyper: bytes that were read ahead, and a watch on who takes too long.

use crate::framing::Framing;
use crate::schedule;
use hyper::rt::Executor;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

pub use hyper_util::rt::TokioTimer as Timer;

/// HTTP/2 flow-control window of a client's stream: what one slow function can make us hold of an upload.
pub const STREAM_WINDOW: u32 = 128 * 1024;
/// HTTP/2 flow-control window of a stream to an upstream: what one slow reader can make us hold of a download. Together with
/// [`SEND_BUFFER`] 128 KiB. Upstreams are near: what is under way to them fits into less.
pub const UPSTREAM_WINDOW: u32 = 64 * 1024;
/// HTTP/2 flow-control window of a connection: that of its streams is the smaller one, so that slow ones do not stop the others. Half of it
/// is what the HTTP/2 library grants to the overhead of small frames that nobody has taken yet: some 16,000.
pub const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of a stream that wait to be written.
pub const SEND_BUFFER: usize = 64 * 1024;
/// Bytes that are read at once from an HTTP/1.1 upstream, and the longest head of a response.
pub const UPSTREAM_BUFFER: usize = 48 * 1024;
/// Bytes that an HTTP/2 connection reads in one turn. Thousands of small frames fit into it; who is to take them must have a turn, too.
const TURN: usize = 32 * 1024;

/// How an HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Runs hyper's tasks on this thread.
#[derive(Clone, Copy, Debug)]
pub struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, future: F) {
        schedule::spawn_part(async move { drop(future.await) });
    }
}

/// What a connection speaks, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
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
pub struct Wire<T> {
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

impl<T: AsyncRead + Unpin> Wire<T> {
    /// Of which nothing was read yet.
    pub fn new(stream: T, activity: Arc<Activity>) -> Self {
        Self { stream, ahead: Vec::new(), passed: 0, activity, closing: Closing::No, framing: None, turn: None }
    }

    /// Holds what is read to the letter of HTTP/1.1.
    pub fn strict(self) -> Self {
        Self { framing: Some(Framing::new()), ..self }
    }

    /// Reads no more than a part of what there is at once, and lets others have their turn before it goes on.
    pub fn in_turns(self) -> Self {
        Self { turn: Some(0), ..self }
    }

    /// Waits for as many bytes as tell what the peer speaks.
    pub async fn sniff(mut stream: T, activity: Arc<Activity>) -> io::Result<(Self, Spoken)> {
        let mut ahead = Vec::with_capacity(2048);
        let spoken = loop {
            if stream.read_buf(&mut ahead).await? == 0 {
                break if ahead.is_empty() { Spoken::Nothing } else { Spoken::Http1 };
            }
            activity.received();
            let seen = ahead.len().min(PREFACE.len());
            if ahead[0] == 0x16 {
                break Spoken::Tls;
            } else if ahead[..seen] != PREFACE[..seen] {
                break Spoken::Http1;
            } else if seen == PREFACE.len() {
                break Spoken::Http2;
            }
        };
        Ok((Self { ahead, ..Self::new(stream, activity) }, spoken))
    }
}

impl<T: AsyncRead + Unpin> Wire<T> {
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

impl<T: AsyncRead + Unpin> AsyncRead for Wire<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.framing.as_ref().is_some_and(Framing::is_broken) {
            return Poll::Ready(Err(misframed()));
        }
        let before = into.filled().len();
        ready!(self.as_mut().poll_bytes(cx, into))?;
        Poll::Ready(self.check(into, before))
    }
}

impl<T: AsyncRead + Unpin> Wire<T> {
    /// Lets pass what is framed as it must be.
    fn check(&mut self, into: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let count = into.filled().len() - before;
        let Some(framing) = &mut self.framing else { return Ok(()) };
        // What a tunnel carries is not framed. A client of a WebSocket waits for the answer before it says anything (RFC 6455, 4.1).
        if count == 0 || self.activity.tunnels.load(Ordering::Relaxed) > 0 {
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

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<T> {
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
                    self.closing = match self.activity.unread.load(Ordering::Relaxed) {
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

/// When something last happened on a connection. Atomic only because upgraded streams must be `Send`; one thread uses it.
#[derive(Debug)]
pub struct Activity {
    opened: Instant,
    /// Exchanges under way.
    busy: AtomicU32,
    /// Streams of an HTTP/2 connection that have become tunnels; they take as long as they like.
    tunnels: AtomicU32,
    /// When an exchange last began or ended: milliseconds after `opened`, as all times here.
    changed: AtomicU64,
    /// When the first byte after the last exchange came, plus one; 0: none did.
    head: AtomicU64,
    /// A request was answered without being read to its end.
    unread: AtomicBool,
    /// There was an exchange.
    begun: AtomicBool,
}

/// How long a connection may take for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a request head, from its first byte; `None`: bytes between requests are no head (HTTP/2).
    pub head: Option<Duration>,
    /// Without a request.
    pub idle: Duration,
    /// For one exchange, at most.
    pub exchange: Duration,
}

/// What to do about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Look again then.
    Until(Instant),
    /// It has been idle for too long; say good-bye.
    Idle,
    /// What its peer proved itself with holds no longer; exchanges under way may end.
    Expired,
    /// A head takes too long, or an exchange is stuck behind a peer that does not read; just close.
    Stuck,
}

/// An exchange that should be over by its deadline, but whose peer does not read, is cut off this much later.
const GRACE: Duration = Duration::from_secs(5);

impl Activity {
    /// Of a connection that was just accepted.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            tunnels: AtomicU32::new(0),
            changed: AtomicU64::new(0),
            head: AtomicU64::new(0),
            unread: AtomicBool::new(false),
            begun: AtomicBool::new(false),
        })
    }

    fn received(&self) {
        if self.busy.load(Ordering::Relaxed) == 0 && self.head.load(Ordering::Relaxed) == 0 {
            self.head.store(self.now() + 1, Ordering::Relaxed);
        }
    }

    /// An exchange begins; it ends when the result is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.begun.store(true, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.changed.store(self.now(), Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// A request's body is given up before its end.
    pub fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Whether an exchange is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Whether there ever was an exchange.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether nothing is under way, no tunnel either.
    pub fn is_idle(&self) -> bool {
        !self.is_busy() && self.tunnels.load(Ordering::Relaxed) == 0
    }

    /// Judges the connection's pace.
    pub fn watch(&self, patience: &Patience, now: Instant) -> Watch {
        let passed = millis(now.saturating_duration_since(self.opened));
        let changed = self.changed.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Relaxed);
        let (limit, verdict) = match (self.is_busy(), patience.head) {
            _ if self.tunnels.load(Ordering::Relaxed) > 0 => (u64::MAX, Watch::Stuck),
            (true, _) => (changed.saturating_add(millis(patience.exchange.saturating_add(GRACE))), Watch::Stuck),
            (false, Some(time)) if head > 0 => (head - 1 + millis(time), Watch::Stuck),
            (false, _) => (changed + millis(patience.idle), Watch::Idle),
        };
        if passed >= limit {
            return verdict;
        }
        // What begins right after this look must not be overlooked: never sleep longer than the shortest patience.
        let shortest = patience.head.map_or(patience.idle, |head| head.min(patience.idle));
        Watch::Until(now + Duration::from_millis(limit - passed).min(shortest))
    }

    fn now(&self) -> u64 {
        millis(self.opened.elapsed())
    }
}

/// An exchange is under way on a connection.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

/// An exchange has become a tunnel.
#[derive(Debug)]
pub struct Tunnel(Arc<Activity>);

impl Busy {
    /// From now on it takes as long as it likes.
    pub fn into_tunnel(self) -> Tunnel {
        self.0.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnel(self.0.clone())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.changed.store(self.0.now(), Ordering::Relaxed);
        self.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.changed.store(self.0.now(), Ordering::Relaxed);
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        head: Some(Duration::from_secs(10)),
        idle: Duration::from_secs(60),
        exchange: Duration::from_secs(100),
    };

    async fn sniff(bytes: &'static [u8]) -> (Vec<u8>, Spoken) {
        let (mut wire, spoken) = Wire::sniff(bytes, Activity::new()).await.unwrap();
        let mut all = Vec::new();
        wire.read_to_end(&mut all).await.unwrap();
        (all, spoken)
    }

    #[tokio::test]
    async fn the_first_bytes_tell() {
        for (bytes, spoken) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], Spoken::Http1),
            (b"PRI / HTTP/1.1\r\n\r\n", Spoken::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0", Spoken::Http2),
            (b"PRI", Spoken::Http1),
            (b"\x16\x03\x01", Spoken::Tls),
            (b"", Spoken::Nothing),
        ] {
            assert_eq!(sniff(bytes).await, (bytes.to_vec(), spoken));
        }
    }

    /// The verdict this many seconds after the connection was opened; a wait in whole seconds from then.
    fn watch(activity: &Activity, patience: &Patience, after: u64) -> Result<u64, Watch> {
        match activity.watch(patience, activity.opened + Duration::from_secs(after)) {
            Watch::Until(until) => Ok((until - activity.opened).as_secs()),
            verdict => Err(verdict),
        }
    }

    #[test]
    fn heads_and_silence_have_their_own_limits() {
        let activity = Activity::new();
        assert_eq!(watch(&activity, &PATIENCE, 0), Ok(10));
        assert_eq!(watch(&activity, &PATIENCE, 61), Err(Watch::Idle));
        activity.received();
        assert_eq!(watch(&activity, &PATIENCE, 11), Err(Watch::Stuck));
        assert_eq!(watch(&activity, &Patience { head: None, ..PATIENCE }, 11), Ok(60));
    }

    #[test]
    fn an_exchange_has_its_own_time() {
        let activity = Activity::new();
        let busy = activity.begin();
        activity.received();
        assert_eq!(watch(&activity, &PATIENCE, 99), Ok(105));
        assert_eq!(watch(&activity, &PATIENCE, 106), Err(Watch::Stuck));
        let forever = Patience { exchange: Duration::MAX, ..PATIENCE };
        assert_eq!(watch(&activity, &forever, 1_000_000), Ok(1_000_010));
        drop(busy);
        assert_eq!(watch(&activity, &PATIENCE, 59), Ok(60));
        assert_eq!(watch(&activity, &PATIENCE, 61), Err(Watch::Idle));
    }

    #[test]
    fn a_tunnel_takes_as_long_as_it_likes() {
        let activity = Activity::new();
        let tunnel = activity.begin().into_tunnel();
        assert_eq!(watch(&activity, &PATIENCE, 1_000_000), Ok(1_000_010));
        drop(tunnel);
        assert_eq!(watch(&activity, &PATIENCE, 61), Err(Watch::Idle));
    }
}
