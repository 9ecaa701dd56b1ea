//! Fetches key sets, because sandboxes have no network.
//!
//! A function's configuration may contain URLs of key sets ([`leno_model::JwksFetch`]).
//! [`JwksFetcher::follow`] completes such a configuration with the keys that the fetcher knows.
//! Whenever its keys change afterwards, the fetcher sends the completed configuration to the
//! receiver.
//!
//! Until an issuer's first key set has arrived, a token of that issuer is neither valid nor
//! invalid. Requests with such a token get 503, so that the client tries again.
//!
//! Functions of a namespace with the same URL share one fetch. If a fetch fails, the old keys stay
//! in use (stale keys are better than none, and the program checks expiry anyway), and the next
//! fetch comes sooner. A token that matches no key also makes the next fetch come sooner, but at
//! most once per [`Pace::soonest`]. Otherwise, a client with a made-up token could make the node
//! flood the issuer.

mod problem;

use super::download::{Download, DownloadError, download};
use crate::state::egress_guard::EgressGuard;
use crate::state::tokens::{KeySetReports, KeySetState};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use leno_config::jwks::{self, KeySet};
use leno_model::{FunctionConfig, FunctionId};
use leno_namespaces::Turns;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum size of a key set in bytes.
const LARGEST: usize = 256 * 1024;
/// Concurrent fetches: for all namespaces, for each, and for each from one server.
const MAX_FETCHES: usize = 64;
const MAX_FETCHES_OF_NAMESPACE: usize = 4;
const MAX_FETCHES_OF_SERVER: usize = 3;
/// A fetch occupies one of these places for at least so long. A namespace with a thousand key sets
/// therefore sends forty requests a second, however fast their servers answer.
const SHORTEST_TURN: Duration = Duration::from_millis(100);

/// Why a fetch gave no keys.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    /// The document could not be downloaded.
    #[error(transparent)]
    Download(#[from] DownloadError),
    /// The task that fetches has ended early.
    #[error("the task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The document is not a key set.
    #[error("{0}")]
    NotAKeySet(jwks::KeyError),
}

/// How often key sets are fetched.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Shortest time between two fetches of one set that are caused by tokens with unknown keys.
    pub soonest: Duration,
    /// Pause after the first failure. It doubles with each further failure, up to the set's own
    /// refresh interval.
    pub after_failure: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { soonest: Duration::from_secs(30), after_failure: Duration::from_secs(1) }
    }
}

impl Pace {
    fn pauses(&self) -> ExponentialBackoff {
        let pauses = ExponentialBuilder::new().with_min_delay(self.after_failure).with_factor(2.0);
        pauses.without_max_delay().without_max_times().build()
    }
}

/// Keeps the key sets of a node's functions up to date.
#[derive(Clone, Debug)]
pub struct JwksFetcher {
    shared: Arc<FetchQueue>,
}

#[derive(Debug)]
struct FetchQueue {
    state: Mutex<State>,
    /// Wakes the fetching task when there is work other than the next timer.
    changed: Notify,
    reports: Arc<KeySetReports>,
    guard: EgressGuard,
    pace: Pace,
    turns: Arc<Turns>,
}

#[derive(Debug, Default)]
struct State {
    sources: HashMap<Download, ScheduledKeySet>,
    functions: HashMap<FunctionId, FunctionKeySets>,
}

/// A function with key sets.
#[derive(Debug)]
struct FunctionKeySets {
    /// Its configuration as given to [`JwksFetcher::follow`].
    config: FunctionConfig,
    /// The configuration as last completed with keys.
    complete: FunctionConfig,
    /// The origin of each of its key sets.
    sources: Vec<Download>,
}

/// A key set, and the schedule of its fetches.
#[derive(Debug)]
struct ScheduledKeySet {
    /// `None` before the first successful fetch.
    keys: Option<KeySet>,
    next: Instant,
    last: Option<Instant>,
    /// Backoff since the last successful fetch.
    pauses: ExponentialBackoff,
    /// The last fetch failed.
    is_failing: bool,
    under_way: bool,
    /// The functions that use it, with the refresh interval and the timeout that each asks for.
    /// Functions of other namespaces never share a source, because each namespace sets how long a
    /// fetch may take, and from where it may come.
    users: HashMap<FunctionId, (Duration, Duration)>,
}

type FetchResult = (Download, Result<KeySet, FetchError>);

impl JwksFetcher {
    /// Starts the task on the current runtime. The task ends when the receiver is dropped.
    /// `reports` lists functions that saw a token which matches none of their keys, and gets the
    /// failures and states.
    pub fn start(
        reports: Arc<KeySetReports>,
        guard: EgressGuard,
        pace: Pace,
    ) -> (Self, mpsc::UnboundedReceiver<(FunctionId, FunctionConfig)>) {
        let turns = Turns::new(MAX_FETCHES, MAX_FETCHES_OF_NAMESPACE, MAX_FETCHES_OF_SERVER);
        let shared =
            Arc::new(FetchQueue { state: Mutex::default(), changed: Notify::new(), reports, guard, pace, turns });
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(shared.clone().run(sender));
        (Self { shared }, receiver)
    }

    /// Follows the key sets of a configuration, in place of those that the function had before.
    /// Returns the configuration completed with the known keys, so that a change of configuration
    /// does not lose them for a moment.
    pub fn follow(&self, config: FunctionConfig) -> FunctionConfig {
        let complete = self.shared.state().follow(config, &self.shared.pace);
        self.shared.changed.notify_one();
        complete
    }

    /// A followed function's configuration, completed with all known keys. The receiver may still
    /// hold older versions.
    pub fn latest(&self, function: &FunctionId) -> Option<FunctionConfig> {
        self.shared.state().functions.get(function).map(|followed| followed.complete.clone())
    }

    /// Stops following a function's key sets.
    pub fn forget(&self, function: &FunctionId) {
        self.shared.state().forget(function);
        self.shared.reports.forget(function);
        self.shared.changed.notify_one();
    }
}

impl FetchQueue {
    async fn run(self: Arc<Self>, sender: mpsc::UnboundedSender<(FunctionId, FunctionConfig)>) {
        let mut fetches: JoinSet<FetchResult> = JoinSet::new();
        loop {
            let now = Instant::now();
            let state = |(source, known): (&Download, &ScheduledKeySet)| {
                (source.requester.namespace.as_str().into(), known.state())
            };
            self.reports.counts.set(self.state().sources.iter().map(state));
            let (due, next) = self.state().due(now);
            for (source, timeout) in due {
                let task = tokio::spawn(fetch_in_turn(self.clone(), source.clone(), timeout));
                fetches.spawn(async move { (source, task.await.unwrap_or_else(|error| Err(error.into()))) });
            }
            let at_latest = next.unwrap_or(now + Duration::from_secs(3600));
            tokio::select! {
                Some(done) = fetches.join_next() => {
                    if let Ok((source, result)) = done {
                        self.report(&source, &result);
                        for changed in self.state().learn(&source, result, &self.pace, Instant::now()) {
                            let _ = sender.send(changed);
                        }
                    }
                }
                () = self.reports.reported() => {
                    let functions = self.reports.take();
                    self.state().hurry(&functions, &self.pace, Instant::now());
                }
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(at_latest) => {}
                () = sender.closed() => return,
            }
        }
    }

    fn report(&self, source: &Download, result: &Result<KeySet, FetchError>) {
        let problem = match result {
            Ok(keys) => problem::of_key_set(keys),
            Err(error) => Some(error.problem(&source.url)),
        };
        let users = self.state().sources.get(source).map(|known| known.users.keys().cloned().collect::<Vec<_>>());
        for function in users.unwrap_or_default() {
            self.reports.fetched(&function, &source.url, problem.as_ref());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScheduledKeySet {
    fn new(pace: &Pace) -> Self {
        Self {
            keys: None,
            next: Instant::now(),
            last: None,
            pauses: pace.pauses(),
            is_failing: false,
            under_way: false,
            users: HashMap::new(),
        }
    }

    fn state(&self) -> KeySetState {
        match self.keys {
            None => KeySetState::Missing,
            Some(_) if self.is_failing => KeySetState::Stale,
            Some(_) => KeySetState::Current,
        }
    }

    /// Refresh interval and timeout: the shortest of those that the functions ask for.
    fn times(&self) -> (Duration, Duration) {
        let shortest = |(refresh, timeout): (Duration, Duration), other: &(Duration, Duration)| {
            (refresh.min(other.0), timeout.min(other.1))
        };
        self.users.values().fold((Duration::from_secs(3600), Duration::from_secs(30)), shortest)
    }
}

impl State {
    /// The key sets to fetch now with their timeouts, and when the next one is due.
    fn due(&mut self, now: Instant) -> (Vec<(Download, Duration)>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None);
        for (source, known) in self.sources.iter_mut().filter(|(_, known)| !known.under_way) {
            if known.next <= now {
                known.under_way = true;
                known.last = Some(now);
                due.push((source.clone(), known.times().1));
            } else {
                next = Some(next.map_or(known.next, |next: Instant| next.min(known.next)));
            }
        }
        (due, next)
    }

    /// Records the result of a fetch. Returns the functions whose keys changed, with their
    /// completed configurations.
    fn learn(
        &mut self,
        source: &Download,
        result: Result<KeySet, FetchError>,
        pace: &Pace,
        now: Instant,
    ) -> Vec<(FunctionId, FunctionConfig)> {
        let Some(known) = self.sources.get_mut(source) else { return Vec::new() };
        let (refresh, _) = known.times();
        known.under_way = false;
        known.is_failing = result.is_err();
        match result {
            Ok(keys) => {
                for refused in &keys.refused {
                    tracing::warn!(url = %source.url, "a key in a key set is not used: {refused}");
                }
                known.pauses = pace.pauses();
                known.next = now + refresh;
                if known.keys.as_ref() == Some(&keys) {
                    return Vec::new();
                }
                tracing::info!(url = %source.url, keys = keys.keys.len(), "key set fetched");
                known.keys = Some(keys);
            }
            Err(error) => {
                known.next = now + known.pauses.next().map_or(refresh, |pause| pause.min(refresh));
                let stale = if known.keys.is_some() { "; the keys it had stay in use" } else { "" };
                tracing::warn!(url = %source.url, "fetching a key set failed: {error}{stale}");
                return Vec::new();
            }
        }
        self.changed_functions(source)
    }

    fn changed_functions(&mut self, source: &Download) -> Vec<(FunctionId, FunctionConfig)> {
        let users: Vec<FunctionId> =
            self.sources.get(source).map(|known| known.users.keys().cloned().collect()).unwrap_or_default();
        let mut changed = Vec::new();
        for id in users {
            let Some(followed) = self.functions.get(&id) else { continue };
            let complete = self.complete(&followed.config, &followed.sources);
            if complete != followed.complete {
                changed.push((id.clone(), complete.clone()));
                if let Some(followed) = self.functions.get_mut(&id) {
                    followed.complete = complete;
                }
            }
        }
        changed
    }

    /// Makes the next fetch of these functions' key sets come as soon as `pace` allows.
    fn hurry(&mut self, functions: &[FunctionId], pace: &Pace, now: Instant) {
        for id in functions {
            let Some(followed) = self.functions.get(id) else { continue };
            for source in &followed.sources {
                let Some(known) = self.sources.get_mut(source) else { continue };
                let soonest = known.last.map_or(now, |last| last + pace.soonest);
                tracing::debug!(url = %source.url, function = %id, "a token that no key fits");
                known.next = known.next.min(soonest.max(now));
            }
        }
    }

    /// Follows the key sets of a configuration. Returns it completed with all known keys.
    fn follow(&mut self, config: FunctionConfig, pace: &Pace) -> FunctionConfig {
        let sources: Vec<Download> = config.jwks.iter().map(|fetch| Download::key_set(&config, fetch)).collect();
        let before = self.functions.remove(&config.id);
        for (source, fetch) in sources.iter().zip(&config.jwks) {
            let known = self.sources.entry(source.clone()).or_insert_with(|| ScheduledKeySet::new(pace));
            let user = known.users.entry(config.id.clone()).or_insert((fetch.refresh, fetch.timeout));
            *user = (user.0.min(fetch.refresh), user.1.min(fetch.timeout));
        }
        for source in before.into_iter().flat_map(|before| before.sources) {
            if !sources.contains(&source) {
                self.leave(&source, &config.id);
            }
        }
        let complete = self.complete(&config, &sources);
        self.functions.insert(config.id.clone(), FunctionKeySets { config, complete: complete.clone(), sources });
        complete
    }

    /// Stops following a function.
    fn forget(&mut self, function: &FunctionId) {
        for source in self.functions.remove(function).into_iter().flat_map(|followed| followed.sources) {
            self.leave(&source, function);
        }
    }

    /// Drops a source that no function uses any more.
    fn leave(&mut self, source: &Download, function: &FunctionId) {
        if let Some(known) = self.sources.get_mut(source) {
            known.users.remove(function);
            if known.users.is_empty() {
                self.sources.remove(source);
            }
        }
    }

    /// A configuration completed with all known keys. `sources` are those of its key sets.
    fn complete(&self, config: &FunctionConfig, sources: &[Download]) -> FunctionConfig {
        let mut complete = config.clone();
        for (fetch, source) in config.jwks.iter().zip(sources) {
            let keys = self.sources.get(source).and_then(|known| known.keys.as_ref());
            let issuer = complete.inbound.authentication.get_mut(fetch.issuer);
            let (Some(keys), Some(issuer)) = (keys, issuer) else { continue };
            issuer.keys_pending = false;
            for (key, public) in &keys.keys {
                issuer.keys.push(key.clone());
                if complete.keys.iter().all(|known| known.id != public.id) {
                    complete.keys.push(public.clone());
                }
            }
        }
        complete
    }
}

/// Fetches a key set when it is its namespace's turn.
async fn fetch_in_turn(shared: Arc<FetchQueue>, source: Download, timeout: Duration) -> Result<KeySet, FetchError> {
    let server = source.url.split('/').nth(2).unwrap_or_default();
    let turn = shared.turns.take(&source.requester.namespace, server).await;
    let end = Instant::now() + SHORTEST_TURN;
    let result = fetch(shared.guard.clone(), source, timeout).await;
    tokio::spawn(async move {
        tokio::time::sleep_until(end).await;
        drop(turn);
    });
    result
}

/// Downloads and parses a key set.
async fn fetch(guard: EgressGuard, source: Download, timeout: Duration) -> Result<KeySet, FetchError> {
    let accept = "application/jwk-set+json, application/json";
    let body = download(&guard, &source, accept, LARGEST, timeout).await?;
    let mut keys = jwks::parse(&body);
    match keys.refused.iter().position(|refused| refused.index.is_none()) {
        Some(whole) => Err(FetchError::NotAKeySet(keys.refused.swap_remove(whole))),
        None => Ok(keys),
    }
}

#[cfg(test)]
mod tests;
