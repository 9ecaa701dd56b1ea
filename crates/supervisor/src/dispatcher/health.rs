//! Signs of an instance's health that requests observe.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The observations of requests about one instance since it became ready.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Probes decide whether it is lost. Nothing is recorded for other instances.
    watched: AtomicBool,
    /// It has sent bytes since the last time-out.
    heard: AtomicBool,
    /// It gets no request until a probe succeeds.
    suspect: AtomicBool,
    timeouts: AtomicU32,
    last_timeout: Mutex<Option<Instant>>,
    /// Notified when a request has observed a failure.
    suspected: Notify,
}

impl Health {
    pub(crate) fn watch(&self) {
        self.watched.store(true, SeqCst);
    }

    /// It has sent bytes.
    pub(crate) fn heard(&self) {
        // Usually the flag is set already. Then this does not write memory that cores share.
        if !self.heard.load(Relaxed) {
            self.heard.store(true, Relaxed);
        }
    }

    /// A request got no connection.
    pub(crate) fn refused(&self) {
        if self.watched.load(SeqCst) {
            self.suspect.store(true, SeqCst);
            self.suspected.notify_one();
        }
    }

    /// A request that began at `since` has used up its whole timeout, and got no response.
    pub(crate) fn timed_out(&self, since: Instant) {
        if !self.watched.load(SeqCst) {
            return;
        }
        let mut last = self.last_timeout.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = self.heard.swap(false, SeqCst);
        // Requests that waited at the same time have observed the same failure.
        let is_next = last.is_none_or(|last| since >= last);
        if heard || is_next {
            let count = if heard { 1 } else { self.timeouts.load(SeqCst).saturating_add(1) };
            self.timeouts.store(count, SeqCst);
            *last = Some(Instant::now());
            self.suspected.notify_one();
        }
    }

    /// Time-outs in a row.
    pub(crate) fn timeouts(&self) -> u32 {
        if self.heard.load(SeqCst) { 0 } else { self.timeouts.load(SeqCst) }
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(SeqCst)
    }

    /// It gets requests again. Returns whether it got none before.
    pub(crate) fn restore(&self) -> bool {
        self.suspect.swap(false, SeqCst)
    }

    /// Resolves when a request has observed a failure.
    pub(crate) async fn suspected(&self) {
        self.suspected.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_time_outs_one_after_the_other_without_any_answer_count() {
        let (health, begin) = (Health::default(), Instant::now());
        let ago = |millis| begin.checked_sub(Duration::from_millis(millis)).unwrap();
        health.timed_out(begin);
        assert_eq!(health.timeouts(), 0, "nobody watches it");
        health.watch();
        health.timed_out(ago(30));
        assert_eq!(health.timeouts(), 1);
        // These requests waited together with the first.
        health.timed_out(ago(30));
        health.timed_out(ago(20));
        assert_eq!(health.timeouts(), 1);
        health.timed_out(Instant::now());
        assert_eq!(health.timeouts(), 2);
        health.heard();
        assert_eq!(health.timeouts(), 0);
        health.timed_out(Instant::now());
        assert_eq!(health.timeouts(), 1);
    }

    #[test]
    fn a_suspect_is_one_until_a_probe_succeeds() {
        let health = Health::default();
        health.refused();
        assert!(!health.is_suspect(), "nothing would ever restore it");
        health.watch();
        health.refused();
        assert!(health.is_suspect() && health.restore() && !health.is_suspect() && !health.restore());
    }
}
