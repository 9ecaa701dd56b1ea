//! Checks message heads and prepares them for the next hop, by RFC 9110 (semantics), 9112
//! (HTTP/1.1) and 9113 (HTTP/2).
//!
//! [`admit`] runs once on each request head that comes from a socket. The rest of the proxy relies
//! on its guarantees: at most one authority, in the URI or in a single `host` field; no hop-by-hop
//! field; no field that only the mesh may set. [`finalize_request`] runs on each head for an
//! instance, [`sanitize_response`] on each response.

mod error;
mod external;
mod form;
mod trailers;
mod websocket;

pub use error::HeadError;
pub use external::{leave_mesh, set_alone};
pub use form::{check_connect, check_names, list_size, size};
pub use trailers::clean_trailers;
pub use websocket::{into_extended_connect, into_extended_connected, other_upgrade, set_upgrade};

use crate::peer::TrafficDirection;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Version, request, response};
use leno_policy::host::{is_same_authority, of_authority};
use leno_policy::reserved::{ReservedField, reserved};
use leno_policy::spec::Protocol;
use std::borrow::Cow;
use std::net::IpAddr;
use websocket::{from_extended_connect, is_websocket};

/// Identifies a request on all its hops through the mesh.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Identifies the caller to the callee, in Envoy's format: `By=<callee>;URI=<caller>`.
const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// Between sidecars: the protocol of the calling instance, so that policies see the same protocol
/// on every hop.
pub const HOP_PROTOCOL: HeaderName = HeaderName::from_static("x-leno-protocol");
/// Between sidecars: why the callee's sidecar answered instead of an instance
/// ([`crate::failure::Failure::label`]).
pub const HOP_FAILURE: HeaderName = HeaderName::from_static("x-leno-failure");
/// The addresses of the client and of the proxies before this one.
pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The scheme that the client used.
pub const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Fields that propagate traces (W3C Trace Context and Baggage, B3).
pub const TRACE_CONTEXT: [HeaderName; 9] = [
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
    HeaderName::from_static("b3"),
    HeaderName::from_static("x-b3-traceid"),
    HeaderName::from_static("x-b3-spanid"),
    HeaderName::from_static("x-b3-parentspanid"),
    HeaderName::from_static("x-b3-sampled"),
    HeaderName::from_static("x-b3-flags"),
];
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Limit on the bytes of a method. The longest registered one has 17.
const LONGEST_METHOD: usize = 32;

/// The result of [`admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKind {
    /// The protocol as policies see it.
    pub protocol: Protocol,
    /// The client wants a WebSocket. The head still has the fields for the upgrade.
    pub upgrade: bool,
}

/// The result of [`scan`]: one bit for each costly step.
struct HeadFeatures;

impl HeadFeatures {
    const CONNECTION: u32 = 1;
    const KEEP_ALIVE: u32 = 1 << 1;
    const PROXY_CONNECTION: u32 = 1 << 2;
    const TE: u32 = 1 << 3;
    const TRANSFER_ENCODING: u32 = 1 << 4;
    const UPGRADE: u32 = 1 << 5;
    const PROXY_CREDENTIALS: u32 = 1 << 6;
    const EXPECT: u32 = 1 << 7;
    const COOKIES: u32 = 1 << 8;
    /// Fields that only the mesh may set.
    const RESERVED: u32 = 1 << 9;
    /// Fields about a client that only a gateway may set.
    const CLIENT_INFO: u32 = 1 << 10;
    /// More than one `Content-Length` field.
    const LENGTHS: u32 = 1 << 11;
}

/// Checks a request head. Removes fields that are for this hop only and fields that only the mesh
/// may set.
pub fn admit(head: &mut request::Parts, direction: TrafficDirection) -> Result<RequestKind, HeadError> {
    from_extended_connect(head)?;
    check_authority(head)?;
    check_target(head, direction)?;
    if head.version == Version::HTTP_2 {
        trim_values(&mut head.headers);
        check_names(&head.headers)?;
    }
    let seen = scan(&head.headers);
    if seen & HeadFeatures::LENGTHS != 0 {
        join_lengths(&mut head.headers)?;
    }
    if seen & HeadFeatures::TRANSFER_ENCODING != 0 && !is_chunked(&head.headers) {
        return Err(HeadError::TransferCoding);
    }
    let mut protocol = if head.version == Version::HTTP_2 { Protocol::Http2 } else { Protocol::Http1 };
    if is_grpc(&head.headers) && protocol == Protocol::Http2 {
        protocol = Protocol::Grpc;
    }
    let upgrade = seen & HeadFeatures::UPGRADE != 0 && seen & HeadFeatures::CONNECTION != 0 && is_websocket(head);
    if upgrade {
        protocol = Protocol::WebSocket;
    }
    if seen & HeadFeatures::EXPECT != 0 {
        let known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        if !head.headers.get_all(header::EXPECT).iter().all(known) {
            return Err(HeadError::Expectation);
        }
        // The server side answers 100 as soon as the body is read, so the next hop need not be
        // asked again.
        head.headers.remove(header::EXPECT);
    }
    if direction == TrafficDirection::Inbound && seen & HeadFeatures::RESERVED != 0 {
        // Whether this is an upgrade is read from the head, not taken from the caller's sidecar.
        let hop = hop_protocol(&head.headers).filter(|hop| !upgrade && *hop != Protocol::WebSocket);
        protocol = hop.unwrap_or(protocol);
    }
    strip_hop_by_hop(&mut head.headers, seen);
    if upgrade {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    strip_reserved(&mut head.headers, seen, direction == TrafficDirection::Gateway);
    if seen & HeadFeatures::COOKIES != 0 {
        join_cookies(&mut head.headers);
    }
    Ok(RequestKind { protocol, upgrade })
}

/// Host and port that the request is for. Empty for an HTTP/1.0 request without a host.
#[inline]
pub fn authority(head: &request::Parts) -> &str {
    match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head.headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or(""),
    }
}

/// Splits `host[:port]`. IPv6 literals keep their brackets.
#[inline]
pub fn split_authority(authority: &str) -> (&str, Option<u16>) {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => (&authority[..colon], authority[colon + 1..].parse().ok()),
        _ => (authority, None),
    }
}

/// Whether a request ID can go into headers, logs and file names as it is.
#[inline]
pub fn is_sane_request_id(value: &HeaderValue) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    (1..=128).contains(&value.len()) && value.as_bytes().iter().all(plain)
}

/// Copies a value. All values of a head are slices of one buffer, and the copy keeps none of it.
#[inline]
pub fn own(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// Sets the gateway's fields about the client, in place of the client's own.
pub fn describe_client(headers: &mut HeaderMap, address: &HeaderValue, scheme: &'static str) {
    headers.insert(FORWARDED_FOR, address.clone());
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(scheme));
}

/// An address as a field value. IPv4-mapped IPv6 addresses become IPv4 addresses.
pub fn address_value(address: IpAddr) -> HeaderValue {
    HeaderValue::try_from(address.to_canonical().to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// Sets the request ID and the caller's identity after all other edits, so that these values
/// prevail. Without an identity, the field for it is removed.
pub fn finalize_request(headers: &mut HeaderMap, callee: &str, caller: Option<&str>, request_id: &HeaderValue) {
    match caller.and_then(|caller| HeaderValue::try_from(format!("By={callee};URI={caller}")).ok()) {
        Some(value) => headers.insert(CLIENT_CERT, value),
        None => headers.remove(CLIENT_CERT),
    };
    headers.insert(REQUEST_ID, request_id.clone());
}

/// The host of a request in the form in which hosts are compared.
#[inline]
pub fn host(head: &request::Parts) -> Cow<'_, str> {
    of_authority(authority(head)).unwrap_or_default()
}

/// Converts the head for an HTTP/1.1 upstream: a `Host` field, and the origin form for all methods
/// but CONNECT.
pub fn into_http1(head: &mut request::Parts, body_ended: bool) {
    if let Some(authority) = head.uri.authority()
        && head.method != Method::CONNECT
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(header::HOST, host);
        let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        head.uri = Uri::from(path);
    } else if !head.headers.contains_key(header::HOST) {
        // HTTP/1.0 clients may leave the host out, but HTTP/1.1 requires it. No External is called
        // "localhost".
        head.headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    }
    head.version = Version::HTTP_11;
    // Without this, hyper's client sends no body with methods that rarely have one.
    if !body_ended && !head.headers.contains_key(header::CONTENT_LENGTH) && is_usually_bodiless(&head.method) {
        head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

fn is_usually_bodiless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::CONNECT)
}

/// Converts the head for an HTTP/2 upstream: scheme and authority in the URI, no `Host` field.
pub fn into_http2(head: &mut request::Parts, scheme: &Scheme) -> Result<(), HeadError> {
    head.version = Version::HTTP_2;
    // Values that policies wrote, from claims for example, may have blanks around them too.
    trim_values(&mut head.headers);
    let host = head.headers.remove(header::HOST);
    if head.uri.authority().is_some() && head.uri.scheme().is_some() {
        return Ok(());
    }
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    if parts.authority.is_none() {
        // HTTP/2 requires an authority. No External is called "localhost".
        let host = host.unwrap_or_else(|| HeaderValue::from_static("localhost"));
        parts.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| HeadError::Authority)?);
    }
    parts.scheme = Some(scheme.clone());
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    head.uri = Uri::from_parts(parts).map_err(|_| HeadError::Target)?;
    Ok(())
}

/// Whether `chunked` is the only transfer coding. Any other coding would be lost when the message
/// is forwarded.
pub fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked = codings.next().is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"));
    chunked && codings.next().is_none()
}

/// Removes fields from a response that were for this hop or for the mesh only, and sets the request
/// ID.
pub fn sanitize_response(head: &mut response::Parts, request_id: &HeaderValue, upgraded: bool) {
    if head.version == Version::HTTP_2 {
        trim_values(&mut head.headers);
    }
    let seen = scan(&head.headers);
    if seen & HeadFeatures::LENGTHS != 0
        && let Some(first) = head.headers.get(header::CONTENT_LENGTH).cloned()
    {
        // Keep the first one, by which the body was read.
        head.headers.insert(header::CONTENT_LENGTH, first);
    }
    strip_hop_by_hop(&mut head.headers, seen);
    strip_reserved(&mut head.headers, seen, false);
    if upgraded {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    head.headers.insert(REQUEST_ID, request_id.clone());
    head.version = Version::HTTP_11;
}

/// Removes fields from an interim response that were for this hop or for the mesh only, or that no
/// interim response has (RFC 9110, 8.6).
pub fn sanitize_interim(headers: &mut HeaderMap) {
    trim_values(headers);
    let seen = scan(headers);
    strip_hop_by_hop(headers, seen);
    strip_reserved(headers, seen, false);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::TRAILER);
    headers.remove(REQUEST_ID);
}

/// Whether these are the headers of a gRPC message.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = headers.get(header::CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}

/// The name of a protocol in [`HOP_PROTOCOL`].
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
        Protocol::Grpc => "grpc",
        Protocol::WebSocket => "websocket",
    }
}

fn hop_protocol(headers: &HeaderMap) -> Option<Protocol> {
    let value = headers.get(HOP_PROTOCOL)?.as_bytes();
    [Protocol::Http1, Protocol::Http2, Protocol::Grpc, Protocol::WebSocket]
        .into_iter()
        .find(|protocol| protocol_name(*protocol).as_bytes() == value)
}

/// Requires one well-formed authority: in the URI for HTTP/2, in `Host` for HTTP/1.
fn check_authority(head: &mut request::Parts) -> Result<(), HeadError> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let (host, more) = (hosts.next(), hosts.next().is_some());
    if more || (host.is_none() && head.version == Version::HTTP_11) {
        return Err(HeadError::Host);
    }
    if let Some(host) = host
        && !is_authority(host.as_bytes())
    {
        return Err(HeadError::Authority);
    }
    let Some(authority) = head.uri.authority() else { return Ok(()) };
    if !is_authority(authority.as_str().as_bytes()) {
        return Err(HeadError::Authority);
    }
    if head.version == Version::HTTP_2 {
        let is_same = |host: &HeaderValue| host.to_str().is_ok_and(|host| is_same_authority(host, authority.as_str()));
        let differs = host.is_some_and(|host| !is_same(host));
        head.headers.remove(header::HOST);
        return if differs { Err(HeadError::TwoAuthorities) } else { Ok(()) };
    }
    if head.method == Method::CONNECT {
        return Ok(());
    }
    if head.uri.scheme().is_none() {
        // Authority form is for CONNECT only.
        return Err(HeadError::Target);
    }
    // Absolute form: the target wins, and the forwarded `Host` field repeats it (RFC 9112, 3.2.2).
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| HeadError::Authority)?;
    let path = match head.uri.path_and_query() {
        None => PathAndQuery::from_static("/"),
        // An empty path is `/` (RFC 9112, 3.2.1).
        Some(path) if path.as_str().starts_with('?') => {
            PathAndQuery::try_from(format!("/{path}")).map_err(|_| HeadError::Target)?
        }
        Some(path) => path.clone(),
    };
    head.headers.insert(header::HOST, host);
    head.uri = Uri::from(path);
    Ok(())
}

/// Accepts `host`, `host:port`, `[v6]` and `[v6]:port`, and nothing that another parser could read
/// differently.
fn is_authority(text: &[u8]) -> bool {
    let host = std::str::from_utf8(text).ok().and_then(of_authority);
    host.is_some_and(|host| (1..=255).contains(&host.len()))
}

fn check_target(head: &request::Parts, direction: TrafficDirection) -> Result<(), HeadError> {
    match head.method {
        _ if head.method.as_str().len() > LONGEST_METHOD => Err(HeadError::LongMethod),
        Method::TRACE => Err(HeadError::Method),
        Method::CONNECT if direction == TrafficDirection::Outbound => check_connect(head),
        Method::CONNECT => check_connect(head).and(Err(HeadError::Method)),
        Method::OPTIONS if head.uri.path() == "*" => Ok(()),
        _ if head.uri.path().starts_with('/') => Ok(()),
        _ => Err(HeadError::Target),
    }
}

/// Finds out in one pass over the names which of the costly steps are needed at all.
fn scan(headers: &HeaderMap) -> u32 {
    let mut seen = 0;
    let mut cookies = 0;
    for name in headers.keys() {
        seen |= match *name {
            header::CONNECTION => HeadFeatures::CONNECTION,
            header::TE => HeadFeatures::TE,
            header::TRANSFER_ENCODING => HeadFeatures::TRANSFER_ENCODING,
            header::UPGRADE => HeadFeatures::UPGRADE,
            header::PROXY_AUTHORIZATION | header::PROXY_AUTHENTICATE => HeadFeatures::PROXY_CREDENTIALS,
            header::EXPECT => HeadFeatures::EXPECT,
            header::COOKIE => {
                cookies = headers.get_all(header::COOKIE).iter().take(2).count();
                0
            }
            header::CONTENT_LENGTH if headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() => {
                HeadFeatures::LENGTHS
            }
            _ => match name.as_str().as_bytes() {
                b"keep-alive" => HeadFeatures::KEEP_ALIVE,
                b"proxy-connection" => HeadFeatures::PROXY_CONNECTION,
                name => restricted_bits(name),
            },
        };
    }
    if cookies > 1 { seen | HeadFeatures::COOKIES } else { seen }
}

fn strip_hop_by_hop(headers: &mut HeaderMap, seen: u32) {
    if seen & HeadFeatures::CONNECTION != 0 {
        strip_named_by_connection(headers);
    }
    if seen & HeadFeatures::KEEP_ALIVE != 0 {
        headers.remove(KEEP_ALIVE);
    }
    if seen & HeadFeatures::PROXY_CONNECTION != 0 {
        headers.remove(PROXY_CONNECTION);
    }
    if seen & HeadFeatures::TRANSFER_ENCODING != 0 {
        headers.remove(header::TRANSFER_ENCODING);
    }
    if seen & HeadFeatures::UPGRADE != 0 {
        headers.remove(header::UPGRADE);
    }
    if seen & HeadFeatures::PROXY_CREDENTIALS != 0 {
        headers.remove(header::PROXY_AUTHORIZATION);
        headers.remove(header::PROXY_AUTHENTICATE);
    }
    if seen & HeadFeatures::TE != 0 {
        let wants_trailers = headers.get_all(header::TE).iter().any(|value| lists(value, "trailers"));
        headers.remove(header::TE);
        if wants_trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// RFC 9110, 7.6.1. A sender cannot remove a field that frames or routes the message by listing it.
fn strip_named_by_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| !matches!(*name, header::HOST | header::CONTENT_LENGTH | header::TE | header::UPGRADE))
        .collect();
    headers.remove(header::CONNECTION);
    for name in named {
        headers.remove(name);
    }
}

/// Classifies a field that not every sender may set, including twins that are spelled with
/// underscores.
fn restricted_bits(name: &[u8]) -> u32 {
    let twin = || name.contains(&b'_');
    match reserved(name) {
        None => 0,
        Some(ReservedField::Mesh | ReservedField::Proxy) => HeadFeatures::RESERVED,
        // The runtime keeps or replaces the field of that exact name.
        Some(ReservedField::RequestId) if !twin() => 0,
        Some(ReservedField::Client) if !twin() => HeadFeatures::CLIENT_INFO,
        Some(ReservedField::RequestId | ReservedField::Client) => HeadFeatures::RESERVED,
        Some(ReservedField::OtherProxy) => HeadFeatures::CLIENT_INFO,
    }
}

/// `external`: the message comes from outside the mesh.
fn strip_reserved(headers: &mut HeaderMap, seen: u32, external: bool) {
    let unwanted = if external { HeadFeatures::RESERVED | HeadFeatures::CLIENT_INFO } else { HeadFeatures::RESERVED };
    if seen & unwanted == 0 {
        return;
    }
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| restricted_bits(name.as_str().as_bytes()) & unwanted != 0).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Removes blanks around values, which are not part of them (RFC 9110, 5.5). HTTP/1.1's parser
/// drops them. Over HTTP/2 they make a message malformed: a strict peer ends the stream, or the
/// connection with all its streams (RFC 9113, 8.2.1).
fn trim_values(headers: &mut HeaderMap) {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    for value in headers.values_mut() {
        let bytes = value.as_bytes();
        if is_blank(bytes.first()) || is_blank(bytes.last()) {
            let trimmed = HeaderValue::from_bytes(bytes.trim_ascii());
            *value = trimmed.unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

/// Different lengths are refused, because two peers may believe two different ones (RFC 9110, 8.6).
fn join_lengths(headers: &mut HeaderMap) -> Result<(), HeadError> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(first) = lengths.next().cloned() else { return Ok(()) };
    if lengths.any(|length| *length != first) {
        return Err(HeadError::Lengths);
    }
    headers.insert(header::CONTENT_LENGTH, first);
    Ok(())
}

/// HTTP/2 may split cookies into several fields. Policies see one field, as in HTTP/1.1 (RFC 9113,
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut joined = Vec::new();
    for value in headers.get_all(header::COOKIE).iter().filter(|value| !value.is_empty()) {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(value.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, value);
    }
}

/// Whether a comma-separated field value lists this token. Parameters are ignored.
fn lists(value: &HeaderValue, token: &str) -> bool {
    let is_token = |item: &[u8]| {
        item.split(|byte| *byte == b';')
            .next()
            .is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    };
    value.as_bytes().split(|byte| *byte == b',').any(is_token)
}

#[cfg(test)]
mod tests;
