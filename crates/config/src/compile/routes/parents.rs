//! Parents of routes: Gateways, and functions whose calls follow a route.

use super::WrittenRoute;
use super::backends::LENO;
use super::hosts::{common, overlap};
use super::listeners::{Gateways, Listener};
use super::streams::Streams;
use crate::compile::hosts::Claims;
use crate::host;
use crate::problem::{Problem, Scope};
use crate::route_status::{Condition, GatewayStatus, ParentName, kind_name};
use crate::snapshot::{Function, ScopedRoute};
use leno_gateway_api::{GROUP, ParentReference};
use leno_model::{AttachedRoute, Attachment, CallRoute, FunctionId, HttpRoute, HttpRouteKind, RouteListener, Run};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// All parents, and the routes that are attached to them.
pub(super) struct Parents<'a> {
    gateways: Gateways<'a>,
    functions: &'a BTreeMap<FunctionId, Function>,
    at_listeners: BTreeMap<String, ListenerRoutes>,
    /// Routes that are in force at listeners, by name and whether they are GRPCRoutes.
    pub attached: BTreeMap<(String, bool), AttachedRoute>,
    pub calls: BTreeMap<FunctionId, Vec<ScopedRoute>>,
}

/// The accepted routes of a listener.
#[derive(Default)]
struct ListenerRoutes {
    count: usize,
    /// The hosts of HTTPRoutes, and those of GRPCRoutes.
    hosts: [BTreeSet<String>; 2],
}

/// A route and one of its parents.
struct Reference<'r, 'a> {
    route: &'r WrittenRoute<'a>,
    compiled: &'r HttpRoute,
    parent: &'a ParentReference,
}

/// A parent, with the defaults filled in.
pub(super) fn name(parent: &ParentReference, namespace: &str) -> ParentName {
    let ParentReference { group, kind, name, namespace: written, port, section_name } = parent;
    ParentName {
        group: group.clone(),
        kind: kind.clone(),
        namespace: written.clone().unwrap_or_else(|| namespace.to_owned()),
        name: name.clone(),
        section_name: section_name.clone(),
        port: *port,
    }
}

fn no_parent(message: impl Into<String>) -> Condition {
    Condition::fails("Accepted", "NoMatchingParent", message)
}

fn conflicted(message: &str) -> Condition {
    Condition::fails("Accepted", "Conflicted", message)
}

impl<'a> Parents<'a> {
    pub(super) fn new(gateways: Gateways<'a>, functions: &'a BTreeMap<FunctionId, Function>) -> Self {
        let (at_listeners, attached, calls) = Default::default();
        Self { gateways, functions, at_listeners, attached, calls }
    }

    /// Attaches a route to a parent, and returns whether it is in force there; `None`: the parent is
    /// another implementation's. `places`: those of the spec and of the parent.
    ///
    /// # Errors
    /// The parent does not accept the route.
    pub(super) fn attach(
        &mut self,
        route: &WrittenRoute<'a>,
        compiled: &HttpRoute,
        parent: &'a ParentReference,
        places: (&Scope<'_>, &Scope<'_>),
        claims: &mut Claims<'a>,
        doubts: &RefCell<Vec<Problem>>,
    ) -> Option<Result<bool, Condition>> {
        let namespace = parent.namespace.as_deref().unwrap_or(route.namespace);
        let reference = Reference { route, compiled, parent };
        match (&*parent.group, &*parent.kind) {
            (GROUP, "Gateway") if self.gateways.others.contains(&(namespace, &*parent.name)) => {
                let message = "the Gateway is another implementation's: the route is not attached here";
                places.1.doubt(doubts, message, "name a Gateway of the class `leno`");
                None
            }
            (GROUP, "Gateway") => Some(self.attach_to_gateway(&reference, namespace, places, claims, doubts)),
            ("", "Service") | (LENO, "Function" | "External") => {
                if !route.hostnames.is_empty() && route.parents.iter().all(|parent| parent.group != GROUP) {
                    let message = "calls of functions do not follow hostnames";
                    places.0.field("hostnames").doubt(doubts, message, "remove them");
                }
                Some(self.attach_to_callee(&reference, namespace))
            }
            (group, kind) => {
                let group = if group.is_empty() { String::new() } else { format!("{}/", group.escape_debug()) };
                Some(Err(no_parent(format!("`{group}{}` cannot be a parent", kind.escape_debug()))))
            }
        }
    }

    fn attach_to_gateway(
        &mut self,
        Reference { route, compiled, parent }: &Reference<'_, 'a>,
        namespace: &'a str,
        (spec, place): (&Scope<'_>, &Scope<'_>),
        claims: &mut Claims<'a>,
        doubts: &RefCell<Vec<Problem>>,
    ) -> Result<bool, Condition> {
        let shown = format!("{}/{}", namespace.escape_debug(), parent.name.escape_debug());
        let Some(listeners) = self.gateways.listeners.get(&(namespace, &*parent.name)) else {
            return Err(no_parent(format!("there is no Gateway `{shown}`")));
        };
        let is_named = |listener: &&Listener<'_>| {
            parent.section_name.as_deref().is_none_or(|name| name == listener.section)
                && parent.port.is_none_or(|port| port == listener.model.port)
        };
        let named: Vec<&Listener<'_>> = listeners.iter().filter(is_named).collect();
        if named.is_empty() {
            return Err(no_parent(format!("the Gateway `{shown}` has no listener of this name and port")));
        }
        let admits = |listener: &&&Listener<'_>| {
            listener.kinds.contains(&kind_name(route.kind)) && self.gateways.admit(listener, namespace, route.namespace)
        };
        let admitting: Vec<&Listener<'_>> = named.iter().filter(admits).copied().collect();
        if admitting.is_empty() {
            let message = format!("`allowedRoutes` of the Gateway `{shown}` does not admit its namespace and kind");
            return Err(Condition::fails("Accepted", "NotAllowedByListeners", message));
        }
        let hostnames: Vec<String> = route.hostnames.iter().filter_map(|written| host::pattern(written)).collect();
        let with_hosts = |listener: &&'_ Listener<'_>| {
            let hosts = common(listener.model.host.as_deref(), &hostnames);
            (!hosts.is_empty()).then(|| (listener.model.name.clone(), listener.programmed, hosts))
        };
        let serving: Vec<(String, bool, Vec<String>)> = admitting.iter().filter_map(with_hosts).collect();
        if serving.is_empty() {
            let message = format!("no listener of the Gateway `{shown}` serves one of its hostnames");
            return Err(Condition::fails("Accepted", "NoMatchingListenerHostname", message));
        }
        let (mut accepted, mut in_force) = (false, false);
        for (listener, programmed, hosts) in serving {
            let there = self.at_listeners.entry(listener.clone()).or_default();
            // Rules of the two kinds are not merged: one route has the host.
            let own = usize::from(route.kind == HttpRouteKind::Grpc);
            if overlap(&there.hosts[1 - own], &hosts) {
                continue;
            }
            accepted = true;
            there.count += 1;
            there.hosts[own].extend(hosts.iter().cloned());
            if !programmed {
                continue;
            }
            let list = spec.field("hostnames");
            let mut permitted = true;
            for host in &hosts {
                let written = hostnames.iter().position(|written| written == host);
                let element = written.map(|index| list.element(index));
                let at = element.as_ref().unwrap_or(spec);
                if let Err(refusal) = claims.claim_for_route([namespace, route.namespace], host, || at.line()) {
                    refusal.report(at, host);
                    permitted = false;
                }
            }
            if permitted && !compiled.rules.is_empty() {
                in_force = true;
                let key = (compiled.name.clone(), route.kind == HttpRouteKind::Grpc);
                let new = || AttachedRoute { route: (*compiled).clone(), attachments: Vec::new() };
                let attachments = &mut self.attached.entry(key).or_insert_with(new).attachments;
                if attachments.iter().all(|attachment| attachment.listener != listener) {
                    attachments.push(Attachment { listener, hosts });
                }
            }
        }
        if !accepted {
            return Err(conflicted(
                "a route of the other kind, whose name comes first, has one of its hostnames at each listener",
            ));
        }
        if !in_force {
            place.doubt(doubts, format!("the route has no effect: no listener of `{shown}` is in force for it"), "");
        }
        Ok(in_force)
    }

    fn attach_to_callee(
        &mut self,
        Reference { route, compiled, parent }: &Reference<'_, 'a>,
        namespace: &str,
    ) -> Result<bool, Condition> {
        let shown = format!("{}/{}", namespace.escape_debug(), parent.name.escape_debug());
        let id = FunctionId::new(namespace, &parent.name).ok();
        let found = id.and_then(|id| self.functions.get_key_value(&id));
        let is_of_kind = |run: &Run| match (&*parent.kind, run) {
            (_, Run::Job(_)) | ("Function", Run::Egress(_)) => false,
            ("External", run) => matches!(run, Run::Egress(_)),
            _ => true,
        };
        let Some((id, function)) = found.filter(|(_, function)| is_of_kind(&function.run)) else {
            return Err(no_parent(format!("there is no function or External `{shown}`")));
        };
        if parent.section_name.is_some() {
            return Err(no_parent("ports of functions have no names: write `port` in place of `sectionName`"));
        }
        if let Some(port) = parent.port.filter(|port| function.run.other_ports().iter().any(|it| it.number == *port)) {
            return Err(no_parent(format!("`{shown}` does not serve HTTP at its port {port}")));
        }
        let consumers = (namespace != route.namespace).then(|| route.namespace.to_owned());
        let there = self.calls.entry(id.clone()).or_default();
        let excludes = |other: &ScopedRoute| {
            let same_port = other.route.port.is_none() || parent.port.is_none() || other.route.port == parent.port;
            other.consumers == consumers && other.route.route.kind != route.kind && same_port
        };
        if there.iter().any(excludes) {
            return Err(conflicted("a GRPCRoute has this parent, and comes before HTTPRoutes"));
        }
        if compiled.rules.is_empty() {
            return Ok(false);
        }
        there.push(ScopedRoute { consumers, route: CallRoute { route: (*compiled).clone(), port: parent.port } });
        Ok(true)
    }

    /// The listeners for HTTP that gateways serve.
    pub(super) fn served(&self) -> Vec<RouteListener> {
        let is_served = |listener: &&Listener<'_>| listener.programmed && listener.stream.is_none();
        let all = self.gateways.listeners.values().flatten().filter(is_served);
        let mut listeners: Vec<RouteListener> = all.map(|listener| listener.model.clone()).collect();
        listeners.sort_by(|one, other| one.name.cmp(&other.name));
        listeners
    }

    /// The listeners for HTTP that gateways serve, and the status of all. `streams`: routes of the
    /// others.
    pub(super) fn listeners(&mut self, streams: &Streams) -> (Vec<RouteListener>, Vec<GatewayStatus>) {
        let listeners = self.served();
        let mut gateways = std::mem::take(&mut self.gateways.statuses);
        for GatewayStatus { namespace, name, listeners, .. } in &mut gateways {
            for listener in listeners {
                let id = format!("{namespace}/{name}/{}", listener.name);
                let routes = self.at_listeners.get(&id).map_or(0, |routes| routes.count);
                listener.attached_routes = routes + streams.count(&id);
            }
        }
        (listeners, gateways)
    }
}
