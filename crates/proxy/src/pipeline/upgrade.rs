//! "101 Switching Protocols" is passed on only if the request was permitted as that upgrade. After
//! it, bytes go in both directions until both ends are done.
//!
//! The proxy does not judge the bytes in a tunnel, apart from the permission of its exchange. So an
//! upstream must not be able to open a tunnel by itself: [`check`] makes an [`UpgradedStream`] only
//! for an exchange that was judged as one with a tunnel, and [`join`] connects only this to the client's
//! stream.

mod frames;

use crate::pipeline::exchange::Exchange;
use frames::Frames;
use http::{Extensions, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use leno_http::body::{Body, CloseReason, ClosedBy, Guard};
use leno_http::failure::Failure;
use leno_http::http2::{Bidirectional, TunnelHandle, Upgrading};
use leno_policy::spec::Protocol;
use leno_runtime::schedule;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Longest time to write the last frame of a WebSocket that is closed.
const LAST_FRAME: Duration = Duration::from_secs(1);

/// The upstream's stream, after the upstream switched to the permitted protocol.
#[derive(Clone)]
enum UpgradedStream {
    /// Over HTTP/1.1.
    Hyper(OnUpgrade),
    /// Over HTTP/2.
    Stream(TunnelHandle),
}

/// Checks the upstream's status, and keeps its stream if it switches protocols as it was permitted.
pub(crate) fn check<B>(exchange: &Exchange, response: &mut Response<B>) -> Result<(), Failure> {
    match response.status().as_u16() {
        // The callee's side of this exchange is on this node, too, and has already checked it.
        101 if response.extensions().get::<UpgradedStream>().is_some() => Ok(()),
        101 if !exchange.upgrade || exchange.connects => {
            Err(Failure::Protocol("it switched protocols, which was not asked of it"))
        }
        101 if exchange.protocol != Protocol::WebSocket => switch(response),
        101 => {
            let names_websocket =
                |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket");
            let mut protocols = response.headers().get_all(header::UPGRADE).iter();
            if !(protocols.next().is_some_and(names_websocket) && protocols.next().is_none()) {
                return Err(Failure::Protocol("it switched to another protocol than WebSocket"));
            }
            switch(response)
        }
        200..=299 if exchange.connects => {
            let stream = upstream_stream(response)?;
            response.extensions_mut().insert(stream);
            Ok(())
        }
        // Interim responses are passed on before, and there is no other class of status (RFC 9110,
        // 15).
        200..=599 => Ok(()),
        _ => Err(Failure::Protocol("its status is not that of a final response")),
    }
}

/// Makes the response a 101, and keeps the upstream's stream for [`join`].
pub(crate) fn switch<B>(response: &mut Response<B>) -> Result<(), Failure> {
    let stream = upstream_stream(response)?;
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.extensions_mut().insert(stream);
    Ok(())
}

fn upstream_stream<B>(response: &mut Response<B>) -> Result<UpgradedStream, Failure> {
    let extensions = response.extensions_mut();
    let tunnel = extensions.remove().map(UpgradedStream::Stream);
    let stream = tunnel.or_else(|| extensions.remove().map(UpgradedStream::Hyper));
    stream.ok_or(Failure::Protocol("it switched protocols on a connection that cannot"))
}

/// Whether the response begins a tunnel.
pub(crate) fn begins_tunnel(extensions: &Extensions) -> bool {
    extensions.get::<UpgradedStream>().is_some()
}

/// If the response switches protocols, connects the client's stream to the upstream's as soon as
/// both exist. `alive` is held until they end.
pub(crate) fn join(client: Option<Upgrading>, response: &mut Response<Body>, alive: impl Sized + 'static) {
    let Some(upstream) = response.extensions_mut().remove() else { return };
    let upstream = match upstream {
        UpgradedStream::Hyper(upgrade) => Upgrading::Hyper(upgrade),
        UpgradedStream::Stream(tunnel) => Upgrading::Ready(tunnel),
    };
    let guard = response.body_mut().detach();
    let Some(client) = client else { return };
    schedule::spawn(async move {
        let _alive = alive;
        // The client's stream exists only after the 101 was written. The upstream's stream already
        // exists.
        match tokio::try_join!(client.done(), upstream.done()) {
            Ok((client, upstream)) => copy(client, upstream, guard).await,
            Err(error) => tracing::debug!(%error, "an upgraded connection was gone before it could be used"),
        }
    });
}

async fn copy(client: Box<dyn Bidirectional>, upstream: Box<dyn Bidirectional>, guard: Option<Box<dyn Guard>>) {
    let guard: Option<Rc<dyn Guard>> = guard.map(Rc::from);
    let end = |stream, from_client| End { stream, guard: guard.clone(), from_client, written: Frames::default() };
    let (mut client, mut upstream) = (end(client, true), end(upstream, false));
    // When one direction ends, it is shut down at the other end. The opposite direction goes on.
    match unless_closed(guard.as_deref(), tokio::io::copy_bidirectional(&mut client, &mut upstream)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an upgraded connection broke off"),
        Err(closed) => {
            let close = async { tokio::join!(client.close(closed.by, false), upstream.close(closed.by, true)) };
            // If an end does not read the frame in time, its connection breaks off.
            let _ = tokio::time::timeout(LAST_FRAME, close).await;
        }
    }
}

/// Runs `future` unless the exchange is closed first.
async fn unless_closed<F: Future>(guard: Option<&dyn Guard>, future: F) -> Result<F::Output, Rc<CloseReason>> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Some(guard) = guard
            && let Some(closed) = guard.closed()
        {
            guard.failure(&closed.failure());
            return Poll::Ready(Err(closed.clone()));
        }
        let polled = future.as_mut().poll(cx);
        if let (Some(guard), Poll::Pending) = (guard, &polled) {
            guard.wake_when_closed(cx.waker());
        }
        polled.map(Ok)
    })
    .await
}

/// One end of a tunnel. Counts the bytes that are read, in the records of the exchange that opened
/// the tunnel.
struct End<T> {
    stream: T,
    guard: Option<Rc<dyn Guard>>,
    from_client: bool,
    written: Frames,
}

impl<T: AsyncWrite + Unpin> End<T> {
    /// Ends the WebSocket with a close frame that contains the reason. Inside another frame, just
    /// ends the stream.
    async fn close(&mut self, by: ClosedBy, masked: bool) -> std::io::Result<()> {
        if self.written.is_between() {
            self.stream.write_all(&frames::close(by, masked)).await?;
        }
        self.stream.shutdown().await
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for End<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        let bytes = (into.filled().len() - before) as u64;
        if bytes > 0
            && let Some(guard) = &self.guard
        {
            if self.from_client { guard.request_bytes(bytes) } else { guard.response_bytes(bytes) }
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for End<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.written.pass(bytes.get(..written).unwrap_or(bytes));
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
