//! gRPC without a mesh: HTTP/2 without TLS, to the addresses in `BOUTIQUE_DIRECT`.
//!
//! Client and codec are tonic's, with messages that are already encoded. Each callee has one
//! connection, as is usual for clients of gRPC.

use super::Direct;
use crate::calls::{Calls, Failure, Payload, Request};
use crate::function::Function;
use bytes::{Buf, BufMut, Bytes};
use hyper::http::uri::PathAndQuery;
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Calls by gRPC.
pub struct Grpc {
    direct: Direct,
    channels: Mutex<HashMap<&'static str, Channel>>,
}

impl Grpc {
    /// Reads the addresses from the environment.
    pub fn from_env() -> Result<Self, String> {
        let direct = Direct::from_env()?.ok_or("gRPC needs BOUTIQUE_DIRECT")?;
        Ok(Self { direct, channels: Mutex::default() })
    }

    fn channel(&self, callee: &'static str) -> Result<Channel, Failure> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(callee) {
            return Ok(channel.clone());
        }
        let address = self.direct.address(callee).ok_or_else(|| Failure::unreachable(callee, "unknown"))?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let channel = endpoint.map_err(|error| Failure::unreachable(callee, error))?.connect_lazy();
        channels.insert(callee, channel.clone());
        Ok(channel)
    }
}

impl Calls for Grpc {
    async fn call(&self, callee: &'static str, path: &'static str, payload: Payload<'_>) -> Result<Bytes, Failure> {
        let bytes = payload.to_bytes();
        let mut client = tonic::client::Grpc::new(self.channel(callee)?);
        client.ready().await.map_err(|error| Failure::unreachable(callee, error))?;
        let path = PathAndQuery::from_static(path);
        match client.unary(tonic::Request::new(bytes), path, RawCodec).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(Failure::Status { callee, status: to_http(status.code()) }),
        }
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Serves gRPC. Ends only if it can accept no more connections.
pub async fn serve<C: Calls + 'static>(function: Function, calls: C, listener: TcpListener) -> std::io::Result<()> {
    let both = Arc::new((function, calls));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let both = both.clone();
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let path = request.uri().path().to_owned();
            let method = Unary { both: both.clone(), path };
            async move { Ok::<_, Infallible>(tonic::server::Grpc::new(RawCodec).unary(method, request).await) }
        });
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        // A client may disconnect at any time.
        tokio::spawn(async move { drop(serving.await) });
    }
}

/// A handler for all methods.
struct Unary<C> {
    both: Arc<(Function, C)>,
    path: String,
}

impl<C: Calls + 'static> tonic::server::UnaryService<Bytes> for Unary<C> {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (both, path) = (self.both.clone(), std::mem::take(&mut self.path));
        Box::pin(async move {
            let body = request.into_inner();
            let request = Request { method: Method::POST, path, cookie: None, body: body.clone() };
            let reply = both.0.answer(&both.1, request).await;
            let bytes = reply.body.payload(&body).to_bytes();
            match to_grpc(reply.status) {
                Code::Ok => Ok(tonic::Response::new(bytes)),
                code => Err(Status::new(code, String::from_utf8_lossy(&bytes))),
            }
        })
    }
}

/// The gRPC code for a function's status.
fn to_grpc(status: StatusCode) -> Code {
    match status {
        StatusCode::OK => Code::Ok,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::NOT_FOUND => Code::NotFound,
        _ => Code::Internal,
    }
}

fn to_http(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_GATEWAY,
    }
}

/// The codec of messages that are already encoded.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
