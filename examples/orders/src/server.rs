//! A small HTTP/1.1 server: listens on `PORT` of `HOST`, logs each request, and ends gracefully on SIGTERM.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Largest body of a request.
const LARGEST_BODY: usize = 64 * 1024;
/// Open requests at SIGTERM may take this long.
const DRAIN: Duration = Duration::from_secs(5);

/// A request, as a handler gets it.
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Its path, without query.
    pub path: String,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// The response of a handler: a status and JSON.
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Value,
}

impl Reply {
    /// A response.
    pub fn new(status: StatusCode, body: Value) -> Self {
        Self { status, body }
    }

    /// An error response with the reason.
    pub fn error(status: StatusCode, why: impl std::fmt::Display) -> Self {
        Self::new(status, json!({"error": why.to_string()}))
    }
}

/// `PORT`, at the IP address in `HOST`; the default is the loopback interface.
pub fn address() -> Result<SocketAddr, String> {
    let port = std::env::var("PORT").map_err(|_| "PORT is not set")?;
    let port: u16 = port.parse().map_err(|_| format!("PORT is `{port}`, not a port number"))?;
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let host: IpAddr = host.parse().map_err(|_| format!("HOST is `{host}`, not an IP address"))?;
    Ok(SocketAddr::from((host, port)))
}

/// Resolves on SIGTERM or SIGINT.
pub async fn told_to_end() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

/// Serves until SIGTERM or SIGINT, and lets open requests complete.
pub async fn serve<H, F>(handler: H) -> Result<(), Box<dyn std::error::Error>>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let address = address()?;
    let listener = TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))?;
    println!("listening on {address}");
    let handler = Arc::new(handler);
    let connections = GracefulShutdown::new();
    let mut end = std::pin::pin!(told_to_end());
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely the process has no free file descriptors until a connection ends.
                    eprintln!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = &mut end => break,
        };
        let handler = Arc::clone(&handler);
        let service = service_fn(move |request| {
            let handler = Arc::clone(&handler);
            async move { Ok::<_, Infallible>(answer(request, &*handler).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("connection: {error}");
            }
        });
    }
    println!("told to end");
    drop(listener);
    if tokio::time::timeout(DRAIN, connections.shutdown()).await.is_err() {
        eprintln!("requests were still under way after {DRAIN:?}");
    }
    Ok(())
}

async fn answer<H, F>(request: Request<Incoming>, handler: &H) -> Response<Full<Bytes>>
where
    H: Fn(Call) -> F,
    F: Future<Output = Reply>,
{
    let started = Instant::now();
    let (head, body) = request.into_parts();
    let line = format!("{} {}", head.method, head.uri.path());
    let reply = match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(body) => {
            let path = head.uri.path().to_owned();
            handler(Call { method: head.method, path, headers: head.headers, body: body.to_bytes() }).await
        }
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Reply::error(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {LARGEST_BODY} bytes"))
        }
        Err(error) => Reply::error(StatusCode::BAD_REQUEST, error),
    };
    println!("{line} {} {:?}", reply.status.as_u16(), started.elapsed());
    let mut response = Response::new(Full::from(format!("{}\n", reply.body)));
    *response.status_mut() = reply.status;
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    response
}
