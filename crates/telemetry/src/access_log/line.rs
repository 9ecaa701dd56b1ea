//! The format of a line.

use super::object::Object;
use crate::exchange::{ExchangeRecord, RecordedVerdict, RouteRecord};
use crate::names::{EXTENSIONS, direction_name, policy_name, protocol_name};
use leno_runtime::clock::rfc3339;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::fmt::{self, Display};
use std::io::{self, Write};

/// Whether the exchange's policy wants a line. An exchange that was never judged always gets one.
pub(super) fn is_wanted(observed: &ExchangeRecord) -> bool {
    match &observed.program {
        Some(program) => {
            let log = &program.access_log;
            let within = |(first, last): &(u16, u16)| (*first..=*last).contains(&observed.status);
            log.enabled && (log.statuses.is_empty() || log.statuses.iter().any(within))
        }
        None => true,
    }
}

/// The fields of a line. Absent ones are left out.
struct Line<'a> {
    time: leno_runtime::clock::Rfc3339,
    request_id: &'a str,
    trace_id: Option<Hex128>,
    span_id: Option<Hex64>,
    parent_span_id: Option<Hex64>,
    direction: &'static str,
    source: Option<&'a str>,
    source_address: std::net::SocketAddr,
    route: Option<&'a RouteRecord>,
    fault: Option<&'a str>,
    target: Option<&'a str>,
    revision: Option<&'a str>,
    authority: &'a str,
    method: &'a str,
    path: &'a str,
    protocol: &'static str,
    status: u16,
    grpc_status: Option<u8>,
    verdict: &'static str,
    policy: Option<&'static str>,
    rule: &'a str,
    clause: &'a str,
    default: Option<bool>,
    audit: Option<(&'static str, &'a str, &'a str)>,
    principal: Option<&'a str>,
    duration_ms: f64,
    upstream_ms: Option<f64>,
    judge_us: Option<f64>,
    attempts: usize,
    bytes_in: u64,
    bytes_out: u64,
    endpoint: Option<std::net::SocketAddr>,
    node: Option<&'a str>,
    flags: Option<&'static str>,
    failure: Option<&'a str>,
    engine: Option<&'static str>,
}

impl<'a> Line<'a> {
    fn new(observed: &'a ExchangeRecord) -> Self {
        let judged = observed.judged.as_ref();
        let (policy, rule, clause, default) = match judged.map(|judged| &judged.verdict) {
            Some(RecordedVerdict::Allow { rule }) => (None, &**rule, "", None),
            Some(RecordedVerdict::Deny { policy, rule, clause, default }) => {
                (Some(policy_name(*policy)), &**rule, &**clause, Some(*default))
            }
            Some(RecordedVerdict::Extension { rule, clause }) => (Some(EXTENSIONS), &**rule, &**clause, None),
            Some(RecordedVerdict::Fault { reason, .. }) => (None, "", &**reason, None),
            None => (None, "", "", None),
        };
        let trace = observed.trace.as_ref();
        Self {
            time: rfc3339(observed.started_at),
            request_id: &observed.request_id,
            trace_id: trace.map(|trace| Hex128(trace.context.trace_id)),
            span_id: trace.map(|trace| Hex64(trace.context.span_id)),
            parent_span_id: trace.and_then(|trace| trace.parent_span).map(Hex64),
            direction: direction_name(observed.direction),
            source: observed.peer.identity.as_deref(),
            source_address: observed.peer.address,
            route: observed.route.as_deref(),
            fault: observed.fault.as_ref().map(|fault| &*fault.name),
            target: observed.target.as_deref(),
            revision: observed.revision_name().map(|name| &**name),
            authority: observed.request_line.authority(),
            method: observed.request_line.method(),
            path: observed.request_line.path(),
            protocol: protocol_name(observed.protocol),
            status: observed.status,
            grpc_status: observed.grpc_status,
            verdict: observed.verdict(),
            policy,
            rule,
            clause,
            default,
            audit: judged.and_then(|judged| judged.audit.as_ref()).map(|audit| {
                let (rule, clause) = audit.rule_and_clause();
                (audit.word(), rule, clause)
            }),
            principal: judged.and_then(|judged| judged.principal.as_deref()),
            duration_ms: observed.duration().as_micros() as f64 / 1e3,
            upstream_ms: observed.upstream_time().map(|time| time.as_micros() as f64 / 1e3),
            judge_us: judged.map(|judged| (judged.time.as_nanos() / 100) as f64 / 10.0),
            attempts: observed.attempts.len(),
            bytes_in: observed.bytes_in,
            bytes_out: observed.bytes_out,
            endpoint: observed.attempts.last().and_then(|attempt| attempt.endpoint),
            node: observed.node.as_deref(),
            flags: observed.flag,
            failure: observed.failure.as_deref(),
            engine: judged.and_then(|judged| judged.engine).map(crate::names::engine_name),
        }
    }
}

/// Appends a line as JSON, without its newline.
pub(super) fn json(buffer: &mut Vec<u8>, observed: &ExchangeRecord) -> io::Result<()> {
    let line = Line::new(observed);
    let mut object = Object::begin(buffer);
    object.plain("time", line.time)?;
    object.text("request_id", line.request_id)?;
    line.trace_id.map_or(Ok(()), |id| object.plain("trace_id", id))?;
    line.span_id.map_or(Ok(()), |id| object.plain("span_id", id))?;
    line.parent_span_id.map_or(Ok(()), |id| object.plain("parent_span_id", id))?;
    object.text("direction", line.direction)?;
    line.source.map_or(Ok(()), |source| object.text("source", source))?;
    object.address("source_address", line.source_address)?;
    if let Some(route) = line.route {
        object.text("route_name", &route.full_name())?;
        for (name, value) in route_fields(route) {
            value.map_or(Ok(()), |value| object.text(name, value))?;
        }
    }
    line.fault.map_or(Ok(()), |fault| object.text("fault", fault))?;
    line.target.map_or(Ok(()), |target| object.text("target", target))?;
    line.revision.map_or(Ok(()), |revision| object.text("revision", revision))?;
    object.text("authority", line.authority)?;
    object.text("method", line.method)?;
    object.text("path", line.path)?;
    object.text("protocol", line.protocol)?;
    object.value("status", line.status)?;
    line.grpc_status.map_or(Ok(()), |status| object.value("grpc_status", status))?;
    object.text("verdict", line.verdict)?;
    line.policy.map_or(Ok(()), |policy| object.text("policy", policy))?;
    if !line.rule.is_empty() {
        object.text("rule", line.rule)?;
    }
    if !line.clause.is_empty() {
        object.text("clause", line.clause)?;
    }
    line.default.map_or(Ok(()), |default| object.value("default", default))?;
    if let Some((verdict, rule, clause)) = line.audit {
        object.text("audit_verdict", verdict)?;
        object.text("audit_rule", rule)?;
        object.text("audit_clause", clause)?;
    }
    line.principal.map_or(Ok(()), |principal| object.text("principal", principal))?;
    object.value("duration_ms", line.duration_ms)?;
    line.upstream_ms.map_or(Ok(()), |ms| object.value("upstream_ms", ms))?;
    line.judge_us.map_or(Ok(()), |us| object.value("judge_us", us))?;
    object.value("attempts", line.attempts)?;
    object.value("bytes_in", line.bytes_in)?;
    object.value("bytes_out", line.bytes_out)?;
    line.endpoint.map_or(Ok(()), |endpoint| object.address("endpoint", endpoint))?;
    line.node.map_or(Ok(()), |node| object.text("node", node))?;
    line.flags.map_or(Ok(()), |flags| object.text("flags", flags))?;
    line.failure.map_or(Ok(()), |failure| object.text("failure", failure))?;
    line.engine.map_or(Ok(()), |engine| object.text("engine", engine))?;
    if !observed.logged_headers.is_empty() {
        object.value("headers", Headers(observed))?;
    }
    object.end();
    Ok(())
}

/// Appends a line as text, without its newline: time, direction, verdict, status, method, path,
/// source and target, then the other fields by name.
pub(super) fn text(buffer: &mut Vec<u8>, observed: &ExchangeRecord) -> io::Result<()> {
    let line = Line::new(observed);
    write!(buffer, "{} {} {} {}", line.time, line.direction, line.verdict, line.status)?;
    write!(buffer, " {} {}", EscapedText(line.method), EscapedText(line.path))?;
    let source = line.source.map_or_else(|| line.source_address.to_string(), str::to_owned);
    write!(buffer, " {} -> {}", EscapedText(&source), EscapedText(line.target.unwrap_or("-")))?;
    write!(buffer, " {}ms request_id={}", line.duration_ms, EscapedText(line.request_id))?;
    let mut field = |name: &str, value: Option<&dyn Display>| match value {
        Some(value) => write!(buffer, " {name}={value}"),
        None => Ok(()),
    };
    if let Some(route) = line.route {
        field("route_name", Some(&route.full_name()))?;
        for (name, value) in route_fields(route) {
            field(name, value.map(QuotedText).as_ref().map(|value| value as _))?;
        }
    }
    field("fault", line.fault.as_ref().map(|value| value as _))?;
    field("revision", line.revision.as_ref().map(|value| value as _))?;
    field("authority", filled(line.authority).as_ref().map(|value| value as _))?;
    field("protocol", Some(&line.protocol))?;
    field("policy", line.policy.as_ref().map(|value| value as _))?;
    field("rule", filled(line.rule).as_ref().map(|value| value as _))?;
    field("clause", filled(line.clause).as_ref().map(|value| value as _))?;
    field("default", line.default.as_ref().map(|value| value as _))?;
    let (verdict, rule, clause) = line.audit.unwrap_or_default();
    field("audit_verdict", filled(verdict).as_ref().map(|value| value as _))?;
    field("audit_rule", filled(rule).as_ref().map(|value| value as _))?;
    field("audit_clause", filled(clause).as_ref().map(|value| value as _))?;
    field("principal", line.principal.map(QuotedText).as_ref().map(|value| value as _))?;
    field("trace_id", line.trace_id.as_ref().map(|value| value as _))?;
    field("span_id", line.span_id.as_ref().map(|value| value as _))?;
    field("parent_span_id", line.parent_span_id.as_ref().map(|value| value as _))?;
    field("grpc_status", line.grpc_status.as_ref().map(|value| value as _))?;
    field("upstream_ms", line.upstream_ms.as_ref().map(|value| value as _))?;
    field("judge_us", line.judge_us.as_ref().map(|value| value as _))?;
    field("attempts", Some(&line.attempts))?;
    field("bytes_in", Some(&line.bytes_in))?;
    field("bytes_out", Some(&line.bytes_out))?;
    field("endpoint", line.endpoint.as_ref().map(|value| value as _))?;
    field("node", line.node.as_ref().map(|value| value as _))?;
    field("flags", line.flags.as_ref().map(|value| value as _))?;
    field("failure", line.failure.map(QuotedText).as_ref().map(|value| value as _))?;
    field("engine", line.engine.as_ref().map(|value| value as _))?;
    for (name, value) in &observed.logged_headers {
        write!(buffer, " header.{name}={}", QuotedText(value))?;
    }
    Ok(())
}

/// The fields about a route besides its name.
fn route_fields(route: &RouteRecord) -> [(&'static str, Option<&str>); 4] {
    [
        ("route_match", Some(&route.matched)),
        ("route_backend", route.backend.as_deref()),
        ("rewritten_authority", route.authority.as_deref()),
        ("rewritten_path", route.path.as_deref()),
    ]
}

fn filled(text: &str) -> Option<QuotedText<'_>> {
    (!text.is_empty()).then_some(QuotedText(text))
}

/// Values of the headers that the policy names. Several values of one header are joined (RFC 9110,
/// 5.3).
struct Headers<'a>(&'a ExchangeRecord);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        // Values of one name are adjacent.
        for values in self.0.logged_headers.chunk_by(|(one, _), (next, _)| one == next) {
            let texts: Vec<&str> = values.iter().map(|(_, value)| &**value).collect();
            if let Some((name, _)) = values.first() {
                map.serialize_entry(name.as_str(), &texts.join(", "))?;
            }
        }
        map.end()
    }
}

struct Hex128(u128);

impl Display for Hex128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

struct Hex64(u64);

impl Display for Hex64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Escapes spaces, quotes, control characters and everything that does not print.
struct EscapedText<'a>(&'a str);

impl Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                ' ' => f.write_str("\\u{20}")?,
                character => write!(f, "{}", character.escape_debug())?,
            }
        }
        Ok(())
    }
}

/// Puts text in quotes and escapes it.
struct QuotedText<'a>(&'a str);

impl Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_debug())
    }
}
