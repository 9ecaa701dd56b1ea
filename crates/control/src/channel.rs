//! Connections of nodes to the control plane, for [`crate::node`] and for other clients that speak [`crate::v1`].

use crate::membership::Membership;
use hyper_util::rt::TokioIo;
use leno_identity::{
    PeerError, RootPin, SpiffeId, TlsError, TrustDomain, client_config, joining_client_config, server_name,
};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::service_fn;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one control plane has to answer before the next one is tried beside it. One that hangs must not keep a node away from another that leads.
const HEAD_START: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// For a node that has no certificate yet, and knows the control plane by the hash of its root. `control` is `host:port` of each control plane.
pub fn joining(control: &[String], trust_domain: &TrustDomain, pin: RootPin) -> Result<Channel, TlsError> {
    let name = server_name(&SpiffeId::control(trust_domain)?)?;
    Ok(channel(control, joining_client_config(trust_domain, pin)?, name))
}

/// For a node. `control` is `host:port` of each control plane. Each connection shows the certificate that the node has by then.
pub fn of_member(control: &[String], membership: &Membership) -> Result<Channel, TlsError> {
    let config = client_config(membership.svids(), membership.identity(), membership.control())?;
    Ok(channel(control, config, server_name(membership.control())?))
}

/// Connects when it is first used, to the control plane that is the first to answer.
fn channel(control: &[String], config: Arc<ClientConfig>, name: ServerName<'static>) -> Channel {
    let (control, next): (Arc<[String]>, _) = (control.into(), Arc::new(AtomicUsize::new(0)));
    let connect = move |_: Uri| {
        let (control, config, name, next) = (control.clone(), config.clone(), name.clone(), next.clone());
        async move {
            let first = next.load(Ordering::Relaxed);
            let (at, stream) =
                first_to_answer(&control, first, |address| tls(address, config.clone(), name.clone())).await?;
            next.store(at, Ordering::Relaxed);
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    };
    // The connector decides where to connect to, and does TLS itself.
    Endpoint::from_static("http://control.leno.internal")
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(service_fn(connect))
}

/// Tries all addresses, the one at `first` before the others. The next one is tried when one has failed, and beside one that does not answer in time.
/// Returns the connection with the index of its address, or why each of them failed.
async fn first_to_answer<C: Send + 'static, F: Future<Output = io::Result<C>> + Send + 'static>(
    control: &Arc<[String]>,
    first: usize,
    connect: impl Fn(String) -> F,
) -> io::Result<(usize, C)> {
    let mut left = (0..control.len()).map(|number| (first + number) % control.len());
    let (mut attempts, mut failures) = (JoinSet::new(), Vec::new());
    loop {
        let next = left.next();
        if let Some((at, address)) = next.and_then(|at| Some((at, control.get(at)?.clone()))) {
            let attempt = tokio::time::timeout(CONNECT_TIMEOUT, connect(address.clone()));
            attempts.spawn(async move {
                let connected = attempt.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                connected
                    .map(|stream| (at, stream))
                    .map_err(|error| (error.kind(), format!("{address}: {}", in_words(&error))))
            });
        }
        let patience = if next.is_some() { HEAD_START } else { CONNECT_TIMEOUT };
        match tokio::time::timeout(patience, attempts.join_next()).await {
            Ok(Some(Ok(Ok(connected)))) => return Ok(connected),
            Ok(Some(Ok(Err(failure)))) => failures.push(failure),
            Ok(Some(Err(panicked))) => failures.push((io::ErrorKind::Other, panicked.to_string())),
            Ok(None) if next.is_none() => break,
            Ok(None) | Err(_) => (),
        }
    }
    let kind = failures.first().map_or(io::ErrorKind::Other, |(kind, _)| *kind);
    let reasons: Vec<_> = failures.into_iter().map(|(_, reason)| reason).collect();
    let none = "no address of a control plane is known".to_owned();
    Err(io::Error::new(kind, if reasons.is_empty() { none } else { reasons.join("; ") }))
}

async fn tls(
    address: String,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    // Messages are small and awaited.
    stream.set_nodelay(true)?;
    TlsConnector::from(config).connect(name, stream).await
}

/// What is wrong with the peer's identity, where that is what a handshake failed of.
fn in_words(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    tls.and_then(PeerError::of).map_or_else(|| error.to_string(), PeerError::to_string)
}

/// Whether a call failed because the control plane is away, so that it may be repeated.
pub(crate) fn is_away(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
}

/// Why a call failed, with the cause where the transport failed.
pub(crate) fn reason(status: &Status) -> String {
    let mut reason = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        reason = error.to_string();
        cause = error.source();
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn addresses(names: &[&str]) -> Arc<[String]> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// "hung" does not answer, and "shut" and "gone" fail.
    async fn connect(address: String) -> io::Result<String> {
        match &*address {
            "hung" => pending().await,
            "gone" => Err(io::ErrorKind::HostUnreachable.into()),
            "shut" => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => Ok(address),
        }
    }

    #[tokio::test]
    async fn one_that_hangs_or_refuses_keeps_nobody_from_another() {
        let control = addresses(&["hung", "shut", "open"]);
        for first in 0..3 {
            let (at, connected) = first_to_answer(&control, first, connect).await.unwrap();
            assert_eq!((at, &*connected), (2, "open"), "from {first}");
        }
        let control = addresses(&["open", "other"]);
        assert_eq!(first_to_answer(&control, 1, connect).await.unwrap().0, 1, "the one that answered before");
    }

    #[tokio::test]
    async fn when_all_fail_each_is_named() {
        let failed = first_to_answer(&addresses(&["gone", "shut"]), 0, connect).await.unwrap_err().to_string();
        assert!(failed.contains("gone: host unreachable") && failed.contains("shut: connection refused"), "{failed}");
        let none = first_to_answer(&addresses(&[]), 0, connect).await.unwrap_err().to_string();
        assert_eq!(none, "no address of a control plane is known");
    }
}
