//! Record locks of a room (`fcntl`, `lockf`). The kernel neither bounds them nor counts them as memory of the room's control group, so the room's first
//! process does: it counts them each time that the room may have come near the bound.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::{Duration, Instant};

/// So many locks a room may have, give or take those of its threads that ask at the same moment.
const MAX_LOCKS: usize = 16_384;
/// A call adds at most so many: it may cut a lock into three pieces.
const LOCKS_OF_A_CALL: usize = 2;
/// A room that may have fewer further calls than this is at the bound.
const LEAST_CALLS: usize = 64;
/// To count takes time in the kernel that others wait for, so it is done so often at most for a room that is at the bound.
const PAUSE: Duration = Duration::from_millis(100);

/// Admits calls that may add locks.
#[derive(Debug)]
pub(crate) struct RecordLocks {
    /// So many further calls cannot reach the bound.
    calls: usize,
    /// When the room was found to be at the bound.
    full: Option<Instant>,
}

impl Default for RecordLocks {
    fn default() -> Self {
        Self { calls: MAX_LOCKS / LOCKS_OF_A_CALL, full: None }
    }
}

impl RecordLocks {
    /// Whether another call is admitted. What cannot be counted is not.
    pub(crate) fn admit(&mut self) -> bool {
        if self.calls == 0 && self.full.is_none_or(|full| full.elapsed() >= PAUSE) {
            let calls = MAX_LOCKS.saturating_sub(held().unwrap_or(MAX_LOCKS)) / LOCKS_OF_A_CALL;
            self.full = (calls < LEAST_CALLS).then(Instant::now);
            self.calls = if self.full.is_some() { 0 } else { calls };
        }
        let admitted = self.calls > 0;
        self.calls -= usize::from(admitted);
        admitted
    }
}

/// The locks that the room's processes have, as far as the bound: `1: POSIX  ADVISORY  WRITE 3 00:2b:4 0 EOF`.
fn held() -> io::Result<usize> {
    let mut lines = BufReader::new(File::open("/proc/locks")?).lines();
    let posix = |line: &String| line.split_ascii_whitespace().nth(1) == Some("POSIX");
    lines.try_fold(0, |count, line| Ok(count + usize::from(posix(&line?))))
}
