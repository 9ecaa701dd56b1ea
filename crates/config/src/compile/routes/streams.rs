//! TLSRoutes and TCPRoutes: routes of connections without HTTP requests, and their status.

use super::backend_tls::BackendTls;
use super::backends::{Grants, LENO};
use super::hosts::common;
use super::listeners::{Gateways, Listener};
use super::parents;
use crate::compile::TypedDocument;
use crate::compile::hosts::Claims;
use crate::host;
use crate::problem::{Problem, Scope};
use crate::route_status::{CONTROLLER, Condition, ParentStatus, RouteStatus};
use crate::snapshot::Function;
use leno_gateway_api::{BackendRef, GROUP, ParentReference, Resource};
use leno_model::{FunctionId, PortProtocol, Run, StreamBackend, StreamListener, StreamRoute, StreamTls};
use leno_policy::spec::Cidr;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What TLSRoutes and TCPRoutes refer to.
pub(super) struct StreamSources<'s, 'a> {
    pub gateways: &'s Gateways<'a>,
    pub functions: &'s BTreeMap<FunctionId, Function>,
    pub grants: &'s Grants<'a>,
    pub backend_tls: &'s BackendTls,
}

/// The attached routes, and the status of all.
#[derive(Default)]
pub(super) struct Streams {
    /// By listener.
    routes: BTreeMap<String, Vec<StreamRoute>>,
    pub statuses: Vec<RouteStatus>,
    /// The functions and Externals to which they lead.
    pub targets: BTreeSet<FunctionId>,
}

/// A route as a document writes it.
struct WrittenStream<'a> {
    placed: &'a TypedDocument<Resource>,
    namespace: &'a str,
    name: &'a str,
    kind: &'static str,
    parents: &'a [ParentReference],
    hostnames: &'a [String],
    /// The back ends of each rule.
    rules: Vec<&'a [BackendRef]>,
}

impl<'a> WrittenStream<'a> {
    fn of(placed: &'a TypedDocument<Resource>) -> Option<Self> {
        let (parents, hostnames, rules) = match &placed.document {
            Resource::TLSRoute(route) => {
                let rules = route.spec.rules.iter().map(|rule| &*rule.backend_refs).collect();
                (&*route.spec.parent_refs, &*route.spec.hostnames, rules)
            }
            Resource::TCPRoute(route) => {
                let rules = route.spec.rules.iter().map(|rule| &*rule.backend_refs).collect();
                (&*route.spec.parent_refs, &[][..], rules)
            }
            _ => return None,
        };
        let (metadata, kind) = (placed.document.metadata(), placed.document.kind());
        Some(Self { placed, namespace: &metadata.namespace, name: &metadata.name, kind, parents, hostnames, rules })
    }
}

/// Attaches all TLSRoutes and TCPRoutes. Reports hosts that a namespace may not have.
pub(super) fn attach<'a>(
    documents: &'a [Arc<TypedDocument<Resource>>],
    sources: &StreamSources<'_, 'a>,
    claims: &mut Claims<'a>,
    problems: &RefCell<Vec<Problem>>,
    doubts: &RefCell<Vec<Problem>>,
) -> Streams {
    let mut written: Vec<WrittenStream<'_>> = documents.iter().filter_map(|placed| WrittenStream::of(placed)).collect();
    written.sort_by_key(|route| (route.namespace, route.name, route.kind));
    let mut streams = Streams::default();
    for route in written {
        let root = route.placed.scope(problems);
        let spec = root.field("spec");
        let (backends, unresolved) = sources.backends(&route, &spec, doubts);
        if route.parents.is_empty() {
            let fix = "name a Gateway in `parentRefs`";
            spec.doubt(doubts, "the route has no effect: it has no parent", fix);
        }
        let mut statuses = Vec::new();
        for (index, parent) in route.parents.iter().enumerate() {
            let list = spec.field("parentRefs");
            let place = list.element(index);
            let namespace = parent.namespace.as_deref().unwrap_or(route.namespace);
            if sources.gateways.others.contains(&(namespace, &*parent.name)) {
                let message = "the Gateway is another implementation's: the route is not attached here";
                place.doubt(doubts, message, "name a Gateway of the class `leno`");
                continue;
            }
            let accepted = match sources.listeners(&route, parent, namespace) {
                Ok(listeners) => streams.add(&route, &backends, (namespace, listeners), &spec, (&mut *claims, doubts)),
                Err(condition) => Err(condition),
            };
            let accepted = match accepted {
                Ok(()) => Condition::holds("Accepted", "Accepted"),
                Err(condition) => {
                    place.doubt(doubts, format!("the route is not attached: {}", condition.message), "");
                    condition
                }
            };
            let resolved = unresolved.clone().unwrap_or_else(|| Condition::holds("ResolvedRefs", "ResolvedRefs"));
            let parent_ref = parents::name(parent, route.namespace);
            let conditions = vec![accepted, resolved];
            statuses.push(ParentStatus { parent_ref, controller_name: CONTROLLER, conditions });
        }
        streams.statuses.push(RouteStatus {
            namespace: route.namespace.to_owned(),
            name: route.name.to_owned(),
            kind: route.kind,
            hostnames: route.hostnames.to_vec(),
            parents: statuses,
        });
    }
    streams
}

impl<'a> StreamSources<'_, 'a> {
    /// The listeners of a parent that take a route, each with the hosts that both serve.
    fn listeners(
        &self,
        route: &WrittenStream<'a>,
        parent: &'a ParentReference,
        namespace: &'a str,
    ) -> Result<Vec<(&Listener<'a>, Vec<String>)>, Condition> {
        let fails = |reason, message| Err(Condition::fails("Accepted", reason, message));
        if (&*parent.group, &*parent.kind) != (GROUP, "Gateway") {
            let message = format!("a {} belongs to a Gateway: calls of functions do not follow it", route.kind);
            return fails("NoMatchingParent", message);
        }
        if route.rules.len() != 1 {
            return fails("UnsupportedValue", format!("a {} has one rule", route.kind));
        }
        let shown = format!("{}/{}", namespace.escape_debug(), parent.name.escape_debug());
        let Some(listeners) = self.gateways.listeners.get(&(namespace, &*parent.name)) else {
            return fails("NoMatchingParent", format!("there is no Gateway `{shown}`"));
        };
        let mut found: Vec<&Listener<'a>> = listeners.iter().collect();
        found.retain(|listener| {
            parent.section_name.as_deref().is_none_or(|name| name == listener.section)
                && parent.port.is_none_or(|port| port == listener.model.port)
        });
        if found.is_empty() {
            let message = format!("the Gateway `{shown}` has no listener of this name and port");
            return fails("NoMatchingParent", message);
        }
        if route.kind == "TLSRoute" && found.iter().all(|listener| !matches!(listener.stream, Some(Some(_)))) {
            let message = format!("a TLSRoute needs a listener of the Gateway `{shown}` with `protocol: TLS`");
            return fails("UnsupportedValue", message);
        }
        found.retain(|listener| {
            listener.kinds.contains(&route.kind) && self.gateways.admit(listener, namespace, route.namespace)
        });
        if found.is_empty() {
            let message = format!("no listener of the Gateway `{shown}` takes a {} of its namespace", route.kind);
            return fails("NotAllowedByListeners", message);
        }
        let hostnames: Vec<String> = route.hostnames.iter().filter_map(|written| host::pattern(written)).collect();
        let with_hosts = found.into_iter().map(|listener| {
            let hosts = common(listener.model.host.as_deref(), &hostnames);
            (listener, hosts)
        });
        let serving: Vec<_> = with_hosts.filter(|(_, hosts)| !hosts.is_empty()).collect();
        match serving.is_empty() {
            true => {
                let message = format!("no listener of the Gateway `{shown}` serves one of its hostnames");
                fails("NoMatchingListenerHostname", message)
            }
            false => Ok(serving),
        }
    }

    /// The back ends of a route, and the condition if one of them leads nowhere.
    fn backends(
        &self,
        route: &WrittenStream<'_>,
        spec: &Scope<'_>,
        doubts: &RefCell<Vec<Problem>>,
    ) -> (Vec<StreamBackend>, Option<Condition>) {
        let rules = spec.field("rules");
        let rule = rules.element(0);
        let list = rule.field("backendRefs");
        let mut unresolved = None;
        let backends = route.rules.first().copied().unwrap_or_default();
        let backend = |(index, backend): (usize, &BackendRef)| {
            let invalid = |(reason, message): (&'static str, String)| {
                let place = list.element(index);
                place.doubt(doubts, format!("{message}: its share of connections is closed"), "");
                unresolved.get_or_insert_with(|| Condition::fails("ResolvedRefs", reason, message));
                StreamBackend { target: None, port: 0, tls: false, host: String::new(), weight: backend.weight }
            };
            self.backend(route, backend).unwrap_or_else(invalid)
        };
        (backends.iter().enumerate().map(backend).collect(), unresolved)
    }

    fn backend(
        &self,
        route: &WrittenStream<'_>,
        backend: &BackendRef,
    ) -> Result<StreamBackend, (&'static str, String)> {
        let BackendRef { group, kind, name, namespace, port, weight } = backend;
        if !matches!((&**group, &**kind), ("", "Service") | (LENO, "Function" | "External")) {
            return Err(("InvalidKind", format!("`{}` cannot be a back end of connections", kind.escape_debug())));
        }
        let namespace = namespace.as_deref().unwrap_or(route.namespace);
        let shown = format!("{}/{}", namespace.escape_debug(), name.escape_debug());
        let found = FunctionId::new(namespace, name).ok().and_then(|id| self.functions.get_key_value(&id));
        // A route must not learn whether another namespace has a function of this name.
        let own = match found {
            Some((_, function)) if matches!(function.run, Run::Egress(_)) => (LENO, "External"),
            _ => (LENO, "Function"),
        };
        if namespace != route.namespace
            && !self.grants.permit((route.kind, route.namespace), (namespace, name), &[("", "Service"), own])
        {
            let message = format!("no ReferenceGrant of the namespace lets a {} refer to `{shown}`", route.kind);
            return Err(("RefNotPermitted", message));
        }
        let Some((id, function)) = found.filter(|_| **kind == *own.1 || **kind == *"Service") else {
            return Err(("BackendNotFound", format!("there is no function or External `{shown}`")));
        };
        if let Some(reason) = self.backend_tls.refusal(id) {
            return Err(("UnsupportedProtocol", format!("`{shown}`: {reason}")));
        }
        let served = port.and_then(|port| function.run.other_ports().into_iter().find(|it| it.number == port));
        let Some(served) = served else {
            let ports: Vec<String> = function.run.other_ports().iter().map(|it| it.number.to_string()).collect();
            let fix = if ports.is_empty() { "none".to_owned() } else { ports.join(", ") };
            let message = format!("`{shown}` does not take connections there; ports for TCP and TLS: {fix}");
            return Err(("UnsupportedProtocol", message));
        };
        let host = match &function.run {
            Run::Egress(egress) => {
                let name = egress.hosts.iter().find(|host| !host.starts_with('*')).cloned();
                let bits = |block: &Cidr| if block.address.is_ipv4() { 32 } else { 128 };
                let single = egress.addresses.iter().find(|block| block.prefix == bits(block));
                let single = single.map(|block| block.address.to_string());
                name.or(single).ok_or_else(|| {
                    ("UnsupportedProtocol", format!("`{shown}` has no single name or address to connect to"))
                })?
            }
            _ => String::new(),
        };
        let tls = served.protocol == PortProtocol::Tls;
        Ok(StreamBackend { target: Some(id.clone()), port: served.number, tls, host, weight: *weight })
    }
}

impl Streams {
    /// Attaches a route to listeners. Of several routes for a host, or for a TCP listener, the first by
    /// name has it.
    fn add<'a>(
        &mut self,
        route: &WrittenStream<'a>,
        backends: &[StreamBackend],
        (namespace, listeners): (&'a str, Vec<(&Listener<'a>, Vec<String>)>),
        spec: &Scope<'_>,
        (claims, doubts): (&mut Claims<'a>, &RefCell<Vec<Problem>>),
    ) -> Result<(), Condition> {
        let list = spec.field("hostnames");
        let mut is_attached = false;
        for (listener, mut hosts) in listeners {
            let there = self.routes.entry(listener.model.name.clone()).or_default();
            hosts.retain(|host| there.iter().all(|other| !other.hosts.contains(host)));
            if hosts.is_empty() {
                continue;
            }
            is_attached = true;
            if route.kind == "TLSRoute" {
                hosts.retain(|host| {
                    let written = route.hostnames.iter().position(|it| host::pattern(it).as_ref() == Some(host));
                    let element = written.map(|index| list.element(index));
                    let at = element.as_ref().unwrap_or(spec);
                    let claimed = claims.claim_for_route([namespace, route.namespace], host, || at.line());
                    claimed.map_err(|refusal| refusal.report(at, host)).is_ok()
                });
            }
            let mut backends = backends.to_vec();
            if listener.stream == Some(Some(StreamTls::Terminate)) {
                for backend in backends.iter_mut().filter(|backend| backend.tls) {
                    let message =
                        "the back end's port takes TLS, which the gateway ends: its share of connections is closed";
                    spec.field("rules").doubt(doubts, message, "name a port for TCP, or write `mode: Passthrough`");
                    backend.target = None;
                }
            }
            self.targets.extend(backends.iter().filter_map(|backend| backend.target.clone()));
            let name = format!("{}/{}", route.namespace, route.name);
            there.push(StreamRoute { name, hosts, backends });
        }
        match is_attached {
            true => Ok(()),
            false => {
                let message = "a route whose name comes first has its hostnames at each listener";
                Err(Condition::fails("Accepted", "Conflicted", message))
            }
        }
    }

    /// The number of routes that are attached to a listener.
    pub(super) fn count(&self, listener: &str) -> usize {
        self.routes.get(listener).map_or(0, Vec::len)
    }

    /// The listeners that gateways serve, with their routes.
    pub(super) fn listeners(&self, gateways: &Gateways<'_>) -> Vec<StreamListener> {
        let programmed = gateways.listeners.values().flatten().filter(|listener| listener.programmed);
        let of = |listener: &Listener<'_>| {
            let routes = self.routes.get(&listener.model.name).cloned().unwrap_or_default();
            Some(StreamListener {
                name: listener.model.name.clone(),
                port: listener.model.port,
                tls: listener.stream?,
                host: listener.model.host.clone(),
                certificates: listener.model.certificates.clone(),
                routes,
            })
        };
        let mut all: Vec<StreamListener> = programmed.filter_map(of).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}
