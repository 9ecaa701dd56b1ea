//! What belongs to one worker thread, and to no other.

use crate::corridor::judge::Judge;
use crate::corridor::pool::Pool;
use crate::runtime::random::Random;
use crate::state::function::FunctionEntry;
use crate::state::node::Node;
use crate::state::snapshot::NodeSnapshot;
use crate::telemetry::recorder::Recorder;
use http::HeaderValue;
use leno_config::FunctionId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

/// One worker thread's own things.
pub(crate) struct Worker {
    /// Shared by all.
    pub node: Arc<Node>,
    /// Runs sandboxes.
    pub judge: Judge,
    /// Takes records.
    pub recorder: Rc<Recorder>,
    /// For identifiers and jitter.
    pub random: Rc<Random>,
    /// Upstream connections.
    pub pool: Rc<Pool>,
    /// Open connections from clients.
    pub connections: Connections,
    /// The node's snapshot as this worker saw it last: pinning it costs no write to memory that other cores share.
    pinned: RefCell<Rc<Pinned>>,
}

/// A snapshot that one worker's exchanges hold on to, counted without atomics.
#[derive(Debug)]
pub(crate) struct Pinned(Arc<NodeSnapshot>);

impl Deref for Pinned {
    type Target = NodeSnapshot;

    fn deref(&self) -> &NodeSnapshot {
        &self.0
    }
}

impl Worker {
    /// For this thread, inside of [`crate::runtime::schedule::run`].
    pub(crate) fn new(node: Arc<Node>, random: Random) -> Rc<Self> {
        let random = Rc::new(random);
        Rc::new(Self {
            judge: Judge::new(node.ledger.clone(), random.clone()),
            recorder: Recorder::new(&node.telemetry),
            random,
            pool: Pool::new(node.terminating.clone()),
            connections: Connections::default(),
            pinned: RefCell::new(Rc::new(Pinned(node.snapshot.load_full()))),
            node,
        })
    }

    /// The node's present snapshot.
    pub(crate) fn snapshot(&self) -> Rc<Pinned> {
        let mut pinned = self.pinned.borrow_mut();
        let current = self.node.snapshot.load();
        if !Arc::ptr_eq(&current, &pinned.0) {
            *pinned = Rc::new(Pinned(Arc::clone(&current)));
        }
        pinned.clone()
    }

    /// The snapshot by which calls from or to a function are judged, and its entry: the present one, or else the last one that it was in, as
    /// long as it may still be at work.
    pub(crate) fn snapshot_with(&self, function: &FunctionId) -> Option<(Rc<Pinned>, Arc<FunctionEntry>)> {
        let present = self.snapshot();
        if let Some(entry) = present.functions.get(function).cloned() {
            return Some((present, entry));
        }
        let former = self.node.former.load();
        let (snapshot, entry) = former.iter().find_map(|former| Some((former, former.functions.get(function)?)))?;
        Some((Rc::new(Pinned(snapshot.clone())), entry.clone()))
    }

    /// Lets go of each snapshot when there is another one, also where there is nothing to do.
    pub(crate) async fn follow(self: Rc<Self>) {
        loop {
            let changed = self.node.changed();
            self.snapshot();
            changed.await;
        }
    }

    /// A new name for a request: a UUID of version 4 (RFC 9562).
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

/// The connections that clients have open at one worker.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    draining: Cell<bool>,
    numbers: Cell<u64>,
    /// Each with whom to wake when draining begins.
    open: RefCell<HashMap<u64, Option<Waker>>>,
    /// Woken when one is closed.
    closed: tokio::sync::Notify,
}

impl Connections {
    /// Counts a connection as long as the result lives.
    pub(crate) fn open(&self) -> u64 {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        self.open.borrow_mut().insert(number, None);
        number
    }

    /// The connection is gone.
    pub(crate) fn close(&self, number: u64) {
        self.open.borrow_mut().remove(&number);
        self.closed.notify_waiters();
    }

    /// Who is to be woken when draining begins.
    pub(crate) fn set_waker(&self, number: u64, waker: &Waker) {
        if let Some(open) = self.open.borrow_mut().get_mut(&number) {
            *open = Some(waker.clone());
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Whether connections should end with the exchange they carry.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Asks all connections to end.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        for open in self.open.borrow_mut().values_mut() {
            if let Some(waker) = open.take() {
                waker.wake();
            }
        }
    }

    /// Waits until there are fewer than this many.
    pub(crate) async fn fewer_than(&self, count: usize) {
        while self.count() >= count {
            self.closed.notified().await;
        }
    }
}
