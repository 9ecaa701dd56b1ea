//! Authentication of requests, their turns, and bounds of their bodies.

use super::error::ApiError;
use super::server::until_sent;
use super::service::Service;
use super::tokens::Caller;
use super::turns::{Limits, Turns};
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use leno_control::Requests;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// The path of changes of documents.
pub(super) const CHANGES_PATH: &str = "/v1/changes";
/// Largest body of a change. A larger change takes several requests.
pub const LARGEST_BODY: usize = 16 << 20;
/// Largest body of any other request.
const LARGEST_OTHER: usize = 64 << 10;
/// Timeout of a body.
const BODY: Duration = Duration::from_secs(20);
/// Concurrent changes and dry runs, including those whose body is still arriving.
const CHANGES: Limits = Limits { all: 32, of_tenant: 4, waiting: 16 };
/// Concurrent other requests.
const OTHERS: Limits = Limits { all: 64, of_tenant: 4, waiting: 64 };
/// Bytes of an oversized body that the server reads and discards. A client that is still sending
/// would not read the response.
const MOST_DISCARDED: usize = 64 << 20;

/// The turns of requests.
#[derive(Clone)]
pub(super) struct Admission {
    service: Arc<Service>,
    changes: Arc<Turns>,
    others: Arc<Turns>,
}

impl Admission {
    pub(super) fn new(service: Arc<Service>) -> Self {
        Self { service, changes: Turns::new(CHANGES), others: Turns::new(OTHERS) }
    }
}

/// Authenticates the caller, and waits for its turn before it reads the body. The turn ends when
/// the response has been sent.
pub(super) async fn admitted(State(admission): State<Admission>, mut request: Request, next: Next) -> Response {
    // Paths without a token cost little, and the others refuse a request without one.
    let Ok(caller) = caller(&admission.service, request.headers(), request.extensions().get()) else {
        return next.run(request).await;
    };
    let turns = if request.uri().path() == CHANGES_PATH { &admission.changes } else { &admission.others };
    let turn = match turns.wait(&caller).await {
        Ok(turn) => turn,
        Err(error) => {
            // A client that is still sending would not read the response.
            let _ = timeout(BODY, read(request.into_body(), 0)).await;
            return error.into_response();
        }
    };
    request.extensions_mut().insert(caller);
    until_sent(next.run(request).await, turn)
}

/// The caller with these header fields.
fn caller(service: &Service, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Caller, ApiError> {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok());
    let bearer = header.and_then(|value| value.strip_prefix("Bearer "));
    let from = peer.map(|peer| peer.address.ip().to_string()).unwrap_or_default();
    let caller = service.caller(bearer, &from)?;
    if let Some(peer) = peer {
        peer.known.store(true, Ordering::Relaxed);
    }
    Ok(caller)
}

/// The client. The listener adds it to each request.
#[derive(Clone)]
pub(super) struct Peer {
    pub address: SocketAddr,
    /// True once the client has presented a valid token.
    pub known: Arc<AtomicBool>,
    /// The requests of its connection.
    pub requests: Requests,
}

impl FromRequestParts<Arc<Service>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        match parts.extensions.get::<Self>() {
            Some(caller) => Ok(caller.clone()),
            None => caller(service, &parts.headers, parts.extensions.get()),
        }
    }
}

/// A JSON body. The response to a malformed one is a 400.
pub(super) struct JsonBody<T>(pub T);

impl<T: serde::de::DeserializeOwned> FromRequest<Arc<Service>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _service: &Arc<Service>) -> Result<Self, ApiError> {
        let caller = request.extensions().get::<Caller>().ok_or(ApiError::Unauthenticated)?;
        let is_change = request.uri().path() == CHANGES_PATH;
        let largest = if is_change { caller.largest_request() } else { LARGEST_OTHER };
        let bytes = timeout(BODY, read(request.into_body(), largest)).await;
        let bytes = bytes.map_err(|_| ApiError::Bad(format!("the request was not sent within {BODY:?}")))??;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| ApiError::Bad(format!("the request: {error}")))
    }
}

/// The whole body.
async fn read(mut body: Body, largest: usize) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut size) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::Bad(format!("the request ended early: {error}")))?;
        let data = frame.into_data().unwrap_or_default();
        size += data.len();
        if size <= largest {
            bytes.extend_from_slice(&data);
        } else if size > MOST_DISCARDED {
            break;
        }
    }
    if size > largest {
        let reason =
            format!("the request has more than {} KiB, which is what this token may send at once", largest >> 10);
        return Err(ApiError::TooLarge(reason));
    }
    Ok(bytes)
}
