//! The configuration that a request sees: one immutable value, swapped by an atomic pointer.
//!
//! A request pins one [`NodeSnapshot`] when it arrives and keeps it to its end, so nothing it looks up can dangle or change
//! under it. A new snapshot shares everything that did not change with the old one.

use crate::component;
use crate::extension::{Extension, Modules};
use crate::route::Routes;
use crate::schedule::Class;
use crate::shards::Shards;
use crate::signature::PreparedKeys;
use crate::split::Lanes;
use crate::tally::Tallies;
use leno_config::{FunctionId, MeshSlice, Slice, slice};
use leno_policy::needs::Needs;
use leno_policy::spec::ProgramSpec;
use leno_sandbox::{Engine, Image};
use std::collections::HashMap;
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

/// Zero is no limit.
fn limit(time: Duration) -> Duration {
    if time.is_zero() { Duration::MAX } else { time }
}

/// One function: its slice, and what was made ready from it.
#[derive(Debug)]
pub struct FunctionEntry {
    /// As delivered.
    pub slice: Slice,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Its revisions.
    pub lanes: Lanes,
    /// Whose turn it is when one of its tasks is next.
    pub class: Class,
    /// SPIFFE ID.
    pub identity: Arc<str>,
    /// Judges what comes in.
    pub inbound: LoadedProgram,
    /// Judges what it calls.
    pub outbound: LoadedProgram,
    /// User-written policies for what comes in, in order.
    pub inbound_extensions: Box<[Extension]>,
    /// User-written policies for what it calls, in order.
    pub outbound_extensions: Box<[Extension]>,
    /// Public keys that the programs name.
    pub keys: PreparedKeys,
    /// Index into `slice.callees` by host name (lower case, without port).
    pub callees: HashMap<String, usize>,
}

impl FunctionEntry {
    /// Loads both programs; this takes a millisecond or so, and does not belong on a worker thread. A program that does not load
    /// is kept as [`LoadedProgram::image`]'s error, and denies every request.
    pub fn load(engine: &Engine, slice: Slice) -> Self {
        Self::load_with(engine, &Modules::default(), slice)
    }

    /// As [`FunctionEntry::load`], with the modules for its extensions, and its component. One whose module is missing, or does not
    /// start, is kept as [`Extension::plugin`]'s error; a component that cannot be run, as [`component::Component::program`]'s.
    pub fn load_with(engine: &Engine, modules: &Modules, slice: Slice) -> Self {
        let name: Arc<str> = slice.id.to_string().into();
        let hosts = |(index, callee): (usize, &leno_config::slice::Callee)| {
            callee.hosts.iter().map(move |host| (host.clone(), index)).collect::<Vec<_>>()
        };
        Self {
            identity: slice.identity.as_str().into(),
            inbound: LoadedProgram::load(engine, &slice.inbound, slice.deadline),
            outbound: LoadedProgram::load(engine, &slice.outbound, slice.deadline),
            inbound_extensions: load_all(modules, &name, &slice.inbound_extensions, false),
            outbound_extensions: load_all(modules, &name, &slice.outbound_extensions, true),
            lanes: Lanes::new(&slice, |run| component::load(modules, &name, run)),
            callees: slice.callees.iter().enumerate().flat_map(hosts).collect(),
            keys: PreparedKeys::new(&slice.keys),
            class: Class::of(&name),
            name,
            slice,
        }
    }
}

impl FunctionEntry {
    /// Has what becomes of its requests counted, revision by revision, if there are several.
    pub fn count_in(&self, tallies: &Tallies) {
        let latency = self.slice.revisions.plan.rollout.as_ref().and_then(|rollout| rollout.latency);
        let slow_after = latency.map(|latency| latency.limit);
        for lane in self.lanes.all().filter(|_| self.slice.revisions.split.is_some()) {
            // Those that are there already are the same.
            let _ = lane.tally.set(tallies.of(&self.slice.id, lane.number, slow_after));
        }
    }

    /// The longest that an exchange with one of its targets may take.
    fn longest_exchange(&self) -> Duration {
        let targets = self.inbound.spec.targets.iter().chain(&self.outbound.spec.targets);
        targets.map(|target| limit(Duration::from_millis(target.timeout_ms))).max().unwrap_or_default()
    }
}

fn load_all(modules: &Modules, function: &str, list: &[slice::Extension], outbound: bool) -> Box<[Extension]> {
    list.iter().map(|extension| Extension::load(modules, function, extension, outbound)).collect()
}

/// One direction's program, ready to be run.
#[derive(Debug)]
pub struct LoadedProgram {
    /// The initialised program, or why it could not be loaded (then it denies everything).
    pub image: Result<Image, String>,
    /// What it was made from; the runtime renders counter keys and names rules by it.
    pub spec: Arc<ProgramSpec>,
    /// What it wants to be handed.
    pub needs: Needs,
    /// Longest run.
    pub deadline: Duration,
}

impl LoadedProgram {
    /// Initialises a program in `engine`.
    pub fn load(engine: &Engine, spec: &ProgramSpec, deadline: Duration) -> Self {
        let image = postcard::to_allocvec(spec)
            .map_err(|error| error.to_string())
            .and_then(|blob| engine.load(&blob).map_err(|error| error.to_string()));
        Self { image, spec: Arc::new(spec.clone()), needs: Needs::of(spec), deadline }
    }
}
