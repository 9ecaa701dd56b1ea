//! Values that many objects have in common, each once in memory.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Values below which unused ones stay.
const FEW: usize = 64;

/// Shared values. Those that no object has any more go when the pool has doubled.
#[derive(Debug)]
pub(crate) struct ValuePool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for ValuePool<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), sweep_at: FEW }
    }
}

impl<T: Eq + Hash + ?Sized> ValuePool<T> {
    /// The shared one of equal values.
    pub(crate) fn share<V: Borrow<T> + Into<Arc<T>>>(&mut self, value: V) -> Arc<T> {
        if let Some(known) = self.values.get(value.borrow()) {
            return known.clone();
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = FEW.max(2 * self.values.len());
        }
        let value: Arc<T> = value.into();
        self.values.insert(value.clone());
        value
    }

    /// How many of the values are in use.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.values.iter().filter(|value| Arc::strong_count(value) > 1).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared_and_unused_ones_go() {
        let mut pool = ValuePool::<str>::default();
        let kept = pool.share("kept");
        for number in 0..10 * FEW {
            pool.share(&*format!("value {number}"));
        }
        assert!(Arc::ptr_eq(&kept, &pool.share("kept")));
        assert!(pool.values.len() <= FEW, "{}", pool.values.len());
        assert_eq!(pool.used(), 1);
    }
}
