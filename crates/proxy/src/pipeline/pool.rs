//! One worker's pool of upstream connections. Idle connections are used again last in first out,
//! and never shared with another thread.

mod connect;
mod http2;
mod key;
mod noticed;
mod sender;
mod share;

pub(crate) use connect::is_unasked;
use connect::{begin_tls, handshake_http1, tcp, within};
use http2::Http2Host;
pub(crate) use http2::{CheckedOutHttp2, StreamSlot};
pub(crate) use key::{CalleeKey, ConnectionKey, Identities, TunnelKey};
pub(crate) use sender::SendError;
use sender::Sender;

use crate::state::admission::Admission;
use crate::state::certificate::PeerCertificate;
use crate::state::health::ConnectionGuard;
use crate::state::instances::{self, InstanceProof};
use crate::state::machines::Machines;
use crate::state::terminating::Terminating;
use hyper::client::conn::http1;
use leno_http::body::Body;
use leno_http::failure::Unproven;
use leno_http::inflow::HeadBudget;
use leno_identity::{SpiffeId, SvidStore, TlsError, handshake_failure};
use leno_model::UpstreamLimits;
use leno_namespaces::{Namespace, Permit};
use leno_runtime::schedule;
use leno_runtime::schedule::TaskOwner;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio_rustls::rustls::ClientConfig;

/// How long an idle connection is kept. This is shorter than the idle timeouts of common servers,
/// so that they do not close it first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long an idle HTTP/1.1 connection to an instance on this machine is kept. Here the pool sees
/// at once that the server has closed it, and functions that are called every now and then should
/// not pay for a new connection each time.
const LOOPBACK_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How many connections per address may be idle for longer than [`IDLE_TIMEOUT`]. The others, which
/// a burst opened, are closed.
const MAX_LONG_IDLE: usize = 4;
/// Maximum number of TLS configurations that are kept, one for each pair of identities. When it is
/// reached, all are dropped and made anew.
const MAX_TLS_CONFIGS: usize = 4096;
/// How long each connection to an address carries one request only, after the server has sent an
/// unsolicited response on one of them.
const DISTRUST: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Pool {
    http1: RefCell<HashMap<ConnectionKey, Http1Host>>,
    http2: RefCell<HashMap<ConnectionKey, Http2Host>>,
    configurations: RefCell<HashMap<Identities, Arc<ClientConfig>>>,
    terminating: Arc<Terminating>,
    /// Admission of instances' connections. It closes one of them for a new connection to an
    /// upstream.
    admission: Arc<Admission>,
    machines: Arc<Machines>,
    /// Notified when a connection is going to be opened.
    opened: Rc<Notify>,
    myself: Weak<Pool>,
}

#[derive(Debug, Default)]
struct Http1Host {
    /// Sorted by last use; the last one was used most recently.
    idle: Vec<Idle>,
    /// Open connections, including busy ones.
    open: u32,
    /// Exchanges that wait until a connection is idle or closed.
    waiting: VecDeque<oneshot::Sender<()>>,
    /// Until then each connection carries one request only: a server that sends unsolicited
    /// responses may do so while the next request is in flight.
    distrusted_until: Option<Instant>,
}

#[derive(Debug)]
struct Idle {
    connection: Http1Connection,
    since: Instant,
}

/// An HTTP/1.1 connection.
#[derive(Debug)]
pub(crate) struct Http1Connection {
    pub sender: http1::SendRequest<Body>,
    /// Bounds the bytes that arrive before the response.
    pub heads: Arc<HeadBudget>,
    /// The task that drives the connection works for the function that has the connection checked
    /// out.
    owner: TaskOwner,
    /// Counts the connection for a namespace.
    permit: Option<Arc<Permit>>,
}

/// An HTTP/1.1 connection, checked out for one exchange.
#[derive(Debug)]
pub(crate) struct CheckedOutHttp1 {
    pub connection: Http1Connection,
    /// How long the connection had been idle; `None`: it is new.
    pub idle: Option<Duration>,
}

/// Held until the end of the response. When it is dropped, the connection can be used again.
#[derive(Debug)]
pub(crate) enum CheckIn {
    /// Returns the connection to the pool when it is ready for another request.
    Http1(Option<Http1Connection>, ConnectionKey, Weak<Pool>),
    /// Frees the stream.
    Http2(StreamSlot),
}

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// TCP or TLS failed.
    #[error("{}", handshake_failure(.0).unwrap_or_else(|| .0.to_string()))]
    Io(#[from] io::Error),
    /// The HTTP handshake failed.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The HTTP/2 handshake failed.
    #[error("{0}")]
    Http2(#[from] h2::Error),
    /// There is no TLS configuration for these identities.
    #[error("{0}")]
    Tls(String),
    /// Nothing proves that the connection leads to the instance. No byte was sent.
    #[error("{0}; nothing was sent")]
    Unproven(#[from] Unproven),
    /// The circuit breaker of an external service allows no more connections.
    #[error("its circuit breaker allows no more connections")]
    Full,
    /// A namespace has all the connections that it may have on this node.
    #[error("{0}")]
    Bound(String),
    /// Connecting took longer than this.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
}

impl From<instances::ConnectError> for ConnectError {
    fn from(error: instances::ConnectError) -> Self {
        match error {
            instances::ConnectError::Io(error) => Self::Io(error),
            instances::ConnectError::Unproven(error) => Self::Unproven(error),
        }
    }
}

impl CheckIn {
    /// The certificate of a sidecar at the other end.
    pub(crate) fn certificate(&self) -> Option<PeerCertificate> {
        match self {
            Self::Http1(..) => None,
            Self::Http2(stream) => stream.certificate(),
        }
    }
}

impl Pool {
    /// Creates an empty pool, and starts a task that closes idle connections. Must be called within
    /// [`schedule::run`].
    pub(crate) fn new(terminating: Arc<Terminating>, admission: Arc<Admission>, machines: Arc<Machines>) -> Rc<Self> {
        let pool = Rc::new_cyclic(|myself: &Weak<Self>| Self {
            http1: RefCell::default(),
            http2: RefCell::default(),
            configurations: RefCell::default(),
            terminating,
            admission,
            machines,
            opened: Rc::default(),
            myself: myself.clone(),
        });
        let (weak, opened) = (pool.myself.clone(), pool.opened.clone());
        schedule::spawn(async move {
            while let Some(pool) = weak.upgrade() {
                pool.close_idle(Instant::now());
                let is_empty = pool.is_empty();
                drop(pool);
                if is_empty {
                    // A node without traffic sleeps.
                    opened.notified().await;
                }
                tokio::time::sleep(IDLE_TIMEOUT / 4).await;
            }
        });
        pool
    }

    /// Refuses to connect to this node's gateway: if an endpoint had the gateway's address, its
    /// requests would come back for ever.
    fn check_loop(&self, address: SocketAddr) -> Result<(), ConnectError> {
        if self.machines.is_gateway(address) {
            let reason = "this node's gateway is there, and requests would come back for ever";
            return Err(ConnectError::Io(io::Error::other(reason)));
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.http1.borrow().is_empty() && self.http2.borrow().is_empty()
    }

    /// The idle connection to this address that was used last. If the request must not be sent
    /// twice, skips and closes connections that were idle for [`IDLE_TIMEOUT`] or longer: their
    /// servers may be closing them.
    pub(crate) fn idle_http1(&self, key: &ConnectionKey, repeatable: bool) -> Option<CheckedOutHttp1> {
        let mut hosts = self.http1.borrow_mut();
        let idle = &mut hosts.get_mut(key)?.idle;
        while let Some(Idle { connection, since }) = idle.pop() {
            let idle = since.elapsed();
            if connection.sender.is_ready() && (repeatable || idle < IDLE_TIMEOUT) {
                connection.owner.follow();
                return Some(CheckedOutHttp1 { connection, idle: Some(idle) });
            }
        }
        None
    }

    /// How many connections to this callee this worker has open.
    pub(crate) fn open_http1(&self, key: &ConnectionKey) -> u32 {
        self.http1.borrow().get(&key.together()).map_or(0, |host| host.open)
    }

    /// Frees capacity for a new connection: closes an idle one to another name or address of this
    /// callee, if there is one. `any`: the callee would not reuse one to the same address either,
    /// so it may be closed too.
    pub(crate) fn make_space_http1(&self, key: &ConnectionKey, any: bool) {
        let of_it = |other: &ConnectionKey| match (&other.callee, &key.callee) {
            (CalleeKey::Egress(other), CalleeKey::Egress(this)) => other.name == this.name,
            _ => any && other == key,
        };
        let mut hosts = self.http1.borrow_mut();
        let idle = hosts.iter_mut().filter(|(other, _)| of_it(other)).find_map(|(_, host)| host.idle.pop());
        drop(hosts);
        drop(idle);
    }

    /// Completes when a connection to this callee has become idle or has closed.
    pub(crate) fn changed_http1(&self, key: &ConnectionKey) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot::channel();
        let mut hosts = self.http1.borrow_mut();
        hosts.entry(key.together()).or_default().waiting.push_back(sender);
        async move { drop(receiver.await) }
    }

    /// Opens a connection to the leased instance, or to an external service. `guard` is held as
    /// long as the connection is open.
    pub(crate) async fn connect_http1(
        &self,
        key: &ConnectionKey,
        lease: &dyn InstanceProof,
        (share, guard): (Option<&Arc<Namespace>>, Option<ConnectionGuard>),
        (limit, limits): (Duration, &UpstreamLimits),
    ) -> Result<CheckedOutHttp1, ConnectError> {
        let held = (Open::count(self, key), (guard, self.permit(share)?));
        self.opened.notify_one();
        let connect = async {
            self.check_loop(key.address)?;
            let stream = tcp(key.address, Some(lease), false, limits).await?;
            match key.outside_tls() {
                None => Ok(handshake_http1(stream, key, held, limits).await?),
                Some(egress) => Ok(handshake_http1(begin_tls(egress, stream).await?, key, held, limits).await?),
            }
        };
        let connection = within(limit, connect).await?;
        Ok(CheckedOutHttp1 { connection, idle: None })
    }

    /// Wraps a connection in a guard that returns it to the pool when it is dropped.
    pub(crate) fn check_in_http1(&self, connection: Http1Connection, key: ConnectionKey) -> CheckIn {
        CheckIn::Http1(Some(connection), key, self.myself.clone())
    }

    fn return_http1(&self, connection: Http1Connection, key: ConnectionKey) {
        let mut hosts = self.http1.borrow_mut();
        let together = key.counted_apart().then(|| key.together());
        let terminating = self.terminating.contains(key.address);
        let host = hosts.entry(key).or_default();
        if !terminating && host.is_trusted() {
            host.idle.push(Idle { connection, since: Instant::now() });
        }
        match together {
            None => host.wake_one(),
            Some(together) => hosts.entry(together).or_default().wake_one(),
        }
    }

    /// Closes the idle connections of a client that is gone.
    pub(crate) fn forget(&self, key: &ConnectionKey) {
        let idle = self.http1.borrow_mut().get_mut(key).map(|host| std::mem::take(&mut host.idle));
        drop(idle);
        self.forget_http2(key);
    }

    /// The server at this address has sent an unsolicited response: its connections are not used
    /// again for a while.
    pub(crate) fn distrust(&self, key: &ConnectionKey) {
        let mut hosts = self.http1.borrow_mut();
        let host = hosts.entry(key.clone()).or_default();
        if host.is_trusted() {
            let address = key.address;
            tracing::warn!(%address, "an upstream answers what it was not asked: each of its connections carries one request for a minute");
        }
        host.distrusted_until = Some(Instant::now() + DISTRUST);
        let idle = std::mem::take(&mut host.idle);
        drop(hosts);
        drop(idle);
    }

    fn configuration(
        &self,
        svids: &Arc<SvidStore>,
        caller: &Arc<str>,
        callee: &Arc<str>,
    ) -> Result<Arc<ClientConfig>, ConnectError> {
        let pair = (caller.clone(), callee.clone());
        let mut configurations = self.configurations.borrow_mut();
        if let Some(config) = configurations.get(&pair) {
            return Ok(config.clone());
        }
        let parse = |id: &str| id.parse::<SpiffeId>().map_err(|error| ConnectError::Tls(error.to_string()));
        let made = leno_identity::client_config(svids, &parse(caller)?, &parse(callee)?);
        let config = made.map_err(|error: TlsError| ConnectError::Tls(error.to_string()))?;
        if configurations.len() >= MAX_TLS_CONFIGS {
            configurations.clear();
        }
        configurations.insert(pair, config.clone());
        Ok(config)
    }

    fn close_idle(&self, now: Instant) {
        let mut http1 = self.http1.borrow_mut();
        for (ConnectionKey { address, callee }, host) in http1.iter_mut() {
            let longest = match callee {
                _ if self.terminating.contains(*address) => Duration::ZERO,
                // They end with the client's connection, or the program closes them.
                CalleeKey::Pod(..) => Duration::MAX,
                CalleeKey::Instance if address.ip().is_loopback() => LOOPBACK_IDLE_TIMEOUT,
                _ => IDLE_TIMEOUT,
            };
            let since = |idle: &Idle| now.saturating_duration_since(idle.since);
            host.idle.retain(|idle| !idle.connection.sender.is_closed() && since(idle) < longest);
            // The connections are sorted: the first one has been idle longest.
            let old = host.idle.iter().take_while(|idle| since(idle) >= IDLE_TIMEOUT).count();
            host.idle.drain(..old.saturating_sub(MAX_LONG_IDLE));
            host.waiting.retain(|waiting| !waiting.is_closed());
        }
        http1
            .retain(|_, host| host.open > 0 || !host.idle.is_empty() || !host.waiting.is_empty() || !host.is_trusted());
        drop(http1);
        self.close_idle_http2(now);
    }
}

impl Http1Host {
    fn is_trusted(&self) -> bool {
        self.distrusted_until.is_none_or(|until| Instant::now() >= until)
    }

    fn wake_one(&mut self) {
        while let Some(waiting) = self.waiting.pop_front() {
            if waiting.send(()).is_ok() {
                break;
            }
        }
    }
}

/// Counts a connection among its callee's, and among its namespace's.
type ConnectionGuards = (Option<ConnectionGuard>, Option<Arc<Permit>>);

/// Counts an HTTP/1.1 connection as long as it is open.
struct Open(Weak<Pool>, ConnectionKey);

impl Open {
    fn count(pool: &Pool, key: &ConnectionKey) -> Self {
        let key = key.together();
        pool.http1.borrow_mut().entry(key.clone()).or_default().open += 1;
        Self(pool.myself.clone(), key)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade()
            && let Some(host) = pool.http1.borrow_mut().get_mut(&self.1)
        {
            host.open = host.open.saturating_sub(1);
            host.wake_one();
        }
    }
}

impl Drop for CheckIn {
    fn drop(&mut self) {
        let Self::Http1(connection, key, pool) = self else { return };
        let (Some(mut connection), key, Some(pool)) = (connection.take(), key.clone(), pool.upgrade()) else { return };
        if connection.sender.is_ready() {
            pool.return_http1(connection, key);
        } else if !connection.sender.is_closed() {
            // The last bytes were read, but the connection's task has not seen yet that the message
            // is complete.
            let pool = Rc::downgrade(&pool);
            schedule::spawn(async move {
                if connection.sender.ready().await.is_ok()
                    && let Some(pool) = pool.upgrade()
                {
                    pool.return_http1(connection, key);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests;
