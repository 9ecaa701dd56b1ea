//! Failures, and the statuses with which the proxy answers when it has no response to forward.

use crate::head::HeadError;
use http::{HeaderValue, StatusCode};
use std::sync::Arc;
use std::time::Duration;

/// Why an exchange got no response from its upstream. A verdict is not a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request's head violates HTTP.
    #[error("malformed request: {0}")]
    Malformed(#[from] HeadError),
    /// The caller at the outbound listener has no valid proxy credential.
    #[error("the proxy credential is missing or wrong")]
    Credential,
    /// Another process uses an instance's proxy credential.
    #[error("the proxy credential is used by somebody whom it was not given: {0}")]
    StolenCredential(Unproven),
    /// The TLS client asked for a function that this node does not run (RFC 9110, 15.5.20). The
    /// caller's sidecar has old endpoints, and may send the request to another node.
    #[error("this node does not run the function that was asked for")]
    Misdirected,
    /// The callee takes no such request on any node: it is an external service, and its document
    /// does not name the host or the address, or a gateway sent what gateways do not let in.
    #[error("the callee does not serve this host, or not through a gateway")]
    NotServed,
    /// The host names a port at which the callee serves something else than HTTP, or nothing. Its
    /// rules for that port are not about requests.
    #[error("port {0} of this callee does not serve HTTP")]
    NoHttp(u16),
    /// No function is exposed at this host and path.
    #[error("nothing is exposed at this host and path")]
    NoRoute,
    /// The callee has routes, and none of their rules is for this call.
    #[error("no rule of the callee's routes is for this call")]
    NoRule,
    /// The route of the request leads nowhere: it has no back end, an invalid one, or a change that
    /// cannot be made.
    #[error("the route cannot be followed: {0}")]
    Route(String),
    /// A policy answers in place of the back end, to test the callers.
    #[error("{}", .0.words)]
    Injected(Arc<InjectedFailure>),
    /// The gateway serves this request over HTTPS only. Holds the address there.
    #[error("redirected to HTTPS")]
    HttpsOnly(HeaderValue),
    /// There is no instance to send the request to.
    #[error("no instance: {0}")]
    Unavailable(#[from] Unavailable),
    /// There are instances, but outlier detection has ejected all of them.
    #[error("all instances are ejected by the outlier detection")]
    Ejected,
    /// The circuit breaker's limit on waiting requests is reached.
    #[error("too many requests wait for a connection or an instance")]
    Overflow,
    /// A namespace has used up one of its bounds on this node. Names both.
    #[error("{0}")]
    Bound(String),
    /// The memory that an instance reads has no room for the message.
    #[error("the instance's memory has no room: {0}")]
    NoMemory(String),
    /// The message exceeds the memory that an instance reads. Holds the limit in bytes.
    #[error("the body is longer than {0} bytes")]
    TooLong(u64),
    /// No connection could be made. Nothing was sent.
    #[error("no connection to the upstream: {cause}")]
    Connect {
        /// The cause, in words.
        cause: String,
    },
    /// The callee is outside the mesh, and its name has no address, or only forbidden ones. Nothing
    /// was sent.
    #[error("{cause}")]
    Lookup {
        /// The cause, in words.
        cause: String,
    },
    /// Certificates or secrets that the node needs for a call to an external service cannot be
    /// used. Nothing was sent.
    #[error("the node is not ready for this call: {cause}")]
    Unready {
        /// The cause, in words.
        cause: String,
    },
    /// The connection ended, or the peer reset the stream, before a response.
    #[error("the upstream broke off: {cause}")]
    Reset {
        /// The cause, in words.
        cause: String,
        /// The peer reports that it did not process the request (HTTP/2 REFUSED_STREAM, GOAWAY).
        refused: bool,
    },
    /// The timeout of one attempt, or of the whole exchange, has passed.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The upstream's answer is not a valid response to this request, or no response at all (RFC
    /// 9110, 15).
    #[error("the upstream's answer cannot be passed on: {0}")]
    Protocol(&'static str),
    /// The head of the upstream's response is beyond a limit of the mesh. Names the limit.
    #[error("the head of the upstream's response cannot be passed on: {0}")]
    ResponseHead(String),
    /// The head of the request is larger than the HTTP/2 upstream takes
    /// (SETTINGS_MAX_HEADER_LIST_SIZE). Nothing was sent.
    #[error("the upstream takes request heads of {0} bytes at most (SETTINGS_MAX_HEADER_LIST_SIZE)")]
    RequestHead(u32),
    /// The client disconnected, or its body broke off or was malformed.
    #[error("the client went away, or its body broke off")]
    ClientGone,
    /// The timeout passed while the upstream waited for more of the client's body.
    #[error("the client did not send its body within {0:?}")]
    SlowClient(Duration),
    /// The client did not finish its request's head in time.
    #[error("the client did not send the head of its request within {0:?}")]
    SlowHead(Duration),
    /// The exchange was open when its permission was withdrawn, its token expired, or its caller's
    /// identity ended.
    #[error("closed, because it is not permitted any more: {reason}")]
    Closed {
        /// The status that the same request would get now.
        status: StatusCode,
        /// The rule that withdrew the permission, and the cause.
        reason: String,
    },
    /// The exchange was open when the mesh ended it for reasons that have nothing to do with its
    /// client.
    #[error("ended by the mesh: {reason}")]
    Ended {
        /// The cause, in words.
        reason: String,
    },
    /// The response's body broke off after its head was forwarded.
    #[error("the upstream broke off within the response's body: {0}")]
    BrokenBody(String),
}

/// A failure that a policy injects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedFailure {
    /// The fault, and when it ends.
    pub words: String,
    /// The status that requests get.
    pub status: StatusCode,
    /// The status that gRPC calls get.
    pub grpc_status: u8,
}

/// Why there is no instance for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The node does not run this function and knows no endpoint of it.
    #[error("no instance of this function is known here")]
    Unknown,
    /// No instance became ready in time.
    #[error("no instance became ready within {0:?}")]
    Timeout(Duration),
    /// The instance ended before it became ready, or instances keep failing.
    #[error("the instance failed to start: {reason}")]
    Failed {
        /// The cause, in words, for the log.
        reason: String,
        /// Time after which another attempt is worthwhile.
        retry_after: Option<Duration>,
    },
    /// Too many requests wait for an instance.
    #[error("too many requests wait for an instance")]
    QueueFull,
    /// The function's namespace has all the requests that may wait for its instances on this node.
    #[error(
        "namespace {namespace} has {bound} requests that wait on this node, all that its bound `waitingRequests` allows"
    )]
    NamespaceFull {
        /// The namespace.
        namespace: Arc<str>,
        /// How many may wait.
        bound: u64,
    },
}

/// The other end of a connection could not be verified to be the instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unproven(
    /// Which process is there instead, or why that cannot be seen.
    pub String,
);

impl Failure {
    /// The HTTP status that the client gets.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(HeadError::Method) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Malformed(HeadError::TooManyHeaders | HeadError::LargeHead) => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::Malformed(HeadError::LongTarget) => StatusCode::URI_TOO_LONG,
            Self::Malformed(HeadError::Version) => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::Malformed(HeadError::Expectation) => StatusCode::EXPECTATION_FAILED,
            Self::Malformed(HeadError::LongMethod | HeadError::TransferCoding) => StatusCode::NOT_IMPLEMENTED,
            Self::Malformed(_) | Self::ClientGone => StatusCode::BAD_REQUEST,
            Self::Credential => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Self::StolenCredential(_) => StatusCode::FORBIDDEN,
            Self::Misdirected | Self::NotServed | Self::NoHttp(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::NoRoute | Self::NoRule => StatusCode::NOT_FOUND,
            Self::Route(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Injected(injected) => injected.status,
            Self::HttpsOnly(_) => StatusCode::PERMANENT_REDIRECT,
            Self::Unavailable(_)
            | Self::Ejected
            | Self::Overflow
            | Self::Bound(_)
            | Self::NoMemory(_)
            | Self::Connect { .. }
            | Self::Lookup { .. }
            | Self::Ended { .. }
            | Self::Unready { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Reset { .. } | Self::BrokenBody(_) | Self::Protocol(_) | Self::ResponseHead(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::RequestHead(_) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::SlowClient(_) | Self::SlowHead(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Closed { status, .. } => *status,
        }
    }

    /// Envoy's response flag with the same meaning, for access logs and metrics.
    pub fn flag(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "DPE",
            Self::Credential | Self::StolenCredential(_) | Self::Closed { .. } => "UAEX",
            Self::Ended { .. } => "DT",
            Self::NoRoute | Self::NoRule | Self::Misdirected | Self::NotServed | Self::NoHttp(_) => "NR",
            Self::Route(_) => "NC",
            Self::Injected(_) => "FI",
            Self::HttpsOnly(_) => "-",
            Self::Unavailable(_) | Self::Ejected => "UH",
            Self::Overflow | Self::Bound(_) | Self::NoMemory(_) | Self::TooLong(_) => "UO",
            Self::Connect { .. } | Self::Unready { .. } => "UF",
            Self::Lookup { .. } => "DF",
            Self::Reset { refused: true, .. } => "UR",
            Self::Reset { .. } | Self::BrokenBody(_) => "UC",
            Self::Protocol(_) | Self::ResponseHead(_) => "UPE",
            Self::RequestHead(_) => "DPE",
            Self::Timeout(_) => "UT",
            Self::ClientGone => "DC",
            Self::SlowClient(_) | Self::SlowHead(_) => "SI",
        }
    }

    /// The failure's label for a caller's sidecar, which uses it for retries, outlier detection, and
    /// to send a misdirected request to another node; `None`: the status is enough.
    pub fn label(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } => Some("connect"),
            Self::Reset { refused: true, .. } => Some("refused"),
            Self::Reset { refused: false, .. } => Some("reset"),
            Self::Timeout(_) => Some("timeout"),
            Self::Protocol(_) => Some("protocol"),
            Self::ResponseHead(_) => Some("response-head"),
            Self::ClientGone => Some("client-gone"),
            Self::SlowClient(_) => Some("slow-client"),
            Self::Misdirected | Self::Unavailable(Unavailable::Unknown) => Some("misdirected"),
            _ => None,
        }
    }

    /// The failure whose label another sidecar sent.
    pub fn from_label(label: &HeaderValue) -> Option<Self> {
        let cause = || "so says the callee's sidecar".to_owned();
        match label.as_bytes() {
            b"connect" => Some(Self::Connect { cause: cause() }),
            b"refused" => Some(Self::Reset { cause: cause(), refused: true }),
            b"reset" => Some(Self::Reset { cause: cause(), refused: false }),
            b"timeout" => Some(Self::Timeout(Duration::ZERO)),
            b"protocol" => Some(Self::Protocol("so says the callee's sidecar")),
            b"response-head" => {
                Some(Self::ResponseHead("limits.headBytes or limits.headers, says the callee's sidecar".to_owned()))
            }
            b"client-gone" => Some(Self::ClientGone),
            b"slow-client" => Some(Self::SlowClient(Duration::ZERO)),
            b"misdirected" => Some(Self::Misdirected),
            _ => None,
        }
    }

    /// Time after which the client may try again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(Unavailable::Failed { retry_after, .. }) => *retry_after,
            Self::Unavailable(Unavailable::QueueFull | Unavailable::NamespaceFull { .. } | Unavailable::Timeout(_))
            | Self::Ejected
            | Self::Overflow
            | Self::Bound(_) => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// The gRPC status for a failure.
pub fn grpc_status_of(failure: &Failure) -> u8 {
    match failure {
        // UNAVAILABLE: the caller's node has an old endpoint of the callee.
        Failure::Misdirected => 14,
        // UNAVAILABLE, as the Gateway API has it for back ends that are not valid.
        Failure::Route(_) => 14,
        Failure::Injected(injected) => injected.grpc_status,
        // RESOURCE_EXHAUSTED, as in gRPC's libraries. Clients would repeat the call after
        // UNAVAILABLE.
        Failure::ResponseHead(_) | Failure::RequestHead(_) => 8,
        failure => grpc_status(failure.status()),
    }
}

/// The gRPC status for an HTTP status: gRPC's "HTTP to gRPC Status Code Mapping", with a more exact
/// code where gRPC has one.
pub fn grpc_status(status: StatusCode) -> u8 {
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

/// The HTTP status for a gRPC status that is an error, as `google.rpc.Code` maps them.
pub fn http_status(grpc_status: u8) -> StatusCode {
    match grpc_status {
        3 | 9 | 11 => StatusCode::BAD_REQUEST, // INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
        4 => StatusCode::GATEWAY_TIMEOUT,      // DEADLINE_EXCEEDED
        5 => StatusCode::NOT_FOUND,            // NOT_FOUND
        6 | 10 => StatusCode::CONFLICT,        // ALREADY_EXISTS, ABORTED
        7 => StatusCode::FORBIDDEN,            // PERMISSION_DENIED
        8 => StatusCode::TOO_MANY_REQUESTS,    // RESOURCE_EXHAUSTED
        12 => StatusCode::NOT_IMPLEMENTED,     // UNIMPLEMENTED
        14 => StatusCode::SERVICE_UNAVAILABLE, // UNAVAILABLE
        16 => StatusCode::UNAUTHORIZED,        // UNAUTHENTICATED
        _ => StatusCode::INTERNAL_SERVER_ERROR, // CANCELLED, UNKNOWN, INTERNAL, DATA_LOSS
    }
}
