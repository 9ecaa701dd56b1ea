//! Fair queueing: the class that has used the least time is next. Pure: callers pass the times in.

use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// Up to this many classes are kept before idle ones are looked for.
const FEW: usize = 64;

/// The function, or the part of the worker, for which a task works. Ready tasks of one class take
/// turns, and classes share the worker's time evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub(super) u64);

impl Class {
    /// The worker's own tasks: accepting, cleaning up.
    pub const WORKER: Self = Self(0);
    /// Connections whose function is not yet known.
    pub const UNATTRIBUTED: Self = Self(1);

    /// Whether this class is a function.
    pub(super) fn is_function(self) -> bool {
        self > Self::UNATTRIBUTED
    }

    /// The class of a name, the same on every worker. Two names with the same hash (one in 2^64)
    /// would share turns, nothing worse.
    #[inline]
    pub fn of(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Items, each in the queue of a class.
///
/// A class's *virtual time* is the time that it has used, in nanoseconds. The class with the least
/// is next. A class that was idle continues at the virtual time of the others, so it has neither
/// saved up time nor fallen behind.
#[derive(Debug)]
pub(super) struct Fair<T> {
    queues: HashMap<Class, Queue<T>, BuildHasherDefault<IdentityHasher>>,
    /// Classes with items, by the virtual time that they had when they were put here. It may have
    /// grown since.
    order: BinaryHeap<Reverse<(u64, Class)>>,
    /// The virtual time of the others: that of the class with the last turn before this turn, or
    /// after it if no other class waited.
    now: u64,
    /// When there are more classes than this, idle ones are forgotten.
    many: usize,
    /// Items of all classes.
    length: usize,
}

#[derive(Debug)]
struct Queue<T> {
    used: u64,
    ready: VecDeque<T>,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        Self { queues: HashMap::default(), order: BinaryHeap::new(), now: 0, many: FEW, length: 0 }
    }
}

impl<T> Fair<T> {
    /// Adds an item to the end of the queue of `class`.
    pub(super) fn push(&mut self, class: Class, item: T) {
        if self.queues.len() >= self.many && !self.queues.contains_key(&class) {
            self.forget();
        }
        let queue = self.queues.entry(class).or_insert_with(|| Queue { used: 0, ready: VecDeque::new() });
        if queue.ready.is_empty() {
            queue.used = queue.used.max(self.now);
            self.order.push(Reverse((queue.used, class)));
        }
        queue.ready.push_back(item);
        self.length += 1;
    }

    /// How many items there are.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Takes the next item.
    pub(super) fn pop(&mut self) -> Option<T> {
        loop {
            let mut first = self.order.peek_mut()?;
            let Reverse((used, class)) = *first;
            let Some(queue) = self.queues.get_mut(&class) else {
                PeekMut::pop(first);
                continue;
            };
            if queue.used != used {
                // The class was charged since. The heap moves it when `first` is dropped.
                *first = Reverse((queue.used, class));
                continue;
            }
            self.now = self.now.max(used);
            let item = queue.ready.pop_front();
            if queue.ready.is_empty() {
                PeekMut::pop(first);
            }
            if item.is_some() {
                self.length -= 1;
                return item;
            }
        }
    }

    /// Adds to the virtual time of `class`.
    pub(super) fn charge(&mut self, class: Class, nanoseconds: u64) {
        if let Some(queue) = self.queues.get_mut(&class) {
            queue.used = queue.used.saturating_add(nanoseconds);
            if self.order.is_empty() {
                // No other class has to catch up.
                self.now = self.now.max(queue.used);
            }
        }
    }

    /// Forgets idle classes that are not ahead of the others. If they come again, they begin where
    /// the others are, as they would have.
    fn forget(&mut self) {
        let now = self.now;
        self.queues.retain(|_, queue| !queue.ready.is_empty() || queue.used > now);
        self.many = (2 * self.queues.len()).max(FEW);
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Class = Class(10);
    const B: Class = Class(11);

    /// Upper case works for `B`.
    fn class_of(item: char) -> Class {
        if item.is_uppercase() { B } else { A }
    }

    /// Takes the next `count`, each costing `cost` of its class; puts each back.
    fn turns(fair: &mut Fair<char>, count: usize, cost: impl Fn(char) -> u64) -> String {
        let mut turns = String::new();
        for _ in 0..count {
            let Some(item) = fair.pop() else { break };
            let class = class_of(item);
            turns.push(item);
            fair.charge(class, cost(item));
            fair.push(class, item);
        }
        turns
    }

    #[test]
    fn one_class_is_a_queue() {
        let mut fair = Fair::default();
        for item in 'a'..='d' {
            fair.push(A, item);
        }
        assert_eq!(turns(&mut fair, 6, |_| 10), "abcdab");
    }

    #[test]
    fn classes_share_time_whatever_their_tasks() {
        let mut fair = Fair::default();
        ('a'..='h').for_each(|item| fair.push(A, item));
        fair.push(B, 'Z');
        let order = turns(&mut fair, 40, |_| 10);
        assert_eq!(order.matches('Z').count(), 20, "{order}");
        assert!(!order.contains("ZZ"), "{order}");
    }

    #[test]
    fn who_takes_long_turns_has_fewer() {
        let mut fair = Fair::default();
        fair.push(A, 'a');
        fair.push(B, 'B');
        let order = turns(&mut fair, 110, |item| if item == 'a' { 100 } else { 10 });
        assert_eq!(order.matches('a').count(), 10, "{order}");
    }

    #[test]
    fn who_wakes_is_soon_next_but_has_saved_up_nothing() {
        let mut fair = Fair::default();
        fair.push(A, 'a');
        turns(&mut fair, 1000, |_| 10);
        fair.push(B, 'B');
        let order = turns(&mut fair, 20, |_| 10);
        // With equal times either may be first.
        assert!(order[..2].contains('B'), "{order}");
        assert!((10..=11).contains(&order.matches('B').count()), "{order}");
    }

    #[test]
    fn sleeping_pays_no_debt() {
        let mut fair = Fair::default();
        fair.push(A, 'a');
        fair.push(B, 'B');
        assert_eq!(fair.pop(), Some('a'));
        fair.charge(A, 1000);
        assert_eq!(turns(&mut fair, 5, |_| 100), "BBBBB");
        fair.push(A, 'a');
        let order = turns(&mut fair, 7, |_| 100);
        assert_eq!(order.matches('a').count(), 1, "it waits until the other has had as much: {order}");
    }

    #[test]
    fn classes_with_nothing_to_do_are_forgotten() {
        let mut fair = Fair::default();
        for number in 0..10_000 {
            fair.push(Class(number), number);
            assert_eq!(fair.pop(), Some(number));
            fair.charge(Class(number), 10);
        }
        assert!(fair.queues.len() <= 2 * FEW, "{}", fair.queues.len());
        assert_eq!(fair.pop(), None);
        fair.push(A, 1);
        (0..10_000).for_each(|number| fair.push(Class(number), number));
        assert_eq!(fair.len(), 10_001);
        assert_eq!(std::iter::from_fn(|| fair.pop()).count(), 10_001, "who has something to do is not");
        assert_eq!(fair.len(), 0);
    }
}
