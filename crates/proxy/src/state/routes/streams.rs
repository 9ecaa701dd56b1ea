//! Listeners for TLS and TCP, and the routes of their connections.

use super::HostPattern;
use leno_model::{FunctionId, StreamBackend, StreamListener, StreamTls};
use std::sync::Arc;

/// The listeners of Gateway documents whose connections carry no HTTP for the gateway.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<Listener>);

#[derive(Debug)]
struct Listener {
    port: u16,
    host: HostPattern,
    tls: Option<StreamTls>,
    certificates: Vec<Box<str>>,
    routes: Vec<Route>,
}

#[derive(Debug)]
struct Route {
    name: Arc<str>,
    hosts: Vec<HostPattern>,
    backends: Vec<StreamBackend>,
}

/// The route of a connection.
pub(crate) struct FoundStream<'r> {
    /// `namespace/name`.
    pub route: &'r Arc<str>,
    pub tls: Option<StreamTls>,
    backends: &'r [StreamBackend],
}

impl FoundStream<'_> {
    /// The back end that a random number chooses, by weights; `None`: there is none with a weight.
    pub(crate) fn pick(&self, up_to: impl FnOnce(u64) -> u64) -> Option<&StreamBackend> {
        let sum: u64 = self.backends.iter().map(|backend| u64::from(backend.weight)).sum();
        let mut at = up_to(sum.checked_sub(1)?);
        self.backends.iter().find(|backend| {
            let weight = u64::from(backend.weight);
            let found = at < weight;
            at = at.saturating_sub(weight);
            found
        })
    }

    /// Whether connections can go to this port of a function.
    pub(crate) fn leads_to(&self, function: &FunctionId, port: u16) -> bool {
        let mut backends = self.backends.iter().filter(|backend| backend.weight > 0);
        backends.any(|backend| backend.target.as_ref() == Some(function) && backend.port == port)
    }
}

impl Streams {
    pub(super) fn new(listeners: &[StreamListener]) -> Self {
        let route = |route: &leno_model::StreamRoute| Route {
            name: route.name.as_str().into(),
            hosts: route.hosts.iter().map(|host| HostPattern::new(host)).collect(),
            backends: route.backends.clone(),
        };
        let listener = |listener: &StreamListener| Listener {
            port: listener.port,
            host: HostPattern::new(listener.host.as_deref().unwrap_or("*")),
            tls: listener.tls,
            certificates: listener.certificates.iter().map(|secret| secret.as_str().into()).collect(),
            routes: listener.routes.iter().map(route).collect(),
        };
        Self(listeners.iter().map(listener).collect())
    }

    /// Whether connections to a port begin with TLS.
    pub(crate) fn take_tls(&self, port: u16) -> bool {
        self.0.iter().any(|listener| listener.port == port && listener.tls.is_some())
    }

    /// The listeners with the most specific host that serves a server name.
    fn serving<'s>(&'s self, port: u16, name: &str) -> impl Iterator<Item = &'s Listener> {
        let serves = |listener: &&Listener| listener.port == port && listener.host.serves(name);
        let best = self.0.iter().filter(serves).map(|listener| listener.host.precision()).max();
        let all = self.0.iter().filter(move |listener| listener.port == port);
        let name = name.to_owned();
        all.filter(move |listener| listener.host.serves(&name) && Some(listener.host.precision()) == best)
    }

    /// The StoredSecrets with the certificates for a server name; `None`: no listener of the port ends
    /// its TLS.
    pub(super) fn certificates_at(&self, port: u16, name: &str) -> Option<&[Box<str>]> {
        let mut serving = self.serving(port, name);
        serving.find(|listener| listener.tls == Some(StreamTls::Terminate)).map(|listener| &*listener.certificates)
    }

    /// The route of a connection with this server name, which is empty without TLS.
    pub(crate) fn find(&self, port: u16, name: &str) -> Option<FoundStream<'_>> {
        let candidates = self.serving(port, name).flat_map(|listener| {
            let serves = |route: &&Route| route.hosts.iter().any(|host| host.serves(name));
            listener.routes.iter().filter(serves).map(move |route| (listener, route))
        });
        let precision = |route: &Route| {
            route.hosts.iter().filter(|host| host.serves(name)).map(HostPattern::precision).max().unwrap_or_default()
        };
        let mut best: Option<(&Listener, &Route)> = None;
        for (listener, route) in candidates {
            // Of equal ones the first has it.
            if best.is_none_or(|(_, other)| precision(route) > precision(other)) {
                best = Some((listener, route));
            }
        }
        best.map(|(listener, route)| FoundStream { route: &route.name, tls: listener.tls, backends: &route.backends })
    }
}
