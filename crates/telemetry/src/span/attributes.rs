//! The fields and attributes of a span, in OpenTelemetry's terms.

use super::protobuf::{Value, attribute, bytes, fixed32, fixed64, nested, number, text};
use crate::exchange::{ExchangeRecord, RecordedVerdict};
use crate::names::{EXTENSIONS, direction_name, engine_name, policy_name};
use http::header::USER_AGENT;
use leno_http::peer::TrafficDirection;
use leno_model::GRPC_STATUSES;
use leno_policy::spec::Protocol;
use leno_policy::trace::TracePlan;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

// `Span.SpanKind`, `Status.StatusCode` and `SpanFlags` of trace.proto.
const KIND_SERVER: u64 = 2;
const KIND_CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;
const FLAG_SAMPLED: u32 = 0x1;
const FLAG_KNOWS_WHETHER_REMOTE: u32 = 0x100;
const FLAG_REMOTE: u32 = 0x200;

/// Statuses of gRPC that are a server's fault: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL,
/// UNAVAILABLE and DATA_LOSS.
const GRPC_SERVER_ERRORS: [u8; 6] = [2, 4, 12, 13, 14, 15];

/// A record as a span.
pub(super) struct Span<'a> {
    plan: &'a TracePlan,
    observed: &'a ExchangeRecord,
}

impl<'a> Span<'a> {
    /// `None`: the exchange was not traced.
    pub(super) fn of(observed: &'a ExchangeRecord) -> Option<Self> {
        Some(Self { plan: observed.trace.as_ref()?, observed })
    }

    /// Whether the span is sampled.
    pub(super) fn is_sampled(&self) -> bool {
        self.plan.context.sampled
    }

    /// Namespace and name of the function on this span's side of the call.
    pub(super) fn service(&self) -> (&'a str, &'a str) {
        let service = match self.observed.direction {
            TrafficDirection::Outbound => self.observed.source(),
            TrafficDirection::Inbound => self.observed.target.as_deref().and_then(|target| target.split_once('/')),
            TrafficDirection::Gateway => Some(("leno", "gateway")),
        };
        service.unwrap_or(("leno", "unknown"))
    }

    /// Appends the span as a `Span` message.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (context, observed) = (&self.plan.context, self.observed);
        bytes(out, 1, &context.trace_id.to_be_bytes());
        bytes(out, 2, &context.span_id.to_be_bytes());
        if let Some(parent) = self.plan.parent_span {
            bytes(out, 4, &parent.to_be_bytes());
        }
        self.write_name(out);
        number(out, 6, if self.is_client() { KIND_CLIENT } else { KIND_SERVER });
        fixed64(out, 7, nanoseconds(observed.started_at));
        fixed64(out, 8, nanoseconds(observed.started_at + observed.duration()));
        self.attributes(|key, value| attribute(out, 9, key, value));
        nested(out, 15, |status| {
            if self.error_type().is_some() {
                if let Some(flag) = observed.flag {
                    text(status, 2, &[flag]);
                }
                number(status, 3, STATUS_ERROR);
            }
        });
        let sampled = if context.sampled { FLAG_SAMPLED } else { 0 };
        let remote = if self.plan.parent_span.is_some() { FLAG_REMOTE } else { 0 };
        fixed32(out, 16, sampled | FLAG_KNOWS_WHETHER_REMOTE | remote);
    }

    /// Appends the name. RPC: `package.Service/Method`. HTTP: the method and the callee, because
    /// paths would make endless names.
    fn write_name(&self, out: &mut Vec<u8>) {
        let method = self.known_method().unwrap_or("HTTP");
        match (self.rpc_method(), &self.observed.target) {
            (Some(method), _) => text(out, 5, &[method]),
            (None, Some(target)) => text(out, 5, &[method, " ", target]),
            (None, None) => text(out, 5, &[method]),
        }
    }

    /// The method, if it is one of RFC 9110 or PATCH. Clients could make up endless others.
    fn known_method(&self) -> Option<&str> {
        const KNOWN: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
        Some(self.observed.request_line.method()).filter(|method| KNOWN.contains(method))
    }

    /// `package.Service/Method`.
    fn rpc_method(&self) -> Option<&str> {
        let path = self.observed.request_line.path().strip_prefix('/')?;
        let is_method = path.split_once('/').is_some_and(|(_, method)| !method.contains('/'));
        Some(path).filter(|_| is_method && self.observed.protocol == Protocol::Grpc)
    }

    fn is_client(&self) -> bool {
        self.observed.direction == TrafficDirection::Outbound
    }

    /// Why the exchange failed; `None`: it did not. A server's span fails with 5xx, and with the gRPC
    /// statuses that are a server's fault. A client's span also fails with 4xx, and with all gRPC
    /// statuses but OK. Both fail without a response.
    fn error_type(&self) -> Option<Cow<'static, str>> {
        let ExchangeRecord { status, grpc_status, flag, .. } = self.observed;
        let is_error = match status {
            0 | 500.. => true,
            400.. => self.is_client(),
            _ => false,
        };
        let rpc_error = grpc_status.filter(|status| match status {
            0 => false,
            _ => self.is_client() || GRPC_SERVER_ERRORS.contains(status),
        });
        match (rpc_error, flag) {
            (Some(status), _) => Some(grpc_status_name(status)),
            (None, _) if !is_error => None,
            (None, Some(flag)) => Some(Cow::Borrowed(flag)),
            (None, None) => Some(Cow::Owned(status.to_string())),
        }
    }

    fn attributes(&self, mut add: impl FnMut(&'static str, Value<'_>)) {
        self.http_attributes(&mut add);
        self.leno_attributes(&mut add);
    }

    /// The attributes of OpenTelemetry's semantic conventions for HTTP and RPC.
    fn http_attributes(&self, mut add: impl FnMut(&'static str, Value<'_>)) {
        let observed = self.observed;
        let line = &observed.request_line;
        match self.known_method() {
            Some(method) => add("http.request.method", method.into()),
            None => {
                add("http.request.method", "_OTHER".into());
                add("http.request.method_original", line.method().into());
            }
        }
        let (host, port) = leno_http::head::split_authority(line.authority());
        add("server.address", host.into());
        let peer = if self.is_client() {
            add("url.full", [observed.scheme, "://", line.authority(), line.path()].concat().as_str().into());
            add("server.port", u64::from(port.unwrap_or(80)).into());
            observed.attempts.last().and_then(|attempt| attempt.endpoint)
        } else {
            add("url.scheme", observed.scheme.into());
            add("url.path", line.path().into());
            if let Some(port) = port {
                add("server.port", u64::from(port).into());
            }
            add("client.address", observed.peer.address.ip().to_string().as_str().into());
            Some(observed.peer.address)
        };
        if let Some(peer) = peer {
            add("network.peer.address", peer.ip().to_string().as_str().into());
            if peer.port() != 0 {
                add("network.peer.port", u64::from(peer.port()).into());
            }
        }
        let version = if matches!(observed.protocol, Protocol::Http1 | Protocol::WebSocket) { "1.1" } else { "2" };
        add("network.protocol.version", version.into());
        if let Some((_, agent)) = observed.logged_headers.iter().find(|(name, _)| name == USER_AGENT) {
            add("user_agent.original", (&**agent).into());
        }
        if observed.status != 0 {
            add("http.response.status_code", u64::from(observed.status).into());
        }
        if let Some(error) = self.error_type() {
            add("error.type", (&*error).into());
        }
        if let Some(method) = self.rpc_method() {
            add("rpc.system.name", "grpc".into());
            add("rpc.method", method.into());
        }
        if let Some(status) = observed.grpc_status {
            add("rpc.response.status_code", (&*grpc_status_name(status)).into());
        }
        if observed.attempts.len() > 1 {
            add("http.request.resend_count", (observed.attempts.len() as u64 - 1).into());
        }
        add("http.request.body.size", observed.bytes_in.into());
        add("http.response.body.size", observed.bytes_out.into());
    }

    /// The attributes that the conventions have no names for.
    fn leno_attributes(&self, mut add: impl FnMut(&'static str, Value<'_>)) {
        let observed = self.observed;
        add("leno.request_id", (&*observed.request_id).into());
        add("leno.hop", direction_name(observed.direction).into());
        add("leno.verdict", observed.verdict().into());
        if let Some(judged) = &observed.judged {
            let (policy, rule) = match &judged.verdict {
                RecordedVerdict::Allow { rule } => (None, &**rule),
                RecordedVerdict::Deny { policy, rule, .. } => (Some(policy_name(*policy)), &**rule),
                RecordedVerdict::Extension { rule, .. } => (Some(EXTENSIONS), &**rule),
                RecordedVerdict::Fault { .. } => (None, ""),
            };
            if let Some(policy) = policy {
                add("leno.policy", policy.into());
            }
            if !rule.is_empty() {
                add("leno.rule", rule.into());
            }
            if let Some(engine) = judged.engine {
                add("leno.engine", engine_name(engine).into());
            }
            add("leno.judge_us", Value::Decimal(judged.time.as_secs_f64() * 1e6));
        }
        for (key, name) in [("leno.peer", &observed.peer.identity), ("leno.target", &observed.target)] {
            if let Some(name) = name {
                add(key, (&**name).into());
            }
        }
        if let Some(fault) = &observed.fault {
            add("leno.fault", (&*fault.name).into());
        }
        if let Some(revision) = observed.revision_name() {
            add("leno.revision", (&**revision).into());
        }
    }
}

/// A status that gRPC does not define is its number.
fn grpc_status_name(status: u8) -> Cow<'static, str> {
    match GRPC_STATUSES.get(usize::from(status)) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(status.to_string()),
    }
}

/// Nanoseconds since the Unix epoch, as in OTLP.
fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
