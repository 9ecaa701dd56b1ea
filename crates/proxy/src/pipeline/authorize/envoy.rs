//! Messages of `envoy.service.auth.v3`, as far as they are used here, and how gRPC frames them.
//! Fields that are not named are skipped.

use prost::Message;
use std::collections::BTreeMap;

/// The path of the one call.
pub(crate) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// `envoy.service.auth.v3.CheckRequest`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

/// `envoy.service.auth.v3.AttributeContext`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    pub destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub request: Option<Request>,
}

/// `AttributeContext.Peer`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Peer {
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
    #[prost(string, tag = "2")]
    pub service: String,
    #[prost(string, tag = "4")]
    pub principal: String,
}

/// `envoy.config.core.v3.Address`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Address {
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SocketAddress {
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}

/// `AttributeContext.Request`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

/// `google.protobuf.Timestamp`
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `AttributeContext.HttpRequest`. As Envoy sends it, the path has the query with it, and `query`
/// and `fragment` are empty.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpRequest {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub headers: BTreeMap<String, String>,
    #[prost(string, tag = "4")]
    pub path: String,
    #[prost(string, tag = "5")]
    pub host: String,
    #[prost(string, tag = "6")]
    pub scheme: String,
    /// -1: not known.
    #[prost(int64, tag = "9")]
    pub size: i64,
    #[prost(string, tag = "10")]
    pub protocol: String,
    /// In the place of `headers`, for an authorizer that wants fields as they came.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<HeaderMap>,
}

/// `envoy.config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// `envoy.service.auth.v3.CheckResponse`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    pub http_response: Option<HttpResponse>,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `CheckResponse.http_response`
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
}

/// `envoy.service.auth.v3.DeniedHttpResponse`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// Envoy defines this field as text. Here it is bytes, because the proxy forwards the body
    /// without reading it.
    #[prost(bytes = "vec", tag = "3")]
    pub body: Vec<u8>,
}

/// `envoy.type.v3.HttpStatus`
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// `envoy.service.auth.v3.OkHttpResponse`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
}

/// `envoy.config.core.v3.HeaderValueOption`, without its append action. The action has no effect,
/// because the proxy has already removed the client's headers of that name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// Replaces `value` if the value is not valid text.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

impl HeaderValue {
    /// The value, in whichever of the two fields it was sent.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.value.is_empty() { &self.raw_value } else { &self.value }
    }
}

/// A message as the body of a call: a zero byte for "not compressed", the length, and the message.
pub(crate) fn frame(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut body = Vec::with_capacity(5 + length);
    body.push(0);
    // Heads are bounded, and so are the messages that are made of them.
    body.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    body.extend(message.encode_to_vec());
    body
}

/// The one message of an answer's body.
///
/// # Errors
/// A description of the defect.
pub(crate) fn unframe(body: &[u8]) -> Result<CheckResponse, &'static str> {
    let (head, message) = body.split_first_chunk::<5>().ok_or("it holds no message")?;
    let [compressed, length @ ..] = head;
    if *compressed != 0 {
        return Err("its message is compressed");
    }
    if usize::try_from(u32::from_be_bytes(*length)) != Ok(message.len()) {
        return Err("it does not hold exactly one message");
    }
    CheckResponse::decode(message).map_err(|_| "its message is no CheckResponse")
}
