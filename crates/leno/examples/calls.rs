//! A function for tests of third-party clients. It speaks gRPC with bytes for messages, so that no
//! client needs generated code, and plain HTTP.
//!
//! Methods of `test.Calls`:
//!
//! - `Unary` answers with its message, and its fields `x-echo` and `x-echo-bin` in head and
//!   trailers
//! - `Down` answers with the number of messages and of bytes that its message requests: `<count>
//!   <bytes>`
//! - `Up` answers with the number of received messages and bytes: `<count> <bytes>`
//! - `Both` answers each message with the same message
//! - `Refuse` fails at once, `Late` after a message, both with details
//! - `Silent` never answers, `Quiet` not after the first message
//! - `Ended` reports whether the client of a call with the same message has ended it: `yes` or `no`
//!
//! Paths:
//!
//! - `/echo` answers with the body, and a trailer
//! - `/fields/<count>` answers with as many fields
//! - `/quiet/<name>`, `/ended/<name>` are `Quiet` and `Ended`
//!
//! Each response has the environment variable `VERSION` in `x-version`.

use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::collections::HashSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Bytes of the details of an error, before their encoding.
const DETAILS: usize = 9_000;

/// Names of the calls that their clients have ended.
static ENDED: Mutex<Option<HashSet<Bytes>>> = Mutex::new(None);

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let port: u16 = std::env::var("PORT")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            server.http1().max_headers(1000);
            server.http2().max_header_list_size(1 << 20);
            let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<WatchedBody>, Error> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let (sender, frames) = mpsc::channel(1);
    let mut response = Response::new(WatchedBody { body: Some(frames), name: None });
    let fields = response.headers_mut();
    fields.insert("x-version", std::env::var("VERSION").unwrap_or_default().parse()?);
    let mut echoed = HeaderMap::new();
    for (name, value) in &head.headers {
        if name.as_str().starts_with("x-echo") {
            echoed.append(name, value.clone());
        }
    }
    fields.extend(echoed.clone());
    if let Some(method) = path.strip_prefix("/test.Calls/") {
        fields.insert(CONTENT_TYPE, head.headers.get(CONTENT_TYPE).ok_or("no content type")?.clone());
        let mut call = Call { body, rest: Vec::new(), sender, trailers: echoed };
        match method {
            "Refuse" => {
                fields.extend(refusal());
                response.body_mut().body = None;
            }
            "Silent" => std::future::pending().await,
            "Quiet" => {
                response.body_mut().name = Some(call.next().await?.ok_or("no message")?);
                tokio::spawn(call.quiet());
            }
            method => {
                let method = method.to_owned();
                tokio::spawn(async move { call.serve(&method).await });
            }
        }
        return Ok(response);
    }
    let mut plain = Call { body, rest: Vec::new(), sender, trailers: HeaderMap::new() };
    match path.trim_start_matches('/').split_once('/') {
        Some(("fields", count)) => {
            for number in 0..count.parse()? {
                fields.append("x-field", HeaderValue::from_str(&format!("{number:0100}"))?);
            }
        }
        Some(("quiet", name)) => {
            response.body_mut().name = Some(Bytes::copy_from_slice(name.as_bytes()));
            tokio::spawn(plain.quiet());
        }
        Some(("ended", name)) => {
            plain.sender.send(Frame::data(ended(name.as_bytes()).into())).await?;
        }
        _ => {
            fields.insert("trailer", HeaderValue::from_static("x-end"));
            tokio::spawn(async move {
                while let Some(frame) = plain.body.frame().await {
                    if let Ok(data) = frame?.into_data() {
                        plain.sender.send(Frame::data(data)).await?;
                    }
                }
                let end = HeaderMap::from_iter([("x-end".parse()?, "here".parse()?)]);
                Ok::<_, Error>(plain.sender.send(Frame::trailers(end)).await?)
            });
        }
    }
    Ok(response)
}

/// A response body; `None` ends with the head. If the client ends the call early, its name is added
/// to [`ENDED`]. (The channel of `http-body-util` may lose its last frame if its sender runs on
/// another thread.)
struct WatchedBody {
    body: Option<mpsc::Receiver<Frame<Bytes>>>,
    name: Option<Bytes>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.body {
            Some(body) => body.poll_recv(context).map(|frame| frame.map(Ok)),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            ENDED.lock().unwrap().get_or_insert_default().insert(name);
        }
    }
}

fn ended(name: &[u8]) -> &'static str {
    let ended = ENDED.lock().unwrap();
    if ended.as_ref().is_some_and(|ended| ended.contains(name)) { "yes" } else { "no" }
}

/// A call under way.
struct Call {
    body: Incoming,
    rest: Vec<u8>,
    sender: mpsc::Sender<Frame<Bytes>>,
    trailers: HeaderMap,
}

impl Call {
    /// Answers the call. The client receives the reason of a failure, if the connection is still
    /// open.
    async fn serve(mut self, method: &str) -> Result<(), Error> {
        let mut end = match self.answer(method).await {
            Ok(end) => end,
            Err(error) => {
                let message = format!("{method}: {error:?}");
                HeaderMap::from_iter([
                    ("grpc-status".parse()?, "13".parse()?),
                    ("grpc-message".parse()?, message.parse()?),
                ])
            }
        };
        end.extend(self.trailers);
        Ok(self.sender.send(Frame::trailers(end)).await?)
    }

    async fn answer(&mut self, method: &str) -> Result<HeaderMap, Error> {
        let mut end = HeaderMap::from_iter([("grpc-status".parse()?, "0".parse()?)]);
        match method {
            "Unary" => {
                let message = self.next().await?.ok_or("no message")?;
                self.send(&message).await?;
            }
            "Down" => {
                let message = self.next().await?.ok_or("no message")?;
                let (count, bytes) = std::str::from_utf8(&message)?.split_once(' ').ok_or("<count> <bytes>")?;
                let message = vec![b'd'; bytes.parse()?];
                for _ in 0..count.parse()? {
                    self.send(&message).await?;
                }
            }
            "Up" => {
                let (mut count, mut bytes) = (0, 0);
                while let Some(message) = self.next().await? {
                    (count, bytes) = (count + 1, bytes + message.len());
                }
                self.send(format!("{count} {bytes}").as_bytes()).await?;
            }
            "Both" => {
                while let Some(message) = self.next().await? {
                    self.send(&message).await?;
                }
            }
            "Late" => {
                self.send(b"a message").await?;
                end = refusal();
            }
            "Ended" => {
                let name = self.next().await?.ok_or("no message")?;
                self.send(ended(&name).as_bytes()).await?;
            }
            _ => end = HeaderMap::from_iter([("grpc-status".parse()?, "12".parse()?)]),
        }
        Ok(end)
    }

    /// Sends a message, and then nothing more.
    async fn quiet(mut self) -> Result<(), Error> {
        self.send(b"a message").await?;
        std::future::pending().await
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some((head, rest)) = self.rest.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if rest.len() >= length {
                    let message = Bytes::copy_from_slice(&rest[..length]);
                    self.rest.drain(..5 + length);
                    return Ok(Some(message));
                }
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame?.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let length = u32::try_from(message.len())?.to_be_bytes();
        Ok(self.sender.send(Frame::data([&[0][..], &length, message].concat().into())).await?)
    }
}

/// The fields of an error with details.
fn refusal() -> HeaderMap {
    let detail = Any { type_url: "type.example/test.Detail".into(), value: vec![b'x'; DETAILS] };
    let status = Status { code: 9, message: "not now, café".into(), details: vec![detail] };
    let details = BASE64_STANDARD_NO_PAD.encode(status.encode_to_vec());
    let fields = [("grpc-status", "9"), ("grpc-message", "not now, caf%C3%A9"), ("grpc-status-details-bin", &details)];
    fields.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

/// `google.rpc.Status`.
#[derive(Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}
