//! Views of Gateways and routes: the conditions of their documents.

use crate::alerts::{Alert, Severity};
use arc_swap::ArcSwap;
use leno_config::{
    AncestorStatus, Condition, FaultStatus, GatewayStatus, ListenerStatus, ParentName, ParentStatus, PolicyStatus,
    RouteReport, RouteStatus, Timestamp,
};
use leno_wire::{ListenerFault, ListenerFaultKind};
use serde_json::{Value, json};
use std::sync::Arc;

/// The status of the Gateways and routes of the documents in force.
#[derive(Default)]
pub struct RouteViews(ArcSwap<RouteReport>);

impl RouteViews {
    /// Replaces the status, after a change of the documents.
    pub fn set(&self, report: &RouteReport) {
        self.0.store(Arc::new(report.clone()));
    }

    /// The rows of `leno get routes`, of the namespaces that a reader may know.
    pub fn routes(&self, is_known: impl Fn(&str) -> bool) -> Vec<Value> {
        let report = self.0.load();
        let known = report.routes.iter().filter(|route| is_known(&route.namespace));
        let routes = known.map(|status| route(status, &report.faults));
        let policies = report.policies.iter().filter(|policy| is_known(&policy.namespace)).map(policy);
        routes.chain(policies).collect()
    }

    /// The rows of `leno get gateways`, one for each listener. `faults`: listeners that nodes cannot
    /// serve, each with the node.
    pub fn gateways(&self, is_known: impl Fn(&str) -> bool, faults: &[(String, ListenerFault)]) -> Vec<Value> {
        let report = self.0.load();
        let known = report.gateways.iter().filter(|gateway| is_known(&gateway.namespace));
        let rows = known.flat_map(|gateway| {
            gateway.listeners.iter().map(|listener| {
                let mut listener = listener.clone();
                let name = format!("{}/{}/{}", gateway.namespace, gateway.name, listener.name);
                for (node, fault) in faults.iter().filter(|(_, fault)| fault.listener == name) {
                    add(&mut listener, node, fault);
                }
                listener_of(gateway, &listener)
            })
        });
        rows.collect()
    }

    /// Alerts about the faults in force.
    pub(crate) fn alerts(&self) -> Vec<Alert> {
        in_force(&self.0.load().faults).map(alert).collect()
    }
}

/// Adds a fault to the conditions of a listener.
fn add(listener: &mut ListenerStatus, node: &str, fault: &ListenerFault) {
    let message = format!("at the node {node}: {}", fault.reason);
    match fault.kind {
        // The node tries again.
        ListenerFaultKind::Port => listener.fail("Programmed", "Pending", message),
        ListenerFaultKind::Certificate => {
            listener.fail("ResolvedRefs", "InvalidCertificateRef", message.clone());
            listener.fail("Programmed", "Invalid", message);
        }
    }
}

fn in_force(faults: &[FaultStatus]) -> impl Iterator<Item = &FaultStatus> {
    let now = Timestamp::now();
    faults.iter().filter(move |fault| fault.is_in_force(now))
}

fn alert(fault: &FaultStatus) -> Alert {
    let FaultStatus { namespace, policy, name, routes, until } = fault;
    let (subject, routes) = (format!("Policy {namespace}/{policy}"), routes.join(", "));
    let text = format!("{name} injects faults into requests of {routes} until {until}");
    let alert = Alert::new(Severity::Info, "fault", subject, text, "it ends by itself; to end it now, remove it");
    Alert { namespace: Some(namespace.clone()), ..alert.about(name) }
}

fn route(route: &RouteStatus, faults: &[FaultStatus]) -> Value {
    let faults = in_force(faults).filter(|fault| fault.is_for(&route.namespace, &route.name));
    let faults: Vec<String> = faults.map(|fault| format!("{} until {}", fault.name, fault.until)).collect();
    let conditions = || route.parents.iter().flat_map(|parent| &parent.conditions);
    let accepted = route.parents.iter().filter(|parent| parent.is_accepted()).count();
    let reason = conditions().find(|condition| !condition.status || condition.name == "PartiallyInvalid");
    let state = match (accepted, reason) {
        (0, _) => "refused",
        (count, None) if count == route.parents.len() => "accepted",
        _ => "partly",
    };
    json!({
        "route": format!("{}/{}", route.namespace, route.name),
        "kind": route.kind,
        "hosts": route.hostnames,
        "parents": route.parents.iter().map(|ParentStatus { parent_ref, .. }| shown(parent_ref)).collect::<Vec<_>>(),
        "state": state,
        "reason": reason.map(in_words),
        "faults": faults,
        "status": route.parents,
    })
}

/// A policy for TLS to back ends, beside the routes that lead there.
fn policy(policy: &PolicyStatus) -> Value {
    let fault = |ancestor: &'_ AncestorStatus| ancestor.conditions.iter().find(|condition| !condition.status).cloned();
    let faults: Vec<Condition> = policy.ancestors.iter().filter_map(fault).collect();
    let state = match faults.len() {
        0 => "accepted",
        count if count == policy.ancestors.len() => "refused",
        _ => "partly",
    };
    json!({
        "route": format!("{}/{}", policy.namespace, policy.name),
        "kind": policy.kind,
        "hosts": [policy.hostname],
        "parents": policy.ancestors.iter().map(|ancestor| shown(&ancestor.ancestor_ref)).collect::<Vec<_>>(),
        "state": state,
        "reason": faults.first().map(in_words),
        "status": policy.ancestors,
    })
}

fn listener_of(gateway: &GatewayStatus, listener: &ListenerStatus) -> Value {
    let is_wrong =
        |condition: &&Condition| condition.status == (condition.name == "Conflicted") && !condition.message.is_empty();
    let of_gateway = gateway.conditions.iter().filter(|_| !listener.is_programmed());
    let reason = listener.conditions.iter().chain(of_gateway).find(is_wrong);
    json!({
        "gateway": format!("{}/{}", gateway.namespace, gateway.name),
        "listener": listener.name,
        "protocol": listener.protocol,
        "port": listener.port,
        "host": listener.hostname,
        "kinds": listener.supported_kinds,
        "routes": listener.attached_routes,
        "state": if listener.is_programmed() { "programmed" } else { "refused" },
        "reason": reason.map(in_words),
        "conditions": listener.conditions,
        "gateway_conditions": gateway.conditions,
    })
}

/// `PortUnavailable: port 80 is not …`
fn in_words(condition: &Condition) -> String {
    match &*condition.message {
        "" => condition.reason.to_owned(),
        message => format!("{}: {message}", condition.reason),
    }
}

/// `Gateway infra/web http:80`
fn shown(parent: &ParentName) -> String {
    let ParentName { kind, namespace, name, section_name, port, .. } = parent;
    let section = section_name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{kind} {namespace}/{name}{section}{port}")
}
