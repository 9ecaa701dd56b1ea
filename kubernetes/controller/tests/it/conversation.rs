//! Conversations with an API server: one exchange a line, as `recorder` writes them, and a server
//! that replays them.

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use leno_controller::api::ApiServer;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Exchange {
    /// The method and the path, without the time that the client has chosen.
    pub(crate) request: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// The lines of the answer.
    pub(crate) lines: Vec<String>,
    /// How the answer ends.
    #[serde(skip)]
    pub(crate) end: End,
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// In order. The connection stays.
    #[default]
    Complete,
    /// In order, but within the last line.
    Short,
    /// The connection breaks within the last line.
    Broken,
    /// It does not end.
    Open,
}

impl Exchange {
    pub(crate) fn request(method: &str, path: &str) -> String {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query: Vec<&str> =
            query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("timeoutSeconds=")).collect();
        match query.join("&").as_str() {
            "" => format!("{method} {path}"),
            query => format!("{method} {path}?{query}"),
        }
    }

    /// The request with which this watch resumes at a version.
    pub(crate) fn resumed(&self, version: &str) -> String {
        let (watch, _) = self.request.split_once("&sendInitialEvents=true").unwrap();
        format!("{watch}&resourceVersion={version}")
    }

    pub(crate) fn with(&self, lines: &[String], end: End) -> Self {
        Self { lines: lines.to_vec(), end, ..self.clone() }
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.request.contains("watch=true")
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(format!("{name}.jsonl"))
}

/// A recorded conversation. Its watches end open.
pub(crate) fn recorded(name: &str) -> Vec<Exchange> {
    let text = fs::read_to_string(file(name)).unwrap();
    let mut exchanges: Vec<Exchange> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for exchange in exchanges.iter_mut().filter(|exchange| exchange.is_watch() && exchange.status == 200) {
        exchange.end = End::Open;
    }
    exchanges
}

pub(crate) fn write(name: &str, exchanges: &[Exchange]) {
    let lines: Vec<String> = exchanges.iter().map(|exchange| serde_json::to_string(exchange).unwrap()).collect();
    fs::create_dir_all(file(name).parent().unwrap()).unwrap();
    fs::write(file(name), lines.join("\n") + "\n").unwrap();
}

pub(crate) type Body = StreamBody<Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>> + Send>>>;

/// A server on a free port.
pub(crate) struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start<A>(answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static) -> Self
    where
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let answer = answer.clone();
                let service = service_fn(move |request| {
                    let answer = answer(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                // A connection that breaks ends with an error, as it should.
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
                );
            }
        });
        Self { address, task }
    }

    pub(crate) fn api(&self) -> ApiServer {
        let uri = format!("http://{}", self.address).parse().unwrap();
        ApiServer::new(kube::Client::try_from(kube::Config::new(uri)).unwrap())
    }
}

/// Exchanges that a server has yet to see, and requests that it did not expect.
#[derive(Default)]
struct Script {
    exchanges: VecDeque<Exchange>,
    unexpected: Vec<String>,
}

/// A server that answers as recorded. Each exchange is used once; those with equal requests in
/// their order.
pub(crate) struct Replay {
    script: Arc<Mutex<Script>>,
    server: Server,
}

impl Replay {
    pub(crate) async fn start(exchanges: impl IntoIterator<Item = Exchange>) -> Self {
        let exchanges = exchanges.into_iter().collect();
        let script = Arc::new(Mutex::new(Script { exchanges, unexpected: Vec::new() }));
        let shared = script.clone();
        let server = Server::start(move |request| {
            let path = request.uri().path_and_query().unwrap().as_str();
            let request = Exchange::request(request.method().as_str(), path);
            let mut script = shared.lock().unwrap();
            let exchange = match script.exchanges.iter().position(|exchange| exchange.request == request) {
                Some(index) => script.exchanges.remove(index).unwrap(),
                None => {
                    eprintln!("not recorded: {request}");
                    script.unexpected.push(request.clone());
                    let status = r#"{"kind":"Status","status":"Failure","message":"not recorded","code":503}"#;
                    Exchange { request, status: 503, lines: vec![status.to_owned()], end: End::Complete }
                }
            };
            async { answer(exchange) }
        });
        Self { script, server: server.await }
    }

    pub(crate) fn api(&self) -> ApiServer {
        self.server.api()
    }

    /// All exchanges have taken place, and no others.
    pub(crate) fn is_over(&self) -> bool {
        let script = self.script.lock().unwrap();
        assert!(script.unexpected.is_empty(), "not recorded: {:?}", script.unexpected);
        script.exchanges.is_empty()
    }
}

fn answer(exchange: Exchange) -> Response<Body> {
    let Exchange { status, lines, end, .. } = exchange;
    let mut texts: Vec<String> = lines.into_iter().map(|line| line + "\n").collect();
    if let Some(last) = texts.last_mut().filter(|_| matches!(end, End::Short | End::Broken)) {
        last.truncate(last.len() / 2);
    }
    let frames = stream::iter(texts).map(|text| Ok(Frame::data(Bytes::from(text))));
    let body: Pin<Box<dyn Stream<Item = _> + Send>> = match end {
        End::Complete | End::Short => Box::pin(frames),
        End::Broken => Box::pin(frames.chain(stream::once(async {
            // The server sends the frames before it sees the error.
            tokio::task::yield_now().await;
            Err(io::ErrorKind::ConnectionReset.into())
        }))),
        End::Open => Box::pin(frames.chain(stream::pending())),
    };
    Response::builder().status(status).body(StreamBody::new(body)).unwrap()
}

/// The whole body of a request.
pub(crate) async fn body_of(request: Request<Incoming>) -> (hyper::http::request::Parts, Bytes) {
    let (parts, body) = request.into_parts();
    (parts, body.collect().await.unwrap().to_bytes())
}
