//! Certificates of servers for clients outside the mesh: the gateway, and the API of the control
//! plane.

use crate::crypto::PROVIDER;
use crate::expiry::{self, Holder};
use crate::tls::TlsError;
use crate::verify::not_after;
use arc_swap::ArcSwap;
use leno_files::{FileAccess, MAX_SMALL_FILE};
use leno_model::CertificateFiles;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::fs::{self, Metadata};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::{Zeroize, Zeroizing};

/// Time between two looks at the files.
const PERIOD: Duration = Duration::from_secs(2);

/// Time between two warnings of the same certificate.
const COMPLAINTS: Duration = Duration::from_secs(86_400);

/// Certificates in files, of which a server shows the one for the name that the client asks for
/// (SNI), or else the first. A thread reads files that changed, as long as the server uses them.
#[derive(Debug)]
pub struct ServerCertificates(ArcSwap<Vec<Arc<ServerCertificate>>>);

/// A certificate with its key, as it was last read.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// Where it was read.
    pub files: CertificateFiles,
    /// The DNS names and addresses of the certificate, in lower case; `*.` begins a wildcard.
    pub names: Vec<String>,
    /// When the first certificate of its chain expires.
    pub not_after: UnixTime,
    /// When the files cannot be used as they are now: the reason.
    pub fault: Option<String>,
    /// From when it is late to replace the files ([`expiry::late_at`]).
    pub late_at: UnixTime,
    stamps: [Stamp; 2],
    certified: Arc<CertifiedKey>,
}

impl ServerCertificates {
    /// Reads the certificates, at least one: each a PEM file with the chain, leaf first, and one
    /// with its private key (PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    /// A file cannot be used. The error names it.
    pub fn read(files: impl IntoIterator<Item = CertificateFiles>) -> Result<Arc<Self>, TlsError> {
        let read: Result<Vec<_>, _> =
            files.into_iter().map(|files| ServerCertificate::read(files).map(Arc::new)).collect();
        let certificates = Arc::new(Self(ArcSwap::from_pointee(read?)));
        let watched = Arc::downgrade(&certificates);
        // If the file system hangs, only this thread waits.
        thread::Builder::new()
            .name("certificates".to_owned())
            .spawn(move || watch(&watched))
            .map_err(TlsError::Thread)?;
        Ok(certificates)
    }

    /// The certificates in use.
    pub fn list(&self) -> Arc<Vec<Arc<ServerCertificate>>> {
        self.0.load_full()
    }

    /// Reads the files that changed. If they cannot be used, the certificate before stays in use,
    /// and its fault is the reason. `tried`: the files of each certificate as they were when they
    /// could not be used at the last look; a certificate and its key are not written at once.
    fn reload(&self, tried: &mut [Option<[Stamp; 2]>]) {
        let current = self.0.load();
        let mut next = Vec::clone(&current);
        for (certificate, tried) in next.iter_mut().zip(tried) {
            let stamps = stamps(&certificate.files);
            if stamps == certificate.stamps && certificate.fault.is_none() {
                continue;
            }
            let path = certificate.files.certificate.display();
            match ServerCertificate::read(certificate.files.clone()) {
                Ok(new) => {
                    tracing::info!("the certificate in {path} was read again, for {}", new.names.join(", "));
                    (*certificate, *tried) = (Arc::new(new), None);
                }
                Err(error) if *tried == Some(stamps) => {
                    let fault = Some(error.to_string());
                    if certificate.fault != fault {
                        tracing::error!("{error}; the certificate that was in {path} before stays in use");
                        *certificate = Arc::new(ServerCertificate { fault, ..ServerCertificate::clone(certificate) });
                    }
                }
                Err(_) => *tried = Some(stamps),
            }
        }
        if next.iter().zip(current.iter()).any(|(next, current)| !Arc::ptr_eq(next, current)) {
            self.0.store(Arc::new(next));
        }
    }

    fn certificate_for(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let certificates = self.0.load();
        pick(&certificates, name, |certificate| &certificate.names).map(|chosen| chosen.certified.clone())
    }
}

/// The certificate for the name that a client asks for (SNI): the first one with this name, or else
/// with its wildcard, or else the first one.
pub(crate) fn pick<'c, T>(certificates: &'c [T], name: Option<&str>, names: impl Fn(&T) -> &[String]) -> Option<&'c T> {
    let is_for = |wanted: &str| certificates.iter().find(|one| names(one).iter().any(|name| name == wanted));
    let named = name.and_then(|name| {
        let name = name.to_ascii_lowercase();
        is_for(&name).or_else(|| is_for(&format!("*.{}", name.split_once('.')?.1)))
    });
    named.or(certificates.first())
}

impl ResolvesServerCert for ServerCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate_for(hello.server_name())
    }
}

/// A server with these certificates: TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`.
///
/// # Errors
/// The TLS library refuses the configuration.
pub fn gateway_server_config(certificates: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(PROVIDER.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Keeps the certificates current until nobody uses them.
fn watch(certificates: &Weak<ServerCertificates>) {
    let mut complained = None::<Instant>;
    let mut tried = Vec::new();
    while let Some(certificates) = certificates.upgrade() {
        tried.resize(certificates.list().len(), None);
        certificates.reload(&mut tried);
        if complained.is_none_or(|last| last.elapsed() > COMPLAINTS) {
            for certificate in certificates.list().iter().filter(|certificate| certificate.is_late()) {
                let (path, expires) = (certificate.files.certificate.display(), certificate.expires_in_words());
                tracing::warn!("the certificate in {path} {expires}; write a new one there");
                complained = Some(Instant::now());
            }
        }
        drop(certificates);
        thread::sleep(PERIOD);
    }
}

/// What tells one content of a file from another.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamps(files: &CertificateFiles) -> [Stamp; 2] {
    let stamp = |found: Metadata| (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
    [&files.certificate, &files.key].map(|path| fs::metadata(path).ok().map(stamp))
}

impl ServerCertificate {
    /// The certificate itself, in DER, without those between it and its authority.
    pub fn leaf(&self) -> &[u8] {
        self.certified.end_entity_cert().map_or(&[], |leaf| leaf)
    }

    /// `expires in 5 days`.
    pub fn expires_in_words(&self) -> String {
        expiry::expires_in_words(self.not_after.as_secs(), UnixTime::now().as_secs())
    }

    /// Whether it is late to replace the files.
    pub fn is_late(&self) -> bool {
        UnixTime::now().as_secs() >= self.late_at.as_secs()
    }

    fn read(files: CertificateFiles) -> Result<Self, TlsError> {
        let stamps = stamps(&files);
        let chain = chain(&read(&files.certificate)?).map_err(|reason| unusable(&files.certificate, reason))?;
        let key = private_key(&read(&files.key)?).map_err(|reason| unusable(&files.key, reason))?;
        let (names, not_after) = facts(&chain);
        let late_at = expiry::chain_late_at(&chain, Holder::Endpoint).unwrap_or(not_after);
        let place = format!("the certificate in {}", files.certificate.display());
        let certified = certified(chain, key, &place).map_err(|reason| unusable(&files.key, reason))?;
        Ok(Self { files, names, not_after, fault: None, late_at, stamps, certified: Arc::new(certified) })
    }
}

/// The chain with its key, which is wiped. `place`: the certificate, for the reason.
pub(crate) fn certified(
    chain: Vec<CertificateDer<'static>>,
    mut private_key: PrivateKeyDer<'static>,
    place: &str,
) -> Result<CertifiedKey, String> {
    let signing_key = any_supported_type(&private_key);
    private_key.zeroize();
    let certified = signing_key.map(|signing_key| CertifiedKey::new(chain, signing_key));
    let certified = certified.and_then(|certified| certified.keys_match().map(|()| certified));
    certified.map_err(|error| match &error {
        rustls::Error::InconsistentKeys(_) => format!("this key does not belong to {place}"),
        // The library's text names the algorithm or the encoding at fault, and never the key.
        error => format!("this key cannot be used with {place}: {error}"),
    })
}

/// The names of a chain, and its end.
pub(crate) fn facts(chain: &[CertificateDer<'_>]) -> (Vec<String>, UnixTime) {
    let leaf = chain.first().and_then(|leaf| Some(X509Certificate::from_der(leaf).ok()?.1));
    let alternatives = leaf.as_ref().and_then(|leaf| leaf.subject_alternative_name().ok().flatten());
    let names =
        alternatives.map(|names| names.value.general_names.iter().filter_map(name).collect()).unwrap_or_default();
    let end = chain.iter().filter_map(not_after).min_by_key(UnixTime::as_secs);
    (names, end.unwrap_or(UnixTime::since_unix_epoch(Duration::ZERO)))
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?).to_string()),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
        },
        _ => None,
    }
}

pub(crate) fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("not a PEM file: {}", reason(&error)))?;
    if chain.is_empty() {
        return Err("no certificate in it; expected PEM sections `-----BEGIN CERTIFICATE-----`".to_owned());
    }
    for (index, certificate) in chain.iter().enumerate() {
        if x509_parser::parse_x509_certificate(certificate).is_err() {
            return Err(format!("certificate {} in it is not X.509", index + 1));
        }
    }
    Ok(chain)
}

pub(crate) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            let expected = "expected a PEM section `-----BEGIN PRIVATE KEY-----`, without a passphrase";
            format!("no private key in it; {expected}")
        }
        error => format!("not a PEM file: {}", reason(&error)),
    })
}

/// Wiped afterwards: the content may be a key.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let text = leno_files::read(path, &FileAccess::Any, MAX_SMALL_FILE);
    let text = text.map_err(|reason| TlsError::Unreadable { path: path.to_owned(), reason })?;
    Ok(Zeroizing::new(text))
}

/// The reason, without the offending line, which may be part of a key.
fn reason(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end line",
        pem::Error::IllegalSectionStart { .. } => "a section's first line is malformed",
        pem::Error::Base64Decode(_) => "a section is not base64",
        pem::Error::SectionTooLarge => "a section is too large",
        _ => "no section could be read",
    }
}

fn unusable(path: &Path, reason: String) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), reason }
}
