//! Readiness probes.

use crate::dialer::{ConnectError, Dialer};
use crate::processes::NotTheInstance;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::{AppProtocol, Readiness};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A probe that hangs is given up after this time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bounds of the pause between two probes. It grows with the time since the first one: functions that start
/// fast are found ready fast, and slow ones are not probed all the time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The shortest pause for an instance that the node hears when it listens.
const SHORTEST_UNHEARD: Duration = Duration::from_millis(20);
/// The pause is this part of the time since the first probe.
const PART: u32 = 8;
/// Probes without a pause after an instance was heard: the kernel may not have made its call yet.
const PROBES_AT_ONCE: u32 = 4;

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("no connection: {0}")]
    Connection(#[from] std::io::Error),
    #[error("{0}")]
    Unproven(#[from] NotTheInstance),
    #[error("no HTTP answer: {0}")]
    Http(#[from] hyper::Error),
    #[error("the path is not a request target: {0}")]
    Path(#[from] hyper::http::Error),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("no answer in time")]
    Timeout,
}

/// Returns the ready address as soon as the instance is ready, or an error if another process is
/// found in its place. An instance that listens at all `others` is ready too. The caller limits the
/// time. `note` gets the reason of each failed probe.
pub(crate) async fn wait(
    address: SocketAddr,
    others: &[u16],
    readiness: &Readiness,
    protocol: AppProtocol,
    dialer: &Dialer,
    mut note: impl FnMut(NotReady),
) -> Result<SocketAddr, NotTheInstance> {
    let mut pauses = Pauses::new(dialer);
    loop {
        pauses.next().await;
        match ask(address, readiness, protocol, dialer, PROBE_TIMEOUT).await {
            Ok(()) => return Ok(address),
            // The other process will not go away, and the instance cannot get its port.
            Err(NotReady::Unproven(stranger @ NotTheInstance::Stranger { .. })) => return Err(stranger),
            Err(error) => note(error),
        }
        let mut listening = others.iter().map(|port| SocketAddr::new(address.ip(), *port));
        if let Some(first) = listening.clone().next() {
            let all = async {
                for other in listening.by_ref() {
                    dialer.knock(other).await?;
                }
                Ok::<_, ConnectError>(())
            };
            if tokio::time::timeout(PROBE_TIMEOUT, all).await.is_ok_and(|all| all.is_ok()) {
                return Ok(first);
            }
        }
    }
}

/// The pauses before the probes of an instance that starts.
struct Pauses<'a> {
    dialer: &'a Dialer,
    begin: Instant,
    /// The instance was heard, or nothing of it can be heard.
    heard: bool,
    /// Number of next probes without a pause.
    at_once: u32,
}

impl<'a> Pauses<'a> {
    fn new(dialer: &'a Dialer) -> Self {
        let heard = !dialer.hears();
        Self { dialer, begin: Instant::now(), heard, at_once: u32::from(heard) }
    }

    /// Returns when it is time for the next probe.
    async fn next(&mut self) {
        if let Some(rest) = self.at_once.checked_sub(1) {
            self.at_once = rest;
            return tokio::task::yield_now().await;
        }
        let shortest = if self.heard { SHORTEST_PAUSE } else { SHORTEST_UNHEARD };
        let pause = (self.begin.elapsed() / PART).clamp(shortest, LONGEST_PAUSE);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.dialer.listens() => {
                self.heard = true;
                self.at_once = PROBES_AT_ONCE - 1;
            }
        }
    }
}

/// Waits until the instance listens for the node, and connects to it. The caller limits the time.
pub(crate) async fn wait_for_link(
    address: SocketAddr,
    dialer: &Dialer,
    mut note: impl FnMut(NotReady),
) -> Result<OwnedFd, NotTheInstance> {
    let name = format!("leno-chain-{}", address.port());
    let mut pauses = Pauses::new(dialer);
    loop {
        pauses.next().await;
        match dialer.link(&name).await {
            Ok(socket) => return Ok(socket),
            Err(ConnectError::Unproven(stranger @ NotTheInstance::Stranger { .. })) => return Err(stranger),
            Err(error) => note(error.into()),
        }
    }
}

/// Asks once whether the instance is ready.
pub(crate) async fn ask(
    address: SocketAddr,
    readiness: &Readiness,
    protocol: AppProtocol,
    dialer: &Dialer,
    limit: Duration,
) -> Result<(), NotReady> {
    let probed = tokio::time::timeout(limit, probe(address, readiness, protocol, dialer)).await;
    probed.unwrap_or(Err(NotReady::Timeout))
}

async fn probe(
    address: SocketAddr,
    readiness: &Readiness,
    protocol: AppProtocol,
    dialer: &Dialer,
) -> Result<(), NotReady> {
    // Each later connection is verified by itself. But an instance that shares its port with others must not become ready.
    let stream = dialer.knock(address).await?;
    let Readiness::Http(path) = readiness else { return Ok(()) };
    dialer.prove(&stream).await?;
    let status = match protocol {
        AppProtocol::Http1 => over_http1(stream, address, path).await?,
        AppProtocol::H2c | AppProtocol::Grpc => over_http2(stream, address, path).await?,
        // It is ready when it has taken its link ([`wait_for_link`]).
        AppProtocol::Chain => return Ok(()),
    };
    if status.is_success() || status.is_redirection() { Ok(()) } else { Err(NotReady::Status(status)) }
}

async fn over_http1(stream: TcpStream, address: SocketAddr, path: &str) -> Result<StatusCode, NotReady> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new())?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    tokio::select! {
        biased;
        answer = &mut answer => Ok(answer?.status()),
        ended = connection => { ended?; Ok(answer.await?.status()) }
    }
}

async fn over_http2(stream: TcpStream, address: SocketAddr, path: &str) -> Result<StatusCode, NotReady> {
    let executor = TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await?;
    let request = Request::get(format!("http://{address}{path}")).body(Empty::<Bytes>::new())?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    tokio::select! {
        biased;
        answer = &mut answer => Ok(answer?.status()),
        ended = connection => { ended?; Ok(answer.await?.status()) }
    }
}

impl From<ConnectError> for NotReady {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Io(error) => Self::Connection(error),
            ConnectError::Unproven(error) => Self::Unproven(error),
        }
    }
}
