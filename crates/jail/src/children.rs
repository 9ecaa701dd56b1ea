//! Children that have ended.

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;

/// A descriptor that is readable when a child has ended. Blocks the signal of ended children, and
/// the signals that ask the node to end, because the node ends its jails when it has drained.
pub(crate) fn ended() -> io::Result<SignalFd> {
    let child = SigSet::from(Signal::SIGCHLD);
    let mut blocked = child;
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        blocked.add(signal);
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
    Ok(SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}
