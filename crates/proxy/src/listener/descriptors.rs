//! File descriptors: the limit of the process, and the number for clients' connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reserved for everything that is neither a client's nor an upstream's connection: listeners,
/// logs, health, the control plane, pipes of instances.
const OWN: u64 = 64;

/// Raises the soft limit on descriptors to the hard limit. Returns the limit that is now in force.
pub(super) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        // The hard limit is higher than the kernel allows, so the soft limit stays as it is.
        tracing::debug!(?current, ?maximum, "the limit on file descriptors cannot be raised");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many client connections this many descriptors allow: half of those that are not reserved, so
/// that each client connection can have one to an upstream. At least 8.
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
