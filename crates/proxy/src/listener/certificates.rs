//! The certificates of a gateway's port.

use crate::state::node::Node;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls;

/// Chooses the certificate by the listener that serves the name for which a client asks (SNI), as the
/// node's configuration is at that moment.
pub(super) struct PortCertificates {
    pub node: Arc<Node>,
    pub port: u16,
    /// A Gateway document opens the port: it has no certificate for names that no listener serves.
    pub opened: bool,
}

impl ResolvesServerCert for PortCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (snapshot, name) = (self.node.snapshot.load(), hello.server_name());
        match snapshot.gateway_routes.certificates_at(self.port, name) {
            Some(secrets) if !secrets.is_empty() => self.node.listener_certificates.certificate_for(secrets, name),
            None if self.opened => None,
            _ => self.node.gateway_certificates.load().as_ref()?.resolve(hello),
        }
    }
}

impl fmt::Debug for PortCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortCertificates").field("port", &self.port).finish_non_exhaustive()
    }
}
