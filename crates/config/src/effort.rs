//! A bound on the time of work for a client. The work also ends when the client goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A bound on the time of one compilation, which checks it again and again. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Effort {
    until: Option<Instant>,
    given_up: Arc<AtomicBool>,
}

impl Effort {
    /// No bound, as for the files of the mesh's owner.
    pub fn unbounded() -> Self {
        Self::default()
    }

    /// At most this long from now.
    pub fn within(limit: Duration) -> Self {
        Self { until: Instant::now().checked_add(limit), ..Self::default() }
    }

    /// Ends the work at its next check.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Whether the work should end now. Its result must not be used then.
    pub fn is_over(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() >= until)
    }
}
