//! What the proxy itself answers when there is no response to pass on.

use crate::http::head::Malformed;
use http::{HeaderValue, StatusCode};
use std::time::Duration;

/// Why an exchange got no response from its upstream. Verdicts are no failures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The head breaks a rule of HTTP.
    #[error("malformed request: {0}")]
    Malformed(#[from] Malformed),
    /// The outbound listener does not know who is calling.
    #[error("the proxy credential is missing or wrong")]
    Credential,
    /// Somebody else uses an instance's credential.
    #[error("the proxy credential is used by somebody whom it was not given: {0}")]
    StolenCredential(Unproven),
    /// The TLS client asked for a function that this node does not run (RFC 9110, 15.5.20).
    #[error("this node does not run the function that was asked for")]
    Misdirected,
    /// Nothing is exposed there.
    #[error("nothing is exposed at this host and path")]
    NoRoute,
    /// No instance to send it to.
    #[error("no instance: {0}")]
    Unavailable(#[from] Unavailable),
    /// There are instances, but all of them failed too often lately.
    #[error("all instances are ejected by the outlier detection")]
    Ejected,
    /// The circuit breaker's limit on waiting requests.
    #[error("too many requests wait for a connection or an instance")]
    Overflow,
    /// No connection could be made. Nothing was sent.
    #[error("no connection to the upstream: {cause}")]
    Connect {
        /// In words.
        cause: String,
    },
    /// The connection ended, or the peer reset the stream, before a response.
    #[error("the upstream broke off: {cause}")]
    Reset {
        /// In words.
        cause: String,
        /// The peer says that it did not process the request (HTTP/2 REFUSED_STREAM, GOAWAY).
        refused: bool,
    },
    /// The time for one try, or for the whole exchange, passed.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// What the upstream answered is no answer to this request, or none at all (RFC 9110, 15).
    #[error("the upstream's answer cannot be passed on: {0}")]
    Protocol(&'static str),
    /// The client went away, or its body broke off or was malformed.
    #[error("the client went away, or its body broke off")]
    ClientGone,
    /// The time passed while the upstream waited for the client to go on with its body.
    #[error("the client did not send its body within {0:?}")]
    SlowClient(Duration),
    /// The body broke off after the response's head was passed on.
    #[error("the upstream broke off within the response's body: {0}")]
    BrokenBody(String),
}

/// Why no instance can be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The node does not run this function and knows no address of it.
    #[error("no instance of this function is known here")]
    Unknown,
    /// It did not become ready in time.
    #[error("no instance became ready within {0:?}")]
    Timeout(Duration),
    /// It ended before it became ready, or keeps failing.
    #[error("the instance failed to start: {reason}")]
    Failed {
        /// In words, for the log.
        reason: String,
        /// When another attempt is worth while.
        retry_after: Option<Duration>,
    },
    /// Too many requests wait already.
    #[error("too many requests wait for an instance")]
    QueueFull,
}

/// It could not be proven that the other end of a connection is the instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unproven(
    /// Who is there instead, or why that cannot be seen.
    pub String,
);

impl Failure {
    /// What the client sees.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(Malformed::Method) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Malformed(Malformed::TooManyHeaders) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Malformed(Malformed::Expectation) => StatusCode::EXPECTATION_FAILED,
            Self::Malformed(Malformed::LongMethod | Malformed::TransferCoding) => StatusCode::NOT_IMPLEMENTED,
            Self::Malformed(_) | Self::ClientGone => StatusCode::BAD_REQUEST,
            Self::Credential => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Self::StolenCredential(_) => StatusCode::FORBIDDEN,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Unavailable(_) | Self::Ejected | Self::Overflow | Self::Connect { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Reset { .. } | Self::BrokenBody(_) | Self::Protocol(_) => StatusCode::BAD_GATEWAY,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::SlowClient(_) => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// Envoy's response flag with the same meaning, for access logs and metrics.
    pub fn flag(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "DPE",
            Self::Credential | Self::StolenCredential(_) => "UAEX",
            Self::NoRoute | Self::Misdirected => "NR",
            Self::Unavailable(_) | Self::Ejected => "UH",
            Self::Overflow => "UO",
            Self::Connect { .. } => "UF",
            Self::Reset { refused: true, .. } => "UR",
            Self::Reset { .. } | Self::BrokenBody(_) => "UC",
            Self::Protocol(_) => "UPE",
            Self::Timeout(_) => "UT",
            Self::ClientGone => "DC",
            Self::SlowClient(_) => "SI",
        }
    }

    /// Tells a caller's sidecar what it needs to know to try again, and whose doing it was; `None`: trying again is no use, and the status
    /// says all.
    pub fn label(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } => Some("connect"),
            Self::Reset { refused: true, .. } => Some("refused"),
            Self::Reset { refused: false, .. } => Some("reset"),
            Self::Timeout(_) => Some("timeout"),
            Self::Protocol(_) => Some("protocol"),
            Self::ClientGone => Some("client-gone"),
            Self::SlowClient(_) => Some("slow-client"),
            _ => None,
        }
    }

    /// The failure that another sidecar told by its label.
    pub fn from_label(label: &HeaderValue) -> Option<Self> {
        let cause = || "so says the callee's sidecar".to_owned();
        match label.as_bytes() {
            b"connect" => Some(Self::Connect { cause: cause() }),
            b"refused" => Some(Self::Reset { cause: cause(), refused: true }),
            b"reset" => Some(Self::Reset { cause: cause(), refused: false }),
            b"timeout" => Some(Self::Timeout(Duration::ZERO)),
            b"protocol" => Some(Self::Protocol("so says the callee's sidecar")),
            b"client-gone" => Some(Self::ClientGone),
            b"slow-client" => Some(Self::SlowClient(Duration::ZERO)),
            _ => None,
        }
    }

    /// When the client may try again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(Unavailable::Failed { retry_after, .. }) => *retry_after,
            Self::Unavailable(Unavailable::QueueFull | Unavailable::Timeout(_)) | Self::Ejected | Self::Overflow => {
                Some(Duration::from_secs(1))
            }
            _ => None,
        }
    }
}

/// The status of a gRPC call that fails with this HTTP status (gRPC's "HTTP to gRPC Status Code Mapping", with a code of its own where gRPC
/// has a more exact one).
pub(crate) fn grpc_status(status: StatusCode) -> u8 {
    match status.as_u16() {
        400 | 417 => 3,        // INVALID_ARGUMENT
        401 | 407 => 16,       // UNAUTHENTICATED
        403 => 7,              // PERMISSION_DENIED
        404 | 405 | 501 => 12, // UNIMPLEMENTED
        429 => 8,              // RESOURCE_EXHAUSTED
        502 | 503 => 14,       // UNAVAILABLE
        408 | 504 => 4,        // DEADLINE_EXCEEDED
        500..=599 => 13,       // INTERNAL
        _ => 2,                // UNKNOWN
    }
}
