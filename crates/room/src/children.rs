//! Children that have ended.

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;

/// A descriptor that is readable when a child has ended. Blocks the signal that says so otherwise.
pub(crate) fn ended() -> io::Result<SignalFd> {
    let child = SigSet::from(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&child), None)?;
    Ok(SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}
