//! WebSocket handshakes over HTTP/1.1 (RFC 6455) and HTTP/2 (RFC 8441).

use super::{HeadError, lists};
use h2::ext::Protocol as TunnelProtocol;
use http::header::{self, HeaderValue};
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
