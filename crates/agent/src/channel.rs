//! Connections of nodes to the control plane.

use crate::known_addresses::KNOWN;
use hyper_util::rt::TokioIo;
use leno_identity::{
    Membership, RootPin, SpiffeId, TlsError, TrustBundle, TrustDomain, client_config, handshake_failure,
    joining_client_config, joining_client_config_with, server_name,
};
use std::collections::BTreeMap;
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
/// How long one control plane has to answer before the agent tries the next one in parallel. One
/// that hangs must not keep a node away from the leader.
const HEAD_START: Duration = Duration::from_millis(500);
/// Pause before another attempt at a control plane that has failed, while another one has neither
/// answered nor failed: the one that failed may lead by then.
const AGAIN: Duration = Duration::from_millis(250);
/// Interval between HTTP/2 PINGs, and the time for their answers. A control plane that hangs keeps
/// its connections open, and the node would not notice that another one leads.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1500);

/// For a node that has no certificate yet, and verifies the control plane by the hash of its root.
/// `control` is `host:port` of each control plane.
pub fn joining(control: &[String], trust_domain: &TrustDomain, pin: RootPin) -> Result<Channel, TlsError> {
    let name = server_name(&SpiffeId::control(trust_domain)?)?;
    Ok(channel(control, joining_client_config(trust_domain, pin)?, name))
}

/// For a node that has no certificate yet, and knows the roots.
pub(crate) fn joining_with(control: &[String], bundle: TrustBundle) -> Result<Channel, TlsError> {
    let name = server_name(&SpiffeId::control(bundle.trust_domain())?)?;
    Ok(channel(control, joining_client_config_with(bundle)?, name))
}

/// For a node. `control` is `host:port` of each control plane. Each connection presents the node's
/// certificate of that time.
pub fn of_member(control: &[String], membership: &Membership) -> Result<Channel, TlsError> {
    let config = client_config(membership.svids(), membership.identity(), membership.control())?;
    Ok(channel(control, config, server_name(membership.control())?))
}

/// Connects on first use, to the first control plane that answers.
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
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(service_fn(connect))
}

/// Tries all addresses, the one at `first` before the others. Tries the next one when one has
/// failed, or does not answer in time. While one does not answer, retries those that have failed.
/// Returns the connection with the index of its address, or why each of them failed.
async fn first_to_answer<C: Send + 'static, F: Future<Output = io::Result<C>> + Send + 'static>(
    control: &Arc<[String]>,
    first: usize,
    connect: impl Fn(String) -> F,
) -> io::Result<(usize, C)> {
    let mut left = (0..control.len()).map(|number| (first + number) % control.len());
    // The last failure of each address that has failed.
    let (mut attempts, mut failures) = (JoinSet::new(), BTreeMap::new());
    let begin = |attempts: &mut JoinSet<_>, at: usize, pause: Duration| {
        let Some(address) = control.get(at).cloned() else { return };
        let attempt = connect(address.clone());
        attempts.spawn(async move {
            tokio::time::sleep(pause).await;
            let attempt = tokio::time::timeout(CONNECT_TIMEOUT, attempt).await;
            let connected = attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            connected
                .map(|stream| (at, stream))
                .map_err(|error| (at, error.kind(), format!("{address}: {}", in_words(&error))))
        });
    };
    // The number of addresses tried, and those that have failed and wait for another attempt.
    let (mut begun, mut resting) = (0, Vec::new());
    // Each address that has not failed yet is not tried yet, or does not answer.
    while failures.len() < control.len() {
        let next = left.next();
        if let Some(at) = next {
            begun += 1;
            begin(&mut attempts, at, Duration::ZERO);
        }
        if failures.len() < begun {
            resting.drain(..).for_each(|at| begin(&mut attempts, at, AGAIN));
        }
        let timeout = if next.is_some() { HEAD_START } else { CONNECT_TIMEOUT };
        match tokio::time::timeout(timeout, attempts.join_next()).await {
            Ok(Some(Ok(Ok(connected)))) => return Ok(connected),
            Ok(Some(Ok(Err((at, kind, reason))))) => {
                failures.insert(at, (kind, reason));
                resting.push(at);
            }
            // An attempt does not panic.
            Ok(Some(Err(_))) => break,
            Ok(None) | Err(_) => (),
        }
    }
    let kind = failures.values().next().map_or(io::ErrorKind::Other, |(kind, _)| *kind);
    let reasons: Vec<_> = failures.into_values().map(|(_, reason)| reason).collect();
    let none = "no address of a control plane is known".to_owned();
    Err(io::Error::new(kind, if reasons.is_empty() { none } else { reasons.join("; ") }))
}

async fn tls(
    address: String,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> io::Result<TlsStream<TcpStream>> {
    let addresses = KNOWN.of(&address).await?;
    let stream = TcpStream::connect(&addresses[..]).await?;
    // Messages are small and awaited.
    stream.set_nodelay(true)?;
    TlsConnector::from(config).connect(name, stream).await
}

/// The error, in words where TLS is the reason.
fn in_words(error: &io::Error) -> String {
    handshake_failure(error).unwrap_or_else(|| error.to_string())
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

    /// The other one has begun to lead meanwhile.
    #[tokio::test]
    async fn one_that_refused_is_tried_again_while_another_hangs() {
        let tries = Arc::new(AtomicUsize::new(0));
        let connect = |address: String| {
            let tries = tries.clone();
            async move {
                match &*address {
                    "hung" => pending().await,
                    _ if tries.fetch_add(1, Ordering::Relaxed) < 3 => Err(io::ErrorKind::ConnectionRefused.into()),
                    _ => Ok(address),
                }
            }
        };
        for first in 0..2 {
            tries.store(0, Ordering::Relaxed);
            let connected = first_to_answer(&addresses(&["hung", "late"]), first, connect).await;
            assert_eq!(connected.unwrap(), (1, "late".to_owned()), "from {first}");
        }
    }

    #[tokio::test]
    async fn when_all_fail_each_is_named() {
        let failed = first_to_answer(&addresses(&["gone", "shut"]), 0, connect).await.unwrap_err().to_string();
        assert!(failed.contains("gone: host unreachable") && failed.contains("shut: connection refused"), "{failed}");
        let none = first_to_answer(&addresses(&[]), 0, connect).await.unwrap_err().to_string();
        assert_eq!(none, "no address of a control plane is known");
    }
}
