//! The fields and attributes of a span, in OpenTelemetry's terms.

use super::protobuf::{Value, attribute, bytes, fixed32, fixed64, nested, number, text};
use crate::exchange::{ExchangeRecord, RecordedVerdict};
use crate::names::{EXTENSIONS, direction_name, engine_name, policy_name};
use leno_http::peer::TrafficDirection;
use leno_policy::outcome::TracePlan;
use leno_policy::spec::Protocol;
use std::time::{SystemTime, UNIX_EPOCH};

// `Span.SpanKind`, `Status.StatusCode` and `SpanFlags` of trace.proto.
const KIND_SERVER: u64 = 2;
const KIND_CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;
const FLAG_SAMPLED: u32 = 0x1;
const FLAG_KNOWS_WHETHER_REMOTE: u32 = 0x100;
const FLAG_REMOTE: u32 = 0x200;

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
        number(out, 6, if observed.direction == TrafficDirection::Outbound { KIND_CLIENT } else { KIND_SERVER });
        fixed64(out, 7, nanoseconds(observed.started_at));
        fixed64(out, 8, nanoseconds(observed.started_at + observed.duration()));
        self.attributes(|key, value| attribute(out, 9, key, value));
        nested(out, 15, |status| {
            if self.failed() {
                text(status, 2, &[observed.flag.unwrap_or_default()]);
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
        let method = self.observed.request_line.method();
        match (self.rpc(), &self.observed.target) {
            (Some((service, method)), _) => text(out, 5, &[service, "/", method]),
            (None, Some(target)) => text(out, 5, &[method, " ", target]),
            (None, None) => text(out, 5, &[method]),
        }
    }

    fn rpc(&self) -> Option<(&str, &str)> {
        let path = self.observed.request_line.path().strip_prefix('/')?;
        path.split_once('/').filter(|(_, method)| self.observed.protocol == Protocol::Grpc && !method.contains('/'))
    }

    /// A server's span fails with 5xx only. A client's span also fails with 4xx, and with a gRPC
    /// status other than OK. Both fail without a response.
    fn failed(&self) -> bool {
        let by_status = match self.observed.status {
            0 | 500.. => true,
            400.. => self.observed.direction == TrafficDirection::Outbound,
            _ => false,
        };
        let by_rpc = self.observed.grpc_status.is_some_and(|status| status != 0);
        by_status || by_rpc && self.observed.direction == TrafficDirection::Outbound
    }

    fn attributes(&self, mut add: impl FnMut(&'static str, Value<'_>)) {
        let observed = self.observed;
        let version = if matches!(observed.protocol, Protocol::Http1 | Protocol::WebSocket) { "1.1" } else { "2" };
        let (host, port) = leno_http::head::split_authority(observed.request_line.authority());
        add("http.request.method", observed.request_line.method().into());
        add("url.path", observed.request_line.path().into());
        add("network.protocol.version", version.into());
        add("server.address", host.into());
        if let Some(port) = port {
            add("server.port", u64::from(port).into());
        }
        add("client.address", observed.peer.address.ip().to_string().as_str().into());
        if observed.status != 0 {
            add("http.response.status_code", u64::from(observed.status).into());
        }
        if observed.status == 0 || observed.status >= 500 {
            match observed.flag {
                Some(flag) => add("error.type", flag.into()),
                None => add("error.type", observed.status.to_string().as_str().into()),
            }
        }
        if let Some((service, method)) = self.rpc() {
            add("rpc.system.name", "grpc".into());
            add("rpc.service", service.into());
            add("rpc.method", method.into());
        }
        if let Some(status) = observed.grpc_status {
            add("rpc.response.status_code", u64::from(status).into());
        }
        if observed.attempts.len() > 1 {
            add("http.request.resend_count", (observed.attempts.len() as u64 - 1).into());
        }
        add("http.request.body.size", observed.bytes_in.into());
        add("http.response.body.size", observed.bytes_out.into());
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
        if let Some(revision) = observed.revision_name() {
            add("leno.revision", (&**revision).into());
        }
    }
}

/// Nanoseconds since the Unix epoch, as in OTLP.
fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
