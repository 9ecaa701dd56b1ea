//! Which core a process runs on.

use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::process::Command;

/// The two cores of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// The proxy's own.
    pub proxy: usize,
    /// Everything else's: load, upstream, sinks, and this process.
    pub load: usize,
}

impl Cores {
    /// The last two that this process may use; and from now on it uses the second of them only.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        ensure!(cores.len() >= 2, "a measurement needs two cores: one for the proxy, one for everything else");
        let cores = Self { proxy: cores[cores.len() - 1], load: cores[cores.len() - 2] };
        sched_setaffinity(None, &only(cores.load))?;
        Ok(cores)
    }

    /// Starts a process on the proxy's core. Its children stay there.
    pub(crate) fn spawn_proxy<T>(
        self,
        command: &mut Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<T>,
    ) -> anyhow::Result<T> {
        // A child inherits the affinity of the thread that starts it, before it starts threads
        // itself.
        sched_setaffinity(None, &only(self.proxy))?;
        let child = spawn(command);
        sched_setaffinity(None, &only(self.load))?;
        child.with_context(|| format!("{} cannot be started", command.get_program().display()))
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}
