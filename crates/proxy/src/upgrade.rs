//! After "101 Switching Protocols": bytes in both directions, until both ends are done.

use crate::body::Body;
use crate::body::Tail;
use crate::schedule;
use http::{Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// If the response switches protocols, ties the client's stream to the upstream's as soon as both are there. `alive` is held until they end.
pub fn join(client: Option<OnUpgrade>, response: &mut Response<Body>, alive: impl Sized + 'static) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    let upstream = response.extensions_mut().remove::<OnUpgrade>();
    let tail = response.body_mut().detach();
    let (Some(client), Some(upstream)) = (client, upstream) else { return };
    schedule::spawn(async move {
        let _alive = alive;
        // The client's side is there only once the 101 was written; the upstream's is there already.
        match tokio::try_join!(client, upstream) {
            Ok((client, upstream)) => copy(client, upstream, tail).await,
            Err(error) => tracing::debug!(%error, "an upgraded connection was gone before it could be used"),
        }
    });
}

async fn copy(client: Upgraded, upstream: Upgraded, tail: Option<Box<Tail>>) {
    let tail = tail.map(|tail| Rc::new(*tail));
    let mut client = Counted { stream: TokioIo::new(client), tail: tail.clone(), from_client: true };
    let mut upstream = Counted { stream: TokioIo::new(upstream), tail, from_client: false };
    // A half that ends is shut down at the other end, and the other half goes on.
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut upstream).await {
        tracing::debug!(%error, "an upgraded connection broke off");
    }
}

/// Counts what is read, in the records of the exchange that the stream came from.
struct Counted<T> {
    stream: T,
    tail: Option<Rc<Tail>>,
    from_client: bool,
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        let bytes = (into.filled().len() - before) as u64;
        if bytes > 0
            && let Some(tail) = &self.tail
        {
            tail.each(
                |record| if self.from_client { record.request_bytes(bytes) } else { record.response_bytes(bytes) },
            );
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
