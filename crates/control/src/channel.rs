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
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::service_fn;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// For a node that has no certificate yet, and knows the control plane by the hash of its root. `control` is `host:port` of each control plane.
pub fn joining(control: &[String], trust_domain: &TrustDomain, pin: RootPin) -> Result<Channel, TlsError> {
    let name = server_name(&SpiffeId::control(trust_domain)?)?;
    Ok(channel(control, joining_client_config(trust_domain, pin)?, name))
}

/// For a node. `control` is `host:port` of each control plane; they are tried in turn. Each connection shows the certificate that the node has by then.
pub fn of_member(control: &[String], membership: &Membership) -> Result<Channel, TlsError> {
    let config = client_config(membership.svids(), membership.identity(), membership.control())?;
    Ok(channel(control, config, server_name(membership.control())?))
}

/// Connects when it is first used. An attempt that fails is followed by one to the next address.
fn channel(control: &[String], config: Arc<ClientConfig>, name: ServerName<'static>) -> Channel {
    let (control, next): (Arc<[String]>, _) = (control.into(), Arc::new(AtomicUsize::new(0)));
    let connect = move |_: Uri| {
        let (control, config, name, next) = (control.clone(), config.clone(), name.clone(), next.clone());
        async move {
            let count = control.len().max(1);
            let address = control.get(next.load(Ordering::Relaxed) % count);
            let address = address.ok_or_else(|| io::Error::other("no address of a control plane is known"))?;
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, tls(address, config, name)).await;
            let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            connected.map(TokioIo::new).map_err(|error| {
                next.fetch_add(1, Ordering::Relaxed);
                io::Error::new(error.kind(), format!("{address}: {}", in_words(&error)))
            })
        }
    };
    // The connector decides where to connect to, and does TLS itself.
    Endpoint::from_static("http://control.leno.internal")
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(service_fn(connect))
}

async fn tls(address: &str, config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<TlsStream<TcpStream>> {
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
