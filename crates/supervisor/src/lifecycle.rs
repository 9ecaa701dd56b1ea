//! Decides when instances of a function are started and stopped. Each function has one task for this.

use crate::cgroup::Cgroups;
use crate::child::Owner;
use crate::dialer::Dialer;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::Slot;
use crate::host::Host;
use crate::instance::{Failure, Instance, Report, TargetState, sleep_until};
use crate::instance_id::InstanceId;
use crate::scaling::Scaler;
use crate::spec::{Exclusion, FunctionSpec, LONGEST_PAUSE, Settings};
use crate::status::{InstanceStatus, LossEvent, StatusStore};
use backon::{BackoffBuilder, ExponentialBackoff};
use leno_model::{IN_NODE, InstanceState, Run};
use leno_namespaces::{Namespace, Permit, Resource, Turns};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::time::SystemTime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Pause until the next try when a namespace has as many instances as it may.
const PLACE_PAUSE: Duration = Duration::from_secs(1);

/// An order of the supervisor to a function's task.
pub(crate) enum Order {
    /// Apply this spec.
    Apply(Box<FunctionSpec>),
    /// Drain and end all instances, then the task.
    Remove,
    /// Like `Remove`, but the drain timeout is over.
    Stop,
    /// Kill all instances.
    Kill,
}

/// Shared between a function's task and the supervisor.
pub(crate) struct FunctionContext {
    pub settings: Arc<Settings>,
    pub host: Arc<dyn Host>,
    pub next_instance: Arc<AtomicU64>,
    pub dispatcher: Arc<Dispatcher>,
    pub status_store: Arc<StatusStore>,
    pub drain: watch::Receiver<Duration>,
    pub cgroups: Option<Arc<Cgroups>>,
    pub starts: Arc<Turns>,
}

/// The state of a function's task.
pub(crate) struct Lifecycle {
    shared: FunctionContext,
    namespace: Arc<Namespace>,
    spec: FunctionSpec,
    /// Rises with each change that needs new processes.
    generation: u64,
    instances: BTreeMap<InstanceId, Running>,
    external: BTreeMap<SocketAddr, Arc<Slot>>,
    scaler: Scaler,
    removed: bool,
    /// Consecutive failures.
    failures: u32,
    /// Pauses between starts. They begin anew after a recovery, or after a change of the function's
    /// command.
    pauses: ExponentialBackoff,
    resume_at: Option<Instant>,
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
}

/// An instance as its function's task sees it.
struct Running {
    generation: u64,
    exclusion: Exclusion,
    /// `None`: not ready yet.
    slot: Option<Arc<Slot>>,
    failed: bool,
    target: watch::Sender<TargetState>,
    /// Counts it for its namespace.
    _place: Permit,
}

impl Running {
    fn counts(&self) -> bool {
        !self.failed && *self.target.borrow() == TargetState::Run
    }

    /// In-flight requests; `None` while the instance starts, which sorts before 0.
    fn load(&self) -> Option<u32> {
        self.slot.as_ref().map(|slot| slot.in_flight())
    }
}

impl Lifecycle {
    pub(crate) fn new(shared: FunctionContext, spec: FunctionSpec) -> Self {
        let (reporter, reports) = mpsc::unbounded_channel();
        let scaler = Scaler::new(&spec, &shared.settings, &shared.dispatcher, &shared.status_store);
        Self {
            pauses: shared.settings.backoff.build(),
            namespace: shared.settings.namespaces.of(&spec.id.namespace),
            shared,
            spec,
            generation: 0,
            instances: BTreeMap::new(),
            external: BTreeMap::new(),
            scaler,
            removed: false,
            failures: 0,
            resume_at: None,
            reports,
            reporter,
        }
    }

    /// Runs until the function is removed and its last instance has ended.
    pub(crate) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        self.configure();
        let dispatcher = Arc::clone(&self.shared.dispatcher);
        let mut supervised = true;
        loop {
            self.reconcile();
            if self.removed && self.instances.is_empty() {
                return;
            }
            let (resume, tick) = (self.resume_at, self.scaler.next());
            tokio::select! {
                order = orders.recv(), if supervised => {
                    supervised = order.is_some();
                    self.obey(order.unwrap_or(Order::Stop));
                }
                Some(report) = self.reports.recv() => self.note(report),
                () = dispatcher.demand.notified(), if self.scales() => self.scaler.woken(&self.spec),
                () = sleep_until(tick), if self.scales() => self.scaler.decide(&self.spec),
                () = sleep_until(resume) => self.set_pause(None),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Apply(spec) => {
                if !spec.same_process(&self.spec) {
                    self.generation += 1;
                    let first = self.shared.next_instance.load(Ordering::Relaxed);
                    self.shared.status_store.lock().first_current = first;
                    // The change may have fixed the cause of the failures.
                    self.forget_failures();
                    self.set_pause(None);
                }
                self.spec = *spec;
                self.configure();
                if self.scales() {
                    self.scaler.configure(&self.spec);
                }
            }
            Order::Remove => self.end(TargetState::Drain),
            Order::Stop => self.end(TargetState::Stop),
            Order::Kill => self.instances.values().for_each(|instance| set_target(instance, TargetState::Kill)),
        }
    }

    fn end(&mut self, target: TargetState) {
        self.removed = true;
        self.shared.dispatcher.close();
        self.set_external(&[]);
        self.instances.values().for_each(|instance| set_target(instance, target));
    }

    fn configure(&mut self) {
        self.shared.status_store.set_container(self.spec.container.as_ref());
        self.shared.status_store.lock().applied = self.spec.revision;
        self.shared.dispatcher.configure(self.spec.concurrency, self.spec.queue, self.spec.longest_wait());
        match self.spec.run.clone() {
            Run::External(addresses) => self.set_external(&addresses),
            // One slot takes all requests of a component. Each request gets a new WebAssembly
            // instance later.
            Run::Wasm(_) => self.set_external(&[IN_NODE]),
            Run::Command(_) | Run::Job(_) | Run::Egress(_) | Run::Pods(_) if !self.external.is_empty() => {
                self.set_external(&[]);
            }
            // The module `job` runs jobs.
            Run::Command(_) | Run::Job(_) | Run::Egress(_) | Run::Pods(_) => {}
        }
    }

    /// Replaces the external addresses. An address that stays keeps its instance ID, so that the
    /// proxy keeps its records of the instance.
    fn set_external(&mut self, addresses: &[SocketAddr]) {
        let mut old = std::mem::take(&mut self.external);
        for &address in addresses {
            let slot = old.remove(&address).unwrap_or_else(|| self.new_external(address));
            self.external.insert(address, slot);
        }
        if !self.external.is_empty() || !old.is_empty() {
            self.shared.dispatcher.publish_all(self.external.values().cloned().collect());
        }
        for slot in old.values() {
            self.shared.status_store.ended(slot.id);
            self.shared.host.draining(&self.spec.id, slot.id, slot.address);
            self.shared.host.ended(&self.spec.id, slot.id);
        }
    }

    fn new_external(&self, address: SocketAddr) -> Arc<Slot> {
        let id = self.next_id();
        let status = InstanceStatus {
            function: self.spec.id.clone(),
            id,
            state: InstanceState::Ready,
            pid: None,
            isolation: None,
            address,
            restarts: 0,
            since: SystemTime::now(),
            lost: None,
        };
        self.shared.status_store.lock().instances.insert(id, status);
        self.shared.host.ready(&self.spec.id, id, address);
        Slot::new(&self.spec.id, id, address, Dialer::Address)
    }

    fn next_id(&self) -> InstanceId {
        let number = self.shared.next_instance.fetch_add(1, Ordering::Relaxed);
        InstanceId { number, revision: self.spec.revision }
    }

    /// How many instances there should be; 0 if none are started here.
    fn desired(&self) -> usize {
        if !self.scales() {
            return 0;
        }
        usize::try_from(self.scaler.desired()).unwrap_or(usize::MAX)
    }

    fn exclusion(&self) -> Exclusion {
        self.spec.exclusion(&self.shared.settings.jails)
    }

    /// Whether the function has instances to start and stop.
    fn scales(&self) -> bool {
        !self.removed && self.spec.command().is_some()
    }

    /// Starts missing instances and drains surplus ones. Ready instances of an old generation are drained once the new ones are ready, or at once if
    /// both need the same port or volume.
    fn reconcile(&mut self) {
        let desired = self.desired();
        let exclusion = self.exclusion();
        let current = |instance: &&Running| instance.generation == self.generation && instance.counts();
        let have = self.instances.values().filter(current).count();
        let ready = self.instances.values().filter(current).filter(|instance| instance.slot.is_some()).count();

        for old in self.instances.values().filter(|instance| instance.generation != self.generation) {
            let in_the_way = old.exclusion.conflicts(exclusion);
            if old.counts() && (old.slot.is_none() || in_the_way || ready >= desired) {
                set_target(old, TargetState::Drain);
            }
        }
        let surplus = have.saturating_sub(desired);
        let mut surplus_of: Vec<&Running> = self.instances.values().rev().filter(current).collect();
        // The least loaded instances go first, and of these the youngest, because they have the least to lose.
        surplus_of.sort_by_key(|instance| instance.load());
        surplus_of.into_iter().take(surplus).for_each(|instance| set_target(instance, TargetState::Drain));

        // A lost instance that occupies the port of its replacement ends now, with its remaining
        // requests.
        for lost in self.instances.values().filter(|instance| instance.failed) {
            if lost.exclusion.conflicts(exclusion) {
                set_target(lost, TargetState::Stop);
            }
        }
        let occupied = self.instances.values().any(|instance| instance.exclusion.conflicts(exclusion));
        if self.resume_at.is_some() || occupied {
            return;
        }
        for _ in have..desired {
            let Some(place) = self.namespace.take(Resource::Instances) else { return self.wait_for_place() };
            self.start(place);
        }
    }

    /// Waits until instances of the namespace have ended.
    fn wait_for_place(&mut self) {
        let reason = self.namespace.refusal(Resource::Instances);
        let before = self.shared.status_store.lock().last_failure.replace(reason.clone());
        if before.as_ref() != Some(&reason) {
            tracing::warn!(function = %self.spec.id, "no further instance is started: {reason}");
        }
        self.instances.values().filter(|instance| instance.failed).for_each(|lost| set_target(lost, TargetState::Stop));
        // Otherwise the new instances would wait for the old ones, and these for the new ones.
        let is_old = |instance: &&Running| instance.generation != self.generation && instance.counts();
        if let Some(old) = self.instances.values().find(is_old) {
            set_target(old, TargetState::Drain);
        }
        self.set_pause(Some((Instant::now() + PLACE_PAUSE, reason)));
    }

    fn start(&mut self, place: Permit) {
        let Some(command) = self.spec.command().cloned() else { return };
        let id = self.next_id();
        let (target, target_watch) = watch::channel(TargetState::Run);
        let generation = self.generation;
        let exclusion = self.exclusion();
        let running = Running { generation, exclusion, slot: None, failed: false, target, _place: place };
        let owner = Owner {
            function: self.spec.id.clone(),
            id,
            host: Arc::clone(&self.shared.host),
            settings: Arc::clone(&self.shared.settings),
            cgroups: self.shared.cgroups.clone(),
            starts: Arc::clone(&self.shared.starts),
            status_store: Arc::clone(&self.shared.status_store),
            files: self.spec.files.clone(),
            host_access: self.spec.host_access.clone(),
        };
        let instance = Instance {
            owner,
            command,
            container: self.spec.container.clone(),
            volumes: self.spec.volumes,
            protocol: self.spec.protocol,
            dispatcher: Arc::clone(&self.shared.dispatcher),
            target: target_watch,
            drain: self.shared.drain.clone(),
            reports: self.reporter.clone(),
        };
        self.instances.insert(id, running);
        tokio::spawn(instance.live());
    }

    fn note(&mut self, report: Report) {
        match report {
            Report::Ready(slot, published) => {
                if let Some(instance) = self.instances.get_mut(&slot.id) {
                    instance.slot = Some(Arc::clone(&slot));
                }
                self.shared.dispatcher.publish(Arc::clone(&slot));
                self.shared.host.ready(&self.spec.id, slot.id, slot.address);
                let _ = published.send(());
            }
            Report::Failed(id, failure, diagnosis) => {
                if let Some(instance) = self.instances.get_mut(&id) {
                    instance.failed = true;
                }
                self.failed(id, failure, &diagnosis);
            }
            Report::Ended(id) => {
                self.instances.remove(&id);
            }
        }
    }

    fn forget_failures(&mut self) {
        (self.failures, self.pauses) = (0, self.shared.settings.backoff.build());
        self.shared.status_store.lock().failing = 0;
    }

    /// An instance that was ready for long has recovered from earlier failures.
    fn forgive(&mut self, ready_for: Duration) {
        if ready_for >= self.shared.settings.recovered_after {
            self.forget_failures();
        }
    }

    fn failed(&mut self, id: InstanceId, failure: Failure, diagnosis: &str) {
        let reason = match &failure {
            Failure::NeverReady(error) => error.to_string(),
            Failure::Crashed { status, ready_for } => {
                self.forgive(*ready_for);
                format!("the instance ended by itself: {status}")
            }
            Failure::LinkEnded { reason, ready_for } => {
                self.forgive(*ready_for);
                format!("the instance was ended, because its link has ended: {reason}")
            }
            Failure::Lost { reason, ready_for } => {
                self.forgive(*ready_for);
                format!("the instance is replaced: {reason}")
            }
            Failure::PortTaken { reason } => {
                format!("the instance was ended, because somebody else has its port: {reason}")
            }
        };
        self.failures = self.failures.saturating_add(1);
        let pause = self.pauses.next().unwrap_or(LONGEST_PAUSE);
        let explained = format!("{reason}{diagnosis}");
        tracing::warn!(function = %self.spec.id, instance = %id, failures = self.failures, ?pause, "{explained}");

        let until = Instant::now() + pause;
        let mut record = self.shared.status_store.lock();
        record.restarts = record.restarts.saturating_add(1);
        record.last_failure = Some(explained.clone());
        record.failing = record.failing.saturating_add(1);
        // The loss of an instance that was ready is known already.
        if !matches!(failure, Failure::Lost { .. }) {
            let (at, function, reason) = (SystemTime::now(), self.spec.id.clone(), explained);
            record.record_loss(LossEvent { at, function, instance: id, unhealthy: false, reason });
        }
        drop(record);
        self.set_pause(Some((until, reason)));
        if let Failure::NeverReady(error) = failure
            && !self.instances.values().any(Running::counts)
        {
            // Waiting requests are refused with the reason. Without them no instance is needed, and
            // the next request tries again.
            self.scaler.give_up(&self.spec);
            self.shared.dispatcher.refuse_waiting(&error);
        }
    }

    fn set_pause(&mut self, pause: Option<(Instant, String)>) {
        self.resume_at = pause.as_ref().map(|(until, _)| *until);
        self.shared.status_store.lock().resume_at = self.resume_at;
        self.shared.dispatcher.set_pause(pause);
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        self.shared.dispatcher.close();
    }
}

fn set_target(instance: &Running, target: TargetState) {
    instance.target.send_if_modified(|current| {
        let stronger = target > *current;
        *current = (*current).max(target);
        stronger
    });
}
