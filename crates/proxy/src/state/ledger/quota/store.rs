//! The node's side of a quota store: a server outside of the mesh that keeps the counters of rate limits.
//!
//! Requests take from what the node holds of a counter. What a counter lacks is asked for here. Somebody who speaks to the store takes the questions,
//! and gives the answers to the ledger. The store itself is nothing that this crate knows.

use leno_model::FunctionId;
use leno_policy::spec::QuotaAlgorithm;
use leno_telemetry::metrics::StoreFigures;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A counter of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterName {
    /// The function whose limit it is.
    pub function: FunctionId,
    /// Name of the limit.
    pub limit: Box<str>,
    /// The counter's key. Clients choose parts of it.
    pub key: Box<str>,
}

/// What the store is told and asked of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// How to count.
    pub algorithm: QuotaAlgorithm,
    /// Requests of what the node held that it has not used.
    pub unused: u32,
    /// As many of these it keeps; the others are given back.
    pub keep: u32,
    /// For requests that wait.
    pub need: u32,
    /// For requests that may follow.
    pub extra: u32,
}

/// What the store answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Requests that the node holds now.
    pub held: u32,
    /// What is left for others, and for later.
    pub left: u32,
    /// Until one more may be left.
    pub again: Duration,
    /// Until nothing of the counter is used.
    pub reset: Duration,
    /// How long `held` counts, from when the question was sent.
    pub counts: Duration,
    /// The counter counts other keys, too, because the limit has no room for more counters.
    pub shared: bool,
}

/// What has passed between the node and the store.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Questions that were answered.
    pub answered: AtomicU64,
    /// Questions that were not: no connection, no answer in time, or one that makes no sense.
    pub failed: AtomicU64,
    /// Time that answers took, in microseconds. An answer is to all questions that were sent together.
    pub micros: AtomicU64,
    /// Answers that were waited for.
    pub round_trips: AtomicU64,
    /// Requests that were granted.
    pub granted: AtomicU64,
    /// Requests that were given back unused.
    pub returned: AtomicU64,
    /// Requests that were refused because the store did not answer.
    pub refused: AtomicU64,
}

/// Where the ledger asks for what it lacks.
#[derive(Debug)]
pub struct Store {
    /// At most one question for each counter is under way, so this is as bounded as the counters are.
    questions: UnboundedSender<CounterName>,
    /// How long a request waits for an answer.
    pub timeout: Duration,
    answers: AtomicBool,
    /// For metrics.
    pub counts: StoreCounts,
}

impl Store {
    /// A store that is expected to answer, and the counters to ask it about.
    pub fn new(timeout: Duration) -> (Self, UnboundedReceiver<CounterName>) {
        let (questions, asked) = unbounded_channel();
        (Self { questions, timeout, answers: AtomicBool::new(true), counts: StoreCounts::default() }, asked)
    }

    /// Says whether the store answers. While it does not, no request waits for it.
    pub fn set_answers(&self, answers: bool) {
        self.answers.store(answers, Ordering::Relaxed);
    }

    /// Whether the store answers, as far as is known.
    pub fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// What has happened, for metrics.
    pub(crate) fn figures(&self) -> StoreFigures {
        let StoreCounts { answered, failed, micros, round_trips, granted, returned, refused } = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreFigures {
            answers: self.answers(),
            answered: of(answered),
            failed: of(failed),
            seconds: Duration::from_micros(of(micros)).as_secs_f64(),
            round_trips: of(round_trips),
            granted: of(granted),
            returned: of(returned),
            refused: of(refused),
        }
    }

    /// Returns whether somebody takes questions.
    pub(super) fn ask(&self, counter: CounterName) -> bool {
        self.questions.send(counter).is_ok()
    }
}

/// When an answer arrived, by both clocks, and when its question was sent.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When the question was sent.
    pub sent: Instant,
    /// When the answer arrived.
    pub now: Instant,
    /// The same in milliseconds since 1970.
    pub now_ms: u64,
}
