//! The configuration that a request sees: one immutable value, swapped by an atomic pointer.
//!
//! A request pins one [`NodeSnapshot`] when it arrives, and keeps it until it ends. So nothing that it looks up can dangle or change. A new
//! snapshot shares everything unchanged with the old one.

use super::function::{FunctionEntry, limit};
use super::routes::Routes;
use super::shards::Shards;
use leno_config::{FunctionId, MeshSlice};
use std::sync::Arc;
use std::time::Duration;

/// Everything that requests on this node are routed and judged by.
#[derive(Debug)]
pub struct NodeSnapshot {
    /// Grows by one with each change; for logs and `leno get`.
    pub version: u64,
    /// Settings of the whole mesh.
    pub mesh: Arc<MeshSlice>,
    /// Functions whose slices this node has.
    pub functions: Shards<FunctionId, Arc<FunctionEntry>>,
    /// The gateway's routes, derived from `functions`.
    pub routes: Routes,
    /// The longest time that any exchange may take; [`Duration::MAX`]: some exchanges have no limit.
    pub longest_exchange: Duration,
}

impl NodeSnapshot {
    /// Creates a snapshot of a mesh without functions.
    pub fn new(mesh: MeshSlice) -> Self {
        let longest_exchange = limit(mesh.limits.request_timeout);
        let (functions, routes) = Default::default();
        Self { version: 0, mesh: Arc::new(mesh), functions, routes, longest_exchange }
    }

    /// Starts a change. This snapshot stays as it is; [`Change::finish`] makes the new one.
    pub fn change(&self) -> Change {
        Change {
            version: self.version + 1,
            mesh: self.mesh.clone(),
            functions: self.functions.clone(),
            routes: self.routes.clone(),
            longest_exchange: Some(self.longest_exchange),
        }
    }
}

/// A snapshot in the making. Its cost depends on what changes, not on the number of functions.
#[derive(Debug)]
pub struct Change {
    version: u64,
    mesh: Arc<MeshSlice>,
    functions: Shards<FunctionId, Arc<FunctionEntry>>,
    routes: Routes,
    /// `None`: the function that set the maximum may be gone, so it must be computed anew.
    longest_exchange: Option<Duration>,
}

impl Change {
    /// Replaces the settings of the whole mesh.
    pub fn mesh(&mut self, mesh: MeshSlice) -> &mut Self {
        self.mesh = Arc::new(mesh);
        self.longest_exchange = None;
        self
    }

    /// Adds a function, or replaces it.
    pub fn insert(&mut self, entry: Arc<FunctionEntry>) -> &mut Self {
        self.remove(&entry.slice.id);
        self.routes.insert(&entry);
        self.longest_exchange = self.longest_exchange.map(|longest| longest.max(entry.longest_exchange()));
        self.functions.insert(entry.slice.id.clone(), entry);
        self
    }

    /// Removes a function. The new snapshot has no routes to it, and judges no calls of its instances.
    pub fn remove(&mut self, function: &FunctionId) -> &mut Self {
        if let Some(entry) = self.functions.remove(function) {
            self.routes.remove(&entry);
            self.longest_exchange = self.longest_exchange.filter(|longest| entry.longest_exchange() < *longest);
        }
        self
    }

    /// Makes the new snapshot.
    pub fn finish(self) -> NodeSnapshot {
        let Self { version, mesh, functions, routes, longest_exchange } = self;
        let longest_exchange = longest_exchange.unwrap_or_else(|| {
            let each = functions.values().map(|entry| entry.longest_exchange());
            each.fold(limit(mesh.limits.request_timeout), Duration::max)
        });
        NodeSnapshot { version, mesh, functions, routes, longest_exchange }
    }
}
