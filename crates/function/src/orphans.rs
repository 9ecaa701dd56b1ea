//! Processes whose parents are gone. One that detaches itself (`setsid`, and a parent that exits) is nobody's child and in nobody's process
//! group; as a *subreaper* this process becomes its parent, sees that it ends with its instance, and takes note of its exit.
//!
//! There is one list for the process, because a process has one set of children.

use crate::processes;
use rustix::process::{Pid, Signal, WaitOptions, getpid};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The variable that says whose process it is. What descends from it has it too, unless it takes care not to.
pub(crate) const INSTANCE: &str = "LENO_INSTANCE";
/// A killed process may take a moment to vanish, and its children become ours only then.
const VANISH: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);

static ADOPTING: AtomicBool = AtomicBool::new(false);
/// The first processes of living instances, and the names of those.
static LEADERS: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
/// Held by who starts a process, until it is among those; and by who looks for others.
static STARTING: RwLock<()> = RwLock::new(());

/// From now on, whoever loses its parent becomes a child of this process. Every child of it has to be an instance then.
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

/// Starts an instance's first process.
pub(crate) fn start<C>(instance: &str, start: impl FnOnce() -> io::Result<(u32, C)>) -> io::Result<C> {
    let _nobody_looks = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let (leader, child) = start()?;
    leaders().insert(leader, instance.to_owned());
    Ok(child)
}

/// An instance's first process has been waited for.
pub(crate) fn ended(leader: u32) {
    leaders().remove(&leader);
}

/// Ends what is left of instances that have ended, by force, and waits until it is gone.
pub(crate) async fn end() {
    if !ADOPTING.load(SeqCst) {
        return;
    }
    let vanished = async {
        while kill() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(VANISH, vanished).await;
}

/// Whether there are any.
fn kill() -> bool {
    let _none_starts = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let mut any = false;
    for orphan in orphans().filter(|orphan| !belongs_to_the_living(*orphan)) {
        // Its number is its own as long as it has not been waited for.
        let _ = pid(orphan).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        reap(orphan);
        any = true;
    }
    any
}

/// Children that are no instance's first process.
fn orphans() -> impl Iterator<Item = u32> {
    let children = processes::children(getpid().as_raw_nonzero().get().unsigned_abs());
    let leaders: Vec<u32> = leaders().keys().copied().collect();
    children.into_iter().filter(move |child| leaders.binary_search(child).is_err())
}

/// Whether it is in the process group of a living instance, or says that it is of one. Its control group ends the others.
fn belongs_to_the_living(orphan: u32) -> bool {
    let leaders = leaders();
    if processes::group(orphan).is_some_and(|group| leaders.contains_key(&group)) {
        return true;
    }
    let environment = fs::read(format!("/proc/{orphan}/environ")).unwrap_or_default();
    let mut names = environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| variable.strip_prefix(INSTANCE.as_bytes())?.strip_prefix(b"="));
    names.any(|name| leaders.values().any(|living| living.as_bytes() == name))
}

fn reap(orphan: u32) {
    // It fails if it has been waited for already, which is what is wanted.
    let _ = rustix::process::waitpid(pid(orphan), WaitOptions::NOHANG);
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

fn leaders() -> MutexGuard<'static, BTreeMap<u32, String>> {
    LEADERS.lock().unwrap_or_else(PoisonError::into_inner)
}
