//! State that belongs to one worker thread.

use crate::pipeline::judge::Judge;
use crate::pipeline::mirror::copies::Copies;
use crate::pipeline::open::OpenExchanges;
use crate::pipeline::pool::Pool;
use crate::state::function::{EVENT, FunctionEntry};
use crate::state::node::Node;
use crate::state::snapshot::NodeSnapshot;
use http::HeaderValue;
use leno_http::peer::TrafficDirection;
use leno_model::FunctionId;
use leno_namespaces::{Importance, Namespaces, Source};
use leno_runtime::random::Random;
use leno_telemetry::recorder::Recorder;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

pub(crate) struct Worker {
    /// State that all workers of the node share.
    pub node: Arc<Node>,
    pub judge: Judge,
    pub recorder: Rc<Recorder>,
    /// Randomness for identifiers and jitter.
    pub random: Rc<Random>,
    pub pool: Rc<Pool>,
    /// Exchanges that may be judged again.
    pub open: Rc<OpenExchanges>,
    /// Copies of requests that are under way.
    pub copies: Copies,
    /// Open client connections.
    pub connections: Connections,
    /// The node's revocations that this worker has carried out.
    pub revocations: Cell<u64>,
    /// The snapshot that this worker saw last. Pinning it writes to no memory that other cores
    /// share.
    pinned: RefCell<Rc<PinnedSnapshot>>,
}

/// A snapshot that one worker's exchanges hold, counted without atomics.
#[derive(Debug)]
pub(crate) struct PinnedSnapshot(Arc<NodeSnapshot>);

impl Deref for PinnedSnapshot {
    type Target = NodeSnapshot;

    fn deref(&self) -> &NodeSnapshot {
        &self.0
    }
}

impl Worker {
    /// Creates the worker of this thread. Must be called within [`leno_runtime::schedule::run`].
    pub(crate) fn new(node: Arc<Node>, random: Random) -> Rc<Self> {
        let random = Rc::new(random);
        Rc::new(Self {
            judge: Judge::new(node.policy_state.clone(), random.clone()),
            recorder: Recorder::new(&node.telemetry),
            random,
            pool: Pool::new(node.terminating.clone(), node.admission.clone(), node.machines.clone()),
            open: Rc::default(),
            copies: Copies::default(),
            connections: Connections::default(),
            revocations: Cell::default(),
            pinned: RefCell::new(Rc::new(PinnedSnapshot(node.snapshot.load_full()))),
            node,
        })
    }

    /// The node's current snapshot, pinned.
    pub(crate) fn snapshot(&self) -> Rc<PinnedSnapshot> {
        let mut pinned = self.pinned.borrow_mut();
        let current = self.node.snapshot.load();
        if !Arc::ptr_eq(&current, &pinned.0) {
            *pinned = Rc::new(PinnedSnapshot(Arc::clone(&current)));
        }
        pinned.clone()
    }

    /// The snapshot that calls from or to `function` are judged by, and the function's entry there.
    /// This is the current snapshot; for a removed function that may still be at work, it is the
    /// current one with all such functions in it.
    pub(crate) fn snapshot_with(&self, function: &FunctionId) -> Option<(Rc<PinnedSnapshot>, Arc<FunctionEntry>)> {
        let present = self.snapshot();
        if let Some(entry) = present.functions.get(function).cloned() {
            return Some((present, entry));
        }
        let (snapshot, entry) = self.node.snapshot_with(function)?;
        Some((Rc::new(PinnedSnapshot(snapshot)), entry))
    }

    /// Whether a message may be logged about a client that belongs to no namespace.
    pub(crate) fn may_log_of_none(&self) -> bool {
        let none = self.node.telemetry.namespaces.of(Namespaces::NONE);
        none.log.admits(Source::Events, Importance::Refused, Namespaces::NONE, EVENT, Instant::now())
    }

    /// A new request id: a UUID of version 4 (RFC 9562).
    pub(crate) fn request_id(&self) -> HeaderValue {
        let (high, low) = (self.random.next(), self.random.next());
        let bits = (u128::from(high) << 64 | u128::from(low)) & !(0xf << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
        let mut text = [b'-'; 36];
        let mut shift = 128;
        for (index, place) in text.iter_mut().enumerate() {
            if !matches!(index, 8 | 13 | 18 | 23) {
                shift -= 4;
                *place = b"0123456789abcdef"[(bits >> shift) as usize & 0xf];
            }
        }
        HeaderValue::from_bytes(&text)
            .unwrap_or_else(|_| HeaderValue::from_static("00000000-0000-4000-8000-000000000000"))
    }
}

/// The client connections that are open at one worker.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    draining: Cell<Draining>,
    handed_over: Cell<bool>,
    numbers: Cell<u64>,
    open: RefCell<HashMap<u64, Open>>,
    /// Notified when a connection closes.
    closed: tokio::sync::Notify,
}

/// Which connections should end after their current exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Draining {
    #[default]
    None,
    /// Only connections of clients. Connections that instances of this node opened stay: the
    /// clients' requests in flight may need them.
    Clients,
    All,
}

/// The end that has opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// A client, which may be another node or a pod.
    Client,
    /// An instance of this node.
    Instance,
    /// A program of a pod of this node, for a connection out of the pod.
    Pod,
}

impl From<TrafficDirection> for Opener {
    fn from(direction: TrafficDirection) -> Self {
        if direction == TrafficDirection::Outbound { Self::Instance } else { Self::Client }
    }
}

/// An open connection.
#[derive(Debug)]
struct Open {
    opener: Opener,
    /// Woken when draining begins.
    waker: Option<Waker>,
}

impl Connections {
    /// Registers a connection. Returns its number, which [`Connections::unregister`] takes.
    pub(crate) fn register(&self, opener: Opener) -> u64 {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        self.open.borrow_mut().insert(number, Open { opener, waker: None });
        number
    }

    pub(crate) fn unregister(&self, number: u64) {
        self.open.borrow_mut().remove(&number);
        self.closed.notify_waiters();
    }

    /// Sets the waker that is called when draining begins.
    pub(crate) fn set_waker(&self, number: u64, waker: &Waker) {
        if let Some(open) = self.open.borrow_mut().get_mut(&number) {
            open.waker = Some(waker.clone());
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Whether a connection should end after its current exchange.
    pub(crate) fn is_draining(&self, opener: Opener) -> bool {
        self.draining.get() >= if opener == Opener::Client { Draining::Clients } else { Draining::All }
    }

    /// Whether the child of a hot restart has taken over the listeners. Open connections go on
    /// here, and the responses ask clients to connect anew.
    pub(crate) fn are_handed_over(&self) -> bool {
        self.handed_over.get()
    }

    /// Asks the connections of clients to end.
    pub(crate) fn drain_clients(&self) {
        self.draining.set(self.draining.get().max(Draining::Clients));
        self.wake();
    }

    /// Asks all connections to end.
    pub(crate) fn drain(&self) {
        self.draining.set(Draining::All);
        self.wake();
    }

    /// Asks clients to connect anew, and ends no connection.
    pub(crate) fn hand_over(&self) {
        self.handed_over.set(true);
        self.wake();
    }

    /// Wakes all connections, so that they check whether they must end.
    pub(crate) fn wake(&self) {
        self.open.borrow().values().filter_map(|open| open.waker.as_ref()).for_each(Waker::wake_by_ref);
    }

    /// Waits until the only open connections are those that instances and pods of this node opened. In a
    /// hot restart, those of pods count too: the pods stay, and cannot use the child's before they end.
    pub(crate) async fn without_clients(&self) {
        let counts = |open: &Open| match open.opener {
            Opener::Client => true,
            Opener::Instance => false,
            Opener::Pod => self.handed_over.get(),
        };
        while self.open.borrow().values().any(counts) {
            self.closed.notified().await;
        }
    }

    /// Waits until fewer than `count` connections are open.
    pub(crate) async fn fewer_than(&self, count: usize) {
        while self.count() >= count {
            self.closed.notified().await;
        }
    }
}
