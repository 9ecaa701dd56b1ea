//! The answers that all pages with the same rights share. A question reaches the source only when
//! a page asks and no answer is fresh, so without a page the source has no work.

use crate::filter::{FlowFilter, FlowQuery};
use crate::graph::Graph;
use crate::history::History;
use crate::source::{Failure, Rows, Source, SourceKind};
use leno_telemetry::flows::Flows;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep;

/// Windows of the graph, in seconds; 0: since the nodes started.
pub(crate) const WINDOWS: [u64; 5] = [0, 10, 60, 300, 900];
/// How long a look at the mesh and rows of a listing are fresh.
const LOOK: Duration = Duration::from_millis(1800);
const LISTING: Duration = Duration::from_secs(1);
/// Pause between two questions for flows, to a node and to a control plane, which asks all nodes.
const FLOWS_OF_NODE: Duration = Duration::from_millis(250);
const FLOWS_OF_ALL: Duration = Duration::from_secs(1);
/// Without pages for this time, looks at the mesh are forgotten.
const UNUSED: Duration = Duration::from_secs(900);
/// Most flows that are kept, which are also the most for a new page, and most in one batch.
const KEPT_FLOWS: usize = 1000;
const BATCH: usize = 200;
/// Shortest time between two questions for all flows that nodes keep.
const ALL_FLOWS: Duration = Duration::from_secs(2);
/// Most streams of pages with these credentials.
const STREAMS: usize = 16;

/// The pages of one credential.
pub(crate) struct Viewer {
    pub(crate) source: Arc<dyn Source>,
    /// The source's tenant.
    pub(crate) tenant: String,
    /// Permits for streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Shared with the credentials that have the same rights.
    pub(crate) answers: Arc<SharedAnswers>,
}

/// The answers to all credentials with the same rights. The one whose page asks first is used to ask
/// the source.
#[derive(Default)]
pub(crate) struct SharedAnswers {
    graphs: Mutex<Graphs>,
    /// By filter, as long as a page follows them.
    flows: std::sync::Mutex<BTreeMap<FlowFilter, Weak<Mutex<FlowLog>>>>,
    /// When the source was asked for all flows that nodes keep.
    asked_for_all: Mutex<Option<Instant>>,
    listings: std::sync::Mutex<BTreeMap<&'static str, Arc<Mutex<Option<Listing>>>>>,
}

/// An answer, or why there is none, and when the source was asked.
type Listing = (Instant, Result<Rows, Failure>);

/// Looks at the mesh, and the graphs of the latest one.
#[derive(Default)]
struct Graphs {
    history: History,
    /// When the source was asked, and whether it answered.
    asked: Option<(Instant, Result<(), Failure>)>,
    /// As JSON, by window.
    by_window: BTreeMap<u64, Arc<str>>,
}

/// The latest flows that match a filter. Flows have numbers in the order of their arrival.
#[derive(Default)]
pub(crate) struct FlowLog {
    filter: FlowFilter,
    /// As JSON.
    flows: VecDeque<String>,
    /// The number of the next flow.
    next: u64,
    /// Flows that nodes forgot or left out, since the start.
    missed: u64,
    /// Where the source's next answer begins.
    after: Option<String>,
    asked: Option<(Instant, Result<(), Failure>)>,
    /// The latest batch, which all pages get, and its position.
    batch: Option<(FlowPosition, Arc<str>)>,
}

/// Where a page's next flows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowPosition {
    next: u64,
    missed: u64,
}

impl Viewer {
    pub(crate) fn new(source: Arc<dyn Source>, answers: Arc<SharedAnswers>) -> Self {
        Self { tenant: source.tenant(), source, streams: Arc::new(Semaphore::new(STREAMS)), answers }
    }

    /// The graph with the traffic of one of [`WINDOWS`], as JSON.
    pub(crate) async fn graph(&self, window: u64) -> Result<Arc<str>, Failure> {
        let mut graphs = self.answers.graphs.lock().await;
        let is_fresh = |asked: &(Instant, _)| asked.0.elapsed() < LOOK;
        if !graphs.asked.as_ref().is_some_and(is_fresh) {
            let began = Instant::now();
            let answer = self.shared(self.source.look().await)?.map(|mesh| graphs.history.push(mesh));
            graphs.by_window.clear();
            graphs.asked = Some((began, answer));
        }
        graphs.of(window)
    }

    /// The flows that match a filter, to follow.
    pub(crate) fn follow(&self, filter: &FlowFilter) -> Arc<Mutex<FlowLog>> {
        let mut logs = self.answers.flows.lock().unwrap_or_else(PoisonError::into_inner);
        logs.retain(|_, log| log.strong_count() > 0);
        logs.get(filter).and_then(Weak::upgrade).unwrap_or_else(|| {
            let log = Arc::new(Mutex::new(FlowLog { filter: filter.clone(), ..FlowLog::default() }));
            logs.insert(filter.clone(), Arc::downgrade(&log));
            log
        })
    }

    /// Flows that arrived after a position, or the latest ones, as JSON: `flows`, and `missed`, those
    /// that match the filter and that the page does not get, and all that nodes forgot. `None`: nothing
    /// has arrived.
    pub(crate) async fn flows(
        &self,
        log: &Mutex<FlowLog>,
        position: Option<FlowPosition>,
    ) -> Result<(Option<Arc<str>>, FlowPosition), Failure> {
        let mut log = log.lock().await;
        if log.asked.as_ref().is_none_or(|(at, _)| at.elapsed() >= self.flow_pause()) {
            let is_first = log.after.is_none();
            if is_first {
                self.take_turn().await;
            }
            let began = Instant::now();
            let last = u32::try_from(if is_first { KEPT_FLOWS } else { BATCH }).ok();
            let query = FlowQuery { after: log.after.as_deref(), last, filter: &log.filter };
            let answer = self.shared(self.source.flows(&query).await)?;
            log.asked = Some((began, answer.map(|(answer, _)| log.add(&answer))));
        }
        if let Some((_, Err(failure))) = &log.asked {
            return Err(failure.clone());
        }
        Ok(log.since(position))
    }

    /// Waits until nodes may be asked for all flows that they keep: that takes them a while.
    async fn take_turn(&self) {
        let mut asked = self.answers.asked_for_all.lock().await;
        if let Some(at) = *asked {
            sleep(ALL_FLOWS.saturating_sub(at.elapsed())).await;
        }
        *asked = Some(Instant::now());
    }

    /// An answer that all pages may have: not the refusal of credentials that are valid no more.
    fn shared<T>(&self, answer: Result<T, Failure>) -> Result<Result<T, Failure>, Failure> {
        match answer {
            Err(failure) if !self.source.is_valid() => Err(failure),
            answer => Ok(answer),
        }
    }

    /// Pause of a page between two questions for flows.
    pub(crate) fn flow_pause(&self) -> Duration {
        match self.source.kind() {
            SourceKind::Node => FLOWS_OF_NODE,
            SourceKind::ControlPlane => FLOWS_OF_ALL,
        }
    }

    /// The rows of a listing.
    pub(crate) async fn rows(&self, listing: &'static str) -> Result<Rows, Failure> {
        let shared =
            self.answers.listings.lock().unwrap_or_else(PoisonError::into_inner).entry(listing).or_default().clone();
        let mut entry = shared.clone().lock_owned().await;
        match &*entry {
            Some((at, answer)) if at.elapsed() < LISTING => answer.clone(),
            _ => {
                let began = Instant::now();
                let answer = self.shared(self.source.rows(listing).await)?;
                *entry = Some((began, answer.clone()));
                drop(entry);
                tokio::spawn(async move {
                    sleep(LISTING).await;
                    shared.lock().await.take_if(|(at, _)| *at == began);
                });
                answer
            }
        }
    }

    /// Forgets looks at the mesh if no page has asked for them since long.
    pub(crate) async fn forget_unused(&self) {
        let mut graphs = self.answers.graphs.lock().await;
        if graphs.asked.as_ref().is_some_and(|(at, _)| at.elapsed() >= UNUSED) {
            *graphs = Graphs::default();
        }
    }
}

impl Graphs {
    fn of(&mut self, window: u64) -> Result<Arc<str>, Failure> {
        if let Some((_, Err(failure))) = &self.asked {
            return Err(failure.clone());
        }
        if let Some(graph) = self.by_window.get(&window) {
            return Ok(graph.clone());
        }
        let now = self.history.last().ok_or_else(|| Failure::Unreachable("there was no look yet".to_owned()))?;
        let before = self.history.before(Duration::from_secs(window)).filter(|_| window > 0);
        let graph = serde_json::to_string(&Graph::between(before, now));
        let graph: Arc<str> = graph.map_err(|error| Failure::Unexpected(error.to_string()))?.into();
        self.by_window.insert(window, graph.clone());
        Ok(graph)
    }
}

impl FlowLog {
    fn add(&mut self, answer: &Flows) {
        self.next += answer.flows.len() as u64;
        self.missed += answer.missed;
        // It has no failing types.
        self.flows.extend(answer.flows.iter().filter_map(|flow| serde_json::to_string(flow).ok()));
        let beyond = self.flows.len().saturating_sub(KEPT_FLOWS);
        self.flows.drain(..beyond);
        self.after = Some(answer.next.clone());
        self.batch = None;
    }

    fn since(&mut self, position: Option<FlowPosition>) -> (Option<Arc<str>>, FlowPosition) {
        let here = FlowPosition { next: self.next, missed: self.missed };
        if position == Some(here) {
            return (None, here);
        }
        // A new page asks for no earlier flows than the last ones, and has missed none.
        let Some(from) = position else { return (Some(self.text(KEPT_FLOWS, 0)), here) };
        if let Some((_, batch)) = self.batch.as_ref().filter(|(position, _)| *position == from) {
            return (Some(batch.clone()), here);
        }
        let new = self.next - from.next;
        let shown = new.min(BATCH as u64);
        let batch = self.text(usize::try_from(shown).unwrap_or(BATCH), self.missed - from.missed + new - shown);
        self.batch = Some((from, batch.clone()));
        (Some(batch), here)
    }

    /// The last flows, at most so many.
    fn text(&self, count: usize, missed: u64) -> Arc<str> {
        let skipped = self.flows.len().saturating_sub(count);
        let flows: Vec<&str> = self.flows.iter().skip(skipped).map(String::as_str).collect();
        format!(r#"{{"flows":[{}],"missed":{missed}}}"#, flows.join(",")).into()
    }
}

#[cfg(test)]
mod tests;
