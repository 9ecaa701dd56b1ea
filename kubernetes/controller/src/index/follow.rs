//! Keeps the index as the cluster is.

use crate::api::{ApiServer, Watch, WatchCounts};
use crate::index::changes::Changes;
use crate::index::endpoint::EndpointSliceObject;
use crate::index::labels::NamespaceObject;
use crate::index::node::NodeObject;
use crate::index::pod::PodObject;
use crate::index::service::ServiceObject;
use crate::index::state::{Event, Index};
use futures_util::future;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Counts of the watches that keep the index.
#[derive(Debug, Default)]
pub struct ClusterCounts {
    /// Of namespaces.
    pub namespaces: WatchCounts,
    /// Of nodes.
    pub nodes: WatchCounts,
    /// Of pods.
    pub pods: WatchCounts,
    /// Of Services.
    pub services: WatchCounts,
    /// Of EndpointSlices.
    pub endpoint_slices: WatchCounts,
}

impl ClusterCounts {
    /// The counts of each kind.
    pub fn all(&self) -> [&WatchCounts; 5] {
        let Self { namespaces, nodes, pods, services, endpoint_slices } = self;
        [namespaces, nodes, pods, services, endpoint_slices]
    }
}

/// Watches the kinds of the index until the future is dropped. `sink` takes the changes of the
/// index, first those to an empty one, once all objects have come. It may take its time: changes
/// during a call are taken together.
pub async fn follow(
    server: &ApiServer,
    counts: &ClusterCounts,
    index: &Mutex<Index>,
    mut sink: impl FnMut(Changes) + Send,
) -> Infallible {
    let changed = Notify::new();
    let apply = |event| {
        index.lock().unwrap_or_else(PoisonError::into_inner).apply(event);
        changed.notify_one();
    };
    let namespaces = Watch::all(NamespaceObject::KIND);
    let namespaces = server.watch(&namespaces, &counts.namespaces, |change| apply(Event::Namespaces(change)));
    let nodes = Watch::all(NodeObject::KIND);
    let nodes = server.watch(&nodes, &counts.nodes, |change| apply(Event::Nodes(change)));
    let pods = Watch::all(PodObject::KIND);
    let pods = server.watch(&pods, &counts.pods, |change| apply(Event::Pods(change)));
    let services = Watch::all(ServiceObject::KIND);
    let services = server.watch(&services, &counts.services, |change| apply(Event::Services(change)));
    let slices = Watch::all(EndpointSliceObject::KIND);
    let slices = server.watch(&slices, &counts.endpoint_slices, |change| apply(Event::EndpointSlices(change)));
    let publish = async {
        let mut first = true;
        loop {
            changed.notified().await;
            let changes = index.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(changes) = changes.filter(|changes| std::mem::take(&mut first) || !changes.is_empty()) {
                sink(changes);
            }
        }
    };
    future::join(future::join5(namespaces, nodes, pods, services, slices), publish).await.1
}
