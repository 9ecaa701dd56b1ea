//! Fetches modules, and retries each until it is fetched and compiled. A fetched module is never
//! fetched again, because its hash identifies its content.

use super::download::{Download, download};
use crate::state::egress_guard::EgressGuard;
use crate::state::modules::{Modules, module_hash};
use backon::{BackoffBuilder, ExponentialBuilder};
use leno_model::ModuleHash;
use leno_namespaces::Turns;
use leno_sandbox::component::LARGEST_COMPONENT;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Concurrent fetches, for all namespaces and for each. Until it is compiled, a module is in memory
/// as a whole.
const MAX_FETCHES: usize = 8;
const MAX_FETCHES_OF_NAMESPACE: usize = 2;
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Backoff after failed fetches.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(LONGEST_PAUSE)
    .with_factor(2.0)
    .with_jitter()
    .without_max_times();

/// Fetches modules in the background.
#[derive(Debug)]
pub struct ModuleFetcher {
    modules: Arc<Modules>,
    guard: EgressGuard,
    /// By module and source: if several documents name one module at different servers, no fetch
    /// waits for another document's server.
    under_way: Mutex<HashMap<(ModuleHash, Download), AbortHandle>>,
    fetched: mpsc::UnboundedSender<ModuleHash>,
    turns: Arc<Turns>,
}

impl ModuleFetcher {
    /// The receiver gets the hash of each module that was fetched, whether it could be compiled or
    /// not.
    pub fn new(modules: Arc<Modules>, guard: EgressGuard) -> (Self, mpsc::UnboundedReceiver<ModuleHash>) {
        let (fetched, receiver) = mpsc::unbounded_channel();
        let turns = Turns::new(MAX_FETCHES, MAX_FETCHES_OF_NAMESPACE, MAX_FETCHES_OF_NAMESPACE);
        (Self { modules, guard, under_way: Mutex::default(), fetched, turns }, receiver)
    }

    /// Fetches the modules in `wanted`, and cancels all other fetches. Forgets the fetched modules
    /// that are no longer in `named`. Must be called on a tokio runtime.
    pub fn want(&self, wanted: &[(ModuleHash, Download)], named: &HashSet<ModuleHash>) {
        let wanted: HashSet<(ModuleHash, Download)> = wanted.iter().cloned().collect();
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|wish, task| {
            let keep = wanted.contains(wish);
            if !keep {
                task.abort();
                // A module that is still named may have been delivered by now.
                if !named.contains(&wish.0) {
                    self.modules.remove(&wish.0);
                }
            }
            keep
        });
        for (hash, what) in wanted {
            if !self.modules.knows(&hash) && under_way.get(&(hash, what.clone())).is_none_or(AbortHandle::is_finished) {
                let (guard, turns) = (self.guard.clone(), self.turns.clone());
                let fetching = fetch(self.modules.clone(), (guard, turns), hash, what.clone(), self.fetched.clone());
                under_way.insert((hash, what), tokio::spawn(fetching).abort_handle());
            }
        }
    }
}

async fn fetch(
    modules: Arc<Modules>,
    (guard, turns): (EgressGuard, Arc<Turns>),
    hash: ModuleHash,
    what: Download,
    fetched: mpsc::UnboundedSender<ModuleHash>,
) {
    let mut pauses = PAUSES.build();
    loop {
        let turn = turns.take(&what.requester.namespace, &what.url).await;
        let reason = match download(&guard, &what, "application/wasm, */*", LARGEST_COMPONENT, TIMEOUT).await {
            Ok(bytes) if module_hash(&bytes) == hash => {
                let known = modules.clone();
                let compiled = tokio::task::spawn_blocking(move || known.add(hash, &bytes)).await;
                let compiled = compiled.map_err(|error| error.to_string());
                let compiled = compiled.and_then(|added| added.map_err(|error| error.to_string()));
                if modules.knows(&hash) {
                    match compiled {
                        Ok(()) => tracing::info!(%hash, url = what.url, "a module was fetched"),
                        Err(reason) => {
                            tracing::error!(%hash, url = what.url, "a fetched module cannot be used: {reason}")
                        }
                    }
                    let _ = fetched.send(hash);
                    return;
                }
                compiled.err().unwrap_or_default()
            }
            Ok(bytes) => format!("it has the hash {} instead", module_hash(&bytes)),
            Err(error) => error.to_string(),
        };
        drop(turn);
        let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        tracing::warn!(%hash, url = what.url, again_in = ?pause, "a module cannot be fetched: {reason}");
        tokio::time::sleep(pause).await;
        if modules.knows(&hash) {
            return;
        }
    }
}
