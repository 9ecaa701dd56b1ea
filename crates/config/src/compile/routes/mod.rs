//! Documents of the Gateway API: listeners of gateways, routes for gateways and for calls, and their
//! status.
//!
//! A document that its schema accepts is no error. A reference that leads nowhere, or a part that
//! gateways do not carry out, is a condition of the route, and a warning.

mod backend_tls;
mod backends;
mod capacity;
mod certificates;
mod external_auth;
mod filters;
mod hosts;
mod listeners;
mod parents;
mod patterns;
mod ports;
mod rules;
mod streams;

pub(super) use self::backend_tls::backend_tls;
pub(super) use self::hosts::includes;

use self::backend_tls::BackendTls;
use self::backends::{BadReference, Grants, References};
use self::certificates::CertificateSource;
use self::parents::Parents;
use self::streams::StreamSources;
use super::faults::RouteFaults;
use super::hosts::Claims;
use super::{Documents, TypedDocument};
use crate::problem::{Origin, Problem};
use crate::route_status::{CONTROLLER, Condition, ParentStatus, RouteReport, RouteStatus, kind_name};
use crate::secrets::SecretSet;
use crate::snapshot::{Function, Routes};
use leno_gateway_api::{
    GROUP, GRPCRouteRule, GatewayDefaultScope, HTTPRouteRule, ParentReference, ReferenceGrant, Resource,
};
use leno_model::{AttachedRoute, FunctionId, GatewayRoutes, HttpRoute, HttpRouteKind, MeshConfig, Precedence};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A route as a document writes it.
struct WrittenRoute<'a> {
    placed: &'a TypedDocument<Resource>,
    namespace: &'a str,
    name: &'a str,
    kind: HttpRouteKind,
    parents: &'a [ParentReference],
    hostnames: &'a [String],
    rules: WrittenRules<'a>,
}

#[derive(Clone, Copy)]
enum WrittenRules<'a> {
    Http(&'a [HTTPRouteRule]),
    Grpc(&'a [GRPCRouteRule]),
}

/// A compiled route, and the places of its rules.
pub(super) struct PlacedRoute {
    pub route: HttpRoute,
    /// The place of each rule: a problem without text.
    pub rules: Vec<Problem>,
    pub origin: Origin,
    /// It is in force at a gateway or for calls.
    pub in_force: bool,
}

/// A route with its rules at gateways and for calls.
struct CompiledRoute<'a> {
    written: WrittenRoute<'a>,
    of_gateways: Option<RuleSet>,
    of_calls: Option<RuleSet>,
    /// The outcome at each of its parents, by its place: whether the route is in force there, or the
    /// condition of a parent that does not accept it.
    outcomes: BTreeMap<usize, Result<bool, Condition>>,
}

/// The rules of a route that can be in force, and the faults of the others.
struct RuleSet {
    placed: PlacedRoute,
    /// The number of each rule in the document.
    numbers: Vec<usize>,
    /// Rules that are not in force: a number and a reason.
    dropped: Vec<(usize, String)>,
    unresolved: Vec<BadReference>,
    /// Back ends that have a policy for TLS.
    secured: BTreeSet<FunctionId>,
}

/// Compiles all documents of the Gateway API. Reports hosts that a namespace may not have.
pub(super) fn routes<'a>(
    documents: &'a Documents,
    mesh: &MeshConfig,
    (functions, secrets, backend_tls, faults): (
        &'a BTreeMap<FunctionId, Function>,
        &SecretSet,
        BackendTls,
        &RouteFaults<'_>,
    ),
    claims: &mut Claims<'a>,
    problems: &RefCell<Vec<Problem>>,
    doubts: &RefCell<Vec<Problem>>,
) -> (Routes, Vec<PlacedRoute>) {
    let mut grants = Grants::default();
    for placed in &documents.gateway_api {
        if let Resource::ReferenceGrant(ReferenceGrant { metadata, spec }) = &placed.document {
            grants.add(&metadata.namespace, spec);
        }
    }
    let are_known = !(documents.incomplete || documents.unstored && documents.stored.is_none());
    let stored = CertificateSource { secrets, are_known, grants: &grants };
    let gateways =
        listeners::gateways(&documents.gateway_api, &documents.namespaces, mesh, &stored, claims, problems, doubts);
    let sources = StreamSources { gateways: &gateways, functions, grants: &grants, backend_tls: &backend_tls };
    let mut streams = streams::attach(&documents.gateway_api, &sources, claims, problems, doubts);
    let stream_listeners = streams.listeners(&gateways);
    let mut written: Vec<WrittenRoute<'_>> =
        documents.gateway_api.iter().filter_map(|placed| WrittenRoute::of(placed)).collect();
    written.sort_by_key(|route| (route.namespace, route.name, route.kind == HttpRouteKind::Grpc));
    let mut parents = Parents::new(gateways, functions);
    let mut compiled: Vec<CompiledRoute<'_>> = written
        .into_iter()
        .take_while(|_| !documents.effort.is_over())
        .map(|route| {
            let (for_gateways, for_calls): (Vec<_>, Vec<_>) =
                route.parents.iter().partition(|parent| parent.group == GROUP);
            let for_calls = !for_calls.is_empty();
            let targets = (functions, &backend_tls, faults);
            let of_calls = for_calls.then(|| route.rules(targets, None, doubts));
            let of_gateways =
                (!for_calls || !for_gateways.is_empty()).then(|| route.rules(targets, Some(&grants), doubts));
            CompiledRoute { written: route, of_gateways, of_calls, outcomes: BTreeMap::new() }
        })
        .collect();
    // GRPCRoutes win for calls, whatever their names are, so they are attached first.
    for of_grpc_calls in [true, false] {
        for route in &mut compiled {
            let is_grpc = route.written.kind == HttpRouteKind::Grpc;
            let is_wanted = |parent: &ParentReference| of_grpc_calls == (is_grpc && parent.group != GROUP);
            route.attach(&is_wanted, &mut parents, (&mut *claims, problems, doubts));
        }
    }
    capacity::fit(&mut compiled, &mut parents, &documents.effort, doubts);
    let (mut statuses, mut placed, mut gateways) = (Vec::new(), Vec::new(), BTreeMap::new());
    for route in compiled {
        route.written.has_parents(doubts);
        let (parents, in_force) = route.parents();
        let CompiledRoute { written, of_gateways, of_calls, .. } = route;
        for id in of_gateways.iter().flat_map(|rules| &rules.secured) {
            let accepted = parents.iter().filter(|parent| parent.is_accepted() && parent.parent_ref.group == GROUP);
            let names = accepted.map(|parent| (parent.parent_ref.namespace.clone(), parent.parent_ref.name.clone()));
            gateways.entry(id.clone()).or_insert_with(BTreeSet::new).extend(names);
        }
        statuses.push(written.status(parents));
        placed.extend(of_gateways.or(of_calls).map(|rules| PlacedRoute { in_force, ..rules.placed }));
    }
    statuses.append(&mut streams.statuses);
    statuses
        .sort_by(|one, other| (&one.namespace, &one.name, one.kind).cmp(&(&other.namespace, &other.name, other.kind)));
    let attached: Vec<AttachedRoute> = std::mem::take(&mut parents.attached).into_values().collect();
    let mut routed: BTreeSet<FunctionId> =
        attached.iter().flat_map(|attached| attached.route.targets()).cloned().collect();
    routed.append(&mut streams.targets);
    let policies = backend_tls.statuses(&gateways);
    let (listeners, gateways) = parents.listeners(&streams);
    let gateway = GatewayRoutes { listeners, routes: attached, streams: stream_listeners };
    let calls = parents.calls;
    let report = RouteReport { gateways, routes: statuses, policies, faults: Vec::new() };
    (Routes { gateway, routed, calls, faults: BTreeMap::new(), report }, placed)
}

impl<'a> WrittenRoute<'a> {
    fn of(placed: &'a TypedDocument<Resource>) -> Option<Self> {
        let (kind, parents, hostnames, rules) = match &placed.document {
            Resource::HTTPRoute(route) => {
                let spec = &route.spec;
                (HttpRouteKind::Http, &spec.parent_refs, &spec.hostnames, WrittenRules::Http(&spec.rules))
            }
            Resource::GRPCRoute(route) => {
                let spec = &route.spec;
                (HttpRouteKind::Grpc, &spec.parent_refs, &spec.hostnames, WrittenRules::Grpc(&spec.rules))
            }
            _ => return None,
        };
        let metadata = placed.document.metadata();
        Some(Self { placed, namespace: &metadata.namespace, name: &metadata.name, kind, parents, hostnames, rules })
    }

    /// Compiles its rules. `grants`: `None` for calls.
    fn rules(
        &self,
        (functions, backend_tls, faults): (&BTreeMap<FunctionId, Function>, &BackendTls, &RouteFaults<'_>),
        grants: Option<&Grants<'_>>,
        doubts: &RefCell<Vec<Problem>>,
    ) -> RuleSet {
        let name = format!("{}/{}", self.namespace, self.name);
        let references = References {
            route: &name,
            functions,
            backend_tls,
            grants,
            namespace: self.namespace,
            kind: self.kind,
            unresolved: RefCell::default(),
            secured: RefCell::default(),
        };
        let found = RefCell::default();
        let root = self.placed.scope(&found);
        let spec = root.field("spec");
        let list = spec.field("rules");
        let (mut rules, mut numbers, mut places, mut dropped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let count = match self.rules {
            WrittenRules::Http(rules) => rules.len(),
            WrittenRules::Grpc(rules) => rules.len(),
        };
        for index in 0..count {
            let place = list.element(index);
            let unresolved_before = references.unresolved.borrow().len();
            let mut rule = match self.rules {
                WrittenRules::Http(rules) => rules::http(&references, &place, &rules[index]),
                WrittenRules::Grpc(rules) => rules::grpc(&references, &place, &rules[index]),
            };
            rule.faults = faults.of_rule((self.namespace, self.name), index, &rule.name);
            // Without the rules that are dropped, its place would be another number.
            if rule.name.is_empty() {
                rule.name = index.to_string();
            }
            let wrong: Vec<Problem> = found.take();
            match wrong.first() {
                None => {
                    rules.push(rule);
                    numbers.push(index);
                    places.push(place.here());
                }
                Some(first) => {
                    dropped.push((index, first.message.clone()));
                    references.unresolved.borrow_mut().truncate(unresolved_before);
                }
            }
            doubts.borrow_mut().extend(wrong.into_iter().map(not_in_force));
        }
        let (unresolved, secured) = (references.unresolved.into_inner(), references.secured.into_inner());
        doubts.borrow_mut().extend(unresolved.iter().map(|BadReference { problem, .. }| Problem {
            message: format!("{}: requests for it get status 500", problem.message),
            ..problem.clone()
        }));
        let route = HttpRoute { name, kind: self.kind, precedence: Precedence::MostSpecific, rules };
        RuleSet {
            placed: PlacedRoute { route, rules: places, origin: self.placed.origin, in_force: false },
            numbers,
            dropped,
            unresolved,
            secured,
        }
    }

    /// Reports a route without parents.
    fn has_parents(&self, doubts: &RefCell<Vec<Problem>>) {
        let root = self.placed.scope(doubts);
        let spec = root.field("spec");
        let defaults = match &self.placed.document {
            Resource::HTTPRoute(route) => route.spec.use_default_gateways,
            Resource::GRPCRoute(route) => route.spec.use_default_gateways,
            _ => None,
        };
        if defaults == Some(GatewayDefaultScope::All) {
            let message = "there are no default Gateways here";
            spec.field("useDefaultGateways").problem(message, "name a Gateway in `parentRefs`");
        } else if self.parents.is_empty() {
            spec.problem("the route has no effect: it has no parent", "name a Gateway or a function in `parentRefs`");
        }
    }

    fn status(&self, parents: Vec<ParentStatus>) -> RouteStatus {
        RouteStatus {
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            kind: kind_name(self.kind),
            hostnames: self.hostnames.to_vec(),
            parents,
        }
    }
}

impl<'a> CompiledRoute<'a> {
    /// Attaches it to those of its parents that are wanted: Gateways, and functions whose calls follow
    /// it.
    fn attach(
        &mut self,
        is_wanted: &dyn Fn(&ParentReference) -> bool,
        parents: &mut Parents<'a>,
        (claims, problems, doubts): (&mut Claims<'a>, &RefCell<Vec<Problem>>, &RefCell<Vec<Problem>>),
    ) {
        let root = self.written.placed.scope(problems);
        let spec = root.field("spec");
        let list = spec.field("parentRefs");
        for (index, parent) in self.written.parents.iter().enumerate().filter(|(_, parent)| is_wanted(parent)) {
            let place = list.element(index);
            let Some(rules) = self.rules_at(parent) else { continue };
            let outcome = match rules.is_invalid() {
                true => Some(Ok(false)),
                false => {
                    let route = &rules.placed.route;
                    parents.attach(&self.written, route, parent, (&spec, &place), claims, doubts)
                }
            };
            if let Some(Err(condition)) = &outcome {
                place.doubt(doubts, format!("the route is not attached: {}", condition.message), "");
            }
            self.outcomes.extend(outcome.map(|outcome| (index, outcome)));
        }
    }

    fn rules_at(&self, parent: &ParentReference) -> Option<&RuleSet> {
        if parent.group == GROUP { self.of_gateways.as_ref() } else { self.of_calls.as_ref() }
    }

    /// Its status at each parent, and whether it is in force at any.
    fn parents(&self) -> (Vec<ParentStatus>, bool) {
        let (mut statuses, mut in_force) = (Vec::new(), false);
        for (index, outcome) in &self.outcomes {
            let parent = &self.written.parents[*index];
            let Some(rules) = self.rules_at(parent) else { continue };
            let accepted = match outcome {
                _ if rules.is_invalid() => rules.invalid(),
                Ok(is_in_force) => {
                    in_force |= is_in_force;
                    Condition::holds("Accepted", "Accepted")
                }
                Err(condition) => condition.clone(),
            };
            let partly = (accepted.status && !rules.dropped.is_empty()).then(|| rules.partly());
            let conditions = [accepted, rules.resolved()].into_iter().chain(partly).collect();
            let parent_ref = parents::name(parent, self.written.namespace);
            statuses.push(ParentStatus { parent_ref, controller_name: CONTROLLER, conditions });
        }
        (statuses, in_force)
    }
}

/// The problem of a rule that is dropped.
fn not_in_force(problem: Problem) -> Problem {
    Problem { message: format!("the rule is not in force: {}", problem.message), ..problem }
}

impl RuleSet {
    /// Whether it has rules, and none can be in force.
    fn is_invalid(&self) -> bool {
        self.placed.route.rules.is_empty() && !self.dropped.is_empty()
    }

    /// Drops rules that are too much, and reports them. `excess`: their places and the reasons.
    fn drop(&mut self, excess: &BTreeMap<usize, String>, doubts: &RefCell<Vec<Problem>>) {
        for (at, reason) in excess.iter().rev() {
            self.placed.route.rules.remove(*at);
            let fix = "use fewer regular expressions with `.*` in the middle at one host".to_owned();
            let problem = Problem { message: reason.clone(), fix, ..self.placed.rules.remove(*at) };
            doubts.borrow_mut().push(not_in_force(problem));
            self.dropped.push((self.numbers.remove(*at), reason.clone()));
        }
        self.dropped.sort();
    }

    /// The condition of a route without a rule that can be in force.
    fn invalid(&self) -> Condition {
        Condition::fails("Accepted", "UnsupportedValue", self.reasons("Rule"))
    }

    fn partly(&self) -> Condition {
        Condition { message: self.reasons("Dropped Rule"), ..Condition::holds("PartiallyInvalid", "UnsupportedValue") }
    }

    /// The first of its rules that are not in force, with reasons.
    fn reasons(&self, word: &str) -> String {
        let all: Vec<String> =
            self.dropped.iter().take(3).map(|(index, reason)| format!("{word} {index}: {reason}")).collect();
        let rest = self.dropped.len() - all.len();
        let rest = if rest == 0 { String::new() } else { format!("; and {rest} others") };
        format!("{}{rest}", all.join("; "))
    }

    fn resolved(&self) -> Condition {
        match self.unresolved.first() {
            None => Condition::holds("ResolvedRefs", "ResolvedRefs"),
            Some(BadReference { reason, problem }) => {
                Condition::fails("ResolvedRefs", reason, format!("{}: {}", problem.field, problem.message))
            }
        }
    }
}
