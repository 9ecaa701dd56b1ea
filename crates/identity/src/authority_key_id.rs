//! Identifies the authority that signed a certificate, also where several share a root.

use rustls::pki_types::CertificateDer;
use std::fmt;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

/// The authority key identifier (RFC 5280, section 4.2.1.1) of a certificate: which key signed it. It is a name and proves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthorityKeyId(Vec<u8>);

impl AuthorityKeyId {
    /// Bytes of a name that are kept. Authorities have 20, or 32 if they follow RFC 7093.
    const LONGEST: usize = 64;

    /// The key id in a certificate; empty: the certificate has none.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Self::default() };
        let named = certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(of) => of.key_identifier.as_ref().map(|id| Self::from_bytes(id.0)),
            _ => None,
        });
        named.unwrap_or_default()
    }

    /// A key id that was sent or stored.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.get(..Self::LONGEST).unwrap_or(bytes).to_vec())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for AuthorityKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
