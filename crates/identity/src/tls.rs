//! TLS between sidecars: version 1.3 only, both sides prove a SPIFFE ID, HTTP/2 only.
//!
//! Sessions are not resumed. A resumed session skips the certificates, so it could outlive an SVID
//! or a root that is no longer trusted; connections are pooled and long, so resumption would save
//! little.

use crate::crypto::{PROVIDER, algorithms};
use crate::store::{Slot, SvidStore};
use crate::verifier::{AnyOf, AnyOfTrustDomain, Roots};
use crate::verify;
use leno_model::{BadSpiffeId, SpiffeId};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, CommonState, ServerConfig, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;

/// Why no TLS configuration could be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: std::io::Error,
    },
    /// The content of a file is not usable.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The error, and the expected content.
        reason: String,
    },
    /// No thread could be started that reads the file again.
    #[error("no thread that reads certificates again: {0}")]
    Thread(std::io::Error),
    /// An identity without a server name, because it does not have the form of a function's
    /// identity.
    #[error("`{0}` is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<name> with DNS labels")]
    NoServerName(SpiffeId),
    /// No SPIFFE ID can be made.
    #[error(transparent)]
    Identity(#[from] BadSpiffeId),
    /// The TLS library refused.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

pub(crate) const ALPN_H2: &[u8] = b"h2";

/// For the node's inbound listener: shows the SVID that the client asks for by [`server_name`], and
/// requires an SVID of the trust domain from the client. One configuration serves all functions of
/// the node and every renewal.
pub fn server_config(store: &Arc<SvidStore>) -> Result<Arc<ServerConfig>, TlsError> {
    server_with(store, Arc::new(ByServerName(store.clone())))
}

/// For tunnels to one pod (HBONE): shows the SVID of `id`, whatever server name the client asks for,
/// and requires an SVID of the trust domain from the client.
pub fn tunnel_server_config(store: &Arc<SvidStore>, id: &SpiffeId) -> Result<Arc<ServerConfig>, TlsError> {
    server_with(store, Arc::new(OfOwner::new(store, id)))
}

fn server_with(store: &Arc<SvidStore>, resolver: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = AnyOfTrustDomain { store: store.clone(), algorithms: algorithms(), or_none: false };
    let mut config = ServerConfig::builder_with_details(PROVIDER.clone(), store.clock().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For connections of `caller` to `expected`: shows the caller's SVID, and accepts exactly that
/// server. Valid across renewals; keep one for each pair.
pub fn client_config(
    store: &Arc<SvidStore>,
    caller: &SpiffeId,
    expected: &SpiffeId,
) -> Result<Arc<ClientConfig>, TlsError> {
    client_with(store, caller, vec![expected.clone()]).map(Arc::new)
}

/// For tunnels of `caller` to a pod (HBONE): shows the caller's SVID, asks for no server name, and
/// accepts a server with one of the `expected` identities.
pub fn tunnel_client_config(
    store: &Arc<SvidStore>,
    caller: &SpiffeId,
    expected: Vec<SpiffeId>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = client_with(store, caller, expected)?;
    config.enable_sni = false;
    Ok(Arc::new(config))
}

fn client_with(store: &Arc<SvidStore>, caller: &SpiffeId, expected: Vec<SpiffeId>) -> Result<ClientConfig, TlsError> {
    let verifier = AnyOf { expected, roots: Roots::OfStore(store.clone()), algorithms: algorithms() };
    let mut config = ClientConfig::builder_with_details(PROVIDER.clone(), store.clock().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(OfOwner::new(store, caller)));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The server name of `id` for the TLS handshake; it selects the server's certificate and proves
/// nothing.
pub fn server_name(id: &SpiffeId) -> Result<ServerName<'static>, TlsError> {
    let name = id.server_name().and_then(|name| ServerName::try_from(name).ok());
    name.ok_or_else(|| TlsError::NoServerName(id.clone()))
}

/// The identity of the other end of a connection made with one of these configurations, after its
/// handshake. `None`: it has shown no certificate.
pub fn peer_identity(connection: &CommonState) -> Option<SpiffeId> {
    verify::leaf_identity(connection.peer_certificates()?.first()?).ok()
}

/// When the certificate of the other end expires.
pub fn peer_not_after(connection: &CommonState) -> Option<UnixTime> {
    verify::not_after(connection.peer_certificates()?.first()?)
}

#[derive(Debug)]
struct ByServerName(Arc<SvidStore>);

impl ResolvesServerCert for ByServerName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = leno_policy::host::of_authority(hello.server_name()?)?;
        Some(self.0.by_server_name(&name)?.certified().clone())
    }
}

/// Shows the SVID of one identity.
#[derive(Debug)]
struct OfOwner {
    slot: Arc<Slot>,
    store: Arc<SvidStore>,
}

impl OfOwner {
    fn new(store: &Arc<SvidStore>, id: &SpiffeId) -> Self {
        Self { slot: store.slot(id), store: store.clone() }
    }

    fn certified(&self, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let svid = self.slot.current(self.store.now()?)?;
        svid.certified().key.choose_scheme(schemes)?;
        Some(svid.certified().clone())
    }
}

impl ResolvesServerCert for OfOwner {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified(hello.signature_schemes())
    }
}

impl ResolvesClientCert for OfOwner {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified(schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
