//! Instances that get no requests any more and have not ended yet: connections to them are not kept, and idle ones are closed when
//! they are looked through next, which is each second: many servers wait for that before they end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All of a node's.
#[derive(Debug, Default)]
pub struct Withdrawn {
    addresses: Mutex<HashMap<String, SocketAddr>>,
    /// There are such instances. Most of the time there are none, and then nobody takes the lock.
    any: AtomicBool,
}

impl Withdrawn {
    /// The instance of this name, at this address, gets no requests any more.
    pub fn add(&self, instance: &str, address: SocketAddr) {
        let mut addresses = self.lock();
        addresses.insert(instance.to_owned(), address);
        self.any.store(true, Ordering::Release);
    }

    /// It has ended. Another one may get its address.
    pub fn remove(&self, instance: &str) {
        let mut addresses = self.lock();
        addresses.remove(instance);
        self.any.store(!addresses.is_empty(), Ordering::Release);
    }

    /// Whether the instance at this address is one of them.
    pub fn contains(&self, address: SocketAddr) -> bool {
        self.any.load(Ordering::Acquire) && self.lock().values().any(|withdrawn| *withdrawn == address)
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
        let withdrawn = Withdrawn::default();
        let [first, second]: [SocketAddr; 2] = [([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into()];
        withdrawn.add("shop/a-00001/1", first);
        withdrawn.add("shop/a-00001/2", second);
        withdrawn.remove("shop/a-00001/1");
        assert_eq!((withdrawn.contains(first), withdrawn.contains(second)), (false, true));
        withdrawn.remove("shop/a-00001/2");
        assert!(!withdrawn.contains(second));
    }
}
