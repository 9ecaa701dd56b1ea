//! Which policies apply to which functions.

use super::cache::{Results, repeat};
use super::label;
use super::{Context, Documents, TypedDocument, fields, regex, template};
use crate::document;
use crate::problem::{Origin, Problem, Scope};
use crate::snapshot::{Function, Policy};
use leno_model::FunctionId;
use leno_model::Run;
use leno_policy::reserved::is_same;
use leno_policy::spec::{HeaderRule, Issuer};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Fills in the functions' policies, ordered by name, and reports policies that contradict each
/// other.
pub(super) fn attach(
    context: &Context<'_>,
    (documents, policies): (&Documents, &[Arc<Policy>]),
    functions: &mut BTreeMap<FunctionId, Function>,
    cache: &mut Results,
    problems: &RefCell<Vec<Problem>>,
) {
    let documents = &documents.policies[..];
    let mut order: Vec<usize> = (0..policies.len()).collect();
    order.sort_by_key(|index| (&policies[*index].name, &policies[*index].namespace));
    for index in order.into_iter().take_while(|_| !context.effort.is_over()) {
        let found;
        let selected = match cache.selected(&documents[index]) {
            Some((selected, doubts)) => {
                repeat(context.doubts, doubts);
                selected
            }
            None => {
                found = kept(context, &documents[index], functions, cache, problems);
                &found
            }
        };
        for id in selected {
            if let Some(function) = functions.get_mut(id) {
                function.policies.push(index);
            }
        }
    }
    regexes(documents, policies, functions, problems);
    separators(documents, policies, functions, problems);
    let mut reported = BTreeSet::new();
    for (id, function) in functions {
        for (position, second) in function.policies.iter().enumerate() {
            if context.effort.is_over() {
                return;
            }
            for claiming in &function.policies {
                let (claims, edits) = (&policies[*claiming], &policies[*second]);
                if let Some(name) = edited_claim(claims, edits)
                    && reported.insert((*claiming, *second, EDITED_CLAIM))
                {
                    let root = documents[*second].scope(problems);
                    let spec = root.field("spec");
                    let sidecar = spec.field("sidecar");
                    let claiming = shown(root.origin(), claims, edits);
                    let message = format!("`{name}` is made of a claim, by policy {claiming}");
                    let fix = "a claim is not to be overwritten; use another header";
                    sidecar.field("requestHeaders").problem(message, fix);
                }
            }
            for first in &function.policies[..position] {
                // Of documents that came in requests, the later one is reported.
                let is_request = documents[*first].origin == Origin::Request;
                let (first, second) = if is_request && first > second { (second, first) } else { (first, second) };
                let origin = documents[*second].origin;
                for (field, message, fix) in conflicts(id, &policies[*first], &policies[*second], origin) {
                    // Report the pair once, however many functions the two have in common.
                    if reported.insert((*first, *second, field)) {
                        let other = documents[*first].scope(problems).line();
                        let root = documents[*second].scope(problems);
                        let spec = root.field("spec");
                        let scope = if field.is_empty() { root } else { spec.field(field) };
                        let hidden = is_hidden(origin, &policies[*first], &policies[*second]);
                        let place = if hidden { String::new() } else { format!(" ({other})") };
                        scope.problem(format!("{message}{place}"), fix);
                    }
                }
            }
        }
    }
}

/// Reports a function whose regular expressions together are too large.
fn regexes(
    documents: &[Arc<TypedDocument<document::Policy>>],
    policies: &[Arc<Policy>],
    functions: &BTreeMap<FunctionId, Function>,
    problems: &RefCell<Vec<Problem>>,
) {
    let sizes: Vec<usize> = policies.iter().map(|policy| regex::size(policy)).collect();
    if sizes.iter().sum::<usize>() <= regex::LARGEST_TOTAL {
        return;
    }
    for (id, function) in functions {
        let mut total = 0;
        let over = |index: &&usize| {
            total += sizes[**index];
            total > regex::LARGEST_TOTAL
        };
        if let Some(index) = function.policies.iter().find(over) {
            let root = documents[*index].scope(problems);
            let message = format!("the regular expressions of function `{id}` are larger than 128 KiB together");
            root.field("spec").problem(message, "use fewer, or texts and templates instead");
        }
    }
}

/// Reports paths with encoded separators in policies whose functions all get normalised paths: they
/// can never match.
fn separators(
    documents: &[Arc<TypedDocument<document::Policy>>],
    policies: &[Arc<Policy>],
    functions: &BTreeMap<FunctionId, Function>,
    problems: &RefCell<Vec<Problem>>,
) {
    for (index, policy) in policies.iter().enumerate() {
        let rules = policy.authorization.iter().flat_map(|rule| &rule.to).map(|to| ("authorization", to));
        let limits = policy.rate_limits.iter().filter_map(|limit| limit.only.as_ref()).map(|only| ("rateLimits", only));
        let asks = policy.authorizers.iter().flat_map(|authorizer| &authorizer.only);
        let operations = rules.chain(limits).chain(asks.map(|only| ("externalAuthorization", only)));
        let mut found =
            operations.filter_map(|(field, operation)| Some((field, template::encoded_separator(&operation.paths)?)));
        let Some((field, path)) = found.next() else { continue };
        let mut its = functions.values().filter(|function| function.policies.contains(&index)).peekable();
        if its.peek().is_some() && its.all(|function| !function.as_received) {
            let root = documents[index].scope(problems);
            let message = format!("`{path}` has an encoded separator, and requests with such paths are refused");
            let fix = "give the function `paths: {send: asReceived}`, or remove the path";
            root.field("spec").field(field).problem(message, fix);
        }
    }
}

/// The functions that a policy names or selects, which are kept for the next compilation.
fn kept(
    context: &Context<'_>,
    placed: &Arc<TypedDocument<document::Policy>>,
    functions: &BTreeMap<FunctionId, Function>,
    cache: &mut Results,
    problems: &RefCell<Vec<Problem>>,
) -> BTreeSet<FunctionId> {
    context.begin_lookups();
    let before = context.doubts.borrow().len();
    let root = placed.scope(problems);
    let selected = selected(context, &root.field("spec"), &placed.document, functions);
    if problems.borrow().is_empty() {
        cache.keep_selected(placed, &selected, &context.doubts.borrow()[before..], context.lookups.take());
    }
    selected
}

/// The functions that a policy names or selects.
fn selected(
    context: &Context<'_>,
    scope: &Scope<'_>,
    document: &document::Policy,
    functions: &BTreeMap<FunctionId, Function>,
) -> BTreeSet<FunctionId> {
    let spec = &document.spec;
    let own = &document.metadata.namespace;
    let list = scope.field("functions");
    let mut selected = BTreeSet::new();
    for (index, name) in spec.functions.iter().enumerate() {
        let element = list.element(index);
        let Some(id) = fields::function_of_policy(context, &element, own, name) else { continue };
        if context.jobs.contains_key(&id)
            && let Some(section) = of_callees(spec)
        {
            let message = format!("`{id}` is a job: nobody calls it, so `{section}` says nothing about it");
            let fix = "remove it here; what a job may call is up to its `callees`, and to their policies";
            if fields::is_of_another_tenant(&element, own, &id) {
                element.doubt(context.doubts, message, fix);
            } else {
                element.problem(message, fix);
            }
        }
        if !selected.insert(id) {
            element.problem(format!("`{name}` is named twice"), "remove one of the two");
        }
    }
    let namespaces = scope.field("namespaces");
    let Some(labels) = &spec.selector else {
        if !spec.selector_expressions.is_empty() {
            let fix = "add `selector: {}`";
            scope.field("selectorExpressions").problem("there is no `selector` that they could narrow", fix);
        }
        // Faults are for routes: a policy with nothing else may be for no function.
        if spec.functions.is_empty() && !has_only_faults(spec) {
            scope.problem(
                "the policy is for no function",
                "add `functions: [name]`, or `selector: {}` for all functions of the namespace",
            );
        }
        if spec.namespaces.is_some() {
            namespaces.problem(
                "there is no `selector` that could look in namespaces",
                "add `selector: {}` for all functions there",
            );
        }
        return selected;
    };
    context.search_all();
    label::check(&scope.field("selectorExpressions"), &spec.selector_expressions);
    let selector = document::LabelSelector { labels: Some(labels), expressions: &spec.selector_expressions };
    let own = [own.clone()];
    let wanted = spec.namespaces.as_deref().unwrap_or(&own);
    for (index, name) in wanted.iter().enumerate() {
        if name != "*" {
            fields::label(&namespaces.element(index), name);
        }
    }
    let mut found = false;
    for (id, function) in wanted.iter().flat_map(|namespace| of_namespace(functions, namespace)) {
        if !matches!(function.run, Run::Egress(_)) && selector.holds(&function.labels) {
            found = true;
            selected.insert(id.clone());
        }
    }
    if !found && !context.incomplete {
        let fix =
            "labels are compared as they are written, in the namespaces of `namespaces` (without it: the policy's own)";
        let selector = scope.field("selector");
        if context.kubernetes || selector.origin() == Origin::Request && wanted != own {
            selector.doubt(context.doubts, "no function has these labels", fix);
        } else {
            selector.problem("no function has these labels", fix);
        }
    }
    selected
}

/// Whether the policy has faults, and no section that is for functions.
fn has_only_faults(spec: &document::PolicySpec) -> bool {
    let rest = document::PolicySpec { faults: Vec::new(), ..spec.clone() };
    !spec.faults.is_empty() && rest == document::PolicySpec::default()
}

/// A section of the policy that applies to callees only.
fn of_callees(spec: &document::PolicySpec) -> Option<&'static str> {
    let sections = [
        ("authentication", spec.authentication.is_some()),
        ("authorization", spec.authorization.is_some()),
        ("rateLimits", !spec.rate_limits.is_empty()),
        ("externalAuthorization", !spec.external_authorization.is_empty()),
        ("retry", spec.retry.is_some()),
        ("circuitBreaker", spec.circuit_breaker.is_some()),
    ];
    sections.into_iter().find_map(|(name, there)| there.then_some(name))
}

/// The functions of a namespace, or all functions (`*`).
fn of_namespace<'a>(
    functions: &'a BTreeMap<FunctionId, Function>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a FunctionId, &'a Function)> {
    let all = namespace == "*";
    // Names sort by namespace first, and none is empty.
    let first = FunctionId { namespace: if all { String::new() } else { namespace.to_owned() }, name: String::new() };
    functions.range(first..).take_while(move |(id, _)| all || id.namespace == namespace)
}

/// The name of that conflict in reports.
const EDITED_CLAIM: &str = "sidecar.requestHeaders";

/// A header to which one policy copies a claim, and which another policy (or the same one) edits.
fn edited_claim<'p>(claims: &Policy, edits: &'p Policy) -> Option<&'p str> {
    let names = edits.sidecar.iter().flat_map(|sidecar| &sidecar.rules.request_headers).map(|rule| match rule {
        HeaderRule::Set(name, _) | HeaderRule::Append(name, _) | HeaderRule::Remove(name) => name.as_str(),
    });
    let claimed = claims.authentication.iter().flat_map(|issuer| &issuer.claims_to_headers).map(|(_, name)| name);
    let claimed: Vec<&String> = claimed.collect();
    names.into_iter().find(|name| claimed.iter().any(|claimed| is_same(claimed.as_bytes(), name.as_bytes())))
}

/// An issuer for which the two policies read different claims as lists.
fn differently_spaced<'p>(first: &'p Policy, second: &Policy) -> Option<&'p str> {
    let differs = |one: &&Issuer| {
        let mut same = second.authentication.iter().filter(|other| other.issuer == one.issuer);
        same.any(|other| other.space_delimited_claims != one.space_delimited_claims)
    };
    first.authentication.iter().find(differs).map(|issuer| issuer.issuer.as_str())
}

/// Whether the owner of a policy must not learn the name of another one: requests come from
/// tenants, and the other policy is of another namespace.
fn is_hidden(origin: Origin, other: &Policy, of: &Policy) -> bool {
    origin == Origin::Request && other.namespace != of.namespace
}

/// The name of another policy as its owner may see it.
fn shown(origin: Origin, other: &Policy, of: &Policy) -> String {
    match is_hidden(origin, other, of) {
        true => "of another namespace".to_owned(),
        false => format!("`{}/{}`", other.namespace, other.name),
    }
}

/// Contradictions of two policies of one function: (field of the second, what, fix).
fn conflicts(id: &FunctionId, first: &Policy, second: &Policy, origin: Origin) -> Vec<(&'static str, String, String)> {
    let hidden = is_hidden(origin, first, second);
    let a = if hidden { "a policy of another namespace".to_owned() } else { shown(origin, first, second) };
    let b = format!("`{}/{}`", second.namespace, second.name);
    let mut conflicts = Vec::new();
    if first.name == second.name {
        let message = format!("{a} and {b} both apply to function `{id}`, and their rules would have the same names");
        conflicts.push(("", message, "rename one of the two".to_owned()));
    }
    if let Some(issuer) = differently_spaced(first, second) {
        let message = format!("{a} has other `spaceDelimitedClaims` for the issuer {issuer} of function `{id}`");
        conflicts.push(("authentication", message, "write the same in both: a claim is read in one way".to_owned()));
    }
    let both = [
        ("retry", first.retry.is_some() && second.retry.is_some()),
        ("circuitBreaker", first.breaker.is_some() && second.breaker.is_some()),
        ("tracing", first.tracing.is_some() && second.tracing.is_some()),
        ("accessLog", first.access_log.is_some() && second.access_log.is_some()),
        ("sidecar", first.sidecar.is_some() && second.sidecar.is_some()),
    ];
    for (field, _) in both.iter().filter(|(_, both)| *both) {
        let message = format!("{a} sets `{field}` for function `{id}` too");
        conflicts.push((field, message, format!("keep the section in one of {a} and {b}")));
    }
    conflicts
}
