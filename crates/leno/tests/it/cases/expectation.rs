//! Compares the result of a case with the expectation of a table.

use super::engines::{CaseResult, Head, fields};
use super::table::{Case, Deny, Expect, Texts, Trace};
use leno_policy::input::Header;
use leno_policy::outcome::{Decision, Denial, HeaderEdit, PolicyKind, Verdict};
use leno_policy::trace::{self, TracePlan};
use serde_json::Value;
use std::collections::BTreeMap;

/// The differences from the expectation, in words.
pub(crate) fn differences(case: &Case, head: &Head, judged: &CaseResult) -> Vec<String> {
    let mut found = Vec::new();
    let (expect, decision) = (&case.expect, &judged.decision);
    match (&expect.allow, &expect.deny, &decision.verdict) {
        (Some(expected), None, Verdict::Allow { rule }) if expected == rule => {}
        (None, Some(expected), Verdict::Deny(denial)) => denied(expected, denial, &mut found),
        (_, _, verdict) => found.push(format!("the verdict is {verdict:?}")),
    }
    if let Verdict::Deny(denial) = &decision.verdict
        // Limits can count failures of authentication.
        && !((decision.takes.is_empty() || denial.policy == PolicyKind::Authentication) && decision.request_edits.is_empty() && decision.path.is_none())
    {
        found.push("a refused request is edited, or takes from counters".to_owned());
    }
    path(expect, head, decision, &mut found);
    headers("forwarded", &filled(&expect.forwarded, head), &head.headers(), &decision.request_edits, &mut found);
    let refusal: Vec<HeaderEdit> = match &decision.verdict {
        Verdict::Deny(denial) => {
            denial.headers.iter().map(|(name, value)| HeaderEdit::Set(name.clone(), value.clone())).collect()
        }
        Verdict::Allow { .. } => Vec::new(),
    };
    let response: Vec<HeaderEdit> = judged.response_edits.iter().cloned().chain(refusal).collect();
    headers("response", &expect.response, &[], &response, &mut found);
    if let (Some(answer), Some(edits)) = (&case.answer, &judged.answer) {
        headers("answer", &answer.becomes, &fields(&answer.headers), edits, &mut found);
    }
    if let Some(expected) = &expect.principal
        && expected != decision.principal.as_deref().unwrap_or("none")
    {
        found.push(format!("the principal is {:?}", decision.principal));
    }
    if let Some(expected) = &expect.trace {
        traced(expected, judged.trace, &mut found);
    }
    let audited = decision.audit.as_ref().map(|verdict| match verdict {
        Verdict::Allow { rule } => BTreeMap::from([("allow".to_owned(), rule.clone())]),
        Verdict::Deny(denial) => BTreeMap::from([("deny".to_owned(), denial.rule.clone())]),
    });
    if audited != expect.audit {
        found.push(format!("the audit is {audited:?}"));
    }
    if let Some(expected) = &expect.plan {
        part("plan", expected, &judged.plan, &mut found);
    }
    found
}

fn denied(expected: &Deny, denial: &Denial, found: &mut Vec<String>) {
    let rule = expected.rule.as_ref().or(expected.nearest.as_ref());
    let alike = expected.status == denial.status
        && rule == Some(&denial.rule)
        && expected.nearest.is_some() == denial.default
        && denial.clause.contains(&expected.clause)
        && denial.policy == policy(&denial.rule, denial.status);
    if !alike {
        found.push(format!("the denial is {denial:?}"));
    }
}

/// The policy to which a rule belongs, by its name.
fn policy(rule: &str, status: u16) -> PolicyKind {
    match rule.split('/').nth(1).unwrap_or_default() {
        "authentication" => PolicyKind::Authentication,
        "authorization" => PolicyKind::Authorization,
        "rateLimits" => PolicyKind::RateLimit,
        "circuitBreaker" => PolicyKind::CircuitBreaker,
        // Without any rule.
        "" if status == 403 => PolicyKind::Authorization,
        _ => PolicyKind::Sidecar,
    }
}

fn path(expect: &Expect, head: &Head, decision: &Decision, found: &mut Vec<String>) {
    let Some(expected) = &expect.path else { return };
    let forwarded = decision.path.as_deref().unwrap_or(head.path());
    if expected == "same" {
        if let Some(path) = &decision.path {
            found.push(format!("the path becomes {path}"));
        }
    } else if expected != forwarded {
        found.push(format!("the path is {forwarded}"));
    }
}

/// The expected fields, with tokens inserted.
pub(crate) fn filled(expected: &BTreeMap<String, Option<Texts>>, head: &Head) -> BTreeMap<String, Option<Texts>> {
    let texts = |texts: &Texts| Texts::Many(texts.all().iter().map(|text| head.fill(text)).collect());
    expected.iter().map(|(name, expected)| (name.clone(), expected.as_ref().map(texts))).collect()
}

/// Carries out the edits, and compares the expected fields.
pub(crate) fn headers(
    what: &str,
    expected: &BTreeMap<String, Option<Texts>>,
    before: &[Header<'_>],
    edits: &[HeaderEdit],
    found: &mut Vec<String>,
) {
    let mut fields: Vec<(String, String)> = before
        .iter()
        .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned()))
        .collect();
    for edit in edits {
        if let HeaderEdit::Set(name, _) | HeaderEdit::Remove(name) = edit {
            fields.retain(|(other, _)| other != name);
        }
        if let HeaderEdit::Set(name, value) | HeaderEdit::Append(name, value) = edit {
            fields.push((name.clone(), value.clone()));
        }
    }
    for (name, expected) in expected {
        let actual: Vec<&str> =
            fields.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect();
        let expected = expected.as_ref().map(Texts::all).unwrap_or_default();
        if actual != expected {
            found.push(format!("{what} `{name}` is {actual:?} instead of {expected:?}"));
        }
    }
}

fn traced(expected: &Trace, actual: Option<TracePlan>, found: &mut Vec<String>) {
    let alike = match (expected, actual) {
        (Trace::Off(word), None) => word == "off",
        (Trace::On(span), Some(plan)) => {
            trace::format(plan.context) == span.traceparent
                && plan.parent_span.map(|id| format!("{id:016x}")) == span.parent
        }
        _ => false,
    };
    if !alike {
        let shown = actual.map(|plan| (trace::format(plan.context), plan.parent_span.map(|id| format!("{id:016x}"))));
        found.push(format!("the span is {shown:?}"));
    }
}

/// Whether `actual` contains all expected members; lists must be equal.
fn part(at: &str, expected: &Value, actual: &Value, found: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (name, value) in expected {
                part(&format!("{at}.{name}"), value, actual.get(name).unwrap_or(&Value::Null), found);
            }
        }
        _ if expected == actual => {}
        _ => found.push(format!("{at} is {actual}")),
    }
}
