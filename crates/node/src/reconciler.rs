//! Applies the control plane's updates on this node: loads programs, supervises instances,
//! certifies identities, and then publishes a new snapshot.
//!
//! Loads run in separate tasks, one at a time but for [`crate::loads`]. So updates and reloads take
//! effect in the order of their arrival, and reports do not wait for them.

mod apply;
mod plan;

use crate::draining::{self, Draining};
use crate::images::Images;
use crate::instances::{HostedFunctions, Revisions};
use crate::jobs::Jobs;
use crate::listeners::Listeners;
use crate::loader::{LoadRequest, LoadResult, Loader};
use crate::loads::{Loads, Purpose};
use crate::open_ports::{OpenPorts, RETRY_INTERVAL};
use crate::placement::{DeliveredBounds, ReportedDemands, ReportedLoads};
use crate::pods::Pods;
use crate::retries::Retries;
use crate::warm::Warm;
use crate::workloads::Workloads;
use leno_agent::{Agent, Change, Term, Update, Updates};
use leno_identity::SpiffeId;
use leno_model::Run;
use leno_model::{FunctionConfig, FunctionId, ModuleHash};
use leno_proxy::jwks::{JwksFetcher, Pace};
use leno_proxy::shards::Shards;
use leno_proxy::{Download, FunctionEntry, GatewayPorts, ModuleFetcher, Node};
use leno_supervisor::Supervisor;
use leno_telemetry::stats::Counts;
use leno_wire::{Capacity, NodeOffer, Resource, RevisionCounts, Subject};
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

/// Interval between reports of request counts, for functions with several revisions.
const REQUEST_COUNTS_INTERVAL: Duration = Duration::from_millis(500);

/// The node reports changes of instances within this time together, so that a burst takes few
/// messages.
const REPORT_DELAY: Duration = Duration::from_millis(20);

/// Interval between reports of load, if anything has changed.
const LOAD_INTERVAL: Duration = Duration::from_millis(250);

/// Interval between checks for the certificates of jobs.
const CERT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The parts of the node that an update changes.
pub(crate) struct Reconciler {
    pub agent: Agent,
    pub node: Arc<Node>,
    pub loader: Loader,
    pub supervisor: Supervisor,
    /// The pods that this node captures; `None`: it captures none.
    pub pods: Option<Pods>,
    pub hosted: Arc<HostedFunctions>,
    pub images: Arc<Images>,
    /// The node's capacity for instances; `None`: it offers none.
    pub capacity: Option<Capacity>,
    /// It cannot put instances into jails.
    pub without_jails: bool,
    /// The identities to certify.
    pub wanted: watch::Sender<BTreeSet<SpiffeId>>,
    /// The identities of the node itself and, if it is a gateway, of gateways. They are certified
    /// regardless of the functions that the node hosts.
    pub own: BTreeSet<SpiffeId>,
    /// Whether the node is a gateway.
    pub gateway: bool,
    /// The addresses of its listeners.
    pub listeners: Listeners,
    /// Becomes true when the node has applied its functions for the first time.
    pub applied: watch::Sender<bool>,
    /// Whether jobs may start: not while the parent process of a hot restart owns the node.
    pub jobs: watch::Receiver<bool>,
    /// The number of instances that each function starts with.
    pub warm: Warm,
    /// The ports that Gateway documents open.
    pub ports: GatewayPorts,
}

/// The state of the loop between events.
struct LoopState {
    /// The functions that get requests on this node.
    functions: Shards<FunctionId, Revisions>,
    draining: Draining,
    jobs: Jobs,
    retries: Retries,
    keys: JwksFetcher,
    modules: ModuleFetcher,
    bounds: DeliveredBounds,
    loads: ReportedLoads,
    demands: ReportedDemands,
    ports: OpenPorts,
}

impl Reconciler {
    /// Applies updates until the control plane's client ends.
    pub(crate) async fn run(self, mut updates: Updates) {
        let routes = self.gateway.then_some(Subject::Routes);
        self.agent.subscribe([Subject::Mesh, Subject::Bundle, Subject::Hosted].into_iter().chain(routes));
        let mut changes = self.supervisor.changes();
        let mut pod_changes = self.pods.as_ref().map(Workloads::changes);
        let (keys, mut fetched_keys) = JwksFetcher::start(
            self.node.policy_state.tokens.key_sets.clone(),
            self.node.egress_guard(),
            Pace::default(),
        );
        let (modules, mut fetched_modules) = ModuleFetcher::new(self.loader.modules.clone(), self.node.egress_guard());
        let mut tick = tokio::time::interval(REQUEST_COUNTS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let jobs = Jobs::new(self.agent.clone(), self.supervisor.clone(), self.node.svids.clone(), self.images.clone());
        let (functions, draining, retries, bounds, loads, demands) = Default::default();
        let ports = OpenPorts::new(self.ports.clone());
        let mut state = LoopState { functions, draining, jobs, retries, keys, modules, bounds, loads, demands, ports };
        let mut term = self.agent.term();
        let mut load_tick = tokio::time::interval(LOAD_INTERVAL);
        load_tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut job_changes = self.supervisor.job_changes();
        let mut jobs_may_start = self.jobs.clone();
        let mut report_at = None;
        let mut loading = Loads::default();
        loop {
            while let Some(update) = loading.next(&self.node.snapshot.load()) {
                self.load_update(update, &state.keys, &mut loading);
            }
            let (retry_at, overtaken_at) = (state.retries.next(), loading.overtaken_at());
            // The loop has handled a moment that has passed.
            let overtaken_at = overtaken_at.filter(|at| *at > Instant::now());
            tokio::select! {
                (purpose, loaded) = loading.finished() => self.finish_load(purpose, loaded, &mut state),
                update = updates.recv(), if loading.have_room() => match update {
                    Some(update) => loading.push(update),
                    None => return,
                },
                () = sleep_until(overtaken_at.unwrap_or_else(Instant::now)), if overtaken_at.is_some() => {}
                Some((id, _)) = fetched_keys.recv(), if loading.are_over() => {
                    // The configuration that came with the key set may be older than the last
                    // update.
                    if let Some(config) = state.keys.latest(&id) {
                        self.load(Purpose::Keys(id), vec![config], &mut loading);
                    }
                }
                Some(hash) = fetched_modules.recv(), if loading.are_over() => self.reload_with(hash, &mut loading),
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() && loading.are_over() => {
                    self.retry(&mut state.retries, &mut loading);
                }
                () = tokio::time::sleep(draining::POLL_INTERVAL), if !state.draining.is_empty() => {
                    self.remove_drained(&mut state);
                }
                // Jobs start only after the functions that they may call are in force.
                () = tokio::time::sleep(CERT_POLL_INTERVAL), if state.jobs.are_waiting() && *self.applied.borrow() && *self.jobs.borrow() => {
                    state.jobs.start();
                }
                () = tokio::time::sleep(RETRY_INTERVAL), if state.ports.miss_any() => self.open_ports(&mut state),
                // This evaluates the condition above again. The process may own the node now.
                Ok(()) = jobs_may_start.changed() => self.open_ports(&mut state),
                Ok(()) = job_changes.changed() => state.jobs.report(),
                _ = tick.tick(), if self.node.revision_stats.any() => self.report_request_counts(),
                _ = load_tick.tick(), if self.capacity.is_some() => self.report_loads(&mut state),
                Ok(()) = term.changed() => self.renew_term(),
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    report_at.get_or_insert_with(|| Instant::now() + REPORT_DELAY);
                }
                Some(Ok(())) = next(&mut pod_changes) => {
                    report_at.get_or_insert_with(|| Instant::now() + REPORT_DELAY);
                }
                () = sleep_until(report_at.unwrap_or_else(Instant::now)), if report_at.is_some() => {
                    report_at = None;
                    self.workloads().flat_map(Workloads::take_changed).for_each(|id| self.report(&id));
                }
            }
        }
    }

    /// Opens the ports that Gateway documents open now. Without the node, this process opens none.
    fn open_ports(&self, state: &mut LoopState) {
        state.ports.follow(&self.node, &self.agent, *self.jobs.borrow());
    }

    fn load_update(&self, update: Update, keys: &JwksFetcher, loads: &mut Loads) {
        let mut wanted = LoadRequest { engine: self.node.snapshot.load().mesh.engine, ..LoadRequest::default() };
        for change in &update.changes {
            match change {
                Change::Set(Resource::FunctionConfig(config)) => wanted.configs.push(keys.follow((**config).clone())),
                Change::Set(Resource::Route(route)) => wanted.routes.push((**route).clone()),
                Change::Set(Resource::Routes(routes)) => wanted.gateway_routes = Some(routes.clone()),
                Change::Set(Resource::Module(hash, bytes)) => wanted.modules.push((*hash, bytes.clone())),
                // Components read them while they are loaded.
                Change::Set(Resource::Secrets(id, values)) => self.loader.secrets.set(id.clone(), values.clone()),
                Change::Set(_) | Change::Removed(_) | Change::Withdrawn(_) => {}
            }
        }
        let task = self.loader.start(wanted);
        loads.begin(Purpose::Update(update), &[], task);
    }

    fn load(&self, purpose: Purpose, configs: Vec<FunctionConfig>, loads: &mut Loads) {
        if configs.is_empty() {
            return;
        }
        let ids: Vec<_> = configs.iter().map(|config| config.id.clone()).collect();
        let engine = self.node.snapshot.load().mesh.engine;
        loads.begin(purpose, &ids, self.loader.start(LoadRequest { configs, engine, ..LoadRequest::default() }));
    }

    fn finish_load(&self, purpose: Purpose, loaded: LoadResult, state: &mut LoopState) {
        for entry in loaded.functions.values().flatten() {
            state.retries.note(entry, &self.loader.modules, Instant::now());
        }
        match purpose {
            Purpose::Update(update) => {
                let fetches = self.changes_fetches(&update);
                self.apply(update, loaded, state);
                if fetches {
                    self.fetch_modules(&state.modules);
                }
            }
            Purpose::Keys(id) => self.replace(loaded, &id, "a fetched key set"),
            Purpose::Module(hash) => self.replace(loaded, &hash, "a fetched module"),
            Purpose::Retry => {
                for (id, _) in loaded.functions.iter().filter(|(_, entry)| entry.is_err()) {
                    state.retries.forget(id);
                }
                self.replace(loaded, &"again", "an extension");
            }
        }
    }

    /// Applies reloaded functions.
    fn replace(&self, loaded: LoadResult, cause: &dyn fmt::Display, what: &str) {
        let mut next = self.node.snapshot.load().change();
        let mut any = false;
        for (id, entry) in loaded.functions {
            match entry {
                Ok(entry) => {
                    next.insert(entry);
                    any = true;
                    tracing::info!(function = %id, %cause, "{what} is in force");
                }
                Err(error) => {
                    tracing::error!(function = %id, %cause, reason = %error, "{what} cannot be used; what was in force goes on")
                }
            }
        }
        if any {
            self.node.publish(Arc::new(next.finish()));
        }
    }

    /// Reports the request counts of functions with several revisions.
    fn report_request_counts(&self) {
        for (id, counts) in self.node.revision_stats.counts() {
            let of =
                |(revision, Counts { requests, failed, slow })| (revision, RevisionCounts { requests, failed, slow });
            self.agent.report_request_counts(&id, &counts.into_iter().map(of).collect::<Vec<_>>());
        }
    }

    /// Reports the node's capacity and the loads of its functions, as far as they have changed.
    fn report_loads(&self, state: &mut LoopState) {
        let Some(capacity) = self.capacity else { return };
        let (images, without_jails) = (self.images.kept(), self.without_jails);
        self.agent.offer(NodeOffer { capacity, images, without_jails });
        self.agent.report_loads(&state.loads.changed(&self.supervisor));
        self.agent.report_demands(&state.demands.changed(&self.node.policy_state.limits));
    }

    /// The shares of rate limits count until the end of the present term.
    fn renew_term(&self) {
        if let Some(Term { until, renewed }) = *self.agent.term().borrow() {
            self.node.policy_state.limits.lease_term.renew(until, renewed);
        }
    }

    fn report(&self, id: &FunctionId) {
        self.agent.report(id, self.workloads().flat_map(|workloads| workloads.instances(id)).collect());
    }

    fn workloads(&self) -> impl Iterator<Item = &dyn Workloads> {
        let pods = self.pods.iter().map(|pods| pods as &dyn Workloads);
        std::iter::once(&self.supervisor as &dyn Workloads).chain(pods)
    }

    /// Removes functions that have drained.
    fn remove_drained(&self, state: &mut LoopState) {
        let LoopState { functions, draining, .. } = state;
        let gone = draining.take_drained(&self.node, &self.supervisor);
        if gone.is_empty() {
            return;
        }
        for id in &gone {
            functions.remove(id);
        }
        self.hosted.set(functions.clone());
        gone.iter().for_each(|id| self.supervisor.remove_drained(id));
        self.set_wanted(self.node.snapshot.load().functions.values().chain(draining.entries()));
        self.forget(draining);
    }

    /// Drops the state of functions that this node neither hosts nor calls nor routes to.
    fn forget(&self, draining: &Draining) {
        let snapshot = self.node.snapshot.load();
        let entries = || snapshot.functions.values().chain(draining.entries());
        let called = entries().flat_map(|entry| entry.config.callees.iter().map(|callee| &callee.id));
        let known: HashSet<&FunctionId> =
            entries().map(|entry| &entry.config.id).chain(called).chain(snapshot.routed()).collect();
        self.node.policy_state.retain(|function| known.contains(function));
        self.node.telemetry.destinations.retain(|function| known.contains(function));
        self.node.telemetry.connections.retain(|function| known.contains(function));
    }

    /// Whether an update may change which modules are fetched. A new function without modules does
    /// not, so the other functions are not examined.
    fn changes_fetches(&self, update: &Update) -> bool {
        let snapshot = self.node.snapshot.load();
        update.changes.iter().any(|change| match change {
            Change::Set(Resource::FunctionConfig(config)) => {
                config.modules().any(|(_, url)| url.is_some()) || snapshot.functions.get(&config.id).is_some()
            }
            Change::Removed(subject) => matches!(subject, Subject::FunctionConfig(_)),
            Change::Set(_) | Change::Withdrawn(_) => false,
        })
    }

    /// Fetches all modules that functions name by URL.
    fn fetch_modules(&self, fetcher: &ModuleFetcher) {
        let snapshot = self.node.snapshot.load();
        let configs = snapshot.functions.values().map(|entry| &entry.config);
        let all = configs.flat_map(|config| config.modules().map(move |(module, url)| (config, module, url)));
        let named = all.clone().map(|(_, module, _)| module).collect();
        let wanted = all.filter_map(|(config, module, url)| Some((module, Download::module(config, url?))));
        let wanted: Vec<_> = wanted.collect();
        fetcher.want(&wanted, &named);
    }

    /// Reloads the functions that name a module that was fetched.
    fn reload_with(&self, hash: ModuleHash, loads: &mut Loads) {
        let snapshot = self.node.snapshot.load();
        let configs = snapshot.functions.values().map(|entry| &entry.config);
        let named = configs.filter(|config| config.modules().any(|(module, _)| module == hash)).cloned();
        self.load(Purpose::Module(hash), named.collect(), loads);
    }

    /// Reloads functions with an extension that failed to load.
    fn retry(&self, retries: &mut Retries, loads: &mut Loads) {
        let snapshot = self.node.snapshot.load();
        let mut configs = Vec::new();
        for id in retries.due(Instant::now()) {
            match snapshot.functions.get(&id) {
                Some(entry) => configs.push(entry.config.clone()),
                None => retries.forget(&id),
            }
        }
        self.load(Purpose::Retry, configs, loads);
    }

    fn set_wanted<'a>(&self, entries: impl Iterator<Item = &'a Arc<FunctionEntry>>) {
        self.wanted.send_replace(self.wanted_for(entries));
    }

    /// Wants the identities of the node's pods, after these have changed. The control plane refuses
    /// those of pods that are gone.
    fn follow_accounts(&self, draining: &Draining) {
        let snapshot = self.node.snapshot.load();
        let wanted = self.wanted_for(snapshot.functions.values().chain(draining.entries()));
        self.wanted.send_if_modified(|before| {
            let differs = *before != wanted;
            *before = wanted;
            differs
        });
    }

    /// The identities of these functions, of the node, and of its pods: that of a pod may differ from
    /// its function's.
    fn wanted_for<'a>(&self, entries: impl Iterator<Item = &'a Arc<FunctionEntry>>) -> BTreeSet<SpiffeId> {
        let snapshot = self.node.snapshot.load();
        let accounts = self.pods.iter().flat_map(|pods| pods.identities(&snapshot.mesh.trust_domain));
        entries.filter_map(identity).chain(self.own.iter().cloned()).chain(accounts).collect()
    }

    /// Notifies even if no identity is new: a new trust bundle may require new certificates.
    fn extend_wanted(&self, updated: &[Arc<FunctionEntry>]) {
        self.wanted
            .send_modify(|wanted| wanted.extend(updated.iter().filter_map(identity).chain(self.own.iter().cloned())));
    }
}

/// Waits for a change, if there are any to wait for.
async fn next(changes: &mut Option<watch::Receiver<u64>>) -> Option<Result<(), RecvError>> {
    match changes {
        Some(changes) => Some(changes.changed().await),
        None => None,
    }
}

/// The identity to certify. An egress has one only if other nodes send their calls to this node.
fn identity(entry: &Arc<FunctionEntry>) -> Option<SpiffeId> {
    if matches!(&entry.config.run, Run::Egress(egress) if !egress.by_egress_nodes) {
        return None;
    }
    entry.identity.parse().ok()
}
