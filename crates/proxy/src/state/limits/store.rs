//! The node's side of a quota store: a server outside of the mesh that keeps the counters of rate
//! limits.
//!
//! Requests take from the node's allowance of a counter. If the allowance is too small, this module
//! queues a question. The client of the store takes the questions from the queue, and passes the
//! answers to [`FunctionLimits`](super::FunctionLimits). This crate does not depend on the kind of
//! store.

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

/// The question to the store about one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The algorithm to count by.
    pub algorithm: QuotaAlgorithm,
    /// Requests of the node's previous allowance that it has not used.
    pub unused: u32,
    /// The node keeps so many of these, and gives the others back.
    pub keep: u32,
    /// Requests needed by waiting requests.
    pub need: u32,
    /// Requests wanted ahead.
    pub extra: u32,
}

/// The answer of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Requests that the node holds now.
    pub held: u32,
    /// Requests left for other nodes, and for later questions.
    pub left: u32,
    /// Time until at least one more may be left.
    pub again: Duration,
    /// Time until the counter is unused again.
    pub reset: Duration,
    /// How long `held` is valid, from when the question was sent.
    pub counts: Duration,
    /// The counter counts other keys, too, because the limit has the maximum number of counters.
    pub shared: bool,
}

/// Counts of the exchange between the node and the store.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Questions that were answered.
    pub answered: AtomicU64,
    /// Questions without an answer: no connection, no answer in time, or an invalid one.
    pub failed: AtomicU64,
    /// Time that answers took, in microseconds. One answer is to all questions that were sent
    /// together.
    pub micros: AtomicU64,
    /// Answers that requests waited for.
    pub round_trips: AtomicU64,
    /// Requests that the store granted.
    pub granted: AtomicU64,
    /// Requests that the node gave back unused.
    pub returned: AtomicU64,
    /// Requests that the node refused because the store did not answer.
    pub refused: AtomicU64,
}

/// The queue of questions to the store.
#[derive(Debug)]
pub struct Store {
    /// At most one question for each counter is in flight, so the bound on counters also bounds
    /// this queue.
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

    /// Sets whether the store answers. While it does not, no request waits for it.
    pub fn set_answers(&self, answers: bool) {
        self.answers.store(answers, Ordering::Relaxed);
    }

    /// Whether the store answers, as far as the node knows.
    pub fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// The counts, for metrics.
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

    /// Queues a question. Returns false if the receiver is gone.
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
    /// The time of arrival in milliseconds since 1970.
    pub now_ms: u64,
}
