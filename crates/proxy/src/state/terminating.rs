//! Draining instances get no new requests, and have not ended yet. The node does not keep
//! connections to them, and closes idle ones each second: many servers wait until their connections
//! are closed before they end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The addresses of a node's draining instances.
#[derive(Debug, Default)]
pub struct Terminating {
    addresses: Mutex<HashMap<String, Draining>>,
    /// Whether an instance is draining. Usually none is, and then no request takes the lock.
    any: AtomicBool,
}

#[derive(Debug)]
struct Draining {
    address: SocketAddr,
    /// The drain timeout is over.
    overdue: bool,
}

impl Terminating {
    /// Marks the instance with this name and address as draining.
    pub fn add(&self, instance: &str, address: SocketAddr) {
        let mut addresses = self.lock();
        addresses.insert(instance.to_owned(), Draining { address, overdue: false });
        self.any.store(true, Ordering::Release);
    }

    /// Marks a draining instance whose requests must end, because its drain timeout is over.
    pub(crate) fn set_overdue(&self, instance: &str) {
        if let Some(draining) = self.lock().get_mut(instance) {
            draining.overdue = true;
        }
    }

    /// Whether the requests of the instance at this address must end.
    pub(crate) fn is_overdue(&self, address: SocketAddr) -> bool {
        self.has(|draining| draining.overdue && draining.address == address)
    }

    /// Forgets an instance that has ended. Another one may get its address.
    pub fn remove(&self, instance: &str) {
        let mut addresses = self.lock();
        addresses.remove(instance);
        self.any.store(!addresses.is_empty(), Ordering::Release);
    }

    /// Whether the instance at this address is draining.
    pub fn contains(&self, address: SocketAddr) -> bool {
        self.has(|draining| draining.address == address)
    }

    fn has(&self, is: impl Fn(&Draining) -> bool) -> bool {
        self.any.load(Ordering::Acquire) && self.lock().values().any(is)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Draining>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_one_of_them_until_it_has_ended() {
        let terminating = Terminating::default();
        let [first, second]: [SocketAddr; 2] = [([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into()];
        terminating.add("shop/a-00001/1", first);
        terminating.add("shop/a-00001/2", second);
        terminating.set_overdue("shop/a-00001/2");
        assert_eq!((terminating.is_overdue(first), terminating.is_overdue(second)), (false, true));
        terminating.remove("shop/a-00001/1");
        assert_eq!((terminating.contains(first), terminating.contains(second)), (false, true));
        terminating.remove("shop/a-00001/2");
        assert!(!terminating.contains(second));
    }
}
