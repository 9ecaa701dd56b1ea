//! The listener of the API.

use super::routes::{self, Peer};
use super::service::Service;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Connections at a time. Further ones wait in the kernel's queue.
const MOST_CONNECTIONS: usize = 256;
/// For the TLS handshake, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Requests of one connection at a time.
const STREAMS: u32 = 16;

/// Answers until the runtime ends.
pub(crate) async fn serve(service: Arc<Service>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let (acceptor, router) = (TlsAcceptor::from(tls), routes::router(service));
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
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
    let service = tower_service(router, peer);
    let mut server = Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(HANDSHAKE)
        .keep_alive_timeout(HANDSHAKE);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, %error, "a connection of the API ended early");
    }
}

/// The router, with the client's address in each request.
fn tower_service(router: Router, peer: SocketAddr) -> TowerToHyperService<Router> {
    let router = router.layer(axum::middleware::map_request(move |mut request: Request<Body>| async move {
        request.extensions_mut().insert(Peer(peer));
        request
    }));
    TowerToHyperService::new(router)
}
