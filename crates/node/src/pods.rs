//! Pods in place of instances: captures the pods of this node that the control plane delivers, and
//! has the proxy serve their connections.
//!
//! Each pod has a task, so a pod whose network is slow to come keeps no other one waiting. A pod is
//! captured once this process owns the node. From then on, its settings change in place. A pod whose
//! function has no configuration is captured too: nothing reaches it if it is enforced.

mod capture;
mod cni;
mod enforced;
mod machine;
mod removal;
mod status;
mod task;
#[cfg(test)]
mod tests;
mod transfer;

pub use capture::{Capture, PodHandle};
pub use leno_pods::{CaptureError, CaptureOptions};
pub use machine::MachineCapture;
pub use removal::remove_files;
pub use status::{PodState, PodStatus};

use crate::workloads::Workloads;
use enforced::EnforcedList;
use leno_cni::enforced::ENFORCED_FILE;
use leno_cni::protocol::SOCKET;
use leno_identity::{SpiffeId, TrustDomain};
use leno_model::{FunctionId, InstanceState, Pod, PodMode, PodUid};
use leno_proxy::{Interceptor, Node};
use leno_wire::Instance;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use task::{PodTask, Status};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout_at};

/// The parts of the machine that a node with pods uses.
pub struct PodOptions {
    /// Captures pods.
    pub capture: Arc<dyn Capture>,
    /// The socket for the CNI plug-in.
    pub socket: PathBuf,
    /// The list of enforced namespaces that the CNI plug-in reads while the node is away.
    pub enforced: PathBuf,
    /// Release all pods and capture none, because Leno is about to be removed.
    pub releases: bool,
}

impl PodOptions {
    /// Those of a node of Kubernetes, whose CNI plug-in uses the usual paths.
    ///
    /// # Errors
    /// The machine lacks something, which the error names.
    pub fn of_machine(options: CaptureOptions, releases: bool) -> Result<Self, CaptureError> {
        let capture = Arc::new(MachineCapture::start(options)?);
        Ok(Self { capture, socket: SOCKET.into(), enforced: ENFORCED_FILE.into(), releases })
    }
}

/// The pods of this node. Cheap to clone.
#[derive(Clone)]
pub struct Pods {
    inner: Arc<Inner>,
}

struct Inner {
    capture: Arc<dyn Capture>,
    report: FaultReport,
    node: Arc<Node>,
    interceptor: Interceptor,
    table: Mutex<Table>,
    /// Rises with each delivery of pods.
    delivered: watch::Sender<u64>,
    /// Pods that the control plane does not have in the mesh.
    unenrolled: watch::Receiver<VecDeque<PodUid>>,
    /// Whether all pods of the node were delivered.
    complete: watch::Sender<bool>,
    /// Whether this process owns the node.
    owner: watch::Receiver<bool>,
    /// Rises when a pod changes its state.
    changes: watch::Sender<u64>,
    /// Whether this process serves the pods of the node, and answers the CNI plug-in.
    ready: watch::Sender<bool>,
    enforced: EnforcedList,
    /// All pods are released, whatever the control plane delivers.
    releases: bool,
    /// Whether the parent of a hot restart has gone.
    alone: watch::Sender<bool>,
}

/// Reports why a pod is not captured; `None`: it is, or is gone.
pub(crate) type FaultReport = Box<dyn Fn(&PodUid, Option<String>) + Send + Sync>;

/// Messages about pods between this node and the control plane.
pub(crate) struct PodExchange {
    pub report: FaultReport,
    /// Pods of the node that are not in the mesh.
    pub unenrolled: watch::Receiver<VecDeque<PodUid>>,
}

#[derive(Default)]
struct Table {
    pods: BTreeMap<PodUid, Entry>,
    /// Pods that are not to be captured.
    refused: BTreeMap<PodUid, Pod>,
    /// Functions with a pod that has changed its state.
    changed: BTreeSet<FunctionId>,
    /// Held by the task of each pod, also after the pod was removed.
    turns: BTreeMap<PodUid, Arc<tokio::sync::Mutex<()>>>,
    /// The number of the next pod.
    next: u64,
}

/// A pod. Dropping it releases the pod.
struct Entry {
    number: u64,
    wanted: watch::Sender<PodTarget>,
    status: watch::Receiver<Status>,
}

/// A pod, and where its network is.
#[derive(Clone, Debug)]
struct PodTarget {
    pod: Arc<Pod>,
    place: Place,
    /// How often the CNI plug-in has asked for the pod.
    asked: u64,
}

/// Where the network of a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Its programs have it.
    Programs,
    /// At this path of the CNI plug-in. Its addresses are those that the plug-ins gave.
    Path(PathBuf, Vec<IpAddr>),
    /// The runtime removes it.
    Gone,
}

/// The answer to the CNI plug-in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Captured,
    NotEnrolled,
    Refused(String),
}

/// How long the CNI plug-in waits for a pod that the control plane has not delivered, in a namespace
/// that has enrolled pods here.
const DELIVERY: Duration = Duration::from_secs(2);
/// The same, in another namespace: usually none of its pods is enrolled, and each would start so
/// much later.
const FIRST_DELIVERY: Duration = Duration::from_millis(500);
/// How long the CNI plug-in waits until a pod is captured or released.
const CAPTURE: Duration = Duration::from_secs(6);

impl Pods {
    /// Begins to capture pods, and to answer the CNI plug-in, once this process owns the node.
    pub(crate) fn start(
        options: PodOptions,
        exchange: PodExchange,
        node: &Arc<Node>,
        interceptor: Interceptor,
        mut owner: watch::Receiver<bool>,
    ) -> Self {
        let socket = options.socket.clone();
        let pods = Self::new(options, exchange, node, interceptor, owner.clone());
        let asked = pods.clone();
        tokio::spawn(async move {
            // The error: the node has ended.
            if owner.wait_for(|owner| *owner).await.is_err() {
                return;
            }
            let listener = cni::open_at_last(&socket).await;
            tokio::spawn(asked.clone().become_ready());
            cni::serve(listener, asked).await;
        });
        pods
    }

    fn new(
        PodOptions { capture, enforced, releases, .. }: PodOptions,
        exchange: PodExchange,
        node: &Arc<Node>,
        interceptor: Interceptor,
        owner: watch::Receiver<bool>,
    ) -> Self {
        let alone = watch::Sender::new(*owner.borrow());
        let inner = Inner {
            capture,
            report: exchange.report,
            node: node.clone(),
            interceptor,
            table: Mutex::default(),
            delivered: watch::Sender::new(0),
            unenrolled: exchange.unenrolled,
            complete: watch::Sender::new(false),
            alone,
            owner,
            changes: watch::Sender::new(0),
            ready: watch::Sender::new(false),
            enforced: EnforcedList::open(&enforced),
            releases,
        };
        if releases {
            inner.enforced.set(BTreeSet::new());
        }
        let pods = Self { inner: Arc::new(inner) };
        let inner = Arc::downgrade(&pods.inner);
        node.pod_callers.search_also(Box::new(move |client| inner.upgrade()?.caller(client)));
        pods
    }

    /// Adds a pod, or changes its settings.
    fn set(&self, pod: Pod) {
        let mut table = self.inner.table();
        table.refused.remove(&pod.uid);
        let pod = Arc::new(pod);
        match table.pods.get(&pod.uid) {
            Some(entry) => {
                let mut functions = vec![pod.function.clone()];
                entry.wanted.send_modify(|wanted| {
                    functions.push(wanted.pod.function.clone());
                    wanted.pod = pod;
                });
                table.changed.extend(functions);
            }
            None => {
                let (uid, wanted) = (pod.uid.clone(), PodTarget { pod, place: Place::Programs, asked: 0 });
                let (wanted, follows) = watch::channel(wanted);
                let (task, status) = PodTask::new(self.inner.clone(), follows);
                let turn = table.turns.entry(uid.clone()).or_default().clone();
                tokio::spawn(task.run(turn));
                let number = table.next;
                table.next += 1;
                table.pods.insert(uid, Entry { number, wanted, status });
            }
        }
    }

    /// Releases a pod.
    fn remove(&self, uid: &PodUid) {
        let mut table = self.inner.table();
        if table.refused.remove(uid).is_some() {
            (self.inner.report)(uid, None);
        }
        if let Some(entry) = table.pods.remove(uid) {
            table.changed.insert(entry.wanted.borrow().pod.function.clone());
        }
        table.turns.retain(|_, turn| Arc::strong_count(turn) > 1);
    }

    /// Follows a delivery of the control plane, whose functions are in force; `None`: the pod is gone.
    pub(crate) fn follow(&self, pods: Vec<(PodUid, Option<Pod>)>) {
        for (uid, pod) in pods {
            match pod.filter(|_| !self.inner.releases) {
                Some(pod) if pod.refused.is_some() => self.refuse(pod),
                Some(pod) => self.set(pod),
                None => self.remove(&uid),
            }
        }
        let inner = &self.inner;
        inner.delivered.send_modify(|number| *number += 1);
        inner.changes.send_modify(|number| *number += 1);
    }

    /// The identities of the pods.
    pub(crate) fn identities(&self, trust_domain: &TrustDomain) -> BTreeSet<SpiffeId> {
        self.inner.table().pods.values().filter_map(|entry| entry.wanted.borrow().pod.identity(trust_domain)).collect()
    }

    /// Replaces the enforced namespaces of the cluster.
    pub(crate) fn set_enforced(&self, namespaces: BTreeSet<String>) {
        if !self.inner.releases {
            self.inner.enforced.set(namespaces);
        }
    }

    /// Releases a pod that is not to be captured, and reports why.
    fn refuse(&self, pod: Pod) {
        self.remove(&pod.uid);
        let mut table = self.inner.table();
        (self.inner.report)(&pod.uid, pod.refused.as_ref().map(ToString::to_string));
        table.refused.insert(pod.uid.clone(), pod);
    }

    /// The control plane has delivered all pods of this node.
    pub(crate) fn complete(&self) {
        self.inner.complete.send_replace(true);
    }

    /// Releases the pods that left the mesh while no process of this node ran. Returns whether none is
    /// left.
    fn release_others(&self) -> JoinHandle<bool> {
        let inner = self.inner.clone();
        let known = inner.table().pods.keys().cloned().collect();
        spawn_blocking(move || inner.capture.release_others(&known))
    }

    /// Captures a pod at the request of the CNI plug-in, before its first program starts.
    async fn add(&self, pod: &PodName, network: PathBuf, addresses: Vec<IpAddr>) -> Verdict {
        if self.inner.releases {
            return Verdict::NotEnrolled;
        }
        let mut delivered = self.inner.delivered.subscribe();
        let mut unenrolled = self.inner.unenrolled.clone();
        let is_unenrolled = |pods: &VecDeque<PodUid>| pod.uid.as_ref().is_some_and(|uid| pods.contains(uid));
        let wait = if self.has_pods_in(&pod.namespace) { DELIVERY } else { FIRST_DELIVERY };
        let until = Instant::now() + wait;
        let place = Place::Path(network, addresses);
        let asked = loop {
            delivered.borrow_and_update();
            if let Some(asked) = self.ask(pod, &place) {
                break asked;
            }
            if let Some(refused) = self.inner.table().find_refused(pod) {
                return refused;
            }
            tokio::select! {
                // The error: the node has ended.
                _ = delivered.changed() => {}
                Ok(_) = unenrolled.wait_for(is_unenrolled) => return Verdict::NotEnrolled,
                () = sleep_until(until) => return self.unknown(&pod.namespace, wait),
            }
        };
        let (uid, mode, mut status, number) = asked;
        let answered = timeout_at(Instant::now() + CAPTURE, status.wait_for(|status| status.asked >= number)).await;
        let reason = match answered {
            Ok(Ok(status)) => match &status.problem {
                None if status.is_captured() => return Verdict::Captured,
                None => "another process of this node is taking over".to_owned(),
                Some(problem) => problem.clone(),
            },
            Ok(Err(_)) => "it was removed meanwhile".to_owned(),
            Err(_) => format!("it was not captured within {CAPTURE:?}"),
        };
        match mode {
            PodMode::Enforced => Verdict::Refused(reason),
            PodMode::Permissive => {
                tracing::warn!(pod = %uid, reason, "a pod of a permissive namespace starts without the mesh");
                Verdict::NotEnrolled
            }
        }
    }

    /// Releases a pod whose network the runtime removes.
    async fn del(&self, pod: &PodName) {
        if let Some((_, _, mut status, number)) = self.ask(pod, &Place::Gone) {
            let _ = timeout_at(Instant::now() + CAPTURE, status.wait_for(|status| status.asked >= number)).await;
        }
    }

    /// Whether a pod is captured, or is none of the mesh.
    fn check(&self, pod: &PodName) -> Verdict {
        let table = self.inner.table();
        let Some(entry) = table.find(pod) else { return Verdict::NotEnrolled };
        let (status, mode) = (entry.status.borrow(), entry.wanted.borrow().pod.mode);
        match (status.is_captured(), mode) {
            (true, _) => Verdict::Captured,
            (false, PodMode::Permissive) => Verdict::NotEnrolled,
            (false, PodMode::Enforced) => {
                Verdict::Refused(status.problem.clone().unwrap_or_else(|| "it is not captured yet".to_owned()))
            }
        }
    }

    /// Has the pod's task look at its network. Returns the number of the question, which the status
    /// reaches when the task has done so.
    fn ask(&self, pod: &PodName, place: &Place) -> Option<(PodUid, PodMode, watch::Receiver<Status>, u64)> {
        let table = self.inner.table();
        let entry = table.find(pod)?;
        entry.wanted.send_modify(|wanted| {
            wanted.place = place.clone();
            wanted.asked += 1;
        });
        let wanted = entry.wanted.borrow();
        Some((wanted.pod.uid.clone(), wanted.pod.mode, entry.status.clone(), wanted.asked))
    }

    fn has_pods_in(&self, namespace: &str) -> bool {
        self.inner.table().pods.values().any(|entry| entry.wanted.borrow().pod.namespace == namespace)
    }

    /// The verdict about a pod that the control plane has not delivered in time. If the namespace is
    /// enforced, the pod could be one of the mesh, and would run without it.
    fn unknown(&self, namespace: &str, waited: Duration) -> Verdict {
        match self.inner.enforced.contains(namespace) {
            true => Verdict::Refused(format!(
                "namespace {namespace} is enforced, and the control plane has not delivered the pod within {waited:?}"
            )),
            false => Verdict::NotEnrolled,
        }
    }
}

/// How the CNI plug-in names a pod.
#[derive(Clone, Debug)]
struct PodName {
    namespace: String,
    name: String,
    /// `None`: the runtime does not say.
    uid: Option<PodUid>,
}

impl Table {
    /// The verdict about a pod that is not to be captured.
    fn find_refused(&self, pod: &PodName) -> Option<Verdict> {
        let found = match &pod.uid {
            Some(uid) => self.refused.get(uid),
            None => self.refused.values().find(|it| it.namespace == pod.namespace && it.name == pod.name),
        };
        let Pod { mode, refused, .. } = found?;
        Some(match (mode, refused) {
            (PodMode::Enforced, Some(reason)) => Verdict::Refused(reason.to_string()),
            _ => Verdict::NotEnrolled,
        })
    }

    fn find(&self, pod: &PodName) -> Option<&Entry> {
        let is_it = |entry: &&Entry| {
            let wanted = entry.wanted.borrow();
            wanted.pod.namespace == pod.namespace && wanted.pod.name == pod.name
        };
        match &pod.uid {
            Some(uid) => self.pods.get(uid),
            // The newest of this name.
            None => self.pods.values().filter(is_it).max_by_key(|entry| entry.number),
        }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod for which another process of this node has opened a connection.
    fn caller(&self, client: SocketAddr) -> Option<Arc<Pod>> {
        let uid = self.capture.caller(client)?;
        Some(self.table().pods.get(&uid)?.wanted.borrow().pod.clone())
    }

    /// Takes the report about a pod back that is not to be captured any more.
    fn forget(&self, uid: &PodUid) {
        let table = self.table();
        if !table.refused.contains_key(uid) {
            (self.report)(uid, None);
        }
    }

    /// Notes that a pod has changed its state.
    fn changed(&self, function: &FunctionId) {
        self.table().changed.insert(function.clone());
        self.changes.send_modify(|number| *number += 1);
    }
}

impl Workloads for Pods {
    fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    fn take_changed(&self) -> BTreeSet<FunctionId> {
        std::mem::take(&mut self.inner.table().changed)
    }

    fn functions(&self) -> BTreeSet<FunctionId> {
        self.inner.table().pods.values().map(|entry| entry.wanted.borrow().pod.function.clone()).collect()
    }

    fn instances(&self, function: &FunctionId) -> Vec<Instance> {
        let table = self.inner.table();
        let of_function = |entry: &&Entry| entry.wanted.borrow().pod.function == *function;
        table.pods.values().filter(of_function).map(Entry::instance).collect()
    }
}

impl Entry {
    fn instance(&self) -> Instance {
        let (wanted, status) = (self.wanted.borrow(), self.status.borrow());
        let address = wanted.pod.addresses.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let port = wanted.pod.ports.first().map_or(0, |port| port.number);
        Instance {
            id: self.number,
            state: if status.is_captured() { InstanceState::Ready } else { InstanceState::Starting },
            address: SocketAddr::new(address, port),
            pid: None,
            restarts: 0,
            since: status.since,
        }
    }
}
