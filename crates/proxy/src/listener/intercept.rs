//! Serves the calls of one instance that arrive where no other process can call: at a socket that
//! the node has in the instance's jail, whatever address the instance connects to, or on its
//! [link](crate::pipeline::chain).

use super::listen::{Phase, accept};
use super::pods::PodListeners;
use super::{Listener, names, pods};
use crate::pipeline::chain;
use crate::pipeline::worker::Worker;
use crate::state::credential::Caller;
use leno_http::peer::TrafficDirection;
use leno_runtime::schedule::{self, Class};
use leno_shm::Incoming;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{io, net};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};

/// How many workers serve one pod.
const MAX_POD_WORKERS: usize = 4;

/// Distributes the sockets of jails, and links, to the workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interceptor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    workers: Vec<mpsc::UnboundedSender<InstanceListener>>,
    next: AtomicUsize,
}

/// The sockets or the link at which the calls of one instance arrive.
pub(super) enum InstanceListener {
    Jail(JailSockets),
    Link(Arc<Caller>, Incoming),
    Pod(PodListeners),
}

/// The sockets of one jail.
pub(super) struct JailSockets {
    /// The instance that calls at the sockets.
    caller: Arc<Caller>,
    /// Takes plain HTTP to any address.
    http: net::TcpListener,
    /// Takes DNS queries.
    names: net::UdpSocket,
    /// Dropped when the caller's credential is revoked, or with the worker.
    kept: Box<dyn Send>,
}

impl Interceptor {
    pub(super) fn new(workers: Vec<mpsc::UnboundedSender<InstanceListener>>) -> Self {
        Self { inner: Arc::new(Inner { workers, next: AtomicUsize::new(0) }) }
    }

    /// Serves the sockets of a jail until its caller's credential is revoked, and then drops
    /// `kept`. `http` takes plain HTTP to any address, `names` DNS queries.
    pub fn serve(&self, caller: Arc<Caller>, http: net::TcpListener, names: net::UdpSocket, kept: Box<dyn Send>) {
        self.give(InstanceListener::Jail(JailSockets { caller, http, names, kept }));
    }

    /// Serves the calls on an instance's link until the link ends.
    pub fn serve_link(&self, caller: Arc<Caller>, link: Incoming) {
        self.give(InstanceListener::Link(caller, link));
    }

    /// Serves the connections of a pod until it ends.
    pub fn serve_pod(&self, listeners: PodListeners) {
        // A busy pod needs more than one worker, and each of them needs descriptors.
        for _ in 1..self.inner.workers.len().min(MAX_POD_WORKERS) {
            match listeners.try_clone() {
                Ok(another) => self.give(InstanceListener::Pod(another)),
                Err(error) => tracing::warn!(%error, "a pod is served by fewer workers"),
            }
        }
        self.give(InstanceListener::Pod(listeners));
    }

    fn give(&self, listener: InstanceListener) {
        let Inner { workers, next } = &*self.inner;
        // Workers are chosen in turn: an instance has few connections, and one worker serves them
        // all.
        let worker = workers.get(next.fetch_add(1, Relaxed) % workers.len().max(1));
        if let Some(worker) = worker {
            // This fails if the node is draining. Then the node does not answer any more.
            let _ = worker.send(listener);
        }
    }
}

/// Serves the jails and links that this worker receives.
pub(super) async fn serve(
    worker: Rc<Worker>,
    mut listeners: mpsc::UnboundedReceiver<InstanceListener>,
    phases: watch::Receiver<Phase>,
    most: usize,
) {
    while let Some(listener) = listeners.recv().await {
        let sockets = match listener {
            InstanceListener::Jail(sockets) => sockets,
            InstanceListener::Pod(listeners) => {
                pods::spawn(&worker, listeners, &phases, most);
                continue;
            }
            InstanceListener::Link(caller, link) => {
                let class = Class::of(&caller.function.to_string());
                let worker = worker.clone();
                schedule::spawn_for(class, async move {
                    tokio::select! {
                        () = chain::serve(worker, caller.clone(), link) => {}
                        // A process that still has the socket is not the instance any more.
                        () = caller.revoked() => {}
                    }
                });
                continue;
            }
        };
        let (caller, mut phases) = (sockets.caller.clone(), phases.clone());
        let (served, kept) = match serve_one(&worker, sockets, most) {
            Ok(serving) => serving,
            Err(error) => {
                tracing::error!(instance = %caller.instance, %error, "the instance cannot call other functions");
                continue;
            }
        };
        // The time is charged to the function: its instance's calls must not keep others waiting.
        schedule::spawn_for(Class::of(&caller.function.to_string()), async move {
            // Without this guard the kernel drops the packets of the jail, also those of open
            // connections. So the end of the node does not drop it.
            let _kept = kept;
            let until_the_end = async {
                tokio::select! {
                    () = served => {}
                    _ = phases.wait_for(|phase| *phase >= Phase::Ending) => {}
                }
                pending().await
            };
            tokio::select! {
                () = until_the_end => {}
                () = caller.revoked() => {}
            }
        });
    }
}

/// Serves the sockets of a jail. Also returns the guard that must be kept meanwhile.
fn serve_one(
    worker: &Rc<Worker>,
    sockets: JailSockets,
    most: usize,
) -> io::Result<(impl Future<Output = ()> + use<>, Box<dyn Send>)> {
    let JailSockets { caller, http, names, kept } = sockets;
    let (http, names) = (TcpListener::from_std(http)?, UdpSocket::from_std(names)?);
    let listener = Rc::new(Listener {
        worker: worker.clone(),
        direction: TrafficDirection::Outbound,
        share: Some(worker.node.telemetry.namespaces.of(&caller.function.namespace)),
        caller: Some(caller.clone()),
        pod: None,
        tls: None,
        address: http.local_addr()?,
        opened: None,
        closed: Rc::default(),
    });
    let worker = worker.clone();
    let served = async move {
        tokio::join!(accept(http, listener, most), names::answer(&worker, &caller, &names));
    };
    Ok((served, kept))
}
