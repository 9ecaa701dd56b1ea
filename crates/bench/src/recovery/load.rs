//! Requests at a constant rate, each by a connection of its own, whether earlier ones were answered or not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two requests.
pub(crate) const INTERVAL: Duration = Duration::from_millis(5);
/// A request that was not answered by then has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests that can be under way: as many as can become due while none is answered.
const WORKERS: usize = 256;

pub(crate) struct Load {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    gateway: SocketAddr,
    begin: Instant,
    interval: Duration,
    /// The number of the next request, and so when it is due.
    next: AtomicU64,
    stopped: AtomicBool,
    done: Mutex<Vec<Done>>,
}

/// A request that is over. Times are from the load's begin.
#[derive(Clone, Copy)]
struct Done {
    due: Duration,
    over: Duration,
    status: Option<u16>,
}

/// What requests felt of one failure.
pub(crate) struct Outcome {
    pub requests: usize,
    pub failed: usize,
    /// The longest time without an answer that says 200, from the failure on.
    pub longest_gap: Duration,
    /// From the failure to the first success after the last request that failed; zero where none failed.
    pub recovered: Duration,
}

impl Load {
    pub(crate) fn start(gateway: SocketAddr) -> Self {
        Self::start_at(gateway, INTERVAL)
    }

    pub(crate) fn start_at(gateway: SocketAddr, interval: Duration) -> Self {
        let (next, stopped, done) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { gateway, begin: Instant::now(), interval, next, stopped, done });
        let work = |_| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.work())
        };
        let workers = (0..WORKERS).map(work).collect();
        Self { shared, workers }
    }

    /// Ends it, and tells what happened since `failure`.
    pub(crate) fn stop(self, failure: Instant) -> Outcome {
        let (begin, mut done) = (self.shared.begin, self.all());
        let failure = failure.saturating_duration_since(begin);
        done.sort_by_key(|done| done.over);
        let ok = |done: &&Done| done.status == Some(200);
        let answered: Vec<Duration> = std::iter::once(failure)
            .chain(done.iter().filter(ok).map(|done| done.over).filter(|over| *over > failure))
            .collect();
        let longest_gap = answered.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
        let failed: Vec<&Done> = done.iter().filter(|done| !ok(done)).collect();
        let last = failed.iter().map(|done| done.due).max();
        let first_after = |last: Duration| done.iter().filter(ok).find(|done| done.due > last).map(|done| done.over);
        let recovered = last.and_then(first_after).map_or(Duration::ZERO, |over| over.saturating_sub(failure));
        Outcome { requests: done.len(), failed: failed.len(), longest_gap, recovered }
    }

    /// Ends it. How many requests were answered with 200, by when they were over since the begin.
    pub(crate) fn admitted(self) -> Vec<Duration> {
        let done = self.all();
        done.iter().filter(|done| done.status == Some(200)).map(|done| done.over).collect()
    }

    fn all(self) -> Vec<Done> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for worker in self.workers {
            // A worker that panicked has said so.
            let _ = worker.join();
        }
        std::mem::take(&mut *self.shared.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let due = self.interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
            loop {
                if self.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let left = due.saturating_sub(self.begin.elapsed());
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(Duration::from_millis(100)));
            }
            let status = request(self.gateway).ok().flatten();
            let done = Done { due, over: self.begin.elapsed(), status };
            self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        }
    }
}

/// The status of one request; `None`: the answer was none.
fn request(gateway: SocketAddr) -> std::io::Result<Option<u16>> {
    let mut stream = TcpStream::connect_timeout(&gateway, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: test.example\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    Ok(text.split(' ').nth(1).and_then(|status| status.parse().ok()))
}
