//! What programs of a room may not do, and how many descriptors they may have.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// Gives up all capabilities for ever, this process's and those of what it starts.
pub(crate) fn give_up_rights() -> io::Result<()> {
    give_up_rights_but(CapabilitySet::empty())
}

/// Like [`give_up_rights`], but this process keeps some, and root's programs may have them.
pub(crate) fn give_up_rights_but(kept: CapabilitySet) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(kept).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know.
            Err(Errno::INVAL) => {}
            removed => removed?,
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let inheritable = CapabilitySet::empty();
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?)
}

/// The program's limit on file descriptors. Where the room shares its account with others, the hard limit is the soft one: how many descriptors an account
/// may have on their way in sockets is limited too, and the rooms' first processes need some.
pub(crate) fn limit(descriptors: u64, has_account: bool) -> Rlimit {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let soft = maximum.map_or(descriptors, |maximum| descriptors.min(maximum));
    Rlimit { current: Some(soft), maximum: if has_account { maximum } else { Some(soft) } }
}
