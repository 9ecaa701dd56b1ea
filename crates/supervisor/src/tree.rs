//! A process and its descendants, which end together: a process group, or a jail.

use crate::process::ProcessGroup;
use leno_jail::Jail;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// Dropping it kills all its processes.
pub(crate) enum ProcessTree {
    Group(ProcessGroup),
    Jail(Jail),
}

impl ProcessTree {
    /// ID of the first process.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Group(group) => group.pid(),
            Self::Jail(jail) => jail.pid(),
        }
    }

    /// Waits until the program has exited. It can be called again, and is cancel-safe.
    pub(crate) async fn exited(&self) {
        match self {
            Self::Group(group) => group.exited().await,
            Self::Jail(jail) => jail.exited().await,
        }
    }

    /// Kills all its processes and waits until they are gone. Returns the program's exit status.
    pub(crate) async fn end(self) -> io::Result<ExitStatus> {
        match self {
            Self::Group(group) => group.end().await,
            Self::Jail(jail) => Ok(ExitStatus::from_raw(jail.end().await.0)),
        }
    }

    /// Sends SIGTERM. Sends SIGKILL when the program has exited, after the grace period, or when `kill` resolves, whichever is first.
    pub(crate) async fn finish(self, grace: Duration, kill: impl Future<Output = ()>) {
        match &self {
            Self::Group(group) => group.terminate(),
            Self::Jail(jail) => jail.terminate(),
        }
        tokio::select! {
            () = self.exited() => {}
            () = tokio::time::sleep(grace) => {}
            () = kill => {}
        }
        // The exit status of a stopped process has no meaning.
        let _ = self.end().await;
    }
}
