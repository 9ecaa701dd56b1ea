//! Threads that read files for one namespace.
//!
//! A read of a file system that hangs cannot be cancelled. Each such read takes a dedicated thread
//! here, never one of a shared pool, and the caller continues at its deadline. The thread stays
//! until the file system answers, and counts for its namespace: a namespace whose threads are all
//! stuck gets no more.

use crate::{FileAccess, open};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicIsize, AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How many files of one namespace are read at a time.
pub const MAX_THREADS: usize = 4;
/// How long a caller waits for a small file: longer than `open::MAX_READ_TIME` only if the file system hangs.
pub const MAX_WAIT: Duration = Duration::from_secs(6);
/// The namespace of files that the operator names, in the Mesh document or on a command line.
pub const OPERATOR: &str = "";

static GROUPS: LazyLock<Mutex<Groups>> = LazyLock::new(Mutex::default);

/// The groups, by namespace and purpose.
type Groups = HashMap<(String, Purpose), Arc<Group>>;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Purpose {
    Files,
    Images,
}

/// The readers of one namespace.
struct Group {
    permits: Arc<Semaphore>,
    /// Threads whose callers have stopped waiting.
    stuck: AtomicIsize,
}

/// A piece of work, shared by its thread and its caller.
struct Job {
    group: Arc<Group>,
    state: AtomicU8,
}

const RUNNING: u8 = 0;
const DONE: u8 = 1;
const ABANDONED: u8 = 2;

/// The caller's end of a job. Dropping it before the job is done makes the job's thread a stuck one.
struct Caller(Arc<Job>);

impl Drop for Caller {
    fn drop(&mut self) {
        if self.0.state.compare_exchange(RUNNING, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.0.group.stuck.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread's end of a job.
struct Thread {
    job: Arc<Job>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.job.state.swap(DONE, Ordering::AcqRel) == ABANDONED {
            self.job.group.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The number of stuck readers by namespace, without namespaces that have none.
#[cfg(test)]
fn stuck() -> Vec<(String, isize)> {
    let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stuck: std::collections::BTreeMap<String, isize> = Default::default();
    for ((namespace, _), group) in &*groups {
        *stuck.entry(namespace.clone()).or_default() += group.stuck.load(Ordering::Relaxed);
    }
    stuck.into_iter().filter(|(_, number)| *number > 0).collect()
}

/// Reads a small file, as [`crate::read`] does.
///
/// # Errors
/// Those of [`crate::read`] and of [`run`].
pub async fn read(namespace: &str, path: PathBuf, access: FileAccess, limit: u64) -> io::Result<Vec<u8>> {
    run(namespace, MAX_WAIT, move || open::read(&path, &access, limit)).await
}

/// Runs `work`, which may block, on a thread of the namespace.
///
/// # Errors
/// Those of `work`. `TimedOut`: it has not ended within `wait`, or no thread of this namespace was
/// free in that time.
pub async fn run<T: Send + 'static>(
    namespace: &str,
    wait: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_in(group(namespace, Purpose::Files), namespace, wait, work).await
}

/// The same for images that are folders or archives. Their threads are separate from those of
/// [`run`]: unpacking an image takes minutes, and must not keep the namespace from its secrets.
///
/// # Errors
/// As [`run`].
pub async fn run_image<T: Send + 'static>(
    namespace: &str,
    wait: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_in(group(namespace, Purpose::Images), namespace, wait, work).await
}

async fn run_in<T: Send + 'static>(
    group: Arc<Group>,
    namespace: &str,
    wait: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if group.stuck.load(Ordering::Relaxed) >= MAX_THREADS as isize {
        return Err(none_free(namespace));
    }
    let end = tokio::time::Instant::now() + wait;
    // The semaphore is never closed.
    let permit = tokio::time::timeout_at(end, group.permits.clone().acquire_owned()).await;
    let permit = permit.map_err(|_| none_free(namespace))?.map_err(io::Error::other)?;
    let job = Arc::new(Job { group: group.clone(), state: AtomicU8::new(RUNNING) });
    let (answer, answered) = oneshot::channel();
    let thread = Thread { job: job.clone(), _permit: permit };
    std::thread::Builder::new().name("leno-files".to_owned()).spawn(move || {
        let result = work();
        // This comes before the answer, so that the caller finds a free thread for its next file.
        drop(thread);
        // The caller may have stopped waiting.
        let _ = answer.send(result);
    })?;
    let _caller = Caller(job);
    match tokio::time::timeout_at(end, answered).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(io::Error::other("the thread that reads it has ended")),
        Err(_) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("its file system has not answered within {wait:?}")))
        }
    }
}

fn none_free(namespace: &str) -> io::Error {
    let whose = if namespace == OPERATOR { "the mesh".to_owned() } else { format!("namespace `{namespace}`") };
    let text = format!("the {MAX_THREADS} threads that read files of {whose} wait for file systems that do not answer");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

fn group(namespace: &str, purpose: Purpose) -> Arc<Group> {
    let key = (namespace.to_owned(), purpose);
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(group) = groups.get(&key) {
        return group.clone();
    }
    groups.retain(|_, group| Arc::strong_count(group) > 1);
    let permits = Arc::new(Semaphore::new(MAX_THREADS));
    let group = Arc::new(Group { permits, stuck: AtomicIsize::new(0) });
    groups.insert(key, group.clone());
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn what_hangs_takes_the_threads_of_its_namespace_only() {
        let short = Duration::from_millis(20);
        let mut held = Vec::new();
        for _ in 0..MAX_THREADS {
            let (release, released) = mpsc::channel::<()>();
            held.push(release);
            let hangs = run("hanging", short, move || {
                let _ = released.recv();
                Ok(())
            })
            .await;
            assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert!(stuck().contains(&("hanging".to_owned(), MAX_THREADS as isize)), "{:?}", stuck());
        // The namespace gets no more threads, and the caller does not wait for one.
        let refused = run("hanging", Duration::from_secs(3600), || Ok(())).await.unwrap_err();
        assert!(refused.to_string().contains("namespace `hanging`"), "{refused}");
        assert_eq!(run("other", MAX_WAIT, || Ok(7)).await.unwrap(), 7);
        drop(held);
        while stuck().iter().any(|(name, _)| name == "hanging") {
            tokio::task::yield_now().await;
        }
        assert_eq!(run("hanging", MAX_WAIT, || Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn many_reads_share_the_threads() {
        let reads = (0..200).map(|number| tokio::spawn(run("many", MAX_WAIT, move || Ok(number))));
        for (number, read) in reads.enumerate() {
            assert_eq!(read.await.unwrap().unwrap(), number);
        }
        assert!(!stuck().iter().any(|(name, _)| name == "many"));
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_a_stuck_thread() {
        let (release, released) = mpsc::channel::<()>();
        let caller = tokio::spawn(run("left", Duration::from_secs(3600), move || {
            let _ = released.recv();
            Ok(())
        }));
        while group("left", Purpose::Files).permits.available_permits() == MAX_THREADS {
            tokio::task::yield_now().await;
        }
        caller.abort();
        assert!(caller.await.is_err());
        assert!(stuck().contains(&("left".to_owned(), 1)));
        drop(release);
        while stuck().iter().any(|(name, _)| name == "left") {
            tokio::task::yield_now().await;
        }
    }
}
