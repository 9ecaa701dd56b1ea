//! The task of one pod: captures it, follows its settings, and releases it.

use super::capture::PodHandle;
use super::{Inner, Place, PodTarget};
use leno_model::Pod;
use leno_proxy::PodListeners;
use leno_proxy::pods::ServedPod;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, watch};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

/// The first pause after a failure. It doubles up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// How long the connections of a pod whose network goes may take to end.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Attempts that may find no network before that is reported: the control plane often delivers a pod
/// before the runtime has made its network.
const USUAL_FAILURES: u32 = 4;

/// The state of a pod.
pub(super) struct Status {
    /// The questions of the CNI plug-in that the task has handled.
    pub asked: u64,
    /// The captured pod; `None`: it is not captured.
    pub captured: Option<Arc<dyn PodHandle>>,
    /// Why the pod is not captured; `None`: it is, or nothing was tried yet.
    pub problem: Option<String>,
    /// Whether the problem is a usual one at the beginning of a pod.
    pub is_expected: bool,
    /// When the pod was captured or released last.
    pub since: SystemTime,
}

impl Status {
    pub(super) fn is_captured(&self) -> bool {
        self.captured.is_some()
    }
}

pub(super) struct PodTask {
    inner: Arc<Inner>,
    wanted: watch::Receiver<PodTarget>,
    status: watch::Sender<Status>,
    serving: Option<Serving>,
    /// Failures since the last success.
    failures: u32,
    /// The problem that was reported.
    reported: Option<String>,
}

/// A captured pod.
struct Serving {
    captured: Arc<dyn PodHandle>,
    served: Arc<ServedPod>,
    place: Place,
    _interfaces: AbortOnDrop,
}

/// A task that ends with this.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PodTask {
    pub(super) fn new(inner: Arc<Inner>, wanted: watch::Receiver<PodTarget>) -> (Self, watch::Receiver<Status>) {
        let status = Status { asked: 0, captured: None, problem: None, is_expected: false, since: SystemTime::now() };
        let (status, statuses) = watch::channel(status);
        (Self { inner, wanted, status, serving: None, failures: 0, reported: None }, statuses)
    }

    /// Runs until the pod is removed, or the node ends. `turn`: a pod that was removed and comes back
    /// waits until it was released.
    pub(super) async fn run(mut self, turn: Arc<Mutex<()>>) {
        let _turn = turn.lock().await;
        let mut owner = self.inner.owner.clone();
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            owner.borrow_and_update();
            self.follow(&wanted).await;
            let retry = self.status.borrow().problem.is_some().then(|| self.pause());
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() {
                    self.inner.forget(&wanted.pod.uid);
                    self.drain().await;
                    return self.release(&wanted.pod).await;
                },
                Ok(()) = owner.changed() => {
                    // A child that failed may have had the pod's connections: it is captured anew. If the
                    // child had none, the listeners go on.
                    let is_owner = *owner.borrow();
                    if let Some(serving) = self.serving.take_if(|it| is_owner && it.captured.is_handed_over()) {
                        serving.served.end();
                    }
                },
                () = sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            }
        }
    }

    fn pause(&self) -> Duration {
        PAUSE.saturating_mul(1 << self.failures.min(16)).min(MAX_PAUSE)
    }

    /// Makes the pod as it is wanted.
    async fn follow(&mut self, wanted: &PodTarget) {
        if let Some(serving) = self.serving.as_ref().filter(|serving| is_elsewhere(&serving.place, &wanted.place)) {
            // Its programs have ended. Clients that keep connections to them learn it while the pod has a
            // network.
            serving.served.end();
            serving.served.end_connections();
            let _ = timeout(LAST_BYTES, serving.served.drained()).await;
            self.release(&wanted.pod).await;
        }
        let problem = match (&self.serving, &wanted.place) {
            (_, Place::Gone) => None,
            (Some(serving), _) => {
                serving.served.set((*wanted.pod).clone());
                serving.captured.set(&wanted.pod).err()
            }
            (None, _) if !*self.inner.owner.borrow() => None,
            (None, place) => self.capture(wanted.pod.clone(), place.clone()).await.err(),
        };
        self.failures = if problem.is_some() { self.failures.saturating_add(1) } else { 0 };
        let is_absent = problem.as_ref().is_some_and(|error| error.kind() == ErrorKind::NotFound);
        let is_expected = is_absent && self.failures <= USUAL_FAILURES;
        let problem = problem.map(|error| error.to_string());
        let reported = problem.clone().filter(|_| !is_expected);
        if self.reported != reported {
            if let Some(problem) = &reported {
                tracing::warn!("the pod {}/{} is not captured: {problem}", wanted.pod.namespace, wanted.pod.name);
            }
            (self.inner.report)(&wanted.pod.uid, reported.clone());
            self.reported = reported;
        }
        let captured = self.serving.as_ref().map(|serving| serving.captured.clone());
        let has_changed = self.status.borrow().captured.is_some() != captured.is_some();
        self.status.send_modify(|status| {
            (status.asked, status.captured) = (wanted.asked, captured);
            (status.problem, status.is_expected) = (problem, is_expected);
            if has_changed {
                status.since = SystemTime::now();
            }
        });
        if has_changed {
            self.inner.changed(&wanted.pod.function);
        }
    }

    async fn capture(&mut self, pod: Arc<Pod>, place: Place) -> io::Result<()> {
        let (capture, wanted, path) = (self.inner.capture.clone(), pod.clone(), place.clone());
        let captured = spawn_blocking(move || match &path {
            Place::Path(path, addresses) => {
                let mut pod = (*wanted).clone();
                if pod.addresses.is_empty() {
                    pod.addresses.clone_from(addresses);
                }
                capture.enrol(&pod, Some(path))
            }
            Place::Programs | Place::Gone => capture.enrol(&wanted, None),
        });
        let captured = captured.await.map_err(io::Error::other)??;
        let listeners = captured.listeners()?;
        let network = captured.network(&self.inner.node.machines)?;
        let served = ServedPod::new((*pod).clone(), network);
        let (outbound, inbound) = listeners;
        self.inner.interceptor.serve_pod(PodListeners { pod: served.clone(), outbound, inbound });
        tracing::info!("the pod {}/{} is captured", pod.namespace, pod.name);
        let interfaces = AbortOnDrop(tokio::spawn(captured.follow_interfaces()).abort_handle());
        self.serving = Some(Serving { captured, served, place, _interfaces: interfaces });
        Ok(())
    }

    /// Captures no further connections, and waits for the end of the open ones.
    async fn drain(&mut self) {
        let Some(Serving { captured, served, .. }) = &self.serving else { return };
        let stopping = captured.clone();
        if let Ok(Err(error)) = spawn_blocking(move || stopping.stop()).await {
            // The release follows.
            tracing::debug!(pod = &*served.name, %error, "a pod's connections are still captured");
        }
        served.end();
        let limit = self.inner.node.snapshot.load().mesh.limits.drain_timeout;
        let _ = timeout(limit, served.drained()).await;
    }

    async fn release(&mut self, pod: &Pod) {
        let Some(Serving { captured, served, .. }) = self.serving.take() else { return };
        let released = spawn_blocking(move || captured.release()).await;
        served.end();
        if let Ok(Err(error)) = released {
            // Often the network is gone already.
            tracing::debug!("the pod {}/{} is not released: {error}", pod.namespace, pod.name);
        }
    }
}

/// Whether a pod whose network was captured at one place now has another one.
fn is_elsewhere(captured: &Place, wanted: &Place) -> bool {
    match (captured, wanted) {
        (_, Place::Gone) => true,
        (Place::Path(captured, _), Place::Path(wanted, _)) => captured != wanted,
        // A runtime asks before a pod's first program starts, so this is a new sandbox.
        (Place::Programs, Place::Path(..)) => true,
        (_, Place::Programs) | (Place::Gone, _) => false,
    }
}
