//! Finds a request's destination. At the gateway, host and path select the exposed function; for a
//! call, the host name selects one of the caller's callees. Routes of documents may lead elsewhere.

mod follow;
pub(crate) mod followed;

use crate::pipeline::exchange::{Exchange, Origin};
use crate::state::egress::EgressTarget;
use crate::state::function::FunctionEntry;
use crate::state::routes::faults::{Fault, Faults};
use crate::state::routes::gateway::Exposure;
use crate::state::routes::rules::Rules;
use crate::state::snapshot::NodeSnapshot;
use followed::FollowedRoute;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, request};
use leno_http::body::Body;
use leno_http::failure::{Failure, Unavailable};
use leno_http::head;
use leno_http::head::HeadError;
use leno_model::Callee;
use leno_model::FunctionId;
use leno_policy::input::Header;
use leno_policy::path::{self, Ambiguous, Readings};
use leno_routing::RequestParts;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// A request's destination, and the function whose program judges the request.
#[derive(Debug)]
pub(crate) struct Route {
    /// The function whose program judges: the caller for an outbound request, otherwise the callee.
    pub judge: Arc<FunctionEntry>,
    /// Where the request goes if it is permitted.
    pub upstream: Upstream,
    /// The rule of a route that the request follows; `None`: it follows none.
    pub followed: Option<Rc<FollowedRoute>>,
    /// The fault that acts on the request if it is permitted; `None`: none.
    pub fault: Option<Arc<Fault>>,
}

/// Why a request has no destination.
pub(crate) enum NotForwarded {
    Failed(Failure),
    /// A route answers it.
    Answered(Box<Response<Body>>),
}

impl From<Failure> for NotForwarded {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
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

    /// The SPIFFE ID of the callee.
    pub(crate) fn target_identity(&self) -> Option<Arc<str>> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::Egress(entry, _) | Upstream::LocalDelivery(entry) => {
                Some(entry.identity.clone())
            }
            Upstream::Remote(callee) => Some(callee.identity.clone()),
            Upstream::NotACallee => None,
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

/// Finds the route, and changes the head as the route says. Fails at the gateway if the path is
/// ambiguous, or if nothing is there at this host and path; at the callee if the host names a port
/// that serves something else than HTTP.
pub(crate) fn find(exchange: &Exchange, head: &mut request::Parts) -> Result<Route, NotForwarded> {
    let path = path::normalise(head.uri.path());
    let route = to_callee(exchange, head, &path);
    if let Ok(Cow::Owned(path)) = &path
        && !route.as_ref().is_ok_and(Route::sends_as_received)
    {
        exchange.record.normalised(path);
    }
    let route = route?;
    if let Some(followed) = &route.followed {
        followed.apply(exchange, head)?;
    }
    Ok(route)
}

fn to_callee(
    exchange: &Exchange,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
) -> Result<Route, NotForwarded> {
    match &exchange.origin {
        Origin::Gateway => at_gateway(exchange, head, path),
        // No gateway routes to an external service unless a route leads there.
        Origin::Inbound(entry) if exchange.via_gateway && entry.external.is_some() && !entry.config.is_routed => {
            Err(Failure::NotServed.into())
        }
        Origin::Inbound(entry) if !exchange.via_gateway && entry.serves_other(exchange.port) => {
            Err(Failure::NoHttp(exchange.port).into())
        }
        Origin::Inbound(entry) => {
            Ok(Route { judge: entry.clone(), upstream: to_entry(entry), followed: None, fault: None })
        }
        Origin::Outbound(caller, _) => {
            let callee = caller.callee(head::authority(head));
            if let Some(callee) = callee
                && !callee.routes.is_empty()
                && let Some(rules) = caller.call_routes.of(&callee.id, exchange.port)
            {
                let rules = rules.as_ref().map_err(|error| Failure::Route(error.to_string()))?;
                return by_call(exchange, head, path, rules);
            }
            Ok(Route { judge: caller.clone(), upstream: upstream(exchange, callee), followed: None, fault: None })
        }
    }
}

/// The route of a call to a callee that has routes. The chosen back end must be a callee too.
fn by_call(
    exchange: &Exchange,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
    rules: &Rules,
) -> Result<Route, NotForwarded> {
    let look = |path: &str| rules.find(&parts(head, path));
    let sent = head.uri.path();
    let matched = look(path.as_deref().unwrap_or(sent)).ok_or(Failure::NoRule)?;
    let is_unanimous = |path: &str| look(path).is_some_and(|other| other.is_same_rule(matched));
    follow::follow(exchange, head, path, (matched, &is_unanimous))
}

fn at_gateway(
    exchange: &Exchange,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
) -> Result<Route, NotForwarded> {
    let (snapshot, authority) = (&*exchange.snapshot, head::authority(head));
    if snapshot.gateway_routes.is_empty() {
        let look = |path: &str| snapshot.routes.find(authority, path).map(Exposure::Function);
        return match exposed(look, head, path)? {
            Exposure::Function(entry) => Ok(by_expose(exchange, head, entry)),
            Exposure::Rule(_) => Err(Failure::NoRoute.into()),
        };
    }
    let at = (exchange.port, authority);
    let look = |path: &str| snapshot.gateway_routes.find(&snapshot.routes, at, &parts(head, path));
    let matched = match exposed(look, head, path)? {
        Exposure::Function(entry) => return Ok(by_expose(exchange, head, entry)),
        Exposure::Rule(matched) => matched,
    };
    let is_unanimous = |path: &str| look(path).is_some_and(|other| other.is_same(Exposure::Rule(matched)));
    follow::follow(exchange, head, path, (matched, &is_unanimous))
}

/// The route of a request that comes to a function by `expose`.
fn by_expose(exchange: &Exchange, head: &request::Parts, entry: &Arc<FunctionEntry>) -> Route {
    Route { fault: entry.faults.as_ref().and_then(|faults| pick(exchange, head, faults)), ..to_exposed(entry) }
}

/// The fault that acts on a request, whose head is as it came.
fn pick(exchange: &Exchange, head: &request::Parts, faults: &Faults) -> Option<Arc<Fault>> {
    faults.pick(&head.headers, || exchange.worker.random.next())
}

/// The judge of a request to this back end, and how the back end is reached. A function's calls
/// reach its callees only.
fn reach(exchange: &Exchange, id: &FunctionId) -> Result<(Arc<FunctionEntry>, Upstream), Failure> {
    if let Origin::Outbound(caller, _) = &exchange.origin {
        return Ok((caller.clone(), upstream(exchange, caller.callee_named(id))));
    }
    let entry = exchange.snapshot.exposed(id).ok_or(Failure::Unavailable(Unavailable::Unknown))?;
    let Route { judge, upstream, .. } = to_exposed(entry);
    Ok((judge, upstream))
}

/// Whether the present routes lead a request that followed one to the same function still. `caller`:
/// the function that calls; `None`: it came in at the gateway.
pub(crate) fn still_leads(snapshot: &NodeSnapshot, caller: Option<&FunctionEntry>, followed: &FollowedRoute) -> bool {
    let asked = &followed.asked;
    let (sent, query) = path::split(asked.path());
    let path = path::normalise(sent).unwrap_or(Cow::Borrowed(sent));
    let Ok(method) = Method::from_bytes(asked.method().as_bytes()) else { return false };
    let field =
        |field: Header<'_>| Some((HeaderName::try_from(field.name).ok()?, HeaderValue::from_bytes(field.value).ok()?));
    let headers: HeaderMap = asked.headers().filter_map(field).collect();
    let request = RequestParts { authority: asked.authority(), path: &path, query, method: &method, headers: &headers };
    let matched = match caller {
        None => match snapshot.gateway_routes.find(&snapshot.routes, (followed.port, asked.authority()), &request) {
            Some(Exposure::Rule(matched)) => Some(matched),
            Some(Exposure::Function(_)) | None => None,
        },
        Some(caller) => {
            let callee = caller.callee(asked.authority());
            let rules = callee.and_then(|callee| caller.call_routes.of(&callee.id, followed.port)?.as_ref().ok());
            rules.and_then(|rules| rules.find(&request))
        }
    };
    let target = followed.target().function();
    matched.zip(target).is_some_and(|(matched, target)| matched.rule.leads_to(target))
}

/// A request, as far as routes look at it.
fn parts<'r>(head: &'r request::Parts, path: &'r str) -> RequestParts<'r> {
    RequestParts {
        authority: head::authority(head),
        path,
        query: head.uri.query(),
        method: &head.method,
        headers: &head.headers,
    }
}

/// The route of the gateway to a function or External.
fn to_exposed(entry: &Arc<FunctionEntry>) -> Route {
    let upstream = match entry.remote {
        false => to_entry(entry),
        true => Upstream::Remote(Box::new(RemoteCallee {
            id: entry.config.id.clone(),
            name: entry.name.clone(),
            identity: entry.identity.clone(),
            here: None,
            tls_here: None,
        })),
    };
    Route { judge: entry.clone(), upstream, followed: None, fault: None }
}

/// To an instance, or to the service of an External.
fn to_entry(entry: &Arc<FunctionEntry>) -> Upstream {
    match &entry.external {
        Some(external) => Upstream::Egress(entry.clone(), external.clone()),
        None => Upstream::Instance(entry.clone()),
    }
}

/// The function or rule at this host and path. A function that gets paths as they come is found
/// only if every reading of the path leads to it. Its server could read the path as one at which
/// another function, or none, is exposed. The back end of a rule is not known yet.
fn exposed<'r>(
    look: impl Fn(&str) -> Option<Exposure<'r>>,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
) -> Result<Exposure<'r>, Failure> {
    let refused = |ambiguous: Ambiguous| HeadError::Path(ambiguous.words());
    if let Ok(path) = path {
        // The same path is judged and forwarded.
        let found = look(path).ok_or(Failure::NoRoute)?;
        if !found.gets_as_received() {
            return Ok(found);
        }
    }
    let sent = head.uri.path();
    let reason = path.as_ref().err().copied().unwrap_or(Ambiguous::AnotherReading);
    let found = look(sent).ok_or_else(|| refused(reason))?;
    match found {
        // Whether its back end gets paths as they come is not known yet.
        Exposure::Rule(_) if path.is_err() => return Ok(found),
        Exposure::Function(entry) if entry.gets_as_received() => {}
        _ => return Err(refused(reason).into()),
    }
    let readings = Readings::as_received(sent).map_err(refused)?;
    let leads_there = |path: &String| look(path).is_some_and(|other| other.is_same(found));
    match readings.others.iter().all(leads_there) {
        true => Ok(found),
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
