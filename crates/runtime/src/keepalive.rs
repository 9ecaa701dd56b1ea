//! TCP keepalive: finds machines that vanish without closing their connections.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// Probes without an answer after which the kernel gives a connection up.
const PROBES: u32 = 6;

/// Has the kernel end a connection whose peer acknowledges neither data nor probes, or takes no
/// data. The first probe follows `silence`. Loopback connections need no probes.
pub fn enable(stream: &TcpStream, address: SocketAddr, silence: Duration) -> io::Result<()> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let (socket, interval) = (SockRef::from(stream), (silence / PROBES).max(Duration::from_secs(1)));
    let probes = TcpKeepalive::new().with_time(silence).with_interval(interval).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(silence + interval * PROBES))
}
