//! Upstream servers and clients, in this process.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

/// An upstream that counts.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub address: SocketAddr,
    pub requests: Arc<AtomicUsize>,
    pub connections: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

pub(crate) fn empty() -> Body {
    full(Bytes::new())
}

/// A body that is fed through a channel of one frame.
pub(crate) fn channel() -> (mpsc::Sender<Frame<Bytes>>, Body) {
    let (sender, mut receiver) = mpsc::channel::<Frame<Bytes>>(1);
    let stream = futures_stream(move |cx| receiver.poll_recv(cx).map(|frame| frame.map(Ok)));
    (sender, StreamBody::new(stream).boxed())
}

fn futures_stream<T, F>(poll: F) -> impl futures_core::Stream<Item = T> + Send + Sync
where
    F: FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<T>> + Send + Sync + Unpin,
{
    struct FromFn<F>(F);
    impl<T, F: FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<T>> + Unpin> futures_core::Stream
        for FromFn<F>
    {
        type Item = T;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<T>> {
            (self.0)(cx)
        }
    }
    FromFn(poll)
}

/// Serves HTTP/1.1.
pub(crate) async fn http1<F, R>(handler: F) -> Upstream
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    serve(handler, false).await
}

/// Serves HTTP/2 with prior knowledge.
pub(crate) async fn h2c<F, R>(handler: F) -> Upstream
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    serve(handler, true).await
}

async fn serve<F, R>(handler: F, h2: bool) -> Upstream
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream =
        Upstream { address: listener.local_addr().unwrap(), requests: Arc::default(), connections: Arc::default() };
    let counted = upstream.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            counted.connections.fetch_add(1, Ordering::SeqCst);
            let (handler, requests) = (handler.clone(), counted.requests.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                requests.fetch_add(1, Ordering::SeqCst);
                let response = handler(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            tokio::spawn(async move {
                if h2 {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                } else {
                    let mut builder = hyper::server::conn::http1::Builder::new();
                    let builder = builder.timer(TokioTimer::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                }
            });
        }
    });
    upstream
}

/// Returns the request as it arrived: method, target, and header fields in the body, one per line;
/// then the request's body.
pub(crate) async fn echo(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let mut text = format!("{} {} {:?}\n", head.method, head.uri, head.version);
    for (name, value) in &head.headers {
        text.push_str(&format!("{name}: {}\n", value.to_str().unwrap_or("?")));
    }
    text.push('\n');
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Response::builder().status(400).body(full(error.to_string())).unwrap(),
    };
    let mut text = text.into_bytes();
    text.extend_from_slice(&body);
    Response::new(full(text))
}

/// A client connection that speaks HTTP/1.1.
pub(crate) struct Http1(pub hyper::client::conn::http1::SendRequest<Body>);

pub(crate) async fn connect_http1(address: SocketAddr) -> Http1 {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    Http1(sender)
}

pub(crate) async fn connect_h2(address: SocketAddr) -> hyper::client::conn::http2::SendRequest<Body> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

impl Http1 {
    pub(crate) async fn send(&mut self, request: Request<Body>) -> Answer {
        self.0.ready().await.unwrap();
        answer(self.0.send_request(request).await.unwrap()).await
    }
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub trailers: Option<HeaderMap>,
}

pub(crate) async fn answer(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    Answer { status: head.status.as_u16(), headers: head.headers, text, trailers }
}

/// GET over a new HTTP/1.1 connection.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    let request = Request::builder().uri(path).header("host", "web").body(empty()).unwrap();
    connect_http1(address).await.send(request).await
}
