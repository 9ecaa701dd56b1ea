//! The connection from the node.

use leno_shm::handshake::{BadPacket, MOST_BYTES, Ready, Welcome};
use leno_shm::mapping::Mapping;
use leno_shm::pool::Pool;
use leno_shm::socket;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    socket_with,
};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::{fs, io};

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The environment does not name the port.
    #[error("PORT is not set to a number: this program is to be started as a function with `protocol: chain`")]
    NoPort,
    /// A call of the kernel failed.
    #[error("the socket of the chain failed: {0}")]
    Socket(#[from] io::Error),
    /// The peer is not a node, or of another version.
    #[error(transparent)]
    Packet(#[from] BadPacket),
    /// The welcome came without its files.
    #[error("the node has sent no memory")]
    NoMemory,
}

/// A link that has been established.
pub(crate) struct LinkParts {
    pub(crate) socket: OwnedFd,
    pub(crate) own: Arc<Pool>,
    pub(crate) node: Mapping,
    pub(crate) head: u32,
}

/// Waits at this port until the node connects.
pub(crate) fn accept(port: u16) -> Result<OwnedFd, ConnectError> {
    let failed = |error: rustix::io::Errno| ConnectError::Socket(error.into());
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)?;
    let name = format!("leno-chain-{port}");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    bind(&listener, &address).map_err(failed)?;
    listen(&listener, 1).map_err(failed)?;
    loop {
        let socket = rustix::io::retry_on_intr(|| accept_with(&listener, SocketFlags::CLOEXEC)).map_err(failed)?;
        if may_be_the_node(peer(&socket)?) {
            return Ok(socket);
        }
    }
}

/// Receives the node's welcome, and answers it.
pub(crate) fn begin(socket: OwnedFd) -> Result<LinkParts, ConnectError> {
    let mut packet = [0; MOST_BYTES];
    let received = socket::receive(&socket, &mut packet, RecvFlags::empty())?;
    let welcome = Welcome::decode(&packet[..received.bytes])?;
    let [own, node] = <[OwnedFd; 2]>::try_from(received.files).map_err(|_| ConnectError::NoMemory)?;
    let (own, node) = (Mapping::writable(own, welcome.instance)?, Mapping::readable(node, welcome.node)?);
    if welcome.large_pages {
        own.advise_large_pages();
        node.advise_large_pages();
    }
    socket::send(&socket, &Ready { takes_channels: true }.encode(), &[], SendFlags::empty())?;
    // SAFETY: this program maps it once, and the node seals it against other writable mappings.
    #[expect(unsafe_code, reason = "the node made the memory")]
    let own = unsafe { Pool::new(own) };
    Ok(LinkParts { socket, own, node, head: welcome.head })
}

/// The user ID of the peer.
fn peer(socket: &OwnedFd) -> io::Result<u32> {
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, and any bytes are a valid `ucred`. (A node
    // outside of this program's PID namespace has the process ID 0, which libraries do not expect.)
    #[expect(unsafe_code, reason = "see above")]
    let peer = unsafe {
        let value = peer.as_mut_ptr().cast();
        match libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut length) {
            0 => peer.assume_init(),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    Ok(peer.uid)
}

/// Whether an account may be the node's: root, this program's own, or, in a user namespace, one
/// outside of it, which the kernel shows as the overflow user ID.
fn may_be_the_node(user: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let is_outside = || {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let words: Vec<_> = map.split_whitespace().collect();
        words.len() >= 3 && words != ["0", "0", "4294967295"] && number("/proc/sys/kernel/overflowuid") == Some(user)
    };
    user == 0 || user == own || is_outside()
}
