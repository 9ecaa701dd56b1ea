use crate::error::{CaptureError, Explain};
use crate::interfaces::{PodInterfaces, messages};
use crate::listeners::PodListeners;
use crate::network::{PodNetwork, cookie};
use crate::pod::{CapturedPod, PodCapture};
use crate::processes::PodProcesses;
use crate::release::{release, stop};
use crate::requirements;
use crate::routes::Routes;
use crate::settings::{ALL_MARKS, marks, set_marks};
use crate::visitors::Visitors;
use leno_ebpf::{Guard, Network, PodState, Pods, Side};
use leno_model::PodUid;
use netlink_sys::Socket;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Layout of the pinned maps. Another one needs another folder.
const LAYOUT: &str = "1";

/// Where the capture of pods is in force.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The root of the cgroup2 file system, such as `/sys/fs/cgroup`. Programs of pods are below.
    pub cgroup: PathBuf,
    /// A folder of a BPF file system for the programs, such as `/sys/fs/bpf/leno`.
    pub pins: PathBuf,
}

/// The capture of pods on this machine. There is one. It remains in force when this is dropped, also
/// by the end of the process.
#[derive(Debug)]
pub struct Capture {
    pods: Arc<Pods>,
    unenforceable: Option<Arc<str>>,
    processes: PodProcesses,
    visitors: Visitors,
}

impl Capture {
    /// Puts the kernel's programs into force, and adopts the pods of an earlier process. Pods that
    /// are gone are forgotten.
    ///
    /// # Errors
    /// The machine lacks something, which the error names.
    pub fn start(options: CaptureOptions) -> Result<Self, CaptureError> {
        let mut unenforceable = requirements::check(&options.cgroup, &options.pins)?;
        let load = |guard| Pods::load(&options.cgroup, &options.pins.join(LAYOUT), guard);
        let guarded = || load(Some(Guard::Sockets)).or_else(|_| load(Some(Guard::Options)));
        let pods = match unenforceable.is_none().then(guarded) {
            Some(Ok(pods)) => pods,
            None => load(None)?,
            Some(Err(error)) => {
                unenforceable = Some(error.to_string());
                load(None)?
            }
        };
        let (pods, unenforceable) = (Arc::new(pods), unenforceable.map(Arc::from));
        let capture = Self { pods, unenforceable, processes: PodProcesses::default(), visitors: Visitors::start()? };
        capture.forget_gone()?;
        capture.pods.forget_callers()?;
        Ok(capture)
    }

    /// Why this machine cannot enforce that all traffic of a pod passes the agent; `None`: it can.
    pub fn unenforceable(&self) -> Option<&str> {
        self.unenforceable.as_deref()
    }

    /// By what programs of enforced pods are prevented from sending past the agent; `None`: no pod can
    /// be enforced.
    pub fn guard(&self) -> Option<Guard> {
        self.pods.guard()
    }

    /// The network of a pod that runs: that of its oldest process.
    ///
    /// # Errors
    /// No process of the pod runs, or its network cannot be opened.
    pub fn network_of(&self, uid: &PodUid) -> Result<PodNetwork, CaptureError> {
        self.processes.network(uid)
    }

    /// The pods that are captured, also by an earlier process. An earlier process's pods that are not
    /// to be captured any more need [`Capture::release`].
    ///
    /// # Errors
    /// The pinned folder cannot be read.
    pub fn captured(&self) -> Result<Vec<PodUid>, CaptureError> {
        let pods = self.pods.attached().explain("listing the captured pods")?;
        Ok(pods.into_iter().filter(|(_, _, exists)| *exists).filter_map(|(pod, _, _)| pod.parse().ok()).collect())
    }

    /// Removes the pins of pods that are gone.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn forget_gone(&self) -> Result<(), CaptureError> {
        for (pod, network, exists) in self.pods.attached().explain("listing the captured pods")? {
            if !exists {
                self.pods.detach(&pod, network)?;
            }
        }
        Ok(())
    }

    /// The pod for which an agent of this node, also another process, has opened a connection that
    /// comes from this address. `None`: it is no pod's.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn caller(&self, client: SocketAddr) -> Result<Option<PodUid>, CaptureError> {
        Ok(self.pods.caller(client)?.and_then(|uid| uid.parse().ok()))
    }

    /// Captures a pod that runs, or is about to. Open connections go on, unless the pod is enforced.
    /// A pod that this or an earlier process has captured gets new listeners, which take over from
    /// the earlier ones; an interface that the pod has got since is captured too.
    ///
    /// # Errors
    /// The network is not the pod's, or the kernel refuses a step. A pod that was not captured
    /// before is then as it was.
    pub fn enrol(&self, network: PodNetwork, pod: &PodCapture) -> Result<CapturedPod, CaptureError> {
        if network.is_host() {
            return Err(CaptureError::HostNetwork(pod.uid.clone()));
        }
        if let (true, Some(reason)) = (pod.enforced, &self.unenforceable) {
            return Err(CaptureError::NotEnforceable { uid: pod.uid.clone(), reason: reason.to_string() });
        }
        let enrolled = network.run(|| self.enrol_here(&network, pod));
        let NetworkCapture { cookie, generation, outbound, inbound, messages, interfaces } = match enrolled {
            Err(error) => {
                // The first error counts.
                let _ = self.undo_new(&network, &pod.uid);
                return Err(error);
            }
            Ok(enrolled) => enrolled,
        };
        let (named, numbers) = ((pod.uid.clone(), network.clone()), (cookie, generation));
        let interfaces = PodInterfaces::new(messages, self.pods.clone(), named, numbers, interfaces);
        Ok(CapturedPod::new(
            (self.visitors.clone(), self.pods.clone()),
            self.unenforceable.clone(),
            pod.uid.clone(),
            network,
            (cookie, generation),
            [outbound, inbound],
            interfaces,
        ))
    }

    /// In the pod's network. The mark comes last, when all that it leads to exists.
    fn enrol_here(&self, network: &PodNetwork, pod: &PodCapture) -> Result<NetworkCapture, CaptureError> {
        let (messages, routes) = (messages()?, Routes::open()?);
        let own = own_addresses(&routes, pod)?;
        let source = |is_v4: bool| own.iter().copied().find(|address| address.is_ipv4() == is_v4 && is_global(address));
        let (v4, v6) = (source(true), source(false));
        let outbound = PodListeners::open(v4.is_some(), v6.is_some())?;
        let inbound = PodListeners::open(v4.is_some(), v6.is_some())?;
        let cookie = cookie()?;
        let state = match self.pods.state(cookie)? {
            Some(state) => state,
            None => PodState { captured: false, enforced: false, generation: 0, kept: marks()? },
        };
        self.pods.set_state(cookie, state)?;
        set_marks(ALL_MARKS)?;
        for source in [v4, v6].into_iter().flatten() {
            routes.lead_back(source)?;
        }
        self.pods.add_addresses(cookie, &own)?;
        let interfaces = routes.interfaces()?;
        self.pods.attach(pod.uid.as_str(), cookie, network.descriptor(), &interfaces, pod.enforced)?;
        let generation = state.generation.wrapping_add(1);
        inbound.serve(&self.pods, cookie, generation, Side::In)?;
        outbound.serve(&self.pods, cookie, generation, Side::Out)?;
        self.pods.set_state(cookie, PodState { captured: true, enforced: pod.enforced, generation, ..state })?;
        let interfaces = interfaces.into_iter().collect();
        Ok(NetworkCapture { cookie, generation, outbound, inbound, messages, interfaces })
    }

    /// After a failed attempt. A pod that was captured before remains so: it may be enforced.
    fn undo_new(&self, network: &PodNetwork, uid: &PodUid) -> Result<(), CaptureError> {
        let state = network.run(|| Ok(self.pods.state(cookie()?)?))?;
        if state.is_some_and(|state| !state.captured) {
            release(&self.pods, network, uid)?;
        }
        Ok(())
    }

    /// Captures no further connections of a pod that an earlier process has captured. See
    /// [`CapturedPod::stop`].
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn stop(&self, network: &PodNetwork) -> Result<(), CaptureError> {
        network.run(|| stop(&self.pods, cookie()?))
    }

    /// Puts a pod back that an earlier process has captured. See [`CapturedPod::release`].
    ///
    /// # Errors
    /// The kernel refuses a step; it can be tried again.
    pub fn release(&self, network: &PodNetwork, uid: &PodUid) -> Result<(), CaptureError> {
        release(&self.pods, network, uid)
    }
}

/// A network that is captured.
struct NetworkCapture {
    cookie: Network,
    generation: u8,
    outbound: PodListeners,
    inbound: PodListeners,
    /// On which the kernel tells of its interfaces.
    messages: Socket,
    /// Those that are captured.
    interfaces: BTreeSet<u32>,
}

/// The addresses that the cluster knows of a pod come first, then those of its interfaces.
fn own_addresses(routes: &Routes, pod: &PodCapture) -> Result<Vec<IpAddr>, CaptureError> {
    let found = routes.addresses()?;
    let mut own: Vec<_> =
        pod.addresses.iter().map(IpAddr::to_canonical).filter(|address| found.contains(address)).collect();
    if own.is_empty() && !pod.addresses.is_empty() {
        let text = |addresses: &[IpAddr]| addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        let (addresses, found) = (text(&pod.addresses), text(&found));
        return Err(CaptureError::OtherNetwork { uid: pod.uid.clone(), addresses, found });
    }
    own.extend(found.iter().filter(|address| !pod.addresses.contains(address)));
    Ok(own)
}

/// Whether connections to other networks may come from an address.
fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}
