//! Keeps this process from others of its account, and what it starts from what it has. Before any other thread exists.

use anyhow::{Context, Result};
use rustix::process::DumpableBehavior;

/// No program that is started from here on gains rights by being executed, and none inherits a descriptor. Unless it is to be debugged,
/// nobody but root reads this process's memory or descriptors.
pub fn process(debuggable: bool) -> Result<()> {
    rustix::thread::set_no_new_privs(true).context("no_new_privs cannot be set")?;
    // Those that whoever started this process left open: what is opened here is never inherited.
    close_fds::set_fds_cloexec(3, &[]);
    if !debuggable {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("this process cannot be made non-dumpable")?;
    }
    Ok(())
}
