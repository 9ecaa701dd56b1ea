//! Input of a program: the request head, the identities that the runtime established, and a few
//! counters of rate limits.
//!
//! Borrowed from the bytes that the runtime wrote into the sandbox; nothing is copied.

use crate::spec::{KeyId, Protocol};
use alloc::vec::Vec;
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// Largest encoded input, in bytes. The proxy's limit on heads is far below.
pub const MAX_INPUT: usize = 64 * 1024;

/// One run's input.
#[expect(clippy::large_enum_variant, reason = "one of them exists for each run, on the stack")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input<'a> {
    /// Judge a request.
    #[serde(borrow)]
    Request(RequestInput<'a>),
    /// Edit a response, for programs that need it.
    #[serde(borrow)]
    Response(ResponseInput<'a>),
}

/// A request head and all other data that a verdict may depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestInput<'a> {
    /// Milliseconds since the Unix epoch, by the runtime's clock.
    pub now_ms: u64,
    /// Fresh random numbers: trace id (two), span id, sampling.
    pub random: [u64; 4],
    /// Who opened the connection.
    #[serde(borrow)]
    pub peer: Peer<'a>,
    /// `namespace/name` of the function that the request was routed to; empty if it matched no function (outbound).
    pub target: &'a str,
    /// Port that the caller asked for.
    pub port: u16,
    /// As recognised by the runtime.
    pub protocol: Protocol,
    /// `http` or `https`, as the client saw it.
    pub scheme: &'a str,
    /// Method, as sent.
    pub method: &'a str,
    /// Host, and port if given.
    pub authority: &'a str,
    /// Path and query, as sent.
    pub path: &'a str,
    /// Header fields in order, names in lower case; no pseudo-headers.
    #[serde(borrow)]
    pub headers: Vec<Header<'a>>,
    /// The key that made the one token which [`crate::token::locate`] finds in this head, if the runtime has verified that.
    pub verified: Option<KeyId>,
    /// Counters that the runtime prefetched. The program asks for a missing one.
    #[serde(borrow)]
    pub quotas: Vec<QuotaEntry<'a>>,
    /// Load of the target, without this request.
    pub load: TargetLoad,
    /// The one request that the calling instance is handling now, if there is just one: an
    /// application that copies no headers still gets whole traces (outbound only).
    #[serde(borrow)]
    pub parent: Option<Parent<'a>>,
}

/// Who opened the connection, as established by the runtime (never by a header).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer<'a> {
    /// SPIFFE ID from mutual TLS, or from the runtime's own knowledge on the same node.
    pub identity: Option<&'a str>,
    /// Address of the socket's other end.
    pub address: IpAddr,
}

/// One header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header<'a> {
    /// Lower case.
    pub name: &'a str,
    /// As sent; not necessarily UTF-8.
    pub value: &'a [u8],
}

/// One counter of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaEntry<'a> {
    /// Index into [`crate::spec::ProgramSpec::rate_limits`].
    pub limit: u16,
    /// The key as [`crate::quota::render_key`] makes it.
    pub key: &'a str,
    /// The state of the counter.
    pub state: QuotaState,
}

/// A counter. A fresh one ([`QuotaState::default`]) is a full bucket or an unused window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaState {
    /// Token bucket: missing tokens, in thousandths. Fixed window: requests used.
    pub used: u64,
    /// Token bucket: time at which `used` was right. Fixed window: start of the window. Unix
    /// milliseconds.
    pub at_ms: u64,
}

/// Load of a target on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLoad {
    /// Requests in flight.
    pub requests: u32,
    /// Requests waiting for a connection or an instance.
    pub pending: u32,
    /// Open connections.
    pub connections: u32,
    /// Endpoints that may be used.
    pub healthy: u32,
    /// Endpoints that are ejected.
    pub ejected: u32,
}

/// W3C trace context of one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// 16 bytes, not all zero.
    pub trace_id: u128,
    /// 8 bytes, not all zero.
    pub span_id: u64,
    /// The sampled flag.
    pub sampled: bool,
}

/// The position of a request in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent<'a> {
    /// Its span.
    pub context: TraceContext,
    /// Its `tracestate`, which was valid when the request was delivered; empty: none.
    pub state: &'a str,
}

/// A response head, for programs that need a response run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseInput<'a> {
    /// Status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    #[serde(borrow)]
    pub headers: Vec<Header<'a>>,
}
