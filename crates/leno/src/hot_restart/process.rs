//! Starts the child process of a hot restart, and transfers the node to it.

use super::{Program, TAKE_OVER};
use crate::notify;
use anyhow::{Result, anyhow, bail};
use leno_api::upgrade::{MAX_TIMEOUT, UpgradeRequest};
use leno_jail::Half;
use leno_node::{ChildLink, HotRestartOptions, Running, StateCheck};
use leno_supervisor::{Apart, end_orphans, start_apart, sweep_groups};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a rejected child has to end by itself. Its instances end with it.
const END: Duration = Duration::from_secs(5);

/// The parts of a parent that do not belong to `Running`.
pub(crate) struct ChildStarter {
    pub program: Program,
    /// The admin listener.
    pub admin: Vec<(String, OwnedFd)>,
    pub half: Half,
    pub descriptors: Option<u64>,
    /// Becomes true when the parent of this process has ended.
    pub alone: watch::Receiver<bool>,
}

/// State of this process beside the node's, which the child gets in descriptors.
#[derive(Default)]
pub(crate) struct TransferredState {
    pub descriptors: Vec<(String, OwnedFd)>,
    /// Whether it is still current.
    pub unchanged: Option<StateCheck>,
}

/// The child. Dropping this kills it, unless it has the node.
pub(crate) struct ChildProcess {
    child: Child,
    pid: u32,
    has_the_node: bool,
    /// Keeps the reaper of orphans away from it; `None`: for good.
    apart: Option<Apart>,
}

impl ChildStarter {
    /// Transfers the node to a new child. The error says why that failed; then nothing has changed.
    pub(crate) async fn upgrade(
        &mut self,
        running: &Running,
        request: &UpgradeRequest,
        state: TransferredState,
    ) -> Result<(ChildLink, ChildProcess)> {
        if request.timeout > MAX_TIMEOUT {
            bail!("{} s are no timeout of an upgrade; expected at most {MAX_TIMEOUT}", request.timeout);
        }
        let patience = Duration::from_secs(request.timeout);
        if let Some(obstacle) = obstacle().or_else(|| running.obstacle()) {
            bail!("{obstacle}");
        }
        let file = self.program.of_child(request.binary.as_deref())?;
        if timeout(patience, self.alone.wait_for(|alone| *alone)).await.is_err() {
            bail!("connections of the parent process are still open; try again later");
        }
        let failed = |error: io::Error| anyhow!("{} cannot be started: {error}", file.display());
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(&file);
        command.arg0(&self.program.name).args(&self.program.arguments).arg(TAKE_OVER).stdin(OwnedFd::from(theirs));
        let mut child = ChildProcess::start(&mut command).map_err(failed)?;
        // The other end must close with the child.
        command.stdin(Stdio::null());
        tracing::info!("hot restart: child process {} of {} is to take over", child.pid, file.display());
        let others = self.admin.iter().map(|(name, socket)| Ok((name.clone(), socket.try_clone()?)));
        let mut others = others.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let TransferredState { descriptors, unchanged } = state;
        others.extend(descriptors);
        let (half, descriptors) = (self.half, self.descriptors);
        let options = HotRestartOptions { others, half, descriptors, patience, unchanged };
        match running.offer(socket, options).await {
            Ok(link) => {
                child.has_the_node = true;
                notify::send(&format!("MAINPID={}", child.pid));
                Ok((link, child))
            }
            Err(reason) => {
                let ended = child.end().await;
                let status = ended.map(|status| format!(" ({status})")).unwrap_or_default();
                bail!("the child process was to take over, but {reason}{status}")
            }
        }
    }
}

impl ChildProcess {
    fn start(command: &mut Command) -> io::Result<Self> {
        let (child, apart) = start_apart(|| {
            let child = command.spawn()?;
            Ok((child.id().unwrap_or_default(), child))
        })?;
        let pid = child.id().unwrap_or_default();
        Ok(Self { child, pid, has_the_node: false, apart: Some(apart) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the child has ended by itself, or else kills it. Returns the status if it
    /// ended by itself.
    async fn end(&mut self) -> Option<ExitStatus> {
        let status = timeout(END, self.child.wait()).await.ok().and_then(Result::ok);
        if status.is_none() {
            self.kill();
            let _ = self.child.wait().await;
        }
        // This process is now the parent of all processes that the child had started.
        end_orphans().await;
        // If this fails, the next process cleans up its control group.
        let _ = tokio::task::spawn_blocking(sweep_groups).await;
        status
    }

    fn kill(&self) {
        // The process ID stays reserved until this process has waited for it.
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if self.has_the_node {
            // The reaper of orphans, which may still run in this process, must not take the child
            // for an orphan.
            std::mem::forget(self.apart.take());
        } else {
            self.kill();
        }
    }
}

/// The reason why a child would not outlive this process; `None`: it would.
fn obstacle() -> Option<String> {
    let own = std::process::id().to_string();
    if own == "1" {
        return Some(
            "this process is the first of its container, which ends with it; start another container".to_owned(),
        );
    }
    let is_service = std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|process| process == own);
    (is_service && !notify::is_possible()).then(|| {
        "systemd would end the child process together with this one: put `Type=notify` into the unit, and start it again"
            .to_owned()
    })
}
