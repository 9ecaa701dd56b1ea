//! One instance as requests see it, and the lease of it.

use super::Dispatcher;
use super::health::Health;
use crate::dialer::{ConnectError, Dialer, is_refusal};
use crate::instance_id::InstanceId;
use crate::processes::NotTheInstance;
use leno_model::FunctionId;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The right to send one request to one instance. It ends when dropped.
#[must_use = "dropping a lease gives the instance back"]
pub struct Lease {
    slot: Arc<Slot>,
    dispatcher: Arc<Dispatcher>,
    /// Its response has begun.
    answered: AtomicBool,
}

impl Lease {
    pub(crate) fn new(slot: Arc<Slot>, dispatcher: Arc<Dispatcher>) -> Self {
        Self { slot, dispatcher, answered: AtomicBool::new(false) }
    }

    /// The response to the request has begun, or more of it has come.
    pub fn heard(&self) {
        self.slot.health.heard();
        if !self.answered.load(Relaxed) && !self.answered.swap(true, Relaxed) {
            self.slot.answered.fetch_add(1, SeqCst);
        }
    }

    /// The request began at `since`, has used up the whole timeout of its function, and got no
    /// response.
    pub fn timed_out(&self, since: Instant) {
        self.slot.health.timed_out(since);
    }

    /// Whether the instance may be lost, so that a request of which nothing was sent should go to
    /// another one.
    pub fn is_suspect(&self) -> bool {
        self.slot.health.is_suspect() || self.slot.is_draining()
    }

    /// Address on which the instance listens.
    pub fn address(&self) -> SocketAddr {
        self.slot.address
    }

    /// ID of the instance.
    pub fn instance(&self) -> InstanceId {
        self.slot.id
    }

    /// The instance's name, as [`InstanceId::name`] makes it.
    pub fn name(&self) -> &Arc<str> {
        &self.slot.name
    }

    /// In-flight requests of the instance, this one included. With a concurrency of 1 this is
    /// always 1, so all bytes that the instance sends are part of this request.
    pub fn in_flight(&self) -> u32 {
        self.slot.in_flight()
    }

    /// Connects to the instance. The connection is verified before anything is sent on it. If it
    /// has reached another process, the instance is ended. Addresses that the supervisor did not
    /// start cannot be checked. It may be called on any async runtime with I/O enabled.
    pub async fn connect(&self) -> Result<TcpStream, ConnectError> {
        let connected = self.slot.dialer.connect(self.slot.address).await;
        if let Err(ConnectError::Unproven(stranger @ NotTheInstance::Stranger { .. })) = &connected {
            self.slot.report_port_conflict(stranger);
        } else if matches!(&connected, Err(ConnectError::Io(error)) if is_refusal(error)) {
            self.slot.health.refused();
        }
        connected
    }

    /// Connects to another port of the instance than the one for requests. Only an instance in a
    /// jail has other ports. First calls `prepare` with the socket that will connect and its
    /// address, and holds the result until the connection is established.
    ///
    /// # Errors
    /// No process listens there, or the instance is not in a jail.
    pub async fn connect_to<T>(
        &self,
        port: u16,
        prepare: impl FnOnce(BorrowedFd<'_>, SocketAddr) -> T,
    ) -> io::Result<TcpStream> {
        self.slot.dialer.connect_to(port, prepare).await
    }

    /// Whether the instance gets no new requests any more: it is draining, or has ended.
    pub fn is_draining(&self) -> bool {
        self.slot.is_draining()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("instance", &self.slot.id).field("address", &self.slot.address).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if *self.answered.get_mut() {
            self.slot.answered.fetch_sub(1, SeqCst);
        }
        self.slot.give_back();
        self.dispatcher.on_release();
    }
}

/// One instance as requests see it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub id: InstanceId,
    name: Arc<str>,
    pub address: SocketAddr,
    dialer: Dialer,
    /// Describes the other process that was found on the instance's port.
    port_conflict: OnceLock<String>,
    /// Notified when `port_conflict` is set.
    conflict_found: Notify,
    in_flight: AtomicU32,
    /// In-flight requests whose response has begun.
    answered: AtomicU32,
    pub health: Health,
    draining: AtomicBool,
    /// Notified when a draining instance has no request left.
    idle: Notify,
}

impl Slot {
    pub(crate) fn new(function: &FunctionId, id: InstanceId, address: SocketAddr, dialer: Dialer) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: id.name(function),
            address,
            dialer,
            port_conflict: OnceLock::new(),
            conflict_found: Notify::new(),
            in_flight: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            health: Health::default(),
            draining: AtomicBool::new(false),
            idle: Notify::new(),
        })
    }

    /// Counts one more in-flight request. Returns false if the instance has no free capacity, or is
    /// draining.
    pub(crate) fn take(&self, limit: u32) -> bool {
        let increment = |count: u32| if limit == 0 || count < limit { count.checked_add(1) } else { None };
        if self.in_flight.try_update(SeqCst, SeqCst, increment).is_err() {
            return false;
        }
        // The list that led here may be older than the drain. A drain first sets the flag and then reads the count, so it does not miss
        // this request.
        if self.draining.load(SeqCst) {
            self.give_back();
            return false;
        }
        true
    }

    fn give_back(&self) {
        if self.in_flight.fetch_sub(1, SeqCst) == 1 && self.draining.load(SeqCst) {
            self.idle.notify_one();
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(SeqCst)
    }

    /// In-flight requests whose response has not begun.
    pub(crate) fn awaiting(&self) -> u32 {
        self.in_flight().saturating_sub(self.answered.load(SeqCst))
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Whether it may get requests, if it has free capacity.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_draining() && !self.health.is_suspect()
    }

    /// Sets the flag that keeps requests away. A request that has just taken the instance sees the flag, or is waited for.
    pub(crate) fn start_drain(&self) {
        self.draining.store(true, SeqCst);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(SeqCst)
    }

    fn report_port_conflict(&self, stranger: &NotTheInstance) {
        if self.port_conflict.set(stranger.to_string()).is_ok() {
            self.conflict_found.notify_one();
        }
    }

    /// Resolves when another process was found on the instance's port. Returns a description of that process.
    pub(crate) async fn port_conflict(&self) -> String {
        self.conflict_found.notified().await;
        self.port_conflict.get().cloned().unwrap_or_default()
    }

    /// Waits until a draining instance has no in-flight request.
    pub(crate) async fn drained(&self) {
        while self.in_flight.load(SeqCst) > 0 {
            self.idle.notified().await;
        }
    }
}
