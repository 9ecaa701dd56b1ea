//! Fair turns of requests: between tenants, and between the tokens of a tenant.

use super::error::ApiError;
use super::tokens::Caller;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A kind of work with a bounded number of concurrent requests.
pub(super) struct Turns {
    limits: Limits,
    queue: Mutex<Queue>,
}

/// Bounds of concurrent work.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Of all tenants.
    pub all: usize,
    /// Of one tenant.
    pub of_tenant: usize,
    /// Waiting requests of one token. Further ones are refused.
    pub waiting: usize,
}

#[derive(Default)]
struct Queue {
    running: usize,
    /// Tenants with requests. The first ones have waited longest.
    tenants: VecDeque<Tenant>,
}

struct Tenant {
    name: String,
    running: usize,
    /// Tokens with waiting requests.
    tokens: VecDeque<(String, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A request's turn. It ends when this value is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    tenant: String,
}

impl Turns {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, queue: Mutex::default() })
    }

    /// Waits for the caller's turn.
    pub(super) async fn wait(self: &Arc<Self>, caller: &Caller) -> Result<Turn, ApiError> {
        let turn = self.enter(caller)?;
        self.advance();
        turn.await.map_err(|_| ApiError::Unavailable("the control plane is stopping".to_owned()))
    }

    fn enter(self: &Arc<Self>, caller: &Caller) -> Result<oneshot::Receiver<Turn>, ApiError> {
        let (name, token) = (caller.tenant(), &caller.name);
        let mut queue = self.queue();
        if !queue.tenants.iter().any(|tenant| tenant.name == name) {
            queue.tenants.push_back(Tenant { name: name.clone(), running: 0, tokens: VecDeque::new() });
        }
        let tenant = queue.tenants.iter_mut().find(|tenant| tenant.name == name);
        let tokens = &mut tenant.ok_or_else(|| ApiError::Unavailable("no turn".to_owned()))?.tokens;
        let (turn, receiver) = oneshot::channel();
        match tokens.iter_mut().find(|(other, _)| other == token) {
            Some((_, waiting)) => {
                waiting.retain(|request| !request.is_closed());
                if waiting.len() >= self.limits.waiting {
                    let reason = format!("{} requests of this token wait already; try again later", waiting.len());
                    return Err(ApiError::TooMany(reason));
                }
                waiting.push_back(turn);
            }
            None => tokens.push_back((token.clone(), VecDeque::from([turn]))),
        }
        Ok(receiver)
    }

    /// Gives turns to the tenants that have waited longest.
    fn advance(self: &Arc<Self>) {
        // The turn of a cancelled request ends here, after the lock.
        let mut unclaimed = Vec::new();
        let mut queue = self.queue();
        while queue.running < self.limits.all {
            let may = |tenant: &Tenant| tenant.running < self.limits.of_tenant && !tenant.tokens.is_empty();
            let Some(mut tenant) = queue.tenants.iter().position(may).and_then(|at| queue.tenants.remove(at)) else {
                break;
            };
            if let Some((token, mut waiting)) = tenant.tokens.pop_front() {
                if let Some(request) = waiting.pop_front() {
                    tenant.running += 1;
                    queue.running += 1;
                    let turn = Turn { turns: self.clone(), tenant: tenant.name.clone() };
                    unclaimed.extend(request.send(turn).err());
                }
                if !waiting.is_empty() {
                    tenant.tokens.push_back((token, waiting));
                }
            }
            queue.tenants.push_back(tenant);
        }
        drop(queue);
        drop(unclaimed);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.turns.queue();
        queue.running -= 1;
        let at = queue.tenants.iter().position(|tenant| tenant.name == self.tenant);
        if let Some(mut tenant) = at.and_then(|at| queue.tenants.remove(at)) {
            tenant.running -= 1;
            // Requests that have arrived meanwhile are next.
            if tenant.running > 0 || !tenant.tokens.is_empty() {
                queue.tenants.push_back(tenant);
            }
        }
        drop(queue);
        self.turns.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::types::Role;
    use std::collections::BTreeSet;

    fn caller(token: &str, namespace: &str) -> Caller {
        let namespaces = BTreeSet::from([namespace.to_owned()]);
        Caller { name: token.to_owned(), from: String::new(), role: Role::Reader, namespaces }
    }

    #[tokio::test]
    async fn a_token_that_asks_for_much_waits_behind_those_that_ask_for_little() {
        let turns = Turns::new(Limits { all: 1, of_tenant: 1, waiting: 3 });
        let [greedy, other, third] = [caller("greedy", "a"), caller("other", "a"), caller("third", "b")];
        let first = turns.wait(&greedy).await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| turns.enter(&greedy).unwrap()).collect();
        assert!(matches!(turns.enter(&greedy), Err(ApiError::TooMany(_))));
        let mut same_tenant = turns.enter(&other).unwrap();
        let mut other_tenant = turns.enter(&third).unwrap();
        drop(first);
        let turn = other_tenant.try_recv().expect("another tenant is next");
        assert!(same_tenant.try_recv().is_err() && waiting[0].try_recv().is_err(), "one at a time");
        drop(turn);
        drop(waiting.remove(0).try_recv().expect("then the tenant that waits longest"));
        drop(same_tenant.try_recv().expect("another token of it before the next request of the same one"));
        // A cancelled request does not keep its turn.
        drop(waiting.remove(0));
        drop(waiting.remove(0).try_recv().expect("the last one"));
        assert!(turns.queue().tenants.is_empty() && turns.queue().running == 0, "nothing is kept");
    }

    #[tokio::test]
    async fn a_tenant_leaves_room_for_others() {
        let turns = Turns::new(Limits { all: 3, of_tenant: 2, waiting: 8 });
        let _held = [turns.wait(&caller("x", "a")).await.unwrap(), turns.wait(&caller("y", "a")).await.unwrap()];
        let mut more = turns.enter(&caller("z", "a")).unwrap();
        let _other = turns.wait(&caller("x", "b")).await.unwrap();
        assert!(more.try_recv().is_err());
    }
}
