//! Alerts: conditions that need attention, computed from the present state: each with the subject,
//! a sentence and the fix.

pub(crate) mod beginnings;
pub(crate) mod notices;
mod refusals;

use self::beginnings::Beginnings;
use self::refusals::Refusals;
use crate::limits::{self, LimitUse};
use crate::scaling::seconds;
use crate::shares::{FunctionShares, RevisionProgress};
use leno_config::Problem;
use leno_control::{AbsenceStatus, Control, NodeStatus, PlacementEvent, RolloutEvent, Status};
use leno_identity::{Holder, UnixTime, expires_in_words, late_at};
use leno_model::FunctionId;
use leno_model::revision::{self, Revisions};
use leno_proxy::tokens::KeySetProblem;
use leno_proxy::{FunctionEntry, Node};
use leno_supervisor::{FunctionStatus, ImageState, Supervisor};
use leno_telemetry::names::workload;
use leno_wire::Subject;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The remedy for an image that cannot be pulled.
const PULL: &str = "correct the name of the image, or make its registry reachable";

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Requests fail, or will soon.
    Critical,
    /// Something is not as it was meant to be.
    #[default]
    Warning,
    /// Requests are refused or disturbed, as documents say.
    Info,
    /// A part of the documents has no effect.
    Notice,
}

/// One such condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// How bad it is.
    pub severity: Severity,
    /// `certificate`, `rejected`, `failing`, `unplaced`, `ejected`, `exhausted`, `keySet`, `node`,
    /// `rolledBack`, `deniedEgress`, `refusing`, `unenforced`, `program`, `store`, `documents`,
    /// `ruleWithoutEffect`, `fault`.
    pub kind: String,
    /// A function, a node, a certificate or the like.
    pub subject: String,
    /// Distinguishes alerts of one kind about one subject.
    #[serde(skip)]
    pub(crate) topic: String,
    /// The function; nothing: the alert is about the mesh or a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The namespace of an alert about a document; nothing: that of the function, or the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The node that reports it; empty: the process that answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The condition, as a sentence.
    pub text: String,
    /// The remedy.
    pub fix: String,
    /// When it began, in seconds since 1970; nothing: that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<f64>,
    /// It may have begun before `since`, when the process that tells it did not run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

impl Alert {
    pub(crate) fn new(severity: Severity, kind: &str, subject: impl ToString, text: String, fix: &str) -> Self {
        let (kind, fix) = (kind.to_owned(), fix.to_owned());
        Self { severity, kind, subject: subject.to_string(), text, fix, ..Self::default() }
    }

    /// The same about a function, for the readers of its namespace too.
    fn of(function: &str, severity: Severity, kind: &str, text: String, fix: &str) -> Self {
        Self { function: Some(function.to_owned()), ..Self::new(severity, kind, function, text, fix) }
    }

    /// One of several alerts of its kind about its subject.
    pub(crate) fn about(self, topic: impl ToString) -> Self {
        Self { topic: topic.to_string(), ..self }
    }

    fn since(self, since: Option<f64>) -> Self {
        Self { since, ..self }
    }

    /// The namespace of the function or the document.
    pub(crate) fn namespace(&self) -> Option<&str> {
        let of_function = || self.function.as_deref()?.split_once('/').map(|(namespace, _)| namespace);
        self.namespace.as_deref().or_else(of_function)
    }
}

/// The last decisions of a control plane, which tell when conditions began.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    placements: Vec<PlacementEvent>,
    rollouts: Vec<RolloutEvent>,
}

impl Decisions {
    pub(crate) fn of(control: &Control) -> Self {
        Self { placements: control.placement_events(), rollouts: control.rollout_events() }
    }

    /// Since when a function is on no node, for this reason.
    fn unplaced(&self, function: &FunctionId, reason: &str) -> Option<f64> {
        let mut events = self.placements.iter().rev();
        let event = events.find(|event| event.function == *function && event.reason == reason)?;
        Some(event.at_ms as f64 / 1e3)
    }

    /// When a function's revision was rolled back last.
    fn rolled_back(&self, function: &FunctionId) -> Option<f64> {
        let mut events = self.rollouts.iter().rev();
        let event = events.find(|event| event.function == *function && event.to == 0)?;
        Some(event.at_ms as f64 / 1e3)
    }
}

/// The memory of a process for its alerts.
#[derive(Default)]
pub struct AlertHistory {
    pub(crate) beginnings: Beginnings,
    refusals: Refusals,
    /// Rules without effect in the files of `leno up`.
    notices: Mutex<Vec<Alert>>,
}

impl AlertHistory {
    /// Takes samples of the node's counters, when they are due.
    pub(crate) fn sample(&self, node: &Node) {
        self.refusals.sample(&node.telemetry.metrics, Instant::now());
    }

    /// Alerts about functions that refuse nearly all requests.
    pub(crate) fn of_refusals(&self) -> Vec<Alert> {
        self.refusals.alerts()
    }

    /// The warnings of the files in force have changed.
    pub fn take_warnings(&self, warnings: &[Problem]) {
        *self.notices.lock().unwrap_or_else(PoisonError::into_inner) = notices::of_warnings(&[], warnings);
    }

    /// Rules without effect in the files in force.
    pub(crate) fn of_files(&self) -> Vec<Alert> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Alerts of a node, for readers of these namespaces; none: of the whole mesh.
pub(crate) fn of_node(node: &Node, supervisor: &Supervisor, readers: &BTreeSet<String>) -> Vec<Alert> {
    let mut alerts = certificates(node);
    let snapshot = node.snapshot.load();
    alerts.extend(snapshot.functions.values().flat_map(programs));
    let (statuses, images) = (supervisor.status(), supervisor.images());
    for status in &statuses {
        let entry = snapshot.functions.get(&status.function);
        let progress = RevisionProgress::of(status, &images);
        alerts.extend(failing(status, &progress, entry.map(|entry| &entry.config.revisions)));
        alerts.extend(unenforced(status));
    }
    let of_job = images.iter().filter(|(_, revision, _)| *revision == 0);
    alerts.extend(of_job.filter_map(|(id, _, image)| match image {
        ImageState::Failed(reason) => {
            let text = format!("its image cannot be pulled: {reason}");
            Some(Alert::of(&id.to_string(), Severity::Critical, "failing", text, PULL))
        }
        _ => None,
    }));
    let limits = limits::for_readers(limits::rows(node, supervisor, None), readers);
    alerts.extend(limits.iter().filter_map(limit));
    alerts.extend(key_sets(node));
    alerts.extend(denied_egress(node));
    if node.policy_state.entries().store.is_some_and(|store| !store.answers) {
        let text = "the store of rate limits does not answer: requests that need it are refused".to_owned();
        alerts.push(Alert::new(
            Severity::Critical,
            "store",
            "quota store",
            text,
            "start the Redis server that the Mesh document names, or make it reachable",
        ));
    }
    alerts
}

/// Orders alerts: the worst first, and each severity by kind and subject.
pub(crate) fn sort(alerts: &mut [Alert]) {
    alerts.sort_by(|one, other| {
        (one.severity, &one.kind, &one.subject).cmp(&(other.severity, &other.kind, &other.subject))
    });
}

/// Alerts that only a control plane knows.
pub(crate) fn of_control_plane(status: &Status, decisions: &Decisions) -> Vec<Alert> {
    let mut alerts = Vec::new();
    for node in &status.nodes {
        let about = |severity, text: String, fix: &str| Alert::new(severity, "node", &node.name, text, fix);
        if !node.connected {
            alerts.extend(away(node, status));
        } else if node.behind {
            let text = format!("the node has not acknowledged its configuration for {} s", node.unacknowledged_seconds);
            let since = now().saturating_sub(node.unacknowledged_seconds) as f64;
            let fix = "look at the load and the log of the node";
            alerts.push(about(Severity::Warning, text, fix).since(Some(since)));
        }
        alerts.extend(node.rejected.iter().map(|version| {
            let text =
                format!("node {} rejects the configuration, and keeps the earlier one: {}", node.name, version.reason);
            let fix = "change the documents as the reason says, or upgrade the node";
            match &version.subject {
                Subject::FunctionConfig(id) => {
                    Alert::of(&id.to_string(), Severity::Critical, "rejected", text, fix).about(&node.name)
                }
                subject => Alert::new(Severity::Critical, "rejected", &node.name, text, fix).about(subject),
            }
        }));
    }
    for function in &status.functions {
        let name = function.function.to_string();
        if function.unplaced {
            let reason = function.reason.as_deref().unwrap_or("no node has capacity for it");
            let had_it = |node: &&NodeStatus| node.absence.as_ref().is_some_and(|it| it.has(&function.function));
            let last = status.nodes.iter().find(had_it).filter(|node| !reason.contains(&node.name));
            let last = last.map_or_else(String::new, |node| format!("; node {}, which had it, is away", node.name));
            let text = format!("the function is on no node: {reason}{last}");
            let fix = "add a node, or capacity, or ask for less";
            let since = decisions.unplaced(&function.function, reason);
            alerts.push(Alert::of(&name, Severity::Critical, "unplaced", text, fix).since(since));
        }
        let latest = function.revisions.last();
        if let Some((revision, reason)) = latest.and_then(|latest| Some((&latest.revision, latest.failed.as_ref()?))) {
            let text = format!("revision {revision} was rolled back: {reason}");
            let fix = "correct the revision and apply it again; `leno describe function` has its events";
            let since = decisions.rolled_back(&function.function);
            alerts.push(Alert::of(&name, Severity::Warning, "rolledBack", text, fix).since(since));
        }
    }
    alerts
}

/// The alert about a node that is away, and those about functions that are placed on it alone.
fn away(node: &NodeStatus, status: &Status) -> Vec<Alert> {
    let fix = "start the node, or remove it with `leno nodes revoke`";
    let absence = node.absence.as_ref();
    let consequences = absence.map(AbsenceStatus::consequences).unwrap_or_default();
    let text = ["the node is away".to_owned()].into_iter().chain(consequences.iter().cloned());
    let severity = if consequences.is_empty() { Severity::Warning } else { Severity::Critical };
    let begun = |alert: Alert| {
        let since = absence.map(|absence| absence.since_ms as f64 / 1e3);
        Alert { at_least: absence.is_some_and(|absence| absence.at_least), ..alert.since(since) }
    };
    let of_node = Alert::new(severity, "node", &node.name, text.collect::<Vec<_>>().join("; "), fix);
    // The alert `unplaced` tells of the others.
    let is_placed = |function: &&leno_control::FunctionStatus| {
        !function.unplaced && absence.is_some_and(|absence| absence.has(&function.function))
    };
    let of_functions = status.functions.iter().filter(is_placed).map(|function| {
        let text = format!("node {}, the only one that has the function, is away", node.name);
        Alert::of(&function.function.to_string(), Severity::Critical, "node", text, fix)
    });
    [of_node].into_iter().chain(of_functions).map(begun).collect()
}

/// The alert about the store of a control plane that cannot be used, and why.
pub(crate) fn of_store(fault: &str) -> Alert {
    let text = format!("{fault}; revisions and results of jobs are in memory only, and a restart loses them");
    let fix = "make the file readable and writable for Leno, with space on its disk; Leno opens it again by itself";
    Alert::new(Severity::Critical, "store", "control plane", text, fix)
}

fn certificates(node: &Node) -> Vec<Alert> {
    let svids = &node.svids;
    let now = svids.now().map_or(0, |now| now.as_secs());
    let mut alerts = Vec::new();
    for svid in svids.all() {
        let (end, renewal) = (svid.not_after().as_secs(), svid.renew_at().as_secs());
        alerts.extend(of_svid(&svid.id().to_string(), renewal, end, now));
    }
    let gateway = node.gateway_certificates.load();
    for certificate in gateway.iter().flat_map(|certificates| certificates.list().to_vec()) {
        let (life, subject) =
            ([certificate.late_at, certificate.not_after], certificate.files.certificate.display().to_string());
        alerts.extend(of_gateway_certificate(&subject, certificate.fault.as_deref(), life.map(|at| at.as_secs()), now));
    }
    for (secret, certificate) in node.listener_certificates.all().iter() {
        let subject = format!("StoredSecret {secret}");
        let (life, fault) = match certificate {
            Ok(certificate) => ([certificate.late_at, certificate.not_after].map(|at| at.as_secs()), None),
            Err(reason) => ([u64::MAX; 2], Some(&**reason)),
        };
        alerts.extend(of_gateway_certificate(&subject, fault, life, now));
    }
    alerts
}

/// The alert about a certificate that the control plane renews. All times in seconds since 1970.
fn of_svid(identity: &str, renewal: u64, end: u64, now: u64) -> Option<Alert> {
    // The control plane renews at half of the life.
    let [begin, last] = [renewal.saturating_sub(end.saturating_sub(renewal)), end];
    let [begin, last] = [begin, last].map(|at| UnixTime::since_unix_epoch(Duration::from_secs(at)));
    let late = late_at(begin, last, Holder::Endpoint).as_secs();
    let (severity, since, text) = match () {
        () if now >= end => (Severity::Critical, end, "the certificate has expired".to_owned()),
        () if now >= late => {
            (Severity::Warning, late, format!("the certificate is not renewed, and {}", expires_in_words(end, now)))
        }
        () => return None,
    };
    let fix = "make the control plane reachable, and compare the clocks";
    let function = workload(identity).map(|(namespace, name)| format!("{namespace}/{name}"));
    Some(Alert { function, ..Alert::new(severity, "certificate", identity, text, fix).since(Some(since as f64)) })
}

/// The same about a certificate of the gateway.
fn of_gateway_certificate(subject: &str, fault: Option<&str>, [late, end]: [u64; 2], now: u64) -> Option<Alert> {
    let (severity, since, text) = match fault {
        Some(fault) => (Severity::Critical, None, format!("the gateway cannot use the certificate: {fault}")),
        None if now >= end => (Severity::Critical, Some(end), "the gateway's certificate has expired".to_owned()),
        None if now >= late => {
            (Severity::Warning, Some(late), format!("the gateway's certificate {}", expires_in_words(end, now)))
        }
        None => return None,
    };
    let fix = "replace the files of the certificate; the gateway reads them again";
    Some(Alert::new(severity, "certificate", subject, text, fix).since(since.map(|since| since as f64)))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Programs and rules that do not decide as they are written.
fn programs(entry: &Arc<FunctionEntry>) -> Vec<Alert> {
    let mut alerts = Vec::new();
    for (what, program) in [("requests to it", &entry.inbound), ("calls that it makes", &entry.outbound)] {
        if let Err(error) = &program.image {
            let text = format!("the program of {what} cannot be loaded, so all are refused: {error}");
            let fix = "look at the log of the node";
            alerts.push(Alert::of(&entry.name, Severity::Critical, "program", text, fix).about(what));
        }
    }
    alerts
}

/// Instances of a revision that fail, with the revision that serves in its place.
fn failing(status: &FunctionStatus, progress: &RevisionProgress, revisions: Option<&Revisions>) -> Option<Alert> {
    let (id, number) = (&status.function, status.revision);
    if progress.failing == 0 && !progress.no_image {
        return None;
    }
    let alert = |severity, text: String, fix: &str| Some(Alert::of(&id.to_string(), severity, "failing", text, fix));
    let name = |number| revision::label(id, number, revisions.and_then(|revisions| revisions.name(number)));
    let percents = revisions.map(FunctionShares::percents).unwrap_or_default();
    let (is_split, is_named) = revisions.map_or((false, false), |all| (all.split.is_some(), !all.names.is_empty()));
    let problem = FunctionShares::new(id, percents, [progress]).problem(number);
    let look = if progress.no_image { PULL } else { "`leno logs --previous` shows the output of the last one" };
    if let Some(problem) = problem.filter(|problem| !problem.former.is_empty()) {
        let former =
            problem.former.iter().map(|(former, _)| former).next_back().map(String::as_str).unwrap_or_default();
        let back = match is_named {
            true => "apply the former document again to go back".to_owned(),
            false => format!("go back with `leno promote {id} {former}`"),
        };
        return alert(Severity::Warning, format!("revision {} {problem}", name(number)), &format!("{back}; {look}"));
    }
    let reason = progress.reason.as_deref().unwrap_or("no reason is known");
    let what = match (progress.no_image, progress.failing) {
        (true, _) => reason.to_owned(),
        (false, failing) => format!("{failing} instances failed since one was ready: {reason}"),
    };
    let text = if is_split { format!("revision {}: {what}", name(number)) } else { what };
    alert(if progress.is_final() { Severity::Critical } else { Severity::Warning }, text, look)
}

/// Limits of resources that are not in force.
fn unenforced(status: &FunctionStatus) -> Option<Alert> {
    let reason = status.unenforced.as_ref()?;
    let text = format!("its resource limits are not in force: {reason}");
    let fix = "`leno doctor` shows what this machine can enforce";
    Some(Alert::of(&status.function.to_string(), Severity::Warning, "unenforced", text, fix))
}

/// Exhausted limits and ejected endpoints.
fn limit(row: &LimitUse) -> Option<Alert> {
    let of = row.of.unwrap_or_default();
    let (severity, kind, text, fix) = match (&*row.kind, &*row.state) {
        ("ejection", _) => (
            Severity::Warning,
            "ejected",
            format!(
                "{} of {} failed too often, and gets no requests for a while ({})",
                if row.key.is_empty() { "an endpoint".to_owned() } else { format!("the endpoint {}", row.key) },
                row.callee,
                row.name
            ),
            "look at the output and the failures of that instance",
        ),
        ("rateLimit", "exhausted") => (
            Severity::Info,
            "exhausted",
            format!("the rate limit {} refuses requests: {of} are used up{}", row.name, of_key(&row.key)),
            "raise the limit if these requests are legitimate",
        ),
        ("queue", "exhausted") if of > 0 => (
            Severity::Critical,
            "exhausted",
            format!("the queue is full: {of} requests wait for an instance, and further ones get 503"),
            "permit more instances (`scale.max`), or find out why instances are slow",
        ),
        ("requests" | "pendingRequests" | "connections", "exhausted") => (
            Severity::Warning,
            "exhausted",
            format!(
                "the circuit breaker {} is open: {}{} to {}, and further ones get 503",
                row.name,
                row.used.map_or_else(|| "too many ".to_owned(), |used| format!("{used} ")),
                row.kind,
                row.callee
            ),
            "find out why the callee is slow, or raise the bound",
        ),
        _ => return None,
    };
    let topic = format!("{} {} {} {}", row.kind, row.name, row.callee, row.key);
    Some(Alert::of(&row.function, severity, kind, text, fix).about(topic).since(row.since))
}

fn of_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(" by {key}") }
}

/// Key sets that cannot be fetched.
fn key_sets(node: &Node) -> Vec<Alert> {
    let snapshot = node.snapshot.load();
    let failures = node.policy_state.tokens.key_sets.failed();
    let failures = failures.into_iter().filter_map(|failure| {
        let entry = snapshot.functions.get(&failure.function)?;
        let fetch = entry.config.jwks.iter().find(|fetch| fetch.url == failure.url)?;
        let pending = entry.config.inbound.authentication.get(fetch.issuer).is_some_and(|issuer| issuer.keys_pending);
        let KeySetProblem { reason, fix, is_empty } = &failure.problem;
        let (severity, effect) = match (is_empty, pending) {
            (true, _) => (Severity::Critical, "has no usable key, requests with a token get 401"),
            (false, true) => (Severity::Critical, "cannot be fetched, requests with a token get 503"),
            (false, false) => (Severity::Warning, "cannot be fetched, the earlier keys stay in use"),
        };
        let text = format!("the key set {} {effect}: {reason}", failure.url);
        Some(
            Alert::of(&entry.name, severity, "keySet", text, fix)
                .about(failure.url)
                .since(Some(seconds(failure.since))),
        )
    });
    failures.collect()
}

/// Destinations that functions were refused, since the node started.
fn denied_egress(node: &Node) -> Vec<Alert> {
    let mut refused: BTreeMap<FunctionId, (u64, String)> = BTreeMap::new();
    for row in node.telemetry.destinations.all() {
        let (count, host) = refused.entry(row.function).or_default();
        *count += row.destination.count;
        if host.is_empty() {
            *host = row.destination.host;
        }
    }
    let alert = |(function, (count, host)): (FunctionId, (u64, String))| {
        let text = format!("{count} calls were refused since the node started, for example to {host}");
        let fix = format!("`leno suggest egress {function}` writes documents that would permit them");
        Alert::of(&function.to_string(), Severity::Info, "deniedEgress", text, &fix)
    };
    refused.into_iter().map(alert).collect()
}

#[cfg(test)]
mod tests;
