//! A bound on the time of work for a client, which also ends when the client goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A bound on the work of one compilation, which looks at it again and again. Clones share it.
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

    /// Ends the work at its next look.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to end now. Its result is of no use then.
    pub fn is_over(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() >= until)
    }
}
