//! `spec.traffic`, `spec.rollout` and `spec.revisionHistory` of a function.

use super::fields::{self, DAY, MILLISECOND};
use super::function::Sole;
use super::header::{self, Use};
use crate::document::{self, FunctionSpec, TrafficTarget};
use crate::duration::Duration;
use crate::nearest::{self, did_you_mean};
use crate::problem::Scope;
use leno_model::FunctionId;
use leno_model::revision::{self, Latency, Plan, TAG_HEADER, Target};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Reports fields that need two instances on one node.
pub(super) fn alone(scope: &Scope<'_>, sole: &Sole) {
    for field in ["traffic", "rollout"].into_iter().filter(|field| scope.has(field)) {
        let (cannot, fix) = sole.explain();
        scope.field(field).problem(format!("two revisions {cannot}"), fix);
    }
}

/// The plan, without the content of declared revisions.
pub(super) fn plan(scope: &Scope<'_>, id: &FunctionId, spec: &FunctionSpec) -> Plan {
    Plan {
        declared: Vec::new(),
        traffic: traffic(scope, id, spec),
        rollout: spec.rollout.as_ref().map(|written| rollout(&scope.field("rollout"), written)),
        history: history(&scope.field("revisionHistory"), spec.revision_history),
    }
}

fn history(scope: &Scope<'_>, kept: u32) -> u32 {
    const RANGE: RangeInclusive<u32> = 1..=1000;
    if !RANGE.contains(&kept) {
        scope.problem(format!("{kept} revisions"), format!("expected {} to {}", RANGE.start(), RANGE.end()));
    }
    kept
}

fn traffic(function: &Scope<'_>, id: &FunctionId, spec: &FunctionSpec) -> Vec<Target> {
    fields::not_written_empty(function, "traffic", &spec.traffic, "everything to the latest revision");
    let list = function.field("traffic");
    if let ([], [first, rest @ ..]) = (&spec.traffic[..], &spec.revisions[..]) {
        if !rest.is_empty() {
            let fix = format!("add `traffic: [{{revision: {}, percent: 100}}]`", first.name.escape_debug());
            function.field("revisions").problem("nothing says which of these gets requests", fix);
        }
        return vec![Target { name: Some(first.name.clone()), percent: 100, ..Target::default() }];
    }
    let mut targets: Vec<Target> = Vec::new();
    for (index, written) in spec.traffic.iter().enumerate() {
        let scope = list.element(index);
        let target = target(&scope, id, written, spec);
        for (first, other) in targets.iter().enumerate() {
            if target.tag.is_some() && other.tag == target.tag {
                let message = format!("element {first} has this tag too");
                scope.field("tag").problem(message, "give each its own tag");
            }
            if !target.headers.is_empty() && other.headers == target.headers {
                let message = format!("element {first} asks for the same headers, and is looked at first");
                scope.field("headers").problem(message, "remove one of the two");
            }
        }
        targets.push(target);
    }
    let sum: u32 = targets.iter().map(|target| u32::from(target.percent)).sum();
    let is_divided = spec.traffic.iter().any(|written| written.percent.is_some()) && spec.rollout.is_none();
    if sum != 100 && (is_divided || !spec.revisions.is_empty()) {
        list.problem(format!("the percentages add up to {sum}"), "expected 100");
    }
    targets
}

fn target(scope: &Scope<'_>, id: &FunctionId, written: &TrafficTarget, spec: &FunctionSpec) -> Target {
    if let Some(percent) = written.percent {
        let field = scope.field("percent");
        if percent > 100 {
            field.problem(format!("{percent} percent"), "expected 0 to 100");
        }
        if spec.rollout.is_some() && spec.revisions.is_empty() {
            field.problem("`rollout` decides about percentages", "remove `percent`, or `rollout`");
        }
    }
    if written.percent.is_none() && written.tag.is_none() && written.headers.is_empty() {
        scope.problem("nothing leads to this revision", "add `percent`, `tag` or `headers`, or remove the element");
    }
    if let Some(tag) = &written.tag {
        fields::label(&scope.field("tag"), tag);
    }
    let name = (!spec.revisions.is_empty()).then(|| name(scope, written, spec));
    Target {
        revision: if name.is_some() { 0 } else { number(scope, id, written) },
        name,
        percent: written.percent.unwrap_or(0),
        tag: written.tag.clone(),
        headers: headers(scope, &written.headers),
    }
}

/// The name of a declared revision.
fn name(scope: &Scope<'_>, written: &TrafficTarget, spec: &FunctionSpec) -> String {
    let known: Vec<&str> = spec.revisions.iter().map(|declared| &*declared.name).collect();
    match &written.revision {
        Some(name) if written.latest.is_some() => {
            scope.problem(format!("`{}` and `latest` are two things", name.escape_debug()), "remove `latest`");
        }
        Some(name) if !known.contains(&&**name) => {
            let message = format!("`{}` is none of the `revisions`", name.escape_debug());
            scope.field("revision").problem(message, did_you_mean(name, known.iter().copied()));
        }
        Some(_) => {}
        None => {
            let message = "with `revisions`, each element of `traffic` names one";
            scope.problem(message, format!("add `revision:` with one of {}", nearest::list(&known)));
        }
    }
    written.revision.clone().unwrap_or_default()
}

fn number(scope: &Scope<'_>, id: &FunctionId, written: &TrafficTarget) -> u32 {
    match (&written.revision, written.latest) {
        (None, Some(true)) => return 0,
        (Some(name), None) => {
            if let Some(number) = revision::number(id, name) {
                return number;
            }
            let fix = format!("expected a name such as `{}`: see `leno get revisions`", revision::name(id, 1));
            let message = format!("`{}` is no revision of this function", name.escape_debug());
            scope.field("revision").problem(message, fix);
        }
        (None, Some(false)) => {
            scope.field("latest").problem("`latest: false` says nothing", "name the `revision` instead");
        }
        (Some(_), Some(_)) => scope.problem("a revision and `latest` are two things", "keep one of the two"),
        (None, None) => {
            scope.problem("no revision is named", "add `latest: true`, or `revision:` with its name");
        }
    }
    0
}

fn headers(scope: &Scope<'_>, written: &BTreeMap<String, String>) -> Vec<(String, String)> {
    fields::not_written_empty(
        scope,
        "headers",
        &written.keys().collect::<Vec<_>>(),
        "that headers do not lead to this revision",
    );
    let list = scope.field("headers");
    let mut headers = Vec::new();
    for (name, value) in written {
        let field = list.field(name);
        let (Some(name), Some(value)) = (header::name(&field, name, Use::Read), header::value(&field, value)) else {
            continue;
        };
        if name == TAG_HEADER {
            field.problem("this header names tags", "use `tag`");
        }
        if headers.iter().any(|(other, _)| *other == name) {
            field.problem(format!("`{name}` is there twice"), "names differ in more than capital letters");
        }
        headers.push((name, value));
    }
    headers.sort();
    headers
}

fn rollout(scope: &Scope<'_>, written: &document::Rollout) -> revision::Rollout {
    let steps = scope.field("steps");
    fields::not_empty(&steps, &written.steps, "5, 25 and 50");
    let mut before = 0;
    for (index, step) in written.steps.iter().enumerate() {
        if !(1..=99).contains(step) {
            let fix = "expected 1 to 99; after the last step the revision gets everything";
            steps.element(index).problem(format!("a step of {step} percent"), fix);
        } else if *step <= before {
            steps.element(index).problem(format!("{step} is not more than {before}"), "steps rise");
        }
        before = before.max(*step);
    }
    let interval = fields::within(&scope.field("interval"), written.interval, Duration::from_secs(1), DAY);
    let rate = within(&scope.field("maxErrorRate"), written.max_error_rate, 0.0..=100.0);
    let latency = written.max_latency.map(|latency| {
        let scope = scope.field("maxLatency");
        let percentile = within(&scope.field("percentile"), latency.percentile, 1.0..=99.99);
        let limit = fields::within(&scope.field("limit"), latency.limit, MILLISECOND, DAY);
        Latency { limit, slow_share: (100.0 - percentile) / 100.0 }
    });
    revision::Rollout {
        steps: written.steps.clone(),
        interval,
        max_error_rate: rate / 100.0,
        latency,
        min_requests: written.min_requests.into(),
    }
}

fn within(scope: &Scope<'_>, value: f64, range: RangeInclusive<f64>) -> f64 {
    if !range.contains(&value) {
        scope.problem(format!("{value} percent"), format!("expected {} to {}", range.start(), range.end()));
    }
    value
}
