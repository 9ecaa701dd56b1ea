//! A process group: the child that the node starts, and its descendants.

use crate::container::RunnableContainer;
use crate::orphans;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::process::Child;

use leno_jail::WritableFolder;
use leno_model::{Command, Isolation, Process, Resources, Secret, Volume};
use std::collections::BTreeMap;

/// Longest wait for a killed group to vanish. After that it is left to the kernel.
const VANISH: Duration = Duration::from_millis(500);

/// The program of an instance or a job.
#[derive(Clone, Copy)]
pub(crate) struct Program<'a> {
    pub argv: &'a [String],
    pub directory: &'a Path,
    pub env: &'a BTreeMap<String, String>,
    pub secrets: &'a [Secret],
    pub resources: &'a Resources,
    pub isolation: Isolation,
    pub read_only_paths: &'a [PathBuf],
    /// Folders in memory.
    pub volumes: &'a [Volume],
    /// Folders of the machine that it can write to.
    pub folders: &'a [WritableFolder],
    /// The fixed port.
    pub port: Option<u16>,
    /// The container that runs in place of `argv`.
    pub container: Option<&'a RunnableContainer>,
}

impl<'a> Program<'a> {
    /// The same program, with the container that runs in its place.
    pub(crate) fn contained(self, container: Option<&'a RunnableContainer>) -> Self {
        Self { container, ..self }
    }
}

impl<'a> From<&'a Command> for Program<'a> {
    fn from(command: &'a Command) -> Self {
        let Command { argv, directory, env, secrets, resources, read_only_paths, volumes, .. } = command;
        let Command { isolation, port, .. } = *command;
        Self {
            argv,
            directory,
            env,
            secrets,
            resources,
            isolation,
            read_only_paths,
            volumes,
            folders: &[],
            port,
            container: None,
        }
    }
}

impl<'a> From<&'a Process> for Program<'a> {
    fn from(process: &'a Process) -> Self {
        let Process { argv, directory, env, secrets, resources, read_only_paths, volumes, .. } = process;
        let isolation = process.isolation;
        Self {
            argv,
            directory,
            env,
            secrets,
            resources,
            isolation,
            read_only_paths,
            volumes,
            folders: &[],
            port: None,
            container: None,
        }
    }
}

/// A running child and its group. Dropping it kills the group.
pub(crate) struct ProcessGroup {
    child: Child,
    /// A pidfd, readable when the child has exited. Unlike `Child::wait`, it leaves the child unreaped. So its process ID, which is also the group's,
    /// is not reused while signals may still be sent to it.
    exited: AsyncFd<OwnedFd>,
    pid: Pid,
    reaped: bool,
}

/// Standard output and standard error of a child.
pub(crate) struct Output {
    pub out: pipe::Receiver,
    pub err: pipe::Receiver,
}

impl ProcessGroup {
    /// Starts the program. Of the node's environment it inherits only `PATH`. In `given`, later
    /// entries win, and all of them win over the environment that the function's author configured.
    ///
    /// With `group`, the member list of a control group, the process joins that group before the
    /// program begins. With `account`, it runs as this user, with this group and no other, and all
    /// programs of that user together have at most `processes` processes and threads. `descriptors`
    /// is its soft limit on file descriptors; `None`: the node's.
    pub(crate) fn start(
        program: &Program<'_>,
        instance: &str,
        given: &[(String, String)],
        group: Option<&Path>,
        account: Option<u32>,
        descriptors: Option<u64>,
        processes: u32,
    ) -> std::io::Result<(Self, Output)> {
        let (name, arguments) = program
            .argv
            .split_first()
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "the command is empty"))?;
        let executable = located(name, program.directory);
        let mut child = match group {
            None => tokio::process::Command::new(executable),
            // A shell joins the group, because joining between fork and exec needs unsafe code. The node opens the file, because the kernel checks
            // the rights of the process that opened it, and the instance's account has none.
            Some(members) => {
                let members = std::fs::File::options().write(true).open(members)?;
                let mut shell = tokio::process::Command::new("/bin/sh");
                shell.args(["-c", "echo 0 >&0 && exec \"$@\" </dev/null", "sh"]).arg(executable);
                shell.stdin(members);
                shell
            }
        };
        if group.is_none() {
            child.stdin(Stdio::null());
        }
        let ((out, read_out), (err, read_err)) = (pipe::pipe()?, pipe::pipe()?);
        let (out, err) = (out.into_blocking_fd()?, err.into_blocking_fd()?);
        if let Some(account) = account {
            // So that it can open /dev/stdout and /dev/stderr, to which servers write their logs.
            std::os::unix::fs::fchown(&out, Some(account), Some(account))?;
            std::os::unix::fs::fchown(&err, Some(account), Some(account))?;
            child.uid(account).gid(account);
            leno_jail::limit_processes(child.as_std_mut(), processes);
        }
        child
            .args(arguments)
            .current_dir(program.directory)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(program.env)
            .envs(given.iter().map(|(name, value)| (name, value)))
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .kill_on_drop(true);
        let runtime = tokio::runtime::Handle::current();
        let child = orphans::start(instance, || {
            let child = leno_jail::start_without_core_dumps(|| {
                let _runtime = runtime.enter();
                child.spawn()
            })?;
            Ok((child.id().unwrap_or_default(), child))
        })?;
        let output = Output { out: read_out, err: read_err };
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| std::io::Error::other("the child has no process number"))?;
        if let Some(descriptors) = descriptors {
            let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
            // This fails if the process has ended, which does not matter.
            let _ = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(descriptors), maximum });
        }
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        #[expect(deprecated, reason = "its successor is unsafe to call; what that asks for, `OwnedFd` guarantees")]
        let exited = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
        Ok((Self { child, exited, pid, reaped: false }, output))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until the child, the group's leader, has exited. It can be called again, and is cancel-safe.
    pub(crate) async fn exited(&self) {
        // An error can only mean that the async runtime is shutting down. Then no caller waits for
        // the result.
        let _ = self.exited.readable().await.map(|mut ready| ready.retain_ready());
    }

    /// Sends SIGTERM to the whole group.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the whole group and waits until it is gone. Returns the leader's exit status.
    pub(crate) async fn end(mut self) -> std::io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        let status = self.child.wait().await;
        self.reaped = true;
        orphans::ended(self.pid());
        let vanished = async {
            while rustix::process::test_kill_process_group(self.pid).is_ok() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = tokio::time::timeout(VANISH, vanished).await;
        status
    }

    fn signal(&self, signal: Signal) {
        if !self.reaped {
            // This fails if the group is gone, which does not matter.
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        orphans::ended(self.pid());
    }
}

/// Resolves a relative path against the program's directory. A bare name is looked up in `PATH`.
fn located(name: &str, directory: &Path) -> OsString {
    if name.contains('/') { directory.join(name).into_os_string() } else { name.into() }
}

/// An exit status in words.
pub(crate) fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => format!("unknown exit status: {error}"),
    }
}
