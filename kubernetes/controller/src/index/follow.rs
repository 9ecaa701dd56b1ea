//! Keeps the index as the cluster is.

use crate::api::{ApiServer, Watch, WatchCounts};
use crate::index::changes::Changes;
use crate::index::labels::NamespaceObject;
use crate::index::node::NodeObject;
use crate::index::pod::PodObject;
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
}

/// Watches namespaces, nodes and pods until the future is dropped. `sink` takes the changes of the
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
    let (namespaces, nodes, pods) =
        (Watch::all(NamespaceObject::KIND), Watch::all(NodeObject::KIND), Watch::all(PodObject::KIND));
    let namespaces = server.watch(&namespaces, &counts.namespaces, |change| apply(Event::Namespaces(change)));
    let nodes = server.watch(&nodes, &counts.nodes, |change| apply(Event::Nodes(change)));
    let pods = server.watch(&pods, &counts.pods, |change| apply(Event::Pods(change)));
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
    future::join4(namespaces, nodes, pods, publish).await.0
}
