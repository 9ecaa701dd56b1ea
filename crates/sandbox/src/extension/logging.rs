//! Logs the modules' lines through `tracing`. A module cannot flood the log.

use crate::fault::printable;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The limit of lines of one run.
pub(super) const MOST_LINES: u32 = 32;
/// The limit of lines of one extension in one second, on this node.
const MOST_PER_SECOND: u32 = 50;

/// How many lines an extension may still write.
#[derive(Debug, Default)]
pub(super) struct Budget(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    withheld: u64,
}

impl Budget {
    /// Takes one line from the budget; returns with it the number of lines that were withheld since
    /// the last.
    fn take(&self) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if window.began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1)) {
            (window.began, window.lines) = (Some(now), 0);
        }
        if window.lines >= MOST_PER_SECOND {
            window.withheld += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.withheld))
    }

    /// Logs a line, if the budget allows it. Levels are the ABI's: 0 trace to 5 critical.
    pub(super) fn log(&self, level: u32, function: &str, extension: &str, text: &[u8]) {
        let Some(withheld) = self.take() else { return };
        let text = printable(text);
        match level {
            0 => tracing::trace!(function, extension, withheld, "{text}"),
            1 => tracing::debug!(function, extension, withheld, "{text}"),
            2 => tracing::info!(function, extension, withheld, "{text}"),
            3 => tracing::warn!(function, extension, withheld, "{text}"),
            _ => tracing::error!(function, extension, withheld, "{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends() {
        let budget = Budget::default();
        let granted = (0..10 * MOST_PER_SECOND).filter(|_| budget.take().is_some()).count();
        assert!(granted < 10 * MOST_PER_SECOND as usize);
    }
}
