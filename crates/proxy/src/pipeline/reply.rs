//! The proxy's own responses: for a refused request, and where there is no upstream response to
//! pass on.
//!
//! They name the failure, not its cause. Rules and addresses are for the operator, who finds them
//! by the request's id.

use crate::pipeline::exchange::{Exchange, Origin};
use crate::pipeline::judge::Refusal;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body as _;
use leno_http::body::{Body, GRPC_MESSAGE, GRPC_STATUS};
use leno_http::failure::Failure;
use leno_http::{failure, head};
use leno_policy::spec::Protocol;
use leno_runtime::clock::http_date;

/// The message of an answer that a fault gives.
const INJECTED: &str = "injected fault";

/// Marks a response that no upstream gave, with the reason, if the exchange distinguishes such
/// responses.
#[derive(Clone, Debug)]
pub(crate) struct OwnResponse(pub String);

/// The response to a refused request.
pub(crate) fn denied(refusal: Refusal, exchange: &Exchange) -> Response<Body> {
    let status = refusal.status;
    let mut response = match refusal.own {
        Some(answer) => {
            let (body, grpc_status) = *answer;
            own(refusal.status, refusal.headers, body, grpc_status, exchange)
        }
        None => answer(refusal.status, refusal.headers, None, exchange),
    };
    if exchange.tells_own {
        response.extensions_mut().insert(OwnResponse(format!("a policy refused the call with {}", status.as_u16())));
    }
    response
}

/// The response that an extension gave instead of the function.
fn own(
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    grpc_status: Option<u8>,
    exchange: &Exchange,
) -> Response<Body> {
    if exchange.protocol == Protocol::Grpc {
        let mut response = answer(status, headers, None, exchange);
        if let Some(grpc_status) = grpc_status {
            response.headers_mut().insert(GRPC_STATUS, HeaderValue::from(u16::from(grpc_status)));
        }
        return response;
    }
    let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = if bodiless { Bytes::new() } else { body };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let fields = response.headers_mut();
    if !bodiless {
        fields.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        if !body.is_empty() {
            let plain = HeaderValue::from_static("text/plain");
            fields.entry(header::CONTENT_TYPE).or_insert(plain);
        }
    }
    if !exchange.head_only && !body.is_empty() {
        *response.body_mut() = Body::full(body);
    }
    response
}

/// The response to a request that has no upstream response.
pub(crate) fn failed(failure: &Failure, exchange: &Exchange) -> Response<Body> {
    let mut headers = HeaderMap::new();
    if let Some(pause) = failure.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(pause.as_secs().max(1)));
    }
    if matches!(failure, Failure::Malformed(head::HeadError::Method)) {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    }
    if let Failure::HttpsOnly(location) = failure {
        headers.insert(header::LOCATION, location.clone());
    }
    let public = match failure {
        Failure::Malformed(_) | Failure::NoRoute => Some(failure.to_string()),
        // Only the operator learns which fault it is.
        Failure::Injected(_) => Some(INJECTED.to_owned()),
        _ => None,
    };
    let mut response = answer(failure.status(), headers, public.as_deref(), exchange);
    if let (Failure::Injected(_), Some(message)) = (failure, response.headers_mut().get_mut(GRPC_MESSAGE)) {
        *message = HeaderValue::from_static(INJECTED);
    }
    if let Some(status) = response.headers_mut().get_mut(GRPC_STATUS) {
        *status = HeaderValue::from(u16::from(failure::grpc_status_of(failure)));
    }
    if let Origin::Inbound(_) = exchange.origin {
        // The caller's sidecar decides about a retry, so it must know the failure.
        response.extensions_mut().insert(failure.clone());
    }
    if exchange.tells_own {
        response.extensions_mut().insert(OwnResponse(failure.to_string()));
    }
    response
}

/// A response without body that a route gives.
pub(crate) fn bare(status: StatusCode, mut headers: HeaderMap) -> Response<Body> {
    if status != StatusCode::NO_CONTENT {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut response = Response::new(Body::empty());
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// The response to a request for which no exchange began. If the proxy credential is missing, also
/// a gRPC client gets a challenge for one (RFC 9110, 15.5.8).
pub(crate) fn rejected(failure: &Failure, request_id: HeaderValue, request: &HeaderMap) -> Response<Body> {
    let status = failure.status();
    if head::is_grpc(request) && status != StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        let mut response = Response::new(Body::empty());
        let reason = status.canonical_reason().unwrap_or("Refused");
        let content_type = request.get(header::CONTENT_TYPE).map(head::own);
        end_call(response.headers_mut(), failure::grpc_status_of(failure), (reason, content_type));
        response.headers_mut().insert(head::REQUEST_ID, request_id);
        return response;
    }
    let mut response = Response::new(describe(status, &failure.to_string(), &request_id));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        headers.insert(header::PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"leno\", charset=\"UTF-8\""));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(head::REQUEST_ID, request_id);
    response
}

/// The whole of an HTTP/1.1 response to a head that no exchange began for, because it could not be
/// read.
pub(crate) fn unread(failure: &Failure, request_id: &HeaderValue, head_only: bool) -> Vec<u8> {
    let status = failure.status();
    let body = text(status, &failure.to_string(), request_id);
    let (id, date) = (request_id.to_str().unwrap_or_default(), http_date());
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nx-request-id: {id}\r\nconnection: close\r\ndate: {}\r\n\r\n",
        body.len(),
        date.to_str().unwrap_or_default(),
    );
    if head_only { head.into() } else { (head + &body).into() }
}

fn answer(status: StatusCode, mut headers: HeaderMap, message: Option<&str>, exchange: &Exchange) -> Response<Body> {
    let reason = status.canonical_reason().unwrap_or("Refused");
    let mut response = if exchange.protocol == Protocol::Grpc {
        end_call(&mut headers, failure::grpc_status(status), (reason, exchange.grpc_type.clone()));
        Response::new(Body::empty())
    } else {
        let body = describe(status, message.unwrap_or(reason), &exchange.request_id);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(length) = body.size_hint().exact() {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        let mut response = Response::new(if exchange.head_only { Body::empty() } else { body });
        *response.status_mut() = status;
        response
    };
    *response.headers_mut() = headers;
    response
}

/// gRPC calls this "Trailers-Only": the head ends the stream, and carries the status. Some clients
/// only take the type that they asked in, such as `application/grpc+json`.
fn end_call(headers: &mut HeaderMap, status: u8, (message, content_type): (&'static str, Option<HeaderValue>)) {
    let grpc = || HeaderValue::from_static("application/grpc");
    headers.insert(header::CONTENT_TYPE, content_type.unwrap_or_else(grpc));
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(status)));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
}

fn describe(status: StatusCode, message: &str, request_id: &HeaderValue) -> Body {
    Body::full(Bytes::from(text(status, message, request_id)))
}

fn text(status: StatusCode, message: &str, request_id: &HeaderValue) -> String {
    let id = request_id.to_str().unwrap_or_default();
    let text = serde_json::json!({ "status": status.as_u16(), "error": message, "requestId": id });
    format!("{text}\n")
}
