//! Finds a request's destination. At the gateway, host and path select the exposed function; for a call, the host name selects one of the
//! caller's callees.

use crate::corridor::exchange::{Exchange, Origin};
use crate::http::failure::Failure;
use crate::http::head;
use crate::http::head::Malformed;
use crate::state::egress::Outside;
use crate::state::function::FunctionEntry;
use http::request;
use leno_config::FunctionId;
use leno_config::slice::Callee;
use leno_policy::path;
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
    /// Something outside of the mesh.
    Outside(Arc<FunctionEntry>, Arc<Outside>),
    /// The inbound judge of a function on this node, on the same thread.
    HandOver(Arc<FunctionEntry>),
    /// The inbound sidecar at this address, over mutual TLS.
    Tls(Callee, SocketAddr),
    /// A callee that no known node runs.
    Unreachable(Callee),
    /// The host names no function that the caller may call.
    NotACallee,
}

impl Route {
    /// The callee; `None`: the caller may call no function by this host name.
    pub(crate) fn target(&self) -> Option<&FunctionId> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::Outside(entry, _) | Upstream::HandOver(entry) => {
                Some(&entry.slice.id)
            }
            Upstream::Tls(callee, _) | Upstream::Unreachable(callee) => Some(&callee.id),
            Upstream::NotACallee => None,
        }
    }

    /// The callee's name, for the record.
    pub(crate) fn target_name(&self) -> Option<Arc<str>> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::Outside(entry, _) | Upstream::HandOver(entry) => {
                Some(entry.name.clone())
            }
            Upstream::Tls(callee, _) | Upstream::Unreachable(callee) => Some(callee.id.to_string().into()),
            Upstream::NotACallee => None,
        }
    }
}

/// Finds the route. Fails at the gateway if the path is ambiguous, or if no function is exposed at this host and path; at the callee if the host names a
/// port that serves something else than HTTP.
pub(crate) fn find(exchange: &Exchange, head: &request::Parts) -> Result<Route, Failure> {
    let path = path::normalise(head.uri.path());
    if let Ok(Cow::Owned(path)) = &path {
        exchange.record.normalised(path);
    }
    match &exchange.origin {
        Origin::Gateway => {
            let (host, _) = head::split_authority(head::authority(head));
            // Route by the normalised path: the same path is judged and forwarded.
            let path = path.map_err(|ambiguous| Malformed::Path(ambiguous.words()))?;
            let entry = exchange.snapshot.routes.find(host, &path).ok_or(Failure::NoRoute)?;
            Ok(Route { judge: entry.clone(), upstream: Upstream::Instance(entry.clone()) })
        }
        Origin::Inbound(entry) if entry.serves_other(exchange.port) => Err(Failure::NoHttp(exchange.port)),
        Origin::Inbound(entry) => {
            let upstream = match &entry.outside {
                Some(outside) => Upstream::Outside(entry.clone(), outside.clone()),
                None => Upstream::Instance(entry.clone()),
            };
            Ok(Route { judge: entry.clone(), upstream })
        }
        Origin::Outbound(caller, _) => {
            let (host, _) = head::split_authority(head::authority(head));
            Ok(Route { judge: caller.clone(), upstream: upstream(exchange, caller.callee(host)) })
        }
    }
}

fn upstream(exchange: &Exchange, callee: Option<&Callee>) -> Upstream {
    let Some(callee) = callee else { return Upstream::NotACallee };
    let node = &exchange.worker.node;
    match (exchange.snapshot.functions.get(&callee.id), node.inbound()) {
        // What is outside has no certificate of the mesh, and no sidecar but this node.
        (Some(entry), _) if entry.outside.is_some() || !exchange.snapshot.mesh.mtls_same_node => {
            Upstream::HandOver(entry.clone())
        }
        (Some(_), Some(address)) => Upstream::Tls(callee.clone(), address),
        _ => Upstream::Unreachable(callee.clone()),
    }
}
