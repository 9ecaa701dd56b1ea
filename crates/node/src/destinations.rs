//! Asks the control plane about the addresses that pods of this node call.

use leno_agent::{Agent, Connection};
use leno_proxy::Node;
use leno_proxy::destinations::AddressBook;
use leno_wire::Subject;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which subscriptions are looked through.
const INTERVAL: Duration = Duration::from_secs(60);

/// The control plane of the node.
pub(crate) struct ControlPlane(pub Agent);

impl AddressBook for ControlPlane {
    fn subscribe(&self, address: IpAddr) {
        self.0.subscribe([Subject::Destination(address)]);
    }

    fn unsubscribe(&self, addresses: Vec<IpAddr>) {
        self.0.unsubscribe(addresses.into_iter().map(Subject::Destination));
    }

    fn is_connected(&self) -> bool {
        *self.0.connection().borrow() == Connection::Connected
    }
}

/// Ends unused subscriptions, as long as the node lives.
pub(crate) async fn end_unused(node: Arc<Node>) {
    let node = Arc::downgrade(&node);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(node) = node.upgrade() else { return };
        node.destinations.end_unused();
    }
}
