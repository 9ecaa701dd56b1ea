//! A jail, seen from the node.

mod dialer;
mod refusals;
mod state;

pub use dialer::JailDialer;
pub use refusals::{Refusals, SyscallRefusal};

use crate::account::Account;
use crate::container::{self, Container, ContainerPlan};
use crate::error::{JailError, LONGEST, bad};
use crate::host::Owners;
use crate::program::{Program, prepared};
use crate::wire::{self, Event, Kind, Order};
use leno_files::readers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, MemfdFlags, fchown, fstat, memfd_create};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Gid, Signal, Uid, pidfd_send_signal};
use serde::Serialize;
use state::JailState;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Once};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// The sockets in a jail at which its calls arrive. Every caller on them is in the jail.
#[derive(Debug)]
pub struct JailListeners {
    /// Connections to port 80 of any address, or to any port (see [`Prepare`]). Their local address
    /// is the called address.
    pub http: TcpListener,
    /// DNS queries.
    pub names: UdpSocket,
    /// The value that [`Prepare`] returned.
    pub guard: Option<ListenerGuard>,
}

/// A value that is held as long as a jail's sockets are served. The mutex only makes it `Sync`, and
/// is never locked.
pub struct ListenerGuard(#[expect(dead_code, reason = "kept for what its drop does")] Mutex<Box<dyn Send>>);

impl ListenerGuard {
    /// Holds this value.
    pub fn new(held: impl Send + 'static) -> Self {
        Self(Mutex::new(Box::new(held)))
    }
}

impl std::fmt::Debug for ListenerGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ListenerGuard")
    }
}

/// Called with the sockets of each new jail and a descriptor of its network namespace, ahead of
/// need, to have connections to every port arrive at them. Without a guard, those to port 80 arrive.
/// It may block.
pub type Prepare = Arc<dyn Fn(&JailListeners, BorrowedFd<'_>) -> Option<ListenerGuard> + Send + Sync>;

/// How a program ended, in the form of `wait(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub i32);

impl Exit {
    /// The exit status of a jail that ended before its program reported one.
    const KILLED: Self = Self(9);
}

/// A jail. Dropping it ends it.
#[derive(Debug)]
pub struct Jail {
    shared: Arc<JailState>,
    /// A pidfd of the first process: readable when it, and with it everything in the jail, has
    /// ended.
    first: AsyncFd<WatchedFd>,
    pid: u32,
    state: watch::Receiver<ProgramState>,
    listeners: Option<JailListeners>,
    kind: Kind,
    owners: Owners,
}

/// A descriptor that an async runtime watches. It is never replaced, as `AsyncFd` requires.
#[derive(Debug)]
struct WatchedFd(OwnedFd);

impl AsRawFd for WatchedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ProgramState {
    Waiting,
    Running,
    Ended {
        /// The program ran.
        started: bool,
        exit: Option<Exit>,
        reason: Option<String>,
    },
}

impl Jail {
    /// Waits until a new jail is ready. `control` is the node's end of its socket.
    pub(crate) async fn set_up(
        control: OwnedFd,
        account: Option<Account>,
        prepare: Option<Prepare>,
        kind: Kind,
        owners: Owners,
    ) -> Result<Self, JailError> {
        let watched = watch(control.try_clone()?)?;
        let (pid, first) = match next(&watched).await? {
            (Event::Born { pid }, descriptors) => (pid, one(descriptors)?),
            (other, _) => return Err(set_up_error(other)),
        };
        let (at_80, mut listeners, network) = match next(&watched).await? {
            (Event::Made { shared }, descriptors) => {
                if let Some(reason) = shared {
                    files_are_shared(&reason);
                }
                let [http, calls, names, network] =
                    <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| JailError::from(io::ErrorKind::InvalidData))?;
                (http, JailListeners { http: calls.into(), names: names.into(), guard: None }, network)
            }
            (other, _) => return Err(set_up_error(other)),
        };
        if let Some(prepare) = prepare {
            let prepared = tokio::task::spawn_blocking(move || {
                listeners.guard = prepare(&listeners, network.as_fd());
                listeners
            });
            listeners = prepared.await.map_err(io::Error::other)?;
        }
        // The other listener is closed here, so its port is the program's.
        if listeners.guard.is_none() {
            listeners.http = at_80.into();
        }
        let node_port = listeners.http.local_addr()?.port();
        let (changes, state) = watch::channel(ProgramState::Waiting);
        let shared = Arc::new(JailState::new(control, node_port, account));
        tokio::spawn(listen(watched, Arc::downgrade(&shared), changes));
        shared.stock_up(0)?;
        Ok(Self { shared, first: watch(first)?, pid, state, listeners: Some(listeners), kind, owners })
    }

    /// Process ID of the jail's first process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The sockets at which calls from the jail arrive; `None`: they were taken already. While one
    /// of them is open, the jail's network remains.
    pub fn take_listeners(&mut self) -> Option<JailListeners> {
        self.listeners.take()
    }

    /// The port of the node's listener, which the program cannot have: 80, unless calls to every
    /// port are redirected to another one.
    pub fn node_port(&self) -> u16 {
        self.shared.node_port
    }

    /// Sets the receiver of refused system calls. It can be set once, before the program runs.
    pub fn report_refusals(&self, refusals: Refusals) {
        let _ = self.shared.refusals.set(refusals);
    }

    /// A way to connect to the program.
    pub fn dialer(&self) -> JailDialer {
        JailDialer::new(self.shared.clone())
    }

    /// Whether no program can be started here any more.
    pub(crate) fn is_over(&self) -> bool {
        // The task that reads its end may not have run yet.
        let mut ended = [PollFd::new(&self.first.get_ref().0, PollFlags::IN)];
        let has_ended = poll(&mut ended, Some(&Timespec::default())).is_ok_and(|number| number > 0);
        has_ended || *self.state.borrow() != ProgramState::Waiting
    }

    /// Runs the program, with these files as its standard output and standard error. If they are
    /// pipes, they become its user's. Returns when it runs, with the dependencies of the program that
    /// the jail lacks. If that fails, the jail ends.
    ///
    /// # Errors
    /// Names the path that cannot be shown or the program that cannot be started, and why.
    pub async fn run(&mut self, program: Program, output: OwnedFd, errors: OwnedFd) -> io::Result<Vec<String>> {
        if self.kind == Kind::Container {
            return Err(bad("this jail was made for a container".to_owned()));
        }
        let name = program.argv.first().cloned().unwrap_or_default();
        let account = match &self.shared.account {
            Some(account) => {
                give([&output, &errors], account.first)?;
                Some((account.first, self.users()?))
            }
            None => None,
        };
        let (namespace, owners) = (program.namespace.clone(), self.owners.clone());
        let prepared = readers::run(&namespace, readers::MAX_WAIT, move || Ok(prepared(program, account, &owners)));
        let (task, mounts, lacks) = prepared.await??;
        let Err(error) = self.begin(&name, &Order::Run, &task, output, errors, &mounts).await else {
            return Ok(lacks);
        };
        let text = error.to_string();
        let hint = if text.contains("os error 2)") || text.contains("os error 13)") {
            "; a jail shows /usr, the function's folder and its `readOnlyPaths`, and what others than their owner may read there"
        } else {
            ""
        };
        Err(io::Error::new(error.kind(), format!("`{name}` in {}: {text}{hint}", task.directory.display())))
    }

    /// Runs a container, with these files as its standard output and standard error. If they are
    /// pipes, they become its user's. The jail has to come from
    /// [`crate::Jails::take_for_container`]. Returns when the container's program runs. If that
    /// fails, the jail ends.
    ///
    /// # Errors
    /// Names the missing part of the image or of the machine.
    pub async fn contain(&mut self, container: Container, output: OwnedFd, errors: OwnedFd) -> io::Result<()> {
        let (Kind::Container, Some(account)) = (self.kind, self.shared.account.as_ref()) else {
            return Err(bad("this jail was not made for a container".to_owned()));
        };
        let namespace = container.namespace.clone();
        let (owner, users, folders) = (account.first, self.users()?, container.folders.clone());
        let (visible, host, owners) = (container.visible.clone(), container.host.clone(), self.owners.clone());
        let prepared = ContainerPlan::new(container)?;
        give([&output, &errors], owner)?;
        let shown =
            readers::run(&namespace, readers::MAX_WAIT, move || Ok(container::shown(&visible, owner))).await??;
        let mounted = tokio::task::spawn_blocking(move || {
            let folders = container::folders(&folders, users.as_fd())?;
            let root = prepared.mount(users, owner)?;
            let user = prepared.user(&root, owner)?;
            Ok::<_, io::Error>((prepared, root, folders, user))
        });
        let (mut prepared, root, folders, user) = mounted.await.map_err(io::Error::other)??;
        let host = readers::run(&namespace, readers::MAX_WAIT, move || Ok(owners.mounts(&host, user))).await??;
        let mounts = prepared.arranged(root, shown, folders, host);
        let name = prepared.task.argv.first().map_or("", String::as_str);
        let begun = self.begin(name, &Order::Contain, &prepared.task, output, errors, &mounts).await;
        begun.map_err(|error| io::Error::new(error.kind(), format!("`{name}`: {error}")))
    }

    /// The jail's user namespace.
    fn users(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/{}/ns/user", self.pid))?.into())
    }

    /// Sends an order to run a program, and waits until it runs.
    async fn begin(
        &mut self,
        name: &str,
        order: &Order,
        task: &impl Serialize,
        output: OwnedFd,
        errors: OwnedFd,
        mounts: &[OwnedFd],
    ) -> io::Result<()> {
        let bytes = postcard::to_stdvec(task).map_err(io::Error::other)?;
        let mut file = File::from(memfd_create("task", MemfdFlags::CLOEXEC)?);
        file.write_all(&bytes)?;
        file.rewind()?;
        let mut descriptors = vec![file.as_fd(), output.as_fd(), errors.as_fd()];
        descriptors.extend(mounts.iter().map(AsFd::as_fd));
        wire::send(&self.shared.control, order, &descriptors, SendFlags::DONTWAIT)?;
        let state = tokio::time::timeout(LONGEST, self.state.wait_for(|state| *state != ProgramState::Waiting)).await;
        let Ok(state) = state else {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("`{name}` was not started within {LONGEST:?}"),
            ));
        };
        match state.as_deref() {
            // The program may have ended before this task ran.
            Ok(ProgramState::Running | ProgramState::Ended { started: true, .. }) => Ok(()),
            Ok(ProgramState::Ended { reason: Some(reason), .. }) => Err(io::Error::other(reason.clone())),
            _ => Err(io::Error::other("its jail has ended")),
        }
    }

    /// Asks the program to end: with SIGTERM to its process group, or with the image's stop signal to a container's program.
    pub fn terminate(&self) {
        // This fails if the jail has ended, which does not matter.
        let _ = self.shared.order(&Order::Terminate);
    }

    /// Waits until the program has ended, or the jail. It can be called again, and is cancel-safe.
    pub async fn exited(&self) {
        let _ = self.state.clone().wait_for(|state| matches!(state, ProgramState::Ended { .. })).await;
    }

    /// Kills all processes in the jail and waits until it is gone. Returns how the program ended.
    pub async fn end(self) -> Exit {
        self.kill();
        // An error can only mean that the async runtime is shutting down. Then no caller waits for
        // the result.
        let _ = self.first.readable().await.map(|mut ready| ready.retain_ready());
        let mut state = self.state.clone();
        // The last message may not have been read yet.
        let state = state.wait_for(|state| matches!(state, ProgramState::Ended { .. })).await;
        match state.as_deref() {
            Ok(ProgramState::Ended { exit: Some(exit), .. }) => *exit,
            _ => Exit::KILLED,
        }
    }

    fn kill(&self) {
        // This fails if the jail has ended, which does not matter.
        let _ = pidfd_send_signal(&self.first.get_ref().0, Signal::KILL);
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads the events of a jail until it has ended.
async fn listen(control: AsyncFd<WatchedFd>, shared: std::sync::Weak<JailState>, state: watch::Sender<ProgramState>) {
    let (mut started, mut exit, mut reason) = (false, None, None);
    // An error means that the jail is gone.
    while let Ok((event, descriptors)) = next(&control).await {
        match event {
            Event::Sockets => {
                let Some(shared) = shared.upgrade() else { break };
                shared.arrived(descriptors);
            }
            Event::RareSocket => {
                let Some(shared) = shared.upgrade() else { break };
                shared.rare_arrived(descriptors.into_iter().next());
            }
            Event::Listens => {
                let Some(shared) = shared.upgrade() else { break };
                shared.listens.notify_one();
            }
            Event::Started => {
                started = true;
                state.send_replace(ProgramState::Running);
            }
            Event::Refused { call, program, killed } => {
                if let Some(refusals) = shared.upgrade().as_ref().and_then(|shared| shared.refusals.get()) {
                    refusals.report(SyscallRefusal { call, program, killed });
                }
            }
            Event::Ended(status) => exit = Some(Exit(status)),
            Event::NotStarted(why) | Event::Failed(why) => reason = Some(why),
            Event::Born { .. } | Event::Made { .. } | Event::Users => {}
        }
    }
    state.send_replace(ProgramState::Ended { started, exit, reason });
    if let Some(shared) = shared.upgrade() {
        shared.close();
    }
}

#[expect(deprecated, reason = "its successor is unsafe to call; what that asks for, `OwnedFd` guarantees")]
fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<WatchedFd>> {
    AsyncFd::with_interest(WatchedFd(descriptor), Interest::READABLE)
}

/// Receives the next event of a jail.
async fn next(control: &AsyncFd<WatchedFd>) -> io::Result<(Event, Vec<OwnedFd>)> {
    let receive = |control: &WatchedFd| wire::receive(&control.0, RecvFlags::DONTWAIT);
    control.async_io(Interest::READABLE, receive).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Logs once that jails share inodes of the machine's files.
fn files_are_shared(reason: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!("locks and watches that a jail has on files of the machine are seen in other jails: {reason}");
    });
}

/// Gives pipes to an account, so that its program can open `/dev/stdout` and `/dev/stderr`, to which
/// servers write their logs.
fn give(pipes: [&OwnedFd; 2], account: u32) -> io::Result<()> {
    for pipe in pipes {
        if FileType::from_raw_mode(fstat(pipe)?.st_mode) == FileType::Fifo {
            fchown(pipe, Some(Uid::from_raw(account)), Some(Gid::from_raw(account)))?;
        }
    }
    Ok(())
}

fn one(descriptors: Vec<OwnedFd>) -> io::Result<OwnedFd> {
    let [one] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(one)
}

fn set_up_error(event: Event) -> JailError {
    match event {
        Event::Failed(reason) => JailError::Unmade(reason),
        _ => io::Error::from(io::ErrorKind::InvalidData).into(),
    }
}
