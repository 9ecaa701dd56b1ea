//! HTTP rules of Cilium: each field is a regular expression for the whole value.

use crate::report::Report;
use crate::walk;
use leno_config::Scope;
use leno_config::check;
use leno_config::document::{Condition, Operation, TextMatch};

/// One element of `rules.http`. `None`: a problem was reported.
pub(super) fn rule(report: &Report<'_>, scope: &Scope<'_>) -> Option<(Operation, Vec<Condition>)> {
    let mut operation = Operation::default();
    let mut conditions = Vec::new();
    for field in walk::fields(scope) {
        let place = scope.field(field);
        match field {
            "path" => {
                let regex = TextMatch::Regex { regex: walk::text(&place)?.to_owned(), with_query: true };
                valid(&place, |place| check::path(place, &regex))?;
                operation.paths = Some(vec![regex]);
                report.approximated(&place, "compared with the normalised path, and the query");
            }
            "method" => {
                let method = regex(walk::text(&place)?);
                valid(&place, |place| check::method(place, &method))?;
                operation.methods = Some(vec![method]);
                report.enforced(&place);
            }
            "host" => {
                let host = regex(walk::text(&place)?);
                valid(&place, |place| check::host(place, &host))?;
                operation.hosts = Some(vec![host]);
                report.approximated(&place, "compared with the host in lower case and without port");
            }
            "headers" => {
                for header in walk::texts(&place) {
                    let condition = wanted(header);
                    named(&place, &condition)?;
                    conditions.push(condition);
                }
                report.approximated(&place, "of a repeated header, one value is enough");
            }
            "headerMatches" if walk::is_list(&place) => {
                for index in 0..walk::length(&place) {
                    conditions.push(header_match(report, &place.element(index))?);
                }
            }
            _ => {
                report.refused(&place, "the field is not known");
                return None;
            }
        }
    }
    Some((operation, conditions))
}

/// Checks a part at its place. `None`: a problem was reported.
fn valid(scope: &Scope<'_>, check: impl Fn(&Scope<'_>)) -> Option<()> {
    let before = scope.problem_count();
    check(scope);
    (scope.problem_count() == before).then_some(())
}

fn named(scope: &Scope<'_>, condition: &Condition) -> Option<()> {
    check::header_name(scope, condition.header.as_deref().unwrap_or_default()).map(drop)
}

/// A pattern without special characters is written as text.
fn regex(pattern: &str) -> TextMatch {
    if !pattern.is_empty() && pattern.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return TextMatch::Text(pattern.to_owned());
    }
    TextMatch::Regex { regex: pattern.to_owned(), with_query: false }
}

/// `X-Token`, `X-Token: abc` or `X-Token abc`.
fn wanted(header: &str) -> Condition {
    match header.split_once(' ') {
        Some((name, value)) => exactly(name.trim_end_matches(':'), value),
        None => {
            let name = Some(header.trim_end_matches(':').to_owned());
            Condition { header: name, present: Some(true), ..Condition::default() }
        }
    }
}

fn exactly(name: &str, value: &str) -> Condition {
    // A `*` would be a wildcard.
    let value = match value.contains('*') || value.is_empty() {
        true => TextMatch::Regex { regex: format!("(?:{})", regex_syntax::escape(value)), with_query: false },
        false => TextMatch::Text(value.to_owned()),
    };
    Condition { header: Some(name.to_owned()), values: Some(vec![value]), ..Condition::default() }
}

fn header_match(report: &Report<'_>, scope: &Scope<'_>) -> Option<Condition> {
    for field in walk::fields(scope) {
        let why = match field {
            "name" | "value" => continue,
            "secret" => "secrets are not read from Kubernetes",
            "mismatch" => "a request that does not match is refused here, and never changed",
            _ => "the field is not known",
        };
        report.refused(&scope.field(field), why);
        return None;
    }
    let name = walk::text(&scope.field("name"))?;
    named(&scope.field("name"), &exactly(name, ""))?;
    report.approximated(scope, "of a repeated header, one value is enough");
    if !scope.has("value") {
        return Some(Condition { header: Some(name.to_owned()), present: Some(true), ..Condition::default() });
    }
    let value = scope.field("value");
    Some(exactly(name, walk::text(&value)?))
}

/// `l7proto: grpc` with `l7: [{service, method}]`, an old form: a POST to `/service/method`.
pub(super) fn grpc(report: &Report<'_>, scope: &Scope<'_>) -> Option<(Operation, Vec<Condition>)> {
    for field in walk::fields(scope) {
        if !["service", "method"].contains(&field) {
            report.refused(&scope.field(field), "the field is not known");
            return None;
        }
    }
    let service = scope.field("service");
    let service = walk::text(&service)?;
    let path = match scope.has("method") {
        true => TextMatch::Text(format!("/{service}/{}", walk::text(&scope.field("method"))?)),
        false => TextMatch::Text(format!("/{service}/{{method}}")),
    };
    report.approximated(scope, "a POST to /service/method");
    let methods = Some(vec![TextMatch::Text("POST".to_owned())]);
    Some((Operation { methods, paths: Some(vec![path]), ..Operation::default() }, Vec::new()))
}
