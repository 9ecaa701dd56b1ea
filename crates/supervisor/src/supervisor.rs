//! The supervisor: the interface for the node.

use crate::cgroup::{Cgroups, NamespaceShare};
use crate::container::ImageState;
use crate::core_dumps;
use crate::dispatcher::Buffer;
use crate::dispatcher::Dispatcher;
use crate::function::Function;
use crate::host::{Host, Linking};
use crate::instance_id::InstanceId;
use crate::job::{self, JobSpec, JobStatus, Jobs};
use crate::lifecycle::{FunctionContext, Lifecycle, Order};
use crate::orphans;
use crate::processes::Processes;
use crate::spec::{FunctionSpec, JailSupport, Settings};
use crate::status::{FunctionLoad, FunctionStatus, InstanceStatus, LossEvent, ScaleEvent};
use crate::volumes::VolumeStore;
use leno_jail::{JailListeners, SyscallRefusal};
use leno_model::NamespaceBounds;
use leno_model::{FunctionId, Output, OutputLine, OutputQuery};
use leno_namespaces::Turns;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// Runs the functions of a node. Cheap to clone; clones share one state. Instances end when the last clone is dropped, but only
/// [`Supervisor::shutdown`] waits for that.
#[derive(Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Arc<Settings>,
    host: Arc<dyn Host>,
    runtime: Handle,
    next_instance: Arc<AtomicU64>,
    buffer: Arc<Buffer>,
    cgroups: Option<Arc<Cgroups>>,
    /// Divides starts evenly between namespaces.
    starts: Arc<Turns>,
    /// Whether the jailer, and with it all jails, could be moved into the node's group.
    jails_are_in: bool,
    jobs: Jobs,
    /// The revisions of each function, the function configuration's own first.
    functions: RwLock<BTreeMap<FunctionId, Vec<Entry>>>,
    /// Removed functions and revisions whose instances may not all have ended yet.
    ending: Mutex<Vec<(FunctionId, Task)>>,
    shut_down: AtomicBool,
    changes: Arc<Changes>,
    drain: watch::Sender<Duration>,
}

struct Entry {
    revision: u32,
    function: Function,
    task: Task,
}

/// A function's task. It has ended when the channel `ended` is closed.
#[derive(Clone)]
struct Task {
    orders: mpsc::UnboundedSender<Order>,
    ended: watch::Receiver<()>,
}

impl Task {
    async fn ended(mut self) {
        while self.ended.changed().await.is_ok() {}
    }
}

impl Supervisor {
    /// Makes a supervisor without functions. Its tasks run on the current tokio runtime, which must have I/O and time enabled. All other methods may
    /// be called from any thread.
    pub fn start(settings: Settings, host: impl Host) -> Self {
        let changes = Arc::<Changes>::default();
        core_dumps::forbid();
        let cgroups = settings.cgroups.then(open_cgroups).flatten();
        if settings.adopt_orphans
            && let Err(error) = orphans::adopt()
        {
            tracing::warn!(%error, "processes that detach themselves may outlive their instances");
        }
        let mut jails_are_in = true;
        if let JailSupport::Available(jails) = &settings.jails {
            if let Some(Err(error)) = cgroups.as_ref().map(|cgroups| cgroups.take_in(jails.jailer())) {
                jails_are_in = false;
                tracing::warn!(%error, "the jailer is in no control group of the node; limits may not be enforced");
            }
            let jails = jails.clone();
            orphans::spare(move || jails.jailer());
        }
        let (buffer, settings) = (Buffer::new(settings.buffer), Arc::new(settings));
        let host: Arc<dyn Host> = Arc::new(Announcing { host, changes: changes.clone() });
        let next_instance = Arc::new(AtomicU64::new(settings.first_instance));
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let starts = Turns::new(4 * cores, 2 * cores, 2 * cores);
        let jobs = job::JobContext {
            settings: Arc::clone(&settings),
            host: Arc::clone(&host),
            next_instance: Arc::clone(&next_instance),
            cgroups: cgroups.clone(),
            starts: Arc::clone(&starts),
            changes: watch::Sender::new(0),
        };
        let drain = watch::Sender::new(settings.drain);
        let inner = Inner {
            buffer,
            cgroups,
            starts,
            jails_are_in,
            jobs: Jobs::new(jobs),
            settings,
            host,
            runtime: Handle::current(),
            next_instance,
            functions: RwLock::default(),
            ending: Mutex::default(),
            shut_down: AtomicBool::new(false),
            changes,
            drain,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sets the bounds of all instances of a namespace together on this node, where control groups
    /// can enforce them.
    pub fn bound(&self, namespace: &str, bounds: &NamespaceBounds) {
        if let Some(cgroups) = &self.inner.cgroups {
            cgroups.bound(namespace, bounds);
        }
    }

    /// The use of the instances of a namespace together; `None`: it has had none here, or there are no control groups.
    pub fn share(&self, namespace: &str) -> Option<NamespaceShare> {
        self.inner.cgroups.as_ref()?.share(namespace)
    }

    /// Adds or changes a function. If a change needs new processes, they replace the old ones when they are ready. If both need the same fixed port
    /// of the machine, the old ones end first and requests wait. After [`Supervisor::shutdown`], the returned function refuses every request.
    pub fn apply(&self, spec: FunctionSpec) -> Function {
        let mut functions = self.functions_mut();
        let entries = functions.entry(spec.id.clone()).or_default();
        succeed(entries, std::slice::from_ref(&spec));
        self.apply_one(entries, spec)
    }

    /// Adds or changes several revisions of a function, which run side by side. Each has its own
    /// instances and its own autoscaler. The first one is the function configuration's own. If it
    /// is new, and the revision that was first before is not among `specs`, it replaces that
    /// revision as [`Supervisor::apply`] does. All other revisions stay until
    /// [`Supervisor::retire`].
    pub fn apply_all(&self, specs: Vec<FunctionSpec>) -> Vec<(u32, Function)> {
        let mut functions = self.functions_mut();
        let Some(first) = specs.first() else { return Vec::new() };
        let (id, revision) = (first.id.clone(), first.revision);
        let entries = functions.entry(id).or_default();
        succeed(entries, &specs);
        let applied = specs.into_iter().map(|spec| (spec.revision, self.apply_one(entries, spec))).collect();
        entries.sort_by_key(|entry| entry.revision != revision);
        applied
    }

    fn apply_one(&self, entries: &mut Vec<Entry>, spec: FunctionSpec) -> Function {
        if let Some(entry) = entries.iter().find(|entry| entry.revision == spec.revision) {
            let _ = entry.task.orders.send(Order::Apply(Box::new(spec)));
            return entry.function.clone();
        }
        let revision = spec.revision;
        let function = Function {
            id: Arc::new(spec.id.clone()),
            revision,
            dispatcher: Dispatcher::new(
                &self.inner.buffer,
                self.inner.settings.namespaces.of(&spec.id.namespace),
                self.inner.settings.max_backoff_wait,
            ),
            status_store: Arc::default(),
        };
        if self.inner.shut_down.load(Ordering::SeqCst) {
            function.dispatcher.close();
            return function;
        }
        let task = self.run(spec, &function);
        entries.push(Entry { revision, function: function.clone(), task });
        function
    }

    /// Sets how long the requests of an instance that is not needed any more may go on. It also
    /// applies to instances that drain already.
    pub fn set_drain_timeout(&self, limit: Duration) {
        self.inner.drain.send_if_modified(|before| std::mem::replace(before, limit) != limit);
    }

    /// Removes the revisions of a function that are not in `keep`. Call it once the proxy routes no
    /// new request to them. Their instances drain and then end.
    pub fn retire(&self, id: &FunctionId, keep: &[u32]) {
        let mut functions = self.functions_mut();
        let Some(entries) = functions.get_mut(id) else { return };
        let gone: Vec<Entry> = entries.extract_if(.., |entry| !keep.contains(&entry.revision)).collect();
        drop(functions);
        for entry in gone {
            self.end(id.clone(), entry.task, Order::Remove);
        }
    }

    fn run(&self, spec: FunctionSpec, function: &Function) -> Task {
        let predecessors: Vec<_> =
            self.ending().iter().filter(|(id, _)| *id == spec.id).map(|(_, task)| task.clone().ended()).collect();
        // A request may come before the task runs for the first time.
        function.dispatcher.configure(spec.concurrency, spec.queue, spec.longest_wait());
        let shared = FunctionContext {
            settings: Arc::clone(&self.inner.settings),
            host: Arc::clone(&self.inner.host),
            next_instance: Arc::clone(&self.inner.next_instance),
            dispatcher: Arc::clone(&function.dispatcher),
            status_store: Arc::clone(&function.status_store),
            drain: self.inner.drain.subscribe(),
            cgroups: self.inner.cgroups.clone(),
            starts: Arc::clone(&self.inner.starts),
        };
        let (orders, inbox) = mpsc::unbounded_channel();
        let (alive, ended) = watch::channel(());
        self.inner.runtime.spawn(async move {
            if spec.exclusion(&shared.settings.jails).is_any() {
                for predecessor in predecessors {
                    predecessor.await;
                }
            }
            Lifecycle::new(shared, spec).run(inbox).await;
            drop(alive);
        });
        Task { orders, ended }
    }

    /// Removes a function. Its instances are drained and ended in the background.
    pub fn remove(&self, id: &FunctionId) {
        self.remove_with(id, || Order::Remove);
    }

    /// Removes a function that has used up the drain timeout. Its instances are ended in the
    /// background.
    pub fn remove_drained(&self, id: &FunctionId) {
        self.remove_with(id, || Order::Stop);
    }

    fn remove_with(&self, id: &FunctionId, order: impl Fn() -> Order) {
        let entries = self.functions_mut().remove(id);
        for entry in entries.into_iter().flatten() {
            self.end(id.clone(), entry.task, order());
        }
    }

    fn end(&self, id: FunctionId, task: Task, order: Order) {
        let _ = task.orders.send(order);
        let mut ending = self.ending();
        ending.retain(|(_, task)| task.ended.has_changed().is_ok());
        ending.push((id, task));
    }

    /// Adds a job and starts it, unless this run was added before. Another run of the job ends
    /// first. Starts nothing after [`Supervisor::shutdown`].
    pub fn apply_job(&self, spec: JobSpec) {
        self.inner.jobs.apply(&self.inner.runtime, spec);
    }

    /// Removes a job. If it runs, it is ended in the background.
    pub fn remove_job(&self, id: &FunctionId) {
        self.inner.jobs.remove(id);
    }

    /// The status of all jobs, sorted by name.
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.inner.jobs.status()
    }

    /// The last lines of a job's output, oldest first: those of its running processes and of the one
    /// that ended last. Those of a removed job whose run had ended stay for a day.
    pub fn job_output(&self, id: &FunctionId) -> Vec<OutputLine> {
        self.inner.jobs.output(id)
    }

    /// Ends all functions, all jobs and the jailer, and waits until none of their processes is
    /// left. It does not drain: open requests are ended. A process that has not ended within
    /// `limit` is killed.
    pub async fn shutdown(&self, limit: Duration) {
        self.inner.shut_down.store(true, Ordering::SeqCst);
        let functions = std::mem::take(&mut *self.functions_mut());
        for (id, entries) in functions {
            entries.into_iter().for_each(|entry| self.end(id.clone(), entry.task, Order::Stop));
        }
        let tasks: Vec<Task> = self.ending().iter().map(|(_, task)| task.clone()).collect();
        // Removed functions and revisions may still drain.
        tasks.iter().for_each(|task| drop(task.orders.send(Order::Stop)));
        self.inner.jobs.close();
        let all_ended = async {
            for task in tasks.clone() {
                task.ended().await;
            }
            self.inner.jobs.ended().await;
        };
        if tokio::time::timeout(limit, all_ended).await.is_err() {
            for task in &tasks {
                let _ = task.orders.send(Order::Kill);
            }
            self.inner.jobs.kill();
            for task in tasks {
                task.ended().await;
            }
            self.inner.jobs.ended().await;
        }
        if let JailSupport::Available(jails) = &self.inner.settings.jails {
            jails.close().await;
        }
    }

    /// The number that the next instance gets.
    pub fn next_instance(&self) -> u64 {
        self.inner.next_instance.load(Ordering::Relaxed)
    }

    /// The function with this name; of several revisions, the function configuration's own.
    pub fn function(&self, id: &FunctionId) -> Option<Function> {
        self.functions(|functions| functions.get(id)?.first().map(|entry| entry.function.clone()))
    }

    /// The loads of all revisions.
    pub fn loads(&self) -> Vec<FunctionLoad> {
        self.functions(|functions| functions.values().flatten().map(|entry| entry.function.load()).collect())
    }

    /// The status of all revisions, sorted by function, the function configuration's own revision
    /// first.
    pub fn status(&self) -> Vec<FunctionStatus> {
        self.functions(|functions| functions.values().flatten().map(|entry| entry.function.status()).collect())
    }

    /// The images of functions' revisions and of jobs (revision 0) that are containers, sorted by name.
    pub fn images(&self) -> Vec<(FunctionId, u32, ImageState)> {
        let mut images = self.functions(|functions| {
            let entries = functions.values().flatten();
            let state = |entry: &Entry| {
                let function = &entry.function;
                Some(((*function.id).clone(), function.revision, function.status_store.image()?))
            };
            entries.filter_map(state).collect::<Vec<_>>()
        });
        images.extend(self.inner.jobs.images().into_iter().map(|(id, state)| (id, 0, state)));
        images.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        images
    }

    /// The last scale decisions of all functions, sorted by time.
    pub fn scale_events(&self) -> Vec<ScaleEvent> {
        let each = |functions: &BTreeMap<FunctionId, Vec<Entry>>| {
            functions.values().flatten().flat_map(|entry| entry.function.scale_events()).collect::<Vec<_>>()
        };
        let mut events = self.functions(each);
        events.sort_by_key(|event| event.at);
        events
    }

    /// The last instances of all functions that were ready and did not serve any more.
    pub fn losses(&self) -> Vec<LossEvent> {
        self.functions(|functions| functions.values().flatten().flat_map(|entry| entry.function.losses()).collect())
    }

    /// The persistent volumes of this node.
    pub fn volumes(&self) -> Option<&VolumeStore> {
        self.inner.settings.volumes.as_ref()
    }

    /// The control group (v2) in which all jails are, if there is one.
    pub fn control_group(&self) -> Option<&Path> {
        self.inner.cgroups.as_deref().filter(|_| self.inner.jails_are_in).map(Cgroups::path)
    }

    /// The instances of a function by revision, oldest first. Empty if there is no such function.
    pub fn instances(&self, id: &FunctionId) -> Vec<InstanceStatus> {
        let of = |functions: &BTreeMap<FunctionId, Vec<Entry>>| {
            let entries = functions.get(id).into_iter().flatten();
            entries.flat_map(|entry| entry.function.status().instances).collect()
        };
        self.functions(of)
    }

    /// A counter that rises whenever an instance begins to get requests, stops getting them, or ends.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.count.subscribe()
    }

    /// The functions with such a change since the last call; see [`Supervisor::changes`].
    pub fn take_changed(&self) -> BTreeSet<FunctionId> {
        std::mem::take(&mut *self.inner.changes.functions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads further output of a function's or a job's instances: of those that run, and the one of
    /// each revision that ended last. `None`: there is neither a function nor a job of this name.
    pub fn read_output(&self, query: &OutputQuery) -> Option<Output> {
        let (id, mut output) = (&query.function, Output::default());
        let status_stores = self.functions(|functions| {
            let entries = functions.get(id)?;
            Some(entries.iter().map(|entry| Arc::clone(&entry.function.status_store)).collect::<Vec<_>>())
        });
        let job = self.inner.jobs.status_store(id, query.attempt);
        if status_stores.is_none() && job.is_none() {
            return None;
        }
        for status_store in status_stores.into_iter().flatten().chain(job) {
            status_store.read(query, &mut output);
        }
        Some(output)
    }

    /// A counter that rises whenever a job's status changes.
    pub fn job_changes(&self) -> watch::Receiver<u64> {
        self.inner.jobs.changes()
    }

    fn functions<T>(&self, read: impl FnOnce(&BTreeMap<FunctionId, Vec<Entry>>) -> T) -> T {
        read(&self.inner.functions.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn functions_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<FunctionId, Vec<Entry>>> {
        self.inner.functions.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn ending(&self) -> MutexGuard<'_, Vec<(FunctionId, Task)>> {
        self.inner.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// If the function configuration's own revision is new, and its former one is not kept, the new one
/// takes over the former one's instances and their requests.
fn succeed(entries: &mut [Entry], specs: &[FunctionSpec]) {
    if let Some(FunctionSpec { revision, .. }) = specs.first()
        && entries.iter().all(|entry| entry.revision != *revision)
        && let Some(predecessor) = entries.first_mut()
        && specs.iter().all(|spec| spec.revision != predecessor.revision)
    {
        predecessor.revision = *revision;
        predecessor.function.revision = *revision;
    }
}

fn open_cgroups() -> Option<Arc<Cgroups>> {
    let opened = Cgroups::open();
    if let Err(error) = &opened {
        tracing::info!(
            "no control groups for instances: {error}; limits are not enforced, and they survive a node that is killed"
        );
    }
    opened.ok().map(Arc::new)
}

/// Collects the functions with a change of instances.
#[derive(Default)]
struct Changes {
    count: watch::Sender<u64>,
    /// Functions with a change.
    functions: Mutex<BTreeSet<FunctionId>>,
}

/// Passes all callbacks on to the host, and reports changes of instances.
struct Announcing<H> {
    host: H,
    changes: Arc<Changes>,
}

impl<H> Announcing<H> {
    fn changed(&self, function: &FunctionId) {
        self.changes.functions.lock().unwrap_or_else(PoisonError::into_inner).insert(function.clone());
        self.changes.count.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl<H: Host> Host for Announcing<H> {
    fn environment(&self, function: &FunctionId, instance: InstanceId) -> Vec<(String, String)> {
        self.host.environment(function, instance)
    }

    fn jail_ready(&self, function: &FunctionId, instance: InstanceId, listeners: JailListeners) {
        self.host.jail_ready(function, instance, listeners);
    }

    fn refused(&self, function: &FunctionId, instance: InstanceId, refused: &SyscallRefusal) {
        self.host.refused(function, instance, refused);
    }

    fn started(&self, function: &FunctionId, instance: InstanceId, processes: &Arc<Processes>) {
        self.host.started(function, instance, processes);
    }

    fn link<'a>(&'a self, function: &'a FunctionId, instance: InstanceId, socket: OwnedFd) -> Linking<'a> {
        self.host.link(function, instance, socket)
    }

    fn log(&self, function: &FunctionId, instance: InstanceId, line: &OutputLine) {
        self.host.log(function, instance, line);
    }

    fn ready(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        self.host.ready(function, instance, address);
        self.changed(function);
    }

    fn draining(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        self.host.draining(function, instance, address);
        self.changed(function);
    }

    fn end_requests(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        self.host.end_requests(function, instance, address);
    }

    fn ended(&self, function: &FunctionId, instance: InstanceId) {
        self.host.ended(function, instance);
        self.changed(function);
    }
}
