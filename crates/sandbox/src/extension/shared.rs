//! Data that all instances of one function's extensions share. Nothing else outlives a request.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The limit of keys of one function.
const MOST_KEYS: usize = 1024;
/// The limit of bytes of a key.
const LONGEST_KEY: usize = 1024;
/// The limit of bytes of a value.
const LARGEST_VALUE: usize = 16 * 1024;
/// The limit of bytes of all keys and values of one function.
const LARGEST_TOTAL: usize = 256 * 1024;

/// The shared data of one function. It is bounded, and no other function can access it.
#[derive(Debug, Default)]
pub struct SharedData(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    values: HashMap<Box<[u8]>, Value>,
    bytes: usize,
    /// The number of the last change. A value's own number is that of its last change.
    changes: u32,
}

#[derive(Debug)]
struct Value {
    bytes: Box<[u8]>,
    number: u32,
}

/// Why a value was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotStored {
    /// The stored value is not the one that the caller has seen.
    Mismatch,
    /// A limit would be exceeded.
    Full,
}

impl SharedData {
    /// A value, and the number by which it can be replaced if it has not changed since.
    pub(super) fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u32)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.values.get(key).map(|value| (value.bytes.to_vec(), value.number))
    }

    /// Stores a value: if `number` is not 0, only if the stored value has this number.
    pub(super) fn set(&self, key: &[u8], value: &[u8], number: u32) -> Result<(), NotStored> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = &mut *guard;
        let there = entries.values.get(key);
        if number != 0 && there.map(|value| value.number) != Some(number) {
            return Err(NotStored::Mismatch);
        }
        let freed = there.map_or(0, |value| key.len() + value.bytes.len());
        let bytes = entries.bytes - freed + key.len() + value.len();
        let full = there.is_none() && entries.values.len() >= MOST_KEYS;
        if full || key.len() > LONGEST_KEY || value.len() > LARGEST_VALUE || bytes > LARGEST_TOTAL {
            return Err(NotStored::Full);
        }
        entries.bytes = bytes;
        // A caller passes 0 to replace any value.
        entries.changes = entries.changes.checked_add(1).unwrap_or(1);
        let number = entries.changes;
        entries.values.insert(key.into(), Value { bytes: value.into(), number });
        Ok(())
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_replaced_only_by_who_has_seen_it() {
        let data = SharedData::default();
        assert_eq!(data.get(b"k"), None);
        assert_eq!(data.set(b"k", b"1", 7), Err(NotStored::Mismatch), "there is nothing with that number");
        data.set(b"k", b"1", 0).unwrap();
        let (value, number) = data.get(b"k").unwrap();
        assert_eq!(value, b"1");
        data.set(b"k", b"2", number).unwrap();
        assert_eq!(data.set(b"k", b"3", number), Err(NotStored::Mismatch));
        assert_eq!(data.get(b"k").unwrap().0, b"2");
    }

    #[test]
    fn it_is_bounded() {
        let data = SharedData::default();
        assert_eq!(data.set(&[0; LONGEST_KEY + 1], b"", 0), Err(NotStored::Full));
        assert_eq!(data.set(b"k", &[0; LARGEST_VALUE + 1], 0), Err(NotStored::Full));
        let full = (0..).take_while(|n: &u32| data.set(&n.to_le_bytes(), &[0; LARGEST_VALUE], 0).is_ok()).count();
        assert_eq!(full, LARGEST_TOTAL / (LARGEST_VALUE + 4));
        assert!(data.set(&0u32.to_le_bytes(), b"", 0).is_ok(), "a smaller value always fits");
        let small = (100_000..).take_while(|n: &u32| data.set(&n.to_le_bytes(), b"", 0).is_ok()).count();
        assert!(data.len() == MOST_KEYS && small > 0);
    }
}
