//! Routes of Gateway documents: listeners, and the rules of each host.

use super::rules::{self, MatchedRule, Rules};
use super::streams::Streams;
use super::{Exposed, HostPattern, Routes};
use crate::state::function::FunctionEntry;
use leno_model::{GatewayRoutes, RouteListener};
use leno_policy::host::of_authority;
use leno_routing::{BadPattern, GatewaySite, RequestParts, gateway_tables, host_pattern};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The listeners of Gateway documents with their rules.
#[derive(Debug, Default)]
pub struct GatewayTables {
    listeners: Vec<Listener>,
    /// Listeners whose ports Gateway documents open.
    opened: Vec<OpenedListener>,
    /// The StoredSecrets with certificates of listeners, each with the listener.
    certificates: Vec<(Box<str>, Box<str>)>,
    /// Listeners for TLS and TCP.
    pub(crate) streams: Streams,
    /// The longest time that a request may take by a rule.
    pub(crate) longest: Duration,
}

/// A listener whose port Gateway documents open.
#[derive(Clone, Debug)]
pub struct OpenedListener {
    /// `namespace/gateway/listener`.
    pub name: Arc<str>,
    /// The port.
    pub port: u16,
    /// The protocol of its connections.
    pub protocol: PortProtocol,
}

/// The protocol of a port that Gateway documents open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProtocol {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// Connections without HTTP: TCP, or TLS.
    Stream,
}

#[derive(Debug)]
struct Listener {
    port: u16,
    host: HostPattern,
    exact: HashMap<String, Rules>,
    /// By suffix, including its leading dot.
    suffixes: HashMap<String, Rules>,
    any: Option<Rules>,
    /// With TLS: the StoredSecrets with its certificates; empty: they are those of the Mesh document.
    certificates: Vec<Box<str>>,
}

/// The destination of a request at a gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exposure<'r> {
    /// A function that is exposed there.
    Function(&'r Arc<FunctionEntry>),
    /// The back ends of a rule.
    Rule(&'r MatchedRule),
}

impl Exposure<'_> {
    /// Whether it is a function that gets paths as they come.
    pub(crate) fn gets_as_received(self) -> bool {
        matches!(self, Self::Function(entry) if entry.gets_as_received())
    }

    /// Whether both are the same function or rule.
    pub(crate) fn is_same(self, other: Exposure<'_>) -> bool {
        match (self, other) {
            (Self::Function(one), Exposure::Function(other)) => Arc::ptr_eq(one, other),
            (Self::Rule(one), Exposure::Rule(other)) => one.is_same_rule(other),
            _ => false,
        }
    }
}

impl GatewayTables {
    /// Makes the tables.
    ///
    /// # Errors
    /// A pattern cannot be used.
    pub fn new(routes: &GatewayRoutes) -> Result<Self, BadPattern> {
        let mut listeners: Vec<Listener> = Vec::new();
        let mut places: HashMap<(u16, String), usize> = HashMap::new();
        for RouteListener { port, host, certificates, .. } in &routes.listeners {
            let host = host_pattern(host.as_deref().unwrap_or("*"));
            // Listeners with the same port and host serve the same requests.
            let place = *places.entry((*port, host)).or_insert_with_key(|(port, host)| {
                listeners.push(Listener::new(*port, host));
                listeners.len() - 1
            });
            listeners[place].certificates.extend(certificates.iter().map(|secret| secret.as_str().into()));
        }
        let rules: Vec<_> = routes.routes.iter().map(|attached| rules::rules(&attached.route)).collect();
        let longest = rules.iter().flatten().filter_map(|rule| rule.longest()).fold(Duration::ZERO, Duration::max);
        for (GatewaySite { port, listener, host }, of_site) in gateway_tables(routes) {
            let rules = Rules::new(of_site.into_iter().flat_map(|route| &rules[route]))?;
            let listener = places.get(&(port, listener)).and_then(|place| listeners.get_mut(*place));
            let Some(listener) = listener else { continue };
            match host.strip_prefix('*') {
                Some("") => listener.any = Some(rules),
                Some(suffix) => drop(listener.suffixes.insert(suffix.to_owned(), rules)),
                None => drop(listener.exact.insert(host, rules)),
            }
        }
        let opened = |name: &str, port, protocol| OpenedListener { name: name.into(), port, protocol };
        let http = routes.listeners.iter().filter(|listener| listener.opened).map(|listener| {
            let protocol = if listener.tls { PortProtocol::Https } else { PortProtocol::Http };
            opened(&listener.name, listener.port, protocol)
        });
        let others = routes.streams.iter().map(|it| opened(&it.name, it.port, PortProtocol::Stream));
        let of = |(name, secrets): (&String, &Vec<String>)| -> Vec<(Box<str>, Box<str>)> {
            secrets.iter().map(|secret| (name.as_str().into(), secret.as_str().into())).collect()
        };
        let of_streams = routes.streams.iter().map(|it| (&it.name, &it.certificates));
        let certificates = routes.listeners.iter().map(|it| (&it.name, &it.certificates)).chain(of_streams);
        Ok(Self {
            listeners,
            opened: http.chain(others).collect(),
            certificates: certificates.flat_map(of).collect(),
            streams: Streams::new(&routes.streams),
            longest,
        })
    }

    /// The listeners whose ports Gateway documents open.
    pub fn opened(&self) -> &[OpenedListener] {
        &self.opened
    }

    /// The StoredSecrets with certificates of listeners, each with the listener: both
    /// `namespace/name`.
    pub fn certificates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.certificates.iter().map(|(listener, secret)| (&**listener, &**secret))
    }

    /// The StoredSecrets with the certificates for a client that asks for this name at a port; empty:
    /// those of the Mesh document; `None`: no listener serves the name.
    pub(crate) fn certificates_at(&self, port: u16, name: Option<&str>) -> Option<&[Box<str>]> {
        let host = name.and_then(of_authority).unwrap_or_default();
        let of_listener = self.listener(port, &host).map(|listener| &*listener.certificates);
        of_listener.or_else(|| self.streams.certificates_at(port, &host))
    }

    /// The ports that Gateway documents open.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (u16, PortProtocol)> {
        self.opened.iter().map(|listener| (listener.port, listener.protocol))
    }

    /// Whether Gateway documents open a port.
    pub(crate) fn opens(&self, port: u16) -> bool {
        self.opened.iter().any(|listener| listener.port == port)
    }

    /// Whether there are no listeners.
    pub(crate) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// The listener of a port with the most specific host that serves this one.
    fn listener(&self, port: u16, host: &str) -> Option<&Listener> {
        let serving = self.listeners.iter().filter(|listener| listener.port == port && listener.host.serves(host));
        serving.max_by_key(|listener| listener.host.precision())
    }

    /// The destination of a request at this port and authority. The listener with the most specific host
    /// has the request; functions are exposed at all listeners of the Mesh document's ports.
    pub(crate) fn find<'r>(
        &'r self,
        exposed: &'r Routes,
        (port, authority): (u16, &str),
        request: &RequestParts<'_>,
    ) -> Option<Exposure<'r>> {
        let host = of_authority(authority)?;
        // Functions are exposed at the ports of the Mesh document only.
        let exposed = (!self.opens(port)).then_some(exposed);
        let listener = self.listener(port, &host);
        // A host belongs to the namespaces that have something there: paths that they leave never
        // go to another namespace's wildcard.
        let mut owners: Option<Vec<&str>> = None;
        let suffixes = host.match_indices('.').map(|(dot, _)| {
            let suffix = &host[dot..];
            let rules = listener.and_then(|listener| listener.suffixes.get(suffix));
            (exposed.and_then(|exposed| exposed.suffixes.get(suffix)), rules)
        });
        let exact = (
            exposed.and_then(|exposed| exposed.exact.get(host.as_ref())),
            listener.and_then(|listener| listener.exact.get(host.as_ref())),
        );
        let any = (exposed.map(|exposed| &exposed.any), listener.and_then(|listener| listener.any.as_ref()));
        for (exposed, rules) in std::iter::once(exact).chain(suffixes).chain([any]) {
            let exposed = exposed.filter(|table| !table.is_empty());
            if let Some(found) = at_host(exposed, rules, request, owners.as_deref()) {
                return Some(found);
            }
            if owners.is_none() && (rules.is_some() || exposed.is_some()) {
                let exposed = exposed.and_then(|table| table.any_entry());
                let of_functions = exposed.map(|exposed| &*exposed.value.config.id.namespace);
                let of_routes = rules.into_iter().flat_map(|rules| rules.namespaces.iter().map(|name| &**name));
                owners = Some(of_functions.into_iter().chain(of_routes).collect());
            }
        }
        None
    }
}

/// The destination of a request among those of one host. `owners`: the namespaces that may have the request; `None`:
/// all.
fn at_host<'r>(
    exposed: Option<&'r Exposed>,
    rules: Option<&'r Rules>,
    request: &RequestParts<'_>,
    owners: Option<&[&str]>,
) -> Option<Exposure<'r>> {
    let owns = |namespace: &str| owners.is_none_or(|owners| owners.contains(&namespace));
    let admits = |matched: &MatchedRule| owns(matched.rule.namespace());
    if let Some(ordered) = rules.and_then(|rules| rules.ordered(request, admits)) {
        return Some(Exposure::Rule(ordered));
    }
    let rule = rules.and_then(|rules| rules.specific(request, admits));
    let function = exposed.and_then(|table| table.find(request, |entry| owns(&entry.config.id.namespace)));
    match (rule, function) {
        (Some(rule), Some(function)) if !rule.comes_before(&function.pattern.path) => {
            Some(Exposure::Function(&function.value))
        }
        (Some(rule), _) => Some(Exposure::Rule(rule)),
        (None, function) => function.map(|function| Exposure::Function(&function.value)),
    }
}

impl Listener {
    fn new(port: u16, host: &str) -> Self {
        let (exact, suffixes, any, certificates) = Default::default();
        Self { port, host: HostPattern::new(host), exact, suffixes, any, certificates }
    }
}
