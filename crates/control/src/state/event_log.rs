//! The last events of a kind, bounded so that no owner displaces the events of others.

use std::collections::VecDeque;

/// Maximum number of stored events of each owner, and of all.
const MAX_OF_OWNER: usize = 32;
const MAX: usize = 1000;

/// The owner of an event: a namespace or a node.
pub(super) trait HasOwner {
    fn owner(&self) -> &str;
}

/// The last events, oldest first.
pub(super) struct EventLog<E>(VecDeque<E>);

impl<E> Default for EventLog<E> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<E: HasOwner + Clone> EventLog<E> {
    /// Records an event. An event displaces one of its owner, as long as there are many.
    pub(super) fn record(&mut self, event: E) {
        let is_own = |other: &E| other.owner() == event.owner();
        if self.0.iter().filter(|other| is_own(other)).count() >= MAX_OF_OWNER {
            if let Some(oldest) = self.0.iter().position(is_own) {
                self.0.remove(oldest);
            }
        } else if self.0.len() >= MAX {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    /// All events, oldest first.
    pub(super) fn all(&self) -> Vec<E> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Event(String, usize);

    impl HasOwner for Event {
        fn owner(&self) -> &str {
            &self.0
        }
    }

    #[test]
    fn an_owner_with_many_events_displaces_its_own_and_all_have_a_bound() {
        let mut log = EventLog::default();
        log.record(Event("quiet".to_owned(), 0));
        (0..2 * MAX).for_each(|number| log.record(Event("loud".to_owned(), number)));
        let all = log.all();
        assert_eq!((all.len(), &all[0]), (1 + MAX_OF_OWNER, &Event("quiet".to_owned(), 0)));
        assert_eq!(all.last(), Some(&Event("loud".to_owned(), 2 * MAX - 1)));
        (0..2 * MAX).for_each(|number| log.record(Event(number.to_string(), number)));
        assert_eq!(log.all().len(), MAX);
    }
}
