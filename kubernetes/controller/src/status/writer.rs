//! Writes the status of objects by server-side apply, only where it differs.

use super::captures::Captures;
use super::conditions::{AUTHORITY, CAPTURED, PROGRAMMED, status_of};
use super::peers::Peers;
use super::programming::{NodeProgress, Programming};
use crate::crds::{GROUP, ObjectKind, VERSION};
use crate::documents::{ACCEPTED, Condition, ObjectStatus};
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
/// How long nodes have to confirm a new version before its status says that they have not.
const FIRST_CONFIRMATION: Duration = Duration::from_millis(500);
/// How long a version that was programmed stays so while nodes confirm other changes, such as a new
/// pod, or connect anew.
const LAPSE: Duration = Duration::from_secs(10);
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
    /// Why the authority in the Secret is not in force; empty: it is.
    pub authority: watch::Receiver<String>,
    /// Counts of writes.
    pub counts: Arc<WriteCounts>,
}

/// The progress of one object's status.
#[derive(Default)]
struct StatusProgress {
    /// The facts by which the API server has the right status.
    settled: Option<Facts>,
    /// The first look at a generation that is not programmed, though it was or is about to be.
    unconfirmed: Option<(i64, Instant)>,
    /// When the status was written last.
    written: Option<Instant>,
    /// The next attempt after failed ones.
    postponed: Option<Postponed>,
}

/// The facts that a status depends on.
struct Facts {
    report: Arc<Report>,
    failure: Option<String>,
    /// The nodes that have not confirmed the object.
    missing: Vec<(String, NodeProgress)>,
    captures: Arc<Captures>,
    authority: String,
    /// The status that the API server has.
    seen: Arc<ObjectStatus>,
}

impl Facts {
    fn are(&self, kind: &str, now: &Facts) -> bool {
        let Self { report, failure, missing, captures, authority, seen } = self;
        let is_alike = || match kind {
            "Mesh" => (captures, authority) == (&now.captures, &now.authority),
            _ => captures.by_function == now.captures.by_function,
        };
        Arc::ptr_eq(report, &now.report)
            && Arc::ptr_eq(seen, &now.seen)
            && (failure, missing) == (&now.failure, &now.missing)
            && is_alike()
    }
}

/// The next attempt after failed ones.
struct Postponed {
    at: Instant,
    pause: Duration,
}

impl StatusProgress {
    /// Whether it is too early to write that nodes have not confirmed a version: each new pod makes its
    /// node confirm something, and that would change the status of all policies there twice. If it
    /// is, `wanted` gets the condition as it was.
    fn is_early(&mut self, seen: &ObjectStatus, wanted: &mut ObjectStatus, now: Instant) -> bool {
        let generation = wanted.observed_generation.unwrap_or_default();
        let find = |status: &ObjectStatus| status.conditions.iter().position(|one| one.kind == PROGRAMMED);
        let (Some(index), before) = (find(wanted), find(seen).map(|index| &seen.conditions[index])) else {
            return false;
        };
        let is_unconfirmed = |one: &Condition| matches!(&*one.reason, "Pending" | "NotConnected");
        if !is_unconfirmed(&wanted.conditions[index]) {
            self.unconfirmed = None;
            return false;
        }
        let is_new = seen.observed_generation != Some(generation);
        // The names of the nodes that are missing change with each that confirms.
        if !is_new && before.is_some_and(is_unconfirmed) {
            let is_early = self.written.is_some_and(|written| now.duration_since(written) < LAPSE);
            if is_early && let Some(before) = before {
                wanted.conditions[index] = before.clone();
            }
            return is_early;
        }
        let was_programmed =
            before.is_some_and(|one| one.status == "True" && one.observed_generation == Some(generation));
        if !was_programmed && !is_new {
            return false;
        }
        let since = match self.unconfirmed {
            Some((known, since)) if known == generation => since,
            _ => self.unconfirmed.insert((generation, now)).1,
        };
        let is_early = now.duration_since(since) < if is_new { FIRST_CONFIRMATION } else { LAPSE };
        if is_early {
            if is_new {
                *wanted = own(seen);
            } else if let Some(before) = before {
                wanted.conditions[index] = before.clone();
            }
        }
        is_early
    }
}

impl StatusWriter {
    /// Writes until `publications` ends.
    pub async fn run(mut self, mut publications: watch::Receiver<Arc<Publication>>, mut leads: watch::Receiver<bool>) {
        let mut tracked: BTreeMap<DocumentId, StatusProgress> = BTreeMap::new();
        loop {
            if leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            let publication = publications.borrow_and_update().clone();
            let pause = self.write(&publication, &mut tracked, &leads).await;
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
                changed = self.authority.changed() => if changed.is_err() { return },
                () = look => {}
            }
        }
    }

    /// Writes statuses that differ. Returns the pause until the next look; `None`: all objects have their
    /// final status.
    async fn write(
        &self,
        publication: &Publication,
        tracked: &mut BTreeMap<DocumentId, StatusProgress>,
        leads: &watch::Receiver<bool>,
    ) -> Option<Duration> {
        let Publication { reports, failure, digest } = publication;
        tracked.retain(|id, _| reports.contains_key(id));
        let mut programming = Programming::of(&self.control);
        if programming.has_absent() {
            programming.add(&self.peers.read().await, digest);
        }
        programming.captures = self.captures.borrow().clone();
        programming.authority.clone_from(&self.authority.borrow());
        let (now, moment) = (Timestamp::now().to_string(), Instant::now());
        let mut pause = None::<Duration>;
        let mut look_in = |next: Duration| pause = Some(pause.map_or(next, |pause| pause.min(next)));
        let mut due = Vec::new();
        for (id, report) in reports {
            let tracked = tracked.entry(id.clone()).or_default();
            let missing = programming.missing(&report.scope);
            for progress in missing.values() {
                look_in(if **progress == NodeProgress::Away { LOOK_FOR_ABSENT } else { LOOK });
            }
            let facts = Facts {
                report: report.clone(),
                failure: failure.clone(),
                missing: missing.into_iter().map(|(name, progress)| (name.to_owned(), progress.clone())).collect(),
                captures: programming.captures.clone(),
                authority: programming.authority.clone(),
                seen: self.inbox.seen.get(id),
            };
            if tracked.settled.as_ref().is_some_and(|settled| settled.are(&id.kind, &facts)) {
                continue;
            }
            let mut wanted = status_of(&id.kind, report, failure.as_deref(), &programming, &facts.seen, &now);
            let is_early = tracked.is_early(&facts.seen, &mut wanted, moment);
            if is_early {
                look_in(LOOK);
            }
            if wanted == own(&facts.seen) {
                (tracked.postponed, tracked.settled) = (None, (!is_early).then_some(facts));
            } else if tracked.postponed.as_ref().is_some_and(|postponed| postponed.at > moment) {
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
                    self.inbox.seen.set(id, wanted);
                    if let Some(tracked) = tracked.get_mut(id) {
                        (tracked.postponed, tracked.written) = (None, Some(Instant::now()));
                    }
                }
                Err(reason) => {
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    look_in(LOOK);
                    let tracked = tracked.entry(id.clone()).or_default();
                    let before = tracked.postponed.as_ref();
                    let pause = before.map_or(FIRST_PAUSE, |postponed| LONGEST_PAUSE.min(postponed.pause * 2));
                    tracked.postponed = Some(Postponed { at: Instant::now() + pause, pause });
                    tracing::warn!(object = %id, reason, "its status is not written yet");
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
    let is_own = |kind: &&str| [ACCEPTED, PROGRAMMED, CAPTURED, AUTHORITY].contains(kind);
    let own = status.conditions.iter().filter(|condition| is_own(&&*condition.kind)).cloned();
    ObjectStatus { conditions: own.collect(), ..status.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(generation: i64, programmed: (&str, &str)) -> ObjectStatus {
        let condition = |kind: &str, (status, reason): (&str, &str)| Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            observed_generation: Some(generation),
            ..Condition::default()
        };
        ObjectStatus {
            observed_generation: Some(generation),
            conditions: vec![condition(ACCEPTED, ("True", "Accepted")), condition(PROGRAMMED, programmed)],
            in_force: None,
        }
    }

    #[test]
    fn nodes_have_time_to_confirm_before_a_status_says_that_they_have_not() {
        let (mut tracked, begin) = (StatusProgress::default(), Instant::now());
        let (good, pending) = (("True", "Programmed"), ("False", "Pending"));
        let mut written = |seen: &ObjectStatus, mut wanted: ObjectStatus, after: Duration| {
            let is_early = tracked.is_early(seen, &mut wanted, begin + after);
            assert_eq!(is_early, wanted == *seen && wanted.conditions[1].reason != "Pending");
            wanted.conditions[1].reason.clone()
        };
        // A node that had this version confirms something else.
        let seen = status(1, good);
        for (after, reason) in [(Duration::ZERO, "Programmed"), (LAPSE / 2, "Programmed"), (LAPSE, "Pending")] {
            assert_eq!(written(&seen, status(1, pending), after), reason);
        }
        // A refusal, and the end of the wait, are written at once.
        assert_eq!(written(&seen, status(1, ("False", "Rejected")), LAPSE), "Rejected");
        assert_eq!(written(&seen, status(1, pending), LAPSE), "Programmed", "the time begins anew");
        // A new version has less time.
        assert_eq!(written(&seen, status(2, pending), LAPSE), "Programmed");
        assert_eq!(written(&seen, status(2, pending), LAPSE + FIRST_CONFIRMATION), "Pending");
        assert_eq!(written(&seen, status(2, ("False", "Invalid")), LAPSE), "Invalid");
        // Nodes confirm one by one.
        let (seen, away) = (status(2, pending), status(2, ("Unknown", "NotConnected")));
        let mut written = StatusProgress { written: Some(begin), ..StatusProgress::default() };
        assert!(written.is_early(&seen, &mut away.clone(), begin + LAPSE / 2));
        assert!(!written.is_early(&seen, &mut away.clone(), begin + LAPSE));
        assert!(!written.is_early(&seen, &mut status(2, good), begin));
    }
}
