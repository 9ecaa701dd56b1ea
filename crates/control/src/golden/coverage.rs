//! The fields and variants that occur in golden files.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// Whether any input had a field or variant, by its type and name.
    static SEEN: RefCell<BTreeMap<(&'static str, &'static str), bool>> = RefCell::default();
}

pub(super) fn note(of: &'static str, name: &'static str, written: bool) {
    SEEN.with_borrow_mut(|seen| *seen.entry((of, name)).or_default() |= written);
}

/// The fields and variants that a decoder knows and that no input had.
pub(super) fn missing() -> Vec<String> {
    let missing = |((of, name), seen): (&(_, _), &bool)| (!seen).then(|| format!("{of}::{name}"));
    SEEN.with_borrow(|seen| seen.iter().filter_map(missing).collect())
}
