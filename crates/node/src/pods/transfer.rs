//! The beginning and the end of this process's part: all pods of the node come to it, or go to the
//! child of a hot restart.

use super::{Entry, Place, Pods};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Pause between two looks at the pods.
const LOOK: Duration = Duration::from_millis(10);
/// Pause before another attempt to release all pods.
const RELEASE: Duration = Duration::from_secs(1);
/// How long a process waits until all pods are its own, or the child's. A pod that cannot be captured
/// is not waited for.
const MAX_TRANSFER: Duration = Duration::from_secs(30);
/// How long a connection that the kernel has given to a listener may take to arrive there.
const ON_THE_WAY: Duration = Duration::from_secs(1);

impl Pods {
    /// Whether this process serves all pods of the node that it can capture, and answers the CNI
    /// plug-in.
    pub fn is_ready(&self) -> bool {
        *self.inner.ready.borrow()
    }

    /// Waits for the pods that the control plane delivers first.
    pub(super) async fn become_ready(self) {
        // The error: the node has ended.
        if self.inner.complete.subscribe().wait_for(|complete| *complete).await.is_err() {
            return;
        }
        if self.inner.releases {
            self.await_parent().await;
        }
        let mut released = self.release_others();
        while self.inner.releases && !matches!(released.await, Ok(true)) {
            sleep(RELEASE).await;
            released = self.release_others();
        }
        until(|| self.all(Entry::is_settled)).await;
        self.inner.ready.send_replace(true);
    }

    /// Captures no further connections, and waits until the parent of a hot restart has let open ones
    /// complete: the release of a pod ends them.
    async fn await_parent(&self) {
        let inner = self.inner.clone();
        let _ = spawn_blocking(move || inner.capture.stop_others(&BTreeSet::new())).await;
        let limit = self.inner.node.snapshot.load().mesh.limits.drain_timeout;
        let mut alone = self.inner.alone.subscribe();
        let _ = timeout(limit, alone.wait_for(|alone| *alone)).await;
    }

    /// The parent of a hot restart has gone.
    pub fn set_alone(&self) {
        self.inner.alone.send_replace(true);
    }

    /// Waits until the child of a hot restart gets the connections of all pods, and those that were on
    /// the way here have arrived.
    pub(crate) async fn handed_over(&self) {
        until(|| self.all(Entry::is_handed_over)).await;
        sleep(ON_THE_WAY).await;
    }

    /// Lets go of the pods, because this process ends and no other one takes over: new connections of
    /// permissive pods go past the node, and those of enforced ones wait for the next process.
    pub(crate) async fn leave(&self) {
        let captured: Vec<_> = {
            let table = self.inner.table();
            table.pods.values().filter_map(|entry| entry.status.borrow().captured.clone()).collect()
        };
        let leaving = captured.into_iter().map(|captured| spawn_blocking(move || captured.leave()));
        for left in leaving.collect::<Vec<_>>() {
            if let Ok(Err(error)) = left.await {
                tracing::debug!(%error, "a pod's connections still reach this process, which ends");
            }
        }
    }

    fn all(&self, holds: impl Fn(&Entry) -> bool) -> bool {
        self.inner.table().pods.values().all(holds)
    }
}

impl Entry {
    /// Whether this process has captured the pod, or tried to.
    fn is_settled(&self) -> bool {
        let status = self.status.borrow();
        status.is_captured() || status.problem.is_some() || self.wanted.borrow().place == Place::Gone
    }

    fn is_handed_over(&self) -> bool {
        self.status.borrow().captured.as_ref().is_none_or(|captured| captured.is_handed_over())
    }
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(LOOK).await;
        }
    };
    if timeout(MAX_TRANSFER, waiting).await.is_err() {
        tracing::warn!("some pods have not changed their process within {MAX_TRANSFER:?}");
    }
}
