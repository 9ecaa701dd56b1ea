//! Functions with an extension that failed to load although its module is here. The node reloads
//! them after increasing pauses. Until then the extension refuses requests.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use leno_model::FunctionId;
use leno_proxy::FunctionEntry;
use leno_proxy::extension::Extension;
use leno_proxy::modules::Modules;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// No jitter: loading affects this node only, so no other retries coincide with it.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(FIRST_PAUSE)
    .with_max_delay(LONGEST_PAUSE)
    .with_factor(2.0)
    .without_max_times();

/// When to reload each function.
#[derive(Debug, Default)]
pub(crate) struct Retries(HashMap<FunctionId, Retry>);

#[derive(Debug)]
struct Retry {
    at: Instant,
    pauses: ExponentialBackoff,
}

impl Retries {
    /// Records the result of loading a function. Schedules a retry if that may help, and cancels it
    /// otherwise.
    pub(crate) fn note(&mut self, entry: &FunctionEntry, modules: &Modules, now: Instant) {
        let specs = entry.config.inbound_extensions.iter().chain(&entry.config.outbound_extensions);
        let loaded = entry.inbound_extensions.iter().chain(&entry.outbound_extensions);
        // An extension whose module is not here yet is loaded when the module arrives.
        let failed =
            specs.zip(loaded).find(|(spec, extension)| extension.plugin.is_err() && modules.knows(&spec.module));
        let id = &entry.config.id;
        match failed {
            Some((_, Extension { name, plugin, .. })) => {
                let pause = self.fail(id, now);
                let reason = plugin.as_ref().err().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(function = %id, extension = %name, again_in = ?pause, "an extension is not loaded: {reason}");
            }
            None => drop(self.0.remove(id)),
        }
    }

    fn fail(&mut self, id: &FunctionId, now: Instant) -> Duration {
        let retry = self.0.entry(id.clone()).or_insert_with(|| Retry { at: now, pauses: PAUSES.build() });
        let pause = retry.pauses.next().unwrap_or(LONGEST_PAUSE);
        retry.at = now + pause;
        pause
    }

    /// Cancels the retry of a function.
    pub(crate) fn forget(&mut self, id: &FunctionId) {
        self.0.remove(id);
    }

    /// When the next retry is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.values().map(|retry| retry.at).min()
    }

    /// The functions whose retry is due.
    pub(crate) fn due(&self, now: Instant) -> Vec<FunctionId> {
        self.0.iter().filter(|(_, retry)| retry.at <= now).map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let (mut retries, mut now) = (Retries::default(), Instant::now());
        let (id, other): (FunctionId, FunctionId) = ("shop/a".parse().unwrap(), "shop/b".parse().unwrap());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pauses.push(retries.fail(&id, now).as_secs());
            assert!(retries.due(now).is_empty());
            now = retries.next().unwrap();
            assert_eq!(retries.due(now), std::slice::from_ref(&id));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        retries.fail(&other, now);
        assert_eq!(retries.next(), Some(now), "one does not keep the other waiting");
        retries.forget(&id);
        assert_eq!(retries.next(), Some(now + FIRST_PAUSE));
    }
}
