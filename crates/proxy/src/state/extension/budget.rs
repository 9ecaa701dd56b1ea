//! Limits how many instances of extensions each function and namespace keeps for responses.
//!
//! An extension that sees responses holds an instance for as long as the function takes to answer,
//! and a node has only so many ([`MOST_KEPT`]). So each function and each namespace has a budget,
//! and requests beyond it wait for a while. Namespaces take turns: however many requests of one
//! namespace wait, the first request of another is next. A request that has waited too long is
//! refused, regardless of the extension's `failMode`. Otherwise, one namespace could turn off the
//! policies of others by using up the node's instances.

use leno_model::ExtensionInstances;
use leno_model::FunctionId;
use leno_sandbox::extension::MOST_INSTANCES;
use leno_telemetry::exposition::{Collector, Exposition};
use leno_telemetry::families;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum number of instances that may wait for responses. The rest is for runs that end before
/// their worker does other work.
const MOST_KEPT: u32 = MOST_INSTANCES - 128;
/// A request that has to wait longer is refused.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of requests of one namespace that wait.
const MOST_WAITING: usize = 1000;

/// One node's budget.
#[derive(Debug, Default)]
pub struct Budget(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Instances kept for all functions together.
    kept: u32,
    functions: HashMap<FunctionId, u32>,
    namespaces: HashMap<Box<str>, Namespace>,
    /// Namespaces in which requests wait, the next one first.
    turns: VecDeque<Box<str>>,
}

#[derive(Debug, Default)]
struct Namespace {
    kept: u32,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    wanted: InstanceDemand,
    granted: oneshot::Sender<Share>,
}

#[derive(Clone, Debug)]
struct InstanceDemand {
    function: FunctionId,
    count: u32,
    /// The limits as configured when the request arrived.
    most: ExtensionInstances,
}

impl InstanceDemand {
    fn namespace(&self) -> &str {
        &self.function.namespace
    }
}

/// Instances that one request may keep. Dropping this gives them back.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    function: FunctionId,
    count: u32,
}

/// No instance is free for this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no instance of an extension was free: {0}")]
pub struct BudgetExhausted(&'static str);

impl Budget {
    /// Reserves `count` instances for a request to this function. Waits for them for at most a
    /// second.
    pub async fn take(
        self: &Arc<Self>,
        function: &FunctionId,
        count: u32,
        most: ExtensionInstances,
    ) -> Result<Share, BudgetExhausted> {
        let wanted = InstanceDemand { function: function.clone(), count, most };
        if count > most.per_function.min(most.per_namespace).min(MOST_KEPT) {
            return Err(BudgetExhausted("the request needs more of them than its function may have"));
        }
        let receiver = {
            let mut state = self.lock();
            if state.fits(&wanted) {
                state.count(&wanted);
                return Ok(self.share(&wanted));
            }
            state.queue(wanted)?
        };
        if let Ok(Ok(share)) = timeout(LONGEST_WAIT, receiver).await {
            return Ok(share);
        }
        self.lock().forget(&function.namespace);
        Err(BudgetExhausted("the function, its namespace or the node had as many as they may for a second"))
    }

    /// The current counts, for metrics.
    pub fn scrape(&self) -> Scrape {
        let state = self.lock();
        let count = |waiting: &VecDeque<Waiting>| waiting.iter().filter(|one| !one.granted.is_closed()).count();
        let waiting = |namespace: &Namespace| i64::try_from(count(&namespace.waiting)).unwrap_or(i64::MAX);
        let told = state.namespaces.iter();
        Scrape(told.map(|(name, one)| (name.clone(), [i64::from(one.kept), waiting(one)])).collect())
    }

    fn share(self: &Arc<Self>, wanted: &InstanceDemand) -> Share {
        Share { budget: self.clone(), function: wanted.function.clone(), count: wanted.count }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut granted = Vec::new();
        {
            let mut state = self.budget.lock();
            state.uncount(&self.function, self.count);
            while let Some(waiting) = state.next() {
                state.count(&waiting.wanted);
                granted.push(waiting);
            }
        }
        for Waiting { wanted, granted } in granted {
            // If the request has gone meanwhile, its share is dropped and thereby given back.
            let _ = granted.send(self.budget.share(&wanted));
        }
    }
}

impl State {
    fn fits(&self, wanted: &InstanceDemand) -> bool {
        let of = |kept: Option<u32>, most: u32| kept.unwrap_or(0) + wanted.count <= most;
        of(Some(self.kept), MOST_KEPT)
            && of(self.functions.get(&wanted.function).copied(), wanted.most.per_function)
            && of(self.namespaces.get(wanted.namespace()).map(|namespace| namespace.kept), wanted.most.per_namespace)
    }

    fn count(&mut self, wanted: &InstanceDemand) {
        self.kept += wanted.count;
        *self.functions.entry(wanted.function.clone()).or_default() += wanted.count;
        self.namespaces.entry(wanted.namespace().into()).or_default().kept += wanted.count;
    }

    fn uncount(&mut self, function: &FunctionId, count: u32) {
        self.kept -= count;
        if let Some(kept) = self.functions.get_mut(function) {
            *kept -= count;
            if *kept == 0 {
                self.functions.remove(function);
            }
        }
        if let Some(namespace) = self.namespaces.get_mut(&*function.namespace) {
            namespace.kept -= count;
        }
        self.forget(&function.namespace);
    }

    /// Forgets requests that have gone, and the namespace if nothing of it is left.
    fn forget(&mut self, name: &str) {
        if let Some(namespace) = self.namespaces.get_mut(name) {
            namespace.waiting.retain(|waiting| !waiting.granted.is_closed());
        }
        if self.namespaces.get(name).is_some_and(|namespace| namespace.kept == 0 && namespace.waiting.is_empty()) {
            self.namespaces.remove(name);
        }
    }

    fn queue(&mut self, wanted: InstanceDemand) -> Result<oneshot::Receiver<Share>, BudgetExhausted> {
        let name: Box<str> = wanted.namespace().into();
        let namespace = self.namespaces.entry(name.clone()).or_default();
        namespace.waiting.retain(|waiting| !waiting.granted.is_closed());
        if namespace.waiting.len() >= MOST_WAITING {
            return Err(BudgetExhausted("too many requests of its namespace wait for one"));
        }
        if !self.turns.contains(&name) {
            self.turns.push_back(name);
        }
        let (granted, receiver) = oneshot::channel();
        namespace.waiting.push_back(Waiting { wanted, granted });
        Ok(receiver)
    }

    /// Takes the next waiting request that fits into the budget. Namespaces take turns. Within one,
    /// the request that has waited longest comes first.
    fn next(&mut self) -> Option<Waiting> {
        for _ in 0..self.turns.len() {
            let name = self.turns.pop_front()?;
            self.forget(&name);
            let Some(namespace) = self.namespaces.get(&name).filter(|namespace| !namespace.waiting.is_empty()) else {
                continue;
            };
            let found = namespace.waiting.iter().position(|waiting| self.fits(&waiting.wanted));
            let next = found.and_then(|index| self.namespaces.get_mut(&name)?.waiting.remove(index));
            self.turns.push_back(name);
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

/// By namespace: how many instances were kept, and how many requests waited, at one moment.
#[derive(Debug)]
pub struct Scrape(BTreeMap<Box<str>, [i64; 2]>);

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        for (index, family) in [&families::EXTENSION_INSTANCES, &families::EXTENSION_WAITING].into_iter().enumerate() {
            let counts = self.0.iter().map(|(namespace, counts)| ([namespace], counts[index]));
            exposition.family(family).samples(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn most(per_function: u32, per_namespace: u32) -> ExtensionInstances {
        ExtensionInstances { per_function, per_namespace }
    }

    /// The future's output, if it is ready now.
    async fn now<F: Future + Unpin>(future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }

    /// Number of instances that are kept, and of requests that wait.
    fn counts(budget: &Budget) -> (i64, i64) {
        let Scrape(namespaces) = budget.scrape();
        namespaces.values().fold((0, 0), |(kept, waiting), counts| (kept + counts[0], waiting + counts[1]))
    }

    fn id(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    /// Takes `count` shares of one instance, each for another request.
    async fn take(budget: &Arc<Budget>, function: &str, count: u32, limits: ExtensionInstances) -> Vec<Share> {
        let mut kept = Vec::new();
        for _ in 0..count {
            kept.push(budget.take(&id(function), 1, limits).await.unwrap());
        }
        kept
    }

    #[tokio::test]
    async fn one_tenant_does_not_take_what_is_anothers() {
        let (budget, limits) = (Arc::new(Budget::default()), most(100, 250));
        let mut held = take(&budget, "greedy/a", 100, limits).await;
        assert!(budget.take(&id("greedy/a"), 1, limits).await.is_err(), "the function has its budget");
        held.extend(take(&budget, "greedy/b", 100, limits).await);
        held.extend(take(&budget, "greedy/c", 50, limits).await);
        assert!(budget.take(&id("greedy/c"), 1, limits).await.is_err(), "the namespace has its budget");
        let other = take(&budget, "modest/a", 100, limits).await;
        assert_eq!(counts(&budget), (350, 0));
        drop((held, other));
        let state = budget.lock();
        assert!(state.namespaces.is_empty() && state.functions.is_empty(), "nothing is remembered");
    }

    #[tokio::test]
    async fn a_request_that_needs_more_than_there_can_be_does_not_wait() {
        let (budget, limits) = (Arc::new(Budget::default()), most(2, 250));
        let refused = now(pin!(budget.take(&id("shop/a"), 3, limits))).await;
        assert!(refused.is_some_and(|refused| refused.is_err()));
    }

    #[tokio::test]
    async fn namespaces_have_turns_and_requests_their_order() {
        let (budget, limits) = (Arc::new(Budget::default()), most(MOST_KEPT, MOST_KEPT));
        let mut held = take(&budget, "greedy/a", MOST_KEPT, limits).await;
        let (greedy, modest) = (id("greedy/a"), id("modest/a"));
        let mut first = pin!(budget.take(&greedy, 1, limits));
        let mut second = pin!(budget.take(&greedy, 1, limits));
        let mut other = pin!(budget.take(&modest, 1, limits));
        for waiting in [&mut first, &mut second, &mut other] {
            assert!(now(waiting).await.is_none());
        }
        held.pop();
        let first = now(&mut first).await.expect("it came first").unwrap();
        assert!(now(&mut second).await.is_none());
        assert!(now(&mut other).await.is_none());
        held.pop();
        let other = now(&mut other).await.expect("it is the other namespace's turn").unwrap();
        assert!(now(&mut second).await.is_none());
        drop(other);
        drop(now(&mut second).await.expect("there is one again").unwrap());
        drop((first, held));
        assert_eq!(counts(&budget), (0, 0));
    }

    #[tokio::test]
    async fn who_has_gone_takes_nothing_and_who_waits_too_long_is_refused() {
        let (budget, limits) = (Arc::new(Budget::default()), most(1, 1));
        let held = budget.take(&id("shop/a"), 1, limits).await.unwrap();
        let function = id("shop/a");
        let mut gone = Box::pin(budget.take(&function, 1, limits));
        assert!(now(&mut gone).await.is_none());
        drop(gone);
        let refused = budget.take(&function, 1, limits).await;
        assert!(refused.unwrap_err().to_string().contains("for a second"));
        drop(held);
        assert_eq!(counts(&budget), (0, 0));
        drop(budget.take(&function, 1, limits).await.unwrap());
    }
}
