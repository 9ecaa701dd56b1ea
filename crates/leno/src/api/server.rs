//! The listener of the API.

use super::routes::{self, Peer};
use super::service::Service;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use leno_control::Places;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Connections at a time, and those of one source. Further ones wait in the kernel's queue; further ones of a source are closed.
const MOST_CONNECTIONS: usize = 256;
const MOST_OF_SOURCE: usize = 64;
/// Whoever has shown no token of this mesh by then is not kept waiting for.
const UNKNOWN: Duration = Duration::from_secs(30);
/// For the TLS handshake, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Requests of one connection at a time.
const STREAMS: u32 = 16;

/// Answers until the runtime ends.
pub(crate) async fn serve(service: Arc<Service>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let (acceptor, router) = (TlsAcceptor::from(tls), routes::router(service));
    let places = Places::new(MOST_CONNECTIONS, MOST_OF_SOURCE);
    loop {
        places.wait().await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = places.take(peer.ip()) else {
                    tracing::debug!(%peer, "a client of the API has {MOST_OF_SOURCE} connections already");
                    continue;
                };
                let (acceptor, router) = (acceptor.clone(), router.clone());
                tokio::spawn(async move {
                    connection(&acceptor, router, stream, peer).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the API cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(acceptor: &TlsAcceptor, router: Router, stream: TcpStream, peer: SocketAddr) {
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "no TLS with a client of the API"),
        Err(_) => return tracing::debug!(%peer, "a client of the API took too long for its handshake"),
    };
    let known = Arc::new(AtomicBool::new(false));
    let service = tower_service(router, Peer { address: peer, known: known.clone() });
    let mut server = Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(HANDSHAKE)
        .keep_alive_timeout(HANDSHAKE);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = tokio::time::sleep(UNKNOWN) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None if known.load(Ordering::Relaxed) => connection.await,
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(HANDSHAKE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection of the API ended early");
    }
}

/// The router, with the client in each request.
fn tower_service(router: Router, peer: Peer) -> TowerToHyperService<Router> {
    let router = router.layer(axum::middleware::map_request(move |mut request: Request<Body>| {
        request.extensions_mut().insert(peer.clone());
        std::future::ready(request)
    }));
    TowerToHyperService::new(router)
}
