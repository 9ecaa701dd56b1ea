//! Trust in servers outside the mesh: authorities, and certificates of single servers.

use crate::crypto::{PROVIDER, algorithms};
use crate::roots::Roots;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a client trusts the servers outside the mesh by.
#[derive(Debug)]
pub struct TrustedServers {
    authorities: RootCertStore,
    servers: Vec<CertificateDer<'static>>,
}

impl Default for TrustedServers {
    /// Trusts no server.
    fn default() -> Self {
        Self { authorities: RootCertStore::empty(), servers: Vec::new() }
    }
}

impl TrustedServers {
    /// Trusts the machine's authorities. Those that cannot be parsed are left out: some are older
    /// than X.509 version 3.
    pub fn add_machine(&mut self, certificates: Vec<CertificateDer<'static>>) {
        self.authorities.add_parsable_certificates(certificates);
    }

    /// Trusts one server: the one that shows this certificate.
    pub fn add_server(&mut self, certificate: CertificateDer<'static>) {
        self.servers.push(certificate);
    }

    /// Trusts the certificates of a file.
    ///
    /// # Errors
    /// An authority's name or key cannot be parsed.
    pub fn add(&mut self, roots: Roots) -> Result<(), rustls::Error> {
        for authority in &roots.authorities {
            self.authorities.add(authority.clone())?;
        }
        self.servers.extend(roots.authorities);
        self.servers.extend(roots.servers);
        Ok(())
    }

    /// Whether no server is trusted.
    pub fn is_empty(&self) -> bool {
        self.authorities.is_empty() && self.servers.is_empty()
    }

    /// The next step of a client's configuration: TLS 1.2 and 1.3, and these servers.
    ///
    /// # Errors
    /// The TLS library refuses the configuration.
    pub fn client_config(self) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
        let verifier = if self.authorities.is_empty() {
            None
        } else {
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(self.authorities), PROVIDER.clone());
            Some(builder.build().map_err(|error| rustls::Error::General(error.to_string()))?)
        };
        let verifier = Verifier { by_authority: verifier, servers: self.servers };
        let builder: ConfigBuilder<ClientConfig, WantsVerifier> =
            ClientConfig::builder_with_provider(PROVIDER.clone()).with_safe_default_protocol_versions()?;
        Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
    }
}

/// Accepts what an authority has issued, and the certificates of `servers` as they are. A
/// certificate that signed itself (`openssl req -x509`) says that it is an authority, which no
/// library accepts of a server; its owner lists it for the one server that has its key.
#[derive(Debug)]
struct Verifier {
    by_authority: Option<Arc<WebPkiServerVerifier>>,
    servers: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.servers.iter().any(|server| server == leaf) {
            return verify_listed(leaf, name, now);
        }
        let Some(verifier) = &self.by_authority else { return Err(CertificateError::UnknownIssuer.into()) };
        verifier.verify_server_cert(leaf, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, leaf, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, leaf, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

/// Checks the name, the time and the purpose of a certificate that is listed itself. The signature
/// of the handshake proves that the server has its key.
fn verify_listed(
    leaf: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, rustls::Error> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
    let seconds = |time: i64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(time.try_into().unwrap_or(0)));
    let validity = parsed.validity();
    let (not_before, not_after) = (seconds(validity.not_before.timestamp()), seconds(validity.not_after.timestamp()));
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    let purposes = parsed.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    if purposes.is_some_and(|purposes| !purposes.value.server_auth && !purposes.value.any) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
    Ok(ServerCertVerified::assertion())
}
