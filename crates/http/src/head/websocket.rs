//! WebSocket handshakes over HTTP/1.1 (RFC 6455) and HTTP/2 (RFC 8441).

use super::{HeadError, lists};
use h2::ext::Protocol as TunnelProtocol;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode, request, response};

/// Turns a WebSocket over HTTP/2 (RFC 8441) into its HTTP/1.1 form, so that policies see only one
/// form. Other protocols are refused. The extension is removed: with it, the forwarded request
/// would still be a CONNECT.
pub(super) fn from_extended_connect(head: &mut request::Parts) -> Result<(), HeadError> {
    let Some(protocol) = head.extensions.remove::<TunnelProtocol>() else { return Ok(()) };
    if head.method != Method::CONNECT || protocol.as_str() != "websocket" {
        return Err(HeadError::Method);
    }
    head.method = Method::GET;
    head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    // HTTP/1.1 servers require a key. It proves nothing here (RFC 8441, 5.1).
    let key = HeaderValue::from_static("bGVubyBnYXRld2F5IGtleQ==");
    head.headers.entry(header::SEC_WEBSOCKET_KEY).or_insert(key);
    Ok(())
}

/// Turns a WebSocket handshake into its HTTP/2 form, for an HTTP/2 upstream.
pub fn into_extended_connect(head: &mut request::Parts) {
    head.method = Method::CONNECT;
    head.extensions.insert(TunnelProtocol::from_static("websocket"));
    head.headers.remove(header::CONNECTION);
    head.headers.remove(header::UPGRADE);
}

/// Turns "101 Switching Protocols" into its HTTP/2 form.
pub fn into_extended_connected(head: &mut response::Parts) {
    head.status = StatusCode::OK;
    head.headers.remove(header::CONNECTION);
    head.headers.remove(header::UPGRADE);
}

pub(super) fn is_websocket(head: &request::Parts) -> bool {
    head.method == Method::GET
        && head.headers.get_all(header::CONNECTION).iter().any(|value| lists(value, "upgrade"))
        && head.headers.get_all(header::UPGRADE).iter().any(|value| lists(value, "websocket"))
}

/// The protocol that a request asks to switch to, if that is neither WebSocket nor one in which
/// further requests would follow.
pub fn other_upgrade(head: &request::Parts) -> Option<HeaderValue> {
    let asks = head.headers.get_all(header::CONNECTION).iter().any(|value| lists(value, "upgrade"));
    let mut asked = head.headers.get_all(header::UPGRADE).iter();
    let (protocols, None) = (asked.next()?, asked.next()) else { return None };
    let carries_requests = |protocol: &str| {
        let name = protocol.split('/').next().unwrap_or_default().trim().to_ascii_lowercase();
        ["websocket", "http", "h2", "h2c", "tls", ""].contains(&name.as_str())
    };
    let is_other = protocols.to_str().is_ok_and(|protocols| !protocols.split(',').any(carries_requests));
    (asks && is_other).then(|| protocols.clone())
}

/// Sets the fields with which a message switches to a protocol.
pub fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn only_protocols_without_requests_count_as_other_upgrades() {
        let asked = |protocol: &str, connection: &str| {
            let request = Request::get("/").header("connection", connection).header("upgrade", protocol);
            other_upgrade(&request.body(()).unwrap().into_parts().0).is_some()
        };
        for other in ["tcp", "SPDY/3.1", "a, b/2"] {
            assert!(asked(other, "Upgrade, keep-alive") && !asked(other, "keep-alive"), "{other}");
        }
        for known in ["websocket", "h2c", "HTTP/2.0", "tcp, h2c", "TLS/1.2", "", "tcp,"] {
            assert!(!asked(known, "upgrade"), "{known}");
        }
    }
}
