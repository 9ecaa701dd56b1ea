//! What happens on a client's connection, and who takes too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When something last happened on a connection. Atomic only because upgraded streams must be `Send`; one thread uses it.
#[derive(Debug)]
pub struct Activity {
    opened: Instant,
    /// Exchanges under way.
    busy: AtomicU32,
    /// Streams of an HTTP/2 connection that have become tunnels; they take as long as they like.
    tunnels: AtomicU32,
    /// When an exchange last began or ended: milliseconds after `opened`, as all times here.
    changed: AtomicU64,
    /// When the first byte after the last exchange came, plus one; 0: none did.
    head: AtomicU64,
    /// A request was answered without being read to its end.
    unread: AtomicBool,
    /// There was an exchange.
    begun: AtomicBool,
}

/// How long a connection may take for what.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a request head, from its first byte; `None`: bytes between requests are no head (HTTP/2).
    pub head: Option<Duration>,
    /// Without a request.
    pub idle: Duration,
    /// For one exchange, at most.
    pub exchange: Duration,
}

/// What to do about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Look again then.
    Until(Instant),
    /// It has been idle for too long; say good-bye.
    Idle,
    /// What its peer proved itself with holds no longer; exchanges under way may end.
    Expired,
    /// A head takes too long, or an exchange is stuck behind a peer that does not read; just close.
    Stuck,
}

/// An exchange that should be over by its deadline, but whose peer does not read, is cut off this much later.
const GRACE: Duration = Duration::from_secs(5);

impl Activity {
    /// Of a connection that was just accepted.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            tunnels: AtomicU32::new(0),
            changed: AtomicU64::new(0),
            head: AtomicU64::new(0),
            unread: AtomicBool::new(false),
            begun: AtomicBool::new(false),
        })
    }

    /// Bytes came.
    pub fn received(&self) {
        if self.busy.load(Ordering::Relaxed) == 0 && self.head.load(Ordering::Relaxed) == 0 {
            self.head.store(self.now() + 1, Ordering::Relaxed);
        }
    }

    /// An exchange begins; it ends when the result is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.begun.store(true, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.changed.store(self.now(), Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// A request's body is given up before its end.
    pub fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Whether a request was given up before its end.
    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Whether one of its exchanges has become a tunnel that is still open.
    pub fn has_tunnels(&self) -> bool {
        self.tunnels.load(Ordering::Relaxed) > 0
    }

    /// Whether an exchange is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Whether there ever was an exchange.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether nothing is under way, no tunnel either.
    pub fn is_idle(&self) -> bool {
        !self.is_busy() && !self.has_tunnels()
    }

    /// Judges the connection's pace.
    pub fn watch(&self, timeouts: &Timeouts, now: Instant) -> Watch {
        let passed = millis(now.saturating_duration_since(self.opened));
        let changed = self.changed.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Relaxed);
        let (limit, verdict) = match (self.is_busy(), timeouts.head) {
            _ if self.has_tunnels() => (u64::MAX, Watch::Stuck),
            (true, _) => (changed.saturating_add(millis(timeouts.exchange.saturating_add(GRACE))), Watch::Stuck),
            (false, Some(time)) if head > 0 => (head - 1 + millis(time), Watch::Stuck),
            (false, _) => (changed + millis(timeouts.idle), Watch::Idle),
        };
        if passed >= limit {
            return verdict;
        }
        // What begins right after this look must not be overlooked: never sleep longer than the shortest timeouts.
        let shortest = timeouts.head.map_or(timeouts.idle, |head| head.min(timeouts.idle));
        Watch::Until(now + Duration::from_millis(limit - passed).min(shortest))
    }

    fn now(&self) -> u64 {
        millis(self.opened.elapsed())
    }
}

/// An exchange is under way on a connection.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

/// An exchange has become a tunnel.
#[derive(Debug)]
pub struct Tunnel(Arc<Activity>);

impl Busy {
    /// From now on it takes as long as it likes.
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

    /// The verdict this many seconds after the connection was opened; a wait in whole seconds from then.
    fn watch(activity: &Activity, timeouts: &Timeouts, after: u64) -> Result<u64, Watch> {
        match activity.watch(timeouts, activity.opened + Duration::from_secs(after)) {
            Watch::Until(until) => Ok((until - activity.opened).as_secs()),
            verdict => Err(verdict),
        }
    }

    #[test]
    fn heads_and_silence_have_their_own_limits() {
        let activity = Activity::new();
        assert_eq!(watch(&activity, &TIMEOUTS, 0), Ok(10));
        assert_eq!(watch(&activity, &TIMEOUTS, 61), Err(Watch::Idle));
        activity.received();
        assert_eq!(watch(&activity, &TIMEOUTS, 11), Err(Watch::Stuck));
        assert_eq!(watch(&activity, &Timeouts { head: None, ..TIMEOUTS }, 11), Ok(60));
    }

    #[test]
    fn an_exchange_has_its_own_time() {
        let activity = Activity::new();
        let busy = activity.begin();
        activity.received();
        assert_eq!(watch(&activity, &TIMEOUTS, 99), Ok(105));
        assert_eq!(watch(&activity, &TIMEOUTS, 106), Err(Watch::Stuck));
        let forever = Timeouts { exchange: Duration::MAX, ..TIMEOUTS };
        assert_eq!(watch(&activity, &forever, 1_000_000), Ok(1_000_010));
        drop(busy);
        assert_eq!(watch(&activity, &TIMEOUTS, 59), Ok(60));
        assert_eq!(watch(&activity, &TIMEOUTS, 61), Err(Watch::Idle));
    }

    #[test]
    fn a_tunnel_takes_as_long_as_it_likes() {
        let activity = Activity::new();
        let tunnel = activity.begin().into_tunnel();
        assert_eq!(watch(&activity, &TIMEOUTS, 1_000_000), Ok(1_000_010));
        drop(tunnel);
        assert_eq!(watch(&activity, &TIMEOUTS, 61), Err(Watch::Idle));
    }
}
