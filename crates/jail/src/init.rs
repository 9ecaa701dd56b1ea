//! The first process of a jail. It sets up the jail, waits for a program, starts it, and stays. The
//! kernel ends a jail with its first process, so the jail ends when the program does, when the node
//! closes its socket, or when the jailer ends.

use crate::filter::{self, Call, Listener, RecordLocks, RefusedCall};
use crate::rights::{self, give_up_rights, limit};
use crate::step::{During, Unmade};
use crate::view::At;
use crate::wire::{self, ContainerTask, Event, Kind, MOST_DESCRIPTORS, Order, Task};
use crate::{children, contained, network, root, shown, view};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Resource, Signal, WaitOptions, setrlimit, wait};
use rustix::thread::{Gid, Uid};
use seccompiler::BpfProgram;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// User and group ID of a jail's processes, as they see it, unless it is for a container.
pub const USER: u32 = 1000;
/// How many times the node hears that a program listens. It asks now and then, too.
const MAX_LISTENS: u32 = 64;
/// Longest [`Task`] or [`ContainerTask`], in bytes.
const LONGEST_TASK: u64 = 8 << 20;

/// Longest reason why something is not started, in characters. It has to fit a message.
const LONGEST_REASON: usize = 500;

/// A program that runs in the jail.
struct Program {
    pid: Pid,
    end: End,
    calls: Listener,
}

/// The way to ask a program to end.
enum End {
    /// With SIGTERM to its process group.
    Group,
    /// With the signal of this number, to it alone.
    Alone(i32),
}

/// Runs a jail's first process. `gate` becomes readable when the jail's IDs are mapped.
/// `has_account`: the node is root, and has given the jail IDs that it shares with no other.
/// Returns when the jail is to end.
pub(crate) fn run(control: &OwnedFd, gate: &OwnedFd, has_account: bool, kind: Kind, filter: &BpfProgram) -> isize {
    match prepare(gate, has_account, kind).and_then(|JailSetup { sockets, shared, children }| {
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        wire::send(control, &Event::Made { shared }, &sockets, SendFlags::empty()).during("the node's socket")?;
        Ok(children)
    }) {
        Ok(children) => {
            // An error means that the node is gone.
            let _ = live(control, &children, has_account, filter);
        }
        Err(error) => drop(wire::send(control, &Event::Failed(error.to_string()), &[], SendFlags::empty())),
    }
    0
}

/// A jail that is set up.
struct JailSetup {
    /// Its listening sockets, and a descriptor of its network.
    sockets: [OwnedFd; 4],
    /// The reason why it shares inodes of the machine's files with other jails, if it does.
    shared: Option<String>,
    /// Readable when a child has ended.
    children: SignalFd,
}

/// Sets up the jail.
fn prepare(gate: &OwnedFd, has_account: bool, kind: Kind) -> Result<JailSetup, Unmade> {
    let mut opened = [0];
    if rustix::io::read(gate, &mut opened).during("pipe")? == 0 {
        return Err(io::Error::other("the jailer could not map them")).during("user and group IDs");
    }
    if has_account {
        become_user(match kind {
            Kind::Process => USER,
            Kind::Container => 0,
        })
        .during("user and group IDs")?;
    }
    // The kernel schedules by session, too. This one is separate from the node's, and no process of
    // the program can join it.
    rustix::process::setsid().during("its session")?;
    // Set only here, because a change of the user resets it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during("the jailer")?;
    // No process of the same account may look into this process, from outside the jail or from
    // inside.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).during("dumpable")?;
    if !filter::is_supported() {
        return Err(io::Error::from(io::ErrorKind::Unsupported)).during("system calls that a process answers");
    }
    network::connect().during("the network")?;
    let sockets = [
        network::http().during("port 80")?,
        network::calls().during("port 1")?,
        network::names().during("port 53")?,
        rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during("its network")?,
    ];
    let shared = view::prepare(kind, !has_account).during("the file system")?;
    bound_counts().during("the kernel's counts")?;
    network::open_low_ports().during("ports below 1024")?;
    if kind == Kind::Container {
        root::prepare().during("the container's file system")?;
    }
    Ok(JailSetup { sockets, shared, children: children::ended().during("signals")? })
}

/// Limits the objects that the kernel counts for each user of the jail, besides its counts for the
/// account on the machine. Each watch keeps a file of the machine in the kernel's memory.
fn bound_counts() -> io::Result<()> {
    for (name, most) in [("max_inotify_instances", 128), ("max_inotify_watches", 16_384), ("max_user_namespaces", 0)] {
        let file = format!("/proc/sys/user/{name}");
        match fs::write(&file, most.to_string()) {
            // The kernel does not have this kind of object, so there is nothing to limit.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written.at(file)?,
        }
    }
    Ok(())
}

fn become_user(number: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
}

/// Waits for a program and runs it. Returns when the jail is to end.
fn live(control: &OwnedFd, children: &SignalFd, has_account: bool, filter: &BpfProgram) -> io::Result<()> {
    while let Some((order, descriptors)) = receive(control)? {
        let started = match order {
            Order::Run => start(descriptors, has_account, filter),
            Order::Contain => contain(descriptors, filter),
            Order::Sockets(number) => {
                supply(control, number)?;
                continue;
            }
            Order::UnixSocket => {
                supply_rare(control, network::unix())?;
                continue;
            }
            Order::Ipv6Socket => {
                supply_rare(control, network::tcp6())?;
                continue;
            }
            Order::Terminate => return Ok(()),
        };
        return match started {
            Ok(program) => attend(control, children, &program),
            Err(error) => {
                // An error may name a path, and the path may be long.
                let reason = error.to_string().chars().take(LONGEST_REASON).collect();
                wire::send(control, &Event::NotStarted(reason), &[], SendFlags::empty())
            }
        };
    }
    Ok(())
}

fn receive(control: &OwnedFd) -> io::Result<Option<(Order, Vec<OwnedFd>)>> {
    loop {
        match wire::receive(control, RecvFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// Starts the program. The descriptors are those of [`Order::Run`].
fn start(descriptors: Vec<OwnedFd>, has_account: bool, filter: &BpfProgram) -> Result<Program, Unmade> {
    let mut descriptors = descriptors.into_iter();
    let (Some(task), Some(output), Some(errors)) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidData)).during("the task");
    };
    let mounts: Vec<OwnedFd> = descriptors.collect();
    let task: Task = read(task).during("the task")?;
    rustix::system::sethostname(task.hostname.as_bytes()).during("the host name")?;
    let mounts = if has_account {
        mounts
    } else {
        let real: Vec<PathBuf> = task.visible.iter().map(|(real, _)| real.clone()).collect();
        let mut mounts = shown::mounts(Path::new(view::HOST), &real).during("the file system")?;
        for (folder, _) in &task.folders {
            mounts.push(view::folder_on_host(folder).during("the file system")?);
        }
        mounts
    };
    view::name_host(&task.hostname).during("the host name")?;
    view::complete(&task, &mounts, !has_account).during("the file system")?;
    drop(mounts);
    // The node has put this process into the control groups in which the program stays. The
    // namespace hides their names: the program sees them as the root.
    unshare(CloneFlags::CLONE_NEWCGROUP).during("the control group")?;
    give_up_rights().during("capabilities")?;
    let calls = Listener::install(filter).during("the filter of system calls")?;

    let mut command = Command::new(&task.executable);
    if let Some((name, arguments)) = task.argv.split_first() {
        command.arg0(name).args(arguments);
    }
    command
        .current_dir(&task.directory)
        .env_clear()
        .envs(&task.environment)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    let descriptors = task.descriptors.map(|descriptors| limit(descriptors, has_account));
    let processes = rights::processes(task.processes);
    #[expect(unsafe_code, reason = "what this process blocks, its session, and its limits, are not for the program")]
    // SAFETY: between fork and exec this makes a few system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            setrlimit(Resource::Nproc, processes)?;
            rights::LIMITS
                .iter()
                .try_for_each(|(resource, most)| setrlimit(*resource, rights::at_most(*resource, *most)))?;
            descriptors.map_or(Ok(()), |limit| Ok(setrlimit(Resource::Nofile, limit)?))
        });
    }
    let child = command.spawn().during("the program")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::NotFound).map_err(io::Error::from).during("the program")?;
    Ok(Program { pid, end: End::Group, calls })
}

/// Starts a container. The descriptors are those of [`Order::Contain`].
fn contain(descriptors: Vec<OwnedFd>, filter: &BpfProgram) -> Result<Program, Unmade> {
    let mut descriptors = descriptors.into_iter();
    let (Some(task), Some(output), Some(errors)) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidData)).during("the task");
    };
    let mounts: Vec<OwnedFd> = descriptors.collect();
    let task: ContainerTask = read(task).during("the task")?;
    rustix::system::sethostname(task.hostname.as_bytes()).during("the host name")?;
    unshare(CloneFlags::CLONE_NEWCGROUP).during("the control group")?;
    let (pid, calls) = contained::start(&task, mounts, output, errors, filter)?;
    Ok(Program { pid, end: End::Alone(task.stop_signal), calls })
}

fn read<T: DeserializeOwned>(task: OwnedFd) -> io::Result<T> {
    let mut bytes = Vec::new();
    File::from(task).take(LONGEST_TASK).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Supervises a running program until the jail is to end.
fn attend(control: &OwnedFd, children: &SignalFd, program: &Program) -> io::Result<()> {
    wire::send(control, &Event::Started, &[], SendFlags::empty())?;
    let (mut told, mut locks, mut listens) = (BTreeSet::new(), RecordLocks::default(), 0);
    loop {
        let mut ready = [
            PollFd::new(control, PollFlags::IN),
            PollFd::new(children, PollFlags::IN),
            PollFd::new(&program.calls, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [ordered, ended, called] = ready.map(|ready| !ready.revents().is_empty());
        if called {
            match program.calls.answer(&mut locks)? {
                Call::Admitted => {}
                Call::Listen if listens == MAX_LISTENS => {}
                Call::Listen => {
                    listens += 1;
                    wire::send(control, &Event::Listens, &[], SendFlags::empty())?;
                }
                Call::Refused(refused) => refuse(control, refused, &mut told)?,
            }
        }
        if ended {
            while children.read_signal()?.is_some() {}
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if pid == program.pid {
                    return wire::send(control, &Event::Ended(status.as_raw()), &[], SendFlags::empty());
                }
            }
        }
        if ordered {
            match receive(control)? {
                Some((Order::Sockets(number), _)) => supply(control, number)?,
                Some((Order::UnixSocket, _)) => supply_rare(control, network::unix())?,
                Some((Order::Ipv6Socket, _)) => supply_rare(control, network::tcp6())?,
                // This fails if the program has just ended.
                Some((Order::Terminate, _)) => drop(program.ask_to_end()),
                Some((Order::Run | Order::Contain, _)) | None => return Ok(()),
            }
        }
    }
}

impl Program {
    fn ask_to_end(&self) -> io::Result<()> {
        match self.end {
            End::Group => Ok(rustix::process::kill_process_group(self.pid, Signal::TERM)?),
            End::Alone(signal) => {
                // SAFETY: this reads and writes no memory.
                #[expect(unsafe_code, reason = "libraries have no type for real-time signals")]
                let result = unsafe { libc::kill(self.pid.as_raw_nonzero().get(), signal) };
                if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            }
        }
    }
}

/// Refuses a call, and kills the process if the call is one that ends it. Reports each kind of call
/// to the node once: a program must not be able to fill the node's log.
fn refuse(
    control: &OwnedFd,
    RefusedCall { call, program, thread, kill }: RefusedCall,
    told: &mut BTreeSet<String>,
) -> io::Result<()> {
    // The report goes first, because the node may end the jail as soon as it sees that the process
    // has ended. Meanwhile the process is blocked in its call.
    let sent = match told.insert(call.clone()) {
        true => wire::send(control, &Event::Refused { call, program, killed: kill }, &[], SendFlags::empty()),
        false => Ok(()),
    };
    if kill && let Some(pid) = i32::try_from(thread).ok().and_then(Pid::from_raw) {
        // A thread's number is as good as its process's. It fails if the process has ended.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    sent
}

fn supply(control: &OwnedFd, number: u8) -> io::Result<()> {
    let number = usize::from(number).min(MOST_DESCRIPTORS);
    let sockets: Vec<OwnedFd> = (0..number).filter_map(|_| network::tcp().ok()).collect();
    send_sockets(control, &Event::Sockets, &sockets)
}

fn supply_rare(control: &OwnedFd, socket: io::Result<OwnedFd>) -> io::Result<()> {
    send_sockets(control, &Event::RareSocket, socket.ok().as_slice())
}

fn send_sockets(control: &OwnedFd, event: &Event, sockets: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    match wire::send(control, event, &borrowed, SendFlags::empty()) {
        // The account has reached its limit on descriptors in transit. That must not end the jail.
        Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            wire::send(control, event, &[], SendFlags::empty())
        }
        sent => sent,
    }
}
