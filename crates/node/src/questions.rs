//! Answers the control plane's questions about the functions that this node hosts.
//!
//! A replay runs on its own thread with the lowest priority and in its own sandboxes, so it only
//! uses time of a core that the workers leave. One replay runs at a time.

use crate::engines::Engines;
use leno_agent::{PendingQuestion, Questions};
use leno_model::{CandidatePrograms, FunctionId, OutputQuery};
use leno_proxy::replay::{self, Records};
use leno_proxy::{FunctionEntry, Node};
use leno_supervisor::Supervisor;
use leno_wire::{Answer, Question, ReplayExample, ReplaySummary, ReplayVerdict, ViewQuery};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Longest time that a replay may take.
const LONGEST: Duration = Duration::from_secs(10);
/// Maximum number of views that wait for their rows.
pub(crate) const MAX_VIEWS: usize = 32;
/// The lowest priority that a thread can have among those that share the processor.
const LOWEST_PRIORITY: i32 = 19;

/// A question for the rows of a view. The process that embeds the node has the views.
#[derive(Debug)]
pub struct PendingView {
    /// The query.
    pub query: ViewQuery,
    /// Takes a [`leno_wire::ViewRows`].
    pub question: PendingQuestion,
}

/// The parts of the node from which it makes answers.
pub(crate) struct Answerer {
    pub engines: Arc<Engines>,
    pub node: Arc<Node>,
    pub supervisor: Supervisor,
    pub views: mpsc::Sender<PendingView>,
}

impl Answerer {
    /// Answers until the control plane's client ends.
    pub(crate) async fn run(self, mut questions: Questions) {
        let replays = Arc::new(Semaphore::new(1));
        while let Some(mut asked) = questions.recv().await {
            match asked.question() {
                Some(Question::Output(read)) => asked.answer(&self.output(&read)),
                Some(Question::Replay { candidates, limit }) => match replays.clone().try_acquire_owned() {
                    Ok(permit) => self.replay(asked, candidates, limit.min(LONGEST), permit),
                    Err(_) => asked.decline("another replay is under way".to_owned()),
                },
                Some(Question::View(query)) => {
                    let pending = PendingView { query, question: asked };
                    if let Err(error) = self.views.try_send(pending) {
                        let (pending, reason) = match error {
                            mpsc::error::TrySendError::Full(pending) => (pending, "too many listings are under way"),
                            mpsc::error::TrySendError::Closed(pending) => (pending, "it is ending"),
                        };
                        pending.question.decline(reason.to_owned());
                    }
                }
                None => {}
            }
        }
    }

    fn output(&self, read: &OutputQuery) -> Answer {
        match self.supervisor.read_output(read) {
            Some(output) => Answer::Output(output),
            None => Answer::Declined(match read.attempt {
                Some(attempt) => format!("it has no output of attempt {attempt} of {}", read.function),
                None => format!("it has no function or job {}", read.function),
            }),
        }
    }

    /// Begins a replay. The answer follows.
    fn replay(
        &self,
        asked: PendingQuestion,
        candidates: Vec<CandidatePrograms>,
        limit: Duration,
        permit: OwnedSemaphorePermit,
    ) {
        let (engines, node) = (self.engines.clone(), self.node.clone());
        let begun = thread::Builder::new().name("leno-replay".to_owned()).spawn(move || {
            if let Err(error) = rustix::process::nice(LOWEST_PRIORITY) {
                return asked.decline(format!("its replay cannot have a low priority: {error}"));
            }
            let until = Instant::now() + limit;
            let records = Records::of(&node.telemetry.ring);
            let replay = |candidate: CandidatePrograms| {
                let outcome = replay_one(&engines, &node, &candidate, &records, until);
                (candidate.id, outcome)
            };
            let replays: BTreeMap<FunctionId, Result<ReplaySummary, String>> =
                candidates.into_iter().map(replay).collect();
            // A client that sees the answer may ask again at once.
            drop(permit);
            asked.answer(&Answer::Replays(replays));
        });
        // The question was dropped with the thread's closure, which declines it.
        if let Err(error) = begun {
            tracing::warn!(%error, "a replay has no thread");
        }
    }
}

fn replay_one(
    engines: &Engines,
    node: &Node,
    candidate: &CandidatePrograms,
    records: &Records,
    until: Instant,
) -> Result<ReplaySummary, String> {
    let snapshot = node.snapshot.load();
    let in_force: Option<&Arc<FunctionEntry>> = snapshot.functions.get(&candidate.id);
    let in_force = in_force.ok_or("it does not host the function any more")?;
    let engine = engines.choose(candidate.engine, snapshot.mesh.engine).map_err(|error| error.to_string())?;
    replay::replay(engine, candidate, in_force, records, until).map(told).map_err(|error| error.to_string())
}

fn told(replayed: replay::ReplayReport) -> ReplaySummary {
    let replay::ReplayReport { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out } = replayed;
    let examples = examples.into_iter().map(example).collect();
    ReplaySummary { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out }
}

fn example(example: replay::Example) -> ReplayExample {
    let replay::Example { at, request_id, direction, caller, callee, method, path, before, after } = example;
    let (direction, before, after) = (direction.to_owned(), verdict(before), verdict(after));
    ReplayExample { at, request_id, direction, caller, callee, method, path, before, after }
}

fn verdict(verdict: replay::Verdict) -> ReplayVerdict {
    let replay::Verdict { allowed, policy, rule, clause } = verdict;
    ReplayVerdict { allowed, policy: policy.unwrap_or_default(), rule, clause }
}
