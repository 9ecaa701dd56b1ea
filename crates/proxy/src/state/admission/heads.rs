//! Bounds the memory that unfinished request heads take.

use super::{Admission, AdmissionError, Key, Table};
use leno_http::activity::Heads;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

/// Bytes that all unfinished heads together may hold, beyond the buffer that each connection has in
/// any case.
pub(super) const MOST_HELD: usize = 32 * 1024 * 1024;

/// The memory that the unfinished heads of a client or an instance hold.
#[derive(Debug, Default)]
struct Hoard {
    held: usize,
    /// Number and bytes of its connections, by age.
    connections: VecDeque<(u64, usize)>,
}

impl Admission {
    /// Bytes of unfinished heads.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Heads for Admission {
    fn changed(&self, before: usize, after: usize) {
        if after <= before {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
        } else if self.held.fetch_add(after - before, Ordering::Relaxed) + (after - before) > MOST_HELD {
            self.lock().close_heads();
        }
    }
}

impl Table {
    /// Closes connections with unfinished heads until the rest hold no more than three quarters of
    /// [`MOST_HELD`]. Begins with the oldest connections of the client or instance that holds most.
    fn close_heads(&mut self) {
        let mut hoards: HashMap<Option<&Key>, Hoard> = HashMap::new();
        let (mut all, mut chosen) = (0, Vec::new());
        for (number, entry) in &self.entries {
            let held = entry.shared.activity.held();
            if held > 0 {
                let hoard = hoards.entry(entry.keys.first()).or_default();
                hoard.held += held;
                hoard.connections.push_back((*number, held));
                all += held;
            }
        }
        while all > MOST_HELD / 4 * 3 {
            let Some(most) = hoards.values_mut().max_by_key(|hoard| hoard.held) else { break };
            let Some((number, held)) = most.connections.pop_front() else { break };
            most.held -= held;
            all -= held;
            chosen.push(number);
        }
        for number in chosen {
            let direction = self.entries.get(&number).map_or(0, |entry| entry.direction);
            let closed = self.close(number);
            self.overflowed(direction, AdmissionError::Heads, closed);
        }
    }
}
