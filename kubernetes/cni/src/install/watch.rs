//! The installer as a process: installs, watches the folders, and stops at a signal.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::{InstallError, InstallOutcome, Installer};

/// How long the installer trusts the reports of the kernel, which some file systems do not make.
const INSTALLED: Duration = Duration::from_secs(30);

/// How often it looks for a network that is not there yet, or for a file that it could not change.
const INCOMPLETE: Duration = Duration::from_secs(1);

/// The first and the longest pause after a change, so that two programs that undo each other's
/// changes leave the processor alone.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// Changes of a folder that can concern the plug-in.
const CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Installs, and keeps installed until SIGTERM or SIGINT. Then it leaves everything in place, so
/// that pods are captured while an upgrade replaces this process; or removes everything.
pub fn run(installer: &Installer, remove: bool, mut log: impl Write) -> Result<(), InstallError> {
    installer.entry()?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(failed("signals"))?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&signals, flags).map_err(failed("signals"))?;
    let changes = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed("folders"))?;

    let mut said = String::new();
    let mut pause = PAUSES.0;
    loop {
        // A folder that another program has made anew is another folder.
        for folder in [&installer.configuration_folder, &installer.binary_folder] {
            let _ = inotify::add_watch(&changes, folder, CHANGES);
        }
        let outcome = installer.apply();
        let (text, wait, changed) = match &outcome {
            Ok(InstallOutcome::In { file, changed }) => {
                (format!("installed in {}", file.display()), INSTALLED, *changed)
            }
            Ok(InstallOutcome::NoNetwork) => {
                let folder = installer.configuration_folder.display();
                (format!("waiting: {folder} has no configuration of a network"), INCOMPLETE, false)
            }
            Err(error) => (format!("not installed: {error}"), INCOMPLETE, false),
        };
        if changed || text != said {
            let _ = writeln!(log, "leno-cni: {text}");
            said = text;
        }
        let ended = if changed {
            pause = (pause * 2).min(PAUSES.1);
            wait_for(&[signals.as_fd()], pause)?
        } else {
            pause = PAUSES.0;
            wait_for(&[signals.as_fd(), changes.as_fd()], wait)?
        };
        if ended {
            break;
        }
        drain(&changes);
    }
    if !remove {
        let _ = writeln!(log, "leno-cni: ends, and leaves the plug-in in place");
        return installer.remove_temporary();
    }
    installer.remove()?;
    let _ = writeln!(log, "leno-cni: removed");
    Ok(())
}

fn failed<E: Into<std::io::Error>>(subject: &'static str) -> impl Fn(E) -> InstallError {
    move |reason| InstallError::Watch { subject, reason: reason.into() }
}

/// Waits until one of the descriptors is ready or the time is over. Returns whether the first one
/// is ready.
fn wait_for(descriptors: &[BorrowedFd<'_>], time: Duration) -> Result<bool, InstallError> {
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut polled, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(polled.first().is_some_and(|first| first.revents().contains(PollFlags::IN))),
        Err(error) => Err(failed("folders and signals")(error)),
    }
}

/// Takes all reports of changes: the installer looks at all files anyway.
fn drain(changes: &OwnedFd) {
    let mut buffer = [0; 4096];
    while rustix::io::read(changes, &mut buffer).is_ok_and(|read| read > 0) {}
}
