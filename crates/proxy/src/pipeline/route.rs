//! Finds a request's destination. At the gateway, host and path select the exposed function; for a
//! call, the host name selects one of the caller's callees.

use crate::pipeline::exchange::{Exchange, Origin};
use crate::state::egress::EgressTarget;
use crate::state::function::FunctionEntry;
use crate::state::routes::Routes;
use http::request;
use leno_http::failure::Failure;
use leno_http::head;
use leno_http::head::HeadError;
use leno_model::Callee;
use leno_model::FunctionId;
use leno_policy::path::{self, Ambiguous, Readings};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

/// A request's destination, and the function whose program judges the request.
#[derive(Debug)]
pub(crate) struct Route {
    /// The function whose program judges: the caller for an outbound request, otherwise the callee.
    pub judge: Arc<FunctionEntry>,
    /// Where the request goes if it is permitted.
    pub upstream: Upstream,
}

/// How a permitted request reaches its callee.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// An instance of this function.
    Instance(Arc<FunctionEntry>),
    /// An external service.
    Egress(Arc<FunctionEntry>, Arc<EgressTarget>),
    /// The inbound judge of a function on this node, on the same thread.
    LocalDelivery(Arc<FunctionEntry>),
    /// The inbound sidecar of a node, over mutual TLS. Each attempt chooses the node.
    Remote(Box<RemoteCallee>),
    /// The host names no function that the caller may call.
    NotACallee,
}

/// A callee that other nodes host, or that this node reaches over mutual TLS too.
#[derive(Debug)]
pub(crate) struct RemoteCallee {
    pub id: FunctionId,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The SPIFFE ID that it must present.
    pub identity: Arc<str>,
    /// The callee if this node hosts it as well.
    pub here: Option<Arc<FunctionEntry>>,
    /// Where this node's own inbound sidecar is reached, if calls within the node go through mutual
    /// TLS too.
    pub tls_here: Option<SocketAddr>,
}

impl Route {
    /// The callee; `None`: the caller may call no function by this host name.
    pub(crate) fn target(&self) -> Option<&FunctionId> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::Egress(entry, _) | Upstream::LocalDelivery(entry) => {
                Some(&entry.config.id)
            }
            Upstream::Remote(callee) => Some(&callee.id),
            Upstream::NotACallee => None,
        }
    }

    /// Whether the callee gets paths as they come.
    fn sends_as_received(&self) -> bool {
        match &self.upstream {
            Upstream::LocalDelivery(entry) | Upstream::Egress(entry, _) => entry.gets_as_received(),
            Upstream::Remote(callee) if self.judge.config.id != callee.id => {
                let targets = &self.judge.outbound.spec.targets;
                targets.iter().any(|target| target.as_received && *target.function == *callee.name)
            }
            Upstream::Remote(_) | Upstream::Instance(_) => self.judge.gets_as_received(),
            Upstream::NotACallee => false,
        }
    }

    /// The callee's name, for the record.
    pub(crate) fn target_name(&self) -> Option<Arc<str>> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::Egress(entry, _) | Upstream::LocalDelivery(entry) => {
                Some(entry.name.clone())
            }
            Upstream::Remote(callee) => Some(callee.name.clone()),
            Upstream::NotACallee => None,
        }
    }
}

/// Finds the route. Fails at the gateway if the path is ambiguous, or if no function is exposed at
/// this host and path; at the callee if the host names a port that serves something else than HTTP.
pub(crate) fn find(exchange: &Exchange, head: &request::Parts) -> Result<Route, Failure> {
    let path = path::normalise(head.uri.path());
    let route = to_callee(exchange, head, &path);
    if let Ok(Cow::Owned(path)) = &path
        && !route.as_ref().is_ok_and(Route::sends_as_received)
    {
        exchange.record.normalised(path);
    }
    route
}

fn to_callee(
    exchange: &Exchange,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
) -> Result<Route, Failure> {
    match &exchange.origin {
        Origin::Gateway => {
            let entry = exposed(&exchange.snapshot.routes, head, path)?;
            let upstream = match entry.remote {
                false => Upstream::Instance(entry.clone()),
                true => Upstream::Remote(Box::new(RemoteCallee {
                    id: entry.config.id.clone(),
                    name: entry.name.clone(),
                    identity: entry.identity.clone(),
                    here: None,
                    tls_here: None,
                })),
            };
            Ok(Route { judge: entry.clone(), upstream })
        }
        // External services are not exposed, so no gateway routes to them.
        Origin::Inbound(entry) if exchange.via_gateway && entry.external.is_some() => Err(Failure::NotServed),
        Origin::Inbound(entry) if !exchange.via_gateway && entry.serves_other(exchange.port) => {
            Err(Failure::NoHttp(exchange.port))
        }
        Origin::Inbound(entry) => {
            let upstream = match &entry.external {
                Some(external) => Upstream::Egress(entry.clone(), external.clone()),
                None => Upstream::Instance(entry.clone()),
            };
            Ok(Route { judge: entry.clone(), upstream })
        }
        Origin::Outbound(caller, _) => {
            let callee = caller.callee(head::authority(head));
            Ok(Route { judge: caller.clone(), upstream: upstream(exchange, callee) })
        }
    }
}

/// The function that is exposed at this host and path. A function that gets paths as they come is
/// found only if every reading of the path leads to it. Its server could read the path as one at
/// which another function, or none, is exposed.
fn exposed<'r>(
    routes: &'r Routes,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
) -> Result<&'r Arc<FunctionEntry>, Failure> {
    let authority = head::authority(head);
    let refused = |ambiguous: Ambiguous| HeadError::Path(ambiguous.words());
    if let Ok(path) = path {
        // The same path is judged and forwarded.
        let entry = routes.find(authority, path).ok_or(Failure::NoRoute)?;
        if !entry.gets_as_received() {
            return Ok(entry);
        }
    }
    let sent = head.uri.path();
    let reason = path.as_ref().err().copied().unwrap_or(Ambiguous::AnotherReading);
    let entry = routes.find(authority, sent).filter(|entry| entry.gets_as_received());
    let entry = entry.ok_or_else(|| refused(reason))?;
    let readings = Readings::as_received(sent).map_err(refused)?;
    let leads_there = |path: &String| routes.find(authority, path).is_some_and(|other| Arc::ptr_eq(other, entry));
    match readings.others.iter().all(leads_there) {
        true => Ok(entry),
        false => Err(refused(Ambiguous::AnotherReading).into()),
    }
}

fn upstream(exchange: &Exchange, callee: Option<&Callee>) -> Upstream {
    let Some(callee) = callee else { return Upstream::NotACallee };
    let (node, over_tls) = (&exchange.worker.node, exchange.snapshot.mesh.mtls_same_node);
    let here = exchange.snapshot.functions.get(&callee.id);
    if let Some(entry) = here
        // A node that connects to external services itself asks no other node. Its calls have no
        // certificate that proves the other end.
        && (entry.external.is_some() || (!over_tls && node.endpoints.of(&callee.id).is_none()))
    {
        return Upstream::LocalDelivery(entry.clone());
    }
    let tls_here = node.inbound().filter(|_| over_tls && here.is_some());
    Upstream::Remote(Box::new(RemoteCallee {
        id: callee.id.clone(),
        name: here.map_or_else(|| callee.id.to_string().into(), |entry| entry.name.clone()),
        identity: (&callee.identity).into(),
        // A node that does not serve yet has no sidecar to connect to.
        here: here.filter(|_| tls_here.is_some() || !over_tls).cloned(),
        tls_here,
    }))
}
