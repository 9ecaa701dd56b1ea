//! Machines that vanish without a word.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// How often the kernel asks in vain whether a silent machine is still there.
const PROBES: u32 = 6;

/// Has the kernel notice a machine that has vanished: one that acknowledges neither data nor probes, or takes no data. `silence` is the time before the first
/// probe. Nothing on this machine vanishes without a word.
pub(crate) fn watch_machine(stream: &TcpStream, address: SocketAddr, silence: Duration) -> io::Result<()> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let (socket, interval) = (SockRef::from(stream), (silence / PROBES).max(Duration::from_secs(1)));
    let probes = TcpKeepalive::new().with_time(silence).with_interval(interval).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(silence + interval * PROBES))
}
