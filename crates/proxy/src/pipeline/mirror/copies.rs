//! The bound on copies of requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Copies that may be under way for the routes of one namespace, on one worker.
const MAX_COPIES: u32 = 64;

/// The copies that are under way on one worker, by the namespaces of their routes.
#[derive(Default)]
pub(crate) struct Copies(Rc<RefCell<HashMap<Box<str>, u32>>>);

/// The place of a copy among those that are under way.
pub(crate) struct Place {
    copies: Rc<RefCell<HashMap<Box<str>, u32>>>,
    namespace: Box<str>,
}

impl Copies {
    /// A place for another copy; `None`: the namespace has all that it may have.
    pub(crate) fn take(&self, namespace: &str) -> Option<Place> {
        let mut copies = self.0.borrow_mut();
        match copies.get_mut(namespace) {
            Some(count) if *count >= MAX_COPIES => return None,
            Some(count) => *count += 1,
            None => drop(copies.insert(namespace.into(), 1)),
        }
        Some(Place { copies: self.0.clone(), namespace: namespace.into() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut copies = self.copies.borrow_mut();
        if let Some(count) = copies.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                copies.remove(&self.namespace);
            }
        }
    }
}
