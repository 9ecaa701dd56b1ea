//! Record locks of a jail (`fcntl`, `lockf`). The kernel neither limits them nor counts them as
//! memory of the jail's control group. So the jail's first process limits them: it counts them each
//! time that the jail may have come near the limit.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::{Duration, Instant};

/// Maximum number of locks of a jail. Threads that ask at the same moment may exceed it slightly.
const MAX_LOCKS: usize = 16_384;
/// Maximum number of locks that a call adds: it may cut a lock into three pieces.
const LOCKS_OF_A_CALL: usize = 2;
/// A jail with fewer calls left than this counts as being at the limit.
const LEAST_CALLS: usize = 64;
/// Shortest pause between two counts for a jail that is at the limit. While the kernel lists the
/// locks, other processes wait.
const PAUSE: Duration = Duration::from_millis(100);

/// Admits calls that may add locks.
#[derive(Debug)]
pub(crate) struct RecordLocks {
    /// Number of further calls that cannot reach the limit.
    calls: usize,
    /// When the last count found the jail at the limit.
    full: Option<Instant>,
}

impl Default for RecordLocks {
    fn default() -> Self {
        Self { calls: MAX_LOCKS / LOCKS_OF_A_CALL, full: None }
    }
}

impl RecordLocks {
    /// Whether another call is admitted. If the locks cannot be counted, it is not.
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

/// The number of locks of the jail's processes, up to the limit. Each lock is one line:
/// `1: POSIX  ADVISORY  WRITE 3 00:2b:4 0 EOF`.
fn held() -> io::Result<usize> {
    let mut lines = BufReader::new(File::open("/proc/locks")?).lines();
    let posix = |line: &String| line.split_ascii_whitespace().nth(1) == Some("POSIX");
    lines.try_fold(0, |count, line| Ok(count + usize::from(posix(&line?))))
}
