//! Opens connections: TCP, TLS, and the HTTP handshake.

use super::http2::Streams;
use super::noticed::NoticedStream;
use super::sender::Sender;
use super::{CalleeKey, ConnectError, ConnectionGuards, ConnectionKey, Http1Connection, Open, Pool};
use crate::state::certificate::PeerCertificate;
use crate::state::egress::EgressTargetTls;
use crate::state::end_notice::EndNotice;
use crate::state::instances::InstanceProof;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leno_http::body::Body;
use leno_http::http2::{CONNECTION_WINDOW, KeepAlive, SEND_BUFFER, UPSTREAM_BUFFER, UPSTREAM_WINDOW};
use leno_http::inflow::{HeadBudget, Inflow, PeerSettings};
use leno_http::wire::HeadLimits;
use leno_model::UpstreamLimits;
use leno_runtime::keepalive;
use leno_runtime::schedule;
use leno_runtime::schedule::TaskOwner;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connects to the leased instance or, without a lease, to an address.
pub(super) async fn tcp(
    address: SocketAddr,
    lease: Option<&dyn InstanceProof>,
    is_http2: bool,
    limits: &UpstreamLimits,
) -> Result<Inflow<NoticedStream<TcpStream>>, ConnectError> {
    let stream = match lease {
        Some(lease) => lease.connect(address).await?,
        None => TcpStream::connect(address).await?,
    };
    stream.set_nodelay(true)?;
    keepalive::enable(&stream, address, limits.tcp_keep_alive())?;
    let notice = lease.and_then(InstanceProof::end_notice);
    Ok(Inflow::in_turns(NoticedStream { stream, notice, is_http2 }))
}

/// Begins TLS with an external service.
pub(super) async fn begin_tls<T>(egress: &EgressTargetTls, stream: T) -> Result<TlsStream<T>, ConnectError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    Ok(TlsConnector::from(egress.config.clone()).connect(egress.server.clone(), stream).await?)
}

/// `held` is held as long as the connection is open.
pub(super) async fn handshake_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    key: &ConnectionKey,
    held: (Open, ConnectionGuards),
    limits: &UpstreamLimits,
) -> Result<Http1Connection, hyper::Error> {
    let permit = held.1.1.clone();
    let heads = Arc::new(HeadBudget::default());
    let stream = TokioIo::new(Inflow::heads(stream, heads.clone()));
    let (sender, connection) = http1::Builder::new()
        .max_headers(limits.headers() as usize)
        .max_header_size(limits.head_bytes() as usize)
        .max_buf_size(UPSTREAM_BUFFER.max(limits.head_bytes() as usize))
        .handshake::<_, Body>(stream)
        .await?;
    let key = key.clone();
    let owner = schedule::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(address = %key.address, %error, "upstream connection ended");
            let (Open(pool, _), _) = &held;
            if let (true, Some(pool)) = (is_unasked(&error), pool.upgrade()) {
                pool.distrust(&key);
            }
        }
        drop(held);
    });
    Ok(Http1Connection { sender, heads, owner, permit })
}

/// Whether the server has sent an unsolicited response.
pub(crate) fn is_unasked(error: &hyper::Error) -> bool {
    // hyper distinguishes this kind of error by its text only.
    let text = |error: &dyn std::error::Error| error.to_string().starts_with("received unexpected message");
    text(error) || std::error::Error::source(error).is_some_and(text)
}

/// How an HTTP/2 connection is opened.
pub(super) struct Http2<'a> {
    pub key: &'a ConnectionKey,
    pub pool: Weak<Pool>,
    pub limits: &'a UpstreamLimits,
    /// Time between PINGs, and how long their answers may take.
    pub keep_alive: (Duration, Duration),
    /// Where to give notice that the server takes no new streams; `None`: nowhere.
    pub notice: Option<Arc<EndNotice>>,
}

impl Http2<'_> {
    /// Opens the connection, and waits for the server's SETTINGS. `certificate`: of a sidecar at
    /// the other end.
    pub(super) async fn handshake(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        held: ConnectionGuards,
        certificate: Option<PeerCertificate>,
    ) -> Result<(Sender, TaskOwner, Rc<Streams>), ConnectError> {
        let settings = Arc::new(PeerSettings::default());
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(UPSTREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(head_list_size(self.limits));
        let (requests, mut connection) = builder.handshake(Inflow::frames(stream, settings.clone())).await?;
        let limits = HeadLimits { fields: self.limits.headers(), bytes: self.limits.head_bytes() };
        let (sender, streams) = (Sender::new(requests, limits), Rc::new(Streams::new(settings.clone(), certificate)));
        let (every, answer) = self.keep_alive;
        let mut keep_alive = connection.ping_pong().map(|ping| KeepAlive::new(ping, every, answer));
        let (key, pool, end, used) = (self.key.clone(), self.pool, sender.end(), streams.clone());
        let (notice, known) = (self.notice, settings.clone());
        let always = matches!(key.callee, CalleeKey::Tunnels(_));
        let (ended, mut at_end) = tokio::sync::oneshot::channel();
        let owner = schedule::spawn(async move {
            let result = poll_fn(|cx| {
                let is_gone = keep_alive.as_mut().is_some_and(|it| it.poll(|| always || used.is_open(), cx).is_ready());
                if is_gone || used.poll_cut_off(cx).is_ready() {
                    Poll::Ready(Err(ENDED_HERE.into()))
                } else {
                    let polled = Pin::new(&mut connection).poll(cx);
                    if known.leaves() {
                        notice.iter().for_each(|notice| notice.give(true));
                    }
                    polled
                }
            });
            let result: Result<(), h2::Error> = result.await;
            end.set(true);
            if let Err(error) = &result {
                tracing::debug!(address = %key.address, %error, "upstream connection ended");
                if let (true, Some(pool)) = (asks_for_calm(error), pool.upgrade()) {
                    pool.calm(&key);
                }
            }
            drop((connection, held));
            // Only the handshake waits for the result.
            let _ = ended.send(result);
        });
        tokio::select! {
            biased;
            () = settings.known() => Ok((sender, owner, streams)),
            ended = &mut at_end => Err(match ended {
                Ok(Err(error)) => error.into(),
                _ => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            }),
        }
    }
}

/// The reason for ending a connection to a peer that does not answer, or whose node was revoked.
const ENDED_HERE: h2::Reason = h2::Reason::NO_ERROR;

/// Bytes of a head as HTTP/2 counts them (RFC 9113, 6.5.2), with 32 more for each field. The HTTP/2
/// library resets a stream beyond them without a reason, so these are twice as many as the limits
/// of the mesh, which the proxy checks itself.
fn head_list_size(limits: &UpstreamLimits) -> u32 {
    2 * (limits.head_bytes() + 32 * limits.headers())
}

fn asks_for_calm(error: &h2::Error) -> bool {
    error.is_remote() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
}

pub(super) async fn within<T>(
    limit: Duration,
    connect: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    tokio::time::timeout(limit, connect).await.unwrap_or(Err(ConnectError::Timeout(limit)))
}
