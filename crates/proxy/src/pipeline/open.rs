//! The open exchanges of one worker, with the state to judge each of them again, and to close it.
//!
//! An exchange is in this list from its verdict to its end. Almost all end before they are judged
//! again, so an entry costs little: a copy of the head, and a place in a list.

use crate::pipeline::judge::RequestSnapshot;
use crate::pipeline::route::followed::FollowedRoute;
use crate::state::certificate::PeerCertificate;
use crate::state::credential::Caller;
use crate::state::function::FunctionEntry;
use crate::state::routes::gateway::GatewayTables;
use leno_http::activity::Activity;
use leno_http::body::CloseReason;
use leno_http::peer::{Peer, TrafficDirection};
use leno_identity::SvidStore;
use leno_policy::spec::Protocol;
use leno_telemetry::record::Record;
use slab::Slab;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Time between a change that concerns an exchange and the moment when the exchange is judged
/// again, and minimum age of an exchange that is judged again. Ordinary requests are over by then.
pub const GRACE: Duration = Duration::from_secs(5);
/// A closed exchange that does not end within this time, because its client reads nothing, loses
/// its HTTP/1.1 connection.
pub(crate) const LAST_BYTES: Duration = Duration::from_secs(1);

/// Maximum delay of judging an exchange again after it is due. The ends of tokens differ by
/// fractions of a second from request to request, even of one token, because clocks drift; not each
/// of them sets the timer anew.
const SLACK: Duration = Duration::from_millis(100);

/// The open exchanges of one worker.
#[derive(Default)]
pub(crate) struct OpenExchanges {
    exchanges: RefCell<Slab<Rc<Open>>>,
    /// When the first of the exchanges is due, or up to [`SLACK`] later. That exchange may be over.
    next: Cell<Option<Instant>>,
    /// Notified when `next` has become sooner.
    sooner: Notify,
}

/// An exchange that was permitted and is not over.
pub(crate) struct Open {
    pub permission: Permission,
    /// The function whose program permitted it.
    pub entry: RefCell<Arc<FunctionEntry>>,
    /// `None`: the exchange is over.
    record: RefCell<Option<Record>>,
    /// When the exchange is judged again.
    due: Cell<Option<Instant>>,
    closed: OnceCell<Rc<CloseReason>>,
    /// The task that waits until the exchange is closed.
    waker: RefCell<Option<Waker>>,
    /// The certificate by which the callee's sidecar is known.
    callee: Cell<Option<PeerCertificate>>,
    /// The client's connection, once the response is on its way.
    connection: RefCell<Option<Arc<Activity>>>,
}

/// The permitted request, and its caller and callee.
pub(crate) struct Permission {
    pub asked: RequestSnapshot,
    pub direction: TrafficDirection,
    pub peer: Peer,
    /// Outbound: the instance that calls, unless it is a component in this node.
    pub caller: Option<Arc<Caller>>,
    /// The request came in at a gateway, of this node or of another one.
    pub from_gateway: bool,
    /// The route that the request followed; `None`: none.
    pub route: Option<OpenRoute>,
    /// The callee: `namespace/name`.
    pub target: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    /// The certificate by which the caller is known.
    pub certificate: Option<PeerCertificate>,
    pub started: Instant,
}

/// The route of an open exchange.
pub(crate) struct OpenRoute {
    pub followed: Rc<FollowedRoute>,
    /// The routes of the gateway that lead to its back end.
    pub tables: RefCell<Arc<GatewayTables>>,
}

/// Keeps an exchange in the list of open exchanges until it is dropped.
pub(crate) struct Registration {
    open: Rc<Open>,
    index: usize,
    exchanges: Rc<OpenExchanges>,
}

impl OpenExchanges {
    /// Adds an exchange. `ends`: when its permission expires without a change. `lifetime`: the
    /// lifetime of streams between nodes. `again`: when it is judged again in any case.
    pub(crate) fn register(
        self: &Rc<Self>,
        permission: Permission,
        entry: Arc<FunctionEntry>,
        record: Record,
        (ends, lifetime): (Option<Instant>, Duration),
        again: Option<Instant>,
    ) -> Registration {
        let open = Rc::new(Open {
            permission,
            entry: RefCell::new(entry),
            record: RefCell::new(Some(record)),
            due: Cell::default(),
            closed: OnceCell::new(),
            waker: RefCell::default(),
            callee: Cell::default(),
            connection: RefCell::default(),
        });
        self.end_at(&open, ends, lifetime);
        self.judge_at(&open, again);
        let index = self.exchanges.borrow_mut().insert(open.clone());
        Registration { open, index, exchanges: self.clone() }
    }

    /// Schedules the exchange to be judged again when its permission or another node's proof of
    /// identity expires.
    pub(crate) fn end_at(&self, open: &Open, ends: Option<Instant>, lifetime: Duration) {
        if let Some(end) = [ends, open.proof_end(lifetime)].into_iter().flatten().min() {
            self.set_due(open, end.max(open.permission.started + GRACE));
        }
    }

    fn set_due(&self, open: &Open, due: Instant) {
        if open.due.get().is_none_or(|other| due < other) {
            open.due.set(Some(due));
        }
        if self.next.get().is_none_or(|next| due + SLACK < next) {
            self.next.set(Some(due));
            self.sooner.notify_one();
        }
    }

    /// Schedules the exchange to be judged again at this moment. `None`: leaves its schedule as it
    /// is.
    pub(crate) fn judge_at(&self, open: &Open, due: Option<Instant>) {
        if let Some(due) = due {
            self.set_due(open, due);
        }
    }

    /// Schedules exchanges to be judged again at the moments that `due` returns. `None`: the
    /// exchange is not affected.
    pub(crate) fn note_change(&self, due: impl Fn(&Open) -> Option<Instant>) {
        for (_, open) in &*self.exchanges.borrow() {
            if open.closed.get().is_none() {
                self.judge_at(open, due(open));
            }
        }
    }

    /// Takes the exchanges that are due, and notes when the next ones are.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<Rc<Open>> {
        if self.next.get().is_none_or(|next| next > now) {
            return Vec::new();
        }
        self.next.set(None);
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (_, open) in &*self.exchanges.borrow() {
            match open.due.get() {
                Some(at) if at <= now => {
                    open.due.set(None);
                    due.push(open.clone());
                }
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        self.next.set(next);
        due
    }

    /// The open exchanges that the node has not closed.
    pub(crate) fn all(&self) -> Vec<Rc<Open>> {
        self.exchanges.borrow().iter().map(|(_, open)| open.clone()).filter(|open| !open.is_closed()).collect()
    }

    /// Waits until an exchange is due.
    pub(crate) async fn next_due(&self) {
        loop {
            let sooner = self.sooner.notified();
            match self.next.get() {
                None => sooner.await,
                Some(next) => tokio::select! {
                    () = sooner => {}
                    () = tokio::time::sleep_until(next) => return,
                },
            }
        }
    }

    /// Closes an exchange, and wakes the task that carries it.
    pub(crate) fn close(&self, open: &Open, closed: CloseReason) {
        if open.closed.set(Rc::new(closed)).is_err() {
            return;
        }
        if let Some(record) = &*open.record.borrow() {
            record.close();
        }
        if let Some(waker) = open.waker.take() {
            waker.wake();
        }
        self.set_due(open, Instant::now() + LAST_BYTES);
    }
}

impl Open {
    /// The record; `None`: the exchange is over.
    pub(crate) fn record(&self) -> Option<Record> {
        self.record.borrow().clone()
    }

    /// When the other nodes' proof of identity expires, if `lifetime` is the lifetime of streams
    /// between nodes. A certificate counts at least until it expires.
    pub(crate) fn proof_end(&self, lifetime: Duration) -> Option<Instant> {
        let first = [self.caller_expires(), self.callee_expires()].into_iter().flatten().min();
        first.map(|expires| expires.max(self.permission.started + lifetime))
    }

    /// Whether the certificate of the caller's sidecar expires before that of the callee's.
    pub(crate) fn is_caller_first(&self) -> bool {
        let callee = self.callee_expires();
        self.caller_expires().is_some_and(|caller| callee.is_none_or(|callee| caller <= callee))
    }

    fn caller_expires(&self) -> Option<Instant> {
        Some(self.permission.certificate?.expires?.into())
    }

    fn callee_expires(&self) -> Option<Instant> {
        Some(self.callee.get()?.expires?.into())
    }

    /// Which of the two other nodes was revoked: the caller's or the callee's.
    pub(crate) fn revoked(&self, svids: &SvidStore) -> Option<&'static str> {
        let is_revoked = |certificate: Option<PeerCertificate>| certificate.is_some_and(|it| it.is_revoked(svids));
        match (is_revoked(self.permission.certificate), is_revoked(self.callee.get())) {
            (true, _) => Some("the caller's node was revoked"),
            (false, true) => Some("the callee's node was revoked"),
            (false, false) => None,
        }
    }

    /// Whether the exchange was closed, and has not ended yet.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Cuts off the client's connection if it is HTTP/1.1, and so carries no other exchange.
    pub(crate) fn cut_off(&self) {
        if let Some(connection) = &*self.connection.borrow() {
            connection.cut_off();
        }
    }
}

impl Registration {
    /// Why the exchange is closed, if it is.
    pub(crate) fn closed(&self) -> Option<&Rc<CloseReason>> {
        self.open.closed.get()
    }

    /// Wakes the task when the exchange is closed.
    pub(crate) fn wake_when_closed(&self, waker: &Waker) {
        let mut place = self.open.waker.borrow_mut();
        match &mut *place {
            Some(known) => known.clone_from(waker),
            None => *place = Some(waker.clone()),
        }
    }

    /// Runs `future` unless the exchange is closed.
    pub(crate) fn poll_unless_closed<F: Future>(
        &self,
        future: std::pin::Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<F::Output, Rc<CloseReason>>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed.clone()));
        }
        let polled = future.poll(cx);
        if polled.is_pending() {
            self.wake_when_closed(cx.waker());
        }
        polled.map(Ok)
    }

    /// Sets the certificate of the sidecar that sends the response. `lifetime`: the lifetime of
    /// streams between nodes.
    pub(crate) fn set_callee(&self, certificate: Option<PeerCertificate>, lifetime: Duration) {
        if certificate.is_some() {
            self.open.callee.set(certificate);
            self.exchanges.end_at(&self.open, None, lifetime);
        }
    }

    /// Sets the client's connection that carries the response.
    pub(crate) fn occupies(&self, connection: &Arc<Activity>) {
        self.open.connection.replace(Some(connection.clone()));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A task that is about to judge the exchange again holds it a moment longer.
        let record = self.open.record.take();
        let removed = self.exchanges.exchanges.borrow_mut().try_remove(self.index);
        drop((record, removed));
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Registration").field(&self.index).finish()
    }
}
