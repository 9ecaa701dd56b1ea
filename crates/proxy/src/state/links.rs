//! Links of the instances whose messages go through memory.

use crate::state::shards::Shards;
use arc_swap::ArcSwap;
use leno_chain::Link;
use std::sync::{Arc, Mutex, PoisonError};

/// The links that are open, by the instance's name, as in [`crate::state::instances::Lease::instance`].
#[derive(Debug, Default)]
pub struct Links {
    open: ArcSwap<Shards<Arc<str>, Link>>,
    /// Serialises changes of `open`.
    changing: Mutex<()>,
}

impl Links {
    /// From now on, requests reach the instance by this link.
    pub fn insert(&self, instance: &str, link: Link) {
        self.change(|open| drop(open.insert(instance.into(), link)));
    }

    /// The link has ended.
    pub fn remove(&self, instance: &str) {
        self.change(|open| drop(open.remove(instance)));
    }

    /// The link of an instance. `None`: it has ended, or the instance has none.
    pub(crate) fn get(&self, instance: &str) -> Option<Link> {
        self.open.load().get(instance).cloned()
    }

    fn change(&self, change: impl FnOnce(&mut Shards<Arc<str>, Link>)) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = Shards::clone(&self.open.load());
        change(&mut open);
        self.open.store(Arc::new(open));
    }
}
