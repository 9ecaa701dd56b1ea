//! `spec.faults`, and the rules and functions that have them.

use super::header::{self, Use};
use super::{Context, Documents, TypedDocument, fields, text};
use crate::document::{self, FaultCondition};
use crate::duration::Duration;
use crate::nearest::nearest;
use crate::problem::{Problem, Scope};
use crate::route_status::FaultStatus;
use crate::snapshot::{FaultTarget, Function, Policy, PolicyFault};
use crate::timestamp::Timestamp;
use leno_gateway_api::Resource;
use leno_model::{Fault, FaultAbort, FieldValues, FunctionId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Faults of one policy, and of all policies of a namespace.
const MAX_FAULTS: usize = 16;
const MAX_OF_NAMESPACE: usize = 32;
/// Routes, conditions, and values of a condition. Each rule gets a copy of its faults.
const MAX_ROUTES: usize = 32;
const MAX_CONDITIONS: usize = 4;
const MAX_VALUES: usize = 8;
const LONGEST_VALUE: usize = 256;
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// The most time between the moment at which a document is applied and the end of its faults.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(86_400);
/// A fault may end this much later. Clocks of control planes differ, and a document that one of them
/// has accepted has to be valid for the others.
const CLOCK_SKEW: std::time::Duration = std::time::Duration::from_secs(300);

/// The faults of one policy.
pub(super) fn faults(
    context: &Context<'_>,
    list: &Scope<'_>,
    policy: &str,
    faults: &[document::Fault],
) -> Vec<PolicyFault> {
    fields::unique_names(list, faults.iter().map(|fault| Some(fault.name.as_str())));
    at_most(list, "faults", faults.len(), MAX_FAULTS);
    let now = Timestamp::now();
    let compile = |(index, one)| fault(context, &list.element(index), policy, (one, index), now);
    faults.iter().enumerate().map(compile).collect()
}

fn at_most(list: &Scope<'_>, what: &str, count: usize, most: usize) {
    if count > most {
        list.problem(format!("{count} {what} are many"), format!("expected at most {most}"));
    }
}

fn fault(
    context: &Context<'_>,
    scope: &Scope<'_>,
    policy: &str,
    (written, index): (&document::Fault, usize),
    now: Timestamp,
) -> PolicyFault {
    let document::Fault { name, routes, when, percent, delay, abort: answer, until } = written;
    if delay.is_none() && answer.is_none() {
        scope.problem("the fault does nothing", "add `delay` or `abort`");
    }
    let place = scope.field("until");
    let is_over = *until <= now;
    if *until > now.after(LONGEST + CLOCK_SKEW) {
        let fix = format!("expected at most {}; apply the document again to prolong it", now.after(LONGEST).seconds());
        place.problem("the fault would be in force for more than 24 hours", fix);
    } else if is_over {
        let message = format!("the fault has no effect: it has ended, at {until}");
        place.doubt(context.doubts, message, "remove the fault, or set a later time");
    }
    let longest = |delay: Duration| fields::within(&scope.field("delay"), delay, fields::MILLISECOND, LONGEST_DELAY);
    let fault = Fault {
        name: fields::rule_name(scope, policy, "faults", Some(name), index),
        when: conditions(&scope.field("when"), when),
        per_10k: fields::per_10k(&scope.field("percent"), *percent),
        delay: delay.map(longest).unwrap_or_default(),
        abort: answer.and_then(|answer| abort(&scope.field("abort"), answer)),
        until_ms: until.unix_ms(),
    };
    PolicyFault { fault, until: *until, is_over, targets: targets(&scope.field("routes"), routes) }
}

fn abort(scope: &Scope<'_>, written: document::FaultAbort) -> Option<FaultAbort> {
    match (written.status, written.grpc) {
        (Some(status @ 400..=599), None) => Some(FaultAbort::Status(status)),
        (Some(status), None) => {
            let message = format!("{status} is not the status of an error");
            scope.field("status").problem(message, "expected 400 to 599");
            None
        }
        (None, Some(status)) => Some(FaultAbort::Grpc(status.0)),
        (None, None) | (Some(_), Some(_)) => {
            scope.problem("an abort has one status", "expected either `status` or `grpc`");
            None
        }
    }
}

fn conditions(list: &Scope<'_>, conditions: &[FaultCondition]) -> Vec<FieldValues> {
    at_most(list, "conditions", conditions.len(), MAX_CONDITIONS);
    let compile = |(index, FaultCondition { header, values }): (usize, &FaultCondition)| {
        let scope = list.element(index);
        let place = scope.field("values");
        fields::not_empty(&place, values, "nothing: it is required");
        at_most(&place, "values", values.len(), MAX_VALUES);
        let value = |(index, value): (usize, &String)| {
            let place = place.element(index);
            if value.len() > LONGEST_VALUE {
                place.problem("the value is too long", format!("expected at most {LONGEST_VALUE} bytes"));
            }
            text::string(&place, value)
        };
        let values = values.iter().enumerate().filter_map(value).collect();
        Some(FieldValues { name: header::name(&scope.field("header"), header, Use::Read)?, values })
    };
    conditions.iter().enumerate().filter_map(compile).collect()
}

fn targets(list: &Scope<'_>, routes: &[String]) -> Vec<FaultTarget> {
    fields::not_empty(list, routes, "nothing: it is required");
    at_most(list, "routes", routes.len(), MAX_ROUTES);
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let parse = |(index, text)| {
        let text: &str = text;
        let place = list.element(index);
        if !seen.insert(text) {
            place.problem(format!("`{}` is named twice", text.escape_debug()), "remove one of the two");
        }
        let parsed = target(text);
        if parsed.is_none() {
            let fix = "expected `ROUTE` or `ROUTE/RULE`, of the policy's namespace";
            place.problem(format!("`{}` is neither a route nor a rule", text.escape_debug()), fix);
        }
        let (route, rule) = parsed?;
        Some(FaultTarget { route: route.to_owned(), rule: rule.map(str::to_owned), place: place.here() })
    };
    routes.iter().map(String::as_str).enumerate().filter_map(parse).collect()
}

/// `ROUTE` or `ROUTE/RULE`.
fn target(text: &str) -> Option<(&str, Option<&str>)> {
    let is_name = |name: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        !name.is_empty() && name.len() <= 253 && name.bytes().all(inner)
    };
    let (route, rule) = match text.split_once('/') {
        Some((route, rule)) => (route, Some(rule)),
        None => (text, None),
    };
    (is_name(route) && rule.is_none_or(is_name)).then_some((route, rule))
}

fn exposed(functions: &BTreeMap<FunctionId, Function>) -> impl Iterator<Item = &FunctionId> {
    functions.iter().filter(|(_, function)| !function.expose.is_empty()).map(|(id, _)| id)
}

/// The routes of a namespace, and its functions with `expose`.
fn names<'d>(documents: &'d Documents, functions: &'d BTreeMap<FunctionId, Function>, namespace: &str) -> Vec<&'d str> {
    let is_route = |document: &Resource| matches!(document, Resource::HTTPRoute(_) | Resource::GRPCRoute(_));
    let routes = documents.gateway_api.iter().map(|placed| &placed.document).filter(|document| is_route(document));
    let routes = routes.map(Resource::metadata).map(|metadata| (&*metadata.namespace, &*metadata.name));
    let all = routes.chain(exposed(functions).map(|id| (&*id.namespace, &*id.name)));
    all.filter(|(of, _)| *of == namespace).map(|(_, name)| name).collect()
}

/// The faults of all policies, by the namespaces and names of their routes.
pub(super) struct RouteFaults<'a> {
    by_route: BTreeMap<(&'a str, &'a str), Vec<RouteFault<'a>>>,
    policies: &'a [Arc<Policy>],
}

/// A fault and one of its routes.
struct RouteFault<'a> {
    fault: &'a PolicyFault,
    target: &'a FaultTarget,
    has_route: Cell<bool>,
    has_rule: Cell<bool>,
}

impl<'a> RouteFaults<'a> {
    /// Sorts the faults by the names of their policies. Reports namespaces with too many.
    pub(super) fn new(
        documents: &[Arc<TypedDocument<document::Policy>>],
        policies: &'a [Arc<Policy>],
        problems: &RefCell<Vec<Problem>>,
    ) -> Self {
        let mut order: Vec<usize> = (0..policies.len()).filter(|index| !policies[*index].faults.is_empty()).collect();
        order.sort_by_key(|index| (&policies[*index].namespace, &policies[*index].name));
        let (mut by_route, mut counts) = (BTreeMap::<_, Vec<RouteFault<'_>>>::new(), BTreeMap::new());
        for index in order {
            let Policy { namespace, faults, .. } = &*policies[index];
            let count = counts.entry(&**namespace).or_insert(0);
            if *count <= MAX_OF_NAMESPACE && *count + faults.len() > MAX_OF_NAMESPACE {
                let root = documents[index].scope(problems);
                let message =
                    format!("the policies of namespace `{namespace}` have more than {MAX_OF_NAMESPACE} faults");
                root.field("spec").field("faults").problem(message, "remove some of them");
            }
            *count += faults.len();
            for fault in faults {
                for target in &fault.targets {
                    let entry = by_route.entry((&**namespace, &*target.route)).or_default();
                    entry.push(RouteFault { fault, target, has_route: Cell::default(), has_rule: Cell::default() });
                }
            }
        }
        Self { by_route, policies }
    }

    /// The faults of a rule: its route, its index in the document, and its name, which may be empty.
    pub(super) fn of_rule(&self, route: (&str, &str), index: usize, name: &str) -> Vec<Fault> {
        let number = index.to_string();
        self.find(route, |rule| rule.is_none_or(|rule| rule == number || rule == name))
    }

    /// The faults of requests that come to functions by `expose`.
    pub(super) fn of_exposed(&self, functions: &BTreeMap<FunctionId, Function>) -> BTreeMap<FunctionId, Vec<Fault>> {
        let of = |id: &FunctionId| self.find((&id.namespace, &id.name), |rule| rule.is_none());
        let all = exposed(functions).map(|id| (id.clone(), of(id)));
        all.filter(|(_, faults)| !faults.is_empty()).collect()
    }

    fn find(&self, route: (&str, &str), is_meant: impl Fn(Option<&str>) -> bool) -> Vec<Fault> {
        let all = self.by_route.get(&route).map_or(&[][..], Vec::as_slice);
        let meant =
            all.iter().inspect(|one| one.has_route.set(true)).filter(|one| is_meant(one.target.rule.as_deref()));
        meant
            .inspect(|one| one.has_rule.set(true))
            .filter(|one| !one.fault.is_over)
            .map(|one| one.fault.fault.clone())
            .collect()
    }

    /// Reports faults of routes and rules that do not exist.
    pub(super) fn report_missing(
        &self,
        documents: &Documents,
        functions: &BTreeMap<FunctionId, Function>,
        doubts: &RefCell<Vec<Problem>>,
    ) {
        if documents.incomplete {
            return;
        }
        for ((namespace, route), all) in &self.by_route {
            for RouteFault { target, has_route, .. } in all.iter().filter(|one| !one.has_rule.get()) {
                let (message, fix) = match &target.rule {
                    Some(rule) if has_route.get() => {
                        let fix = "name a rule as `leno explain` does: by its name, or else by its index, from 0";
                        (format!("`{route}` has no rule `{rule}`"), fix.to_owned())
                    }
                    _ => {
                        let fix = match nearest(route, &names(documents, functions, namespace)) {
                            Some(name) => format!("did you mean `{name}`?"),
                            None => "name an HTTPRoute, a GRPCRoute, or a function with `expose`".to_owned(),
                        };
                        (format!("there is no route `{namespace}/{route}`"), fix)
                    }
                };
                let message = format!("the fault has no effect there: {message}");
                doubts.borrow_mut().push(Problem { message, fix, ..target.place.clone() });
            }
        }
    }

    /// The faults that are not over, by the names of their policies.
    pub(super) fn statuses(&self) -> Vec<FaultStatus> {
        let status = |policy: &Policy, PolicyFault { fault, until, targets, .. }: &PolicyFault| FaultStatus {
            namespace: policy.namespace.clone(),
            policy: policy.name.clone(),
            name: fault.name.clone(),
            routes: targets.iter().map(FaultTarget::to_string).collect(),
            until: *until,
        };
        let of = |policy: &'a Policy| {
            policy.faults.iter().filter(|fault| !fault.is_over).map(move |fault| status(policy, fault))
        };
        let mut statuses: Vec<FaultStatus> = self.policies.iter().map(|policy| &**policy).flat_map(of).collect();
        statuses.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        statuses
    }
}
