//! One process group: the child that the node starts, and whatever that starts in turn.

use crate::orphans;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, ChildStderr, ChildStdout};

use leno_config::slice::{Command, Process, Resources, Secret};
use std::collections::BTreeMap;

/// A killed group may take a moment to vanish; after this it is left to the kernel.
const VANISH: Duration = Duration::from_millis(500);

/// What is to be started, whether it is to serve or to end.
#[derive(Clone, Copy)]
pub(crate) struct Program<'a> {
    pub argv: &'a [String],
    pub directory: &'a Path,
    pub env: &'a BTreeMap<String, String>,
    pub secrets: &'a [Secret],
    pub resources: &'a Resources,
}

impl<'a> From<&'a Command> for Program<'a> {
    fn from(Command { argv, directory, env, secrets, resources, .. }: &'a Command) -> Self {
        Self { argv, directory, env, secrets, resources }
    }
}

impl<'a> From<&'a Process> for Program<'a> {
    fn from(Process { argv, directory, env, secrets, resources, .. }: &'a Process) -> Self {
        Self { argv, directory, env, secrets, resources }
    }
}

/// A running child and its group. Dropping it kills the group.
pub(crate) struct ProcessGroup {
    child: Child,
    /// Readable when the child has exited. Asking this instead of `Child::wait` leaves it unreaped, so its number, which is also
    /// the group's, cannot be given to a stranger while signals are still sent to it.
    exited: AsyncFd<OwnedFd>,
    pid: Pid,
    reaped: bool,
}

/// Standard output and standard error.
pub(crate) struct Output {
    pub out: Option<ChildStdout>,
    pub err: Option<ChildStderr>,
}

impl ProcessGroup {
    /// Starts the program with nothing from the node's own environment but `PATH`. In `given`, later entries win, and all of
    /// them win over what the function's author configured.
    /// With `group`, the file of a control group that lists its members, it is in that group before the program begins. With `account`, it
    /// runs as this user, with this group and no other. `descriptors` is its soft limit on file descriptors; without it, the node's.
    pub(crate) fn start(
        program: &Program<'_>,
        instance: &str,
        given: &[(String, String)],
        group: Option<&Path>,
        account: Option<u32>,
        descriptors: Option<u64>,
    ) -> std::io::Result<(Self, Output)> {
        let (name, arguments) = program
            .argv
            .split_first()
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "the command is empty"))?;
        let executable = located(name, program.directory);
        let mut child = match group {
            None => tokio::process::Command::new(executable),
            // Between fork and exec only unsafe code could join. The node opens the file, because the kernel asks whether who opened it may
            // join, and the instance's account may not.
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
        if let Some(account) = account {
            child.uid(account).gid(account);
        }
        child
            .args(arguments)
            .current_dir(program.directory)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(program.env)
            .envs(given.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = orphans::start(instance, || {
            let child = child.spawn()?;
            Ok((child.id().unwrap_or_default(), child))
        })?;
        let output = Output { out: child.stdout.take(), err: child.stderr.take() };
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| std::io::Error::other("the child has no process number"))?;
        if let Some(descriptors) = descriptors {
            let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
            // One that has ended by now needs none.
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

    /// Waits until the child (the group's leader) has exited. May be called again, and dropped at any time.
    pub(crate) async fn exited(&self) {
        // An error can only mean that the runtime is shutting down; then nobody waits for the answer.
        let _ = self.exited.readable().await.map(|mut ready| ready.retain_ready());
    }

    /// Asks the whole group to end.
    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends the whole group, by force, and waits until it is gone.
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

    /// SIGTERM, SIGKILL after the grace period or when `kill` resolves, whichever is first.
    pub(crate) async fn finish(self, grace: Duration, kill: impl Future<Output = ()>) {
        self.terminate();
        tokio::select! {
            () = self.exited() => {}
            () = tokio::time::sleep(grace) => {}
            () = kill => {}
        }
        // The exit status of something that was told to end tells nothing.
        let _ = self.end().await;
    }

    fn signal(&self, signal: Signal) {
        if !self.reaped {
            // It fails if the group is gone, which is what is wanted.
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

/// A relative path means: relative to the program's directory. A bare name is looked up in `PATH`.
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
