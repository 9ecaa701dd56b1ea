//! The answers that all pages with the same credentials share. A question reaches the source only when
//! a page asks and no answer is fresh, so without a page the source has no work.

use crate::filter::FlowFilter;
use crate::graph::Graph;
use crate::history::History;
use crate::source::{Failure, Rows, Source, SourceKind};
use leno_telemetry::flows::Flow;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError};
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
/// After this time without questions, flows begin anew.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Without pages for this time, all answers are forgotten.
const UNUSED: Duration = Duration::from_secs(900);
/// Most flows that are kept, which are also the most for a new page, and most in one batch.
const KEPT_FLOWS: usize = 1000;
const BATCH: usize = 200;
/// Shortest time between two questions for all flows that nodes keep.
const ALL_FLOWS: Duration = Duration::from_secs(2);
/// Most streams of pages with these credentials.
const STREAMS: usize = 16;

/// The shared answers of one source.
pub(crate) struct Viewer {
    pub(crate) source: Arc<dyn Source>,
    /// The source's tenant.
    pub(crate) tenant: String,
    /// Permits for streams.
    pub(crate) streams: Arc<Semaphore>,
    graphs: Mutex<Graphs>,
    flows: Mutex<FlowLog>,
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

/// The latest flows. Flows have numbers in the order of their arrival.
#[derive(Default)]
struct FlowLog {
    flows: VecDeque<Flow>,
    /// The number of the next flow.
    next: u64,
    /// Flows that nodes forgot before they were read, since the start.
    missed: u64,
    /// Where the source's next answer begins.
    after: Option<String>,
    asked: Option<(Instant, Result<(), Failure>)>,
    /// When the source was asked for all flows.
    asked_for_all: Option<Instant>,
}

/// Where a page's next flows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowPosition {
    next: u64,
    missed: u64,
}

/// Flows for a page.
#[derive(Debug, Serialize)]
pub(crate) struct FlowBatch {
    pub(crate) flows: Vec<Flow>,
    /// Flows that match the filter and that the page does not get, and all that nodes forgot.
    pub(crate) missed: u64,
}

impl Viewer {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self {
            tenant: source.tenant(),
            source,
            streams: Arc::new(Semaphore::new(STREAMS)),
            graphs: Mutex::default(),
            flows: Mutex::default(),
            listings: std::sync::Mutex::default(),
        }
    }

    /// The graph with the traffic of one of [`WINDOWS`], as JSON.
    pub(crate) async fn graph(&self, window: u64) -> Result<Arc<str>, Failure> {
        let mut graphs = self.graphs.lock().await;
        let is_fresh = |asked: &(Instant, _)| asked.0.elapsed() < LOOK;
        if !graphs.asked.as_ref().is_some_and(is_fresh) {
            let began = Instant::now();
            let answer = self.source.look().await.map(|mesh| graphs.history.push(mesh));
            graphs.by_window.clear();
            graphs.asked = Some((began, answer));
        }
        graphs.of(window)
    }

    /// Flows that arrived after a position. Without one, the latest that nodes keep.
    pub(crate) async fn flows(
        &self,
        position: Option<FlowPosition>,
        filter: &FlowFilter,
    ) -> Result<(FlowBatch, FlowPosition), Failure> {
        let mut log = self.flows.lock().await;
        self.refresh(&mut log).await?;
        let is_new = position.is_none() && *filter != FlowFilter::default();
        // Of the flows that match, nodes may keep earlier ones than the latest of all.
        let earlier = if is_new && log.is_full() { self.earlier(&mut log, filter).await? } else { Vec::new() };
        Ok(log.since(position, filter, earlier))
    }

    /// Asks for new flows, unless that was just done.
    async fn refresh(&self, log: &mut FlowLog) -> Result<(), Failure> {
        let age = log.asked.as_ref().map(|(at, _)| at.elapsed());
        if age.is_none_or(|age| age >= self.flow_pause()) {
            if age.is_some_and(|age| age >= FORGOTTEN) {
                (log.after, log.flows) = Default::default();
            }
            self.ask(log).await;
        }
        log.asked.as_ref().map_or(Ok(()), |(_, answer)| answer.clone())
    }

    async fn ask(&self, log: &mut FlowLog) {
        let began = Instant::now();
        let answer = self.source.flows(log.after.as_deref()).await;
        log.asked = Some((began, answer.map(|(answer, _)| log.add(answer.flows, answer.missed, answer.next))));
    }

    /// All flows that nodes keep and that match, without those of the log.
    async fn earlier(&self, log: &mut FlowLog, filter: &FlowFilter) -> Result<Vec<Flow>, Failure> {
        if let Some(asked) = log.asked_for_all {
            sleep(ALL_FLOWS.saturating_sub(asked.elapsed())).await;
        }
        log.asked_for_all = Some(Instant::now());
        let (mut all, _) = self.source.flows(None).await?;
        // So the log has all that arrived until now, and the others are earlier.
        self.ask(log).await;
        let known: HashSet<_> = log.flows.iter().map(identity).collect();
        all.flows.retain(|flow| filter.matches(flow) && !known.contains(&identity(flow)));
        Ok(all.flows)
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
        let shared = self.listings.lock().unwrap_or_else(PoisonError::into_inner).entry(listing).or_default().clone();
        let mut entry = shared.clone().lock_owned().await;
        match &*entry {
            Some((at, answer)) if at.elapsed() < LISTING => answer.clone(),
            _ => {
                let began = Instant::now();
                let answer = self.source.rows(listing).await;
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

    /// Forgets answers that no page has asked for since long.
    pub(crate) async fn forget_unused(&self) {
        let is_old = |asked: &Option<(Instant, Result<(), Failure>)>| {
            asked.as_ref().is_some_and(|(at, _)| at.elapsed() >= UNUSED)
        };
        let mut graphs = self.graphs.lock().await;
        if is_old(&graphs.asked) {
            *graphs = Graphs::default();
        }
        let mut log = self.flows.lock().await;
        if is_old(&log.asked) {
            // Pages that ask again go on counting.
            let FlowLog { next, missed, .. } = *log;
            *log = FlowLog { next, missed, ..FlowLog::default() };
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
    fn add(&mut self, flows: Vec<Flow>, missed: u64, after: String) {
        self.next += flows.len() as u64;
        self.missed += missed;
        self.flows.extend(flows);
        let beyond = self.flows.len().saturating_sub(KEPT_FLOWS);
        self.flows.drain(..beyond);
        self.after = Some(after);
    }

    /// Whether it may have forgotten flows that nodes keep.
    fn is_full(&self) -> bool {
        self.flows.len() >= KEPT_FLOWS
    }

    /// Flows after a position; without one, `earlier` ones too.
    fn since(
        &self,
        position: Option<FlowPosition>,
        filter: &FlowFilter,
        earlier: Vec<Flow>,
    ) -> (FlowBatch, FlowPosition) {
        let here = FlowPosition { next: self.next, missed: self.missed };
        let new = position.map_or(u64::MAX, |position| self.next - position.next);
        let kept = self.flows.len() as u64;
        let skip = usize::try_from(kept.saturating_sub(new)).unwrap_or(usize::MAX);
        let mut flows = earlier;
        flows.extend(self.flows.iter().skip(skip).filter(|flow| filter.matches(flow)).cloned());
        let beyond = flows.len().saturating_sub(if position.is_none() { KEPT_FLOWS } else { BATCH });
        flows.drain(..beyond);
        // A new page asks for no earlier flows than the last ones.
        let missed =
            position.map_or(0, |position| self.missed - position.missed + new.saturating_sub(kept) + beyond as u64);
        (FlowBatch { flows, missed }, here)
    }
}

/// What tells a flow apart from others.
fn identity(flow: &Flow) -> [&str; 6] {
    [&flow.node, &flow.time, &flow.kind, &flow.request_id, &flow.source, &flow.host]
}

#[cfg(test)]
mod tests;
