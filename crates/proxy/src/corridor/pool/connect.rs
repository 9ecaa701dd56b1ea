//! Opens connections: TCP, TLS, and the HTTP handshake.

use super::{ConnectError, ConnectionKey, Held, Http1Connection, Open};
use crate::http::body::Body;
use crate::http::http2::{CONNECTION_WINDOW, SEND_BUFFER, UPSTREAM_BUFFER, UPSTREAM_WINDOW};
use crate::http::inflow::{HeadBudget, Inflow};
use crate::runtime::hyper::{LocalExecutor, Timer};
use crate::runtime::schedule;
use crate::runtime::schedule::TaskOwner;
use crate::state::egress::OutsideTls;
use crate::state::instances::InstanceProof;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connects to the leased instance or, without a lease, to an address.
pub(super) async fn tcp(
    address: SocketAddr,
    lease: Option<&dyn InstanceProof>,
) -> Result<Inflow<TcpStream>, ConnectError> {
    let stream = match lease {
        Some(lease) => lease.connect(address).await?,
        None => TcpStream::connect(address).await?,
    };
    stream.set_nodelay(true)?;
    Ok(Inflow::in_turns(stream))
}

/// Begins TLS with something outside.
pub(super) async fn begin_tls<T>(outside: &OutsideTls, stream: T) -> Result<TlsStream<T>, ConnectError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    Ok(TlsConnector::from(outside.config.clone()).connect(outside.server.clone(), stream).await?)
}

/// `held` is held as long as the connection is open.
pub(super) async fn handshake_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    key: &ConnectionKey,
    held: (Open, Held),
) -> Result<Http1Connection, hyper::Error> {
    let permit = held.1.1.clone();
    let heads = Arc::new(HeadBudget::default());
    let stream = TokioIo::new(Inflow::heads(stream, heads.clone()));
    let (sender, connection) = http1::Builder::new().max_buf_size(UPSTREAM_BUFFER).handshake::<_, Body>(stream).await?;
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

/// Whether a connection has brought what no request asked for.
pub(crate) fn is_unasked(error: &hyper::Error) -> bool {
    // hyper tells this kind of error by its text only.
    let text = |error: &dyn std::error::Error| error.to_string().starts_with("received unexpected message");
    text(error) || std::error::Error::source(error).is_some_and(text)
}

pub(super) async fn handshake_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    held: Held,
    keep_alive: Duration,
) -> Result<(http2::SendRequest<Body>, TaskOwner), hyper::Error> {
    let (sender, connection) = http2::Builder::new(LocalExecutor)
        .timer(Timer::new())
        .initial_stream_window_size(UPSTREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(keep_alive)
        .keep_alive_timeout(keep_alive)
        .handshake(TokioIo::new(Inflow::frames(stream)))
        .await?;
    let owner = schedule::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%address, %error, "upstream connection ended");
        }
        drop(held);
    });
    Ok((sender, owner))
}

pub(super) async fn within<T>(
    limit: Duration,
    connect: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    tokio::time::timeout(limit, connect).await.unwrap_or(Err(ConnectError::Timeout(limit)))
}
