//! Restrictions of a jail's programs, and their limit on descriptors.

use crate::{DEFAULT_PROCESSES, filter};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

/// Gives up all capabilities for ever, those of this process and of its future child processes.
pub(crate) fn give_up_rights() -> io::Result<()> {
    give_up_rights_but(CapabilitySet::empty(), CapabilitySet::empty())
}

/// Like [`give_up_rights`], but this process keeps some capabilities, and programs that root runs
/// may have those of `bounds`.
pub(crate) fn give_up_rights_but(bounds: CapabilitySet, kept: CapabilitySet) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(bounds).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // This kernel does not know the capability.
            Err(Errno::INVAL) => {}
            removed => removed?,
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    keep(kept)
}

/// Gives up all capabilities of this process but these.
pub(crate) fn keep(kept: CapabilitySet) -> io::Result<()> {
    let inheritable = CapabilitySet::empty();
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?)
}

/// Has the kernel make no core dumps of this process and of its child processes. With a limit of 1,
/// the kernel does not run a program that takes dumps (`|…` in `kernel.core_pattern`). That program
/// would run outside the jail, as root, on the memory of a tenant's program. With a limit of 0 the
/// kernel runs it.
///
/// # Errors
/// The hard limit is 0 here, and this process may not raise it.
pub fn forbid_core_dumps() -> io::Result<()> {
    /// Smaller than any dump, so none is written to a file either.
    const NO_DUMP: Rlimit = Rlimit { current: Some(1), maximum: Some(1) };
    Ok(setrlimit(Resource::Core, NO_DUMP)?)
}

/// Starts a program outside of a jail that cannot take back [`forbid_core_dumps`]: it may set the
/// limit, without effect.
///
/// # Errors
/// Those of `start`, and of a kernel without filters of system calls.
pub fn start_without_core_dumps<T: Send>(start: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        // A filter cannot be removed, so a thread installs it and then ends.
        let starting = thread::Builder::new().name("start".to_owned()).spawn_scoped(scope, || {
            filter::keep_core_limit()?;
            start()
        })?;
        starting.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts a program panicked")))
    })
}

/// Limits the total number of processes and threads of this program's user on the machine. The
/// program must not run as root, which the kernel does not limit.
pub fn limit_processes(command: &mut Command, most: u32) {
    let limit = processes(Some(most));
    #[expect(unsafe_code, reason = "afterwards it would be too late: the program may have started others")]
    // SAFETY: between fork and exec this makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(Resource::Nproc, limit)?));
    }
}

/// The program's limit on processes and threads of its user, of which each jail has its own.
pub(crate) fn processes(most: Option<u32>) -> Rlimit {
    at_most(Resource::Nproc, most.unwrap_or(DEFAULT_PROCESSES).into())
}

/// Limits of every program. Locked memory could be the machine's programs and
/// libraries, which do not count as the jail's; POSIX message queues are the kernel's memory. Both
/// limits are the defaults of Linux.
pub(crate) const LIMITS: [(Resource, u64); 2] = [(Resource::Memlock, 8 << 20), (Resource::Msgqueue, 819_200)];

/// A limit of this value, or the one that is in force if that is lower.
pub(crate) fn at_most(resource: Resource, most: u64) -> Rlimit {
    let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Rlimit { current: Some(most), maximum: Some(most) }
}

/// The program's limit on file descriptors. Where the jail shares its account with others, the hard
/// limit equals the soft one: the descriptors that an account may have in transit through sockets
/// are limited too, and the jails' first processes need some of them.
pub(crate) fn limit(descriptors: u64, has_account: bool) -> Rlimit {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let soft = maximum.map_or(descriptors, |maximum| descriptors.min(maximum));
    Rlimit { current: Some(soft), maximum: if has_account { maximum } else { Some(soft) } }
}
