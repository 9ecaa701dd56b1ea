//! The request that asks an authorizer, and the key by which equal questions are recognized.

use super::envoy::{self, AttributeContext, CheckRequest, HeaderMap, HttpRequest, SocketAddress, Timestamp};
use crate::pipeline::exchange::Exchange;
use crate::state::authorizer::Authorizer;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Uri, Version, request};
use leno_http::body::Body;
use leno_http::head;
use leno_model::AuthorizerProtocol;
use leno_policy::host::normal_authority;
use leno_policy::spec::KeyPart;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields of a request that a question over HTTP does not repeat, because they describe a
/// connection.
const OF_CONNECTION: [HeaderName; 4] = [header::CONNECTION, header::UPGRADE, header::TE, header::TRANSFER_ENCODING];

/// The question about a request. `None`: the authorizer's authority is invalid, which the
/// configuration has excluded.
pub(super) fn question(
    spec: &leno_model::Authorizer,
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
            // `*` stands for the server as a whole, not for a path.
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
    spec: &leno_model::Authorizer,
    exchange: &Exchange,
    head: &request::Parts,
    callee: &str,
    bodiless: bool,
) -> CheckRequest {
    let authority = authority(head);
    let fields = fields(spec, exchange, head, &authority);
    let (headers, header_map) = match spec.raw_headers {
        false => (joined(fields), None),
        true => (BTreeMap::new(), Some(raw(fields))),
    };
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let http = HttpRequest {
        id: exchange.request_id.to_str().unwrap_or_default().to_owned(),
        method: head.method.as_str().to_owned(),
        headers,
        path: path(head).to_owned(),
        host: authority.clone().into_owned(),
        scheme: exchange.scheme.to_owned(),
        size: length.unwrap_or(if bodiless { 0 } else { -1 }),
        protocol: match head.version {
            Version::HTTP_2 => "HTTP/2",
            Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        }
        .to_owned(),
        header_map,
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

/// The fields that a gRPC question has: as in Envoy, pseudo-headers come first, and a WebSocket has
/// the fields of its handshake whichever HTTP version opened it. `includeHeaders` chooses among the
/// others.
fn fields<'a>(
    spec: &'a leno_model::Authorizer,
    exchange: &'a Exchange,
    head: &'a request::Parts,
    authority: &'a str,
) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let pseudo = [
        (":authority", authority),
        (":method", head.method.as_str()),
        (":path", path(head)),
        (":scheme", exchange.scheme),
    ];
    let upgrade = if exchange.upgrade { &OF_CONNECTION[..2] } else { &[] };
    let is_shown = |name: &HeaderName| upgrade.contains(name) || (*name != header::HOST && is_shown(spec, name));
    let headers = head.headers.iter().filter(move |(name, _)| is_shown(name));
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
    pseudo.into_iter().map(|(name, value)| (name, value.as_bytes())).chain(headers)
}

/// Fields as text, by name. Those with one name are joined, as Envoy joins them.
fn joined<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in fields {
        let value = String::from_utf8_lossy(value);
        match headers.get_mut(name) {
            Some(values) => values.extend([",", &value]),
            None => drop(headers.insert(name.to_owned(), value.into_owned())),
        }
    }
    headers
}

/// Fields as they came.
fn raw<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> HeaderMap {
    let field = |(name, value): (&str, &[u8])| envoy::HeaderValue {
        key: name.to_owned(),
        value: Vec::new(),
        raw_value: value.to_vec(),
    };
    HeaderMap { headers: fields.map(field).collect() }
}

/// The fields that a question over HTTP repeats.
fn shown<'a>(
    spec: &'a leno_model::Authorizer,
    head: &'a request::Parts,
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    let is_excluded = |name: &HeaderName| *name == header::HOST || OF_CONNECTION.contains(name);
    head.headers.iter().filter(move |(name, _)| !is_excluded(name) && is_shown(spec, name))
}

fn is_shown(spec: &leno_model::Authorizer, name: &HeaderName) -> bool {
    spec.shown.as_ref().is_none_or(|names| names.iter().any(|shown| shown == name.as_str()))
}

/// Host and port as rules and routes read them, so that an authorizer reads the host alike.
fn authority(head: &request::Parts) -> Cow<'_, str> {
    let authority = head::authority(head);
    normal_authority(authority).unwrap_or(Cow::Borrowed(authority))
}

fn path(head: &request::Parts) -> &str {
    head.uri.path_and_query().map_or("/", |path| path.as_str())
}

/// The key of a question in the cache of answers. It covers the key parts that the policy names,
/// and always the caller's identity and the host. `None`: the policy has no cache, or the request
/// lacks one of the parts.
pub(super) fn key(authorizer: &Authorizer, exchange: &Exchange, head: &request::Parts) -> Option<u128> {
    let cache = authorizer.spec.cache.as_ref()?;
    let mut question = Vec::new();
    let mut add = |part: &[u8]| {
        // The length comes first, so that different lists of parts never give the same bytes.
        question.extend_from_slice(&(part.len() as u64).to_be_bytes());
        question.extend_from_slice(part);
    };
    let identity = exchange.peer.identity.as_deref();
    add(identity.unwrap_or_default().as_bytes());
    add(authority(head).as_bytes());
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
            // The configuration does not accept claims here.
            KeyPart::Claim(_) => return None,
        }
    }
    Some(authorizer.key(&question))
}
