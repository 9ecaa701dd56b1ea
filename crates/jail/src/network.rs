//! The network of a jail: the loopback interface and nothing else. Every address leads back into
//! the jail, to sockets that the node has there.

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, listen, recv, send, socket_with,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// The port of plain HTTP. Calls to it are judged as HTTP, whatever their address.
pub(crate) const HTTP: u16 = 80;
/// The address of the listener to which the node redirects calls to every port. A listener has to
/// have a port, which the program cannot have then: one that no program uses.
const CALLS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 255, 255, 254), 1);
/// The address of the name server. `/etc/resolv.conf` of a jail names it.
pub(crate) const NAMES: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 53);
/// Length of the queue of calls that the node has not accepted yet.
const BACKLOG: i32 = 1024;
/// The loopback interface has this number in every network namespace.
const LOOPBACK: u32 = 1;

/// Brings the loopback interface up and makes every IPv4 address one of this network's.
pub(crate) fn connect() -> io::Result<()> {
    // Protocol 0 of netlink is the one for routes and interfaces.
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    ask(&kernel, &link_up())?;
    ask(&kernel, &all_local())
}

/// `struct ifinfomsg`: family, padding, type, number, flags, which of the flags change.
fn link_up() -> Vec<u8> {
    const RTM_NEWLINK: u16 = 16;
    const IFF_UP: u32 = 1;
    let mut body = vec![0; 4];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    message(RTM_NEWLINK, 0, &body)
}

/// `ip route add local 0.0.0.0/0 dev lo src 127.0.0.1`. `struct rtmsg`: family, lengths of destination and source, type of service, table, protocol,
/// scope, type, flags; then attributes.
fn all_local() -> Vec<u8> {
    const RTM_NEWROUTE: u16 = 24;
    const CREATE: u16 = 0x400;
    const TABLE_LOCAL: u8 = 255;
    const PROTOCOL_STATIC: u8 = 4;
    const SCOPE_HOST: u8 = 254;
    const TYPE_LOCAL: u8 = 2;
    const OUTGOING_INTERFACE: u16 = 4;
    const PREFERRED_SOURCE: u16 = 7;
    let family = AddressFamily::INET.as_raw() as u8;
    let mut body = vec![family, 0, 0, 0, TABLE_LOCAL, PROTOCOL_STATIC, SCOPE_HOST, TYPE_LOCAL];
    body.extend([0; 4]);
    for (kind, value) in
        [(OUTGOING_INTERFACE, LOOPBACK.to_ne_bytes()), (PREFERRED_SOURCE, Ipv4Addr::LOCALHOST.octets())]
    {
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    }
    message(RTM_NEWROUTE, CREATE, &body)
}

/// `struct nlmsghdr`: length, type, flags, sequence number, sender.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    const HEADER: usize = 16;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST_AND_ACKNOWLEDGE | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Sends one request and waits for the kernel's answer, an error number after the header.
fn ask(kernel: &OwnedFd, request: &[u8]) -> io::Result<()> {
    send(kernel, request, SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (length, _) = recv(kernel, &mut answer[..], RecvFlags::empty())?;
    let code = answer.get(..length).and_then(|answer| answer.get(16..20)?.first_chunk()).copied();
    match i32::from_ne_bytes(code.ok_or(io::ErrorKind::UnexpectedEof)?) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// The listener for HTTP to any address.
pub(crate) fn http() -> io::Result<OwnedFd> {
    let socket = tcp()?;
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, HTTP))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The listener for calls that the node redirects to it.
pub(crate) fn calls() -> io::Result<OwnedFd> {
    let socket = tcp()?;
    bind(&socket, &CALLS)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Lets the program listen on ports below 1024 without a capability. No other process is in this
/// network.
pub(crate) fn open_low_ports() -> io::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
}

/// The socket for DNS queries.
pub(crate) fn names() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    bind(&socket, &NAMES)?;
    Ok(socket)
}

/// An unconnected TCP socket. It belongs to this network, regardless of the process that connects
/// it.
pub(crate) fn tcp() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
}

/// Like [`tcp`], for IPv6.
pub(crate) fn tcp6() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?)
}

/// An unconnected Unix socket. It connects to abstract addresses of this network, regardless of the
/// process that connects it.
pub(crate) fn unix() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
