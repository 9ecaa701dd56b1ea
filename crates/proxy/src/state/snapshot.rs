//! The configuration that a request sees: one immutable value, swapped by an atomic pointer.
//!
//! A request pins one [`NodeSnapshot`] when it arrives and keeps it to its end, so nothing it looks up can dangle or change
//! under it. A new snapshot shares everything that did not change with the old one.

use super::function::{FunctionEntry, limit};
use super::routes::Routes;
use super::shards::Shards;
use leno_config::{FunctionId, MeshSlice};
use std::sync::Arc;
use std::time::Duration;

/// Everything that requests on this node are judged and routed by.
#[derive(Debug)]
pub struct NodeSnapshot {
    /// Grows by one with each change; for logs and `leno get`.
    pub version: u64,
    /// What holds for the whole mesh.
    pub mesh: Arc<MeshSlice>,
    /// Functions whose slices this node has.
    pub functions: Shards<FunctionId, Arc<FunctionEntry>>,
    /// What the gateway lets in, derived from `functions`.
    pub routes: Routes,
    /// No exchange may take longer than this; [`Duration::MAX`]: some may take as long as they like.
    pub longest_exchange: Duration,
}

impl NodeSnapshot {
    /// A mesh without functions.
    pub fn new(mesh: MeshSlice) -> Self {
        let longest_exchange = limit(mesh.limits.request_timeout);
        let (functions, routes) = Default::default();
        Self { version: 0, mesh: Arc::new(mesh), functions, routes, longest_exchange }
    }

    /// Starts a change of this snapshot; the snapshot itself stays as it is.
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

/// A snapshot in the making. What it costs depends on what changes, not on how many functions there are.
#[derive(Debug)]
pub struct Change {
    version: u64,
    mesh: Arc<MeshSlice>,
    functions: Shards<FunctionId, Arc<FunctionEntry>>,
    routes: Routes,
    /// `None`: whatever made it the longest may be gone.
    longest_exchange: Option<Duration>,
}

impl Change {
    /// Replaces what holds for the whole mesh.
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

    /// Removes a function: requests to it find no route, its instances have no say any more.
    pub fn remove(&mut self, function: &FunctionId) -> &mut Self {
        if let Some(entry) = self.functions.remove(function) {
            self.routes.remove(&entry);
            self.longest_exchange = self.longest_exchange.filter(|longest| entry.longest_exchange() < *longest);
        }
        self
    }

    /// The new snapshot.
    pub fn finish(self) -> NodeSnapshot {
        let Self { version, mesh, functions, routes, longest_exchange } = self;
        let longest_exchange = longest_exchange.unwrap_or_else(|| {
            let each = functions.values().map(|entry| entry.longest_exchange());
            each.fold(limit(mesh.limits.request_timeout), Duration::max)
        });
        NodeSnapshot { version, mesh, functions, routes, longest_exchange }
    }
}
