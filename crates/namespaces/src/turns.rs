//! Work of which the node does so much at a time, divided fairly between namespaces.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Turns for work, limited for each namespace and for all together. The namespace that has the
/// fewest is next; among several, the one that has waited longest.
#[derive(Debug)]
pub struct Turns {
    all: usize,
    each: usize,
    of_one: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    by_namespace: BTreeMap<Arc<str>, Line>,
    /// Numbers waiters by age.
    next: u64,
}

#[derive(Debug, Default)]
struct Line {
    under_way: usize,
    /// By subject, such as a registry.
    of: HashMap<Arc<str>, usize>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    subject: Arc<str>,
    go: oneshot::Sender<Turn>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    namespace: Arc<str>,
    subject: Arc<str>,
}

impl Turns {
    /// Turns, of which all namespaces together have at most `all` at a time, each namespace at most
    /// `each`, and each subject of a namespace at most `of_one`.
    pub fn new(all: usize, each: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { all, each, of_one, state: Mutex::default() })
    }

    /// Waits for a turn of this namespace, for work with this subject.
    pub async fn take(self: &Arc<Self>, namespace: &str, subject: &str) -> Turn {
        loop {
            let turn = self.line_up(namespace, subject);
            self.proceed();
            // It fails for a waiter only that has gone away.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    fn line_up(&self, namespace: &str, subject: &str) -> oneshot::Receiver<Turn> {
        let (go, turn) = oneshot::channel();
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let line = state.by_namespace.entry(namespace.into()).or_default();
        line.waiting.push_back(Waiter { number, subject: subject.into(), go });
        turn
    }

    /// How many turns are taken.
    pub fn under_way(&self) -> usize {
        self.state().under_way
    }

    fn proceed(self: &Arc<Self>) {
        loop {
            let (turn, go) = {
                let mut state = self.state();
                if state.under_way >= self.all {
                    return;
                }
                let Some((namespace, at)) = state.first(self.each, self.of_one) else { return };
                let Some((subject, go)) = state.begin(&namespace, at) else { return };
                (Turn { turns: self.clone(), namespace, subject }, go)
            };
            // A waiter that went away gives its turn back.
            drop(go.send(turn));
        }
    }

    fn end(self: &Arc<Self>, namespace: &Arc<str>, subject: &Arc<str>) {
        let mut state = self.state();
        state.under_way = state.under_way.saturating_sub(1);
        if let Some(line) = state.by_namespace.get_mut(namespace) {
            line.under_way = line.under_way.saturating_sub(1);
            if let Some(count) = line.of.get_mut(subject) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    line.of.remove(subject);
                }
            }
            if line.under_way == 0 && line.waiting.is_empty() {
                state.by_namespace.remove(namespace);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The namespace whose turn it is, and the place of its waiter.
    fn first(&mut self, each: usize, of_one: usize) -> Option<(Arc<str>, usize)> {
        let mut first: Option<(usize, u64, Arc<str>, usize)> = None;
        for (namespace, line) in &mut self.by_namespace {
            line.waiting.retain(|waiter| !waiter.go.is_closed());
            if line.under_way >= each {
                continue;
            }
            let of = &line.of;
            let may = |waiter: &Waiter| of.get(&waiter.subject).copied().unwrap_or_default() < of_one;
            let Some(at) = line.waiting.iter().position(may) else { continue };
            let key = (line.under_way, line.waiting[at].number);
            if first.as_ref().is_none_or(|(under_way, number, ..)| key < (*under_way, *number)) {
                first = Some((key.0, key.1, namespace.clone(), at));
            }
        }
        self.by_namespace.retain(|_, line| line.under_way > 0 || !line.waiting.is_empty());
        first.map(|(_, _, namespace, at)| (namespace, at))
    }

    fn begin(&mut self, namespace: &Arc<str>, at: usize) -> Option<(Arc<str>, oneshot::Sender<Turn>)> {
        let line = self.by_namespace.get_mut(namespace)?;
        let Waiter { subject, go, .. } = line.waiting.remove(at)?;
        line.under_way += 1;
        *line.of.entry(subject.clone()).or_default() += 1;
        self.under_way += 1;
        Some((subject, go))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.end(&self.namespace, &self.subject);
        self.turns.proceed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn at_once(turns: &Arc<Turns>, namespace: &str, subject: &str) -> Option<Turn> {
        now(pin!(turns.take(namespace, subject)))
    }

    #[test]
    fn a_namespace_with_many_waiters_keeps_no_other_waiting() {
        let turns = Turns::new(4, 2, 2);
        let held: Vec<_> = (0..9).filter_map(|_| at_once(&turns, "hostile", "slow")).collect();
        assert_eq!((held.len(), turns.under_way()), (2, 2));
        let other = at_once(&turns, "shop", "good");
        assert!(other.is_some());
        drop((held, other));
        assert_eq!(turns.under_way(), 0);
        assert!(turns.state().by_namespace.is_empty(), "nothing is kept of those that went away");
    }

    #[test]
    fn a_slow_registry_leaves_turns_for_others_of_its_namespace() {
        let turns = Turns::new(9, 3, 2);
        let slow: Vec<_> = (0..5).filter_map(|_| at_once(&turns, "shop", "slow")).collect();
        assert_eq!(slow.len(), 2);
        assert!(at_once(&turns, "shop", "good").is_some());
    }

    #[test]
    fn the_namespace_that_has_least_is_next() {
        let turns = Turns::new(2, 2, 2);
        let (first, second) = (at_once(&turns, "a", "x").unwrap(), at_once(&turns, "a", "x").unwrap());
        let (mut a, mut b) = (pin!(turns.take("a", "x")), pin!(turns.take("b", "x")));
        assert!(now(a.as_mut()).is_none() && now(b.as_mut()).is_none());
        drop(first);
        assert!(now(a.as_mut()).is_none());
        let of_b = now(b.as_mut());
        assert!(of_b.is_some());
        drop(second);
        assert!(now(a.as_mut()).is_some());
    }
}
