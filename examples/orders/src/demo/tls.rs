//! A foreign client at the listener of the inbound sidecars, which requires mutual TLS.

use crate::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

/// The result of an attempt to connect.
pub(crate) struct Attempt {
    /// The SPIFFE ID in the server's certificate.
    pub server: Option<String>,
    /// The server's reason for a refusal; `None`: it accepted the client.
    pub refusal: Option<String>,
}

/// A certificate chain with its key.
pub(crate) type Credentials = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A certificate that claims an identity of the mesh, but comes from an untrusted authority.
pub(crate) fn forged(identity: &str) -> Result<Credentials> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    let root = authority.self_signed(&authority_key)?;
    let mut leaf = CertificateParams::new(Vec::new())?;
    leaf.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
    let leaf_key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&leaf_key, &Issuer::new(authority, authority_key))?;
    let key = PrivateKeyDer::try_from(leaf_key.serialize_der())?;
    Ok((vec![certificate.der().clone(), root.der().clone()], key))
}

/// Connects to a function's sidecar. In TLS 1.3 the client learns of a refusal only when it reads.
pub(crate) async fn knock(address: SocketAddr, function: &str, credentials: Option<Credentials>) -> Result<Attempt> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)));
    let mut config = match credentials {
        Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(format!("{function}.orders.leno.internal"))?;
    let stream = TcpStream::connect(address).await?;
    let mut stream = match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => stream,
        Err(error) => return Ok(Attempt { server: None, refusal: Some(error.to_string()) }),
    };
    let server = stream.get_ref().1.peer_certificates().and_then(|chain| spiffe_id(chain.first()?));
    // An HTTP/2 client begins with this preface. A server that accepts the client answers with its
    // settings.
    let greeting = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let mut first = [0; 1];
    let refusal = match greeting.and(stream.read(&mut first).await) {
        Ok(0) => Some("the connection was closed".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    Ok(Attempt { server, refusal })
}

/// The text in a certificate's subject alternative name. This is only for display: no decision
/// depends on it.
fn spiffe_id(certificate: &CertificateDer<'_>) -> Option<String> {
    let bytes: &[u8] = certificate.as_ref();
    let start = bytes.windows(9).position(|window| window == b"spiffe://")?;
    let length = usize::from(*bytes.get(start.checked_sub(1)?)?);
    Some(String::from_utf8_lossy(bytes.get(start..start + length)?).into_owned())
}

/// Accepts any server certificate: the demo tests how the server verifies its client.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
