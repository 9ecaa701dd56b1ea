//! The listener of the API.

use super::admission::Peer;
use super::dashboard::Page;
use super::routes;
use super::service::Service;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use leno_control::{Place, Places, source};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Connections, and connections of one source. Beyond these bounds, the server closes an idle
/// connection of the source with the most.
const MOST_CONNECTIONS: usize = 256;
const MOST_OF_SOURCE: usize = 64;
/// Longest connection without a valid token of this mesh.
const UNKNOWN: Duration = Duration::from_secs(30);
/// Timeout of the TLS handshake, and of the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Timeout of a connection without a request, or without progress of its requests.
const IDLE: Duration = Duration::from_secs(60);
const STUCK: Duration = Duration::from_secs(180);
/// Interval of checks for progress.
const TICK: Duration = Duration::from_secs(5);
/// Concurrent requests of one connection.
const STREAMS: u32 = 16;

/// Serves the API until the runtime ends, and the dashboard's page if there is one.
pub async fn serve(service: Arc<Service>, listener: TcpListener, tls: Arc<ServerConfig>, page: Option<Page>) {
    let (acceptor, api) = (TlsAcceptor::from(tls), routes::router(service));
    let router = page.map_or_else(|| api.clone(), |page| page.router().fallback_service(api.clone()));
    let places = Places::new(MOST_CONNECTIONS, MOST_OF_SOURCE);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = places.take(source(peer.ip())) else {
                    tracing::debug!(%peer, "a client of the API has too many connections");
                    continue;
                };
                let (acceptor, router) = (acceptor.clone(), router.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = connection(&acceptor, router, stream, peer, &place) => {}
                        () = place.ended() => tracing::debug!(%peer, "a connection of the API gave way to another one"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the API cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(acceptor: &TlsAcceptor, router: Router, stream: TcpStream, peer: SocketAddr, place: &Place) {
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "no TLS with a client of the API"),
        Err(_) => return tracing::debug!(%peer, "a client of the API took too long for its handshake"),
    };
    let known = Arc::new(AtomicBool::new(false));
    let service = tower_service(router, Peer { address: peer, known: known.clone(), requests: place.requests() });
    let mut server = Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(HANDSHAKE)
        .keep_alive_timeout(HANDSHAKE);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let begun = Instant::now();
    let over = async {
        while (known.load(Ordering::Relaxed) || begun.elapsed() < UNKNOWN) && !place.is_silent(IDLE, STUCK) {
            tokio::time::sleep(TICK).await;
        }
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = over => {
            connection.as_mut().graceful_shutdown();
            timeout(HANDSHAKE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection of the API ended early");
    }
}

/// The router, with the client in each request. A request is open until its response has been sent,
/// and each part of a response is progress, also of one without end.
fn tower_service(router: Router, peer: Peer) -> TowerToHyperService<Router> {
    let layer = from_fn(move |mut request: Request<Body>, next: Next| {
        let open = peer.requests.begin();
        request.extensions_mut().insert(peer.clone());
        async move {
            next.run(request).await.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    open.progress();
                    frame
                }))
            })
        }
    });
    TowerToHyperService::new(router.layer(layer))
}

/// Keeps a value until the response has been sent.
pub(super) fn until_sent<T: Send + 'static>(answer: Response, kept: T) -> Response {
    // The frames of one body share it, one after the other.
    let kept = std::sync::Mutex::new(kept);
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &kept;
            frame
        }))
    })
}
