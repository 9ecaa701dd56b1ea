//! The state of a jail that threads of the node share, and the sockets of its network.

use super::refusals::Refusals;
use crate::account::Account;
use crate::wire::{self, MOST_DESCRIPTORS, Order};
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{Notify, Semaphore, oneshot};

/// Spare sockets of a jail's network that the node keeps for its next connections.
const SPARE_SOCKETS: usize = 4;

/// The state of a jail that threads of the node share.
#[derive(Debug)]
pub(crate) struct JailState {
    pub(crate) control: OwnedFd,
    sockets: Mutex<Sockets>,
    /// The program listens at `::1`, and not at 127.0.0.1.
    pub(crate) at_ipv6: AtomicBool,
    /// The waiters for a Unix socket or one for IPv6, in the order of their orders.
    rare_sockets: Mutex<VecDeque<oneshot::Sender<OwnedFd>>>,
    /// Limits these orders, because the control socket has no buffer space for more.
    rare_orders: Semaphore,
    /// Notified when there are more sockets, and when no more will arrive.
    supplied: Notify,
    over: AtomicBool,
    /// Notified when the program calls `listen`.
    pub(crate) listens: Notify,
    /// The port of the node's listener.
    pub(crate) node_port: u16,
    /// Given back when the jail has ended.
    pub(crate) account: Option<Account>,
    pub(crate) refusals: OnceLock<Refusals>,
}

/// Unconnected sockets of a jail's network.
#[derive(Debug, Default)]
struct Sockets {
    in_hand: VecDeque<OwnedFd>,
    /// Number of sockets that were ordered and have not arrived.
    ordered: usize,
    /// Number of connections that wait for one.
    waiting: usize,
}

/// A connection that waits for a socket, until it is dropped.
struct Waiting<'a>(&'a JailState);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.sockets().waiting -= 1;
    }
}

impl JailState {
    /// `control`: the node's end of the jail's socket.
    pub(crate) fn new(control: OwnedFd, node_port: u16, account: Option<Account>) -> Self {
        Self {
            control,
            sockets: Mutex::default(),
            at_ipv6: AtomicBool::new(false),
            rare_sockets: Mutex::default(),
            rare_orders: Semaphore::new(MOST_DESCRIPTORS),
            supplied: Notify::new(),
            over: AtomicBool::new(false),
            listens: Notify::new(),
            node_port,
            account,
            refusals: OnceLock::new(),
        }
    }

    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        wire::send(&self.control, order, &[], SendFlags::DONTWAIT)
    }

    /// An unconnected socket of the jail's network.
    pub(crate) async fn socket(&self) -> io::Result<OwnedFd> {
        self.sockets().waiting += 1;
        let _waiting = Waiting(self);
        loop {
            let supplied = self.supplied.notified();
            let socket = self.sockets().in_hand.pop_front();
            self.stock_up(usize::from(socket.is_some()))?;
            if let Some(socket) = socket {
                return Ok(socket);
            }
            if self.over.load(Ordering::Acquire) {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the jail has ended"));
            }
            supplied.await;
        }
    }

    /// A socket of the jail's network, by [`Order::UnixSocket`] or [`Order::Ipv6Socket`].
    pub(crate) async fn rare_socket(&self, order: &Order) -> io::Result<OwnedFd> {
        let _turn = self.rare_orders.acquire().await;
        let (supply, supplied) = oneshot::channel();
        {
            let mut waiting = self.rare_sockets();
            // The jail answers in order, so the order goes out under the lock.
            self.order(order)?;
            waiting.push_back(supply);
        }
        supplied.await.map_err(|_| io::Error::new(io::ErrorKind::NotConnected, "the jail has ended, or gave no socket"))
    }

    fn rare_sockets(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<OwnedFd>>> {
        self.rare_sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Orders as many sockets as connections wait for, and a few spare ones. `served`: the number
    /// of waiters that have theirs.
    pub(crate) fn stock_up(&self, served: usize) -> io::Result<()> {
        let mut sockets = self.sockets();
        let wanted = sockets.waiting.saturating_sub(served) + SPARE_SOCKETS;
        let missing = wanted.saturating_sub(sockets.in_hand.len() + sockets.ordered);
        // The control socket has buffer space for so many orders. The other orders go out when
        // these sockets have arrived.
        let missing = missing.min(MOST_DESCRIPTORS.saturating_sub(sockets.ordered));
        if missing > 0 {
            let number = u8::try_from(missing).unwrap_or(u8::MAX);
            self.order(&Order::Sockets(number))?;
            sockets.ordered += missing;
        }
        Ok(())
    }

    /// Takes sockets that have arrived.
    pub(crate) fn arrived(&self, supplied: Vec<OwnedFd>) {
        let mut sockets = self.sockets();
        if supplied.is_empty() {
            // The jail could not send any socket. Waiters continue to wait until their deadline;
            // the next connection orders again.
            sockets.ordered = 0;
            return;
        }
        sockets.ordered = sockets.ordered.saturating_sub(supplied.len());
        let most = sockets.waiting + SPARE_SOCKETS;
        sockets.in_hand.extend(supplied);
        // Some waiters may have gone.
        sockets.in_hand.truncate(most);
        drop(sockets);
        // This fails if the jail has ended. The waiters then get that error.
        let _ = self.stock_up(0);
        self.supplied.notify_waiters();
    }

    /// Gives a waiter its Unix socket or the one for IPv6; `None`: the jail gave none.
    pub(crate) fn rare_arrived(&self, socket: Option<OwnedFd>) {
        let waiting = self.rare_sockets().pop_front();
        // Without a socket, dropping the sender reports the failure to the waiter. A waiter
        // that has gone needs no report.
        if let (Some(waiting), Some(socket)) = (waiting, socket) {
            let _ = waiting.send(socket);
        }
    }

    /// Ends the waiting for sockets: the jail is gone.
    pub(crate) fn close(&self) {
        self.over.store(true, Ordering::Release);
        self.supplied.notify_waiters();
        self.rare_sockets().clear();
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
