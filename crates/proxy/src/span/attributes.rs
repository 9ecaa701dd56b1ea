//! What a span says, in OpenTelemetry's words.

use super::Finished;
use crate::peer::Entrance;
use crate::record::{entrance_name, workload};
use leno_policy::spec::Protocol;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::borrow::Cow;

impl Finished {
    /// Namespace and name of the function on whose side this span is.
    pub(super) fn service(&self) -> (String, String) {
        let own = |(namespace, name): (&str, &str)| (namespace.to_owned(), name.to_owned());
        let service = match self.entrance {
            Entrance::Outbound => self.identity.as_deref().and_then(workload),
            Entrance::Inbound => self.target.as_deref().and_then(|target| target.split_once('/')),
            Entrance::Gateway => Some(("leno", "gateway")),
        };
        service.map_or_else(|| ("leno".to_owned(), "unknown".to_owned()), own)
    }

    /// The span.
    pub(super) fn span(self) -> SpanData {
        let context = &self.plan.context;
        let flags = TraceFlags::default().with_sampled(context.sampled);
        let (trace_id, span_id) = (TraceId::from(context.trace_id), SpanId::from(context.span_id));
        SpanData {
            span_context: SpanContext::new(trace_id, span_id, flags, false, TraceState::default()),
            parent_span_id: self.plan.parent_span.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: self.plan.parent_span.is_some(),
            span_kind: if self.entrance == Entrance::Outbound { SpanKind::Client } else { SpanKind::Server },
            name: self.name(),
            start_time: self.started_at,
            end_time: self.started_at + self.duration,
            status: self.outcome(),
            attributes: self.attributes(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            instrumentation_scope: InstrumentationScope::builder("leno")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }

    /// For RPC `package.Service/Method`; for HTTP the method and whom it is for. Paths would be names without end.
    fn name(&self) -> Cow<'static, str> {
        match (self.rpc(), &self.target) {
            (Some((service, method)), _) => format!("{service}/{method}").into(),
            (None, Some(target)) => format!("{} {target}", self.method).into(),
            (None, None) => self.method.to_string().into(),
        }
    }

    fn rpc(&self) -> Option<(&str, &str)> {
        let path = self.uri.path().strip_prefix('/')?;
        path.split_once('/').filter(|(_, method)| self.protocol == Protocol::Grpc && !method.contains('/'))
    }

    /// A server's span fails with 5xx only, a client's with 4xx too; both when there is no response.
    fn outcome(&self) -> Status {
        let failed = match self.status {
            0 | 500.. => true,
            400.. => self.entrance == Entrance::Outbound,
            _ => false,
        };
        let failed =
            failed || self.grpc_status.is_some_and(|status| status != 0 && self.entrance == Entrance::Outbound);
        if failed { Status::error(self.flag.unwrap_or_default()) } else { Status::Unset }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let mut attributes = Vec::with_capacity(24);
        let mut add = |key: &'static str, value: Value| attributes.push(KeyValue::new(key, value));
        let version = if matches!(self.protocol, Protocol::Http1 | Protocol::WebSocket) { "1.1" } else { "2" };
        let (host, port) = crate::head::split_authority(&self.authority);
        add("http.request.method", self.method.to_string().into());
        add("url.path", self.uri.path().to_owned().into());
        add("network.protocol.version", version.into());
        add("server.address", host.to_owned().into());
        if let Some(port) = port {
            add("server.port", i64::from(port).into());
        }
        add("client.address", self.address.ip().to_string().into());
        if self.status != 0 {
            add("http.response.status_code", i64::from(self.status).into());
        }
        if self.status == 0 || self.status >= 500 {
            let kind = self.flag.map_or_else(|| self.status.to_string(), str::to_owned);
            add("error.type", kind.into());
        }
        if let Some((service, method)) = self.rpc() {
            add("rpc.system.name", "grpc".into());
            add("rpc.service", service.to_owned().into());
            add("rpc.method", method.to_owned().into());
        }
        if let Some(status) = self.grpc_status {
            add("rpc.response.status_code", i64::from(status).into());
        }
        if self.attempts > 1 {
            add("http.request.resend_count", i64::try_from(self.attempts - 1).unwrap_or(i64::MAX).into());
        }
        add("http.request.body.size", i64::try_from(self.bytes_in).unwrap_or(i64::MAX).into());
        add("http.response.body.size", i64::try_from(self.bytes_out).unwrap_or(i64::MAX).into());
        add("leno.request_id", self.request_id.to_string().into());
        add("leno.hop", entrance_name(self.entrance).into());
        add("leno.verdict", self.verdict.into());
        if let Some(policy) = self.policy {
            add("leno.policy", policy.into());
        }
        if !self.rule.is_empty() {
            add("leno.rule", self.rule.to_string().into());
        }
        if let Some(identity) = &self.identity {
            add("leno.peer", identity.to_string().into());
        }
        if let Some(target) = &self.target {
            add("leno.target", target.to_string().into());
        }
        if let Some(engine) = self.engine {
            add("leno.engine", engine.into());
        }
        if let Some(judge) = self.judge {
            add("leno.judge_us", (judge.as_secs_f64() * 1e6).into());
        }
        attributes
    }
}
