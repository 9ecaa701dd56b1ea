//! Heads from a socket. An admitted head has the properties on which the pipeline relies, is admitted
//! again unchanged, and can be forwarded over both versions.
#![no_main]

use h2::ext::Protocol;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::Scheme;
use http::{Method, Request, Response, Uri, Version, request};
use leno_http::head;
use leno_http::peer::TrafficDirection;
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 32] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-envoy-original-path",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-user",
    "x-leno-caller",
    "x-leno-protocol",
    "x-real-ip",
    "x-request-id",
    "x-user",
    "x_forwarded_client_cert",
    "x_leno-caller",
    "x_real_ip",
    "x_request_id",
    "x_user",
];
const VALUES: [&str; 16] = [
    "a",
    "a:80",
    "0",
    "5",
    "100-continue",
    "application/grpc",
    "chunked",
    "close, host, content-length, x-user",
    "cookie",
    "gzip, trailers",
    "grpc",
    "http2",
    "te, upgrade",
    "upgrade",
    "websocket",
    "x-forwarded-client-cert",
];

/// Index of a known name or the text itself, and the same for the value.
type Field<'a> = (u8, &'a str, u8, &'a [u8]);

// Method, target, kind of connection, `:protocol` of an extended CONNECT, fields.
fuzz_target!(|input: (&str, &[u8], u8, &str, Vec<Field<'_>>)| {
    let (method, target, kind, protocol, fields) = input;
    let Some(head) = sketch(method, target, kind, protocol, &fields) else { return };
    let direction =
        [TrafficDirection::Gateway, TrafficDirection::Outbound, TrafficDirection::Inbound][usize::from(kind >> 2) % 3];
    answered(&head.headers, head.version, kind);
    trailed(head.headers.clone());
    let mut admitted = head;
    let Ok(found) = head::admit(&mut admitted, direction) else { return };
    check(&admitted, direction, found);

    let mut again = admitted.clone();
    let seen = head::admit(&mut again, direction).expect("an admitted head is one");
    assert_eq!(seen.upgrade, found.upgrade);
    assert_eq!((&again.method, &again.uri, &again.headers), (&admitted.method, &admitted.uri, &admitted.headers));
    if admitted.method != Method::CONNECT {
        forwarded(&admitted, found.upgrade);
    }
});

fn sketch(method: &str, target: &[u8], kind: u8, protocol: &str, fields: &[Field<'_>]) -> Option<request::Parts> {
    let method = match method {
        "" => Method::GET,
        method => Method::from_bytes(method.as_bytes()).ok()?,
    };
    let version = [Version::HTTP_10, Version::HTTP_11, Version::HTTP_11, Version::HTTP_2][usize::from(kind) % 4];
    let mut head = Request::new(()).into_parts().0;
    head.uri = Uri::try_from(target).ok()?;
    (head.method, head.version) = (method, version);
    if version == Version::HTTP_2 && !protocol.is_empty() {
        head.extensions.insert(match protocol {
            "w" => Protocol::from_static("websocket"),
            other => Protocol::from(other),
        });
    }
    for (name, text, value, bytes) in fields {
        let name = NAMES.get(usize::from(*name)).copied().unwrap_or(text);
        let value = VALUES.get(usize::from(*value)).map_or(*bytes, |value| value.as_bytes());
        head.headers.append(HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    Some(head)
}

fn check(head: &request::Parts, direction: TrafficDirection, found: head::RequestKind) {
    let headers = &head.headers;
    let hosts = headers.get_all("host").iter().count();
    let is_connect = head.method == Method::CONNECT;
    match head.version {
        Version::HTTP_2 => assert!(hosts == 0 || (hosts == 1 && head.uri.authority().is_none())),
        _ => assert!(hosts <= 1 && (head.uri.authority().is_none() || is_connect)),
    }
    let authority = head::authority(head);
    assert!(authority.bytes().all(|byte| byte.is_ascii_graphic() && !b"@/?#\\,\"<>".contains(&byte)), "{authority}");
    assert!(
        is_connect || head.uri.path().starts_with('/') || (head.method == Method::OPTIONS && head.uri.path() == "*")
    );
    assert!(head.method != Method::TRACE && (!is_connect || direction == TrafficDirection::Outbound));

    cleaned(headers, found.upgrade);
    assert!(!headers.contains_key("expect"));
    assert!(headers.get_all("content-length").iter().count() <= 1);
    assert!(headers.get_all("cookie").iter().count() <= 1);
    if direction == TrafficDirection::Gateway {
        for name in headers.keys() {
            let folded = name.as_str().replace('_', "-");
            let of_client = ["x-forwarded-", "x-envoy-"].iter().any(|prefix| folded.starts_with(prefix));
            assert!(!of_client && folded != "x-real-ip" && folded != "forwarded", "{name} from outside");
        }
    }
    if head.version == Version::HTTP_2 {
        trimmed(headers);
    }
}

/// The head has no fields for this hop only, and none that only the mesh may set.
fn cleaned(headers: &HeaderMap, upgrade: bool) {
    for name in ["keep-alive", "proxy-connection", "transfer-encoding", "proxy-authorization", "proxy-authenticate"] {
        assert!(!headers.contains_key(name), "{name} is for this hop");
    }
    for (name, only) in [("connection", "upgrade"), ("upgrade", "websocket")] {
        let said: Vec<_> = headers.get_all(name).iter().collect();
        assert!(if upgrade { said == [only] } else { said.is_empty() }, "{name}: {said:?}");
    }
    assert!(headers.get_all("te").iter().all(|value| value == "trailers"));
    for name in headers.keys() {
        let folded = name.as_str().replace('_', "-");
        let is_twin = folded != name.as_str();
        assert!(!folded.starts_with("x-leno-") && folded != "x-forwarded-client-cert" && folded != "proxy", "{name}");
        assert!(!is_twin || (folded != "x-request-id" && folded != "x-forwarded-for"), "{name} is a twin");
    }
}

fn trimmed(headers: &HeaderMap) {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    assert!(headers.values().all(|value| !is_blank(value.as_bytes().first()) && !is_blank(value.as_bytes().last())));
}

fn forwarded(head: &request::Parts, upgrade: bool) {
    let mut one = head.clone();
    head::into_http1(&mut one, false);
    assert_eq!(one.version, Version::HTTP_11);
    assert_eq!(one.headers.get_all("host").iter().count(), 1);
    assert!(one.uri.authority().is_none() && one.uri.scheme().is_none());

    let mut two = head.clone();
    head::into_http2(&mut two, &Scheme::HTTP).expect("an admitted head is one of HTTP/2 too");
    if upgrade {
        head::into_extended_connect(&mut two);
        assert!(!two.headers.contains_key("connection") && !two.headers.contains_key("upgrade"));
    }
    assert!(two.uri.authority().is_some() && two.uri.scheme().is_some() && !two.headers.contains_key("host"));
    trimmed(&two.headers);
}

/// The same fields in a response.
fn answered(headers: &HeaderMap, version: Version, kind: u8) {
    let upgraded = kind & 0x80 != 0;
    let mut head = Response::new(()).into_parts().0;
    (head.headers, head.version) = (headers.clone(), version);
    head::sanitize_response(&mut head, &HeaderValue::from_static("id"), upgraded);
    cleaned(&head.headers, upgraded);
    assert!(head.headers.get_all("x-request-id").iter().eq(["id"]));
    assert!(head.headers.get_all("content-length").iter().count() <= 1);
}

/// The same fields as trailers.
fn trailed(mut trailers: HeaderMap) {
    head::clean_trailers(&mut trailers, ["x-user"].into_iter());
    for name in ["connection", "content-length", "cookie", "host", "keep-alive", "te", "transfer-encoding", "upgrade"] {
        assert!(!trailers.contains_key(name), "{name} in trailers");
    }
    for name in trailers.keys() {
        let folded = name.as_str().replace('_', "-");
        assert!(!folded.starts_with("x-leno-") && !["x-user", "x-request-id", "proxy"].contains(&&*folded), "{name}");
    }
    trimmed(&trailers);
}
