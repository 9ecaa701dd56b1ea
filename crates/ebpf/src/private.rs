//! Networks in which the ends of channels are made.

use crate::option;
use nix::sched::{CloneFlags, setns, unshare};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A network namespace without any reachable address, for the channel ends of one instance. Ends of
/// two instances are never in the same network. So a program that disconnects its end and binds,
/// connects or listens with it reaches no other instance, no address and no port of another
/// instance, and nothing of the node.
#[derive(Debug)]
pub struct PrivateNetwork {
    namespace: File,
    /// Held while the loopback interface is up.
    link: Mutex<()>,
}

impl PrivateNetwork {
    /// Makes a network. The calling thread remains in its own.
    ///
    /// # Errors
    /// This process may not make networks.
    pub fn new() -> io::Result<Self> {
        let namespace = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })?;
        Ok(Self { namespace, link: Mutex::default() })
    }

    /// A socket that is connected to no other: TCP can send nothing to it or from it. It belongs to
    /// this network, whichever process has it.
    pub(crate) fn end(&self) -> io::Result<Socket> {
        on_a_thread(|| {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
            let _alone = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            // Without a route the kernel connects no socket, not even one that needs no answer.
            // Packets are lost while the interface is down.
            set_loopback(true)?;
            let end = connected();
            set_loopback(false)?;
            end
        })
    }
}

/// Runs a job on a new thread: a thread that has entered another network must not do other work.
fn on_a_thread<T: Send>(job: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("network".to_owned()).spawn_scoped(scope, job)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in another network panicked")))
    })
}

/// Sets the loopback interface of this thread's network up or down.
///
/// `RTM_NEWLINK`: `struct nlmsghdr` (length, type, flags, sequence number, sender), then `struct ifinfomsg` (family, padding, type, number, flags, which
/// of the flags change).
fn set_loopback(up: bool) -> io::Result<()> {
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
    for field in [LOOPBACK, if up { IFF_UP } else { 0 }, IFF_UP] {
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

/// A socket that considers itself connected. No packet was exchanged, and no other socket has its
/// address.
fn connected() -> io::Result<Socket> {
    /// A port at which only root could listen.
    const NOWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    let end = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    option::repair(&end)?;
    end.bind(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)))?;
    end.connect(&SockAddr::from(NOWHERE))?;
    option::repaired(&end)?;
    // The kernel would wait for the answer to its end, and keep the network for minutes.
    end.set_linger(Some(Duration::ZERO))?;
    Ok(end)
}
