//! Documents of the Gateway API: listeners of gateways, routes for gateways and for calls, and their
//! status.
//!
//! A document that its schema accepts is no error. A reference that leads nowhere, or a part that
//! gateways do not carry out, is a condition of the route, and a warning.

mod backend_tls;
mod backends;
mod certificates;
mod filters;
mod hosts;
mod listeners;
mod parents;
mod patterns;
mod ports;
mod rules;

pub(super) use self::backend_tls::backend_tls;
pub(super) use self::hosts::includes;

use self::backend_tls::BackendTls;
use self::backends::{BadReference, Grants, References};
use self::certificates::CertificateSource;
use self::parents::Parents;
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

/// The rules of a route that can be in force, and the faults of the others.
struct RuleSet {
    placed: PlacedRoute,
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
    let gateways = listeners::gateways(&documents.gateway_api, mesh, &stored, claims, problems, doubts);
    let mut written: Vec<WrittenRoute<'_>> =
        documents.gateway_api.iter().filter_map(|placed| WrittenRoute::of(placed)).collect();
    written.sort_by_key(|route| (route.namespace, route.name, route.kind == HttpRouteKind::Grpc));
    let mut parents = Parents::new(gateways, functions);
    let compiled: Vec<(WrittenRoute<'_>, [Option<RuleSet>; 2])> = written
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
            (route, [of_gateways, of_calls])
        })
        .collect();
    let mut attached: Vec<(BTreeMap<usize, ParentStatus>, bool)> = vec![Default::default(); compiled.len()];
    // GRPCRoutes win for calls, whatever their names are, so they are attached first.
    for of_grpc_calls in [true, false] {
        for ((route, rules), (statuses, in_force)) in compiled.iter().zip(&mut attached) {
            let is_wanted = |parent: &ParentReference| {
                of_grpc_calls == (route.kind == HttpRouteKind::Grpc && parent.group != GROUP)
            };
            *in_force |= route.attach(rules, &is_wanted, statuses, &mut parents, (&mut *claims, problems, doubts));
        }
    }
    let (mut statuses, mut placed, mut gateways) = (Vec::new(), Vec::new(), BTreeMap::new());
    for ((route, [of_gateways, of_calls]), (parents, in_force)) in compiled.into_iter().zip(attached) {
        route.has_parents(doubts);
        for id in of_gateways.iter().flat_map(|rules| &rules.secured) {
            let accepted = parents.values().filter(|parent| parent.is_accepted() && parent.parent_ref.group == GROUP);
            let names = accepted.map(|parent| (parent.parent_ref.namespace.clone(), parent.parent_ref.name.clone()));
            gateways.entry(id.clone()).or_insert_with(BTreeSet::new).extend(names);
        }
        statuses.push(route.status(parents.into_values().collect()));
        placed.extend(of_gateways.or(of_calls).map(|rules| PlacedRoute { in_force, ..rules.placed }));
    }
    statuses.extend(documents.gateway_api.iter().filter_map(|placed| without_effect(placed, doubts)));
    statuses
        .sort_by(|one, other| (&one.namespace, &one.name, one.kind).cmp(&(&other.namespace, &other.name, other.kind)));
    let attached: Vec<AttachedRoute> = std::mem::take(&mut parents.attached).into_values().collect();
    let routed = attached.iter().flat_map(|attached| attached.route.targets()).cloned().collect();
    let policies = backend_tls.statuses(&gateways);
    let (listeners, gateways) = parents.listeners();
    let gateway = GatewayRoutes { listeners, routes: attached };
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
        let references = References {
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
        let (mut rules, mut places, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
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
            let wrong: Vec<Problem> = found.take();
            match wrong.first() {
                None => {
                    rules.push(rule);
                    places.push(place.here());
                }
                Some(first) => {
                    dropped.push((index, first.message.clone()));
                    references.unresolved.borrow_mut().truncate(unresolved_before);
                }
            }
            doubts.borrow_mut().extend(wrong.into_iter().map(|problem| Problem {
                message: format!("the rule is not in force: {}", problem.message),
                ..problem
            }));
        }
        let (unresolved, secured) = (references.unresolved.into_inner(), references.secured.into_inner());
        doubts.borrow_mut().extend(unresolved.iter().map(|BadReference { problem, .. }| Problem {
            message: format!("{}: requests for it get status 500", problem.message),
            ..problem.clone()
        }));
        let name = format!("{}/{}", self.namespace, self.name);
        let route = HttpRoute { name, kind: self.kind, precedence: Precedence::MostSpecific, rules };
        RuleSet {
            placed: PlacedRoute { route, rules: places, origin: self.placed.origin, in_force: false },
            dropped,
            unresolved,
            secured,
        }
    }

    /// Attaches it to those of its parents that are wanted: Gateways, and functions whose calls follow
    /// it. Adds its status at each, and returns whether it is in force at any.
    fn attach(
        &self,
        [of_gateways, of_calls]: &[Option<RuleSet>; 2],
        is_wanted: &dyn Fn(&ParentReference) -> bool,
        statuses: &mut BTreeMap<usize, ParentStatus>,
        parents: &mut Parents<'a>,
        (claims, problems, doubts): (&mut Claims<'a>, &RefCell<Vec<Problem>>, &RefCell<Vec<Problem>>),
    ) -> bool {
        let root = self.placed.scope(problems);
        let spec = root.field("spec");
        let list = spec.field("parentRefs");
        let mut in_force = false;
        for (index, parent) in self.parents.iter().enumerate().filter(|(_, parent)| is_wanted(parent)) {
            let place = list.element(index);
            let Some(rules) = (if parent.group == GROUP { of_gateways } else { of_calls }) else { continue };
            let outcome = match rules.placed.route.rules.is_empty() && !rules.dropped.is_empty() {
                true => Some(Err(rules.invalid())),
                false => parents.attach(self, &rules.placed.route, parent, (&spec, &place), claims, doubts),
            };
            let Some(outcome) = outcome else { continue };
            let accepted = match outcome {
                Ok(is_in_force) => {
                    in_force |= is_in_force;
                    Condition::holds("Accepted", "Accepted")
                }
                Err(condition) => {
                    if !rules.placed.route.rules.is_empty() || rules.dropped.is_empty() {
                        place.doubt(doubts, format!("the route is not attached: {}", condition.message), "");
                    }
                    condition
                }
            };
            let partly = (accepted.status && !rules.dropped.is_empty()).then(|| rules.partly());
            let conditions = [accepted, rules.resolved()].into_iter().chain(partly).collect();
            let parent_ref = parents::name(parent, self.namespace);
            statuses.insert(index, ParentStatus { parent_ref, controller_name: CONTROLLER, conditions });
        }
        in_force
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

impl RuleSet {
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

/// The status of a route of a kind that gateways do not carry out.
fn without_effect(placed: &TypedDocument<Resource>, doubts: &RefCell<Vec<Problem>>) -> Option<RouteStatus> {
    let (parents, hostnames, message, fix) = match &placed.document {
        Resource::TLSRoute(route) => {
            let (message, fix) =
                ("gateways pass no TLS on", "write an HTTPRoute for a listener with `protocol: HTTPS`");
            (&route.spec.parent_refs[..], &route.spec.hostnames[..], message, fix)
        }
        Resource::TCPRoute(route) => {
            let (message, fix) =
                ("gateways serve HTTP only", "use `ports` of the function, for calls from other functions");
            (&route.spec.parent_refs[..], &[][..], message, fix)
        }
        _ => return None,
    };
    placed.scope(doubts).field("kind").problem(format!("the route has no effect: {message}"), fix);
    let metadata = placed.document.metadata();
    let parents = parents.iter().map(|parent| ParentStatus {
        parent_ref: parents::name(parent, &metadata.namespace),
        controller_name: CONTROLLER,
        conditions: vec![
            Condition::fails("Accepted", "NotAllowedByListeners", message),
            Condition::holds("ResolvedRefs", "ResolvedRefs"),
        ],
    });
    Some(RouteStatus {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        kind: placed.document.kind(),
        hostnames: hostnames.to_vec(),
        parents: parents.collect(),
    })
}
