//! One instance as requests see it, and the right to send it one.

use super::Dispatcher;
use crate::instance_id::InstanceId;
use crate::processes::{NotTheInstance, Processes};
use leno_config::id::FunctionId;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// The right to send one request to one instance; ends when dropped.
#[must_use = "dropping a lease gives the instance back"]
pub struct Lease {
    pub(crate) slot: Arc<Slot>,
    pub(crate) dispatcher: Arc<Dispatcher>,
}

impl Lease {
    /// Where the instance listens.
    pub fn address(&self) -> SocketAddr {
        self.slot.address
    }

    /// The instance.
    pub fn instance(&self) -> InstanceId {
        self.slot.id
    }

    /// The instance's name, as [`InstanceId::name`] makes it.
    pub fn name(&self) -> &Arc<str> {
        &self.slot.name
    }

    /// Requests that the instance has now, this one included. 1, with a concurrency of 1: whatever the instance sends is part
    /// of this request.
    pub fn in_flight(&self) -> u32 {
        self.slot.in_flight()
    }

    /// Whether a new connection from `near`, where this process has it, to `far` arrives at the instance and not at somebody who
    /// listens there too, or instead. To be asked before anything is sent on it. Where it arrives at somebody else, the instance is ended. Of an
    /// address that somebody else serves, nothing is known, and it is taken as it is.
    pub fn verify(&self, near: SocketAddr, far: SocketAddr) -> Result<(), NotTheInstance> {
        let Some(processes) = &self.slot.processes else { return Ok(()) };
        let verified = processes.serve(near, far);
        if let Err(stranger @ NotTheInstance::Stranger { .. }) = &verified {
            self.slot.captured(stranger);
        }
        verified
    }

    /// Whether the instance was withdrawn in the meantime: it ended, or is to end.
    pub fn withdrawn(&self) -> bool {
        self.slot.is_withdrawn()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("instance", &self.slot.id).field("address", &self.slot.address).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.give_back();
        self.dispatcher.gone();
    }
}

/// One instance as requests see it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub id: InstanceId,
    name: Arc<str>,
    pub address: SocketAddr,
    /// `None`: somebody else runs it.
    processes: Option<Arc<Processes>>,
    /// Who has been found where it should listen.
    captor: OnceLock<String>,
    /// Told when that is known.
    captured: Notify,
    in_flight: AtomicU32,
    withdrawn: AtomicBool,
    /// Told when the last request of a withdrawn instance has ended.
    idle: Notify,
}

impl Slot {
    pub(crate) fn new(
        function: &FunctionId,
        id: InstanceId,
        address: SocketAddr,
        processes: Option<Arc<Processes>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: id.name(function),
            address,
            processes,
            captor: OnceLock::new(),
            captured: Notify::new(),
            in_flight: AtomicU32::new(0),
            withdrawn: AtomicBool::new(false),
            idle: Notify::new(),
        })
    }

    /// Counts one more request, unless there is no room for it.
    pub(crate) fn take(&self, limit: u32) -> bool {
        let room = |count: u32| if limit == 0 || count < limit { count.checked_add(1) } else { None };
        if self.in_flight.try_update(SeqCst, SeqCst, room).is_err() {
            return false;
        }
        // The list that led here may be older than the withdrawal. Whoever withdraws marks first and counts then.
        if self.withdrawn.load(SeqCst) {
            self.give_back();
            return false;
        }
        true
    }

    fn give_back(&self) {
        if self.in_flight.fetch_sub(1, SeqCst) == 1 && self.withdrawn.load(SeqCst) {
            self.idle.notify_one();
        }
    }

    /// Requests that it has.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(SeqCst)
    }

    /// Nobody gets it any more. Whoever has just got it notices, or is waited for.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.store(true, SeqCst);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(SeqCst)
    }

    fn captured(&self, stranger: &NotTheInstance) {
        if self.captor.set(stranger.to_string()).is_ok() {
            self.captured.notify_one();
        }
    }

    /// Resolves when somebody else was found where the instance should listen.
    pub(crate) async fn is_captured(&self) -> String {
        self.captured.notified().await;
        self.captor.get().cloned().unwrap_or_default()
    }

    /// Waits until a withdrawn instance has no request any more.
    pub(crate) async fn drained(&self) {
        while self.in_flight.load(SeqCst) > 0 {
            self.idle.notified().await;
        }
    }
}
