//! Policy 5: trace context. Reads the W3C recommendation (Trace Context, level 1 and 2) and B3;
//! writes W3C.

use crate::input::Header;
use crate::outcome::HeaderEdit;
use crate::reserved;
use crate::spec::Tracing;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Most members of a `tracestate` (3.3.1.1).
const MAX_MEMBERS: usize = 32;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent<'a> {
    /// Its span.
    pub context: TraceContext,
    /// Its `tracestate`, which was valid when the request was delivered; empty: none.
    pub state: &'a str,
}

/// The span of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePlan {
    /// This hop's span.
    pub context: TraceContext,
    /// Its parent, if any.
    pub parent_span: Option<u64>,
}

/// The span of this hop, and the edits that pass it on. `None`: tracing is off, and headers pass
/// through.
///
/// The parent is the caller's `traceparent`, else its B3 fields, else the span that the runtime
/// knows of. An existing trace keeps its sampling decision; `tracestate` goes only with the
/// `traceparent` or the known span that it came with.
///
/// `headers` are the fields of the request. `random` are fresh random numbers: trace ID (two), span ID, sampling. `known` is the one request
/// that the calling instance is handling now, if there is just one: an application that copies no
/// headers still gets whole traces.
pub fn plan<'h, I: Iterator<Item = Header<'h>>>(
    tracing: &Tracing,
    headers: impl Fn() -> I,
    random: [u64; 4],
    known: Option<Parent<'_>>,
) -> Option<(TracePlan, Vec<HeaderEdit>)> {
    if !tracing.enabled {
        return None;
    }
    let mut fields = TraceFields::default();
    headers().for_each(|header| fields.add(header));
    let traceparent = fields.traceparent.only().and_then(parse);
    let asked = traceparent
        .map(Caller::from)
        .or_else(|| (tracing.accept_b3 && fields.b3).then(|| b3(&headers)).flatten())
        .unwrap_or_default();
    // The span that the runtime knows stands in for a caller that names no span.
    let stand_in = known.filter(|_| asked.span.is_none());
    let known = stand_in.map(|parent| Caller::from(parent.context)).unwrap_or_default();
    let parent = asked.span.or(known.span);
    let fresh = (u128::from(random[0]) << 64) | u128::from(random[1]);
    let context = TraceContext {
        trace_id: parent.map_or(fresh.max(1), |(trace_id, _)| trace_id),
        span_id: random[2].max(1),
        sampled: asked.sampled.or(known.sampled).unwrap_or(random[3] % 10_000 < u64::from(tracing.sampling_per_10k)),
    };
    let mut edits = vec![HeaderEdit::Set("traceparent".to_string(), format(context))];
    let state = match traceparent {
        Some(_) if fields.tracestate => tracestate(headers()),
        Some(_) => None,
        None => stand_in.filter(|parent| !parent.state.is_empty()).map(|parent| parent.state.to_string()),
    };
    match state {
        Some(state) => edits.push(HeaderEdit::Set("tracestate".to_string(), state)),
        None if fields.tracestate => edits.push(HeaderEdit::Remove("tracestate".to_string())),
        None => {}
    }
    if fields.b3 {
        // B3 fields would now contradict the traceparent.
        let fields = headers().filter(|header| is_b3(header.name));
        edits.extend(fields.map(|header| HeaderEdit::Remove(header.name.to_string())));
    }
    Some((TracePlan { context, parent_span: parent.map(|(_, span_id)| span_id) }, edits))
}

/// The fields of a request that are about traces, found in one pass.
#[derive(Default)]
struct TraceFields<'h> {
    traceparent: Values<'h>,
    tracestate: bool,
    b3: bool,
}

impl<'h> TraceFields<'h> {
    fn add(&mut self, header: Header<'h>) {
        match header.name {
            "traceparent" => self.traceparent.add(header.value),
            "tracestate" => self.tracestate = true,
            name => self.b3 |= is_b3(name),
        }
    }
}

/// A B3 field, or one that a function may take for it.
fn is_b3(name: &str) -> bool {
    name == "b3" || name.get(..5).is_some_and(|start| reserved::is_same(start.as_bytes(), b"x-b3-"))
}

/// The values of a field.
#[derive(Clone, Copy, Default)]
struct Values<'h> {
    first: Option<&'h [u8]>,
    several: bool,
}

impl<'h> Values<'h> {
    fn add(&mut self, value: &'h [u8]) {
        self.several |= self.first.is_some();
        self.first.get_or_insert(value);
    }

    /// The value, if there is just one.
    fn only(self) -> Option<&'h [u8]> {
        self.first.filter(|_| !self.several)
    }
}

/// `00-<trace id>-<span id>-<flags>`
pub fn format(context: TraceContext) -> String {
    let mut text = String::with_capacity(55);
    text.push_str("00-");
    push_hex(&mut text, &context.trace_id.to_be_bytes());
    text.push('-');
    push_hex(&mut text, &context.span_id.to_be_bytes());
    text.push_str(if context.sampled { "-01" } else { "-00" });
    text
}

/// Written for every request: several times faster than the formatting of numbers.
fn push_hex(text: &mut String, bytes: &[u8]) {
    let digit = |value: u8| char::from(if value < 10 { b'0' + value } else { b'a' + value - 10 });
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0xf));
    }
}

/// The caller's span. B3 may carry the sampling decision only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Caller {
    /// Trace and span.
    span: Option<(u128, u64)>,
    /// `None`: this hop decides.
    sampled: Option<bool>,
}

impl From<TraceContext> for Caller {
    fn from(context: TraceContext) -> Self {
        Self { span: Some((context.trace_id, context.span_id)), sampled: Some(context.sampled) }
    }
}

/// Reads a `traceparent` (3.2). A later version is read by what version 00 defines of it.
pub fn parse(value: &[u8]) -> Option<TraceContext> {
    let value = core::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    let mut fields = value.split('-');
    let (version, trace_id, span_id, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let version = hex(version, 2)?;
    if version == 0xff || (version == 0 && fields.next().is_some()) {
        return None;
    }
    let (trace_id, span_id) = (hex(trace_id, 32)?, u64::try_from(hex(span_id, 16)?).ok()?);
    let sampled = hex(flags, 2)? & 1 == 1;
    (trace_id != 0 && span_id != 0).then_some(TraceContext { trace_id, span_id, sampled })
}

/// Exactly `digits` lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    if text.len() != digits {
        return None;
    }
    text.bytes().try_fold(0, |value: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// All `tracestate` fields as one, if together they are valid (3.3); an invalid one is dropped as a whole.
fn tracestate<'h>(headers: impl Iterator<Item = Header<'h>>) -> Option<String> {
    let mut members: Vec<&str> = Vec::new();
    for header in headers.filter(|header| header.name == "tracestate") {
        for member in core::str::from_utf8(header.value).ok()?.split(',') {
            let member = member.trim_matches([' ', '\t']);
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            let twice = members.iter().any(|other| other.split_once('=').is_some_and(|(other, _)| other == key));
            if twice || !is_key(key) || !is_value(value) || members.len() == MAX_MEMBERS {
                return None;
            }
            members.push(member);
        }
    }
    (!members.is_empty()).then(|| members.join(","))
}

/// Level 2, 3.3.2.2.1: at most 256 characters, first a lower-case letter or digit; one `@` as in level 1.
fn is_key(key: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let first = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let shape = match key.split_once('@') {
        None => key.len() <= 256,
        Some((tenant, system)) => first(system) && tenant.len() <= 241 && !system.contains('@') && system.len() <= 14,
    };
    shape && first(key) && key.bytes().all(inner)
}

/// Printable ASCII without `,` and `=`, at most 256 characters, not ending in a space.
fn is_value(value: &str) -> bool {
    let allowed = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b',' && byte != b'=';
    !value.is_empty() && value.len() <= 256 && !value.ends_with(' ') && value.bytes().all(allowed)
}

/// B3, as one field or as several. Invalid identifiers are ignored.
fn b3<'h, I: Iterator<Item = Header<'h>>>(headers: impl Fn() -> I) -> Option<Caller> {
    let only = |name| {
        let mut values = Values::default();
        headers().filter(|header| header.name == name).for_each(|header| values.add(header.value));
        values.only()
    };
    if let Some(single) = only("b3") {
        return b3_single(core::str::from_utf8(single).ok()?);
    }
    let text = |name| only(name).and_then(|value| core::str::from_utf8(value).ok());
    let debug = text("x-b3-flags") == Some("1");
    let sampled = if debug { Some(true) } else { text("x-b3-sampled").and_then(b3_sampled) };
    let span = text("x-b3-traceid").zip(text("x-b3-spanid")).and_then(|(trace_id, span_id)| b3_span(trace_id, span_id));
    (span.is_some() || sampled.is_some()).then_some(Caller { span, sampled })
}

/// `<trace id>-<span id>[-<sampled>[-<parent>]]`, or `<sampled>` alone.
fn b3_single(value: &str) -> Option<Caller> {
    let mut fields = value.split('-');
    let first = fields.next()?;
    let Some(span_id) = fields.next() else {
        return b3_sampled(first).map(|sampled| Caller { span: None, sampled: Some(sampled) });
    };
    let span = Some(b3_span(first, span_id)?);
    Some(Caller { span, sampled: fields.next().and_then(b3_sampled) })
}

fn b3_span(trace_id: &str, span_id: &str) -> Option<(u128, u64)> {
    let trace_id = hex(&trace_id.to_ascii_lowercase(), if trace_id.len() == 16 { 16 } else { 32 })?;
    let span_id = u64::try_from(hex(&span_id.to_ascii_lowercase(), 16)?).ok()?;
    (trace_id != 0 && span_id != 0).then_some((trace_id, span_id))
}

fn b3_sampled(text: &str) -> Option<bool> {
    match text {
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
