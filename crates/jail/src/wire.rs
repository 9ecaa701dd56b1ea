//! Messages between the node, the jailer and the first process of a jail. Each is one datagram of a
//! Unix socket (`SOCK_SEQPACKET`), and may carry file descriptors.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Longest message, in bytes. Longer data travel in a file.
const LONGEST: usize = 4096;
/// Maximum number of descriptors in one message.
pub(crate) const MOST_DESCRIPTORS: usize = 64;

/// From the node to the jailer, with the end of the control socket that answers come from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Make {
    /// A jail.
    Jail {
        /// The first ID on the machine that the jail's users and groups have. `None`: the node's
        /// own, because it may use no other.
        account: Option<u32>,
        kind: Kind,
    },
    /// A user namespace in which nothing runs, for mounts that show files with other owners.
    Users {
        /// The machine's ID of the account to which the namespace belongs.
        account: u32,
        /// User IDs on the disk, and those of the machine in their place.
        users: Vec<(u32, u32)>,
        /// The same of groups.
        groups: Vec<(u32, u32)>,
    },
}

/// The purpose of a jail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Programs of the machine: there is one user.
    Process,
    /// A container: its users are those of an image.
    Container,
}

/// From the node to a jail.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Run a program. Comes with a file that holds a [`Task`], with the program's standard output
    /// and standard error, and with a mount for each visible path and each folder, unless the node
    /// may not mount.
    Run,
    /// Run a container. Comes with a file that holds a [`ContainerTask`], with the standard output and
    /// standard error, with the mount of its root, and with one for each visible path and each
    /// folder of the machine.
    Contain,
    /// Ask the program to end.
    Terminate,
    /// Send this many more sockets.
    Sockets(u8),
    /// Send a Unix socket.
    UnixSocket,
    /// Send a TCP socket for IPv6.
    Ipv6Socket,
}

/// From a jail to the node. The jailer sends the first one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Comes with the user namespace of [`Make::Users`].
    Users,
    /// The first process exists. Comes with a descriptor of it (pidfd).
    Born {
        /// Its process ID on the machine.
        pid: u32,
    },
    /// The jail is ready for a program. Comes with the listener at port 80, the one for redirected
    /// calls, the socket for DNS queries, and a descriptor of the network namespace.
    Made {
        /// The reason why the jail shares inodes of the machine's files with other jails, if it
        /// does. Otherwise locks and watches on them are the jail's.
        shared: Option<String>,
    },
    /// A feature that the jail needs is missing. The jail ends.
    Failed(String),
    /// Comes with unconnected TCP sockets of the jail's network.
    Sockets,
    /// Answers [`Order::UnixSocket`] or [`Order::Ipv6Socket`]. Comes with such a socket of the
    /// jail's network, unconnected, unless it could not be created.
    RareSocket,
    /// The program runs.
    Started,
    /// A process of the program calls `listen`.
    Listens,
    /// The program cannot be run. The jail ends.
    NotStarted(String),
    /// A process made a system call that no jail allows.
    Refused {
        /// Name of the system call.
        call: String,
        /// Name of the program that made it.
        program: String,
        /// The process was killed for it. Otherwise the call failed.
        killed: bool,
    },
    /// The program has ended, and with it the jail. Holds its status in the form of `wait(2)`.
    Ended(i32),
}

/// The program that a jail is to run. It cannot be printed: it holds secrets.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Task {
    pub argv: Vec<String>,
    /// The file that is executed.
    pub executable: PathBuf,
    pub directory: PathBuf,
    pub environment: BTreeMap<String, String>,
    pub hostname: String,
    /// Files and folders that the jail shows: their real paths on the machine, and their paths in
    /// the jail.
    pub visible: Vec<(PathBuf, PathBuf)>,
    /// Folders in memory: their paths and how many bytes they hold.
    pub volumes: Vec<(PathBuf, u64)>,
    /// Links that the jail has, besides those in its files: their paths, and their targets.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Folders of the machine that the program can write to: their paths on the machine, and in the
    /// jail.
    pub folders: Vec<(PathBuf, PathBuf)>,
    /// Names and contents of files in [`crate::SECRETS`].
    pub secrets: Vec<(String, Vec<u8>)>,
    /// Soft limit on file descriptors.
    pub descriptors: Option<u64>,
    /// Limit on processes and threads.
    pub processes: Option<u32>,
}

/// A container that a jail is to run. It cannot be printed: it holds secrets.
#[derive(Serialize, Deserialize)]
pub(crate) struct ContainerTask {
    pub argv: Vec<String>,
    /// The working directory. It is created if it is missing.
    pub directory: PathBuf,
    /// The user that the image or the function names: `user`, `user:group`, by name or number. Empty: root.
    pub user: String,
    pub environment: BTreeMap<String, String>,
    pub hostname: String,
    /// Paths in the container at which it sees the machine's paths.
    pub visible: Vec<PathBuf>,
    /// Folders in memory: their paths and how many bytes they hold.
    pub volumes: Vec<(PathBuf, u64)>,
    /// Paths in the container of folders of the machine that it can write to.
    pub folders: Vec<PathBuf>,
    pub secrets: Vec<(String, Vec<u8>)>,
    pub descriptors: Option<u64>,
    /// Limit on processes and threads of each user.
    pub processes: Option<u32>,
    pub read_only: bool,
    /// The jail is in its own control group, which the container may see.
    pub own_group: bool,
    /// Number of the signal that asks the program to end.
    pub stop_signal: i32,
}

/// Sends a message. If `flags` say so, fails instead of blocking.
pub(crate) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if bytes.len() > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message; `None`: the other end is closed. Descriptors that arrive are closed on exec.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            // The other end closed and left messages unread. The kernel reports that once, ahead of
            // messages that had arrived before.
            Err(Errno::CONNRESET) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was cut"));
    }
    let message = bytes.get(..received.bytes).map(postcard::from_bytes);
    let message = message.and_then(Result::ok).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((message, descriptors)))
}
