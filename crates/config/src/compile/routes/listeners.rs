//! Gateways and their listeners.

use super::super::TypedDocument;
use super::super::hosts::Claims;
use super::certificates::{CERTIFICATES, CertificateSource};
use super::hosts::narrower;
use super::ports::Ports;
use crate::host;
use crate::namespace_object::NamespaceObject;
use crate::problem::{Problem, Scope};
use crate::route_status::{CONTROLLER, Condition, GatewayStatus, ListenerStatus};
use leno_gateway_api::{
    GROUP, Gateway, GatewayDefaultScope, GatewaySpec, LabelSelector, Resource, RouteFromNamespaces, TLSModeType,
};
use leno_model::{MeshConfig, RouteListener, StreamTls};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The class of Gateways that needs no document.
const CLASS: &str = "leno";
/// The label that each namespace has, with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A listener, as routes are attached to it.
pub(super) struct Listener<'a> {
    pub model: RouteListener,
    /// Its name in the Gateway.
    pub section: &'a str,
    /// It takes connections without HTTP, with this TLS; `None`: it takes HTTP.
    pub stream: Option<Option<StreamTls>>,
    /// The kinds of routes that it takes.
    pub kinds: Vec<&'static str>,
    from: RouteFromNamespaces,
    selector: Option<&'a LabelSelector>,
    /// A gateway of this mesh serves it.
    pub programmed: bool,
}

/// The Gateways of this mesh's classes, by namespace and name.
#[derive(Default)]
pub(super) struct Gateways<'a> {
    pub listeners: BTreeMap<(&'a str, &'a str), Vec<Listener<'a>>>,
    pub statuses: Vec<GatewayStatus>,
    /// Gateways of other implementations.
    pub others: BTreeSet<(&'a str, &'a str)>,
    /// The labels of namespaces, which only their Namespace objects give them.
    labels: BTreeMap<&'a str, &'a BTreeMap<String, String>>,
}

impl Gateways<'_> {
    /// Whether a listener of a Gateway in the namespace `own` takes routes of a namespace.
    pub(super) fn admit(&self, listener: &Listener<'_>, own: &str, namespace: &str) -> bool {
        match (listener.from, listener.selector) {
            (RouteFromNamespaces::All, _) => true,
            (RouteFromNamespaces::Same, _) => own == namespace,
            (RouteFromNamespaces::Selector, Some(selector)) => {
                selects(selector, namespace, self.labels.get(namespace).copied())
            }
            (RouteFromNamespaces::Selector, None) => false,
        }
    }
}

/// Whether a selector of namespaces selects this one. A namespace has the label with its name, and
/// those of its Namespace object.
fn selects(selector: &LabelSelector, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value_of = |key: &str| match key {
        NAME_LABEL => Some(namespace),
        key => labels?.get(key).map(String::as_str),
    };
    selector.match_labels.iter().all(|(key, value)| value_of(key) == Some(value))
        && selector.match_expressions.iter().all(|wanted| {
            let value = value_of(&wanted.key);
            let is_listed = || wanted.values.iter().any(|listed| Some(&**listed) == value);
            match &*wanted.operator {
                "In" => is_listed(),
                "NotIn" => !is_listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Checks all Gateways. Reports hosts that their namespaces may not have; everything else that is
/// wrong is a condition, and a doubt.
pub(super) fn gateways<'a>(
    documents: &'a [Arc<TypedDocument<Resource>>],
    namespaces: &'a [Arc<TypedDocument<NamespaceObject>>],
    mesh: &MeshConfig,
    stored: &CertificateSource<'_>,
    claims: &mut Claims<'a>,
    problems: &RefCell<Vec<Problem>>,
    doubts: &RefCell<Vec<Problem>>,
) -> Gateways<'a> {
    let mut ports = Ports::new(mesh);
    let classes: BTreeSet<&str> = documents.iter().filter_map(|placed| class(&placed.document)).collect();
    let mut gateways = Gateways::default();
    for placed in namespaces {
        let NamespaceObject { name, labels } = &placed.document;
        if gateways.labels.insert(name, labels).is_some() {
            let message = format!("there is another Namespace `{name}`");
            placed.scope(problems).field("metadata").field("name").problem(message, "keep one of the two");
        }
    }
    let is_gateway = |placed: &&Arc<TypedDocument<Resource>>| matches!(placed.document, Resource::Gateway(_));
    let mut sorted: Vec<&Arc<TypedDocument<Resource>>> = documents.iter().filter(is_gateway).collect();
    sorted.sort_by_key(|placed| (&placed.document.metadata().namespace, &placed.document.metadata().name));
    for placed in sorted {
        let Resource::Gateway(Gateway { metadata, spec }) = &placed.document else { continue };
        let id = (&*metadata.namespace, &*metadata.name);
        let root = placed.scope(problems);
        if spec.gateway_class_name != CLASS && !classes.contains(&*spec.gateway_class_name) {
            let class = spec.gateway_class_name.escape_debug();
            let message = format!("the class `{class}` is another implementation's: this Gateway has no effect here");
            let fix = format!("write `{CLASS}`, or add a GatewayClass with `controllerName: {CONTROLLER}`");
            root.field("spec").field("gatewayClassName").doubt(doubts, message, fix);
            gateways.others.insert(id);
            continue;
        }
        let scope = root.field("spec");
        let wrong = unsupported(&scope, spec, doubts);
        let list = scope.field("listeners");
        let conflicts = conflicts(spec);
        let (mut listeners, mut statuses) = (Vec::new(), Vec::new());
        for (index, listener) in spec.listeners.iter().enumerate() {
            let place = list.element(index);
            let host = listener.hostname.as_deref().filter(|host| !host.is_empty()).and_then(host::pattern);
            if let Some(host) = &host
                && let Err(refusal) = claims.claim_for_listener(&metadata.namespace, host, || place.line())
            {
                refusal.report(&place.field("hostname"), host);
            }
            let kinds = kinds(listener);
            let gateway = format!("{}/{}", metadata.namespace, metadata.name);
            let keeps = conflicts[index].is_none() && wrong.is_none();
            let socket = accepted(listener).and_then(|()| ports.take(&gateway, listener, keeps));
            let opened = *socket.as_ref().unwrap_or(&false);
            let stream = stream(listener);
            let certificates = match &*listener.protocol {
                "TLS" if stream == Some(Some(StreamTls::Terminate)) => {
                    stored.of(&metadata.namespace, listener.tls.as_ref(), mesh)
                }
                "HTTPS" => stored.of(&metadata.namespace, listener.tls.as_ref(), mesh),
                _ => Ok(Vec::new()),
            };
            let [refused, unresolved] = [socket.err(), certificates.as_ref().err().cloned()];
            let conditions = conditions(refused, unresolved, conflicts[index], wrong.is_some(), kinds.1);
            let is_wrong = |condition: &&Condition| {
                condition.status == (condition.name == "Conflicted") && !condition.message.is_empty()
            };
            for condition in conditions.iter().filter(is_wrong) {
                let message = format!("the listener `{}`: {}", listener.name, condition.message);
                place.doubt(doubts, message, fix_of(condition, &ports));
            }
            let overlapping = overlapping(spec, index).map(|other| Condition {
                status: true,
                ..Condition::fails(
                    "OverlappingTLSConfig",
                    "OverlappingHostnames",
                    format!("the listener `{other}` of the same port serves some of its hosts"),
                )
            });
            let status = ListenerStatus {
                name: listener.name.clone(),
                port: listener.port,
                protocol: listener.protocol.clone(),
                hostname: listener.hostname.clone(),
                supported_kinds: kinds.0.clone(),
                attached_routes: 0,
                conditions: conditions.into_iter().chain(overlapping).collect(),
            };
            let model = RouteListener {
                name: format!("{gateway}/{}", listener.name),
                port: listener.port,
                tls: listener.protocol == "HTTPS",
                host,
                opened,
                certificates: certificates.unwrap_or_default(),
            };
            listeners.push(Listener {
                model,
                section: &listener.name,
                stream,
                kinds: kinds.0,
                from: listener.allowed_routes.namespaces.from,
                selector: listener.allowed_routes.namespaces.selector.as_ref(),
                programmed: status.is_programmed(),
            });
            statuses.push(status);
        }
        gateways.statuses.push(status(id, wrong, statuses));
        gateways.listeners.insert(id, listeners);
    }
    gateways
}

/// The name of a class of this mesh.
fn class(resource: &Resource) -> Option<&str> {
    match resource {
        Resource::GatewayClass(class) if class.spec.controller_name == CONTROLLER => Some(&class.metadata.name),
        _ => None,
    }
}

/// Why a Gateway as a whole is not accepted. Parts without effect are doubts.
fn unsupported(scope: &Scope<'_>, spec: &GatewaySpec, doubts: &RefCell<Vec<Problem>>) -> Option<Condition> {
    let tls = scope.field("tls");
    let infrastructure = scope.field("infrastructure");
    let (parameters, described) = match &spec.infrastructure {
        Some(it) => (it.parameters_ref.is_some(), !it.labels.is_empty() || !it.annotations.is_empty()),
        None => (false, false),
    };
    if described {
        let message = "labels and annotations have no effect: a Gateway makes no objects here";
        infrastructure.doubt(doubts, message, "remove them");
    }
    if let Some(allowed) = &spec.allowed_listeners
        && allowed.namespaces.from != leno_gateway_api::FromNamespaces::None
    {
        scope.field("allowedListeners").doubt(doubts, "there are no ListenerSets here", "add `listeners` instead");
    }
    let frontend = spec.tls.as_ref().is_some_and(|tls| tls.frontend.is_some());
    let backend = spec.tls.as_ref().is_some_and(|tls| tls.backend.is_some());
    let found = [
        (
            !spec.addresses.is_empty(),
            scope.field("addresses"),
            ("UnsupportedAddress", "addresses are those of `gateway` of the Mesh document"),
        ),
        (
            parameters,
            infrastructure.field("parametersRef"),
            ("InvalidParameters", "a Gateway has no parameters: its settings are those of the Mesh document"),
        ),
        (frontend, tls.field("frontend"), ("Invalid", "gateways do not ask clients for certificates")),
        (backend, tls.field("backend"), ("Invalid", "gateways prove their SPIFFE ID to functions")),
        (
            spec.default_scope == Some(GatewayDefaultScope::All),
            scope.field("defaultScope"),
            ("Invalid", "there are no default Gateways here: routes name their Gateway in `parentRefs`"),
        ),
    ];
    let (_, place, (reason, message)) = found.into_iter().find(|(is_there, ..)| *is_there)?;
    place.doubt(doubts, format!("the Gateway is not accepted: {message}"), "remove the field");
    Some(Condition::fails("Accepted", reason, message))
}

/// For each listener, whether another one of the Gateway excludes it: another protocol at its port, or
/// the same host.
fn conflicts(spec: &GatewaySpec) -> Vec<Option<&'static str>> {
    let of = |one: &leno_gateway_api::Listener, other: &leno_gateway_api::Listener| match () {
        () if one.port != other.port || one.name == other.name => None,
        () if one.protocol != other.protocol => Some("ProtocolConflict"),
        () if one.hostname == other.hostname => Some("HostnameConflict"),
        () => None,
    };
    spec.listeners.iter().map(|one| spec.listeners.iter().find_map(|other| of(one, other))).collect()
}

/// Another listener with TLS at the same port that serves some of a listener's hosts.
fn overlapping(spec: &GatewaySpec, index: usize) -> Option<&str> {
    let listener = spec.listeners.get(index).filter(|listener| matches!(&*listener.protocol, "HTTPS" | "TLS"))?;
    let host = |listener: &leno_gateway_api::Listener| listener.hostname.clone().unwrap_or_else(|| "*".to_owned());
    let overlaps = |other: &&leno_gateway_api::Listener| {
        other.protocol == listener.protocol
            && other.port == listener.port
            && other.name != listener.name
            && narrower(&host(listener), &host(other)).is_some()
    };
    spec.listeners.iter().find(overlaps).map(|other| &*other.name)
}

/// The kinds of routes that a listener takes, and whether it names others.
fn kinds(listener: &leno_gateway_api::Listener) -> (Vec<&'static str>, bool) {
    let served = match &*listener.protocol {
        "HTTP" | "HTTPS" => &["HTTPRoute", "GRPCRoute"][..],
        "TLS" => &["TLSRoute"],
        "TCP" => &["TCPRoute"],
        _ => &[],
    };
    let named = &listener.allowed_routes.kinds;
    if named.is_empty() {
        return (served.to_vec(), false);
    }
    let known = |kind: &&'static str| named.iter().any(|named| named.group == GROUP && named.kind == *kind);
    let found: Vec<&'static str> = served.iter().copied().filter(known).collect();
    let others = named.iter().any(|named| named.group != GROUP || !served.contains(&&*named.kind));
    (found, others)
}

/// The TLS of a listener for connections without HTTP; `None`: it takes HTTP.
fn stream(listener: &leno_gateway_api::Listener) -> Option<Option<StreamTls>> {
    match (&*listener.protocol, &listener.tls) {
        ("TCP", _) => Some(None),
        ("TLS", Some(tls)) if tls.mode == TLSModeType::Passthrough => Some(Some(StreamTls::Passthrough)),
        ("TLS", _) => Some(Some(StreamTls::Terminate)),
        _ => None,
    }
}

fn conditions(
    refused: Option<Condition>,
    unresolved: Option<Condition>,
    conflict: Option<&'static str>,
    is_refused: bool,
    has_other_kinds: bool,
) -> Vec<Condition> {
    let accepted = refused.unwrap_or_else(|| Condition::holds("Accepted", "Accepted"));
    let resolved = match unresolved {
        Some(condition) => condition,
        None if has_other_kinds => {
            let message = "`allowedRoutes` names kinds of routes that the listener cannot take";
            Condition::fails("ResolvedRefs", "InvalidRouteKinds", message)
        }
        None => Condition::holds("ResolvedRefs", "ResolvedRefs"),
    };
    let conflicted = match conflict {
        Some(reason) => {
            let message = "another listener of the port has the same host, or another protocol".to_owned();
            Condition { name: "Conflicted", status: true, reason, message }
        }
        None => Condition::fails("Conflicted", "NoConflicts", ""),
    };
    let usable = resolved.status || resolved.reason == "InvalidRouteKinds";
    let programmed = match accepted.status && usable && conflict.is_none() && !is_refused {
        true => Condition::holds("Programmed", "Programmed"),
        false => Condition::fails("Programmed", "Invalid", ""),
    };
    vec![accepted, conflicted, resolved, programmed]
}

/// Checks that gateways serve the listener's protocol and all its fields.
fn accepted(listener: &leno_gateway_api::Listener) -> Result<(), Condition> {
    if !matches!(&*listener.protocol, "HTTP" | "HTTPS" | "TLS" | "TCP") {
        let message = format!("gateways do not serve `{}`", listener.protocol.escape_debug());
        return Err(Condition::fails("Accepted", "UnsupportedProtocol", message));
    }
    if let Some(tls) = &listener.tls {
        let known = |(key, value): (&String, &String)| key == CERTIFICATES && value == "mesh";
        if let Some((key, value)) = tls.options.iter().find(|option| !known(*option)) {
            let message = format!("there is no TLS option `{}: {}`", key.escape_debug(), value.escape_debug());
            return Err(Condition::fails("Accepted", "UnsupportedValue", message));
        }
    }
    Ok(())
}

fn fix_of(condition: &Condition, ports: &Ports<'_>) -> String {
    match condition.reason {
        "PortUnavailable" => ports.fix(),
        "UnsupportedProtocol" => "expected `HTTP`, `HTTPS`, `TLS` or `TCP`".to_owned(),
        "InvalidCertificateRef" => format!(
            "name a StoredSecret with `tls.crt` and `tls.key` in `certificateRefs`, or write \
             `tls: {{options: {{{CERTIFICATES}: mesh}}}}` and the files into `gateway.https`"
        ),
        "RefNotPermitted" => "add a ReferenceGrant there, with `kind: Gateway` and this namespace in `from`".to_owned(),
        "UnsupportedValue" => format!("expected `{CERTIFICATES}: mesh`"),
        _ => String::new(),
    }
}

/// The status of a Gateway.
fn status((namespace, name): (&str, &str), wrong: Option<Condition>, listeners: Vec<ListenerStatus>) -> GatewayStatus {
    let programmed = listeners.iter().filter(|listener| listener.is_programmed()).count();
    let invalid: Vec<&str> =
        listeners.iter().filter(|listener| !listener.is_programmed()).map(|listener| &*listener.name).collect();
    let refused = wrong.is_some();
    let accepted = match wrong {
        Some(condition) => condition,
        None if invalid.is_empty() => Condition::holds("Accepted", "Accepted"),
        None => Condition {
            status: programmed > 0,
            ..Condition::fails("Accepted", "ListenersNotValid", format!("not in force: {}", invalid.join(", ")))
        },
    };
    let in_force = match !refused && programmed > 0 {
        true => Condition::holds("Programmed", "Programmed"),
        false => Condition::fails("Programmed", "Invalid", "no listener is in force"),
    };
    let resolves = |listener: &ListenerStatus| {
        listener.conditions.iter().all(|condition| condition.name != "ResolvedRefs" || condition.status)
    };
    let resolved = match listeners.iter().all(resolves) {
        true => Condition::holds("ResolvedRefs", "ResolvedRefs"),
        false => {
            Condition::fails("ResolvedRefs", "ListenersNotResolved", "a listener has references that lead nowhere")
        }
    };
    GatewayStatus {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        conditions: vec![accepted, in_force, resolved],
        listeners,
    }
}
