//! File descriptors: as many as the process may have, and who gets them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For what is neither a client's connection nor an upstream's: listeners, logs, health, the control plane, pipes of instances.
const OWN: u64 = 64;

/// Raises the soft limit on descriptors to the hard one, and tells what there is.
pub(super) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        // More than the kernel has ever allowed: what there is will have to do.
        tracing::debug!(?current, ?maximum, "the limit on file descriptors cannot be raised");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Of so many descriptors, how many clients' connections may have: half, so that each of them can be given one to an upstream.
pub(super) fn for_clients(descriptors: u64) -> usize {
    let half = descriptors.saturating_sub(OWN) / 2;
    usize::try_from(half).unwrap_or(usize::MAX).max(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_kept() {
        assert_eq!([0, 64, 300, 1024, 1 << 20].map(for_clients), [8, 8, 118, 480, 524_256]);
        assert!(raise() >= 256);
    }
}
