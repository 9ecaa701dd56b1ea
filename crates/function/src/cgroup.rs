//! Control groups (cgroup v2): they hold instances to their limits, and let nothing survive a node that is killed.
//!
//! A node makes a group of its own below the one it was started in, and moves into it; whatever it starts is in it too, without a step
//! more. It holds a lock on it for as long as it lives: what is in a group that nobody locks was left behind by a node that was killed,
//! and the next node ends it.
//!
//! Each instance has a group for itself, which ends with it: whatever a process does, it does not leave its group. One with limits is in its
//! group before its program begins. The others are taken in while they begin, because the kernel takes several milliseconds for that; what they start
//! meanwhile is looked for and taken in too.

use crate::processes;
use leno_config::slice::Resources;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Of a node's group; the rest is random.
const PREFIX: &str = "leno-node-";
/// In each group, the file that lists its members.
const MEMBERS: &str = "cgroup.procs";
/// The controllers that enforce limits.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// A killed group may take a moment to be empty.
const VANISH: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);
/// Of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;

/// The node's group.
#[derive(Debug)]
pub(crate) struct Cgroups {
    node: PathBuf,
    /// Whether limits can be enforced, found out when the first are asked for.
    controlled: OnceLock<Result<(), String>>,
    /// To the thread that takes instances in: one after the other, because the kernel does no two at a time.
    adopting: mpsc::Sender<Adoption>,
    _lock: OwnedFd,
}

impl Cgroups {
    /// Ends what killed nodes left behind, makes a group for this process and moves it there. Fails where there is no cgroup v2, or where
    /// this account may not make groups.
    pub(crate) fn open() -> io::Result<Self> {
        let parent = own_group()?;
        sweep(&parent)?;
        let node = parent.join(format!("{PREFIX}{:016x}", fastrand::u64(..)));
        fs::create_dir(&node)?;
        // Another node that sweeps in this very moment takes it for abandoned; then there is none for this one.
        let lock = lock(&node)?;
        let main = node.join("main");
        fs::create_dir(&main)?;
        fs::write(main.join(MEMBERS), "0")?;
        let (adopting, adoptions) = mpsc::channel();
        thread::Builder::new().name("leno-cgroups".to_owned()).spawn(move || take_in(&adoptions))?;
        Ok(Self { node, controlled: OnceLock::new(), adopting, _lock: lock })
    }

    /// A group for an instance that has no limits, and has been started already. The receiver gets nothing where that fails.
    pub(crate) fn adopt(&self, name: u64, leader: u32) -> oneshot::Receiver<Cgroup> {
        let (done, group) = oneshot::channel();
        let path = self.node.join(name.to_string());
        // The thread ends after this.
        let _ = self.adopting.send(Adoption { path, leader, done });
        group
    }

    /// The file that lists what is in an instance's group.
    pub(crate) fn members(&self, name: u64) -> PathBuf {
        self.node.join(name.to_string()).join(MEMBERS)
    }

    /// A group for one instance; or why its limits cannot be enforced.
    pub(crate) fn instance(&self, name: u64, limits: &Resources) -> Result<Cgroup, String> {
        self.controlled.get_or_init(|| self.control()).clone()?;
        let path = self.node.join(name.to_string());
        let made = fs::create_dir(&path).map(|()| Cgroup { path });
        let limited = made.and_then(|group| group.limit(limits).map(|()| group));
        limited.map_err(|error| format!("its control group: {error}"))
    }

    /// Has the controllers work in the groups of instances.
    fn control(&self) -> Result<(), String> {
        let parent = self.node.parent().unwrap_or(&self.node);
        let offered = read(&parent.join("cgroup.controllers")).map_err(|error| error.to_string())?;
        let missing: Vec<&str> =
            CONTROLLERS.into_iter().filter(|name| !offered.split_whitespace().any(|other| other == *name)).collect();
        if !missing.is_empty() {
            return Err(format!("cgroup v2 has no {} controller here", missing.join(", ")));
        }
        let all = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        let enable = |group: &Path| fs::write(group.join("cgroup.subtree_control"), &all);
        // It fails where processes of others are in it: controllers work only between groups that have none of their own.
        let enabled = enable(parent).and_then(|()| enable(&self.node));
        enabled.map_err(|error| format!("{}: {error}; the node needs a control group to itself", parent.display()))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // This process goes back to where it was. Whatever fails because a process is left in it is for the next node.
        let parent = self.node.parent().unwrap_or(&self.node);
        let _ = fs::write(parent.join(MEMBERS), "0");
        let _ = fs::remove_dir(self.node.join("main"));
        let _ = fs::remove_dir(&self.node);
    }
}

/// An instance that is to be in a group.
struct Adoption {
    path: PathBuf,
    leader: u32,
    done: oneshot::Sender<Cgroup>,
}

/// Until the last sender is gone.
fn take_in(adoptions: &mpsc::Receiver<Adoption>) {
    for Adoption { path, leader, done } in adoptions {
        let taken =
            fs::create_dir(&path).map(|()| Cgroup { path }).and_then(|group| group.take_in(leader).map(|()| group));
        match taken {
            // If nobody waits, its drop ends it.
            Ok(group) => drop(done.send(group)),
            Err(error) => tracing::debug!(leader, %error, "an instance has no control group"),
        }
    }
}

/// The group of one instance. Dropping it kills what is in it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn limit(&self, limits: &Resources) -> io::Result<()> {
        let Resources { memory, cpu_millis, pids } = *limits;
        let set = |file: &str, value: String| fs::write(self.path.join(file), value);
        if memory > 0 {
            set("memory.max", memory.to_string())?;
            // One process that is killed leaves the rest of an instance in an unknown state.
            set("memory.oom.group", "1".to_owned())?;
        }
        if cpu_millis > 0 {
            set("cpu.max", format!("{} {PERIOD}", u64::from(cpu_millis) * PERIOD / 1000))?;
        }
        if pids > 0 {
            set("pids.max", pids.to_string())?;
        }
        Ok(())
    }

    /// The file in which a process writes 0 to join.
    pub(crate) fn members(&self) -> PathBuf {
        self.path.join(MEMBERS)
    }

    /// Takes a process in, and what it has started so far.
    fn take_in(&self, leader: u32) -> io::Result<()> {
        fs::write(self.members(), leader.to_string())?;
        // From here on its children are born in the group. Each look finds what was started before the parent was in it.
        let mut known = BTreeSet::new();
        loop {
            let found: Vec<u32> =
                processes::descendants(leader).into_iter().filter(|child| known.insert(*child)).collect();
            if found.is_empty() {
                return Ok(());
            }
            for child in found {
                // It fails if it has ended.
                let _ = fs::write(self.members(), child.to_string());
            }
        }
    }

    /// Ends everything in it, by force, and waits until it is gone.
    pub(crate) async fn end(self) {
        kill(&self.path);
        let vanished = async {
            while fs::remove_dir(&self.path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(VANISH, vanished).await;
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        kill(&self.path);
        let _ = fs::remove_dir(&self.path);
    }
}

fn kill(group: &Path) {
    // It fails where the group is gone, which is what is wanted.
    let _ = fs::write(group.join("cgroup.kill"), "1");
}

/// The group that this process is in.
fn own_group() -> io::Result<PathBuf> {
    let missing = |what: &str| io::Error::new(io::ErrorKind::NotFound, what.to_owned());
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    // ID, parent, device, root, mount point, options, optional fields, `-`, type, …
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next() == Some("cgroup2")).then(|| before.split(' ').nth(4))?
    });
    let mount = mount.ok_or_else(|| missing("no cgroup2 file system is mounted"))?;
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new(mount).join(group.ok_or_else(|| missing("this process is in no cgroup v2"))?))
}

/// Ends what nodes left behind that are no more.
fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)?.flatten() {
        let node = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || lock(&node).is_err() {
            continue;
        }
        let populated = read(&node.join("cgroup.events"))?.contains("populated 1");
        kill(&node);
        let groups: Vec<PathBuf> = fs::read_dir(&node)?.flatten().map(|entry| entry.path()).collect();
        let gone =
            groups.iter().filter(|path| path.is_dir()).all(|group| vanishes(group)) && fs::remove_dir(&node).is_ok();
        match (populated, gone) {
            (true, true) => tracing::warn!("ended the instances that a killed node left behind"),
            (_, false) => {
                tracing::warn!(group = %node.display(), "a killed node left processes behind that do not end")
            }
            (false, true) => {}
        }
    }
    Ok(())
}

fn vanishes(group: &Path) -> bool {
    for _ in 0..VANISH.as_millis() / LOOK.as_millis() {
        if fs::remove_dir(group).is_ok() {
            return true;
        }
        std::thread::sleep(LOOK);
    }
    false
}

/// The lock of a living node; fails if somebody else holds it.
fn lock(node: &Path) -> io::Result<OwnedFd> {
    let folder = rustix::fs::open(node, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

fn read(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}
