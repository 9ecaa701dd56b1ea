//! Networks in which the ends of channels are made.

use nix::sched::{CloneFlags, setns, unshare};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::Duration;

/// A network namespace with nothing but its own loopback interface, in which ends are made. Ends of different chains are made in different ones, so that
/// a program that disconnects its end and connects or listens anew reaches nobody of another chain, and nothing of the node.
#[derive(Debug)]
pub struct PrivateNetwork {
    namespace: File,
}

impl PrivateNetwork {
    /// Makes one. The calling thread remains in its own network.
    ///
    /// # Errors
    /// This process may not make networks.
    pub fn new() -> io::Result<Self> {
        let namespace = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            bring_loopback_up()?;
            File::open("/proc/thread-self/ns/net")
        })?;
        Ok(Self { namespace })
    }

    /// The two ends of a connection. They belong to this network, whichever process has them.
    pub(crate) fn connection(&self) -> io::Result<[Socket; 2]> {
        on_a_thread(|| {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
            connect()
        })
    }
}

/// A thread that has entered another network is of no use to anybody else.
fn on_a_thread<T: Send>(job: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("network".to_owned()).spawn_scoped(scope, job)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in another network panicked")))
    })
}

/// `RTM_NEWLINK`: `struct nlmsghdr` (length, type, flags, sequence number, sender), then `struct ifinfomsg` (family, padding, type, number, flags, which
/// of the flags change).
fn bring_loopback_up() -> io::Result<()> {
    const LENGTH: u32 = 32;
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
    /// The loopback interface has this number in every network namespace.
    const LOOPBACK: u32 = 1;
    const IFF_UP: u32 = 1;
    let mut request = Vec::new();
    request.extend(LENGTH.to_ne_bytes());
    request.extend(RTM_NEWLINK.to_ne_bytes());
    request.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    request.extend([0; 12]);
    for field in [LOOPBACK, IFF_UP, IFF_UP] {
        request.extend(field.to_ne_bytes());
    }
    let kernel = Socket::new(Domain::from(libc::AF_NETLINK), Type::from(libc::SOCK_RAW), None)?;
    kernel.send(&request)?;
    // An error number comes after the header.
    let mut answer = [0; 4096];
    let length = (&kernel).read(&mut answer)?;
    let code = answer.get(..length).and_then(|answer| answer.get(16..20)?.first_chunk()).copied();
    match i32::from_ne_bytes(code.ok_or(io::ErrorKind::UnexpectedEof)?) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// Connects two sockets of this thread's network.
fn connect() -> io::Result<[Socket; 2]> {
    /// Programs that are in the network already, with an end of another channel, may be in the way for as long.
    const PATIENCE: Duration = Duration::from_secs(5);
    const BACKLOG: i32 = 16;
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    listener.bind(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)))?;
    listener.listen(BACKLOG)?;
    listener.set_read_timeout(Some(PATIENCE))?;
    let one = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    one.connect_timeout(&listener.local_addr()?, PATIENCE)?;
    let own = one.local_addr()?.as_socket();
    // Such a program may also have connected first.
    for _ in 0..=BACKLOG {
        let (other, address) = listener.accept()?;
        if address.as_socket() == own {
            // It has this from the listener.
            other.set_read_timeout(None)?;
            return Ok([one, other]);
        }
    }
    Err(io::Error::new(io::ErrorKind::ConnectionRefused, "programs of the private network are in the way"))
}
