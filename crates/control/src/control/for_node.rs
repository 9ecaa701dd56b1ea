//! Access to the state for reports of a node, within the node's share of the time.

use super::Control;
use crate::node_share::Shares;
use crate::state::State;
use leno_wire::Load;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

impl Control {
    /// The state, for a node's message. The time is charged to the node's share.
    pub(crate) fn state_for<'a>(&'a self, node: &'a Arc<str>) -> ForNode<'a> {
        let state = self.state();
        ForNode { state, shares: &self.0.shares, node, since: Instant::now() }
    }

    /// The shares of the state's time that nodes have.
    pub(crate) fn shares(&self) -> &Shares {
        &self.0.shares
    }

    pub(crate) fn load(&self, node: &Arc<str>, session: u64, loads: Vec<Load>) {
        let now = self.0.begin.elapsed();
        self.state_for(node).load(node, session, loads, now);
    }

    /// Renews the term of a node's leases.
    pub(crate) fn renew_leases(&self, node: &Arc<str>, session: u64) -> bool {
        let now = self.0.begin.elapsed();
        self.state_for(node).renew(node, session, now)
    }
}

/// The state, while a node's message is applied.
pub(crate) struct ForNode<'a> {
    state: MutexGuard<'a, State>,
    shares: &'a Shares,
    node: &'a Arc<str>,
    since: Instant,
}

impl Deref for ForNode<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for ForNode<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for ForNode<'_> {
    fn drop(&mut self) {
        self.shares.charge(self.node, self.since.elapsed());
    }
}
