//! Compares what there is to see of an exchange with the expectation of a table.

use super::super::expectation::{filled, headers};
use super::super::table::{Deny, Texts, Trace};
use super::cluster::Exchange;
use super::log_line::LogLine;
use leno_policy::input::Header;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The names of a group's policies and of the judged function on the cluster.
#[derive(Clone)]
pub(crate) struct Names {
    /// The end of the name of each policy.
    pub policy: String,
    pub function: String,
}

impl Names {
    /// A policy with these names.
    pub(crate) fn document(&self, mut document: Value) -> Value {
        let name = document["metadata"]["name"].as_str().unwrap();
        document["metadata"]["name"] = Value::from(self.policy(name));
        if document["spec"]["functions"] == json!(["cart"]) {
            document["spec"]["functions"] = json!([self.function]);
        }
        if document["spec"]["selector"]["app"] == "cart" {
            document["spec"]["selector"]["app"] = Value::from(&*self.function);
        }
        document
    }

    fn policy(&self, name: &str) -> String {
        format!("{name}-{}", self.policy)
    }

    /// A rule as the tables name it.
    fn table_rule(&self, rule: &str) -> String {
        let (policy, rest) = rule.split_once('/').unwrap_or((rule, ""));
        policy.strip_suffix(&self.policy("")).map_or_else(|| rule.to_owned(), |policy| format!("{policy}/{rest}"))
    }

    /// A text of the tables as it is on the cluster.
    fn text(&self, text: &str) -> String {
        text.replace("shop/cart", &format!("shop/{}", self.function))
    }
}

/// What there is to see of an exchange beside the answer.
pub(crate) struct Seen {
    /// The request as the callee got it.
    pub echo: Option<Echo>,
    /// Of the access log.
    pub line: Option<LogLine>,
}

#[derive(Deserialize)]
pub(crate) struct Echo {
    method: String,
    path: String,
    headers: BTreeMap<String, Vec<String>>,
}

/// The differences from the expectation, in words.
pub(crate) fn differences(exchange: &Exchange<'_>, seen: &Seen) -> Vec<String> {
    let (case, answer, names) = (&exchange.case, &exchange.answer, &exchange.names);
    let expect = &case.expect;
    let mut found = Vec::new();
    if !answer.error.is_empty() {
        return vec![format!("no answer: {}", answer.error)];
    }
    let status =
        expect.deny.as_ref().map_or(case.answer.as_ref().map_or(200, |answer| answer.status), |deny| deny.status);
    // A refused call of gRPC has its status in a field.
    let is_grpc = case.request.protocol == "grpc" && expect.deny.is_some();
    let got = if is_grpc && answer.header("grpc-status") == Some("7") { 403 } else { answer.status };
    if got != status {
        found.push(format!("the status is {got}: {:?}", answer));
    }
    let response = expected(&expect.response, names);
    fields("response", &response, answer.headers.as_ref(), &mut found);
    if let Some(answer) = &case.answer {
        fields("answer", &answer.becomes, exchange.answer.headers.as_ref(), &mut found);
    }
    match (&seen.echo, expect.deny.is_some()) {
        (None, false) if case.request.method == "HEAD" => {}
        (Some(echo), false) => forwarded(exchange, echo, &mut found),
        (None, true) => {}
        (echo, _) => found.push(format!("whether the callee got it: {}", echo.is_some())),
    }
    match (&seen.line, exchange.is_logged()) {
        (Some(line), true) => logged(exchange, line, &mut found),
        (None, false) => {}
        (line, _) => found.push(format!("whether there is a line in the access log: {}", line.is_some())),
    }
    found
}

/// Expected fields with the names on the cluster.
fn expected(fields: &BTreeMap<String, Option<Texts>>, names: &Names) -> BTreeMap<String, Option<Texts>> {
    let renamed = |texts: &Texts| Texts::Many(texts.all().iter().map(|text| names.text(text)).collect());
    fields.iter().map(|(name, texts)| (name.clone(), texts.as_ref().map(renamed))).collect()
}

fn fields(
    what: &str,
    expected: &BTreeMap<String, Option<Texts>>,
    got: Option<&BTreeMap<String, Vec<String>>>,
    found: &mut Vec<String>,
) {
    let got: Vec<Header<'_>> = got
        .into_iter()
        .flatten()
        .flat_map(|(name, values)| values.iter().map(move |value| Header { name, value: value.as_bytes() }))
        .collect();
    headers(what, expected, &got, &[], found);
}

/// The request as the callee got it.
fn forwarded(exchange: &Exchange<'_>, echo: &Echo, found: &mut Vec<String>) {
    let (case, expect) = (&exchange.case, &exchange.case.expect);
    if echo.method != case.request.method {
        found.push(format!("the method becomes {}", echo.method));
    }
    if let Some(path) = &expect.path {
        let path = if path == "same" { exchange.head.path() } else { path };
        if echo.path != *path {
            found.push(format!("the path is {} instead of {path}", echo.path));
        }
    }
    let mut expected = filled(&expect.forwarded, &exchange.head);
    if let Some(Some(texts)) = expected.get_mut("traceparent")
        && let Some(Trace::On(_)) = &expect.trace
    {
        let got = echo.headers.get("traceparent").and_then(|values| values.first()).map_or("", String::as_str);
        if !is_alike(&texts.all()[0], got, exchange) {
            found.push(format!("the callee's traceparent is {got}"));
        }
        expected.remove("traceparent");
    }
    fields("forwarded", &expected, Some(&echo.headers), found);
}

/// The line of the access log.
fn logged(exchange: &Exchange<'_>, line: &LogLine, found: &mut Vec<String>) {
    let (expect, names) = (&exchange.case.expect, &exchange.names);
    let text = |name: &str| line.0.get(name).map_or("", String::as_str);
    let rule = names.table_rule(text("rule"));
    let is_malformed = text("verdict") == "error" && text("failure").starts_with("malformed request");
    let is_expected = match (&expect.allow, &expect.deny) {
        (Some(allow), _) => text("verdict") == "allow" && *allow == rule,
        // The proxy has refused it before the policies.
        (None, Some(Deny { rule: Some(rule), .. })) if is_malformed => rule == "leno/request",
        (None, Some(Deny { rule: decided, nearest, clause, .. })) => {
            text("verdict") == "deny"
                && decided.as_ref().or(nearest.as_ref()) == Some(&rule)
                && (text("default") == "true") == nearest.is_some()
                && text("clause").contains(&names.text(clause))
        }
        (None, None) => false,
    };
    if !is_expected {
        found.push(format!("the verdict is {line:?}"));
    }
    let identity = exchange.case.request.identity.as_deref().and_then(|identity| identity.split_once('/'));
    let source = match identity {
        Some((namespace, name)) => format!("spiffe://{}/ns/{namespace}/sa/{name}", super::TRUST_DOMAIN.0),
        None => format!("{}:", exchange.address),
    };
    if !text("source").starts_with(&source) {
        found.push(format!("the caller is {}", text("source")));
    }
    if let Some(principal) = &expect.principal
        && *principal != line.0.get("principal").map_or("none", String::as_str)
    {
        found.push(format!("the principal is {}", text("principal")));
    }
    let audited = line
        .0
        .get("audit_verdict")
        .map(|verdict| BTreeMap::from([(verdict.clone(), names.table_rule(text("audit_rule")))]));
    if audited != expect.audit {
        found.push(format!("the audit is {audited:?}"));
    }
    match &expect.trace {
        Some(Trace::Off(_)) if !text("trace_id").is_empty() => found.push(format!("the trace is {}", text("trace_id"))),
        Some(Trace::On(span)) => {
            let flags = span.traceparent.rsplit('-').next().unwrap_or_default();
            let got = format!("00-{}-{}-{flags}", text("trace_id"), text("span_id"));
            let parent = span.parent.as_deref().unwrap_or_default();
            if !is_alike(&span.traceparent, &got, exchange) || text("parent_span_id") != parent {
                found.push(format!("the span is {got} of {}", text("parent_span_id")));
            }
        }
        _ => {}
    }
}

/// Whether it is the expected `traceparent`, whose random numbers differ.
fn is_alike(expected: &str, got: &str, exchange: &Exchange<'_>) -> bool {
    let random = exchange.case.random.map(|number| format!("{number:016x}"));
    let own = random[..2].concat();
    let parts = |text: &str| text.split('-').map(str::to_owned).collect::<Vec<_>>();
    let (expected, got) = (parts(expected), parts(got));
    let alike = |(expected, got): (&String, &String)| {
        let is_chosen = *expected == own || *expected == random[2];
        expected == got || is_chosen && expected.len() == got.len() && got.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    expected.len() == got.len() && expected.iter().zip(&got).all(alike)
}
