//! Whether a node could enforce limits, found out without a change.

use super::legacy::Hierarchies;
use super::{LimitError, MEMBERS, offers_controllers, own_group, read};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::sync::Arc;

/// The version of control groups by which a node that starts here could enforce limits of
/// instances. Changes nothing.
///
/// # Errors
/// The reason why neither version works.
pub fn probe_limits() -> Result<u8, String> {
    match probe_current() {
        Ok(()) => Ok(2),
        Err(error) => match Hierarchies::probe() {
            Ok(()) => Ok(1),
            Err(other) => Err(error.and(other).to_string()),
        },
    }
}

fn probe_current() -> Result<(), LimitError> {
    let group = own_group().map_err(|error| LimitError::Io(error.into()))?;
    offers_controllers(&group)?;
    let file = |error: Errno| LimitError::file(&group)(error.into());
    access(&group, Access::WRITE_OK).map_err(file)?;
    // The kernel enables controllers only between groups without processes, apart from the first
    // group, which lacks this file. The node leaves its group, other processes do not.
    let is_first = !group.join("cgroup.type").exists();
    let members = read(&group.join(MEMBERS)).map_err(|error| LimitError::Io(error.into()))?;
    let own = std::process::id().to_string();
    match is_first || members.lines().all(|member| member == own) {
        true => Ok(()),
        false => Err(LimitError::Shared { parent: group.clone(), error: Arc::new(Errno::BUSY.into()) }),
    }
}
