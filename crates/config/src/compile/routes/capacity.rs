//! Rules that are too much for the tables of nodes. The first routes by name have the room.

use super::{CompiledRoute, Parents, RuleSet};
use crate::effort::Effort;
use crate::problem::Problem;
use crate::snapshot::ScopedRoute;
use leno_model::{AttachedRoute, GatewayRoutes, HttpRoute, HttpRouteKind};
use leno_routing::{call_tables, excess, gateway_tables};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The name of a route, and whether it is a GRPCRoute.
type RouteKey = (String, bool);
/// Rules of routes by their places, each with the reason for which it does not fit.
type Excess = BTreeMap<RouteKey, BTreeMap<usize, String>>;

/// Takes all rules out of routes and parents that do not fit into a table: each node takes the rest.
pub(super) fn fit(
    routes: &mut [CompiledRoute<'_>],
    parents: &mut Parents<'_>,
    effort: &Effort,
    doubts: &RefCell<Vec<Problem>>,
) {
    // Fewer rules can need more automata, if these are divided elsewhere. Each round takes some away.
    while !effort.is_over() {
        let excess = at_gateways(parents, effort);
        if excess.is_empty() {
            break;
        }
        routes.iter_mut().filter_map(|route| route.of_gateways.as_mut()).for_each(|rules| take(rules, &excess, doubts));
        parents.attached.retain(|_, AttachedRoute { route, .. }| remains(route, &excess));
    }
    while !effort.is_over() {
        let excess = of_calls(parents, effort);
        if excess.is_empty() {
            break;
        }
        routes.iter_mut().filter_map(|route| route.of_calls.as_mut()).for_each(|rules| take(rules, &excess, doubts));
        let calls = parents.calls.values_mut();
        calls.for_each(|scoped| scoped.retain_mut(|scoped| remains(&mut scoped.route.route, &excess)));
    }
}

fn key(route: &HttpRoute) -> RouteKey {
    (route.name.clone(), route.kind == HttpRouteKind::Grpc)
}

fn take(rules: &mut RuleSet, excess: &Excess, doubts: &RefCell<Vec<Problem>>) {
    if let Some(excess) = excess.get(&key(&rules.placed.route)) {
        rules.drop(excess, doubts);
    }
}

/// Takes rules out of a route, and returns whether it has others.
fn remains(route: &mut HttpRoute, excess: &Excess) -> bool {
    for at in excess.get(&key(route)).into_iter().flat_map(|rules| rules.keys().rev()) {
        route.rules.remove(*at);
    }
    !route.rules.is_empty()
}

fn at_gateways(parents: &Parents<'_>, effort: &Effort) -> Excess {
    let routes = GatewayRoutes {
        streams: Vec::new(),
        listeners: parents.served(),
        routes: parents.attached.values().cloned().collect(),
    };
    let all: Vec<&HttpRoute> = routes.routes.iter().map(|attached| &attached.route).collect();
    // Many hosts have the same table.
    let tables: BTreeSet<Vec<usize>> = gateway_tables(&routes).into_values().collect();
    too_much(tables.into_iter().map(|table| table.into_iter().map(|at| all[at]).collect()), effort)
}

fn of_calls(parents: &Parents<'_>, effort: &Effort) -> Excess {
    let mut tables = Vec::new();
    for (callee, scoped) in &parents.calls {
        let views: BTreeSet<&Option<String>> = scoped.iter().map(|route| &route.consumers).collect();
        for view in views {
            let own: Vec<_> =
                scoped.iter().filter(|route| route.consumers == *view).map(|ScopedRoute { route, .. }| route).collect();
            let of_ports = call_tables(&callee.namespace, &own).into_values();
            tables.extend(of_ports.map(|table| table.into_iter().map(|at| &own[at].route).collect::<Vec<_>>()));
        }
    }
    too_much(tables.into_iter(), effort)
}

fn too_much<'r>(tables: impl Iterator<Item = Vec<&'r HttpRoute>>, effort: &Effort) -> Excess {
    let mut found = Excess::new();
    for table in tables.take_while(|_| !effort.is_over()) {
        for rule in excess(&table) {
            found.entry(key(table[rule.route])).or_default().entry(rule.rule).or_insert(rule.reason);
        }
    }
    found
}
