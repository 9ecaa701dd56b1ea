//! HTTP/1.1 over persistent connections.
//!
//! In a jail, a function calls others by name, and the node answers; in a pod, a Service of that name
//! does. Without a jail, calls go through the proxy that `HTTP_PROXY` names, with the credentials in it; and without a mesh, to
//! the addresses in `BOUTIQUE_DIRECT`.

use super::Direct;
use crate::calls::{Calls, Failure, Payload, Request};
use crate::function::Function;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, COOKIE, HOST, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Largest body of a request or response.
const LARGEST_BODY: usize = 1 << 20;

/// Calls over HTTP/1.1.
pub struct Http {
    way: Way,
    /// Idle connections, by callee.
    idle: Mutex<HashMap<&'static str, Vec<Connection>>>,
}

type Connection = SendRequest<Full<Bytes>>;

enum Way {
    Name,
    Proxy { address: String, authorization: HeaderValue },
    Direct(Direct),
}

impl Http {
    /// Reads proxy and addresses from the environment.
    pub fn from_env() -> Result<Self, String> {
        let proxy = std::env::var("HTTP_PROXY").ok();
        let way = match (Direct::from_env()?, proxy) {
            (Some(direct), _) => Way::Direct(direct),
            (None, Some(proxy)) => {
                proxy_of(&proxy).ok_or("HTTP_PROXY is not of the form http://user:secret@host:port")?
            }
            (None, None) => Way::Name,
        };
        Ok(Self { way, idle: Mutex::default() })
    }

    /// An idle connection, or a new one.
    async fn connection(&self, callee: &'static str) -> Result<Connection, Failure> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).get_mut(callee).and_then(Vec::pop);
            let Some(mut connection) = idle else { break };
            if connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        let stream = match &self.way {
            Way::Name => TcpStream::connect((callee, 80)).await,
            Way::Proxy { address, .. } => TcpStream::connect(address).await,
            Way::Direct(direct) => {
                TcpStream::connect(direct.address(callee).ok_or_else(|| Failure::unreachable(callee, "unknown"))?).await
            }
        };
        let unreachable = |error: &dyn std::fmt::Display| Failure::unreachable(callee, error);
        let stream = stream.map_err(|error| unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
        // The next request on the connection sees how it ended.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn request(&self, callee: &'static str, path: &'static str, body: Bytes) -> hyper::Request<Full<Bytes>> {
        let mut request = hyper::Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static(callee));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/protobuf"));
        if let Way::Proxy { authorization, .. } = &self.way {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
            // Requests to a proxy have this form (RFC 9112, 3.2.2). Names and paths are constants
            // of this program.
            *request.uri_mut() = format!("http://{callee}{path}").parse().unwrap_or_default();
        } else {
            *request.uri_mut() = Uri::from_static(path);
        }
        request
    }
}

impl Calls for Http {
    async fn call(&self, callee: &'static str, path: &'static str, payload: Payload<'_>) -> Result<Bytes, Failure> {
        let request = self.request(callee, path, payload.to_bytes());
        let mut connection = self.connection(callee).await?;
        let unreachable = |error: &dyn std::fmt::Display| Failure::unreachable(callee, error);
        let answer = connection.send_request(request).await.map_err(|error| unreachable(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST_BODY).collect().await;
        let body = body.map_err(|error| unreachable(&error))?.to_bytes();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).entry(callee).or_default().push(connection);
        if status == StatusCode::OK { Ok(body) } else { Err(Failure::Status { callee, status }) }
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

fn proxy_of(text: &str) -> Option<Way> {
    let (credentials, address) = text.strip_prefix("http://")?.trim_end_matches('/').rsplit_once('@')?;
    let mut authorization = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(credentials))).ok()?;
    authorization.set_sensitive(true);
    Some(Way::Proxy { address: address.to_owned(), authorization })
}

/// Serves HTTP/1.1. Ends only if it can accept no more connections.
pub async fn serve<C: Calls + 'static>(function: Function, calls: C, listener: TcpListener) -> std::io::Result<()> {
    let both = Arc::new((function, calls));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let both = both.clone();
        let service = service_fn(move |request| {
            let both = both.clone();
            async move { Ok::<_, Infallible>(answer(&both.0, &both.1, request).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A client may disconnect at any time.
        tokio::spawn(async move { drop(serving.await) });
    }
}

async fn answer(function: &Function, calls: &impl Calls, request: hyper::Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let mut response = Response::new(Full::default());
    let Ok(body) = Limited::new(body, LARGEST_BODY).collect().await else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    let body = body.to_bytes();
    let cookie = head.headers.get(COOKIE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let reply = function.answer(calls, Request { method: head.method, path, cookie, body: body.clone() }).await;
    *response.status_mut() = reply.status;
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    *response.body_mut() = Full::new(reply.body.payload(&body).to_bytes());
    response
}
