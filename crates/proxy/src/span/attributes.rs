//! What a span says, in OpenTelemetry's words.

use crate::metrics::engine_name;
use crate::peer::Entrance;
use crate::record::{EXTENSIONS, Observed, Ruled, entrance_name, policy_name};
use leno_policy::outcome::TracePlan;
use leno_policy::spec::Protocol;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::borrow::Cow;

/// A record as a span.
pub(super) struct Span<'a> {
    plan: &'a TracePlan,
    observed: &'a Observed,
}

impl<'a> Span<'a> {
    /// `None`: the exchange was not traced.
    pub(super) fn of(observed: &'a Observed) -> Option<Self> {
        Some(Self { plan: observed.trace.as_ref()?, observed })
    }

    /// Namespace and name of the function on whose side this span is.
    pub(super) fn service(&self) -> (&'a str, &'a str) {
        let service = match self.observed.entrance {
            Entrance::Outbound => self.observed.source(),
            Entrance::Inbound => self.observed.target.as_deref().and_then(|target| target.split_once('/')),
            Entrance::Gateway => Some(("leno", "gateway")),
        };
        service.unwrap_or(("leno", "unknown"))
    }

    /// The span, for the exporter.
    pub(super) fn data(&self, scope: &InstrumentationScope) -> SpanData {
        let (context, observed) = (&self.plan.context, self.observed);
        let flags = TraceFlags::default().with_sampled(context.sampled);
        let (trace_id, span_id) = (TraceId::from(context.trace_id), SpanId::from(context.span_id));
        SpanData {
            span_context: SpanContext::new(trace_id, span_id, flags, false, TraceState::default()),
            parent_span_id: self.plan.parent_span.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: self.plan.parent_span.is_some(),
            span_kind: if observed.entrance == Entrance::Outbound { SpanKind::Client } else { SpanKind::Server },
            name: self.name(),
            start_time: observed.started_at,
            end_time: observed.started_at + observed.duration(),
            status: self.outcome(),
            attributes: self.attributes(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            instrumentation_scope: scope.clone(),
        }
    }

    /// For RPC `package.Service/Method`; for HTTP the method and whom it is for. Paths would be names without end.
    fn name(&self) -> Cow<'static, str> {
        match (self.rpc(), &self.observed.target) {
            (Some((service, method)), _) => format!("{service}/{method}").into(),
            (None, Some(target)) => format!("{} {target}", self.observed.method).into(),
            (None, None) => self.observed.method.to_string().into(),
        }
    }

    fn rpc(&self) -> Option<(&str, &str)> {
        let path = self.observed.uri.path().strip_prefix('/')?;
        path.split_once('/').filter(|(_, method)| self.observed.protocol == Protocol::Grpc && !method.contains('/'))
    }

    /// A server's span fails with 5xx only, a client's with 4xx too; both when there is no response.
    fn outcome(&self) -> Status {
        let failed = match self.observed.status {
            0 | 500.. => true,
            400.. => self.observed.entrance == Entrance::Outbound,
            _ => false,
        };
        let failed = failed
            || self
                .observed
                .grpc_status
                .is_some_and(|status| status != 0 && self.observed.entrance == Entrance::Outbound);
        if failed { Status::error(self.observed.flag.unwrap_or_default()) } else { Status::Unset }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let observed = self.observed;
        let mut attributes = Vec::with_capacity(24);
        let mut add = |key: &'static str, value: Value| attributes.push(KeyValue::new(key, value));
        let version = if matches!(observed.protocol, Protocol::Http1 | Protocol::WebSocket) { "1.1" } else { "2" };
        let (host, port) = crate::head::split_authority(observed.authority());
        add("http.request.method", observed.method.to_string().into());
        add("url.path", observed.uri.path().to_owned().into());
        add("network.protocol.version", version.into());
        add("server.address", host.to_owned().into());
        if let Some(port) = port {
            add("server.port", i64::from(port).into());
        }
        add("client.address", observed.peer.address.ip().to_string().into());
        if observed.status != 0 {
            add("http.response.status_code", i64::from(observed.status).into());
        }
        if observed.status == 0 || observed.status >= 500 {
            let kind = observed.flag.map_or_else(|| observed.status.to_string(), str::to_owned);
            add("error.type", kind.into());
        }
        if let Some((service, method)) = self.rpc() {
            add("rpc.system.name", "grpc".into());
            add("rpc.service", service.to_owned().into());
            add("rpc.method", method.to_owned().into());
        }
        if let Some(status) = observed.grpc_status {
            add("rpc.response.status_code", i64::from(status).into());
        }
        if observed.attempts.len() > 1 {
            add("http.request.resend_count", i64::try_from(observed.attempts.len() - 1).unwrap_or(i64::MAX).into());
        }
        add("http.request.body.size", i64::try_from(observed.bytes_in).unwrap_or(i64::MAX).into());
        add("http.response.body.size", i64::try_from(observed.bytes_out).unwrap_or(i64::MAX).into());
        add("leno.request_id", observed.request_id.to_string().into());
        add("leno.hop", entrance_name(observed.entrance).into());
        add("leno.verdict", observed.verdict().into());
        if let Some(judged) = &observed.judged {
            let (policy, rule) = match &judged.verdict {
                Ruled::Allow { rule } => (None, &**rule),
                Ruled::Deny { policy, rule, .. } => (Some(policy_name(*policy)), &**rule),
                Ruled::Extension { rule, .. } => (Some(EXTENSIONS), &**rule),
                Ruled::Fault { .. } => (None, ""),
            };
            if let Some(policy) = policy {
                add("leno.policy", policy.into());
            }
            if !rule.is_empty() {
                add("leno.rule", rule.to_owned().into());
            }
            if let Some(engine) = judged.engine {
                add("leno.engine", engine_name(engine).into());
            }
            add("leno.judge_us", (judged.time.as_secs_f64() * 1e6).into());
        }
        for (key, name) in [("leno.peer", &observed.peer.identity), ("leno.target", &observed.target)] {
            if let Some(name) = name {
                add(key, Value::String(name.clone().into()));
            }
        }
        attributes
    }
}
