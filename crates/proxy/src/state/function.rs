//! A function, as this node has it: its slice, and what was made ready from it.

use super::component;
use super::extension::Extension;
use super::modules::Modules;
use super::revisions::Revisions;
use super::signature::PreparedKeys;
use crate::runtime::schedule::Class;
use crate::telemetry::stats::StatsByRevision;
use leno_config::{Slice, slice};
use leno_policy::needs::Needs;
use leno_policy::spec::ProgramSpec;
use leno_sandbox::{Engine, Image};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Zero is no limit.
pub(crate) fn limit(time: Duration) -> Duration {
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
    pub revisions: Revisions,
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
    /// Request headers that its inbound program makes of claims; trailers may not have them.
    pub identity_fields: Arc<[Box<str>]>,
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
        let hosts = |(index, callee): (usize, &slice::Callee)| {
            callee.hosts.iter().map(move |host| (host.clone(), index)).collect::<Vec<_>>()
        };
        let claims = slice.inbound.authentication.iter().flat_map(|issuer| &issuer.claims_to_headers);
        Self {
            identity_fields: claims.map(|(_, header)| header.as_str().into()).collect(),
            identity: slice.identity.as_str().into(),
            inbound: LoadedProgram::load(engine, &slice.inbound, slice.deadline),
            outbound: LoadedProgram::load(engine, &slice.outbound, slice.deadline),
            inbound_extensions: load_all(modules, &name, &slice.inbound_extensions, false),
            outbound_extensions: load_all(modules, &name, &slice.outbound_extensions, true),
            revisions: Revisions::new(&slice, |run| component::load(modules, &name, run)),
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
    pub fn count_in(&self, revision_stats: &StatsByRevision) {
        let latency = self.slice.revisions.plan.rollout.as_ref().and_then(|rollout| rollout.latency);
        let slow_after = latency.map(|latency| latency.limit);
        for revision in self.revisions.all().filter(|_| self.slice.revisions.split.is_some()) {
            // Those that are there already are the same.
            let label = &revision.label;
            let _ = label.stats.set(revision_stats.of(&self.slice.id, label.number, slow_after));
        }
    }

    /// The longest that an exchange with one of its targets may take.
    pub fn longest_exchange(&self) -> Duration {
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
