//! Puts what the control plane delivers into force on this node: programs are loaded, instances supervised, identities
//! certified, and then one pointer is swapped.

use crate::engines::Engines;
use crate::instances::{Hosted, Lanes, reported};
use crate::jobs::Jobs;
use crate::leaving::{self, Leaving};
use crate::retries::Retries;
use leno_config::slice::Run;
use leno_config::{FunctionId, ModuleHash, Slice, slice};
use leno_control::node::{Agent, Change, Update, Updates};
use leno_control::{Resource, RevisionCounts, Subject};
use leno_function::{FunctionSpec, Supervisor};
use leno_identity::SpiffeId;
use leno_proxy::ModuleFetcher;
use leno_proxy::extension::Extension;
use leno_proxy::jwks::{JwksFetcher, Pace};
use leno_proxy::modules::Modules;
use leno_proxy::shards::Shards;
use leno_proxy::stats::Counts;
use leno_proxy::{FunctionEntry, Node};
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

/// Between two reports of what became of requests, where there are several revisions.
const TALLY_TICK: Duration = Duration::from_millis(500);

/// Instances that come or go within this time are told of together: in a burst that takes few messages instead of one for each.
const TOGETHER: Duration = Duration::from_millis(20);

/// How often jobs that want a certificate are looked at.
const CERTIFIED: Duration = Duration::from_millis(5);

/// Everything that an update touches.
pub struct Keeper {
    pub agent: Agent,
    pub node: Arc<Node>,
    pub engines: Arc<Engines>,
    pub supervisor: Supervisor,
    pub hosted: Arc<Hosted>,
    /// Modules of extensions, and components.
    pub modules: Arc<Modules>,
    /// Functions to be loaded again.
    pub retries: Mutex<Retries>,
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
        let (modules, mut fetched_modules) = ModuleFetcher::new(self.modules.clone());
        let mut functions = Shards::default();
        let mut leaving = Leaving::default();
        let mut tick = tokio::time::interval(TALLY_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut jobs = Jobs::new(self.agent.clone(), self.supervisor.clone(), self.node.svids.clone());
        let mut job_changes = self.supervisor.job_changes();
        let mut report_at = None;
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Some(update) => {
                        let fetches = self.changes_fetches(&update);
                        self.apply(update, &fetcher, (&mut functions, &mut leaving), &mut jobs).await;
                        if fetches {
                            self.fetch_modules(&modules);
                        }
                    }
                    None => return,
                },
                () = tokio::time::sleep(leaving::LOOK), if !leaving.is_empty() => {
                    self.let_go(&mut functions, &mut leaving);
                }
                Some((id, slice)) = fetched.recv() => self.renew_keys(&id, slice).await,
                // What may be called is in force when the first jobs start.
                () = tokio::time::sleep(CERTIFIED), if jobs.are_waiting() && *self.applied.borrow() => jobs.start(),
                Ok(()) = job_changes.changed() => jobs.report(),
                Some(hash) = fetched_modules.recv() => self.extend(&hash).await,
                () = sleep_until(self.retry_at().unwrap_or_else(Instant::now)), if self.retry_at().is_some() => {
                    self.retry().await;
                }
                _ = tick.tick(), if self.node.revision_stats.any() => self.tell_traffic(),
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    report_at.get_or_insert_with(|| Instant::now() + TOGETHER);
                }
                () = sleep_until(report_at.unwrap_or_else(Instant::now)), if report_at.is_some() => {
                    report_at = None;
                    self.supervisor.take_changed().iter().for_each(|id| self.report(id));
                }
            }
        }
    }

    /// What became of requests, where there are several revisions.
    fn tell_traffic(&self) {
        for (id, counts) in self.node.revision_stats.counts() {
            let of =
                |(revision, Counts { requests, failed, slow })| (revision, RevisionCounts { requests, failed, slow });
            self.agent.traffic(&id, &counts.into_iter().map(of).collect::<Vec<_>>());
        }
    }

    fn report(&self, id: &FunctionId) {
        self.agent.report(id, reported(&self.supervisor, id));
    }

    async fn apply(
        &self,
        update: Update,
        fetcher: &JwksFetcher,
        (functions, leaving): (&mut Shards<FunctionId, Lanes>, &mut Leaving),
        jobs: &mut Jobs,
    ) {
        let before = self.node.snapshot.load_full();
        let mut next = before.change();
        let mut removed = BTreeSet::new();
        let mut rejected = Vec::new();
        let (mut complete, mut forgotten, mut replaced) = (false, false, false);
        let mut come = Vec::new();
        for change in update.changes.iter().cloned() {
            let subject = change.subject();
            match change {
                Change::Set(Resource::Mesh(mesh)) => {
                    next.mesh(*mesh);
                }
                Change::Set(Resource::Bundle(bundle)) => self.node.svids.set_bundle(bundle),
                Change::Set(Resource::Slice(slice)) => match self.load(fetcher.follow(*slice)).await {
                    Ok(entry) => {
                        let id = &entry.slice.id;
                        leaving.keep(id);
                        removed.remove(id);
                        if let Run::Job(job) = &entry.slice.run {
                            // It may have been a function until now.
                            self.supervisor.remove(id);
                            replaced |= functions.remove(id).is_some();
                            if let Err(reason) = jobs.apply(&entry.slice, job) {
                                rejected.push((subject, reason));
                                continue;
                            }
                        } else {
                            jobs.remove(id);
                            let revisions = self.supervisor.apply_all(FunctionSpec::all(&entry.slice));
                            if let Some(lanes) = Lanes::new(revisions) {
                                replaced |= functions.insert(id.clone(), lanes).is_some();
                            }
                        }
                        come.push(entry.clone());
                        next.insert(entry);
                    }
                    Err(reason) => rejected.push((subject, reason)),
                },
                Change::Set(Resource::Module(hash, bytes)) => {
                    let modules = self.modules.clone();
                    let compiled = tokio::task::spawn_blocking(move || modules.add(hash, &bytes)).await;
                    if let Err(reason) = compiled.map_err(|error| error.to_string()).flatten() {
                        rejected.push((subject, reason));
                    }
                }
                Change::Removed(Subject::Module(hash)) => self.modules.remove(&hash),
                Change::Removed(Subject::Slice(id)) => {
                    fetcher.forget(&id);
                    self.retries().forget(&id);
                    next.remove(&id);
                    self.node.revision_stats.keep(&id, &[]);
                    jobs.remove(&id);
                    if functions.get(&id).is_some() {
                        removed.insert(id);
                    }
                    forgotten = true;
                }
                Change::Set(Resource::Hosted(_)) => complete = true,
                // One node hosts everything: there are no other nodes' endpoints, and the gateway's routes are in the slices.
                Change::Set(Resource::Endpoints(..) | Resource::Routes) | Change::Removed(_) => {}
            }
        }
        // The control plane counts from here on; so it must know before the first request is led to a new revision.
        self.tell_traffic();
        self.hosted.set(functions.clone());
        let snapshot = next.finish();
        let snapshot = Arc::new(snapshot);
        // Whoever does not find a function in the new one finds it there.
        leaving.add(&self.node, before, removed, snapshot.mesh.limits.drain_timeout);
        self.node.publish(snapshot.clone());
        tracing::info!(version = snapshot.version, functions = snapshot.functions.len(), "configuration is in force");
        // Only now that no new request is led to them.
        for entry in &come {
            let keep: Vec<u32> = entry.slice.all_revisions().map(|revision| revision.number).collect();
            self.supervisor.retire(&entry.slice.id, &keep);
            let several = entry.slice.revisions.split.is_some();
            self.node.revision_stats.keep(&entry.slice.id, if several { &keep } else { &[] });
        }
        // Requests from the gateway and on this node need no certificate, so they do not wait for keys to be made.
        if forgotten || replaced {
            self.want(snapshot.functions.values().chain(leaving.entries()));
        } else {
            self.want_too(&come);
        }
        if forgotten {
            self.forget(leaving);
        }
        for (subject, reason) in &rejected {
            tracing::error!(%subject, reason, "refused; what was in force goes on");
        }
        update.reject(rejected);
        if complete {
            self.applied.send_replace(true);
        }
    }

    /// Lets go of removed functions that nothing calls any more.
    fn let_go(&self, functions: &mut Shards<FunctionId, Lanes>, leaving: &mut Leaving) {
        let gone = leaving.gone(&self.node, &self.supervisor);
        if gone.is_empty() {
            return;
        }
        for id in &gone {
            functions.remove(id);
        }
        self.hosted.set(functions.clone());
        gone.iter().for_each(|id| self.supervisor.remove(id));
        self.want(self.node.snapshot.load().functions.values().chain(leaving.entries()));
        self.forget(leaving);
    }

    /// Empties the ledger of what no function of this node is, or calls.
    fn forget(&self, leaving: &Leaving) {
        let snapshot = self.node.snapshot.load();
        let entries = || snapshot.functions.values().chain(leaving.entries());
        let called = entries().flat_map(|entry| entry.slice.callees.iter().map(|callee| &callee.id));
        let known: HashSet<&FunctionId> = entries().map(|entry| &entry.slice.id).chain(called).collect();
        self.node.ledger.retain(|function| known.contains(function));
    }

    /// A key set was fetched: the function's programs are compiled anew, and nothing else changes.
    async fn renew_keys(&self, id: &FunctionId, slice: Slice) {
        match self.load(slice).await {
            Ok(entry) => {
                let mut next = self.node.snapshot.load().change();
                next.insert(entry);
                self.node.publish(Arc::new(next.finish()));
                tracing::info!(function = %id, "a fetched key set is in force");
            }
            Err(reason) => {
                tracing::error!(function = %id, reason, "a fetched key set cannot be used; the keys there were go on")
            }
        }
    }

    /// Whether an update may change which modules are to be fetched. A new function that names none does not, and costs no look at all others.
    fn changes_fetches(&self, update: &Update) -> bool {
        let snapshot = self.node.snapshot.load();
        update.changes.iter().any(|change| match change {
            Change::Set(Resource::Slice(slice)) => {
                slice.modules().any(|(_, url)| url.is_some()) || snapshot.functions.get(&slice.id).is_some()
            }
            Change::Removed(subject) => matches!(subject, Subject::Slice(_)),
            Change::Set(_) => false,
        })
    }

    /// Has the modules fetched that have addresses.
    fn fetch_modules(&self, fetcher: &ModuleFetcher) {
        let snapshot = self.node.snapshot.load();
        let slices = snapshot.functions.values().map(|entry| &entry.slice);
        let all = slices.flat_map(Slice::modules);
        let named = all.clone().map(|(module, _)| module).collect();
        let wanted: Vec<_> = all.filter_map(|(module, url)| Some((module, url?.clone()))).collect();
        fetcher.want(&wanted, &named);
    }

    /// A module was fetched: the functions that name it are loaded anew, and nothing else changes.
    async fn extend(&self, hash: &ModuleHash) {
        let snapshot = self.node.snapshot.load_full();
        for entry in snapshot.functions.values() {
            if !entry.slice.modules().any(|(module, _)| module == *hash) {
                continue;
            }
            match self.load(entry.slice.clone()).await {
                Ok(loaded) => {
                    let mut next = self.node.snapshot.load().change();
                    next.insert(loaded);
                    self.node.publish(Arc::new(next.finish()));
                    tracing::info!(function = %entry.slice.id, module = %hash, "a fetched module is in force");
                }
                Err(reason) => {
                    tracing::error!(function = %entry.slice.id, reason, "the function cannot be loaded anew")
                }
            }
        }
    }

    fn retries(&self) -> MutexGuard<'_, Retries> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retry_at(&self) -> Option<Instant> {
        self.retries().next()
    }

    /// Loads those again that have an extension which was not loaded.
    async fn retry(&self) {
        let due = self.retries().due(Instant::now());
        for id in due {
            let Some(entry) = self.node.snapshot.load().functions.get(&id).cloned() else {
                self.retries().forget(&id);
                continue;
            };
            match self.load(entry.slice.clone()).await {
                Ok(loaded) => {
                    let mut next = self.node.snapshot.load().change();
                    next.insert(loaded);
                    self.node.publish(Arc::new(next.finish()));
                }
                Err(reason) => {
                    tracing::error!(function = %id, reason, "the function cannot be loaded anew");
                    self.retries().forget(&id);
                }
            }
        }
    }

    async fn load(&self, slice: Slice) -> Result<Arc<FunctionEntry>, String> {
        let entry = self.loaded(slice).await?;
        self.retries().note(&entry, &self.modules, Instant::now());
        Ok(entry)
    }

    /// Loading takes a millisecond or so for each program.
    async fn loaded(&self, slice: Slice) -> Result<Arc<FunctionEntry>, String> {
        let (engines, modules, node) = (self.engines.clone(), self.modules.clone(), self.node.clone());
        let mesh = node.snapshot.load().mesh.engine;
        let loading = tokio::task::spawn_blocking(move || {
            let engine = engines.choose(slice.engine, mesh).map_err(|error| error.to_string())?;
            let entry = FunctionEntry::load_with(engine, &modules, slice);
            entry.count_in(&node.revision_stats);
            for program in [&entry.inbound, &entry.outbound] {
                if let Err(reason) = &program.image {
                    return Err(format!("its {:?} program cannot be loaded: {reason}", program.spec.direction));
                }
            }
            delivered(&entry.slice.inbound_extensions, &entry.inbound_extensions)?;
            delivered(&entry.slice.outbound_extensions, &entry.outbound_extensions)?;
            for component in entry.revisions.all().filter_map(|revision| revision.component.as_ref()) {
                if let (Err(reason), false) = (&component.program, component.fetched) {
                    return Err(format!("its component cannot be loaded: {reason}"));
                }
            }
            Ok(Arc::new(entry))
        });
        loading.await.map_err(|error| error.to_string())?
    }

    fn want<'a>(&self, entries: impl Iterator<Item = &'a Arc<FunctionEntry>>) {
        let wanted: BTreeSet<SpiffeId> = entries.filter_map(identity).chain(self.gateway.clone()).collect();
        self.wanted.send_replace(wanted);
    }

    /// Told even if nothing is new: a new trust bundle may call for new certificates.
    fn want_too(&self, come: &[Arc<FunctionEntry>]) {
        self.wanted.send_modify(|wanted| wanted.extend(come.iter().filter_map(identity).chain(self.gateway.clone())));
    }
}

fn identity(entry: &Arc<FunctionEntry>) -> Option<SpiffeId> {
    entry.identity.parse().ok()
}

/// An extension whose module was delivered must be ready; one whose module is fetched may come later, or never.
fn delivered(specs: &[slice::Extension], loaded: &[Extension]) -> Result<(), String> {
    for (spec, extension) in specs.iter().zip(loaded).filter(|(spec, _)| spec.url.is_none()) {
        if let Err(reason) = &extension.plugin {
            return Err(format!("its extension {} cannot be loaded: {reason}", spec.name));
        }
    }
    Ok(())
}
