//! Ports for instances.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
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
    pub fn take() -> std::io::Result<Self> {
        const TRIES: usize = 200;
        for _ in 0..TRIES {
            let number = fastrand::u16(10_240..32_768);
            if let Some(port) = Self::reserve(number).filter(|_| is_free(number)) {
                return Ok(port);
            }
        }
        // Everything there is taken; let the kernel choose.
        let number = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        Self::reserve(number).ok_or_else(|| std::io::ErrorKind::AddrInUse.into())
    }

    fn reserve(number: u16) -> Option<Self> {
        let new = given(|given| given.insert(number));
        // Not `then_some`: what it would drop gives the other one's port back.
        new.then(|| Self { number })
    }
}

fn is_free(number: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
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

    #[test]
    fn no_port_is_given_twice() {
        let taken: Vec<Port> = (0..2000).map(|_| Port::take().unwrap()).collect();
        let numbers: BTreeSet<u16> = taken.iter().map(|port| port.number).collect();
        assert_eq!(numbers.len(), 2000);
        drop(taken);
        assert!(numbers.iter().all(|number| given(|given| !given.contains(number))));
    }
}
