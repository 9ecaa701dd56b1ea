//! Errors of the API, and their HTTP responses.

use super::types::{Refusal, Wrong};
use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use leno_config::Problem;
use leno_control::{DefinitionsError, PublishError, StoreError};
use leno_intake::IntakeError;

/// `retry-after`, in seconds.
const AGAIN: &str = "2";

/// An error of the API.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No valid token.
    #[error("a valid token is needed: `Authorization: Bearer …`, which `leno token create` makes")]
    Unauthenticated,
    /// The token does not allow this.
    #[error("{0}")]
    Forbidden(String),
    /// A namespace would exceed its quota.
    #[error("{reason}")]
    Quota {
        /// The namespace.
        namespace: String,
        /// The bound and the fix.
        reason: String,
        /// The first documents beyond the bound.
        problems: Vec<Problem>,
    },
    /// The control plane cannot deliver what the documents define.
    #[error(transparent)]
    Definitions(DefinitionsError),
    /// A malformed request.
    #[error("{0}")]
    Bad(String),
    /// Problems in documents.
    #[error("the documents are refused; what was in force goes on")]
    Problems(Vec<Problem>),
    /// A document has another version than the client expected.
    #[error("{0} has another version than expected; look at it again")]
    Conflict(String),
    /// A conflict with an operation in progress.
    #[error("{0}")]
    Busy(String),
    /// Not found.
    #[error("there is no {0}")]
    NotFound(String),
    /// Another control plane leads.
    #[error("this control plane does not lead; changes are taken by the one that does")]
    NotLeader(Option<String>),
    /// The request is too large.
    #[error("{0}")]
    TooLarge(String),
    /// The token has too many concurrent requests.
    #[error("{0}")]
    TooMany(String),
    /// A failure of the control plane, the store or a registry.
    #[error("{0}")]
    Unavailable(String),
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) | Self::Quota { .. } => StatusCode::FORBIDDEN,
            Self::Bad(_) | Self::Definitions(_) => StatusCode::BAD_REQUEST,
            Self::Problems(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Conflict(_) | Self::Busy(_) => StatusCode::CONFLICT,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::NotLeader(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let error = self.to_string();
        let (problems, leader) = match self {
            Self::Problems(problems) | Self::Quota { problems, .. } => {
                (problems.iter().map(Wrong::from).collect(), None)
            }
            Self::NotLeader(leader) => (Vec::new(), leader),
            _ => (Vec::new(), None),
        };
        let mut response = (status, Json(Refusal { error, problems, leader })).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(AGAIN));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            // Stored documents are named by kind, namespace and name.
            StoreError::Conflict { key } => Self::Conflict(key),
            StoreError::NotLeader { .. } => Self::NotLeader(None),
            StoreError::TooLarge { .. } => Self::TooLarge(error.to_string()),
            error => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<Vec<Problem>> for ApiError {
    fn from(problems: Vec<Problem>) -> Self {
        Self::Problems(problems)
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Images(problems) => Self::Problems(problems),
            IntakeError::Publish(error) => error.into(),
        }
    }
}

impl From<PublishError> for ApiError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Store(error) => error.into(),
            PublishError::Definitions(error) => Self::Definitions(error),
        }
    }
}
