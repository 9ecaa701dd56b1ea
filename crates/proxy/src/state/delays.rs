//! The bounds on requests that faults delay.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests that faults may delay at once, on one node: of one namespace, and of all.
const MAX_OF_NAMESPACE: u32 = 1024;
const MAX_DELAYS: u32 = 4096;

/// The requests of a node that faults delay, by the namespaces of their policies.
#[derive(Debug, Default)]
pub(crate) struct Delays(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: u32,
    of_namespaces: HashMap<Box<str>, u32>,
}

/// The place of a delayed request.
#[derive(Debug)]
pub(crate) struct Place<'d> {
    delays: &'d Delays,
    namespace: &'d str,
}

impl Delays {
    /// A place for another request; `None`: the namespace or the node has all that it may have.
    pub(crate) fn take<'d>(&'d self, namespace: &'d str) -> Option<Place<'d>> {
        let mut counts = self.counts();
        if counts.all >= MAX_DELAYS {
            return None;
        }
        match counts.of_namespaces.get_mut(namespace) {
            Some(count) if *count >= MAX_OF_NAMESPACE => return None,
            Some(count) => *count += 1,
            None => drop(counts.of_namespaces.insert(namespace.into(), 1)),
        }
        counts.all += 1;
        Some(Place { delays: self, namespace })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut counts = self.delays.counts();
        counts.all -= 1;
        if let Some(count) = counts.of_namespaces.get_mut(self.namespace) {
            *count -= 1;
            if *count == 0 {
                counts.of_namespaces.remove(self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_bounded_for_each_namespace_and_for_the_node() {
        let delays = Delays::default();
        let take = |namespace: &'static str| std::iter::from_fn(|| delays.take(namespace)).collect::<Vec<_>>();
        let [mut first, second, third] = ["a", "b", "c"].map(take);
        assert_eq!([&first, &second, &third].map(Vec::len), [MAX_OF_NAMESPACE as usize; 3]);
        let fourth = take("d");
        assert_eq!((fourth.len() as u32, take("e").len()), (MAX_DELAYS - 3 * MAX_OF_NAMESPACE, 0));
        first.pop();
        assert_eq!((take("b").len(), take("a").len()), (0, 1));
        drop((first, second, third, fourth));
        assert!(delays.counts().of_namespaces.is_empty() && delays.counts().all == 0);
        assert_eq!(take("e").len(), MAX_OF_NAMESPACE as usize);
    }
}
