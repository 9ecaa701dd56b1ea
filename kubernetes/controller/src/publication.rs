//! Puts documents into force as they change.
//!
//! One publication runs at a time. A change that comes alone is published at once. Changes that
//! arrive meanwhile are published together, by the next one. Under many changes, a pause follows each
//! publication, so that publications take half of the time at most.

use crate::api::Change;
use crate::crds::ObjectKind;
use crate::documents::{
    ClusterDocuments, DocumentObject, Functions, InForce, Objects, SeenStatuses, Selection, Verdict,
};
use crate::index::Workload;
use leno_config::{CompileCache, Document, DocumentId, Effort, NamespaceUse, Problem, Snapshot, UseShare};
use leno_control::{Control, PublishSummary};
use leno_identity::TrustDomain;
use leno_intake::{Intake, PublishedDocuments, Source as _};
use leno_model::FunctionId;
use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep_until, timeout};

/// The longest pause after a publication, however long it took.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Pause before a failed publication is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// The result of a publication for one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Whether the object is valid, and the version of it that is in force.
    pub verdict: Verdict,
    /// Warnings about it.
    pub warnings: Vec<Problem>,
    /// The nodes that need it.
    pub scope: NodeScope,
}

/// The nodes that need an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeScope {
    /// Those that host one of these functions.
    Hosts(BTreeSet<FunctionId>),
    /// All.
    Mesh,
}

/// The result for each object. Publications share those that are the same.
pub type Reports = BTreeMap<DocumentId, Arc<Report>>;

/// The last publication.
#[derive(Clone, Debug, Default)]
pub struct Publication {
    /// Its result for each object.
    pub reports: Reports,
    /// Why it is not in force; `None`: it is.
    pub failure: Option<String>,
    /// A text that is the same for controllers that have published the same versions of all objects.
    pub digest: String,
}

impl Publication {
    /// The publication with these results.
    pub fn new(reports: Reports, failure: Option<String>) -> Self {
        let mut text = String::new();
        for (id, report) in &reports {
            let verdict = &report.verdict;
            let earlier = match &verdict.in_force {
                InForce::Present => Cow::from("present"),
                InForce::Earlier(generation, _) => generation.to_string().into(),
                InForce::Denial => "denial".into(),
                InForce::Nothing => "nothing".into(),
            };
            // Writing to a text does not fail.
            let _ = writeln!(text, "{id} {} {} {earlier}", verdict.uid, verdict.generation);
        }
        let failed = if failure.is_some() { "failed " } else { "" };
        let digest = format!("{failed}{}", leno_config::module_hash(text.as_bytes()));
        Self { reports, failure, digest }
    }
}

/// Counts of publications.
#[derive(Debug, Default)]
pub struct Counts {
    /// Publications.
    pub published: AtomicU64,
    /// Attempts that failed.
    pub failed: AtomicU64,
    /// Microseconds from the first change to the end of its publication, of all publications.
    pub micros: AtomicU64,
}

/// The documents of a cluster, as watches report them.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Notify,
    /// Results of the last compilation.
    cache: CompileCache,
    /// The status of each object, as the API server has it.
    pub seen: SeenStatuses,
}

/// Publications share the objects and functions, which are copied only if they change meanwhile.
#[derive(Clone, Default)]
struct State {
    objects: Arc<Objects>,
    functions: Arc<Functions>,
    /// The first change that is not published yet.
    changed: Option<Instant>,
}

impl Inbox {
    /// Applies a change of objects that are documents.
    pub fn change_objects(&self, kind: &ObjectKind, change: Change<DocumentObject>) {
        self.seen.apply(kind, &change);
        self.change(|state| Arc::make_mut(&mut state.objects).apply(kind, change));
    }

    /// Applies changes of workloads; `None`: it is gone.
    pub fn change_workloads(&self, workloads: BTreeMap<FunctionId, Option<Workload>>) {
        self.change(|state| Arc::make_mut(&mut state.functions).apply(workloads));
    }

    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        let mut state = self.state();
        if change(&mut state) {
            state.changed.get_or_insert_with(Instant::now);
            self.changed.notify_one();
        }
    }

    /// Waits for changes, and until the time of the next publication.
    async fn changes(&self, next: Instant) {
        while self.state().changed.is_none() {
            self.changed.notified().await;
        }
        sleep_until(next).await;
    }

    /// The trust domain of the Mesh object, or else the default.
    ///
    /// # Errors
    /// The Mesh object cannot be used.
    pub fn trust_domain(&self) -> Result<TrustDomain, Vec<Problem>> {
        let objects = self.state().objects.clone();
        let documents: Vec<&Document> = objects.meshes().collect::<Result<_, _>>().map_err(<[Problem]>::to_vec)?;
        let documents = ClusterDocuments { documents: &documents, in_force: BTreeSet::new(), cache: None };
        let snapshot = documents.compile(&Effort::unbounded())?;
        Ok(snapshot.mesh_config().trust_domain.clone())
    }

    /// The lock is not held while documents are compiled. Nothing panics while holding it, so
    /// poisoning is ignored.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes the documents of a cluster.
pub struct Publisher {
    /// The documents.
    pub inbox: Arc<Inbox>,
    /// The control plane.
    pub control: Control,
    /// The last publication.
    pub publications: watch::Sender<Arc<Publication>>,
    /// Counts of publications.
    pub counts: Arc<Counts>,
    /// Compiled modules of extensions.
    pub intake: Intake,
}

impl Publisher {
    /// Publishes all documents, and then changes as they come. Runs until it is dropped.
    pub async fn run(self) -> Infallible {
        let mut in_force = None;
        loop {
            let begin = Instant::now();
            let outcome = self.publish(&mut in_force).await;
            let (end, took) = (Instant::now(), begin.elapsed());
            let changes = self.inbox.changes(end + took.min(LONGEST_PAUSE));
            match outcome {
                Ok(()) => changes.await,
                // What failed may succeed later.
                Err(()) => drop(timeout(AGAIN, changes).await),
            }
        }
    }

    /// `in_force`: the last documents.
    async fn publish(&self, in_force: &mut Option<PublishedDocuments>) -> Result<(), ()> {
        let state = {
            let mut state = self.inbox.state();
            State { changed: state.changed.take(), ..state.clone() }
        };
        let begin = state.changed.unwrap_or_else(Instant::now);
        let selected = block_in_place(|| self.select(&state));
        drop(state);
        let published = match &selected {
            Ok(selection) => {
                let (snapshot, before) = (selection.snapshot.clone(), in_force.take());
                match self.intake.publish_after(&self.control, snapshot, before).await {
                    Ok((summary, published)) => {
                        *in_force = Some(published);
                        Ok(summary)
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
            Err(problems) => Err(in_words(problems)),
        };
        let failure = match (&selected, published) {
            (Ok(selection), Ok(summary)) => {
                if selection.has_new() {
                    Arc::make_mut(&mut self.inbox.state().objects).in_force(selection);
                }
                let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.counts.published.fetch_add(1, Ordering::Relaxed);
                self.counts.micros.fetch_add(micros, Ordering::Relaxed);
                let PublishSummary { functions, changed, removed } = summary;
                tracing::info!(documents = selection.documents, functions, changed, removed, micros, "published");
                None
            }
            (_, published) => {
                let failure = published.err().unwrap_or_default();
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                tracing::error!("the documents are not in force, and what was before stays: {failure}");
                Some(failure)
            }
        };
        let reports = match &selected {
            Ok(selection) => reports(selection, &self.publications.borrow().reports),
            Err(_) => self.publications.borrow().reports.clone(),
        };
        let outcome = if failure.is_none() { Ok(()) } else { Err(()) };
        self.publications.send_replace(Arc::new(Publication::new(reports, failure)));
        outcome
    }

    fn select(&self, state: &State) -> Result<Selection, Vec<Problem>> {
        let bundle = self.control.bundle();
        let domain = bundle.trust_domain();
        let check = |documents: &[&Document], in_force: BTreeSet<DocumentId>| {
            let cache = Some(self.inbox.cache.clone());
            let source = ClusterDocuments { documents, in_force, cache };
            let snapshot = self.intake.check(source, &Effort::unbounded())?;
            let mut problems = other_trust_domain(&snapshot, documents, domain);
            if problems.is_empty() {
                problems = over_quota(&snapshot, documents);
            }
            if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
        };
        state.objects.select(state.functions.documents(), check)
    }
}

/// The problem of a Mesh document with another trust domain than the control plane's. Each identity
/// would change, so the change needs a new control plane.
fn other_trust_domain(snapshot: &Snapshot, documents: &[&Document], domain: &TrustDomain) -> Vec<Problem> {
    if snapshot.mesh_config().trust_domain == *domain {
        return Vec::new();
    }
    let problem = |document: &&&Document| Problem {
        field: "spec.trustDomain".to_owned(),
        message: format!("the trust domain of this control plane is {domain}"),
        fix: "restart the controllers to change every identity".to_owned(),
        ..document.place()
    };
    documents.iter().filter(|document| document.id().kind == "Mesh").map(|document| problem(&document)).collect()
}

/// The problems of documents with which a namespace exceeds its quota.
fn over_quota(snapshot: &Snapshot, documents: &[&Document]) -> Vec<Problem> {
    let mut uses = snapshot.namespaces();
    for document in documents.iter().filter(|document| !document.id().namespace.is_empty()) {
        uses.entry(&document.id().namespace).or_default().document_bytes += document.text().len() as u64;
    }
    let nothing = NamespaceUse::default();
    let order: LazyCell<BTreeMap<&DocumentId, usize>, _> =
        LazyCell::new(|| documents.iter().map(|document| document.id()).zip(0..).collect());
    let mut problems = Vec::new();
    for (namespace, used) in uses {
        for overrun in used.overruns(snapshot.quota(namespace), &nothing) {
            let bytes = documents.iter().filter(|document| document.id().namespace == namespace).map(|document| {
                let document_bytes = document.text().len() as u64;
                UseShare { documents: vec![document.id().clone()], used: NamespaceUse { document_bytes, ..nothing } }
            });
            let shares = snapshot.shares(namespace).into_iter().chain(bytes);
            let place = |index: usize| documents[index].place();
            problems.extend(overrun.problems(namespace, shares, |id| order.get(id).copied(), place));
        }
    }
    problems
}

/// The result for each object. Those that are as `before` are shared with it.
fn reports(selection: &Selection, before: &Reports) -> Reports {
    let mut targets = selection.snapshot.policy_targets();
    let mut warnings: BTreeMap<PathBuf, Vec<Problem>> = BTreeMap::new();
    for warning in selection.snapshot.warnings() {
        warnings.entry(warning.file.clone()).or_default().push(warning.clone());
    }
    let (mut reports, mut before) = (Vec::with_capacity(selection.verdicts.len()), before.iter().peekable());
    for (id, verdict) in &selection.verdicts {
        let scope = match &*id.kind {
            "Policy" => NodeScope::Hosts(targets.remove(&(&*id.namespace, &*id.name)).unwrap_or_default()),
            _ => NodeScope::Mesh,
        };
        let warnings = if warnings.is_empty() { None } else { warnings.remove(Path::new(&id.to_string())) };
        let report = Report { verdict: verdict.clone(), warnings: warnings.unwrap_or_default(), scope };
        while before.next_if(|(earlier, _)| *earlier < id).is_some() {}
        let same = before.next_if(|(earlier, before)| *earlier == id && ***before == report);
        reports.push((id.clone(), same.map_or_else(|| Arc::new(report), |(_, before)| before.clone())));
    }
    reports.into_iter().collect()
}

/// The first problems.
fn in_words(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().take(8).map(ToString::to_string).collect();
    let more = problems.len().saturating_sub(lines.len());
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    lines.join("; ") + &more
}
