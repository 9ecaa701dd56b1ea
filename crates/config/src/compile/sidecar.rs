//! `spec.sidecar`.

use super::fields;
use super::header::{self, Use};
use crate::document::{HeaderEdits, Protocol, Sidecar};
use crate::duration::Duration;
use crate::problem::Scope;
use crate::snapshot;
use leno_policy::spec::{self, HeaderRule};
use std::collections::BTreeMap;

/// A shorter deadline cannot be met: restoring a micro-VM takes most of this.
const SHORTEST_DEADLINE: Duration = Duration(std::time::Duration::from_micros(50));
/// A runaway sidecar holds a worker thread this long.
const LONGEST_DEADLINE: Duration = Duration::from_millis(100);

pub(super) fn sidecar(scope: &Scope<'_>, policy: &str, sidecar: &Sidecar) -> snapshot::Sidecar {
    fields::not_written_empty(scope, "ports", &sidecar.ports, "any port");
    fields::not_written_empty(scope, "protocols", &sidecar.protocols, "any protocol");
    let ports = scope.field("ports");
    let request = &sidecar.request_headers;
    let responses = scope.field("responseHeaders");
    let rules = spec::Sidecar {
        name: format!("{policy}/sidecar"),
        ports: sidecar
            .ports
            .iter()
            .enumerate()
            .map(|(index, port)| fields::port(&ports.element(index), *port))
            .collect(),
        protocols: sidecar.protocols.iter().map(protocol).collect(),
        request_headers: edits(&scope.field("requestHeaders"), request),
        response_headers: sidecar
            .response_headers
            .iter()
            .enumerate()
            .map(|(index, rule)| {
                let scope = responses.element(index);
                let headers =
                    HeaderEdits { set: rule.set.clone(), append: rule.append.clone(), remove: rule.remove.clone() };
                let edits = edits(&scope, &headers);
                if edits.is_empty() && headers == HeaderEdits::default() {
                    scope.problem(
                        "the element changes nothing",
                        "add `set`, `append` or `remove`, or remove the element",
                    );
                }
                spec::ResponseHeaderRule { statuses: fields::statuses(&scope.field("statuses"), &rule.statuses), edits }
            })
            .collect(),
        judge_each_request: sidecar.judge_each_request,
    };
    let deadline = fields::within(&scope.field("deadline"), sidecar.deadline, SHORTEST_DEADLINE, LONGEST_DEADLINE);
    snapshot::Sidecar { rules, engine: sidecar.engine, deadline }
}

fn protocol(protocol: &Protocol) -> spec::Protocol {
    match protocol {
        Protocol::Http1 => spec::Protocol::Http1,
        Protocol::Http2 => spec::Protocol::Http2,
        Protocol::Grpc => spec::Protocol::Grpc,
        Protocol::WebSocket => spec::Protocol::WebSocket,
    }
}

/// In the documented order: set, append, remove.
fn edits(scope: &Scope<'_>, edits: &HeaderEdits) -> Vec<HeaderRule> {
    let mut rules = Vec::new();
    let set = written(&scope.field("set"), &edits.set);
    let append = written(&scope.field("append"), &edits.append);
    let list = scope.field("remove");
    for (index, text) in edits.remove.iter().enumerate() {
        let scope = list.element(index);
        let Some(name) = header::name(&scope, text, Use::Edit) else { continue };
        if set.iter().chain(&append).any(|(other, _)| *other == name) {
            scope.problem(format!("`{name}` is set or appended, and removed"), "keep one of the two");
        }
        rules.push(HeaderRule::Remove(name));
    }
    let written = set.into_iter().map(|(name, value)| HeaderRule::Set(name, value));
    written.chain(append.into_iter().map(|(name, value)| HeaderRule::Append(name, value))).chain(rules).collect()
}

fn written(scope: &Scope<'_>, headers: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut written: Vec<(String, String)> = Vec::new();
    for (text, value) in headers {
        let scope = scope.field(text);
        let (name, value) = (header::name(&scope, text, Use::Edit), header::value(&scope, value));
        let (Some(name), Some(value)) = (name, value) else { continue };
        if written.iter().any(|(other, _)| *other == name) {
            scope.problem(
                format!("`{name}` appears twice"),
                "names of headers are compared without regard to case; keep one",
            );
        }
        written.push((name, value));
    }
    written
}
