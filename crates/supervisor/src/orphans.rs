//! Processes whose parents have ended. A process that detaches itself (`setsid`, and a parent that exits) has no parent and is in no known process
//! group. This process is a *subreaper*: it becomes the parent, ends such a process with its instance, and reaps it.
//!
//! The list of leaders is global, because a process has one set of children.

use crate::processes;
use rustix::process::{Pid, Signal, WaitOptions, getpid};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable that names a process's instance. Descendants inherit it, unless they remove it.
pub(crate) const INSTANCE: &str = "LENO_INSTANCE";
/// Longest wait for killed processes to vanish. Their children become this process's only then.
const VANISH: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

static ADOPTING: AtomicBool = AtomicBool::new(false);
/// The leaders (first processes) of live instances by process ID, with the instances' names.
static LIVE_LEADERS: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
/// Functions that return children of this process which are no instances.
static SPARED: Mutex<Vec<Box<dyn Fn() -> u32 + Send>>> = Mutex::new(Vec::new());
/// Children of this process that [`start_apart`] has started.
static APART: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
/// Held for reading while a process is started, until it is among the leaders. Held for writing
/// during a search for orphans.
static STARTING: RwLock<()> = RwLock::new(());

/// Makes this process a subreaper: from now on, descendants that lose their parent become its children. All its children must be instances then.
pub(crate) fn adopt() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(getpid()))?;
    ADOPTING.store(true, SeqCst);
    let mut ended = signal(SignalKind::child())?;
    tokio::spawn(async move {
        while ended.recv().await.is_some() {
            let _none_starts = STARTING.write().unwrap_or_else(PoisonError::into_inner);
            orphans().for_each(reap);
        }
    });
    Ok(())
}

/// Starts an instance's first process with `start`, which returns the process ID.
pub(crate) fn start<C>(instance: &str, start: impl FnOnce() -> io::Result<(u32, C)>) -> io::Result<C> {
    let _nobody_looks = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let (leader, child) = start()?;
    leaders().insert(leader, instance.to_owned());
    Ok(child)
}

/// Starts a child of this process that is no instance with `start`, which returns the process ID.
/// It is spared until the result is dropped, which must not be before it was waited for.
pub fn start_apart<C>(start: impl FnOnce() -> io::Result<(u32, C)>) -> io::Result<(C, Apart)> {
    let _nobody_looks = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let (process, child) = start()?;
    apart().insert(process);
    Ok((child, Apart(process)))
}

/// A child of this process that is no instance.
#[derive(Debug)]
pub struct Apart(u32);

impl Drop for Apart {
    fn drop(&mut self) {
        apart().remove(&self.0);
    }
}

/// Spares a child of this process that is no instance. `child` returns its process ID.
pub(crate) fn spare(child: impl Fn() -> u32 + Send + 'static) {
    SPARED.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(child));
}

/// Forgets an instance's first process after it was waited for.
pub(crate) fn ended(leader: u32) {
    leaders().remove(&leader);
}

/// Kills the remaining processes of instances that have ended, and other processes of this node,
/// and waits until they are gone.
pub async fn end_orphans() {
    if !ADOPTING.load(SeqCst) {
        return;
    }
    let vanished = async {
        while kill_orphans() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let _ = tokio::time::timeout(VANISH, vanished).await;
}

/// Kills orphans of instances that have ended. Returns whether there were any.
fn kill_orphans() -> bool {
    let _none_starts = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let mut any = false;
    for orphan in orphans().filter(|orphan| !belongs_to_live_instance(*orphan)) {
        // A process ID is not reused before the process was waited for.
        let _ = pid(orphan).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        reap(orphan);
        any = true;
    }
    any
}

/// Children that are no instance's first process.
fn orphans() -> impl Iterator<Item = u32> {
    let children = processes::children(getpid().as_raw_nonzero().get().unsigned_abs());
    let mut leaders: Vec<u32> = leaders().keys().copied().collect();
    leaders.extend(apart().iter().copied());
    leaders.extend(SPARED.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|child| child()));
    leaders.sort_unstable();
    children.into_iter().filter(move |child| leaders.binary_search(child).is_err())
}

/// Whether an orphan is in the process group of a live instance, or its environment names one.
/// Processes missed here end with their control group.
fn belongs_to_live_instance(orphan: u32) -> bool {
    let leaders = leaders();
    if processes::group(orphan).is_some_and(|group| leaders.contains_key(&group)) {
        return true;
    }
    let environment = fs::read(format!("/proc/{orphan}/environ")).unwrap_or_default();
    let mut names = environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| variable.strip_prefix(INSTANCE.as_bytes())?.strip_prefix(b"="));
    names.any(|name| leaders.values().any(|live| live.as_bytes() == name))
}

fn reap(orphan: u32) {
    // This fails if the orphan was waited for already, which does not matter.
    let _ = rustix::process::waitpid(pid(orphan), WaitOptions::NOHANG);
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

fn apart() -> MutexGuard<'static, BTreeSet<u32>> {
    APART.lock().unwrap_or_else(PoisonError::into_inner)
}

fn leaders() -> MutexGuard<'static, BTreeMap<u32, String>> {
    LIVE_LEADERS.lock().unwrap_or_else(PoisonError::into_inner)
}
