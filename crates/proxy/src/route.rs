//! Pure matches: host and path to the function that the gateway exposes there, host name to the callee that a caller means by it.

use crate::exchange::{Exchange, Origin};
use crate::failure::Failure;
use crate::head::{self, Malformed};
use crate::shards::Shards;
use crate::snapshot::FunctionEntry;
use http::request;
use leno_config::FunctionId;
use leno_config::slice::Callee;
use leno_policy::path;
use std::borrow::Cow;
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
/// Copies share what they do not change.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: Shards<String, Arc<[Exposed]>>,
    /// By suffix with its leading dot.
    suffixes: Shards<String, Arc<[Exposed]>>,
    any: Arc<[Exposed]>,
}

#[derive(Clone, Debug)]
struct Exposed {
    /// Without a trailing slash; empty: everything.
    prefix: Arc<str>,
    entry: Arc<FunctionEntry>,
}

impl Routes {
    /// Adds what this function exposes.
    pub fn insert(&mut self, entry: &Arc<FunctionEntry>) {
        for expose in &entry.slice.expose {
            let exposed = Exposed { prefix: expose.path.trim_end_matches('/').into(), entry: entry.clone() };
            for host in &expose.hosts {
                self.change(host, |list| {
                    let at = list.partition_point(|other| other.comes_before(&exposed));
                    list.insert(at, exposed.clone());
                });
            }
        }
    }

    /// Takes away what this function exposes.
    pub fn remove(&mut self, entry: &Arc<FunctionEntry>) {
        for host in entry.slice.expose.iter().flat_map(|expose| &expose.hosts) {
            self.change(host, |list| list.retain(|exposed| !Arc::ptr_eq(&exposed.entry, entry)));
        }
    }

    fn change(&mut self, host: &str, change: impl FnOnce(&mut Vec<Exposed>)) {
        let (lists, key) = match host.strip_prefix('*') {
            Some("") => {
                let mut list = self.any.to_vec();
                change(&mut list);
                self.any = list.into();
                return;
            }
            Some(suffix) => (&mut self.suffixes, suffix.to_ascii_lowercase()),
            None => (&mut self.exact, host.to_ascii_lowercase()),
        };
        let mut list = lists.get(&key).map(|list| list.to_vec()).unwrap_or_default();
        change(&mut list);
        if list.is_empty() {
            lists.remove(&key);
        } else {
            lists.insert(key, list.into());
        }
    }

    /// The function exposed at this host (without port) and normalised path (without query).
    pub fn find(&self, host: &str, path: &str) -> Option<&Arc<FunctionEntry>> {
        let host = lower(host);
        let pick = |list: &'_ [Exposed]| list.iter().position(|route| is_below(path, &route.prefix));
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

impl Exposed {
    /// The longer path first. The name only settles what the configuration refuses anyway: two functions at one place.
    fn comes_before(&self, other: &Self) -> bool {
        let order = other.prefix.len().cmp(&self.prefix.len()).then_with(|| self.entry.name.cmp(&other.entry.name));
        order.is_lt()
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
