use crate::error::{CaptureError, Explain};
use leno_ebpf::{Network, Pods, Side};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;

/// Connections that wait until the agent accepts them.
const BACKLOG: i32 = 4096;
/// A listener needs a port, which is the same for each agent: so the kernel lets a successor inherit
/// the connections that are not accepted.
const OUT_PORT: u16 = 15001;
const IN_PORT: u16 = 15006;
/// Addresses that no pod has (RFC 5737, RFC 6666). The kernel gives the listeners connections to
/// other addresses; their own lead nowhere.
const NOWHERE4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOWHERE6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);

/// The listeners of one direction, for each address family that the pod has. The local address of an
/// accepted socket is the destination that its caller chose. They do not block.
#[derive(Debug)]
pub struct PodListeners {
    /// For IPv4.
    pub v4: Option<TcpListener>,
    /// For IPv6.
    pub v6: Option<TcpListener>,
}

impl PodListeners {
    /// Opens the listeners in the network of the calling thread.
    pub(crate) fn open(side: Side, has_v4: bool, has_v6: bool) -> Result<Self, CaptureError> {
        let open = |is_ipv6| listen(side, is_ipv6).explain("a listener in the pod's network");
        Ok(Self { v4: has_v4.then(|| open(false)).transpose()?, v6: has_v6.then(|| open(true)).transpose()? })
    }

    /// Lets them have the connections of the network from now on.
    pub(crate) fn serve(&self, pods: &Pods, network: Network, side: Side) -> Result<(), CaptureError> {
        for (is_ipv6, listener) in [(false, &self.v4), (true, &self.v6)] {
            if let Some(listener) = listener {
                pods.add_socket(listener.as_fd())?;
                pods.listen(network, side, is_ipv6, listener.as_fd())?;
            }
        }
        Ok(())
    }

    /// Both, in this order: IPv4, IPv6.
    pub fn iter(&self) -> impl Iterator<Item = &TcpListener> {
        self.v4.iter().chain(&self.v6)
    }
}

fn listen(side: Side, is_ipv6: bool) -> io::Result<TcpListener> {
    let port = match side {
        Side::Out => OUT_PORT,
        Side::In => IN_PORT,
    };
    let address: SocketAddr = if is_ipv6 { (NOWHERE6, port).into() } else { (NOWHERE4, port).into() };
    let socket = transparent(is_ipv6)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A socket that may have addresses which are not the network's.
pub(crate) fn transparent(is_ipv6: bool) -> io::Result<Socket> {
    let socket = Socket::new(if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 }, Type::STREAM.nonblocking(), None)?;
    if is_ipv6 {
        socket.set_only_v6(true)?;
        socket.set_ip_transparent_v6(true)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
    }
    Ok(socket)
}
