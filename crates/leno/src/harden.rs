//! Protects this process from other processes of its account, and its descriptors and privileges
//! from the programs that it starts. This happens before any other thread exists.

use anyhow::{Context, Result, ensure};
use leno_supervisor::Accounts;
use rustix::process::{DumpableBehavior, geteuid};

/// No program that this process starts gains privileges by execve, and none inherits a descriptor.
/// Unless the process is debuggable, only root can read its memory or descriptors.
pub(crate) fn process(debuggable: bool) -> Result<()> {
    rustix::thread::set_no_new_privs(true).context("no_new_privs cannot be set")?;
    // Descriptors that the parent process left open. Descriptors opened by this process are never
    // inherited.
    close_fds::set_fds_cloexec(3, &[]);
    if !debuggable {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("this process cannot be made non-dumpable")?;
    }
    Ok(())
}

/// The accounts of the node's instances.
pub(crate) fn accounts(wanted: leno_model::Accounts, node_account: bool) -> Result<Accounts> {
    let root = geteuid().is_root();
    match wanted {
        leno_model::Accounts::PerNamespace { first, .. } if root && !node_account => {
            tracing::info!("instances without a jail: each namespace has an account of its own, from {first} on");
            Ok(Accounts::per_namespace(first))
        }
        leno_model::Accounts::PerNamespace { required, .. } => {
            ensure!(
                !required || node_account,
                "only root can give each namespace an account of its own: run leno as root, or set `instances: {{accounts: node}}` in the Mesh document"
            );
            tracing::info!(
                "instances without a jail run under the account of the node, and can read each other's memory and files"
            );
            Ok(Accounts::node())
        }
        leno_model::Accounts::Node => Ok(Accounts::node()),
    }
}
