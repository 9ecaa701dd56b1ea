//! Checks of each request, before any handler, and header fields of each response.

use super::error::WebError;
use super::sessions::Session;
use super::{Dashboard, SignIn};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// Scripts of other origins cannot send this without a question that the server does not answer.
const OWN_REQUEST: &str = "x-leno-dashboard";

const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
];

/// Marks a response to a client that has a session.
#[derive(Clone, Copy, Debug)]
pub struct SignedIn;

/// Refuses requests that come from pages of other origins, finds the session, and adds header fields.
pub(super) async fn guarded(State(dashboard): State<Arc<Dashboard>>, mut request: Request, next: Next) -> Response {
    let session = dashboard.sessions.find(request.headers());
    let is_signed_in = session.is_some();
    let mut response = match check(&dashboard, &request) {
        Ok(()) => {
            if let Some(session) = session {
                request.extensions_mut().insert(session);
            }
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response.headers_mut().entry("cache-control").or_insert(HeaderValue::from_static("no-store"));
    if is_signed_in {
        response.extensions_mut().insert(SignedIn);
    }
    response
}

fn check(dashboard: &Dashboard, request: &Request) -> Result<(), WebError> {
    let headers = request.headers();
    let field = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = authority(request).ok_or_else(|| WebError::Bad("the request names no host".to_owned()))?;
    let name = host.host().trim_matches(['[', ']']);
    if !is_loopback(name) && !(dashboard.options.is_own_host)(name) {
        return Err(WebError::Forbidden(format!("this server is not {}", name.escape_debug())));
    }
    let is_change = !matches!(*request.method(), Method::GET | Method::HEAD);
    let is_page = request.uri().path() == dashboard.options.base.0;
    match field("sec-fetch-site") {
        Some("same-origin") => {}
        // An address that the user has entered, or a link to the page.
        Some("none") if !is_change => {}
        Some(_) if is_page && !is_change => {}
        Some(_) => return Err(from_elsewhere()),
        None if is_change && !is_own_origin(headers, &host) => return Err(from_elsewhere()),
        None => {}
    }
    match field(OWN_REQUEST) {
        Some("1") => Ok(()),
        _ if !is_change => Ok(()),
        _ => Err(WebError::Forbidden(format!(
            "a request that changes something needs the header field {OWN_REQUEST}: 1"
        ))),
    }
}

fn from_elsewhere() -> WebError {
    WebError::Forbidden("the request comes from a page of another origin".to_owned())
}

/// Whether there is no `origin`, as in requests of programs, or it is this server.
fn is_own_origin(headers: &HeaderMap, host: &Authority) -> bool {
    headers.get(ORIGIN).is_none_or(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host.as_str()))
    })
}

/// The host that a request names: HTTP/2 has it in the URI.
fn authority(request: &Request) -> Option<Authority> {
    let header = || request.headers().get(HOST)?.to_str().ok()?.parse().ok();
    request.uri().authority().cloned().or_else(header)
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl FromRequestParts<Arc<Dashboard>> for Session {
    type Rejection = WebError;

    async fn from_request_parts(parts: &mut Parts, dashboard: &Arc<Dashboard>) -> Result<Self, WebError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| dashboard.signed_out())
    }
}

impl Dashboard {
    pub(super) fn signed_out(&self) -> WebError {
        let sign_in = match self.options.sign_in {
            SignIn::Command(..) => "command",
            SignIn::Token(_) => "token",
        };
        WebError::SignedOut { sign_in }
    }
}
