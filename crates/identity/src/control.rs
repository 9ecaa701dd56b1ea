//! TLS between nodes and the control plane: version 1.3 only, HTTP/2 only.
//!
//! A node proves its identity by its certificate. A node without a certificate may connect as well,
//! to join: it verifies the control plane by the hash of its root certificate, which came with the
//! join token.

use crate::bundle::{RootPin, TrustBundle};
use crate::crypto::{PROVIDER, algorithms};
use crate::store::{Slot, SvidStore};
use crate::tls::{ALPN_H2, TlsError};
use crate::verifier::{AnyOf, AnyOfTrustDomain, Roots};
use crate::verify;
use leno_model::{SpiffeId, TrustDomain};
use rustls::client::Resumption;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, CommonState, ServerConfig};
use std::net::IpAddr;
use std::sync::Arc;

/// For the control plane's listener: shows the SVID of `control`, followed by the roots, and
/// accepts clients of the trust domain and clients without a certificate. Valid across renewals.
pub fn control_server_config(store: &Arc<SvidStore>, control: &SpiffeId) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = AnyOfTrustDomain { store: store.clone(), algorithms: algorithms(), or_none: true };
    let resolver = WithRoots { slot: store.slot(control), store: store.clone() };
    let mut config = ServerConfig::builder_with_details(PROVIDER.clone(), store.clock().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For a joining node: shows no certificate, and accepts exactly the control plane of
/// `trust_domain` whose root has this hash.
pub fn joining_client_config(trust_domain: &TrustDomain, pin: RootPin) -> Result<Arc<ClientConfig>, TlsError> {
    without_certificate(trust_domain, Roots::Pinned(pin, trust_domain.clone()))
}

/// The same for a joining node that knows the roots.
pub fn joining_client_config_with(bundle: TrustBundle) -> Result<Arc<ClientConfig>, TlsError> {
    let trust_domain = bundle.trust_domain().clone();
    without_certificate(&trust_domain, Roots::Known(Arc::new(bundle)))
}

fn without_certificate(trust_domain: &TrustDomain, roots: Roots) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = AnyOf { expected: vec![SpiffeId::control(trust_domain)?], roots, algorithms: algorithms() };
    let mut config = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The IP addresses that the certificate at the other end confirms.
pub fn peer_addresses(connection: &CommonState) -> Vec<IpAddr> {
    let leaf = connection.peer_certificates().and_then(|chain| chain.first());
    leaf.map(verify::addresses).unwrap_or_default()
}

#[derive(Debug)]
struct WithRoots {
    slot: Arc<Slot>,
    store: Arc<SvidStore>,
}

impl ResolvesServerCert for WithRoots {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let svid = self.slot.current(self.store.now()?)?;
        let CertifiedKey { cert, key, .. } = &**svid.certified();
        let bundle = self.store.bundle();
        let roots = bundle.roots().map(|root| root.clone().into_owned());
        Some(Arc::new(CertifiedKey::new(cert.iter().cloned().chain(roots).collect(), key.clone())))
    }
}
