//! Keeps this process from others of its account, and what it starts from what it has. Before any other thread exists.

use anyhow::{Context, Result, ensure};
use leno_supervisor::Accounts;
use rustix::process::{DumpableBehavior, geteuid};

/// No program that is started from here on gains rights by being executed, and none inherits a descriptor. Unless it is to be debugged,
/// nobody but root reads this process's memory or descriptors.
pub(crate) fn process(debuggable: bool) -> Result<()> {
    rustix::thread::set_no_new_privs(true).context("no_new_privs cannot be set")?;
    // Those that whoever started this process left open: what is opened here is never inherited.
    close_fds::set_fds_cloexec(3, &[]);
    if !debuggable {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("this process cannot be made non-dumpable")?;
    }
    Ok(())
}

/// Under which accounts instances run here.
pub(crate) fn accounts(wanted: leno_model::Accounts, node_account: bool) -> Result<Accounts> {
    let root = geteuid().is_root();
    match wanted {
        leno_model::Accounts::PerNamespace { first, .. } if root && !node_account => {
            tracing::info!("instances without a room: each namespace has an account of its own, from {first} on");
            Ok(Accounts::per_namespace(first))
        }
        leno_model::Accounts::PerNamespace { required, .. } => {
            ensure!(
                !required || node_account,
                "only root can give each namespace an account of its own: run leno as root, or set `instances: {{accounts: node}}` in the Mesh document"
            );
            tracing::info!(
                "instances without a room run under the account of the node, and can read each other's memory and files"
            );
            Ok(Accounts::node())
        }
        leno_model::Accounts::Node => Ok(Accounts::node()),
    }
}
