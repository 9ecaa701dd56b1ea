//! Opens channels. Calls between the two instances of a channel then go through the kernel, without
//! the node.
//!
//! The first call from an instance to a function is judged like any other. If its verdict depended
//! only on the identities of caller and callee, the two instances get a channel for the calls that
//! follow. Like a connection, a channel counts as one request in flight at the callee. The node
//! closes a channel that has carried nothing for a while, whose permission a change has withdrawn,
//! or one of whose instances has ended.

use crate::pipeline::worker::Worker;
use crate::state::channels::{self, Direct, Edge, Indirect, Open, Terms};
use crate::state::channels::{CHANNEL_VIOLATIONS, ChannelCounts, ChannelLimits};
use crate::state::credential::Caller;
use crate::state::instances::Lease;
use leno_model::FunctionId;
use leno_runtime::schedule::{self, Class};
use leno_shm::Link;
use leno_shm::handshake::{End, MOST_TEXT};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of channels from an instance to one function. Further calls share these channels.
const MOST: usize = 16;
/// Time without calls after which the node closes a channel.
const IDLE: Duration = Duration::from_secs(10);
/// Time between two reads of a channel's counters.
const LOOK: Duration = Duration::from_secs(1);
/// Time that open calls have to end after their permission is withdrawn, the same as for requests
/// through a sidecar.
const GRACE: Duration = crate::pipeline::open::GRACE;
/// Time before the next try if a channel could not be opened.
const PAUSE: Duration = Duration::from_secs(10);
/// Time between the first two reads of the counters of a channel that is closing.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Maximum number of violations of an instance on one channel. An instance that exceeds it gets no
/// more channels.
const VIOLATIONS: u64 = 1000;

/// Opens a channel for calls like the one that was just carried, if its caller and callee may have
/// one.
pub(super) fn consider(worker: &Rc<Worker>, caller: &Arc<Caller>, host: &str) {
    let node = &worker.node;
    if node.channels.switch().is_none() || caller.is_revoked() || node.channels.is_banned(&caller.instance) {
        return;
    }
    let Some((snapshot, entry)) = worker.snapshot_with(&caller.function) else { return };
    let Some(to) = entry.callee(host).filter(|_| entry.config.chain.as_ref().is_some_and(|chain| chain.direct)) else {
        return;
    };
    let Ok(direct) = channels::direct(&snapshot, &entry, to) else { return };
    let taken = node.channels.addresses(&caller.instance, &to.id);
    let Direct { callee, terms } = direct;
    if taken.len() >= MOST || terms.names.is_empty() {
        return;
    }
    let who = format!("{}\nBy={};URI={}", terms.names, callee.identity, entry.identity);
    // A lease counts as a request, so the node takes none if the callee has no further instance.
    if who.len() > MOST_TEXT || node.instances.count(&to.id) as usize <= taken.len() {
        return;
    }
    if !node.channels.begin(&caller.instance, &to.id) {
        return;
    }
    let lease = node.instances.try_acquire(&to.id, terms.revision, &taken);
    // `try_acquire` returns an instance that already has a channel only if there is no other.
    let Some(lease) = lease.filter(|lease| !taken.contains(&lease.address)) else {
        return node.channels.begun(&caller.instance, &to.id);
    };
    let opening = Opening { worker: worker.clone(), caller: caller.clone(), callee: to.id.clone(), lease };
    schedule::spawn_for(Class::WORKER, async move {
        let (node, caller, callee) = (opening.worker.node.clone(), opening.caller.clone(), opening.callee.clone());
        let watched = opening.open(terms, who).await;
        if watched.is_none() {
            // Otherwise each call would try again.
            tokio::time::sleep(PAUSE).await;
        }
        node.channels.begun(&caller.instance, &callee);
        if let Some(watched) = watched {
            watched.watch().await;
        }
    });
}

/// A channel that the node is about to open.
struct Opening {
    worker: Rc<Worker>,
    caller: Arc<Caller>,
    callee: FunctionId,
    /// The lease of the instance that the channel leads to.
    lease: Lease,
}

impl Opening {
    /// Opens the channel; `None`: the two instances cannot have one.
    async fn open(self, terms: Terms, who: String) -> Option<ChannelWatch> {
        let Self { worker, caller, callee, lease } = self;
        let node = worker.node.clone();
        let instance = lease.instance.clone().filter(|instance| !node.channels.is_banned(instance))?;
        let (from, link) = (node.links.get(&caller.instance)?, node.links.get(&instance)?);
        if !from.takes_channels() || !link.takes_channels() || from.domain() != link.domain() {
            return None;
        }
        let chain = from.domain().name().to_owned();
        let head = from.most_head().min(link.most_head());
        let limits = ChannelLimits { caller_arena: from.instance_arena(), callee_arena: link.instance_arena(), head };
        let (switch, ends) = (node.channels.switch()?.clone(), [caller.instance.clone(), instance.clone()]);
        // The kernel takes a moment to make a network.
        let opened = tokio::task::spawn_blocking(move || switch.open([&ends[0], &ends[1]], limits)).await;
        let opened = opened.map_err(Into::into).and_then(|opened| opened);
        let opened = opened.inspect_err(|error| tracing::warn!(chain, %error, "no channel can be opened")).ok()?;
        // The callee is offered the channel first, so that it knows the channel when the first call
        // comes.
        link.offer(&from, End::Callee, terms.timeout, who, opened.callee).ok()?;
        let number = from.offer(&link, End::Caller, terms.timeout, terms.names.clone(), opened.caller).ok()?;
        tracing::debug!(from = &*caller.instance, to = &*instance, "calls go through the kernel from now on");
        let edge = Edge { chain, caller: caller.function.clone(), callee };
        let (channel, address) = (opened.channel, lease.address);
        let open = Arc::new(Open { edge, channel, caller: caller.instance.clone(), callee: instance, address });
        node.channels.add(open.clone());
        Some(ChannelWatch { worker, caller, open, from, link, number, lease, terms })
    }
}

/// A channel, until it is closed.
struct ChannelWatch {
    worker: Rc<Worker>,
    caller: Arc<Caller>,
    open: Arc<Open>,
    from: Link,
    link: Link,
    /// The channel's number on the caller's link.
    number: u32,
    /// Counts as one request.
    lease: Lease,
    /// The terms under which the channel was opened.
    terms: Terms,
}

/// Why a channel is closed.
enum CloseReason {
    /// One of the two instances has ended, or must not use the channel any more.
    AtOnce,
    /// Open calls may end within this time.
    Within(Duration),
}

impl ChannelWatch {
    async fn watch(self) {
        let closed = self.closed().await;
        self.open.channel.close();
        self.from.withdraw(self.number);
        if let CloseReason::Within(grace) = closed {
            self.wait_until_idle(grace).await;
        }
        // The channel is removed only now, so that the last counts of both instances are included.
        self.worker.node.channels.remove(&self.open);
        drop(self.lease);
    }

    /// Waits until the open calls have ended, for at most `grace`. Another change can shorten this
    /// time.
    async fn wait_until_idle(&self, mut grace: Duration) {
        let (begin, mut violations, mut pause, mut idle) = (Instant::now(), [0; 2], LAST_LOOK, 0);
        // An idle channel is checked twice, because the receiver may not have read the last message
        // yet.
        while idle < 2 && begin.elapsed() < grace && !self.has_ended() && !self.open.channel.has_ended() {
            tokio::time::sleep(pause).await;
            let counts = self.open.channel.counts();
            idle = if counts.is_idle() { idle + 1 } else { 0 };
            pause = if idle > 0 { LAST_LOOK } else { (2 * pause).min(LOOK) };
            match self.is_withdrawn() {
                Some(CloseReason::AtOnce) => return,
                Some(CloseReason::Within(less)) => grace = grace.min(begin.elapsed().saturating_add(less)),
                None => {}
            }
            if self.broke_rules(&counts, &mut violations) {
                return;
            }
        }
    }

    fn has_ended(&self) -> bool {
        let links = &self.worker.node.links;
        links.get(&self.open.caller).is_none() || links.get(&self.open.callee).is_none()
    }

    async fn closed(&self) -> CloseReason {
        let node = &self.worker.node;
        let (mut before, mut since, mut violations) = (0, Instant::now(), [0; 2]);
        loop {
            let changed = node.changed();
            if let Some(closed) = self.is_withdrawn() {
                return closed;
            }
            tokio::select! {
                _ = self.from.ended() => return CloseReason::AtOnce,
                _ = self.link.ended() => return CloseReason::AtOnce,
                () = changed => continue,
                () = tokio::time::sleep(LOOK) => {}
            }
            let counts = self.open.channel.counts();
            if self.broke_rules(&counts, &mut violations) || self.open.channel.has_ended() {
                return CloseReason::AtOnce;
            }
            // An answer that the caller has not released yet is released when the channel is
            // withdrawn.
            if counts.calls != before || counts.open > 0 {
                (before, since) = (counts.calls, Instant::now());
            } else if since.elapsed() >= IDLE {
                return CloseReason::Within(GRACE);
            }
        }
    }

    /// Whether the channel must be closed, and how soon.
    fn is_withdrawn(&self) -> Option<CloseReason> {
        let node = &self.worker.node;
        let is_banned = [&self.open.caller, &self.open.callee].into_iter().any(|one| node.channels.is_banned(one));
        if self.caller.is_revoked() || is_banned {
            return Some(CloseReason::AtOnce);
        }
        let Some((snapshot, entry)) = self.worker.snapshot_with(&self.open.edge.caller) else {
            return Some(CloseReason::Within(GRACE));
        };
        let to = entry.config.callees.iter().find(|to| to.id == self.open.edge.callee);
        match to.map(|to| channels::direct(&snapshot, &entry, to)) {
            Some(Ok(direct)) if direct.terms == self.terms => {}
            // Open calls may go on under the terms that they began with.
            Some(Ok(_)) | Some(Err(Indirect { permits: true, .. })) => {
                return Some(CloseReason::Within(self.terms.timeout.unwrap_or(Duration::MAX)));
            }
            Some(Err(Indirect { permits: false, .. })) | None => return Some(CloseReason::Within(GRACE)),
        }
        // A terminating instance waits for the last of its requests, and the channel counts as one.
        node.terminating.contains(self.open.address).then_some(CloseReason::Within(Duration::MAX))
    }

    /// Logs messages that the kernel has blocked. Returns whether an instance has too many of them.
    fn broke_rules(&self, counts: &ChannelCounts, told: &mut [u64; 2]) -> bool {
        let ends = [(&self.open.caller, &counts.caller_violations), (&self.open.callee, &counts.callee_violations)];
        let mut too_many = false;
        for ((instance, violations), told) in ends.into_iter().zip(told) {
            let total: u64 = violations.iter().sum();
            if total > *told {
                let kinds = CHANNEL_VIOLATIONS.iter().zip(violations).filter(|(_, count)| **count > 0);
                let kinds: Vec<_> = kinds.map(|(kind, count)| format!("{kind} {count}")).collect();
                let kinds = kinds.join(", ");
                tracing::warn!(instance = &**instance, total, kinds, "a chain's instance broke the rules of a channel");
                *told = total;
            }
            if total > VIOLATIONS {
                self.worker.node.channels.ban(instance);
                too_many = true;
            }
        }
        too_many
    }
}
