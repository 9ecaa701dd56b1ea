//! A client of pods.

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(60);

/// Which connections requests use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Connections {
    /// One for all.
    Kept,
    /// A new one for each.
    Fresh,
}

/// Sends requests until one is answered with this status, and returns the time of that answer.
pub(super) async fn await_status(
    address: SocketAddr,
    path: String,
    status: u16,
    connections: Connections,
) -> anyhow::Result<Instant> {
    let (begin, mut connection) = (Instant::now(), None);
    loop {
        // The pod may be away for a moment, and a connection may end.
        let answered = timeout(TIMEOUT, ask(&mut connection, address, &path)).await?.unwrap_or(0);
        if answered == status {
            return Ok(Instant::now());
        }
        if answered == 0 || connections == Connections::Fresh {
            connection = None;
        }
        ensure!(begin.elapsed() < TIMEOUT, "{address}{path} answers {answered}, and not {status}");
        sleep(PAUSE).await;
    }
}

async fn ask(
    connection: &mut Option<SendRequest<Empty<Bytes>>>,
    address: SocketAddr,
    path: &str,
) -> anyhow::Result<u16> {
    let sender = match connection {
        Some(sender) => sender,
        None => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (sender, driver) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move { drop(driver.await) });
            connection.insert(sender)
        }
    };
    sender.ready().await?;
    let request = Request::get(path).header("host", "pod").body(Empty::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    answer.into_body().collect().await?;
    Ok(status)
}
