//! Reports the node's state to the service manager (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable with the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Whether a service manager listens.
pub(crate) fn is_possible() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// Notifies it, if it listens.
pub(crate) fn send(state: &str) {
    if let Err(error) = try_send(state) {
        tracing::warn!(%error, "the service manager was not told `{state}`");
    }
}

fn try_send(state: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os(SOCKET) else { return Ok(()) };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
