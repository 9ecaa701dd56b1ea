//! `leno-bench sinks`: the services that proxies use: an OTLP collector that drops all spans, and a
//! global rate limit service (`envoy.service.ratelimit.v3`) that admits all requests. One process,
//! on the load's core, for all proxies.

use anyhow::Context;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::net::TcpListener;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// OTLP over HTTP.
    #[arg(long, value_name = "ADDRESS")]
    otlp: SocketAddr,
    /// The rate limit service, gRPC.
    #[arg(long, value_name = "ADDRESS")]
    limits: SocketAddr,
}

/// Serves until it is killed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let otlp = TcpListener::bind(arguments.otlp).await.context("the OTLP sink cannot listen")?;
        let limits = TcpListener::bind(arguments.limits).await.context("the rate limit service cannot listen")?;
        println!("ready");
        loop {
            tokio::select! {
                accepted = otlp.accept() => {
                    let stream = TokioIo::new(accepted?.0);
                    tokio::spawn(http1::Builder::new().serve_connection(stream, service_fn(swallow)));
                }
                accepted = limits.accept() => {
                    let (stream, _) = accepted?;
                    stream.set_nodelay(true)?;
                    let server = http2::Builder::new(TokioExecutor::new());
                    tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(should_rate_limit)));
                }
            }
        }
    })
}

async fn swallow(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let mut response = Response::new(Full::default());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    Ok(response)
}

/// The part of `envoy.service.ratelimit.v3.RateLimitRequest` that a decision needs.
#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

const OK: i32 = 1;

async fn should_rate_limit(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let (answer, status) = match body.get(5..).map(RateLimitRequest::decode) {
        Some(Ok(asked)) if asked.descriptors.iter().all(|descriptor| !descriptor.entries.is_empty()) => {
            let statuses = asked.descriptors.iter().map(|_| DescriptorStatus { code: OK }).collect();
            (frame(&RateLimitResponse { overall_code: OK, statuses }), "0")
        }
        // INVALID_ARGUMENT: the proxy is not configured as it should be, and its requests fail.
        _ => (Bytes::new(), "3"),
    };
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static(status))]);
    let body = Full::new(answer).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// A message of gRPC's framing: not compressed, length, bytes.
fn frame(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    bytes.put_slice(&message.encode_to_vec());
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_public_field_numbers() {
        // As protoc encodes envoy.service.ratelimit.v3.RateLimitRequest{domain: "b", descriptors:
        // [{entries: [{key: "k", value: "v"}]}]}.
        let encoded = b"\x0a\x01b\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
        let decoded = RateLimitRequest::decode(&encoded[..]).unwrap();
        assert_eq!((decoded.domain.as_str(), decoded.descriptors[0].entries[0].value.as_str()), ("b", "v"));
        let framed = frame(&RateLimitResponse { overall_code: OK, statuses: vec![DescriptorStatus { code: OK }] });
        assert_eq!(&framed[..], b"\0\0\0\0\x06\x08\x01\x12\x02\x08\x01");
    }
}
