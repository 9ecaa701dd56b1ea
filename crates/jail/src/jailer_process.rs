//! The process that creates jails, seen from the node.

use crate::wire::{self, Make};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The process that creates jails. The node restarts it if it has ended.
#[derive(Debug)]
pub struct Jailer {
    command: Command,
    socket: OwnedFd,
    child: Child,
}

impl Jailer {
    /// Starts the jailer. The command has to call [`crate::jailer::run`] before it starts a
    /// thread. Its standard input is replaced, and its environment cleared.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.env_clear();
        let (socket, child) = launch(&mut command)?;
        Ok(Self { command, socket, child })
    }

    /// Requests a jail or a user namespace. `theirs`: the other end of the socket for the answer.
    pub(crate) fn ask(&mut self, make: &Make, theirs: &OwnedFd) -> io::Result<()> {
        let asked = wire::send(&self.socket, make, &[theirs.as_fd()], SendFlags::DONTWAIT);
        match asked {
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                // Its jails have ended with it.
                tracing::error!("the jailer has ended, and with it all jails; it is started again");
                let _ = self.child.wait();
                (self.socket, self.child) = launch(&mut self.command)?;
                wire::send(&self.socket, make, &[theirs.as_fd()], SendFlags::DONTWAIT)
            }
            asked => asked,
        }
    }

    /// Its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the jailer. It also ends with its socket, but this waits for its end.
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(command: &mut Command) -> io::Result<(OwnedFd, Child)> {
    let (socket, theirs) = pair()?;
    // The jailer is in its own process group, so Ctrl-C on the node's terminal goes only to the
    // node, which lets requests end first.
    let child = command.stdin(theirs).process_group(0).spawn()?;
    // Otherwise the other end would stay open after the jailer's end.
    command.stdin(Stdio::null());
    Ok((socket, child))
}

impl Drop for Jailer {
    fn drop(&mut self) {
        self.end();
    }
}

/// A control socket: the node's end, and the peer's.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
