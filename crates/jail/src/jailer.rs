//! The jailer: a process that only creates jails.
//!
//! A jail begins as a copy of the process that creates it. The node is unsuitable for that, because
//! it has threads and secrets. The jailer has neither. The node starts the jailer first, and each
//! jail's first process shares the jailer's memory until it writes there.

use crate::init::USER;
use crate::rights::forbid_core_dumps;
use crate::step::{During, Unmade};
use crate::user::CONTAINER_IDS;
use crate::wire::{self, Event, Kind, Make};
use crate::{children, filter, init};
use nix::sched::CloneFlags;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, WaitOptions, getegid, geteuid, getrlimit, pidfd_open, setrlimit, wait,
};
use rustix::thread::{CapabilitiesSecureBits, Uid};
use seccompiler::BpfProgram;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

/// Stack of a jail's first process. Pages that it does not touch take no memory.
const STACK: usize = 256 * 1024;
/// The namespaces of each jail. The control group namespace is replaced once the jail is in its
/// groups; here it shows that the kernel supports one.
const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWUSER
    .union(CloneFlags::CLONE_NEWNET)
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWPID)
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWCGROUP);

/// Runs the jailer in this process, which must have no other thread. Standard input is the socket
/// to the node; the jailer ends when the node closes it.
pub fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the jailer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    // Standard input becomes /dev/null, so that nothing that a jail runs can inherit the socket.
    let node = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?;
    // Descriptors in transit through sockets count against this limit, for all jails of an account
    // together.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    if let Err(error) = forbid_core_dumps() {
        eprintln!("the jailer: a program that crashes may be given to the machine's handler of core dumps: {error}");
    }
    let children = children::ended()?;
    // Compiled once: jails share it.
    let filter = filter::compile().map_err(io::Error::other)?;
    let mut stack = vec![0; STACK];
    loop {
        let mut ready = [PollFd::new(&node, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(error) if error == rustix::io::Errno::INTR => continue,
            polled => polled?,
        };
        let [asked, ended] = ready.map(|ready| !ready.revents().is_empty());
        if ended {
            while children.read_signal()?.is_some() {}
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
        if asked {
            let Some((make, descriptors)) = wire::receive::<Make>(&node, RecvFlags::empty())? else { return Ok(()) };
            let [control] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
            let made = match make {
                Make::Jail { account, kind } => launch(account, kind, &control, &filter, &mut stack),
                Make::Users { account, users, groups } => map_owners(account, &users, &groups, &control, &mut stack),
            };
            if let Err(error) = made {
                // Sending fails if the node does not want the jail any more.
                let _ = wire::send(&control, &Event::Failed(error.to_string()), &[], SendFlags::empty());
            }
        }
    }
}

/// Starts a jail's first process.
fn launch(
    account: Option<u32>,
    kind: Kind,
    control: &OwnedFd,
    filter: &BpfProgram,
    stack: &mut [u8],
) -> Result<(), Unmade> {
    let (gate, opener) = pipe_with(PipeFlags::CLOEXEC).during("pipe")?;
    let first = || {
        let kept = [control.as_raw_fd(), gate.as_raw_fd()];
        // SAFETY: this is a copy of the jailer with one thread, and uses no descriptor but these
        // two from here on.
        #[expect(unsafe_code, reason = "the jailer's descriptors are nothing for a jail")]
        unsafe {
            close_fds::close_open_fds(3, &kept);
        }
        init::run(control, &gate, account.is_some(), kind, filter)
    };
    // SAFETY: without CLONE_VM the child has a copy of this process's memory, stack included. This
    // process has one thread, so no lock is held in the copy. The child never returns from
    // `init::run` but to end.
    #[expect(unsafe_code, reason = "a process in new namespaces cannot be made otherwise")]
    let child =
        as_owner(account, || unsafe { nix::sched::clone(Box::new(first), stack, NAMESPACES, Some(libc::SIGCHLD)) });
    let child = child.during("namespaces")?.as_raw();
    let pid = Pid::from_raw(child).ok_or(io::ErrorKind::NotFound).map_err(io::Error::from).during("namespaces")?;
    let born = Event::Born { pid: child.unsigned_abs() };
    // If any of this fails, the child sees that the gate is closed, and ends.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).during("pidfd")?;
    wire::send(control, &born, &[pidfd.as_fd()], SendFlags::empty()).during("the node's socket")?;
    map_ids(child, account, kind).during("user and group IDs")?;
    let mut opener = fs::File::from(opener);
    opener.write_all(&[1]).during("pipe")
}

/// Makes a user namespace that maps owners of files. A process holds it until the node has it.
fn map_owners(
    account: u32,
    users: &[(u32, u32)],
    groups: &[(u32, u32)],
    control: &OwnedFd,
    stack: &mut [u8],
) -> Result<(), Unmade> {
    let (gate, opener) = pipe_with(PipeFlags::CLOEXEC).during("pipe")?;
    let first = || {
        let kept = [gate.as_raw_fd()];
        // SAFETY: this is a copy of the jailer with one thread, and uses no descriptor but this one
        // from here on.
        #[expect(unsafe_code, reason = "otherwise it would hold the other end of the pipe")]
        unsafe {
            close_fds::close_open_fds(3, &kept);
        }
        // Returns when the jailer closes the pipe, or has ended.
        let _ = rustix::io::read(&gate, &mut [0]);
        0
    };
    // SAFETY: as in `launch`.
    #[expect(unsafe_code, reason = "a process in new namespaces cannot be made otherwise")]
    let child = as_owner(Some(account), || unsafe {
        nix::sched::clone(Box::new(first), stack, CloneFlags::CLONE_NEWUSER, Some(libc::SIGCHLD))
    });
    let child = child.during("namespaces")?.as_raw();
    for (file, ids) in [("uid_map", users), ("gid_map", groups)] {
        let lines: String = ids.iter().map(|(on_disk, machine)| format!("{on_disk} {machine} 1\n")).collect();
        fs::write(format!("/proc/{child}/{file}"), lines).during("user and group IDs")?;
    }
    let users = fs::File::open(format!("/proc/{child}/ns/user")).during("namespaces")?;
    wire::send(control, &Event::Users, &[users.as_fd()], SendFlags::empty()).during("the node's socket")?;
    drop(opener);
    Ok(())
}

/// Creates namespaces that belong to this account. The kernel also counts the objects of each user
/// (inotify instances and watches, namespaces, queued signals) for the owner of the user namespace.
/// If root were the owner, all jails together would share root's limits.
fn as_owner(
    account: Option<u32>,
    make: impl FnOnce() -> nix::Result<nix::unistd::Pid>,
) -> io::Result<nix::unistd::Pid> {
    let Some(account) = account else { return Ok(make()?) };
    set_effective_user(Uid::from_raw(account))?;
    let made = make();
    set_effective_user(Uid::ROOT)?;
    Ok(made?)
}

/// Sets the effective user of this process, which stays root and keeps its capabilities.
fn set_effective_user(user: Uid) -> io::Result<()> {
    rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    Ok(rustix::thread::set_thread_res_uid(Uid::ROOT, user, Uid::ROOT)?)
}

/// Maps the IDs of a jail to those of the machine.
fn map_ids(child: i32, account: Option<u32>, kind: Kind) -> io::Result<()> {
    let set = |file: &str, text: String| fs::write(format!("/proc/{child}/{file}"), text);
    let (user, group) = match account {
        Some(account) => (account, account),
        None => {
            // Otherwise a process could drop a group that denies access.
            set("setgroups", "deny".to_owned())?;
            (geteuid().as_raw(), getegid().as_raw())
        }
    };
    let (first, number) = match kind {
        Kind::Process => (USER, 1),
        Kind::Container => (0, CONTAINER_IDS),
    };
    set("uid_map", format!("{first} {user} {number}"))?;
    set("gid_map", format!("{first} {group} {number}"))
}
