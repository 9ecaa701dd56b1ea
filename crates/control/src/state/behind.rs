//! Nodes that do not acknowledge their configuration. Such a node still gets every change, but no further functions and no further instances.

use super::State;
use std::sync::Arc;
use std::time::Duration;

/// A node is behind when it has not acknowledged a message with configuration for this long.
pub(crate) const BEHIND: Duration = Duration::from_secs(5);
/// The most time that one look counts. A control plane that was busy itself has not read acknowledgements meanwhile.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Time as far as the control plane was there to read acknowledgements.
#[derive(Default)]
pub(super) struct Attention {
    looked: Duration,
    pub(super) now: Duration,
}

impl State {
    /// Looks which nodes are behind. Call it about twice a second.
    pub(crate) fn watch_acknowledgements(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.attention.looked);
        self.attention.looked = now;
        self.attention.now += passed.min(LONGEST_LOOK);
        let behind = |name: &Arc<str>| self.unacknowledged(name).is_some_and(|time| time >= BEHIND);
        let changed = self.nodes.iter().filter(|(name, node)| behind(name) != node.behind);
        let changed: Vec<_> = changed.map(|(name, _)| name.clone()).collect();
        for name in &changed {
            let Some(node) = self.nodes.get_mut(name) else { continue };
            node.behind = !node.behind;
            let (is_behind, connected) = (node.behind, node.session.is_some());
            if let (true, Some(session)) = (is_behind, &node.session) {
                // It may be sent more now.
                session.wake.notify_one();
            }
            if is_behind {
                tracing::warn!(node = &**name, "a node does not acknowledge its configuration; it gets nothing new");
            } else if connected {
                tracing::info!(node = &**name, "a node acknowledges its configuration again");
            }
            self.offer(name);
        }
        if !changed.is_empty() {
            self.place_jobs();
        }
    }

    /// For how long a connected node has left a message with configuration unacknowledged.
    pub(super) fn unacknowledged(&self, name: &str) -> Option<Duration> {
        let session = self.nodes.get(name)?.session.as_ref()?;
        Some(self.attention.now.saturating_sub(session.unanswered_since()?))
    }
}
