use crate::error::{CaptureError, Explain};
use leno_ebpf::{Network, Pods, Side};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;

/// Connections that wait until the agent accepts them.
const BACKLOG: i32 = 4096;
/// Addresses that no pod has (RFC 5737, RFC 6666). The kernel gives the listeners connections to
/// other addresses; their own lead nowhere.
const NOWHERE4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const NOWHERE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1));

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
    pub(crate) fn open(has_v4: bool, has_v6: bool) -> Result<Self, CaptureError> {
        let open = |is_ipv6| listen(is_ipv6).explain("a listener in the pod's network");
        Ok(Self { v4: has_v4.then(|| open(false)).transpose()?, v6: has_v6.then(|| open(true)).transpose()? })
    }

    /// Lets them have the connections of the network, as soon as it has this generation.
    pub(crate) fn serve(&self, pods: &Pods, network: Network, generation: u8, side: Side) -> Result<(), CaptureError> {
        for (is_ipv6, listener) in [(false, &self.v4), (true, &self.v6)] {
            if let Some(listener) = listener {
                pods.add_socket(listener.as_fd())?;
                pods.listen(network, generation, side, is_ipv6, listener.as_fd())?;
            }
        }
        Ok(())
    }

    /// Both, in this order: IPv4, IPv6.
    pub fn iter(&self) -> impl Iterator<Item = &TcpListener> {
        self.v4.iter().chain(&self.v6)
    }
}

fn listen(is_ipv6: bool) -> io::Result<TcpListener> {
    let socket = transparent(is_ipv6)?;
    // Any port will do. No program can share it.
    socket.bind(&SockAddr::from(SocketAddr::new(if is_ipv6 { NOWHERE6 } else { NOWHERE4 }, 0)))?;
    socket.listen(BACKLOG)?;
    // Accepted connections inherit it. Without it, they would hold the port of a program that starts
    // again. It comes after the port, which no program can share.
    socket.set_reuse_address(true)?;
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
