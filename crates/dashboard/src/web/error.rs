//! Errors of the web server, as JSON.

use crate::source::Failure;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum WebError {
    /// There is no session. `sign_in` tells how to begin one: `token` or `command`.
    SignedOut { sign_in: &'static str },
    /// The request comes from elsewhere.
    Forbidden(String),
    /// The request makes no sense.
    Bad(String),
    /// There is no such thing.
    NotFound(String),
    /// The request is too large.
    TooLarge(usize),
    /// A bound is reached.
    TooMany(&'static str),
    /// The source does not answer.
    Source(Failure),
}

impl WebError {
    fn parts(self) -> (StatusCode, Value) {
        let only = |error: String| json!({ "error": error });
        match self {
            Self::SignedOut { sign_in } => {
                let error = match sign_in {
                    "token" => "sign in with a token of the control plane's API",
                    _ => "the session is over: run `leno dashboard` again",
                };
                (StatusCode::UNAUTHORIZED, json!({ "error": error, "sign_in": sign_in }))
            }
            Self::Forbidden(error) => (StatusCode::FORBIDDEN, only(error)),
            Self::Bad(error) => (StatusCode::BAD_REQUEST, only(error)),
            Self::NotFound(error) => (StatusCode::NOT_FOUND, only(error)),
            Self::TooLarge(most) => {
                (StatusCode::PAYLOAD_TOO_LARGE, only(format!("the request has more than {} KiB", most >> 10)))
            }
            Self::TooMany(error) => (StatusCode::TOO_MANY_REQUESTS, only(error.to_owned())),
            Self::Source(Failure::Refused { status, mut refusal }) => {
                let passes = matches!(status.as_u16(), 400 | 403 | 404 | 409 | 413 | 422 | 429 | 503);
                // Which process leads is no matter of the page.
                if let Some(refusal) = refusal.as_object_mut() {
                    refusal.retain(|field, _| matches!(&**field, "error" | "problems"));
                }
                (if passes { status } else { StatusCode::BAD_GATEWAY }, refusal)
            }
            Self::Source(failure) => (StatusCode::BAD_GATEWAY, only(failure.to_string())),
        }
    }
}

impl From<Failure> for WebError {
    fn from(failure: Failure) -> Self {
        Self::Source(failure)
    }
}

impl IntoResponse for WebError {
    fn into_response(self) -> Response {
        let (status, body) = self.parts();
        (status, Json(body)).into_response()
    }
}
