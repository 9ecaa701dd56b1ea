//! Client of the Redis or Valkey server that keeps the counters of rate limits.
//!
//! Requests do not contact it. They take from the node's allowance of a counter
//! ([`leno_proxy::limits`]), and wait here only if the allowance is too small. Questions that come
//! up meanwhile go to the server together, as one call of a script (`settle.lua`), which is atomic.
//!
//! # When the server does not answer
//! The node's allowances count until their term is over. Beyond them the node refuses requests,
//! because it cannot know how much other nodes have used. If a call is not answered in time, the
//! node closes its connection, so no late answer is taken for that of another call. The server may
//! still execute the call, even after later ones. That is why questions have ascending numbers, and
//! why the node stops using an allowance before it sends the question that gives it back.

mod connection;
mod script;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use connection::{Connection, QuotaStoreError};
use leno_model::RedisQuotas;
use leno_proxy::limits::{Arrival, CounterName, FunctionLimits, NodeLimits, Question, Store};
use script::Settling;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

/// Interval between searches for allowances to give back or to renew.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of counters in one call. A script blocks all other clients of the server.
const MOST_AT_ONCE: usize = 128;
/// Longest time to connect, with TLS and login. The node connects before a request waits for it.
const CONNECT: Duration = Duration::from_secs(2);
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_secs(2))
    .without_max_times()
    .with_jitter();

/// The server counts the rate limits from now on. Called before any function is known.
pub(crate) fn start(redis: RedisQuotas, limits: &Arc<NodeLimits>) -> std::io::Result<()> {
    let (store, asked) = Store::new(redis.timeout);
    let store = Arc::new(store);
    limits.set_store(store.clone());
    let settling = Settling::new(redis.prefix.clone())?;
    let client = Client {
        redis,
        limits: Arc::downgrade(limits),
        store,
        settling,
        connection: None,
        backoff: BACKOFF.build(),
        retry_at: Instant::now(),
    };
    tokio::spawn(client.run(asked));
    Ok(())
}

struct Client {
    redis: RedisQuotas,
    limits: Weak<NodeLimits>,
    store: Arc<Store>,
    settling: Settling,
    connection: Option<Connection>,
    backoff: ExponentialBackoff,
    retry_at: Instant,
}

/// A question, with its counter and the limits of its function.
struct CounterQuestion {
    counter: CounterName,
    limits: Arc<FunctionLimits>,
    question: Question,
}

impl Client {
    async fn run(mut self, mut asked: UnboundedReceiver<CounterName>) {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut counters = Vec::new();
        self.connect().await;
        loop {
            let disconnected = self.connection.is_none();
            tokio::select! {
                count = asked.recv_many(&mut counters, MOST_AT_ONCE) => {
                    let Some(limits) = self.limits.upgrade().filter(|_| count > 0) else { return };
                    self.ask(&limits, counters.drain(..)).await;
                }
                () = tokio::time::sleep_until(self.retry_at.into()), if disconnected => self.connect().await,
                _ = sweep.tick() => match self.limits.upgrade() {
                    Some(limits) => limits.sweep_allowances(Instant::now()),
                    None => return,
                },
            }
        }
    }

    async fn ask(&mut self, node: &NodeLimits, counters: impl Iterator<Item = CounterName>) {
        let sent = Instant::now();
        // A removed function has no waiting requests.
        let questions: Vec<CounterQuestion> = counters
            .filter_map(|counter| {
                let limits = node.known(&counter.function)?;
                let question = limits.question(&counter.limit, &counter.key, sent)?;
                Some(CounterQuestion { counter, limits, question })
            })
            .collect();
        let Some(connection) = self.connection.as_mut().filter(|_| !questions.is_empty()) else {
            return self.fail(&questions);
        };
        let parts: Vec<_> = questions.iter().map(|asked| (&asked.counter, asked.question)).collect();
        let outcome = match tokio::time::timeout(self.redis.timeout, self.settling.ask(connection, &parts)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(QuotaStoreError::Late(self.redis.timeout)),
        };
        match outcome {
            Ok(answers) => {
                self.backoff = BACKOFF.build();
                let now = Instant::now();
                let counts = &self.store.counts;
                let micros = u64::try_from(now.saturating_duration_since(sent).as_micros()).unwrap_or(u64::MAX);
                counts.micros.fetch_add(micros, Ordering::Relaxed);
                counts.round_trips.fetch_add(1, Ordering::Relaxed);
                counts.answered.fetch_add(questions.len() as u64, Ordering::Relaxed);
                let arrival = Arrival { sent, now, now_ms: now_ms() };
                for (CounterQuestion { counter, limits, question }, answer) in questions.iter().zip(answers) {
                    counts.granted.fetch_add(u64::from(answer.held.saturating_sub(question.keep)), Ordering::Relaxed);
                    counts.returned.fetch_add(u64::from(question.unused - question.keep), Ordering::Relaxed);
                    limits.answered(&counter.limit, &counter.key, answer, arrival);
                }
            }
            Err(error) => {
                self.disconnect(&error);
                self.fail(&questions);
            }
        }
    }

    fn fail(&self, questions: &[CounterQuestion]) {
        self.store.counts.failed.fetch_add(questions.len() as u64, Ordering::Relaxed);
        for CounterQuestion { counter, limits, .. } in questions {
            limits.unanswered(&counter.limit, &counter.key);
        }
    }

    async fn connect(&mut self) {
        let connect = async {
            let mut connection = Connection::open(&self.redis).await?;
            // A user that may not load the script may not call it either.
            self.settling.load(&mut connection).await?;
            Ok(connection)
        };
        let connected = match tokio::time::timeout(CONNECT, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(QuotaStoreError::NoConnection(CONNECT)),
        };
        match connected {
            Ok(connection) => {
                self.connection = Some(connection);
                self.store.set_answers(true);
                tracing::info!(address = self.redis.address, "rate limits are counted in Redis");
            }
            Err(error) => self.disconnect(&error),
        }
    }

    fn disconnect(&mut self, error: &QuotaStoreError) {
        // Logged the first time only.
        if self.store.answers() {
            let address = &self.redis.address;
            tracing::error!(address, reason = %error, "Redis does not answer: what rate limits count is refused until it does");
        }
        self.store.set_answers(false);
        self.connection = None;
        self.retry_at = Instant::now() + self.backoff.next().unwrap_or(CONNECT);
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
