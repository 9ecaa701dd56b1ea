//! Pure matches: host and path to the function that the gateway exposes there, host name to the callee that a caller means by it.

use crate::exchange::{Exchange, Origin};
use crate::failure::Failure;
use crate::head::{self, Malformed};
use crate::snapshot::FunctionEntry;
use http::request;
use leno_config::FunctionId;
use leno_config::slice::Callee;
use leno_policy::path;
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Where a request is to go, and who has a say in it.
#[derive(Debug)]
pub struct Route {
    /// The function whose program judges: outbound, the caller; else, the callee.
    pub judge: Arc<FunctionEntry>,
    /// The way, if it is permitted.
    pub way: Way,
}

/// How a permitted request reaches its callee.
#[derive(Debug)]
pub enum Way {
    /// An instance of this function.
    Instance(Arc<FunctionEntry>),
    /// The inbound judge of a function of this node, on this very thread.
    HandOver(Arc<FunctionEntry>),
    /// The inbound sidecar at this address, by mutual TLS.
    Tls(Callee, SocketAddr),
    /// A callee that no known node runs.
    Elsewhere(Callee),
    /// Nobody that the caller may call.
    Nowhere,
}

impl Route {
    /// The function that the request is for.
    pub fn target(&self) -> Option<&FunctionId> {
        match &self.way {
            Way::Instance(entry) | Way::HandOver(entry) => Some(&entry.slice.id),
            Way::Tls(callee, _) | Way::Elsewhere(callee) => Some(&callee.id),
            Way::Nowhere => None,
        }
    }

    /// Its name, for the record.
    pub fn target_name(&self) -> Option<Arc<str>> {
        match &self.way {
            Way::Instance(entry) | Way::HandOver(entry) => Some(entry.name.clone()),
            Way::Tls(callee, _) | Way::Elsewhere(callee) => Some(callee.id.to_string().into()),
            Way::Nowhere => None,
        }
    }
}

/// Where an exchange is to go.
pub fn find(exchange: &Exchange, head: &request::Parts) -> Result<Route, Failure> {
    match &exchange.origin {
        Origin::Gateway => {
            let (host, _) = head::split_authority(head::authority(head));
            // Routed by what it means, as it will be judged and forwarded, not by how it is written.
            let path = path::normalise(head.uri.path()).map_err(|ambiguous| Malformed::Path(ambiguous.words()))?;
            let entry = exchange.snapshot.routes.find(host, &path).ok_or(Failure::NoRoute)?;
            Ok(Route { judge: entry.clone(), way: Way::Instance(entry.clone()) })
        }
        Origin::Inbound(entry) => Ok(Route { judge: entry.clone(), way: Way::Instance(entry.clone()) }),
        Origin::Outbound(caller, _) => {
            let (host, _) = head::split_authority(head::authority(head));
            Ok(Route { judge: caller.clone(), way: way(exchange, callee(caller, host)) })
        }
    }
}

fn way(exchange: &Exchange, callee: Option<&Callee>) -> Way {
    let Some(callee) = callee else { return Way::Nowhere };
    let node = &exchange.worker.node;
    match (exchange.snapshot.functions.get(&callee.id), node.inbound()) {
        (Some(_), Some(address)) if exchange.snapshot.mesh.mtls_same_node => Way::Tls(callee.clone(), address),
        (Some(entry), _) if !exchange.snapshot.mesh.mtls_same_node => Way::HandOver(entry.clone()),
        _ => Way::Elsewhere(callee.clone()),
    }
}

/// What the gateway lets in. The more specific host wins (exact, then the longest `*.suffix`, then `*`), then the longer path prefix.
#[derive(Debug, Default)]
pub struct Routes {
    exact: HashMap<String, Vec<Exposed>>,
    /// By suffix with its leading dot.
    suffixes: HashMap<String, Vec<Exposed>>,
    any: Vec<Exposed>,
}

#[derive(Debug)]
struct Exposed {
    /// Without a trailing slash; empty: everything.
    prefix: String,
    entry: Arc<FunctionEntry>,
}

impl Routes {
    /// Collects what these functions expose.
    pub fn new<'a>(functions: impl Iterator<Item = &'a Arc<FunctionEntry>>) -> Self {
        let mut routes = Self::default();
        for entry in functions {
            for expose in &entry.slice.expose {
                for host in &expose.hosts {
                    let list = match host.strip_prefix('*') {
                        Some("") => &mut routes.any,
                        Some(suffix) => routes.suffixes.entry(suffix.to_ascii_lowercase()).or_default(),
                        None => routes.exact.entry(host.to_ascii_lowercase()).or_default(),
                    };
                    list.push(Exposed { prefix: expose.path.trim_end_matches('/').to_owned(), entry: entry.clone() });
                }
            }
        }
        let lists = routes.exact.values_mut().chain(routes.suffixes.values_mut()).chain([&mut routes.any]);
        for list in lists {
            // The name only settles what the configuration refuses anyway: two functions at one place.
            list.sort_by(|a, b| b.prefix.len().cmp(&a.prefix.len()).then_with(|| a.entry.name.cmp(&b.entry.name)));
        }
        routes
    }

    /// The function exposed at this host (without port) and normalised path (without query).
    pub fn find(&self, host: &str, path: &str) -> Option<&Arc<FunctionEntry>> {
        let host = lower(host);
        let pick = |list: &'_ Vec<Exposed>| list.iter().position(|route| is_below(path, &route.prefix));
        if let Some(list) = self.exact.get(host.as_ref())
            && let Some(index) = pick(list)
        {
            return Some(&list[index].entry);
        }
        if !self.suffixes.is_empty() {
            for (dot, _) in host.match_indices('.') {
                if let Some(list) = self.suffixes.get(&host[dot..])
                    && let Some(index) = pick(list)
                {
                    return Some(&list[index].entry);
                }
            }
        }
        pick(&self.any).map(|index| &self.any[index].entry)
    }
}

/// Whom `caller` means by this host name (without port); `None`: nobody that it may call.
pub fn callee<'a>(caller: &'a FunctionEntry, host: &str) -> Option<&'a Callee> {
    let host = lower(host);
    let index = caller.callees.get(host.strip_suffix('.').unwrap_or(&host))?;
    caller.slice.callees.get(*index)
}

/// Whether `path` is `prefix` or below it, by segments.
fn is_below(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn lower(host: &str) -> Cow<'_, str> {
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}
