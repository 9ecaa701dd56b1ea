//! The processes of an instance, and checks that one of them is at the other end of a connection.
//!
//! An address proves nothing: another process may listen first on an instance's port, and every
//! process can connect to the node. So the node asks the kernel which socket is at the other end,
//! and `/proc` which process has it.

use crate::sockets::{self, Socket, State};
use rustix::fs::{Dir, Mode, OFlags, openat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of remembered listeners and processes: more than a server with one process per
/// core has.
const MAX_REMEMBERED: usize = 256;
/// Scans before giving up: a connection may move from one process to another during a scan.
const MAX_SCANS: usize = 3;

/// The processes of one instance: its first process, that process's group, their descendants, and the control group.
#[derive(Debug)]
pub struct Processes {
    leader: Process,
    /// The file that lists the members of the instance's control group, if it has one.
    group: Option<PathBuf>,
    known: Mutex<ProcessCache>,
    /// Locked while a connection is checked.
    checking: tokio::sync::Mutex<()>,
}

/// Sockets and processes that are known to be the instance's. They save a scan of all processes for
/// each connection.
#[derive(Debug, Default)]
struct ProcessCache {
    /// Inodes of listeners. The kernel gives each socket a new number, so none is by accident another socket's.
    listeners: BTreeSet<u64>,
    /// Processes other than the leader that had a connection.
    others: BTreeSet<Process>,
}

/// A process. Process IDs are reused, but together with the start time they are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    number: u32,
    started: u64,
}

/// Why the other end of a connection is not known to be the instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTheInstance {
    /// Another process has it.
    #[error("{end} {owner}, not the instance")]
    Stranger {
        /// Describes the end and the connection.
        end: String,
        /// The other process, as far as this node may see it.
        owner: String,
    },
    /// The connection was already closed.
    #[error("the connection was closed at once")]
    Closed,
    /// The system does not reveal the process at the other end. Holds the reason.
    #[error("it cannot be seen who is at the other end: {0}")]
    Unknown(String),
}

impl From<io::Error> for NotTheInstance {
    fn from(error: io::Error) -> Self {
        Self::Unknown(error.to_string())
    }
}

impl Processes {
    /// The processes of the instance whose first process is `leader`. `group` lists the members of its control group, if it has one. The leader must
    /// not have been waited for yet, so that its process ID is still its own.
    pub(crate) fn of(leader: u32, group: Option<PathBuf>) -> io::Result<Self> {
        let leader = Process { number: leader, started: Status::read(&folder(leader)?)?.started };
        Ok(Self { leader, group, known: Mutex::default(), checking: tokio::sync::Mutex::default() })
    }

    /// The values by which another process can verify that a connection is the instance's; see
    /// [`Processes::told`].
    pub fn tell(&self) -> (u32, u64, Option<PathBuf>) {
        (self.leader.number, self.leader.started, self.group.clone())
    }

    /// The processes of an instance of another process of the node: the ID and start time of the
    /// first one, in the kernel's ticks since boot, and the file that lists the members of its
    /// control group.
    pub fn told(number: u32, started: u64, group: Option<PathBuf>) -> Self {
        Self {
            leader: Process { number, started },
            group,
            known: Mutex::default(),
            checking: tokio::sync::Mutex::default(),
        }
    }

    /// Calls [`Self::verify_accepted`] on a thread for blocking work: the check takes long if the instance has many descriptors. Each instance has one check at a
    /// time.
    pub(crate) async fn prove_accepted(
        self: &Arc<Self>,
        near: SocketAddr,
        far: SocketAddr,
    ) -> Result<(), NotTheInstance> {
        let _turn = self.checking.lock().await;
        let processes = self.clone();
        let checked = tokio::task::spawn_blocking(move || processes.verify_accepted(near, far)).await;
        checked.unwrap_or_else(|error| Err(NotTheInstance::Unknown(error.to_string())))
    }

    /// Checks that a connection from `near` to `far` has reached the instance. Call it when the
    /// connection is established and before the first byte is sent.
    ///
    /// This order leaves no gap. If a process has accepted the connection, this looks that process
    /// up. Otherwise the connection waits in the queue of a listener, and ends with it. If it still
    /// waits after all listeners there were verified, it waits in one of those, and only a process
    /// that has that listener can ever accept it. A check before the connection would prove
    /// nothing, because the port could change hands in between.
    pub(crate) fn verify_accepted(&self, near: SocketAddr, far: SocketAddr) -> Result<(), NotTheInstance> {
        let arrived = || sockets::connection(far, near)?.ok_or(NotTheInstance::Closed);
        let mut end = arrived()?;
        if end.waits() {
            self.verify_listeners(far)?;
            end = arrived()?;
        }
        match end.state {
            _ if end.waits() => Ok(()),
            State::Open if end.inode != 0 => {
                self.require_owner(&end, || format!("a connection to port {} was accepted by", far.port()))
            }
            _ => Err(NotTheInstance::Closed),
        }
    }

    /// Fails unless all listeners that a connection to `far` can reach are the instance's.
    pub(crate) fn verify_listeners(&self, far: SocketAddr) -> Result<(), NotTheInstance> {
        let listeners = sockets::listeners(far)?;
        if listeners.is_empty() {
            return Err(NotTheInstance::Closed);
        }
        for listener in &listeners {
            if !self.known().listeners.contains(&listener.inode) {
                self.require_owner(listener, || format!("port {} is held by", far.port()))?;
                remember(&mut self.known().listeners, listener.inode);
            }
        }
        Ok(())
    }

    /// Checks that the instance opened the connection from `near`, the instance's end, to `far`, this process's end.
    pub fn verify_opened(&self, near: SocketAddr, far: SocketAddr) -> Result<(), NotTheInstance> {
        let opened = sockets::connection(near, far)?.filter(|socket| socket.inode != 0);
        self.require_owner(&opened.ok_or(NotTheInstance::Closed)?, || "the connection was opened by".to_owned())
    }

    /// Checks that a process of the instance listens at the other end of a Unix socket that has just been connected. `listener` is the process that the
    /// kernel noted when it began to listen.
    pub(crate) fn verify_listener(&self, listener: u32) -> Result<(), NotTheInstance> {
        let belongs = |numbers: BTreeSet<u32>| numbers.contains(&listener);
        let here = listener == self.leader.number
            || belongs(descendants(self.leader.number))
            || self.members().contains(&listener)
            || belongs(self.all()?);
        if here && self.leader.open().is_some() {
            return Ok(());
        }
        let name = fs::read_to_string(format!("/proc/{listener}/comm")).unwrap_or_default();
        let owner = format!("process {listener} (`{}`)", name.trim_end().escape_debug());
        Err(NotTheInstance::Stranger { end: "its link is held by".to_owned(), owner })
    }

    /// Fails unless a process of the instance has this socket.
    fn require_owner(&self, socket: &Socket, end: impl FnOnce() -> String) -> Result<(), NotTheInstance> {
        for _ in 0..MAX_SCANS {
            if self.holds(socket.inode)? {
                return Ok(());
            }
        }
        match owner(socket.inode) {
            Some(owner) => Err(NotTheInstance::Stranger { end: end(), owner }),
            // An account may not see the descriptors of others.
            None if Some(socket.account) != account(self.leader.number) => {
                let owner = format!("a process of the account {}", socket.account);
                Err(NotTheInstance::Stranger { end: end(), owner })
            }
            None => Err(NotTheInstance::Unknown(format!(
                "{} a process whose descriptors this node may not read; is it set-uid, or not dumpable?",
                end()
            ))),
        }
    }

    /// Whether a process of the instance has the socket. The most likely processes are checked first.
    fn holds(&self, inode: u64) -> io::Result<bool> {
        let Some(leader) = self.leader.open() else { return Ok(false) };
        if holds(&leader, inode) {
            return Ok(true);
        }
        let known: Vec<Process> = self.known().others.iter().copied().collect();
        for process in known {
            match process.open() {
                Some(folder) if holds(&folder, inode) => return Ok(true),
                Some(_) => {}
                None => drop(self.known().others.remove(&process)),
            }
        }
        let found =
            descendants(self.leader.number).into_iter().chain(self.members()).find_map(|number| with(number, inode));
        let found = match found {
            Some(found) => Some(found),
            None => self.all()?.into_iter().find_map(|number| with(number, inode)),
        };
        if let Some(process) = found {
            remember(&mut self.known().others, process);
        }
        Ok(found.is_some())
    }

    /// Inodes of all sockets that processes of the instance have, as far as the node may see them.
    pub(crate) fn sockets(&self) -> BTreeSet<u64> {
        let mut all = self.all().unwrap_or_default();
        all.extend(self.members());
        all.into_iter().filter_map(|number| folder(number).ok()).flat_map(sockets_of).collect()
    }

    /// The members of the control group.
    fn members(&self) -> Vec<u32> {
        let list = self.group.as_ref().and_then(|group| fs::read_to_string(group).ok()).unwrap_or_default();
        list.lines().filter_map(|number| number.parse().ok()).collect()
    }

    /// The process group and all descendants of its members, found among all processes of the machine.
    fn all(&self) -> io::Result<BTreeSet<u32>> {
        let mut processes = BTreeMap::new();
        for number in numbers()? {
            if let Ok(status) = folder(number).and_then(|folder| Status::read(&folder)) {
                processes.insert(number, status);
            }
        }
        let leader = self.leader.number;
        let belongs = |mut number: u32| {
            // No chain of parents is longer than the number of processes.
            for _ in 0..=processes.len() {
                match processes.get(&number) {
                    Some(status) if number == leader || status.group == leader => return true,
                    Some(status) => number = status.parent,
                    None => return false,
                }
            }
            false
        };
        Ok(processes.keys().copied().filter(|number| belongs(*number)).collect())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, ProcessCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember<T: Ord>(set: &mut BTreeSet<T>, item: T) {
    if set.len() >= MAX_REMEMBERED {
        set.pop_first();
    }
    set.insert(item);
}

impl Process {
    /// Opens the process's folder in `/proc`. The result never refers to another process, even if
    /// the process ends; `None`: the process is gone.
    fn open(self) -> Option<OwnedFd> {
        let folder = folder(self.number).ok()?;
        (Status::read(&folder).ok()?.started == self.started).then_some(folder)
    }
}

/// Fields of `/proc/PID/stat`.
struct Status {
    parent: u32,
    group: u32,
    started: u64,
}

impl Status {
    fn read(folder: &OwnedFd) -> io::Result<Self> {
        let mut file = File::from(openat(folder, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // Process ID, name in brackets (which may have any content), state, parent, process group,
        // …
        let fields = || text.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
        let field = |index: usize| fields().and_then(|mut fields| fields.nth(index)).unwrap_or_default();
        let bad = |_| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat");
        Ok(Self {
            parent: field(1).parse().map_err(bad)?,
            group: field(2).parse().map_err(bad)?,
            started: field(19).parse().map_err(bad)?,
        })
    }
}

fn folder(number: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{number}"), flags, Mode::empty())?)
}

/// The process with this ID, if it has the socket.
fn with(number: u32, inode: u64) -> Option<Process> {
    let folder = folder(number).ok()?;
    if !holds(&folder, inode) {
        return None;
    }
    Some(Process { number, started: Status::read(&folder).ok()?.started })
}

/// Whether a process has a socket. False for a process whose descriptors may not be read.
fn holds(process: impl AsFd, inode: u64) -> bool {
    sockets_of(process).any(|other| other == inode)
}

/// Inodes of the sockets of a process. None of a process whose descriptors may not be read.
fn sockets_of(process: impl AsFd) -> impl Iterator<Item = u64> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptors = openat(process, "fd", flags, Mode::empty()).ok();
    let list = descriptors.as_ref().and_then(|descriptors| Dir::read_from(descriptors).ok());
    let mut target = Vec::new();
    list.into_iter().flat_map(Iterator::flatten).filter_map(move |entry| {
        let read =
            rustix::fs::readlinkat(descriptors.as_ref()?, entry.file_name(), std::mem::take(&mut target)).ok()?;
        let inode = read.to_str().ok().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        target = read.into_bytes();
        inode
    })
}

/// Describes the process that has a socket.
fn owner(inode: u64) -> Option<String> {
    let number = numbers().ok()?.into_iter().find(|number| with(*number, inode).is_some())?;
    let account = account(number)?;
    let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    Some(format!("process {number} (`{}`, account {account})", name.trim_end().escape_debug()))
}

/// All descendants, where the kernel lists children.
pub(crate) fn descendants(leader: u32) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![leader]);
    while let Some(parent) = next.pop() {
        next.extend(listed_children(parent).unwrap_or_default().into_iter().filter(|child| found.insert(*child)));
    }
    found
}

/// Direct children. Where the kernel does not list them, all processes are scanned.
pub(crate) fn children(parent: u32) -> BTreeSet<u32> {
    listed_children(parent).unwrap_or_else(|_| {
        let is_child = |number: &u32| {
            let status = folder(*number).and_then(|folder| Status::read(&folder));
            status.is_ok_and(|status| status.parent == parent)
        };
        numbers().unwrap_or_default().into_iter().filter(is_child).collect()
    })
}

/// Fails if this kernel does not list children.
fn listed_children(parent: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for thread in fs::read_dir(format!("/proc/{parent}/task"))?.flatten() {
        let children = fs::read_to_string(thread.path().join("children"))?;
        found.extend(children.split_ascii_whitespace().filter_map(|number| number.parse::<u32>().ok()));
    }
    Ok(found)
}

pub(crate) fn group(process: u32) -> Option<u32> {
    folder(process).and_then(|folder| Status::read(&folder)).ok().map(|status| status.group)
}

/// Whether a process descends from this one. All processes that the node has started do, because orphans become the node's children.
///
/// # Errors
/// The process has ended, or its ancestors keep changing.
pub fn descends_from_the_node(process: u32) -> io::Result<bool> {
    descends_from(process, std::process::id())
}

/// The same for another process of the node.
///
/// # Errors
/// The process has ended, or its ancestors keep changing.
pub fn descends_from(process: u32, node: u32) -> io::Result<bool> {
    for _ in 0..MAX_SCANS {
        let mut ancestor = process;
        loop {
            match folder(ancestor).and_then(|folder| Status::read(&folder)) {
                Ok(Status { parent, .. }) if parent == node => return Ok(true),
                Ok(Status { parent: 0 | 1, .. }) => return Ok(ancestor == node),
                Ok(Status { parent, .. }) => ancestor = parent,
                Err(error) if ancestor == process => return Err(error),
                // An ancestor has ended, and its children have a new parent.
                Err(_) => break,
            }
        }
    }
    Err(io::Error::other("its parents end faster than they can be looked at"))
}

/// Effective user ID of a process. The owner of its `/proc` folder differs if the process is not dumpable.
fn account(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let accounts = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    accounts.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// IDs of all processes.
fn numbers() -> io::Result<Vec<u32>> {
    let all = fs::read_dir("/proc")?.flatten();
    Ok(all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
