//! The configuration that a request uses: one immutable value, swapped by an atomic pointer.
//!
//! A request pins one [`NodeSnapshot`] when it arrives, and keeps it until it ends. So nothing that
//! it looks up can dangle or change. A new snapshot shares everything unchanged with the old one.

use super::function::{FunctionEntry, limit};
use super::routes::Routes;
use super::routes::gateway::GatewayTables;
use super::shards::Shards;
use leno_model::{FunctionId, MeshConfig};
use leno_policy::connection;
use leno_policy::input::Peer;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// The configuration that routes and judges all requests of this node.
#[derive(Debug)]
pub struct NodeSnapshot {
    /// Grows by one with each change; for logs and `leno get`.
    pub version: u64,
    /// Settings of the whole mesh.
    pub mesh: Arc<MeshConfig>,
    /// Functions that this node has the configuration of.
    pub functions: Shards<FunctionId, Arc<FunctionEntry>>,
    /// The gateway's routes, derived from `functions` and `remote_routes`.
    pub routes: Routes,
    /// The listeners and routes of Gateway documents.
    pub gateway_routes: Arc<GatewayTables>,
    /// The gateway's identity. Remote nodes know its requests by it, and the gateway calls
    /// functions with it.
    pub gateway: Arc<str>,
    /// The gateway's routes to functions that remote nodes host.
    remote_routes: Shards<FunctionId, Arc<FunctionEntry>>,
    /// The longest time that any exchange may take; [`Duration::MAX`]: some exchanges have no
    /// limit.
    pub longest_exchange: Duration,
}

impl NodeSnapshot {
    /// Creates a snapshot of a mesh without functions.
    pub fn new(mesh: MeshConfig) -> Self {
        let longest_exchange = limit(mesh.limits.request_timeout);
        let (functions, routes, gateway_routes, remote_routes) = Default::default();
        let gateway = gateway(&mesh);
        Self {
            version: 0,
            mesh: Arc::new(mesh),
            functions,
            routes,
            gateway_routes,
            gateway,
            remote_routes,
            longest_exchange,
        }
    }

    /// Functions of remote nodes that the gateway has routes to.
    pub fn routed(&self) -> impl Iterator<Item = &FunctionId> {
        self.remote_routes.keys()
    }

    /// The gateway's routes to functions that only remote nodes host.
    pub fn remote_routes(&self) -> impl Iterator<Item = &Arc<FunctionEntry>> {
        self.remote_routes.values().filter(|route| self.functions.get(&route.config.id).is_none())
    }

    /// The function or External, if a gateway of this node can reach it.
    pub(crate) fn exposed(&self, id: &FunctionId) -> Option<&Arc<FunctionEntry>> {
        self.functions.get(id).or_else(|| self.remote_routes.get(id))
    }

    /// This configuration with removed functions added, which have no routes. A removed function
    /// that exists again is left out.
    pub(crate) fn with_removed<'a>(&self, removed: impl Iterator<Item = &'a Arc<FunctionEntry>>) -> Self {
        let mut functions = self.functions.clone();
        for entry in removed {
            if functions.get(&entry.config.id).is_none() {
                functions.insert(entry.config.id.clone(), entry.clone());
            }
        }
        Self {
            version: self.version,
            mesh: self.mesh.clone(),
            functions,
            routes: self.routes.clone(),
            gateway_routes: self.gateway_routes.clone(),
            gateway: self.gateway.clone(),
            remote_routes: self.remote_routes.clone(),
            longest_exchange: self.longest_exchange,
        }
    }

    /// Judges whether a function may connect to a port of a callee. `host` is the server name in
    /// the TLS hello, once it is known, and empty before. Returns the rule that allows the
    /// connection, and the callee.
    pub(crate) fn judge_connection(
        &self,
        caller: &FunctionEntry,
        callee: &FunctionId,
        port: u16,
        host: &str,
    ) -> Result<(String, Arc<FunctionEntry>), ConnectionRefusal> {
        let refused = |reason: &str| ConnectionRefusal { rule: String::new(), reason: reason.to_owned() };
        let entry = self.functions.get(callee).ok_or_else(|| refused("this node does not run it"))?;
        if self.mesh.mtls_same_node && entry.external.is_none() {
            return Err(refused(
                "all calls of this mesh go through mutual TLS, and connections without requests cannot",
            ));
        }
        let peer = Peer { identity: Some(&caller.identity), address: Some(Ipv4Addr::LOCALHOST.into()) };
        match connection::judge(&entry.inbound.spec, peer, port, host) {
            Ok(rule) => Ok((rule.to_owned(), entry.clone())),
            Err(denial) => Err(ConnectionRefusal { rule: denial.rule, reason: denial.clause }),
        }
    }

    /// Starts a change. This snapshot stays as it is; [`Change::finish`] makes the new one.
    pub fn change(&self) -> Change {
        Change {
            version: self.version + 1,
            mesh: self.mesh.clone(),
            functions: self.functions.clone(),
            routes: self.routes.clone(),
            gateway_routes: self.gateway_routes.clone(),
            gateway: self.gateway.clone(),
            remote_routes: self.remote_routes.clone(),
            longest_exchange: Some(self.longest_exchange),
        }
    }
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionRefusal {
    /// The rule that decided; empty if none did.
    pub rule: String,
    /// Why.
    pub reason: String,
}

/// A snapshot under construction. Its cost depends on the size of the change, not on the number of
/// functions.
#[derive(Debug)]
pub struct Change {
    version: u64,
    mesh: Arc<MeshConfig>,
    functions: Shards<FunctionId, Arc<FunctionEntry>>,
    routes: Routes,
    gateway_routes: Arc<GatewayTables>,
    gateway: Arc<str>,
    remote_routes: Shards<FunctionId, Arc<FunctionEntry>>,
    /// `None`: the function that set the maximum may be gone, so it must be computed anew.
    longest_exchange: Option<Duration>,
}

impl Change {
    /// Replaces the settings of the whole mesh.
    pub fn mesh(&mut self, mesh: MeshConfig) -> &mut Self {
        self.gateway = gateway(&mesh);
        self.mesh = Arc::new(mesh);
        self.longest_exchange = None;
        self
    }

    /// Adds a function, or replaces it.
    pub fn insert(&mut self, entry: Arc<FunctionEntry>) -> &mut Self {
        debug_assert!(!entry.remote, "a route judges nothing");
        self.remove(&entry.config.id);
        // The gateway needs no remote route to a function that this node hosts.
        if let Some(route) = self.remote_routes.get(&entry.config.id) {
            self.routes.remove(route);
        }
        self.routes.insert(&entry);
        self.longest_exchange = self.longest_exchange.map(|longest| longest.max(entry.longest_exchange()));
        self.functions.insert(entry.config.id.clone(), entry);
        self
    }

    /// Removes a function. The new snapshot has no routes to it unless remote nodes host it, and
    /// does not judge calls of its instances.
    pub fn remove(&mut self, function: &FunctionId) -> &mut Self {
        if let Some(entry) = self.functions.remove(function) {
            self.routes.remove(&entry);
            self.forget_longest(&entry);
            if let Some(route) = self.remote_routes.get(function) {
                self.routes.insert(route);
            }
        }
        self
    }

    /// Adds or replaces the gateway's route to a function that remote nodes host. While this node
    /// hosts the function too, the route is not used.
    pub fn insert_route(&mut self, route: Arc<FunctionEntry>) -> &mut Self {
        let id = route.config.id.clone();
        self.remove_route(&id);
        if self.functions.get(&id).is_none() {
            self.routes.insert(&route);
        }
        self.longest_exchange = self.longest_exchange.map(|longest| longest.max(route.longest_exchange()));
        self.remote_routes.insert(id, route);
        self
    }

    /// Removes the gateway's route to a function that remote nodes host.
    pub fn remove_route(&mut self, function: &FunctionId) -> &mut Self {
        if let Some(route) = self.remote_routes.remove(function) {
            self.routes.remove(&route);
            self.forget_longest(&route);
        }
        self
    }

    /// Replaces the listeners and routes of Gateway documents.
    pub fn gateway_routes(&mut self, routes: Arc<GatewayTables>) -> &mut Self {
        self.gateway_routes = routes;
        self.longest_exchange = None;
        self
    }

    fn forget_longest(&mut self, entry: &FunctionEntry) {
        self.longest_exchange = self.longest_exchange.filter(|longest| entry.longest_exchange() < *longest);
    }

    /// Makes the new snapshot.
    pub fn finish(self) -> NodeSnapshot {
        let Self { version, mesh, functions, routes, gateway_routes, gateway, remote_routes, longest_exchange } = self;
        let longest_exchange = longest_exchange.unwrap_or_else(|| {
            let each = functions.values().chain(remote_routes.values()).map(|entry| entry.longest_exchange());
            each.fold(limit(mesh.limits.request_timeout).max(gateway_routes.longest), Duration::max)
        });
        NodeSnapshot { version, mesh, functions, routes, gateway_routes, gateway, remote_routes, longest_exchange }
    }
}

/// The SPIFFE ID of gateways. No function can have it.
fn gateway(mesh: &MeshConfig) -> Arc<str> {
    format!("spiffe://{}/ns/leno-system/sa/gateway", mesh.trust_domain).into()
}
