//! Control groups (cgroup v2). They enforce the limits of instances, and let the next node end the
//! instances that a killed node left behind.
//!
//! A node creates a group below the one in which it was started and moves into it, so all its child
//! processes are in that group too. The group's name identifies the node's process. A group whose
//! process has ended was left behind by a killed node; the next node ends all processes in it.
//!
//! Each instance has its own group, which ends with it: no process can leave its group. An instance
//! with limits joins its group before its program begins. The others are moved while they start,
//! because joining takes the kernel several milliseconds. The node also finds and moves the
//! processes that they start meanwhile.

mod legacy;
mod owner;
mod probe;
mod share;

use crate::processes;
use legacy::{Groups, Hierarchies};
use leno_model::Resources;
use owner::Owner;
pub use probe::probe_limits;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
pub use share::NamespaceShare;
use share::Shares;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Prefix of the name of a node's group. The rest identifies its process, and is random.
const PREFIX: &str = "leno-node-";
/// The group of the node's own processes, inside the node's group.
const MAIN: &str = "main";
/// The file in each group that lists its processes.
const MEMBERS: &str = "cgroup.procs";
/// The file in each group that lists the controllers which are enabled for the groups in it.
const ENABLED: &str = "cgroup.subtree_control";
/// The controllers that enforce limits.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Longest wait for a killed group to become empty.
const VANISH: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Weight of the node's own processes for the processors. Namespaces have 100 each.
const WEIGHT: u32 = 1000;
/// The period of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;

/// Why limits cannot be enforced.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LimitError {
    #[error("there are no control groups (v2) for instances")]
    NoCgroups,
    #[error("cgroup v{version} has no {names} controller here")]
    NoControllers { version: u8, names: String },
    #[error("cgroup v1 has it")]
    InLegacy,
    #[error("{}: {error}; the node needs a control group to itself", parent.display())]
    Shared { parent: PathBuf, error: Arc<io::Error> },
    #[error("its namespace's control group: {0}")]
    Namespace(Arc<io::Error>),
    #[error("its control group: {0}")]
    Instance(Arc<io::Error>),
    #[error("cgroup v1: {0}")]
    Legacy(Arc<io::Error>),
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: Arc<io::Error> },
    #[error(transparent)]
    Io(Arc<io::Error>),
    /// Neither version works, for these reasons.
    #[error("{0}; {1}")]
    Both(Box<LimitError>, Box<LimitError>),
}

impl LimitError {
    fn namespace(error: io::Error) -> Self {
        Self::Namespace(error.into())
    }

    fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::File { path: path.into(), error: error.into() }
    }

    fn and(&self, other: Self) -> Self {
        Self::Both(Box::new(self.clone()), Box::new(other))
    }
}

/// The node's control group.
#[derive(Debug)]
pub(crate) struct Cgroups {
    node: PathBuf,
    /// Whether limits can be enforced; if so, whether this node enabled the parent's controllers
    /// for that. Determined when limits are first requested.
    controlled: OnceLock<Result<bool, LimitError>>,
    /// The hierarchies of version 1, looked up when controllers of version 2 are missing.
    legacy: OnceLock<Result<Hierarchies, LimitError>>,
    /// The sender to the thread that moves instances into groups, one after the other, because the
    /// kernel handles one at a time.
    mover: mpsc::Sender<Move>,
    shares: Shares,
    _lock: OwnedFd,
}

impl Cgroups {
    /// Ends what killed nodes left behind, creates a group for this process and moves the process into it. Fails without cgroup v2, or if this
    /// account may not create groups.
    pub(crate) fn open() -> io::Result<Self> {
        let parent = own_group()?;
        sweep(&parent)?;
        let node = parent.join(format!("{PREFIX}{}-{:016x}", Owner::this()?.name(), fastrand::u64(..)));
        fs::create_dir(&node)?;
        // The lock is for nodes that do not see this process, and for those of earlier releases.
        let lock = lock(&node)?;
        let main = node.join(MAIN);
        fs::create_dir(&main)?;
        fs::write(main.join(MEMBERS), "0")?;
        let (mover, moves) = mpsc::channel();
        thread::Builder::new().name("leno-cgroups".to_owned()).spawn(move || move_all(&moves))?;
        Ok(Self {
            node,
            controlled: OnceLock::new(),
            legacy: OnceLock::new(),
            mover,
            shares: Shares::default(),
            _lock: lock,
        })
    }

    /// The node's group: all its child processes are in it, or in one below.
    pub(crate) fn path(&self) -> &Path {
        &self.node
    }

    /// Moves a process of the node and its descendants into the node's own group. From their former
    /// group, no limits could be enforced for the groups below.
    pub(crate) fn take_in(&self, process: u32) -> io::Result<()> {
        Cgroup::move_all(&self.node.join(MAIN).join(MEMBERS), process)
    }

    /// Creates a group for a running instance that has no limits, and moves the instance into it. The receiver gets nothing if that fails.
    pub(crate) fn move_running(&self, namespace: &str, name: u64, leader: u32) -> oneshot::Receiver<Cgroup> {
        let (done, group) = oneshot::channel();
        if let Err(error) = self.place_of_process(namespace) {
            tracing::debug!(leader, %error, "a namespace has no control group");
        }
        let path = self.namespace(namespace).join(name.to_string());
        // The thread outlives this sender, so sending does not fail.
        let _ = self.mover.send(Move { path, leader, done });
        group
    }

    /// The file that lists the processes of an instance's group.
    pub(crate) fn members(&self, namespace: &str, name: u64) -> PathBuf {
        self.namespace(namespace).join(name.to_string()).join(MEMBERS)
    }

    /// Creates a group with limits for one instance. The error gives the reason why its limits
    /// cannot be enforced.
    pub(crate) fn instance(&self, namespace: &str, name: u64, limits: &Resources) -> Result<Cgroup, LimitError> {
        let place = self.place_of_process(namespace);
        let place = place.map_err(LimitError::namespace)?;
        // The hierarchies of cgroup v1 are for jails only.
        self.controlled.get_or_init(|| self.control()).clone()?;
        place.controlled?;
        Cgroup::make(&place.folder, name, limits)
    }

    /// Limits for a jail: by a group of version 2, or else by groups of version 1. The error gives
    /// the reason why neither is possible.
    pub(crate) fn jail(&self, namespace: &str, name: u64, limits: &Resources) -> Result<JailLimits, LimitError> {
        let place = self.place(namespace).map_err(LimitError::namespace)?;
        let Some(hierarchies) = place.legacy else {
            place.controlled?;
            return Cgroup::make(&place.folder, name, limits).map(JailLimits::Current);
        };
        let groups = hierarchies.instance(&name.to_string(), limits);
        groups.map(JailLimits::Legacy).map_err(|error| LimitError::Legacy(error.into()))
    }

    /// Enables the controllers for the groups of instances. Returns whether the parent group had one of them disabled.
    fn control(&self) -> Result<bool, LimitError> {
        let parent = self.parent();
        offers_controllers(parent)?;
        let disabled = missing_controllers(parent, ENABLED)?;
        // This fails if other processes are in the parent group: controllers only work between
        // groups that directly contain no processes.
        let enabled = switch(parent, '+').and_then(|()| switch(&self.node, '+'));
        enabled.map_err(|error| LimitError::Shared { parent: parent.to_owned(), error: error.into() })?;
        // A namespace has the kernel's default weight. The node works for all of them.
        if let Err(error) = fs::write(self.node.join(MAIN).join("cpu.weight"), WEIGHT.to_string()) {
            tracing::warn!(%error, "the node has no larger share of the processors than a namespace");
        }
        Ok(!disabled.is_empty())
    }

    fn parent(&self) -> &Path {
        self.node.parent().unwrap_or(&self.node)
    }
}

/// The controllers that a file of the group does not list.
fn missing_controllers(group: &Path, file: &str) -> Result<Vec<&'static str>, LimitError> {
    let listed = read(&group.join(file)).map_err(|error| LimitError::Io(error.into()))?;
    let is_missing = |name: &&str| !listed.split_whitespace().any(|other| other == *name);
    Ok(CONTROLLERS.into_iter().filter(is_missing).collect())
}

fn offers_controllers(group: &Path) -> Result<(), LimitError> {
    match &*missing_controllers(group, "cgroup.controllers")? {
        [] => Ok(()),
        missing => Err(LimitError::NoControllers { version: 2, names: missing.join(", ") }),
    }
}

/// Enables (`+`) or disables (`-`) the controllers for the groups in this one.
fn switch(group: &Path, sign: char) -> io::Result<()> {
    fs::write(group.join(ENABLED), CONTROLLERS.map(|name| format!("{sign}{name}")).join(" "))
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // This process moves back to the parent group. If processes are left in the node's group
        // after a while, the next node ends them and removes the group.
        // Their controllers keep those of the node's group from being disabled.
        self.shares.remove();
        let parent = self.parent();
        let go_back = || fs::write(parent.join(MEMBERS), "0");
        let mut back = go_back();
        if back.is_err() && matches!(self.controlled.get(), Some(Ok(true))) {
            // No process can be in a group whose controllers are enabled. They cannot be disabled if another node uses them too.
            back = switch(&self.node, '-').and_then(|()| switch(parent, '-')).and_then(|()| go_back());
        }
        if back.is_ok() && vanishes(&self.node.join(MAIN)) {
            let _ = remove(&self.node);
        }
    }
}

/// The groups that enforce the limits of a jail, as long as this is held.
#[derive(Debug)]
pub(crate) enum JailLimits {
    Current(Cgroup),
    Legacy(Groups),
}

impl JailLimits {
    /// Moves the jail's first process into the groups, before it starts a program.
    pub(crate) fn join(&self, pid: u32) -> io::Result<()> {
        match self {
            Self::Current(group) => fs::write(group.members(), pid.to_string()),
            Self::Legacy(groups) => groups.join(pid),
        }
    }

    /// The part of the limits that is not enforced, and why.
    pub(crate) fn unenforced(&self) -> Option<&str> {
        match self {
            Self::Current(_) => None,
            Self::Legacy(groups) => groups.unenforced(),
        }
    }

    /// Whether the kernel killed a process in the jail because memory ran out.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        match self {
            Self::Current(group) => group.ran_out_of_memory(),
            Self::Legacy(groups) => groups.ran_out_of_memory(),
        }
    }
}

/// Whether a group's `memory.events`, or `memory.oom_control` of version 1, counts a process that the kernel killed because memory ran out.
fn counts_kills(events: &Path) -> bool {
    let events = fs::read_to_string(events).unwrap_or_default();
    events.lines().filter_map(|line| line.strip_prefix("oom_kill ")).any(|count| count != "0")
}

/// Sets a limit that not every kernel has.
fn set_if_there(file: &Path, value: u64) -> io::Result<()> {
    if file.exists() { fs::write(file, value.to_string()) } else { Ok(()) }
}

/// A running instance that is to be moved into a group.
struct Move {
    path: PathBuf,
    leader: u32,
    done: oneshot::Sender<Cgroup>,
}

/// Runs until the last sender is dropped.
fn move_all(moves: &mpsc::Receiver<Move>) {
    for Move { path, leader, done } in moves {
        let moved = fs::create_dir(&path)
            .map(|()| Cgroup { path })
            .and_then(|group| group.move_into_group(leader).map(|()| group));
        match moved {
            // If the receiver is gone, dropping the group kills the instance.
            Ok(group) => drop(done.send(group)),
            Err(error) => tracing::debug!(leader, %error, "an instance has no control group"),
        }
    }
}

/// The group of one instance. Dropping it kills the processes in it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

/// Limits a group and those below it. `replaces`: there were limits before, which end where there are none now.
fn set_limits(group: &Path, limits: &Resources, replaces: bool) -> io::Result<()> {
    let Resources { memory, cpu_millis, pids } = *limits;
    let set = |file: &str, value: Option<String>| match value {
        Some(value) => fs::write(group.join(file), value),
        None if replaces => fs::write(group.join(file), "max"),
        None => Ok(()),
    };
    set("memory.max", (memory > 0).then(|| memory.to_string()))?;
    if memory > 0 {
        // Otherwise the instance would get the limit in memory, and any amount in swap.
        set_if_there(&group.join("memory.swap.max"), 0)?;
    }
    let quota = u64::from(cpu_millis) * PERIOD / 1000;
    set("cpu.max", (cpu_millis > 0).then(|| format!("{quota} {PERIOD}")))?;
    set("pids.max", (pids > 0).then(|| pids.to_string()))
}

impl Cgroup {
    /// Makes the group of an instance, with limits.
    fn make(namespace: &Path, name: u64, limits: &Resources) -> Result<Self, LimitError> {
        let path = namespace.join(name.to_string());
        let made = fs::create_dir(&path).map(|()| Self { path });
        let limited = made.and_then(|group| group.limit(limits).map(|()| group));
        limited.map_err(|error| LimitError::Instance(error.into()))
    }

    fn limit(&self, limits: &Resources) -> io::Result<()> {
        set_limits(&self.path, limits, false)?;
        if limits.memory > 0 {
            // If only one process were killed, the instance would be left in an unknown state.
            fs::write(self.path.join("memory.oom.group"), "1")?;
        }
        Ok(())
    }

    /// Whether the kernel killed a process in the group because memory ran out.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        counts_kills(&self.path.join("memory.events"))
    }

    /// The file to which a process writes 0 to join the group.
    pub(crate) fn members(&self) -> PathBuf {
        self.path.join(MEMBERS)
    }

    /// Moves a process and its descendants into the group.
    fn move_into_group(&self, leader: u32) -> io::Result<()> {
        Self::move_all(&self.members(), leader)
    }

    fn move_all(members: &Path, leader: u32) -> io::Result<()> {
        fs::write(members, leader.to_string())?;
        // From here on, children of the leader are born in the group. Each pass finds processes that were started before their parent was moved.
        let mut known = BTreeSet::new();
        loop {
            let found: Vec<u32> =
                processes::descendants(leader).into_iter().filter(|child| known.insert(*child)).collect();
            if found.is_empty() {
                return Ok(());
            }
            for child in found {
                // This fails if the process has ended.
                let _ = fs::write(members, child.to_string());
            }
        }
    }

    /// Kills all processes in the group and waits until the group is gone.
    pub(crate) async fn end(self) {
        kill(&self.path);
        let vanished = async {
            while remove(&self.path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                tokio::time::sleep(POLL_INTERVAL).await;
                kill(&self.path);
            }
        };
        let _ = tokio::time::timeout(VANISH, vanished).await;
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        kill(&self.path);
        let _ = remove(&self.path);
    }
}

/// Kills all processes in a group and in those below.
fn kill(group: &Path) {
    if fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // The group is gone, or the kernel is older than Linux 5.14.
    let members = fs::read_to_string(group.join(MEMBERS)).unwrap_or_default();
    for pid in members.lines().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).for_each(|entry| kill(&entry.path()));
}

/// The group of this process.
fn own_group() -> io::Result<PathBuf> {
    let missing = |what: &str| io::Error::new(io::ErrorKind::NotFound, what.to_owned());
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    // Fields: ID, parent, device, root, mount point, options, optional fields, `-`, type, …
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next() == Some("cgroup2")).then(|| before.split(' ').nth(4))?
    });
    let mount = mount.ok_or_else(|| missing("no cgroup2 file system is mounted"))?;
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = group.ok_or_else(|| missing("this process is in no cgroup v2"))?;
    Ok(Path::new(mount).join(parent_of_nodes(Path::new(group))))
}

/// The parent group of nodes' groups. A process that an earlier process of the same node started
/// begins in that one's group.
fn parent_of_nodes(group: &Path) -> &Path {
    let is_node = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(PREFIX);
    match (group.file_name(), group.parent()) {
        (Some(name), Some(node)) if name == MAIN && node.file_name().is_some_and(is_node) => {
            node.parent().unwrap_or(node)
        }
        _ => group,
    }
}

/// Ends the processes that dead processes of this node, and other dead nodes, left behind in
/// control groups.
///
/// # Errors
/// There are no control groups of version 2, or they cannot be listed.
pub fn sweep_groups() -> io::Result<()> {
    sweep(&own_group()?)
}

/// Ends the processes that dead nodes left behind.
fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)?.flatten() {
        let node = entry.path();
        if !entry.file_name().to_str().is_some_and(|name| is_left_behind(name, &node)) {
            continue;
        }
        let populated = || read(&node.join("cgroup.events")).is_ok_and(|events| events.contains("populated 1"));
        let was_populated = populated();
        let gone = vanishes_killed(&node);
        if gone && was_populated {
            tracing::warn!("ended the instances that a killed node left behind");
        } else if !gone && populated() {
            // An empty group of another account is left to that account.
            tracing::warn!(group = %node.display(), "a killed node left processes behind that do not end");
        }
    }
    Ok(())
}

/// Whether a group is a node's that has ended.
fn is_left_behind(name: &str, group: &Path) -> bool {
    let Some(owner) = name.strip_prefix(PREFIX) else { return false };
    let has_ended = Owner::of(owner).and_then(|owner| owner.has_ended());
    has_ended.unwrap_or_else(|| lock(group).is_ok())
}

/// Kills all processes in a group and in those below until they are gone. Returns whether they are.
/// An instance may have made groups below.
fn vanishes_killed(group: &Path) -> bool {
    for _ in 0..VANISH.as_millis() / POLL_INTERVAL.as_millis() {
        kill(group);
        match remove(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(POLL_INTERVAL),
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
            Ok(()) => return true,
        }
    }
    false
}

/// Removes a group and those below it, if they are empty.
fn remove(group: &Path) -> io::Result<()> {
    // Parent groups are busy until the groups below are removed.
    if fs::remove_dir(group).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
        let mut entries =
            fs::read_dir(group)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        entries.try_for_each(|below| remove(&below.path()))?;
        fs::remove_dir(group)?;
    }
    Ok(())
}

/// Removes a group, if need be as soon as its last process has ended. Returns whether it is gone.
fn vanishes(group: &Path) -> bool {
    for _ in 0..VANISH.as_millis() / POLL_INTERVAL.as_millis() {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(POLL_INTERVAL),
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
            Ok(()) => return true,
        }
    }
    false
}

/// Locks a node's group for the node's lifetime. Fails if another process holds the lock.
fn lock(node: &Path) -> io::Result<OwnedFd> {
    let folder = rustix::fs::open(node, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

fn read(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests;
