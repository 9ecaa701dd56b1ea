//! The tables of nodes: the routes that share one, and the rules that do not fit into it.

use crate::entry::Entry;
use crate::table::RouteTable;
use leno_model::{CallRoute, GatewayRoutes, HttpRoute, Precedence, RouteMatch};
use leno_policy::host::of_document;
use std::collections::{BTreeMap, BTreeSet};

/// The requests for which a gateway has one table: those of a listener at one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewaySite {
    /// Port of the listener.
    pub port: u16,
    /// Hosts of the listener, in the form of [`host_pattern`].
    pub listener: String,
    /// Hosts of the routes, in the same form.
    pub host: String,
}

/// The form in which hosts of listeners and routes are compared: `shop.example`, `*.example` or
/// `*`. The compiler writes this form; an older control plane may not.
pub fn host_pattern(host: &str) -> String {
    let whole = |host: &str| of_document(host).unwrap_or_else(|| host.to_ascii_lowercase());
    host.strip_prefix("*.").map_or_else(|| whole(host), |name| format!("*.{}", whole(name)))
}

/// The tables of a gateway: the routes of each by their places, in their order. Listeners with the
/// same port and hosts share tables.
pub fn gateway_tables(routes: &GatewayRoutes) -> BTreeMap<GatewaySite, Vec<usize>> {
    let listeners: BTreeMap<&str, (u16, String)> = routes
        .listeners
        .iter()
        .map(|it| (&*it.name, (it.port, host_pattern(it.host.as_deref().unwrap_or("*")))))
        .collect();
    let mut tables: BTreeMap<GatewaySite, Vec<usize>> = BTreeMap::new();
    for (place, attached) in routes.routes.iter().enumerate() {
        for attachment in &attached.attachments {
            let Some((port, listener)) = listeners.get(&*attachment.listener) else { continue };
            for host in &attachment.hosts {
                let site = GatewaySite { port: *port, listener: listener.clone(), host: host_pattern(host) };
                let places = tables.entry(site).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
        }
    }
    tables
}

/// The tables of a caller's calls to one callee: for each port that routes name, and for all others
/// (`None`). Routes of another namespace than the callee's, which are for the callers of that
/// namespace, take the place of all others.
pub fn call_tables(callee_namespace: &str, routes: &[&CallRoute]) -> BTreeMap<Option<u16>, Vec<usize>> {
    let ports: BTreeSet<Option<u16>> = routes.iter().map(|call| call.port).chain([None]).collect();
    let is_consumers =
        |place: &usize| routes[*place].route.name.split_once('/').is_none_or(|(name, _)| name != callee_namespace);
    let of_port = |port: Option<u16>| {
        let mut places: Vec<usize> =
            (0..routes.len()).filter(|place| routes[*place].port.is_none() || routes[*place].port == port).collect();
        let consumers = places.iter().any(is_consumers);
        places.retain(|place| is_consumers(place) == consumers);
        (!places.is_empty()).then_some((port, places))
    };
    ports.into_iter().filter_map(of_port).collect()
}

/// A rule that does not fit into a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcessRule {
    /// Place of its route.
    pub route: usize,
    /// Its place in the route.
    pub rule: usize,
    /// Why.
    pub reason: String,
}

/// Rules of one table that are too much for it, if [`RouteTable::new`] would refuse it. Those of
/// first routes come first. Without them the table may still be refused: then the rest has more.
/// Each pattern alone is good: [`crate::check_path`], [`crate::check_regex`].
pub fn excess(routes: &[&HttpRoute]) -> Vec<ExcessRule> {
    let mut excess = Vec::new();
    for precedence in [Precedence::First, Precedence::MostSpecific] {
        let of_order = routes.iter().enumerate().filter(|(_, route)| route.precedence == precedence);
        let rules = of_order
            .flat_map(|(at, route)| route.rules.iter().enumerate().map(move |(rule, spec)| ((at, rule), *route, spec)));
        let entries = rules.flat_map(|(value, HttpRoute { name, kind, .. }, spec)| {
            let entry =
                move |pattern: &RouteMatch| Entry { route: name.clone(), kind: *kind, pattern: pattern.clone(), value };
            spec.matches.iter().map(entry)
        });
        for ((route, rule), reason) in RouteTable::excess(precedence, entries) {
            excess.push(ExcessRule { route, rule, reason });
        }
    }
    excess
}

#[cfg(test)]
mod tests;
