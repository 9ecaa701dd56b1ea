//! Which processes belong to an instance, and whether it is one of them that is at the other end of a connection.
//!
//! An address proves nothing: whoever is quick, or was there before, can listen on the port that an instance was given, and everybody can
//! connect to the node. So the kernel is asked which socket is at the other end, and `/proc` which process has it.

use crate::sockets::{self, Socket, State};
use rustix::fs::{Dir, Mode, OFlags, openat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Listeners and processes that are remembered: those of a server with a process per core, and some.
const REMEMBERED: usize = 256;
/// A connection may go from one process to the next while they are looked through.
const LOOKS: usize = 3;

/// The processes of one instance: the one that the node started, its process group, whatever descends from it, and its control group.
#[derive(Debug)]
pub struct Processes {
    leader: Process,
    /// The file that lists the members of its control group, if it has one.
    group: Option<PathBuf>,
    known: Mutex<Known>,
}

/// What was found to be the instance's. It saves a look at all processes for each connection.
#[derive(Debug, Default)]
struct Known {
    /// Inodes of listeners. The kernel numbers sockets anew, so none is another's by accident.
    listeners: BTreeSet<u64>,
    /// Other processes than the leader that had a connection.
    others: BTreeSet<Process>,
}

/// A process. Numbers are used again; together with the time of its start one is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    number: u32,
    started: u64,
}

/// Why the other end of a connection is not known to be the instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTheInstance {
    /// Somebody else has it.
    #[error("{end} {owner}, not the instance")]
    Stranger {
        /// Which end of which connection.
        end: String,
        /// Who, as far as this node may see that.
        owner: String,
    },
    /// The connection has ended already.
    #[error("the connection was closed at once")]
    Closed,
    /// The system does not say.
    #[error("it cannot be seen who is at the other end: {0}")]
    Unknown(String),
}

impl From<io::Error> for NotTheInstance {
    fn from(error: io::Error) -> Self {
        Self::Unknown(error.to_string())
    }
}

impl Processes {
    /// Of the instance whose first process this is; `group` lists the members of its control group, if it has one. It must not have been waited for, so that its number is its own.
    pub(crate) fn of(leader: u32, group: Option<PathBuf>) -> io::Result<Self> {
        let leader = Process { number: leader, started: Status::read(&folder(leader)?)?.started };
        Ok(Self { leader, group, known: Mutex::default() })
    }

    /// Whether a connection that was made from `near` to `far` arrives at the instance. To be asked when it is established and before
    /// the first byte is sent.
    ///
    /// That leaves no gap. If the connection was accepted, the process that has it is looked up. If not, it waits in the queue of the
    /// listener where it arrived, and ends when that does. So if it still waits after all listeners there were seen to be the instance's,
    /// it waits in one of those, and only who has that can ever accept it. Asking first and connecting afterwards would prove nothing,
    /// because the port could change hands in between.
    pub(crate) fn serve(&self, near: SocketAddr, far: SocketAddr) -> Result<(), NotTheInstance> {
        let arrived = || sockets::connection(far, near)?.ok_or(NotTheInstance::Closed);
        let mut end = arrived()?;
        if end.waits() {
            self.listen(far)?;
            end = arrived()?;
        }
        match end.state {
            _ if end.waits() => Ok(()),
            State::Open if end.inode != 0 => {
                self.own(&end, || format!("a connection to port {} was accepted by", far.port()))
            }
            _ => Err(NotTheInstance::Closed),
        }
    }

    /// Fails unless all listeners there are the instance's.
    pub(crate) fn listen(&self, far: SocketAddr) -> Result<(), NotTheInstance> {
        let listeners = sockets::listeners(far)?;
        if listeners.is_empty() {
            return Err(NotTheInstance::Closed);
        }
        for listener in &listeners {
            if !self.known().listeners.contains(&listener.inode) {
                self.own(listener, || format!("port {} is held by", far.port()))?;
                remember(&mut self.known().listeners, listener.inode);
            }
        }
        Ok(())
    }

    /// Whether a connection from `near`, its own end, to `far`, where this process has it, was opened by the instance.
    pub fn opened(&self, near: SocketAddr, far: SocketAddr) -> Result<(), NotTheInstance> {
        let opened = sockets::connection(near, far)?.filter(|socket| socket.inode != 0);
        self.own(&opened.ok_or(NotTheInstance::Closed)?, || "the connection was opened by".to_owned())
    }

    /// Fails unless a process of the instance has this socket.
    fn own(&self, socket: &Socket, end: impl FnOnce() -> String) -> Result<(), NotTheInstance> {
        for _ in 0..LOOKS {
            if self.has(socket.inode)? {
                return Ok(());
            }
        }
        match owner(socket.inode) {
            Some(owner) => Err(NotTheInstance::Stranger { end: end(), owner }),
            // Others' descriptors are not shown to every account.
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

    /// Whether a process of the instance has a socket: those first that are likely to.
    fn has(&self, inode: u64) -> io::Result<bool> {
        let Some(leader) = self.leader.open() else { return Ok(false) };
        if has(&leader, inode) {
            return Ok(true);
        }
        let known: Vec<Process> = self.known().others.iter().copied().collect();
        for process in known {
            match process.open() {
                Some(folder) if has(&folder, inode) => return Ok(true),
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

    /// Of its control group.
    fn members(&self) -> Vec<u32> {
        let list = self.group.as_ref().and_then(|group| fs::read_to_string(group).ok()).unwrap_or_default();
        list.lines().filter_map(|number| number.parse().ok()).collect()
    }

    /// Its process group, and whatever descends from a member of it, out of all processes of the machine.
    fn all(&self) -> io::Result<BTreeSet<u32>> {
        let mut processes = BTreeMap::new();
        for number in numbers()? {
            if let Ok(status) = folder(number).and_then(|folder| Status::read(&folder)) {
                processes.insert(number, status);
            }
        }
        let leader = self.leader.number;
        let belongs = |mut number: u32| {
            // No line of parents is longer than all processes together.
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

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember<T: Ord>(set: &mut BTreeSet<T>, item: T) {
    if set.len() >= REMEMBERED {
        set.pop_first();
    }
    set.insert(item);
}

impl Process {
    /// Its folder in `/proc`, which is of no other process, whatever happens meanwhile; `None`: it is gone.
    fn open(self) -> Option<OwnedFd> {
        let folder = folder(self.number).ok()?;
        (Status::read(&folder).ok()?.started == self.started).then_some(folder)
    }
}

/// What `/proc/PID/stat` says.
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
        // Number, name in brackets (which may hold anything), state, parent, process group, …
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

/// The process of this number, if it has that socket.
fn with(number: u32, inode: u64) -> Option<Process> {
    let folder = folder(number).ok()?;
    if !has(&folder, inode) {
        return None;
    }
    Some(Process { number, started: Status::read(&folder).ok()?.started })
}

/// Whether a process has a socket. One that may not be looked into has none.
fn has(process: impl AsFd, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(descriptors) = openat(process, "fd", flags, Mode::empty()) else { return false };
    let Ok(list) = Dir::read_from(&descriptors) else { return false };
    let mut target = Vec::new();
    for entry in list.flatten() {
        let Ok(read) = rustix::fs::readlinkat(&descriptors, entry.file_name(), target) else {
            target = Vec::new();
            continue;
        };
        if read.as_bytes() == wanted.as_bytes() {
            return true;
        }
        target = read.into_bytes();
    }
    false
}

/// Who has a socket, in words.
fn owner(inode: u64) -> Option<String> {
    let number = numbers().ok()?.into_iter().find(|number| with(*number, inode).is_some())?;
    let account = account(number)?;
    let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    Some(format!("process {number} (`{}`, account {account})", name.trim_end().escape_debug()))
}

/// Children, children's children and so on, where the kernel lists them.
pub(crate) fn descendants(leader: u32) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![leader]);
    while let Some(parent) = next.pop() {
        next.extend(listed_children(parent).unwrap_or_default().into_iter().filter(|child| found.insert(*child)));
    }
    found
}

/// Children, out of all processes where the kernel does not list them.
pub(crate) fn children(parent: u32) -> BTreeSet<u32> {
    listed_children(parent).unwrap_or_else(|_| {
        let is_child = |number: &u32| {
            let status = folder(*number).and_then(|folder| Status::read(&folder));
            status.is_ok_and(|status| status.parent == parent)
        };
        numbers().unwrap_or_default().into_iter().filter(is_child).collect()
    })
}

/// An error if this kernel does not list them.
fn listed_children(parent: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for thread in fs::read_dir(format!("/proc/{parent}/task"))?.flatten() {
        let children = fs::read_to_string(thread.path().join("children"))?;
        found.extend(children.split_ascii_whitespace().filter_map(|number| number.parse::<u32>().ok()));
    }
    Ok(found)
}

/// The process group of a process.
pub(crate) fn group(process: u32) -> Option<u32> {
    folder(process).and_then(|folder| Status::read(&folder)).ok().map(|status| status.group)
}

/// Whether a process descends from this one, as all do that the node has started: whoever loses its parent becomes its child.
///
/// # Errors
/// The process has ended, or does not end to change its parents.
pub fn descends_from_the_node(process: u32) -> io::Result<bool> {
    let node = std::process::id();
    for _ in 0..LOOKS {
        let mut ancestor = process;
        loop {
            match folder(ancestor).and_then(|folder| Status::read(&folder)) {
                Ok(Status { parent, .. }) if parent == node => return Ok(true),
                Ok(Status { parent: 0 | 1, .. }) => return Ok(ancestor == node),
                Ok(Status { parent, .. }) => ancestor = parent,
                Err(error) if ancestor == process => return Err(error),
                // One in between has ended, and its children have another parent now.
                Err(_) => break,
            }
        }
    }
    Err(io::Error::other("its parents end faster than they can be looked at"))
}

/// The account that a process has. The owner of its folder is another one where it is not dumpable.
fn account(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let accounts = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    accounts.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Of all processes.
fn numbers() -> io::Result<Vec<u32>> {
    let all = fs::read_dir("/proc")?.flatten();
    Ok(all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
