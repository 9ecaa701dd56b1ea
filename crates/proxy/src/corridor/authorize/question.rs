//! The request by which an authorizer is asked, and what tells equal questions.

use super::envoy::{self, AttributeContext, CheckRequest, HttpRequest, SocketAddress, Timestamp};
use crate::corridor::exchange::Exchange;
use crate::http::body::Body;
use crate::http::head;
use crate::state::authorizer::Authorizer;
use crate::state::ledger::Digest;
use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Uri, Version, request};
use leno_config::slice::{self, AuthorizerProtocol};
use leno_policy::spec::KeyPart;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields of a request that say nothing about it to somebody else: they are about its connection, or stand elsewhere in a question.
const NOT_SHOWN: [HeaderName; 5] =
    [header::HOST, header::CONNECTION, header::UPGRADE, header::TE, header::TRANSFER_ENCODING];

/// The question about a request. `None`: the authority of the authorizer is none, which the configuration has excluded.
pub(super) fn question(
    spec: &slice::Authorizer,
    exchange: &Exchange,
    head: &request::Parts,
    callee: &str,
    bodiless: bool,
) -> Option<(Box<request::Parts>, Body)> {
    match spec.protocol {
        AuthorizerProtocol::Grpc => {
            let message = check_request(spec, exchange, head, callee, bodiless);
            let uri = Uri::builder().scheme("http").authority(spec.authority.as_str()).path_and_query(envoy::CHECK);
            let (mut asked, ()) = Request::new(()).into_parts();
            (asked.method, asked.uri, asked.version) = (Method::POST, uri.build().ok()?, Version::HTTP_2);
            asked.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            asked.headers.insert(header::TE, HeaderValue::from_static("trailers"));
            let body = envoy::frame(&message);
            asked.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            Some((Box::new(asked), Body::full(Bytes::from(body))))
        }
        AuthorizerProtocol::Http => {
            let (mut asked, ()) = Request::new(()).into_parts();
            asked.method = head.method.clone();
            // `*` stands for the server as a whole, of which no path says anything.
            let path = Some(path(head)).filter(|path| path.starts_with('/')).unwrap_or("/");
            asked.uri = [spec.path_prefix.as_str(), path].concat().parse().ok()?;
            for (name, value) in shown(spec, head) {
                asked.headers.append(name.clone(), value.clone());
            }
            asked.headers.insert(header::HOST, HeaderValue::from_str(&spec.authority).ok()?);
            Some((Box::new(asked), Body::empty()))
        }
    }
}

fn check_request(
    spec: &slice::Authorizer,
    exchange: &Exchange,
    head: &request::Parts,
    callee: &str,
    bodiless: bool,
) -> CheckRequest {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in shown(spec, head) {
        let value = String::from_utf8_lossy(value.as_bytes());
        let values = headers.entry(name.as_str().to_owned()).or_default();
        // As Envoy joins what is repeated.
        *values = if values.is_empty() { value.into_owned() } else { [values, ",", &value].concat() };
    }
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let http = HttpRequest {
        id: exchange.request_id.to_str().unwrap_or_default().to_owned(),
        method: head.method.as_str().to_owned(),
        headers,
        path: path(head).to_owned(),
        host: head::authority(head).to_owned(),
        scheme: exchange.scheme.to_owned(),
        size: length.unwrap_or(if bodiless { 0 } else { -1 }),
        protocol: match head.version {
            Version::HTTP_2 => "HTTP/2",
            Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        }
        .to_owned(),
    };
    let peer = |address: Option<SocketAddr>, port: u16, principal: Option<&str>| envoy::Peer {
        address: Some(envoy::Address {
            socket_address: Some(SocketAddress {
                address: address.map(|address| address.ip().to_canonical().to_string()).unwrap_or_default(),
                port_value: u32::from(port),
            }),
        }),
        service: String::new(),
        principal: principal.unwrap_or_default().to_owned(),
    };
    let source = &exchange.peer;
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(peer(Some(source.address), source.address.port(), source.identity.as_deref())),
            destination: Some(peer(None, exchange.port, Some(callee))),
            request: Some(envoy::Request {
                time: Some(Timestamp {
                    seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                    nanos: i32::try_from(time.subsec_nanos()).unwrap_or_default(),
                }),
                http: Some(http),
            }),
        }),
    }
}

/// The fields of a request that an authorizer is shown.
fn shown<'a>(
    spec: &'a slice::Authorizer,
    head: &'a request::Parts,
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    let is_shown = |name: &HeaderName| match &spec.shown {
        Some(names) => names.iter().any(|shown| shown == name.as_str()),
        None => true,
    };
    head.headers.iter().filter(move |(name, _)| !NOT_SHOWN.contains(name) && is_shown(name))
}

fn path(head: &request::Parts) -> &str {
    head.uri.path_and_query().map_or("/", |path| path.as_str())
}

/// What stands for a question among those that are remembered: all that the policy names, and in any case who asks for which host. `None`: answers are not
/// remembered, or the request lacks what would tell it apart.
pub(super) fn digest(authorizer: &Authorizer, exchange: &Exchange, head: &request::Parts) -> Option<Digest> {
    let cache = authorizer.spec.cache.as_ref()?;
    let mut context = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        // With its length, so that no two lists of parts run into the same bytes.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    };
    let identity = exchange.peer.identity.as_deref();
    add(identity.unwrap_or_default().as_bytes());
    add(&head::authority(head).to_ascii_lowercase().into_bytes());
    for part in &cache.key {
        match part {
            KeyPart::Identity => add(identity?.as_bytes()),
            KeyPart::Path => add(path(head).as_bytes()),
            KeyPart::Method => add(head.method.as_str().as_bytes()),
            KeyPart::Address => add(exchange.peer.address.ip().to_canonical().to_string().as_bytes()),
            KeyPart::Header(name) => {
                let values: Vec<&HeaderValue> = head.headers.get_all(name).iter().collect();
                if values.is_empty() {
                    return None;
                }
                add(&(values.len() as u64).to_be_bytes());
                values.iter().for_each(|value| add(value.as_bytes()));
            }
            // The configuration has refused it.
            KeyPart::Claim(_) => return None,
        }
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Some(digest)
}
