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

/// A probe that hangs is given up after this time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The intervals grow: functions that start fast are found ready fast, and slow ones are not probed all the time.
const FIRST_INTERVAL: Duration = Duration::from_millis(2);
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

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
    let mut interval = FIRST_INTERVAL;
    loop {
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
        tokio::time::sleep(interval).await;
        interval = (interval * 3 / 2).min(LONGEST_INTERVAL);
    }
}

/// Waits until the instance listens for the node, and connects to it. The caller limits the time.
pub(crate) async fn wait_for_link(
    address: SocketAddr,
    dialer: &Dialer,
    mut note: impl FnMut(NotReady),
) -> Result<OwnedFd, NotTheInstance> {
    let name = format!("leno-chain-{}", address.port());
    let mut interval = FIRST_INTERVAL;
    loop {
        match dialer.link(&name).await {
            Ok(socket) => return Ok(socket),
            Err(ConnectError::Unproven(stranger @ NotTheInstance::Stranger { .. })) => return Err(stranger),
            Err(error) => note(error.into()),
        }
        tokio::time::sleep(interval).await;
        interval = (interval * 3 / 2).min(LONGEST_INTERVAL);
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
