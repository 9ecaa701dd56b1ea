//! Trust in servers outside the mesh: authorities, and certificates of single servers.

use crate::crypto::{PROVIDER, algorithms};
use crate::roots::Roots;
use leno_model::CertificateName;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    WantsClientCert, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The authorities and certificates by which a client trusts servers outside the mesh.
#[derive(Debug)]
pub struct TrustedServers {
    authorities: RootCertStore,
    servers: Vec<CertificateDer<'static>>,
    names: Vec<CertificateName>,
}

impl Default for TrustedServers {
    /// Trusts no server.
    fn default() -> Self {
        Self { authorities: RootCertStore::empty(), servers: Vec::new(), names: Vec::new() }
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

    /// Requires one of these names of a server's certificate, in place of the name that the client
    /// asks for. Without any, nothing changes.
    pub fn require(&mut self, names: Vec<CertificateName>) {
        self.names = names;
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
        let verifier = Arc::new(self.verifier()?);
        let builder: ConfigBuilder<ClientConfig, WantsVerifier> =
            ClientConfig::builder_with_provider(PROVIDER.clone()).with_safe_default_protocol_versions()?;
        Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
    }

    fn verifier(self) -> Result<Verifier, rustls::Error> {
        let authorities = Arc::new(self.authorities);
        let by_authority = if authorities.is_empty() {
            None
        } else {
            let builder = WebPkiServerVerifier::builder_with_provider(authorities.clone(), PROVIDER.clone());
            Some(builder.build().map_err(|error| rustls::Error::General(error.to_string()))?)
        };
        Ok(Verifier { by_authority, authorities, servers: self.servers, names: self.names })
    }
}

/// Accepts certificates that an authority has issued, and the certificates of `servers` as they are. A
/// certificate that signed itself (`openssl req -x509`) says that it is an authority, which no
/// library accepts of a server; its owner lists it for the one server that has its key.
#[derive(Debug)]
struct Verifier {
    by_authority: Option<Arc<WebPkiServerVerifier>>,
    authorities: Arc<RootCertStore>,
    servers: Vec<CertificateDer<'static>>,
    /// One of them has to be in the certificate; empty: the name that the client asks for.
    names: Vec<CertificateName>,
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
        let is_listed = self.servers.iter().any(|server| server == leaf);
        if is_listed {
            verify_listed(leaf, now)?;
        }
        if !self.names.is_empty() {
            let parsed = ParsedCertificate::try_from(leaf)?;
            if !is_listed {
                let algorithms = algorithms().all;
                verify_server_cert_signed_by_trust_anchor(&parsed, &self.authorities, intermediates, now, algorithms)?;
            }
            return verify_names(leaf, &parsed, &self.names);
        }
        if is_listed {
            verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
            return Ok(ServerCertVerified::assertion());
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

/// Checks that a certificate has one of some names.
fn verify_names(
    leaf: &CertificateDer<'_>,
    parsed: &ParsedCertificate<'_>,
    names: &[CertificateName],
) -> Result<ServerCertVerified, rustls::Error> {
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
    let own = certificate.subject_alternative_name().map_err(|_| CertificateError::BadEncoding)?;
    let own = own.map(|extension| &extension.value.general_names[..]).unwrap_or_default();
    let below = |host: &str, suffix: &str| {
        let rest = host.split_once('.').map(|(_, rest)| rest);
        rest.is_some_and(|rest| suffix.strip_prefix("*.").is_some_and(|suffix| suffix.eq_ignore_ascii_case(rest)))
    };
    let has = |name: &CertificateName| match name {
        CertificateName::Uri(uri) => own.iter().any(|own| matches!(own, GeneralName::URI(own) if own == uri)),
        // The label in place of the asterisk does not matter.
        CertificateName::Host(host) if host.starts_with('*') => {
            own.iter().any(|own| matches!(own, GeneralName::DNSName(own) if below(own, host)))
        }
        CertificateName::Host(host) => {
            ServerName::try_from(host.as_str()).is_ok_and(|host| verify_server_name(parsed, &host).is_ok())
        }
    };
    match names.iter().any(has) {
        true => Ok(ServerCertVerified::assertion()),
        false => Err(CertificateError::NotValidForName.into()),
    }
}

/// Checks the time and the purpose of a certificate that is listed itself. The signature of the
/// handshake proves that the server has its key.
fn verify_listed(leaf: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::roots;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

    #[test]
    fn a_certificate_has_a_required_name_in_place_of_the_one_that_is_asked_for() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params.clone(), KeyPair::generate().unwrap()).unwrap();
        let other = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let mut params = CertificateParams::new(["api.internal", "*.wild.example"].map(str::to_owned)).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://bank.example/api".try_into().unwrap()));
        let leaf = params.signed_by(&KeyPair::generate().unwrap(), &authority).unwrap();
        let asked = ServerName::try_from("asked.example").unwrap();
        let verified = |pem: &str, names: Vec<CertificateName>| {
            let mut trusted = TrustedServers::default();
            trusted.add(roots(pem.as_bytes(), UnixTime::now()).unwrap()).unwrap();
            trusted.require(names);
            trusted.verifier().unwrap().verify_server_cert(leaf.der(), &[], &asked, &[], UnixTime::now()).is_ok()
        };
        let host = |name: &str| CertificateName::Host(name.to_owned());
        let uri = |name: &str| CertificateName::Uri(name.to_owned());
        let cases = [
            (vec![], false),
            (vec![host("asked.example")], false),
            (vec![host("api.internal")], true),
            (vec![host("asked.example"), host("api.internal")], true),
            (vec![host("a.wild.example")], true),
            (vec![host("a.b.wild.example")], false),
            (vec![host("*.internal")], true),
            (vec![host("*.wild.example")], true),
            (vec![host("*.example")], false),
            (vec![uri("spiffe://bank.example/api")], true),
            (vec![uri("spiffe://bank.example/API")], false),
            (vec![uri("spiffe://bank.example/api/x"), host("other.internal")], false),
            (vec![uri("api.internal")], false),
        ];
        let (own, foreign, leaf_pem) = (authority.as_ref().pem(), other.as_ref().pem(), leaf.pem());
        for (names, expected) in cases {
            assert_eq!(verified(&own, names.clone()), expected, "{names:?}");
            assert_eq!(verified(&leaf_pem, names.clone()), expected, "{names:?}: the certificate itself is listed");
            assert!(!verified(&foreign, names.clone()), "{names:?}: of another authority");
        }
    }
}
