//! Draining instances get no new requests, and have not ended yet. Connections to them are not kept; idle ones are closed each second. Many
//! servers wait until their connections are closed before they end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The addresses of a node's draining instances.
#[derive(Debug, Default)]
pub struct Terminating {
    addresses: Mutex<HashMap<String, SocketAddr>>,
    /// Whether an instance is draining. Usually none is, and then nobody takes the lock.
    any: AtomicBool,
}

impl Terminating {
    /// Marks the instance with this name and address as draining.
    pub fn add(&self, instance: &str, address: SocketAddr) {
        let mut addresses = self.lock();
        addresses.insert(instance.to_owned(), address);
        self.any.store(true, Ordering::Release);
    }

    /// Forgets an instance that has ended. Another one may get its address.
    pub fn remove(&self, instance: &str) {
        let mut addresses = self.lock();
        addresses.remove(instance);
        self.any.store(!addresses.is_empty(), Ordering::Release);
    }

    /// Whether the instance at this address is draining.
    pub fn contains(&self, address: SocketAddr) -> bool {
        self.any.load(Ordering::Acquire) && self.lock().values().any(|terminating| *terminating == address)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, SocketAddr>> {
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
        terminating.remove("shop/a-00001/1");
        assert_eq!((terminating.contains(first), terminating.contains(second)), (false, true));
        terminating.remove("shop/a-00001/2");
        assert!(!terminating.contains(second));
    }
}
