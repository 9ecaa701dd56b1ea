//! Calls of one instance that arrive where nobody else can call: at a socket that the node has in the instance's room, whatever address the instance
//! connects to, or on its [link](crate::pipeline::chain).

use super::listen::{Phase, accept};
use super::{Listener, names};
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

/// Gives the sockets of rooms, and links, to the workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interceptor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    workers: Vec<mpsc::UnboundedSender<Entrance>>,
    next: AtomicUsize,
}

/// Where calls of one instance arrive.
pub(super) enum Entrance {
    Room(Intercepted),
    Link(Arc<Caller>, Incoming),
}

/// The sockets of one room.
pub(super) struct Intercepted {
    /// Whoever calls at the sockets.
    caller: Arc<Caller>,
    /// Takes plain HTTP to any address.
    http: net::TcpListener,
    /// Takes questions about names.
    names: net::UdpSocket,
    /// Dropped when the caller's credential is revoked, or with the worker.
    kept: Box<dyn Send>,
}

impl Interceptor {
    pub(super) fn new(workers: Vec<mpsc::UnboundedSender<Entrance>>) -> Self {
        Self { inner: Arc::new(Inner { workers, next: AtomicUsize::new(0) }) }
    }

    /// Serves the sockets of a room until its caller's credential is revoked, and then drops `kept`. `http` takes plain HTTP to any address, `names`
    /// questions about names.
    pub fn serve(&self, caller: Arc<Caller>, http: net::TcpListener, names: net::UdpSocket, kept: Box<dyn Send>) {
        self.give(Entrance::Room(Intercepted { caller, http, names, kept }));
    }

    /// Serves what comes on an instance's link until the link ends.
    pub fn serve_link(&self, caller: Arc<Caller>, link: Incoming) {
        self.give(Entrance::Link(caller, link));
    }

    fn give(&self, entrance: Entrance) {
        let Inner { workers, next } = &*self.inner;
        // In turn: an instance has few connections, and one worker serves them all.
        let worker = workers.get(next.fetch_add(1, Relaxed) % workers.len().max(1));
        if let Some(worker) = worker {
            // This fails if the node is draining. Then nobody answers any more.
            let _ = worker.send(entrance);
        }
    }
}

/// Serves the rooms and links that this worker is given.
pub(super) async fn serve(
    worker: Rc<Worker>,
    mut entrances: mpsc::UnboundedReceiver<Entrance>,
    phases: watch::Receiver<Phase>,
    most: usize,
) {
    while let Some(entrance) = entrances.recv().await {
        let room = match entrance {
            Entrance::Room(room) => room,
            Entrance::Link(caller, link) => {
                let class = Class::of(&caller.function.to_string());
                let worker = worker.clone();
                schedule::spawn_for(class, async move {
                    tokio::select! {
                        () = chain::serve(worker, caller.clone(), link) => {}
                        // Whoever still has the socket is not the instance any more.
                        () = caller.revoked() => {}
                    }
                });
                continue;
            }
        };
        let (caller, mut phases) = (room.caller.clone(), phases.clone());
        let (served, kept) = match serve_one(&worker, room, most) {
            Ok(serving) => serving,
            Err(error) => {
                tracing::error!(instance = %caller.instance, %error, "the instance cannot call other functions");
                continue;
            }
        };
        // Paid by the function: what its instance asks for must not keep others waiting.
        schedule::spawn_for(Class::of(&caller.function.to_string()), async move {
            // Without it the kernel drops the packets of the room, also those of connections that are open. So the end of the node does not drop it.
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

/// Serves the sockets of a room. Returns besides what is to be kept meanwhile.
fn serve_one(
    worker: &Rc<Worker>,
    room: Intercepted,
    most: usize,
) -> io::Result<(impl Future<Output = ()> + use<>, Box<dyn Send>)> {
    let Intercepted { caller, http, names, kept } = room;
    let (http, names) = (TcpListener::from_std(http)?, UdpSocket::from_std(names)?);
    let listener = Rc::new(Listener {
        worker: worker.clone(),
        direction: TrafficDirection::Outbound,
        share: Some(worker.node.telemetry.namespaces.of(&caller.function.namespace)),
        caller: Some(caller.clone()),
        tls: None,
        address: http.local_addr()?,
    });
    let worker = worker.clone();
    let served = async move {
        tokio::join!(accept(http, listener, most), names::answer(&worker, &caller, &names));
    };
    Ok((served, kept))
}
