//! Ports for instances. A port number only tells an instance where to listen. Another process that takes the port gets nothing, because each
//! connection is verified ([`crate::processes`]). The start fails, and the next instance gets another port.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// The ports that this process has given to instances. An instance binds its port some time after it was given. Without this list, two of a hundred
/// that start together would get the same port. The list is global, because the machine has one set of ports.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that is reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    pub number: u16,
}

impl Port {
    /// Reserves a port that is free now. It is below the range that the kernel uses for outgoing connections, so no connection can take it before the
    /// instance has bound it.
    pub(crate) fn take() -> std::io::Result<Self> {
        const TRIES: usize = 200;
        for _ in 0..TRIES {
            let number = fastrand::u16(10_240..32_768);
            if let Some(port) = Self::reserve(number).filter(|_| is_free(number)) {
                return Ok(port);
            }
        }
        // No free port was found there; let the kernel choose.
        let chosen = SocketAddrV4::try_from(rustix::net::getsockname(bound(0)?)?)?;
        let number = chosen.port();
        Self::reserve(number).ok_or_else(|| std::io::ErrorKind::AddrInUse.into())
    }

    fn reserve(number: u16) -> Option<Self> {
        let new = given(|given| given.insert(number));
        // Not `then_some`: it would make a `Port` even if the number is taken, and dropping that would release the other instance's port.
        new.then(|| Self { number })
    }
}

fn is_free(number: u16) -> bool {
    bound(number).is_ok()
}

/// Binds a socket to a port, or to one that the kernel chooses for 0. The socket never listens. A process that another thread forks at this moment
/// inherits it until it runs its program; if the socket listened, an instance that does not listen yet would look ready. The socket does not keep an
/// instance from binding the port, if the instance sets `SO_REUSEADDR` as servers do.
fn bound(number: u16) -> std::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, number))?;
    Ok(socket)
}

fn given<T>(change: impl FnOnce(&mut BTreeSet<u16>) -> T) -> T {
    change(&mut GIVEN.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Drop for Port {
    fn drop(&mut self) {
        given(|given| given.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;

    #[test]
    fn no_port_is_given_twice() {
        let taken: Vec<Port> = (0..2000).map(|_| Port::take().unwrap()).collect();
        let numbers: BTreeSet<u16> = taken.iter().map(|port| port.number).collect();
        assert_eq!(numbers.len(), 2000);
        drop(taken);
        assert!(numbers.iter().all(|number| given(|given| !given.contains(number))));
    }

    #[test]
    fn nobody_listens_while_it_is_seen_whether_a_port_is_free() {
        let port = Port::take().unwrap().number;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    assert!(is_free(port));
                }
            });
            let met = (0..20_000).any(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
            stop.store(true, SeqCst);
            assert!(!met, "somebody was taken for an instance that is ready");
        });
    }

    #[test]
    fn where_somebody_listens_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }
}
