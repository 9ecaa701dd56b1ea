//! Connections to programs of pods that carry no HTTP.

use super::opening::{self, Opening, Patience, classify};
use super::{
    CountingReader, PodStream, Proof, ResetUnlessDone, Stop, copy_both, count, hello, judge_inbound, peer_input,
};
use crate::pipeline::worker::Worker;
use crate::state::certificate::PeerCertificate;
use crate::state::function::FunctionEntry;
use crate::state::pods::PodConnection;
use leno_http::peer::Peer;
use leno_model::{FunctionId, Pod};
use leno_policy::connection::may_carry_requests;
use leno_runtime::schedule::{self, Class};
use leno_telemetry::flows::{Connection, ConnectionFailure};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::net::TcpStream;

/// Copies a connection that the kubelet has opened for a probe, or that a permissive pod takes
/// although its function is not in force yet.
pub(crate) async fn copy_unjudged(connection: &PodConnection, stream: impl PodStream, ahead: &[u8]) -> io::Result<()> {
    let mut stream = ResetUnlessDone { stream, done: false };
    let mut upstream = ResetUnlessDone { stream: connection.connect().await?, done: false };
    let _ = upstream.stream.set_nodelay(true);
    upstream.stream.write_all(ahead).await?;
    copy_bidirectional(&mut stream.stream, &mut upstream.stream).await?;
    (stream.done, upstream.done) = (true, true);
    Ok(())
}

/// A connection to a pod that carries no HTTP, as far as its client has shown.
pub(crate) struct PodTcp {
    pub worker: Rc<Worker>,
    pub connection: Rc<PodConnection>,
    pub peer: Peer,
    /// The pod of this node that has opened it.
    pub caller: Option<Arc<Pod>>,
    /// The certificate of the tunnel in which it comes; `None`: it comes in none.
    pub certificate: Option<PeerCertificate>,
    name: String,
    is_tls: bool,
    rule: String,
    is_connected: bool,
    bytes: [u64; 2],
    started: (SystemTime, Instant),
}

/// The client of a connection to a pod.
pub(crate) struct PodClient {
    pub peer: Peer,
    /// See [`PodTcp::caller`].
    pub caller: Option<Arc<Pod>>,
    /// See [`PodTcp::certificate`].
    pub certificate: Option<PeerCertificate>,
}

/// A connection whose client waited at first, and then began HTTP.
pub(crate) struct LateHttp<S> {
    pub stream: S,
    pub ahead: Vec<u8>,
    pub opening: Opening,
}

impl PodTcp {
    pub(crate) fn new(worker: &Rc<Worker>, connection: &Rc<PodConnection>, client: &PodClient) -> Self {
        let PodClient { peer, caller, certificate } = client;
        Self {
            worker: worker.clone(),
            connection: connection.clone(),
            peer: peer.clone(),
            caller: caller.clone(),
            certificate: *certificate,
            name: String::new(),
            is_tls: false,
            rule: String::new(),
            is_connected: false,
            bytes: [0; 2],
            started: (SystemTime::now(), Instant::now()),
        }
    }

    /// Proxies the connection from beginning to end, and reports it. If the client was silent, it
    /// may begin HTTP, which is returned.
    pub(crate) async fn run<S: PodStream>(
        mut self,
        mut stream: S,
        mut ahead: Vec<u8>,
        opening: Opening,
    ) -> Option<LateHttp<S>> {
        schedule::charge(Class::of(&self.connection.pod.function().to_string()));
        let begun = match opening {
            Opening::Silent => self.await_speaker(&mut stream, &mut ahead).await,
            Opening::Tls => self.read_name(&mut stream, &mut ahead).await.map(|()| Speaker::Other(None)),
            _ => Ok(Speaker::Other(None)),
        };
        let ended = match begun {
            Ok(Speaker::Http(opening)) => return Some(LateHttp { stream, ahead, opening }),
            Ok(Speaker::Other(upstream)) => self.forward(stream, upstream, &ahead).await,
            Err(stop) => {
                stream.reset();
                Err(stop)
            }
        };
        self.report(&ended);
        None
    }

    /// Judges a connection in a tunnel before its first byte, and connects to the program, which the
    /// connection gets. If it is not allowed, its requests may be, and nothing reaches the program.
    /// A refusal is reported.
    pub(crate) async fn begin(mut self) -> Result<(), TunnelRefusal> {
        let refusal = match self.judge() {
            Ok(_) => match self.connection.open().await {
                Ok(()) => return Ok(()),
                Err(error) => (Err(Stop::from(error)), TunnelRefusal::Unreachable),
            },
            Err(_) if self.may_carry_requests() => return Ok(()),
            Err(stop) => (Err(stop), TunnelRefusal::Denied),
        };
        self.report(&refusal.0);
        Err(refusal.1)
    }

    fn may_carry_requests(&self) -> bool {
        let found = self.worker.snapshot_with(&self.connection.pod.function());
        let port = self.connection.called.port();
        found.is_some_and(|(_, entry)| may_carry_requests(&entry.inbound.spec, peer_input(&self.peer), port))
    }

    /// Waits until either end speaks. If the connection is not allowed, its requests may be: then
    /// the program hears nothing of it before the client speaks.
    async fn await_speaker(&mut self, stream: &mut impl PodStream, ahead: &mut Vec<u8>) -> Result<Speaker, Stop> {
        let line = self.worker.snapshot().mesh.limits.head_timeout;
        let (opening, upstream) = match self.judge() {
            Err(refused) => match opening::read(stream, ahead, Patience { first: line, line }).await? {
                Opening::Silent => return Err(refused),
                opening => (opening, None),
            },
            Ok(_) => {
                let upstream = self.connect().await?;
                let read = opening::read(stream, ahead, Patience::endless(line));
                let spoken = tokio::select! {
                    opening = read => Some(opening?),
                    is_http2 = begins_http2(&upstream) => match is_http2? {
                        true => None,
                        false => return Ok(Speaker::Other(Some(upstream))),
                    },
                };
                let opening = match spoken {
                    Some(opening) => opening,
                    None => opening::read(stream, ahead, Patience::endless(line)).await?,
                };
                (opening, Some(upstream))
            }
        };
        match opening {
            // The pipeline connects anew, as it does for each client.
            Opening::Http1 | Opening::Http2 => return Ok(Speaker::Http(opening)),
            Opening::Tls => self.read_name(stream, ahead).await?,
            Opening::Other | Opening::Silent | Opening::Nothing => {}
        }
        Ok(Speaker::Other(upstream))
    }

    /// Reads the server name of a TLS hello. A permissive pod also takes a hello that cannot be
    /// read.
    async fn read_name(&mut self, stream: &mut impl PodStream, ahead: &mut Vec<u8>) -> Result<(), Stop> {
        self.is_tls = true;
        let longest = self.worker.snapshot().mesh.limits.head_timeout;
        match hello::read(stream, ahead, longest).await {
            Ok(name) => self.name = name.unwrap_or_default(),
            Err(Stop::Refused(_)) if !self.connection.pod.is_enforced() => {}
            Err(stop) => return Err(stop),
        }
        Ok(())
    }

    async fn forward(&mut self, stream: impl PodStream, upstream: Option<TcpStream>, ahead: &[u8]) -> Result<(), Stop> {
        let mut stream = ResetUnlessDone { stream, done: false };
        let entry = self.judge()?;
        let _counted = count(&self.worker, &entry)?;
        let upstream = match upstream {
            Some(upstream) => upstream,
            None => self.connect().await?,
        };
        let mut upstream = ResetUnlessDone { stream: upstream, done: false };
        self.is_connected = true;
        if let Some(caller) = self.calling_function() {
            self.worker.node.telemetry.connections.opened(&caller, &entry.config.id);
        }
        upstream.stream.write_all(ahead).await?;
        let line = classify(ahead).is_none().then(|| ahead.to_vec());
        let (mut client, node) = (FirstLine { stream: &mut stream.stream, line }, self.worker.node.clone());
        let mut from = CountingReader { stream: &mut client, read: ahead.len() as u64 };
        let mut to = CountingReader { stream: &mut upstream.stream, read: 0 };
        let copied =
            copy_both(&node, Proof::since_now(self.certificate), &mut from, &mut to, || self.judge().map(drop)).await;
        self.bytes = [from.read, to.read];
        (stream.done, upstream.done) = (copied.is_ok(), copied.is_ok());
        copied
    }

    async fn connect(&self) -> Result<TcpStream, Stop> {
        let upstream = self.connection.connect().await?;
        // Small messages must not wait for acknowledgements. If it cannot be set, the connection is
        // already gone.
        let _ = upstream.set_nodelay(true);
        Ok(upstream)
    }

    /// Judges by the current snapshot. Returns the function.
    fn judge(&mut self) -> Result<Arc<FunctionEntry>, Stop> {
        self.rule.clear();
        let found = self.worker.snapshot_with(&self.connection.pod.function());
        let (_, entry) = found.ok_or_else(|| Stop::Refused("the function is gone".to_owned()))?;
        self.rule = judge_inbound(&entry, &self.peer, self.connection.called.port(), &self.name)?;
        Ok(entry)
    }

    /// The function that connections are counted for. A certificate names only an account, which is
    /// usually called like its function.
    fn calling_function(&self) -> Option<FunctionId> {
        let account = || self.peer.identity.as_deref().filter(|_| self.certificate.is_some());
        let of_pod = self.caller.as_ref().map(|caller| caller.function.clone());
        of_pod.or_else(|| account().and_then(FunctionId::of_identity))
    }

    fn report(&self, ended: &Result<(), Stop>) {
        let (telemetry, function) = (&self.worker.node.telemetry, self.connection.pod.function());
        if let Some(caller) = self.calling_function() {
            match self.is_connected {
                true => telemetry.connections.closed(&caller, &function, self.bytes),
                false => telemetry.connections.refused(&caller, &function),
            }
        }
        let identity = self.peer.identity.as_deref().unwrap_or_default();
        let caller = self.caller.as_ref().map(|caller| format!("{}/{}", caller.namespace, caller.name));
        telemetry.connection_flows.push(Connection {
            instance: caller.as_deref().unwrap_or(identity),
            during: None,
            target: Some(&function),
            address: self.connection.called,
            protocol: if self.is_tls { "tls" } else { "tcp" },
            rule: &self.rule,
            outcome: match ended {
                Ok(()) => Ok(()),
                Err(Stop::Refused(reason)) => Err(ConnectionFailure::Refused(reason)),
                Err(Stop::Failed(reason)) => Err(ConnectionFailure::Failed(reason)),
            },
            bytes: self.bytes,
            spliced: false,
            started: self.started,
        });
    }
}

/// Why a pod takes no connection in a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelRefusal {
    /// The rules for connections allow neither it nor any request in it.
    Denied,
    /// No program listens, or the connection to it fails.
    Unreachable,
}

/// The end of a connection that has spoken first.
enum Speaker {
    /// The client, and it speaks HTTP.
    Http(Opening),
    /// Another one. The connection to the program, if there is one already.
    Other(Option<TcpStream>),
}

/// Waits until the program speaks. Whether it begins HTTP/2: some servers do not wait for the
/// client's preface.
async fn begins_http2(upstream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; 9];
    let count = upstream.peek(&mut first).await?;
    Ok(opening::is_settings(first.get(..count).unwrap_or_default()))
}

/// The stream of a client that was not taken for one of HTTP. If its first line is a request after
/// all, which came in pieces, reading fails: the request would reach the program unjudged.
struct FirstLine<'a, S> {
    stream: &'a mut S,
    /// The line so far; `None`: it is no request.
    line: Option<Vec<u8>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstLine<'_, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut *self.stream).poll_read(cx, into);
        let Some(line) = &mut self.line else { return polled };
        line.extend_from_slice(into.filled().get(before..).unwrap_or_default());
        match classify(line) {
            None => polled,
            Some(Opening::Http1 | Opening::Http2) => {
                into.set_filled(before);
                Poll::Ready(Err(io::Error::other("it began a request of HTTP too slowly")))
            }
            Some(_) => {
                self.line = None;
                polled
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstLine<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}
