//! Where a request goes: to the function that the gateway exposes at its host and path, or to the callee that a caller means by a host name.

use crate::corridor::exchange::{Exchange, Origin};
use crate::http::failure::Failure;
use crate::http::head;
use crate::http::head::Malformed;
use crate::state::function::FunctionEntry;
use crate::state::routes;
use http::request;
use leno_config::FunctionId;
use leno_config::slice::Callee;
use leno_policy::path;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

/// Where a request is to go, and who has a say in it.
#[derive(Debug)]
pub(crate) struct Route {
    /// The function whose program judges: outbound, the caller; else, the callee.
    pub judge: Arc<FunctionEntry>,
    /// The upstream, if it is permitted.
    pub upstream: Upstream,
}

/// How a permitted request reaches its callee.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// An instance of this function.
    Instance(Arc<FunctionEntry>),
    /// The inbound judge of a function of this node, on this very thread.
    HandOver(Arc<FunctionEntry>),
    /// The inbound sidecar at this address, by mutual TLS.
    Tls(Callee, SocketAddr),
    /// A callee that no known node runs.
    Unreachable(Callee),
    /// Nobody that the caller may call.
    NotACallee,
}

impl Route {
    /// The function that the request is for.
    pub(crate) fn target(&self) -> Option<&FunctionId> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::HandOver(entry) => Some(&entry.slice.id),
            Upstream::Tls(callee, _) | Upstream::Unreachable(callee) => Some(&callee.id),
            Upstream::NotACallee => None,
        }
    }

    /// Its name, for the record.
    pub(crate) fn target_name(&self) -> Option<Arc<str>> {
        match &self.upstream {
            Upstream::Instance(entry) | Upstream::HandOver(entry) => Some(entry.name.clone()),
            Upstream::Tls(callee, _) | Upstream::Unreachable(callee) => Some(callee.id.to_string().into()),
            Upstream::NotACallee => None,
        }
    }
}

/// Where an exchange is to go.
pub(crate) fn find(exchange: &Exchange, head: &request::Parts) -> Result<Route, Failure> {
    let path = path::normalise(head.uri.path());
    if let Ok(Cow::Owned(path)) = &path {
        exchange.record.normalised(path);
    }
    match &exchange.origin {
        Origin::Gateway => {
            let (host, _) = head::split_authority(head::authority(head));
            // Routed by what it means, as it will be judged and forwarded, not by how it is written.
            let path = path.map_err(|ambiguous| Malformed::Path(ambiguous.words()))?;
            let entry = exchange.snapshot.routes.find(host, &path).ok_or(Failure::NoRoute)?;
            Ok(Route { judge: entry.clone(), upstream: Upstream::Instance(entry.clone()) })
        }
        Origin::Inbound(entry) => Ok(Route { judge: entry.clone(), upstream: Upstream::Instance(entry.clone()) }),
        Origin::Outbound(caller, _) => {
            let (host, _) = head::split_authority(head::authority(head));
            Ok(Route { judge: caller.clone(), upstream: upstream(exchange, callee(caller, host)) })
        }
    }
}

fn upstream(exchange: &Exchange, callee: Option<&Callee>) -> Upstream {
    let Some(callee) = callee else { return Upstream::NotACallee };
    let node = &exchange.worker.node;
    match (exchange.snapshot.functions.get(&callee.id), node.inbound()) {
        (Some(_), Some(address)) if exchange.snapshot.mesh.mtls_same_node => Upstream::Tls(callee.clone(), address),
        (Some(entry), _) if !exchange.snapshot.mesh.mtls_same_node => Upstream::HandOver(entry.clone()),
        _ => Upstream::Unreachable(callee.clone()),
    }
}

/// Whom `caller` means by this host name (without port); `None`: nobody that it may call.
pub(crate) fn callee<'a>(caller: &'a FunctionEntry, host: &str) -> Option<&'a Callee> {
    let host = routes::lower(host);
    let index = caller.callees.get(host.strip_suffix('.').unwrap_or(&host))?;
    caller.slice.callees.get(*index)
}
