//! Sends a request to a callee that other nodes host. Chooses a node for each attempt anew, and
//! tries another node at once if nothing was sent, or if the node reports that it does not host the
//! callee any more.

use super::send::{self, Repeatable, broken_stream, is_unprocessed};
use super::{Forward, Reply, UpstreamGuard};
use crate::pipeline::exchange::Origin;
use crate::pipeline::pool::{CalleeKey, CheckIn, CheckedOutHttp2, ConnectError, ConnectionKey, SendError};
use crate::pipeline::route::RemoteCallee;
use crate::pipeline::upgrade;
use crate::state::endpoints::{Among, Candidate, Choice, UnderWay};
use crate::state::function::FunctionEntry;
use http::uri::Scheme;
use http::{HeaderValue, Response, StatusCode, request};
use leno_http::body::Body;
use leno_http::failure::{Failure, Unavailable};
use leno_http::wire::WireBody;
use leno_http::{head, hop};
use leno_telemetry::exchange::{AttemptResult, Stage};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time to connect to a node, including TLS. Then another node is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum number of nodes to which one attempt tries to connect.
const MOST_NODES: usize = 4;

/// The destination of an attempt.
enum Next<'a> {
    /// To the inbound judge of this node.
    Here(&'a Arc<FunctionEntry>),
    /// To the inbound sidecar at this address, over mutual TLS.
    There(SocketAddr, Option<Arc<Candidate>>),
}

/// A connected destination of the request.
enum NextHop<'a> {
    /// This node.
    Here(&'a Arc<FunctionEntry>),
    /// Another node, or this one over TLS.
    There(NodeConnection),
}

/// A connection to a node, and the guard that counts the request there.
struct NodeConnection {
    connection: CheckedOutHttp2,
    address: SocketAddr,
    /// The chosen endpoint; `None`: this node.
    candidate: Option<Arc<Candidate>>,
    under_way: Option<UnderWay>,
}

impl Forward<'_> {
    /// Sends the request to this or another node that hosts the callee. `avoid`: the destinations
    /// of earlier attempts.
    pub(super) async fn to_nodes(
        &self,
        callee: &RemoteCallee,
        mut head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        let mut failed = Vec::new();
        let mut connected = loop {
            match self.next(callee, avoid, &failed).ok_or(Unavailable::Unknown)? {
                Next::Here(entry) => return Ok(self.to_this_node(entry, head, body).await),
                Next::There(address, candidate) => {
                    if let Some(connected) = self.connect_node(callee, address, candidate, &mut failed).await? {
                        break connected;
                    }
                }
            }
        };
        let exchange = self.exchange;
        exchange.record.stage(Stage::Upstream);
        self.tell_hop(&mut head)?;
        head::into_http2(&mut head, if self.exchange.scheme == "https" { &Scheme::HTTPS } else { &Scheme::HTTP })?;
        let mut again = Repeatable::new(*head, body);
        let mut request = again.next().unwrap_or_default();
        // A node may take two rounds: one for an idle connection that it has just closed, and one
        // for a new connection.
        for _ in 0..2 * MOST_NODES {
            let NodeConnection { connection, address, candidate, under_way } = connected;
            let CheckedOutHttp2 { mut sender, stream, reused } = connection;
            let sent = sender.send(request, |interim| exchange.pass_on(interim)).await?;
            let failure = match sent {
                Ok(response) => {
                    let reply = self.answered(send::sound(response).await?, CheckIn::Http2(stream), under_way);
                    let Err(misdirected @ Failure::Misdirected) = reply else { return reply };
                    failed.push(address);
                    request = again.repeat().ok_or(Unavailable::Unknown)?;
                    self.pause_before_repeat(&again, misdirected).await;
                    Unavailable::Unknown.into()
                }
                Err(SendError { error, is_unsent }) => {
                    let limits = &exchange.snapshot.mesh.limits.upstream;
                    let next = if is_unsent {
                        again.next()
                    } else if is_unprocessed(&error) {
                        again.repeat()
                    } else {
                        None
                    };
                    request = next.ok_or_else(|| broken_stream(&error, is_unsent, Some(limits)))?;
                    if !is_unsent {
                        self.pause_before_repeat(&again, broken_stream(&error, false, None)).await;
                    }
                    drop((stream, under_way));
                    if is_unsent && !reused {
                        self.failed_to_connect(address, candidate.as_deref(), &mut failed, &error)?;
                    }
                    Failure::Connect { cause: format!("{address}: {error}") }
                }
            };
            connected = match self.connect_again(callee, avoid, &mut failed).await? {
                Some(NextHop::There(connected)) => connected,
                // A tunnel's head has another form by now.
                Some(NextHop::Here(entry)) if !exchange.upgrade => {
                    let (mut head, body) = request.into_parts();
                    untell_hop(&mut head);
                    exchange.record.node(None);
                    return Ok(self.to_this_node(entry, Box::new(head), body).await);
                }
                _ => return Err(failure),
            };
        }
        Err(Failure::Connect { cause: "each connection was closed before the request was sent".to_owned() })
    }

    /// Sends the request to the inbound judge of this node.
    async fn to_this_node(&self, entry: &Arc<FunctionEntry>, head: Box<request::Parts>, body: Body) -> Reply {
        self.tried_here.set(true);
        self.endpoint.set(None);
        self.deliver_locally(entry, head, body).await
    }

    /// The next destination, which may be the same node again; `None`: there is none.
    async fn connect_again<'a>(
        &self,
        callee: &'a RemoteCallee,
        avoid: &[SocketAddr],
        failed: &mut Vec<SocketAddr>,
    ) -> Result<Option<NextHop<'a>>, Failure> {
        while let Some(next) = self.next(callee, avoid, failed) {
            match next {
                Next::Here(entry) => return Ok(Some(NextHop::Here(entry))),
                Next::There(address, candidate) => {
                    if let Some(connected) = self.connect_node(callee, address, candidate, failed).await? {
                        return Ok(Some(NextHop::There(connected)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Chooses the destination of the attempt, in this order: this node, if it has a ready
    /// instance; another node that has one; this node or a home node of the function, to start an
    /// instance; and last a node that was to be avoided.
    fn next<'a>(&self, callee: &'a RemoteCallee, avoid: &[SocketAddr], failed: &[SocketAddr]) -> Option<Next<'a>> {
        let worker = &self.exchange.worker;
        let endpoints = &worker.node.endpoints;
        let known = endpoints.of(&callee.id);
        let not = [avoid, failed].concat();
        let there = |among: Among, not: &[SocketAddr]| {
            let choice = Choice { target: &self.permit.target, not, now: Instant::now() };
            let candidate = endpoints.choose(known.as_ref()?, choice, among, |max| worker.random.up_to(max))?;
            Some(Next::There(candidate.endpoint.address, Some(candidate)))
        };
        let here = callee.here.as_ref().and_then(|entry| match callee.tls_here {
            None => Some(Next::Here(entry)),
            Some(address) => (!failed.contains(&address)).then_some(Next::There(address, None)),
        });
        let tried_here = self.tried_here.get() || callee.tls_here.is_some_and(|address| avoid.contains(&address));
        let is_ready = !tried_here && callee.here.is_some() && worker.node.instances.count(&callee.id) > 0;
        let (mut ready, mut fresh, mut again) = (None, None, None);
        match here {
            Some(here) if is_ready => ready = Some(here),
            Some(here) if !tried_here && worker.node.instances.may_start(&callee.id) => fresh = Some(here),
            here => again = here,
        }
        let ready = ready.or_else(|| there(Among::Ready, &not));
        if self.exchange.is_copy() {
            return ready;
        }
        ready
            .or(fresh)
            .or_else(|| there(Among::Homes, &not))
            .or_else(|| there(Among::Avoided, &not))
            .or(again)
            .or_else(|| there(Among::Avoided, failed))
    }

    /// A stream of a connection to a node; `None`: there is no connection, and another node may be
    /// tried.
    async fn connect_node(
        &self,
        callee: &RemoteCallee,
        address: SocketAddr,
        candidate: Option<Arc<Candidate>>,
        failed: &mut Vec<SocketAddr>,
    ) -> Result<Option<NodeConnection>, Failure> {
        let exchange = self.exchange;
        self.endpoint.set(Some(address));
        exchange.record.node(candidate.as_ref().map(|candidate| candidate.endpoint.node.clone()));
        let under_way = candidate.as_ref().map(|candidate| candidate.begin());
        let caller = match &exchange.origin {
            Origin::Gateway => exchange.snapshot.gateway.clone(),
            Origin::Outbound(..) | Origin::Inbound(_) => self.permit.entry.identity.clone(),
        };
        let key = ConnectionKey { address, callee: CalleeKey::Sidecar((caller, callee.identity.clone())) };
        // Connections to nodes carry requests to all functions, so the circuit breaker counts
        // requests instead of these connections.
        let held = (exchange.caller_share(), |_| Some(None));
        let limits = (CONNECT, &exchange.snapshot.mesh.limits.upstream);
        let connection = exchange.worker.pool.http2(&key, None, &exchange.worker.node.svids, held, limits).await;
        match connection {
            // No other node is tried, because this node lacks the capacity.
            Err(ConnectError::Bound(reason)) => Err(Failure::Bound(reason)),
            Ok(connection) => Ok(Some(NodeConnection { connection, address, candidate, under_way })),
            Err(error) => self.failed_to_connect(address, candidate.as_deref(), failed, &error).map(|()| None),
        }
    }

    /// Excludes a node to which no connection could be made. An error: enough nodes were tried.
    fn failed_to_connect(
        &self,
        address: SocketAddr,
        candidate: Option<&Candidate>,
        failed: &mut Vec<SocketAddr>,
        error: &dyn std::fmt::Display,
    ) -> Result<(), Failure> {
        let failure = Failure::Connect { cause: format!("{address}: {error}") };
        tracing::debug!(%address, %error, "no connection to a node");
        if let Some(candidate) = candidate {
            self.exchange.worker.node.endpoints.unreachable(address, Instant::now());
            self.exchange.record.metrics().unreachable(&candidate.endpoint.node);
        }
        failed.push(address);
        if failed.len() >= MOST_NODES || candidate.is_none() {
            return Err(failure);
        }
        self.exchange.record.attempt(Some(address), AttemptResult::Failed(failure.flag()));
        Ok(())
    }

    /// Adds the fields by which the callee's sidecar learns facts that only this node knows.
    fn tell_hop(&self, head: &mut request::Parts) -> Result<(), Failure> {
        let exchange = self.exchange;
        let protocol = HeaderValue::from_static(head::protocol_name(exchange.protocol));
        head.headers.insert(head::HOP_PROTOCOL, protocol);
        if let Some((at, _)) = self.deadline.get() {
            let left = at.saturating_duration_since(tokio::time::Instant::now());
            head.headers.insert(hop::TIMEOUT, hop::timeout_value(left));
        }
        if self.is_retry() {
            head.headers.insert(hop::RETRY, HeaderValue::from_static("1"));
        }
        if let Some(terms) = self.hop_terms() {
            let terms = terms.value().ok_or_else(|| Failure::Route("its revision cannot be named".to_owned()))?;
            head.headers.insert(hop::ROUTE, terms);
        }
        if exchange.is_unshared {
            head.headers.insert(hop::UNSHARED, HeaderValue::from_static("1"));
        }
        if let Origin::Gateway = exchange.origin {
            let client =
                hop::Client { scheme: exchange.scheme, port: exchange.port, address: exchange.peer.address }.value();
            head.headers.insert(hop::CLIENT, client.ok_or(Failure::Protocol("its client cannot be named"))?);
        }
        if exchange.upgrade {
            head::into_extended_connect(head);
        }
        Ok(())
    }

    /// The reply, with the failure that the callee's sidecar reports. An error: the callee is not
    /// there, and has seen nothing of the request.
    fn answered(
        &self,
        mut response: Response<WireBody>,
        connection: CheckIn,
        under_way: Option<UnderWay>,
    ) -> Result<Reply, Failure> {
        if self.exchange.upgrade && response.status() == StatusCode::OK {
            upgrade::switch(&mut response)?;
        }
        if let Some(failure) = response.headers().get(head::HOP_FAILURE).and_then(Failure::from_label) {
            if failure == Failure::Misdirected {
                return Err(failure);
            }
            response.extensions_mut().insert(failure);
        }
        let guard = UpstreamGuard { connection: Some(connection), _under_way: under_way, ..UpstreamGuard::default() };
        Ok(Reply { response: response.map(Body::from), guard })
    }
}

/// Removes the fields that [`Forward::tell_hop`] has added to a caller's request.
fn untell_hop(head: &mut request::Parts) {
    for name in [head::HOP_PROTOCOL, hop::TIMEOUT, hop::RETRY, hop::ROUTE, hop::UNSHARED] {
        head.headers.remove(name);
    }
}
