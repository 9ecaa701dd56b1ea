//! Ports for instances. A number is no more than a hint where to listen: whoever else takes it gets nothing, because each connection is proven
//! ([`crate::processes`]); the start fails, and the next one has another number.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// The ports that this process has given to instances. An instance binds its own some time after it was given it; without a note of
/// that, two of a hundred that start together would get the same one. There is one such list, because the machine has one set of ports.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that nobody else is given until this is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    pub number: u16,
}

impl Port {
    /// A port that is free now. Taken from below the range that the kernel gives to outgoing connections, so that none of those
    /// can get it before the instance has bound it.
    pub(crate) fn take() -> std::io::Result<Self> {
        const TRIES: usize = 200;
        for _ in 0..TRIES {
            let number = fastrand::u16(10_240..32_768);
            if let Some(port) = Self::reserve(number).filter(|_| is_free(number)) {
                return Ok(port);
            }
        }
        // Everything there is taken; let the kernel choose.
        let chosen = SocketAddrV4::try_from(rustix::net::getsockname(bound(0)?)?)?;
        let number = chosen.port();
        Self::reserve(number).ok_or_else(|| std::io::ErrorKind::AddrInUse.into())
    }

    fn reserve(number: u16) -> Option<Self> {
        let new = given(|given| given.insert(number));
        // Not `then_some`: what it would drop gives the other one's port back.
        new.then(|| Self { number })
    }
}

fn is_free(number: u16) -> bool {
    bound(number).is_ok()
}

/// A socket with that port, or with one that the kernel chooses for 0. It never listens: a process that another thread forks at this
/// moment has it too, until it runs its program, and if it listened, an instance that has not begun to would be found ready.
/// Nor does it keep an instance from binding the port, if that sets `SO_REUSEADDR` as servers do.
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
