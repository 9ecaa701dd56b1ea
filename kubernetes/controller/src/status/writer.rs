//! Writes the status of objects by server-side apply, only where it differs.

use super::captures::Captures;
use super::conditions::{CAPTURED, PROGRAMMED, status_of};
use super::peers::Peers;
use super::programming::{NodeProgress, Programming};
use crate::crds::{GROUP, ObjectKind, VERSION};
use crate::documents::{ACCEPTED, ObjectStatus};
use crate::publication::{Inbox, Publication, Report};
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, Error};
use leno_config::DocumentId;
use leno_control::Control;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// The field manager. The status belongs to it, but for conditions of other managers.
const MANAGER: &str = "leno-controller";
/// Concurrent writes.
const CONCURRENT: usize = 8;
/// Timeout of a write.
const WRITE: Duration = Duration::from_secs(5);
/// Pause between looks at nodes that have not confirmed something, and at nodes that are away.
const LOOK: Duration = Duration::from_millis(200);
const LOOK_FOR_ABSENT: Duration = Duration::from_secs(2);
/// Pauses after a failed write: they double.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Counts of writes.
#[derive(Debug, Default)]
pub struct WriteCounts {
    /// Writes.
    pub written: AtomicU64,
    /// Attempts that failed.
    pub failed: AtomicU64,
}

/// Writes the status of objects while this controller leads.
pub struct StatusWriter {
    /// The API server.
    pub client: Client,
    /// The control plane, whose nodes confirm their deliveries.
    pub control: Control,
    /// The objects.
    pub inbox: Arc<Inbox>,
    /// The other controllers.
    pub peers: Peers,
    /// The pods that are not captured.
    pub captures: watch::Receiver<Arc<Captures>>,
    /// Counts of writes.
    pub counts: Arc<WriteCounts>,
}

/// The next attempt after failed ones.
struct Postponed {
    at: Instant,
    pause: Duration,
}

impl StatusWriter {
    /// Writes until `publications` ends.
    pub async fn run(mut self, mut publications: watch::Receiver<Arc<Publication>>, mut leads: watch::Receiver<bool>) {
        let mut postponed: BTreeMap<DocumentId, Postponed> = BTreeMap::new();
        loop {
            if leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            let publication = publications.borrow_and_update().clone();
            let pause = self.write(&publication, &mut postponed, &leads).await;
            let look = async {
                match pause {
                    Some(pause) => sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = publications.changed() => if changed.is_err() { return },
                changed = leads.changed() => if changed.is_err() { return },
                changed = self.captures.changed() => if changed.is_err() { return },
                () = look => {}
            }
        }
    }

    /// Writes statuses that differ. Returns the pause until the next look; `None`: all objects have their
    /// final status.
    async fn write(
        &self,
        publication: &Publication,
        postponed: &mut BTreeMap<DocumentId, Postponed>,
        leads: &watch::Receiver<bool>,
    ) -> Option<Duration> {
        let Publication { reports, failure, digest } = publication;
        postponed.retain(|id, _| reports.contains_key(id));
        let mut programming = Programming::of(&self.control);
        if programming.has_absent() {
            programming.add(&self.peers.read().await, digest);
        }
        programming.captures = self.captures.borrow().clone();
        let (now, moment) = (Timestamp::now().to_string(), Instant::now());
        let mut pause = None::<Duration>;
        let mut look_in = |next: Duration| pause = Some(pause.map_or(next, |pause| pause.min(next)));
        let mut due = Vec::new();
        for (id, report) in reports {
            for progress in programming.missing(&report.scope).values() {
                look_in(if **progress == NodeProgress::Away { LOOK_FOR_ABSENT } else { LOOK });
            }
            let before = self.inbox.seen.get(id);
            let wanted = status_of(&id.kind, report, failure.as_deref(), &programming, &before, &now);
            if wanted == own(&before) {
                postponed.remove(id);
            } else if postponed.get(id).is_some_and(|postponed| postponed.at > moment) {
                look_in(LOOK);
            } else {
                due.push((id, report, wanted));
            }
        }
        let writes = due.into_iter().map(async |(id, report, wanted)| {
            // A controller that does not lead any more must not overwrite its successor's status.
            let written = if *leads.borrow() { self.patch(id, report, &wanted).await } else { Ok(()) };
            (id, wanted, written)
        });
        let mut writes = stream::iter(writes).buffer_unordered(CONCURRENT);
        while let Some((id, wanted, written)) = writes.next().await {
            match written {
                Ok(()) => {
                    self.counts.written.fetch_add(1, Ordering::Relaxed);
                    postponed.remove(id);
                    self.inbox.seen.set(id, wanted);
                }
                Err(reason) => {
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    look_in(LOOK);
                    let again =
                        postponed.get(id).map_or(FIRST_PAUSE, |postponed| LONGEST_PAUSE.min(postponed.pause * 2));
                    tracing::warn!(object = %id, reason, "its status is not written yet");
                    postponed.insert(id.clone(), Postponed { at: Instant::now() + again, pause: again });
                }
            }
        }
        pause
    }

    async fn patch(&self, id: &DocumentId, report: &Report, status: &ObjectStatus) -> Result<(), String> {
        let kind = ObjectKind::named(&id.kind).ok_or("its kind is unknown")?;
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: VERSION.to_owned(),
            api_version: format!("{GROUP}/{VERSION}"),
            kind: kind.name.to_owned(),
            plural: kind.plural.to_owned(),
        };
        let api: Api<DynamicObject> = match &*id.namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        let mut metadata = json!({"name": id.name, "uid": report.verdict.uid});
        if !id.namespace.is_empty() {
            metadata["namespace"] = json!(id.namespace);
        }
        let object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "status": status,
        });
        let parameters = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&object);
        match timeout(WRITE, api.patch_status(&id.name, &parameters, &patch)).await {
            Ok(Ok(_)) => Ok(()),
            // The object is gone, or another one has its name: the watch says so.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {WRITE:?}")),
        }
    }
}

/// The part of a status that the controller writes.
fn own(status: &ObjectStatus) -> ObjectStatus {
    let is_own = |kind: &&str| [ACCEPTED, PROGRAMMED, CAPTURED].contains(kind);
    let own = status.conditions.iter().filter(|condition| is_own(&&*condition.kind)).cloned();
    ObjectStatus { conditions: own.collect(), ..status.clone() }
}
