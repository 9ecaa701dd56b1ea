//! Frames the bytes of a connection between nodes: a length of two bytes, then that many bytes. A
//! length of zero marks the end. Without the end marker, the stream was broken off. hyper's tunnels
//! alone do not distinguish the two cases.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest frame.
const LONGEST: usize = 16 * 1024;

/// A stream of frames. It can be read and written as the bytes in them.
pub(super) struct FramedStream<T> {
    io: T,
    /// The length of the next frame, as far as it is read.
    length: ([u8; 2], usize),
    /// Bytes of the current frame that are not read yet.
    left: usize,
    /// The end was read.
    read_end: bool,
    /// Unwritten bytes, and the number of written ones.
    unwritten: (Vec<u8>, usize),
    /// The end marker was written, or is among the unwritten bytes.
    wrote_end: bool,
}

impl<T> FramedStream<T> {
    pub(super) fn new(io: T) -> Self {
        Self { io, length: ([0; 2], 0), left: 0, read_end: false, unwritten: (Vec::new(), 0), wrote_end: false }
    }
}

impl<T: AsyncWrite + Unpin> FramedStream<T> {
    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (bytes, written) = &mut self.unwritten;
        while let Some(rest) = bytes.get(*written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => *written += count,
            }
        }
        bytes.clear();
        *written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for FramedStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while !this.read_end && into.remaining() > 0 {
            let broken = || io::Error::new(io::ErrorKind::UnexpectedEof, "the other node broke off");
            if this.left > 0 {
                let most = this.left.min(into.remaining());
                let mut read = ReadBuf::new(into.initialize_unfilled_to(most));
                ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
                let count = read.filled().len();
                if count == 0 {
                    return Poll::Ready(Err(broken()));
                }
                this.left -= count;
                into.advance(count);
                return Poll::Ready(Ok(()));
            }
            let (length, known) = &mut this.length;
            let mut read = ReadBuf::new(length.get_mut(*known..).unwrap_or_default());
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            let count = read.filled().len();
            if count == 0 {
                return Poll::Ready(Err(broken()));
            }
            *known += count;
            if this.length.1 == 2 {
                this.left = usize::from(u16::from_be_bytes(this.length.0));
                this.length.1 = 0;
                this.read_end = this.left == 0;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for FramedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_unwritten(cx))?;
        let frame = bytes.get(..bytes.len().min(LONGEST)).unwrap_or_default();
        if frame.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // A frame is never longer than 16 KiB.
        let length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        self.unwritten.0.extend_from_slice(&length.to_be_bytes());
        self.unwritten.0.extend_from_slice(frame);
        match self.poll_unwritten(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The rest is written before the next frame, or when it is flushed.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(frame.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unwritten(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.wrote_end {
            self.unwritten.0.extend_from_slice(&[0; 2]);
            self.wrote_end = true;
        }
        ready!(self.poll_unwritten(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// The bytes that arrive, and whether the end arrives.
    async fn forward(sent: &[u8], capacity: usize, ends: bool) -> (Vec<u8>, bool) {
        let (near, far) = duplex(capacity);
        let (mut near, mut far) = (FramedStream::new(near), FramedStream::new(far));
        let write = async move {
            near.write_all(sent).await.unwrap();
            near.flush().await.unwrap();
            if ends {
                near.shutdown().await.unwrap();
            }
        };
        let mut got = Vec::new();
        let ((), ended) = tokio::join!(write, far.read_to_end(&mut got));
        (got, ended.is_ok())
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives_and_a_break_is_no_end(sent in prop::collection::vec(any::<u8>(), 0..50_000), capacity in 1..40_000_usize, ends: bool) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            prop_assert_eq!(runtime.block_on(forward(&sent, capacity, ends)), (sent, ends));
        }
    }
}
