//! Tracks what happens on a client's connection, and finds connections that exceed their timeouts.

use crate::interim::InterimQueue;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The activity of a connection. Atomic only because upgraded streams must be `Send`; a single
/// thread uses it.
#[derive(Debug)]
pub struct Activity {
    opened: Instant,
    /// In-flight exchanges.
    busy: AtomicU32,
    /// HTTP/2 streams that have become tunnels. No timeout applies to them.
    tunnels: AtomicU32,
    /// When an exchange last began or ended. All times here are milliseconds after `opened`.
    changed: AtomicU64,
    /// When the first byte after the last exchange arrived, plus one; 0: none has arrived.
    head: AtomicU64,
    /// A request was answered before it was read to its end.
    unread: AtomicBool,
    /// Exchanges that have begun.
    begun: AtomicU64,
    /// The exchange in flight is closed, and does not end.
    cut_off: AtomicBool,
    /// Bytes of the head that has begun (HTTP/1.1).
    head_bytes: AtomicUsize,
    /// Bytes of an unfinished head that count.
    held: AtomicUsize,
    /// Counts them for the node.
    heads: OnceLock<Arc<dyn Heads>>,
    /// Interim responses for the client of an HTTP/1.1 connection.
    interim: Arc<InterimQueue>,
    /// Milliseconds that exchanges may take, whatever the timeout says.
    allowed: AtomicU64,
}

/// Counts the bytes of a node's memory that unfinished heads hold.
pub trait Heads: fmt::Debug + Send + Sync {
    /// A connection's unfinished head holds `after` bytes, and held `before`.
    fn changed(&self, before: usize, after: usize);
}

/// Bytes of an unfinished head that do not count: a connection has a buffer of this size in any
/// case.
const FREE: usize = 8 * 1024;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a request head, from its first byte. `None` for HTTP/2, where bytes between requests are
    /// not a head.
    pub head: Option<Duration>,
    /// Without an exchange.
    pub idle: Duration,
    /// For one exchange.
    pub exchange: Duration,
}

/// The action that the timeouts of a connection require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutCheck {
    /// Check again at this time.
    Until(Instant),
    /// It was idle for too long. Close it gracefully.
    Idle,
    /// The credential of its peer is no longer valid. In-flight exchanges may end.
    Expired,
    /// A head takes too long, or an exchange is stuck behind a peer that does not read. Close it at
    /// once.
    Stuck,
}

/// An exchange that has passed its deadline because its peer does not read is cut off this much
/// later.
const GRACE: Duration = Duration::from_secs(5);

impl Activity {
    /// The activity of a connection that was just accepted.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            tunnels: AtomicU32::new(0),
            changed: AtomicU64::new(0),
            head: AtomicU64::new(0),
            unread: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            cut_off: AtomicBool::new(false),
            head_bytes: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            heads: OnceLock::new(),
            interim: Arc::default(),
            allowed: AtomicU64::new(0),
        })
    }

    /// Allows exchanges of the connection to take so long, if their timeout is shorter.
    pub fn allow(&self, time: Duration) {
        self.allowed.fetch_max(millis(time), Ordering::Relaxed);
    }

    /// Interim responses that wait for the client of an HTTP/1.1 connection.
    #[inline]
    pub fn interim(&self) -> &Arc<InterimQueue> {
        &self.interim
    }

    /// Has the bytes of unfinished heads counted there.
    pub fn count_heads(&self, heads: Arc<dyn Heads>) {
        // The first one counts: a connection is admitted once.
        let _ = self.heads.set(heads);
    }

    /// Notes that bytes have arrived. Between exchanges they are a head's (HTTP/1.1).
    #[inline]
    pub fn received(&self, bytes: usize) {
        if self.busy.load(Ordering::Relaxed) > 0 {
            return;
        }
        if self.head.load(Ordering::Relaxed) == 0 {
            self.head.store(self.now() + 1, Ordering::Relaxed);
        }
        let bytes = self.head_bytes.load(Ordering::Relaxed) + bytes;
        self.head_bytes.store(bytes, Ordering::Relaxed);
        self.hold(bytes);
    }

    /// Sets the size of an unfinished head in bytes.
    #[inline]
    pub fn hold(&self, bytes: usize) {
        let counted = if bytes > FREE { bytes } else { 0 };
        let before = self.held.load(Ordering::Relaxed);
        if counted != before {
            self.held.store(counted, Ordering::Relaxed);
            if let Some(heads) = self.heads.get() {
                heads.changed(before, counted);
            }
        }
    }

    /// Bytes of an unfinished head that count.
    #[inline]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Begins an exchange. It ends when the result is dropped.
    #[inline]
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.begun.store(self.begun() + 1, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.head_bytes.store(0, Ordering::Relaxed);
        self.hold(0);
        self.changed.store(self.now(), Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Notes that a request's body is abandoned before its end.
    #[inline]
    pub fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Whether a request's body was abandoned before its end.
    #[inline]
    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Whether an exchange has become a tunnel that is still open.
    #[inline]
    pub fn has_tunnels(&self) -> bool {
        self.tunnels.load(Ordering::Relaxed) > 0
    }

    /// Whether a part of a head has arrived, and no exchange for it has begun (HTTP/1.1).
    #[inline]
    pub fn has_part_of_head(&self) -> bool {
        !self.is_busy() && self.head_bytes.load(Ordering::Relaxed) > 0
    }

    /// Whether an exchange is in flight.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Has the connection end at once if it carries a single exchange (HTTP/1.1).
    pub fn cut_off(&self) {
        self.cut_off.store(true, Ordering::Relaxed);
    }

    /// Whether [`Activity::cut_off`] was called.
    #[inline]
    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Whether there ever was an exchange.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.begun() > 0
    }

    /// How many exchanges have begun.
    #[inline]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether no exchange is in flight and no tunnel is open.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.is_busy() && !self.has_tunnels()
    }

    /// Checks the connection against its timeouts.
    pub fn check_timeouts(&self, timeouts: &Timeouts, now: Instant) -> TimeoutCheck {
        let passed = millis(now.saturating_duration_since(self.opened));
        let changed = self.changed.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Relaxed);
        let (limit, expired) = match (self.is_busy(), timeouts.head) {
            _ if self.has_tunnels() => (u64::MAX, TimeoutCheck::Stuck),
            (true, _) => {
                let longest = timeouts.exchange.max(Duration::from_millis(self.allowed.load(Ordering::Relaxed)));
                (changed.saturating_add(millis(longest.saturating_add(GRACE))), TimeoutCheck::Stuck)
            }
            (false, Some(time)) if head > 0 => (head - 1 + millis(time), TimeoutCheck::Stuck),
            (false, _) => (changed + millis(timeouts.idle), TimeoutCheck::Idle),
        };
        if passed >= limit {
            return expired;
        }
        // An exchange or head that begins right after this check must not be missed: never sleep
        // longer than the shortest timeout.
        let shortest = timeouts.head.map_or(timeouts.idle, |head| head.min(timeouts.idle));
        TimeoutCheck::Until(now + Duration::from_millis(limit - passed).min(shortest))
    }

    fn now(&self) -> u64 {
        millis(self.opened.elapsed())
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// An in-flight exchange of a connection.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

/// An exchange that has become a tunnel.
#[derive(Debug)]
pub struct Tunnel(Arc<Activity>);

impl Busy {
    /// The connection.
    #[inline]
    pub fn connection(&self) -> &Arc<Activity> {
        &self.0
    }

    /// Turns the exchange into a tunnel, which has no timeout.
    pub fn into_tunnel(self) -> Tunnel {
        self.0.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnel(self.0.clone())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.changed.store(self.0.now(), Ordering::Relaxed);
        self.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.changed.store(self.0.now(), Ordering::Relaxed);
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        head: Some(Duration::from_secs(10)),
        idle: Duration::from_secs(60),
        exchange: Duration::from_secs(100),
    };

    /// The verdict this many seconds after the connection was opened; a wait in whole seconds from
    /// then.
    fn check(activity: &Activity, timeouts: &Timeouts, after: u64) -> Result<u64, TimeoutCheck> {
        match activity.check_timeouts(timeouts, activity.opened + Duration::from_secs(after)) {
            TimeoutCheck::Until(until) => Ok((until - activity.opened).as_secs()),
            verdict => Err(verdict),
        }
    }

    #[test]
    fn heads_and_silence_have_their_own_limits() {
        let activity = Activity::new();
        assert_eq!(check(&activity, &TIMEOUTS, 0), Ok(10));
        assert_eq!(check(&activity, &TIMEOUTS, 61), Err(TimeoutCheck::Idle));
        activity.received(1);
        assert_eq!(check(&activity, &TIMEOUTS, 11), Err(TimeoutCheck::Stuck));
        assert_eq!(check(&activity, &Timeouts { head: None, ..TIMEOUTS }, 11), Ok(60));
    }

    #[test]
    fn an_exchange_has_its_own_time() {
        let activity = Activity::new();
        let busy = activity.begin();
        activity.received(1);
        assert_eq!(check(&activity, &TIMEOUTS, 99), Ok(105));
        assert_eq!(check(&activity, &TIMEOUTS, 106), Err(TimeoutCheck::Stuck));
        let forever = Timeouts { exchange: Duration::MAX, ..TIMEOUTS };
        assert_eq!(check(&activity, &forever, 1_000_000), Ok(1_000_010));
        activity.allow(Duration::from_secs(200));
        activity.allow(Duration::from_secs(150));
        assert_eq!(check(&activity, &TIMEOUTS, 199), Ok(205));
        assert_eq!(check(&activity, &TIMEOUTS, 206), Err(TimeoutCheck::Stuck));
        drop(busy);
        assert_eq!(check(&activity, &TIMEOUTS, 59), Ok(60));
        assert_eq!(check(&activity, &TIMEOUTS, 61), Err(TimeoutCheck::Idle));
    }

    #[test]
    fn a_tunnel_takes_as_long_as_it_likes() {
        let activity = Activity::new();
        let tunnel = activity.begin().into_tunnel();
        assert_eq!(check(&activity, &TIMEOUTS, 1_000_000), Ok(1_000_010));
        drop(tunnel);
        assert_eq!(check(&activity, &TIMEOUTS, 61), Err(TimeoutCheck::Idle));
    }
}
