//! An authorizer whose answers the test sets, over gRPC and over HTTP at one port.

#[path = "../../../proxy/src/pipeline/authorize/envoy.rs"]
#[expect(dead_code, reason = "the test needs the other half")]
mod envoy;

use envoy::{
    CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValueOption, HttpResponse, HttpStatus, OkHttpResponse,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

type Headers = Vec<(&'static str, &'static str)>;

/// An answer of the authorizer.
#[derive(Clone)]
pub(crate) enum Say {
    Allow(Headers),
    /// Allowed if this function returns true, else refused with 403.
    Decide(fn(&ReceivedCheck) -> bool),
    Refuse(u16, Headers, &'static str),
    /// No answer.
    Silence,
    /// More bytes than a client should read.
    Huge,
    /// The end of the connection.
    Break,
    /// Over gRPC: these bytes as the message.
    Bytes(Vec<u8>),
    /// Over gRPC: this status.
    Grpc(u8),
}

/// A request for a decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedCheck {
    pub id: String,
    pub method: String,
    pub path: String,
    pub host: String,
    pub scheme: String,
    pub headers: BTreeMap<String, String>,
    /// Over gRPC: `header_map`.
    pub raw_headers: Vec<(String, Vec<u8>)>,
    pub protocol: String,
    pub source: String,
    pub destination: String,
}

pub(crate) struct Authorizer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    runtime: Option<Runtime>,
}

struct State {
    say: Say,
    asked: Vec<ReceivedCheck>,
}

impl Authorizer {
    /// Listens at an address that nothing else uses: the mesh of the test chooses its ports at
    /// another one.
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.9:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { say: Say::Silence, asked: Vec::new() }));
        let shared = state.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move {
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let service = service_fn(move |request| answer(request, shared.clone()));
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, state, runtime: Some(runtime) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sets the answer to all further requests for a decision.
    pub(crate) fn say(&self, say: Say) {
        self.state.lock().unwrap().say = say;
    }

    /// All requests for a decision so far.
    pub(crate) fn asked(&self) -> Vec<ReceivedCheck> {
        self.state.lock().unwrap().asked.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().unwrap().asked.len()
    }

    /// Ends the server and its connections.
    pub(crate) fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Authorizer {
    fn drop(&mut self) {
        self.die();
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>, state: Arc<Mutex<State>>) -> Result<Response<Body>, io::Error> {
    let grpc = request.uri().path() == envoy::CHECK;
    let asked = if grpc { of_grpc(request).await } else { of_http(&request) };
    let say = {
        let mut state = state.lock().unwrap();
        let say = match state.say.clone() {
            Say::Decide(policy) if policy(&asked) => Say::Allow(Vec::new()),
            Say::Decide(_) => Say::Refuse(403, Vec::new(), ""),
            say => say,
        };
        state.asked.push(asked);
        say
    };
    match say {
        Say::Silence => std::future::pending().await,
        Say::Decide(_) => unreachable!("it has been decided"),
        Say::Break => Err(io::Error::other("the test wants it so")),
        Say::Huge if grpc => Ok(message(vec![0; 100 << 10], 0)),
        Say::Huge => Ok(plain(200, &Vec::new(), vec![0; 100 << 10])),
        Say::Bytes(bytes) => Ok(message(bytes, 0)),
        Say::Grpc(status) => Ok(message(Vec::new(), status)),
        Say::Allow(headers) if !grpc => Ok(plain(200, &headers, Vec::new())),
        Say::Refuse(status, headers, body) if !grpc => Ok(plain(status, &headers, body.as_bytes().to_vec())),
        Say::Allow(headers) => {
            Ok(check(0, HttpResponse::Ok(OkHttpResponse { headers: options(&headers), headers_to_remove: Vec::new() })))
        }
        Say::Refuse(status, headers, body) => Ok(check(
            7,
            HttpResponse::Denied(DeniedHttpResponse {
                status: Some(HttpStatus { code: i32::from(status) }),
                headers: options(&headers),
                body: body.as_bytes().to_vec(),
            }),
        )),
    }
}

fn of_http(request: &Request<Incoming>) -> ReceivedCheck {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    ReceivedCheck {
        method: request.method().to_string(),
        path: request.uri().path_and_query().unwrap().to_string(),
        headers: request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        ..ReceivedCheck::default()
    }
}

async fn of_grpc(request: Request<Incoming>) -> ReceivedCheck {
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let attributes = CheckRequest::decode(&body[5..]).unwrap().attributes.unwrap();
    let http = attributes.request.unwrap().http.unwrap();
    ReceivedCheck {
        id: http.id,
        method: http.method,
        path: http.path,
        host: http.host,
        scheme: http.scheme,
        headers: http.headers,
        raw_headers: http
            .header_map
            .unwrap_or_default()
            .headers
            .into_iter()
            .map(|one| (one.key, one.raw_value))
            .collect(),
        protocol: http.protocol,
        source: attributes.source.unwrap().principal,
        destination: attributes.destination.unwrap().principal,
    }
}

fn options(headers: &Headers) -> Vec<HeaderValueOption> {
    let option = |(name, value): &(&str, &str)| HeaderValueOption {
        header: Some(envoy::HeaderValue {
            key: (*name).to_owned(),
            value: value.as_bytes().to_vec(),
            raw_value: Vec::new(),
        }),
    };
    headers.iter().map(option).collect()
}

fn check(code: i32, http_response: HttpResponse) -> Response<Body> {
    let status = Some(envoy::Status { code, message: String::new() });
    message(envoy::frame(&CheckResponse { status, http_response: Some(http_response) }), 0)
}

fn message(bytes: Vec<u8>, status: u8) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(u16::from(status)));
    let body = Full::new(Bytes::from(bytes)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header(header::CONTENT_TYPE, "application/grpc");
    response.body(body.boxed()).unwrap()
}

fn plain(status: u16, headers: &Headers, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(*name, value);
        }
    }
    response
}
