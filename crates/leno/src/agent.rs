//! Puts what the control plane delivers into force on this node: programs are loaded, instances supervised, identities
//! certified, and then one pointer is swapped.

use crate::engines::Engines;
use crate::instances::{Hosted, reported};
use leno_config::{FunctionId, Slice};
use leno_control::node::{Agent, Change, Update, Updates};
use leno_control::{Resource, Subject};
use leno_function::{Function, FunctionSpec, Supervisor};
use leno_identity::SpiffeId;
use leno_proxy::jwks::{JwksFetcher, Pace};
use leno_proxy::{FunctionEntry, Node};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::watch;

/// Everything that an update touches.
pub struct Keeper {
    pub agent: Agent,
    pub node: Arc<Node>,
    pub engines: Arc<Engines>,
    pub supervisor: Supervisor,
    pub hosted: Arc<Hosted>,
    /// The identities that are to be certified.
    pub wanted: watch::Sender<BTreeSet<SpiffeId>>,
    /// The gateway's own identity, certified whatever is hosted.
    pub gateway: Option<SpiffeId>,
    /// Becomes true when the functions of this node are in force for the first time.
    pub applied: watch::Sender<bool>,
}

impl Keeper {
    /// Applies updates until the control plane's client ends.
    pub async fn run(self, mut updates: Updates) {
        self.agent.subscribe([Subject::Mesh, Subject::Bundle, Subject::Hosted, Subject::Routes]);
        let mut changes = self.supervisor.changes();
        let (fetcher, mut fetched) = JwksFetcher::start(self.node.ledger.unknown_keys.clone(), Pace::default());
        let mut functions = HashMap::new();
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Some(update) => self.apply(update, &fetcher, &mut functions).await,
                    None => return,
                },
                Some((id, slice)) = fetched.recv() => self.renew_keys(&id, slice).await,
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    functions.keys().for_each(|id| self.report(id));
                }
            }
        }
    }

    fn report(&self, id: &FunctionId) {
        self.agent.report(id, reported(&self.supervisor, id));
    }

    async fn apply(&self, update: Update, fetcher: &JwksFetcher, functions: &mut HashMap<FunctionId, Function>) {
        let mut next = self.node.snapshot.load().change();
        let mut rejected = Vec::new();
        let (mut complete, mut forgotten) = (false, false);
        for change in update.changes.iter().cloned() {
            let subject = change.subject();
            match change {
                Change::Set(Resource::Mesh(mesh)) => {
                    next.mesh(*mesh);
                }
                Change::Set(Resource::Bundle(bundle)) => self.node.svids.set_bundle(bundle),
                Change::Set(Resource::Slice(slice)) => match self.load(fetcher.follow(*slice)).await {
                    Ok(entry) => {
                        let function = self.supervisor.apply(FunctionSpec::from(&entry.slice));
                        functions.insert(entry.slice.id.clone(), function);
                        next.insert(entry);
                    }
                    Err(reason) => rejected.push((subject, reason)),
                },
                Change::Removed(Subject::Slice(id)) => {
                    fetcher.forget(&id);
                    next.remove(&id);
                    functions.remove(&id);
                    self.supervisor.remove(&id);
                    forgotten = true;
                }
                Change::Set(Resource::Hosted(_)) => complete = true,
                // One node hosts everything: there are no other nodes' endpoints, and the gateway's routes are in the slices.
                Change::Set(Resource::Endpoints(..) | Resource::Routes(_)) | Change::Removed(_) => {}
            }
        }
        self.hosted.set(functions.clone());
        let snapshot = next.finish();
        self.want(snapshot.functions.values().map(|entry| &*entry.identity));
        tracing::info!(version = snapshot.version, functions = snapshot.functions.len(), "configuration is in force");
        let snapshot = Arc::new(snapshot);
        self.node.snapshot.store(snapshot.clone());
        if forgotten {
            let called =
                snapshot.functions.values().flat_map(|entry| entry.slice.callees.iter().map(|callee| &callee.id));
            let known: HashSet<&FunctionId> = snapshot.functions.keys().chain(called).collect();
            self.node.ledger.retain(|function| known.contains(function));
        }
        for (subject, reason) in &rejected {
            tracing::error!(%subject, reason, "refused; what was in force goes on");
        }
        update.reject(rejected);
        if complete {
            self.applied.send_replace(true);
        }
    }

    /// A key set was fetched: the function's programs are compiled anew, and nothing else changes.
    async fn renew_keys(&self, id: &FunctionId, slice: Slice) {
        match self.load(slice).await {
            Ok(entry) => {
                let mut next = self.node.snapshot.load().change();
                next.insert(entry);
                self.node.snapshot.store(Arc::new(next.finish()));
                tracing::info!(function = %id, "a fetched key set is in force");
            }
            Err(reason) => {
                tracing::error!(function = %id, reason, "a fetched key set cannot be used; the keys there were go on")
            }
        }
    }

    /// Loading takes a millisecond or so for each program.
    async fn load(&self, slice: Slice) -> Result<Arc<FunctionEntry>, String> {
        let (engines, mesh) = (self.engines.clone(), self.node.snapshot.load().mesh.engine);
        let loading = tokio::task::spawn_blocking(move || {
            let engine = engines.choose(slice.engine, mesh).map_err(|error| error.to_string())?;
            let entry = FunctionEntry::load(engine, slice);
            for program in [&entry.inbound, &entry.outbound] {
                if let Err(reason) = &program.image {
                    return Err(format!("its {:?} program cannot be loaded: {reason}", program.spec.direction));
                }
            }
            Ok(Arc::new(entry))
        });
        loading.await.map_err(|error| error.to_string())?
    }

    fn want<'a>(&self, identities: impl Iterator<Item = &'a str>) {
        let parsed = identities.filter_map(|identity| identity.parse::<SpiffeId>().ok());
        let wanted: BTreeSet<SpiffeId> = parsed.chain(self.gateway.clone()).collect();
        // Told even if nothing changed: a new trust bundle may call for new certificates.
        self.wanted.send_replace(wanted);
    }
}
