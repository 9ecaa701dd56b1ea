//! How a link begins.

use super::Settings;
use super::state::Inner;
use crate::arena::{self, UnsealedMemfd};
use crate::domain::Domain;
use crate::handshake::{BadPacket, MOST_BYTES, Ready, Welcome};
use crate::mapping::Mapping;
use crate::pool::Pool;
use crate::region::Arena;
use crate::socket;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// No head may be longer, whatever the settings say: it is copied as a whole.
const MOST_HEAD: u32 = 16 << 20;

/// Why a link did not begin.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel makes no arena.
    #[error("no memory can be shared with the instance: {0}")]
    Arena(#[source] io::Error),
    /// The instance has closed the socket, or it failed.
    #[error("the socket of the instance failed: {0}")]
    Socket(#[source] io::Error),
    /// The instance sent another packet than [`Ready`].
    #[error("the instance does not say that it is ready: {0}")]
    Packet(#[from] BadPacket),
    /// The instance said nothing in time.
    #[error("the instance does not say that it is ready")]
    TooLate,
}

pub(super) async fn open(
    socket: OwnedFd,
    domain: &Domain,
    name: String,
    settings: &Settings,
) -> Result<Arc<Inner>, OpenError> {
    let unsealed = UnsealedMemfd::create("leno-chain-instance", settings.instance_arena).map_err(OpenError::Arena)?;
    let (pool, for_readers) = Pool::create("leno-chain-node", settings.node_arena).map_err(OpenError::Arena)?;
    let welcome = Welcome {
        instance: arena::size(settings.instance_arena),
        node: arena::size(settings.node_arena),
        head: settings.head.min(MOST_HEAD),
        large_pages: settings.large_pages,
    };
    rustix::io::ioctl_fionbio(&socket, true).map_err(|error| OpenError::Socket(error.into()))?;
    let socket = Arc::new(socket);
    let files = [unsealed.file().as_fd(), for_readers.as_fd()];
    socket::send(&socket, &welcome.encode(), &files, SendFlags::DONTWAIT).map_err(OpenError::Socket)?;
    let Ready { takes_channels } =
        tokio::time::timeout(settings.within, ready(&socket)).await.map_err(|_| OpenError::TooLate)??;

    // Whatever mappings the instance made before, from here on it writes only through those, and no
    // other process writes at all.
    let file = unsealed.seal().map_err(OpenError::Arena)?;
    let mapping = Mapping::readable(&file, welcome.instance).map_err(OpenError::Arena)?;
    if settings.large_pages {
        mapping.advise_large_pages();
        pool.mapping().advise_large_pages();
    }
    let instance = Arena::of_instance(domain.clone(), file, mapping);
    let node = Arena::of_node(domain.clone(), for_readers, pool.clone());
    let settings = Settings { head: welcome.head, ..settings.clone() };
    Ok(Inner::new(socket, name, settings, instance, node, pool, takes_channels))
}

async fn ready(socket: &Arc<OwnedFd>) -> Result<Ready, OpenError> {
    let mut packet = [0; MOST_BYTES];
    let receive = |socket: &WatchedSocket| socket::receive_bytes(&socket.0, &mut packet, RecvFlags::DONTWAIT);
    let socket = watch(socket.clone()).map_err(OpenError::Socket)?;
    let received = socket.async_io(Interest::READABLE, receive).await.map_err(OpenError::Socket)?;
    if received.bytes == 0 {
        return Err(OpenError::Socket(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Ready::decode(&packet[..received.bytes])?)
}

/// A socket that a runtime watches.
pub(super) struct WatchedSocket(pub(super) Arc<OwnedFd>);

impl AsRawFd for WatchedSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Watches a socket on the runtime of the caller.
#[expect(deprecated, reason = "its successor is unsafe to call; what that asks for, `OwnedFd` guarantees")]
pub(super) fn watch(socket: Arc<OwnedFd>) -> io::Result<AsyncFd<WatchedSocket>> {
    AsyncFd::with_interest(WatchedSocket(socket), Interest::READABLE | Interest::WRITABLE)
}
