//! HTTP/2 connections of the pool, which carry as many streams as their peers take.

use super::connect::{Http2, begin_tls, tcp, within};
use super::{CalleeKey, ConnectError, ConnectionGuards, ConnectionKey, IDLE_TIMEOUT, Pool, Sender, TunnelKey};
use crate::state::certificate::PeerCertificate;
use crate::state::egress::EgressKey;
use crate::state::health::ConnectionGuard;
use crate::state::instances::InstanceProof;
use leno_http::inflow::PeerSettings;
use leno_identity::{SpiffeId, SvidStore, tunnel_client_config};
use leno_model::UpstreamLimits;
use leno_namespaces::Namespace;
use leno_runtime::schedule::TaskOwner;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time between PINGs to another node, and maximum time of the answer. A node that has lost its
/// network must be detected before the requests in flight there are of no use.
pub(super) const NODE_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Time between PINGs to a pod of another node, and maximum time of the answer. They are sent also
/// while no tunnel is open: the next one must not wait for a pod that is gone.
const TUNNEL_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long a connection without tunnels is kept. Another one takes a handshake of mutual TLS.
const TUNNEL_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the answer of a function or an External to a PING may take.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(20);
/// The default setting. PINGs are as rare as every server permits.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(300);
/// How long the pool remembers an address without connections that has ended one because of too
/// many PINGs.
const CALM: Duration = Duration::from_secs(600);
/// PINGs are always allowed at this interval. A gRPC server permits it by default
/// (`permit_keepalive_time`); this is a bit more, for timers that are not exact.
const PERMITTED_KEEP_ALIVE: Duration = Duration::from_secs(305);
/// Maximum number of streams on one HTTP/2 connection. The peer's SETTINGS may allow fewer.
const STREAMS: u32 = 100;

#[derive(Debug, Default)]
pub(super) struct Http2Host {
    connections: Vec<SharedConnection>,
    /// Held while connecting, so that a burst does not open one connection per request.
    connecting: Rc<tokio::sync::Mutex<()>>,
    /// How often the address has ended a connection because of too many PINGs, and when it last
    /// did.
    calmed: Option<(u32, Instant)>,
}

#[derive(Debug)]
struct SharedConnection {
    sender: Sender,
    /// The task that drives the connection works for the function that opened a stream last.
    owner: TaskOwner,
    streams: Rc<Streams>,
}

#[derive(Debug)]
pub(super) struct Streams {
    open: Cell<u32>,
    settings: Arc<PeerSettings>,
    idle_since: Cell<Instant>,
    /// The certificate of a sidecar at the other end.
    certificate: Option<PeerCertificate>,
    /// The connection must end at once, even with open streams.
    is_cut_off: Cell<bool>,
    /// The task that drives the connection.
    driver: RefCell<Option<Waker>>,
}

/// A stream of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct CheckedOutHttp2 {
    pub sender: Sender,
    /// Frees the stream when dropped.
    pub stream: StreamSlot,
    /// The connection was already open.
    pub reused: bool,
}

/// Counts an HTTP/2 connection. The flag: the connection must be opened. `None`: the circuit
/// breaker allows no further connection.
pub(crate) trait CountConnection: FnOnce(bool) -> Option<Option<ConnectionGuard>> {}

impl<F: FnOnce(bool) -> Option<Option<ConnectionGuard>>> CountConnection for F {}

/// Counts as one of a connection's streams until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamSlot(Rc<Streams>);

impl Pool {
    /// A stream of a connection that is already open, if one is free.
    pub(crate) fn shared_http2(&self, key: &ConnectionKey) -> Option<CheckedOutHttp2> {
        let mut hosts = self.http2.borrow_mut();
        let connections = &mut hosts.get_mut(key)?.connections;
        connections.retain(|shared| !shared.sender.is_closed());
        connections.iter().rfind(|shared| shared.has_capacity() && shared.is_usable()).map(SharedConnection::check_out)
    }

    /// A place in the queue of the connection that has the fewest streams beyond its limit.
    fn queued_http2(
        &self,
        key: &ConnectionKey,
        only_if: impl Fn(&[SharedConnection]) -> bool,
    ) -> Option<CheckedOutHttp2> {
        let hosts = self.http2.borrow();
        let connections = &hosts.get(key)?.connections;
        let usable = || connections.iter().filter(|shared| shared.is_usable());
        let beyond =
            |shared: &&SharedConnection| i64::from(shared.streams.open.get()) - i64::from(shared.streams.limit());
        only_if(connections).then(|| usable().min_by_key(beyond).map(SharedConnection::check_out)).flatten()
    }

    /// A stream of a connection to `key`. Opens a connection if none has a free stream, one at a
    /// time. `lease` is that of the instance; `None`: the callee is a sidecar, which authenticates
    /// by TLS.
    pub(crate) async fn http2(
        &self,
        key: &ConnectionKey,
        lease: Option<&dyn InstanceProof>,
        svids: &Arc<SvidStore>,
        (share, count): (Option<&Arc<Namespace>>, impl CountConnection),
        (limit, limits): (Duration, &UpstreamLimits),
    ) -> Result<CheckedOutHttp2, ConnectError> {
        if let Some(shared) = self.shared_http2(key) {
            return Ok(shared);
        }
        let connecting = self.http2.borrow_mut().entry(key.clone()).or_default().connecting.clone();
        self.opened.notify_one();
        let _one_at_a_time = connecting.lock().await;
        // A peer that accepts no streams at all would accept none on another connection either. It
        // raises its limit as soon as it accepts streams.
        let takes_none =
            |connections: &[SharedConnection]| connections.iter().any(|shared| shared.streams.limit() == 0);
        if let Some(shared) = self.shared_http2(key).or_else(|| self.queued_http2(key, takes_none)) {
            return Ok(shared);
        }
        let is_first = self.http2.borrow().get(key).is_none_or(|host| host.connections.is_empty());
        let Some(guard) = count(is_first) else {
            return self.queued_http2(key, |_| true).ok_or(ConnectError::Full);
        };
        let held = (guard, self.permit(share)?);
        // Boxed because it is rare and large. Otherwise it would enlarge the future of every
        // exchange.
        Box::pin(within(limit, self.connect_http2(key, lease, svids, held, limits))).await
    }

    async fn connect_http2(
        &self,
        key: &ConnectionKey,
        lease: Option<&dyn InstanceProof>,
        svids: &Arc<SvidStore>,
        held: ConnectionGuards,
        limits: &UpstreamLimits,
    ) -> Result<CheckedOutHttp2, ConnectError> {
        self.check_loop(key.address)?;
        let stream = tcp(key.address, lease, true, limits).await?;
        let (pool, keep_alive) = (self.myself.clone(), self.keep_alive(key, limits));
        let notice = lease.and_then(InstanceProof::end_notice);
        let http2 = Http2 { key, pool, limits, keep_alive, notice };
        let (sender, owner, streams) = match &key.callee {
            CalleeKey::Egress(EgressKey { tls: Some(egress), .. }) => {
                let stream = begin_tls(egress, stream).await?;
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(ConnectError::Tls("it does not speak HTTP/2 (ALPN)".to_owned()));
                }
                http2.handshake(stream, held, None).await?
            }
            CalleeKey::Instance | CalleeKey::Pod(..) | CalleeKey::Egress(_) => {
                http2.handshake(stream, held, None).await?
            }
            CalleeKey::Sidecar((caller, callee)) => {
                let config = self.configuration(svids, caller, callee)?;
                let callee: SpiffeId =
                    callee.parse().map_err(|_| ConnectError::Tls(format!("bad identity {callee}")))?;
                let name = leno_identity::server_name(&callee).map_err(|error| ConnectError::Tls(error.to_string()))?;
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                let certificate = PeerCertificate::of(stream.get_ref().1);
                http2.handshake(stream, held, Some(certificate)).await?
            }
            CalleeKey::Tunnels(ends) => {
                let config = ends.configuration(svids)?;
                // An address, so the client asks for no server name.
                let name = ServerName::from(key.address.ip());
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                let certificate = PeerCertificate::of(stream.get_ref().1);
                http2.handshake(stream, held, Some(certificate)).await?
            }
        };
        let shared = SharedConnection { sender, owner, streams };
        let checked_out = CheckedOutHttp2 { reused: false, ..shared.check_out() };
        self.http2.borrow_mut().entry(key.clone()).or_default().connections.push(shared);
        Ok(checked_out)
    }

    /// Time between PINGs, and how long their answers may take.
    pub(super) fn keep_alive(&self, key: &ConnectionKey, limits: &UpstreamLimits) -> (Duration, Duration) {
        match key.callee {
            CalleeKey::Sidecar(_) => return (NODE_KEEP_ALIVE, NODE_KEEP_ALIVE),
            CalleeKey::Tunnels(_) => return (TUNNEL_KEEP_ALIVE, TUNNEL_KEEP_ALIVE),
            CalleeKey::Instance | CalleeKey::Pod(..) | CalleeKey::Egress(_) => {}
        }
        let calmed = self.http2.borrow().get(key).and_then(|host| host.calmed).map_or(0, |(times, _)| times);
        let permitted = limits.keep_alive().max(PERMITTED_KEEP_ALIVE);
        let wanted = if limits.keep_alive() >= DEFAULT_KEEP_ALIVE { permitted } else { limits.keep_alive() };
        (wanted.saturating_mul(1 << calmed.min(16)).min(permitted), KEEP_ALIVE_ANSWER)
    }

    /// Ends the connections to nodes that were revoked.
    pub(crate) fn end_revoked(&self, svids: &SvidStore) {
        for shared in self.http2.borrow().values().flat_map(|host| &host.connections) {
            if shared.streams.certificate.is_some_and(|certificate| certificate.is_revoked(svids)) {
                shared.sender.close();
                shared.streams.cut_off();
            }
        }
    }

    /// The peer has ended a connection because of too many PINGs (RFC 9113, 7: ENHANCE_YOUR_CALM).
    pub(super) fn calm(&self, key: &ConnectionKey) {
        if let Some(host) = self.http2.borrow_mut().get_mut(key) {
            host.calmed = Some((host.calmed.map_or(1, |(times, _)| times + 1), Instant::now()));
        }
    }

    /// Closes the connections to this callee that have no streams.
    pub(super) fn forget_http2(&self, key: &ConnectionKey) {
        if let Some(host) = self.http2.borrow_mut().get_mut(key) {
            host.connections.retain(|shared| shared.streams.is_open());
        }
    }

    /// Closes connections without streams.
    pub(super) fn close_idle_http2(&self, now: Instant) {
        let mut http2 = self.http2.borrow_mut();
        for (key, host) in http2.iter_mut() {
            let longest = match &key.callee {
                // They end with the client's connection, or the program closes them.
                CalleeKey::Pod(..) => Duration::MAX,
                // Its sockets would keep the network of a pod that has ended.
                CalleeKey::Tunnels(ends) if ends.pod.has_ended() => Duration::ZERO,
                CalleeKey::Tunnels(_) => TUNNEL_IDLE_TIMEOUT,
                _ => IDLE_TIMEOUT,
            };
            host.connections.retain(|shared| {
                let idle = shared.streams.open.get() == 0
                    && now.saturating_duration_since(shared.streams.idle_since.get()) >= longest;
                !shared.sender.is_closed() && !idle
            });
        }
        http2.retain(|_, host| {
            let calmed = host.calmed.is_some_and(|(_, at)| now.saturating_duration_since(at) < CALM);
            !host.connections.is_empty() || calmed || Rc::strong_count(&host.connecting) > 1
        });
    }
}

impl TunnelKey {
    fn configuration(&self, svids: &Arc<SvidStore>) -> Result<Arc<ClientConfig>, ConnectError> {
        let parse = |id: &Arc<str>| id.parse::<SpiffeId>().map_err(|error| ConnectError::Tls(error.to_string()));
        let expected = self.expected.iter().map(parse).collect::<Result<_, _>>()?;
        let made = tunnel_client_config(svids, &parse(&self.identity)?, expected);
        made.map_err(|error| ConnectError::Tls(error.to_string()))
    }
}

impl SharedConnection {
    fn has_capacity(&self) -> bool {
        self.streams.open.get() < self.streams.limit()
    }

    fn is_usable(&self) -> bool {
        let expires = self.streams.certificate.and_then(|certificate| certificate.expires);
        !self.sender.is_closed() && expires.is_none_or(|expires| Instant::now() < expires)
    }

    fn check_out(&self) -> CheckedOutHttp2 {
        self.owner.follow();
        CheckedOutHttp2 { sender: self.sender.clone(), stream: StreamSlot::open(&self.streams), reused: true }
    }
}

impl Streams {
    pub(super) fn new(settings: Arc<PeerSettings>, certificate: Option<PeerCertificate>) -> Self {
        let (is_cut_off, driver) = Default::default();
        Self { open: Cell::new(0), settings, idle_since: Cell::new(Instant::now()), certificate, is_cut_off, driver }
    }

    fn cut_off(&self) {
        self.is_cut_off.set(true);
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Whether the connection must end at once. If not, the task is woken when it must. The pool
    /// cuts off only connections to nodes.
    pub(super) fn poll_cut_off(&self, cx: &Context<'_>) -> Poll<()> {
        if self.certificate.is_none() {
            return Poll::Pending;
        }
        if self.is_cut_off.get() {
            return Poll::Ready(());
        }
        let mut driver = self.driver.borrow_mut();
        match &mut *driver {
            Some(known) => known.clone_from(cx.waker()),
            None => *driver = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Whether a stream is open.
    pub(super) fn is_open(&self) -> bool {
        self.open.get() > 0
    }

    /// Maximum number of open streams.
    fn limit(&self) -> u32 {
        self.settings.streams().min(STREAMS)
    }
}

impl StreamSlot {
    fn open(streams: &Rc<Streams>) -> Self {
        streams.open.set(streams.open.get() + 1);
        Self(streams.clone())
    }

    /// The certificate of a sidecar at the other end.
    pub(crate) fn certificate(&self) -> Option<PeerCertificate> {
        self.0.certificate
    }

    /// Maximum size of a request's head that the peer accepts, as HTTP/2 counts it.
    pub(crate) fn head(&self) -> u32 {
        self.0.settings.head()
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
        if self.0.open.get() == 0 {
            self.0.idle_since.set(Instant::now());
        }
    }
}
