//! Calls that are intercepted: an instance in a room connects to any address, and arrives at a socket that the node has in its room.

use super::listen::{Phase, accept};
use super::{Listener, names};
use crate::corridor::worker::Worker;
use crate::http::peer::TrafficDirection;
use crate::runtime::schedule::{self, Class};
use crate::state::credential::Caller;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{io, net};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};

/// Gives the sockets of rooms to the workers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interceptor {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    workers: Vec<mpsc::UnboundedSender<Intercepted>>,
    next: AtomicUsize,
}

/// The sockets of one room.
pub(super) struct Intercepted {
    /// Whoever calls at the sockets.
    caller: Arc<Caller>,
    /// Takes plain HTTP to any address.
    http: net::TcpListener,
    /// Takes questions about names.
    names: net::UdpSocket,
    /// Dropped when the sockets are not served any more.
    kept: Box<dyn Send>,
}

impl Interceptor {
    pub(super) fn new(workers: Vec<mpsc::UnboundedSender<Intercepted>>) -> Self {
        Self { inner: Arc::new(Inner { workers, next: AtomicUsize::new(0) }) }
    }

    /// Serves the sockets of a room until its caller's credential is revoked, and then drops `kept`. `http` takes plain HTTP to any address, `names`
    /// questions about names.
    pub fn serve(&self, caller: Arc<Caller>, http: net::TcpListener, names: net::UdpSocket, kept: Box<dyn Send>) {
        let Inner { workers, next } = &*self.inner;
        // In turn: a room has few connections, and one worker serves them all.
        let worker = workers.get(next.fetch_add(1, Relaxed) % workers.len().max(1));
        if let Some(worker) = worker {
            // This fails if the node is draining. Then nobody answers any more.
            let _ = worker.send(Intercepted { caller, http, names, kept });
        }
    }
}

/// Serves the rooms that this worker is given.
pub(super) async fn serve(
    worker: Rc<Worker>,
    mut rooms: mpsc::UnboundedReceiver<Intercepted>,
    phases: watch::Receiver<Phase>,
    most: usize,
) {
    while let Some(room) = rooms.recv().await {
        let (caller, mut phases) = (room.caller.clone(), phases.clone());
        let served = match serve_one(&worker, room, most) {
            Ok(served) => served,
            Err(error) => {
                tracing::error!(instance = %caller.instance, %error, "the instance cannot call other functions");
                continue;
            }
        };
        // Paid by the function: what its instance asks for must not keep others waiting.
        schedule::spawn_for(Class::of(&caller.function.to_string()), async move {
            tokio::select! {
                () = served => {}
                () = caller.revoked() => {}
                _ = phases.wait_for(|phase| *phase >= Phase::Ending) => {}
            }
        });
    }
}

fn serve_one(worker: &Rc<Worker>, room: Intercepted, most: usize) -> io::Result<impl Future<Output = ()> + use<>> {
    let Intercepted { caller, http, names, kept } = room;
    let (http, names) = (TcpListener::from_std(http)?, UdpSocket::from_std(names)?);
    let listener = Rc::new(Listener {
        worker: worker.clone(),
        direction: TrafficDirection::Outbound,
        caller: Some(caller.clone()),
        tls: None,
        address: http.local_addr()?,
    });
    let worker = worker.clone();
    Ok(async move {
        let _kept = kept;
        tokio::join!(accept(http, listener, most), names::answer(&worker, &caller, &names));
    })
}
