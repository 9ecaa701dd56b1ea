//! TLS of the API, with the operator's certificate or a self-signed one.

use anyhow::{Context, Result};
use leno_identity::{ServerCertificates, gateway_server_config};
use leno_model::CertificateFiles;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::ServerConfig;

/// The certificate of the API.
pub enum Certificate {
    /// PEM files of the certificate chain and its key.
    Files(PathBuf, PathBuf),
    /// Self-signed, in the data folder. The API makes it at its first start, also for these names.
    SelfSigned(Vec<String>),
}

impl Certificate {
    /// The configuration of a server at this address, the certificate that it shows, and the file
    /// of a self-signed one, which clients must trust.
    pub fn config(&self, data: &Path, address: &str) -> Result<(Arc<ServerConfig>, ApiCertificate, Option<PathBuf>)> {
        let further = match self {
            Self::Files(certificate, key) => {
                let (config, shown) = server_config(certificate, key)?;
                return Ok((config, shown, None));
            }
            Self::SelfSigned(names) => names,
        };
        let (certificate, key) = (data.join("api.pem"), data.join("api.key"));
        if !certificate.exists() || !key.exists() {
            let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.to_owned()];
            names.extend(further.iter().cloned());
            names.dedup();
            make(&names, &certificate, &key).context("no certificate for the API could be made")?;
        }
        let (config, shown) = server_config(&certificate, &key)?;
        Ok((config, shown, Some(certificate)))
    }
}

/// The certificate that the API shows. It is read again when its files change.
#[derive(Clone, Debug)]
pub struct ApiCertificate(Arc<ServerCertificates>);

impl ApiCertificate {
    /// The certificate itself, in DER.
    pub fn leaf(&self) -> Vec<u8> {
        self.0.list().first().map(|certificate| certificate.leaf().to_vec()).unwrap_or_default()
    }

    /// Whether clients may reach the API by this name or address, in lower case.
    pub(super) fn is_for(&self, host: &str) -> bool {
        let in_wildcard = |name: &str| {
            let suffix = name.strip_prefix('*');
            suffix.is_some_and(|suffix| {
                host.strip_suffix(suffix).is_some_and(|label| !label.is_empty() && !label.contains('.'))
            })
        };
        self.0.list().iter().flat_map(|certificate| &certificate.names).any(|name| name == host || in_wildcard(name))
    }

    /// `expires in 5 days`; `None`: it is not late to replace it.
    pub(super) fn late_in_words(&self) -> Option<String> {
        let certificates = self.0.list();
        certificates
            .first()
            .filter(|certificate| certificate.is_late())
            .map(|certificate| certificate.expires_in_words())
    }

    /// When the first certificate of its chain expires, in seconds since 1970.
    pub(super) fn ends(&self) -> u64 {
        self.0.list().first().map_or(0, |certificate| certificate.not_after.as_secs())
    }
}

fn server_config(certificate: &Path, key: &Path) -> Result<(Arc<ServerConfig>, ApiCertificate)> {
    let files = CertificateFiles { certificate: certificate.to_owned(), key: key.to_owned() };
    let certificates = ServerCertificates::read([files])?;
    Ok((gateway_server_config(certificates.clone())?, ApiCertificate(certificates)))
}

/// Makes the data folder, for this account only.
pub fn make_folder(data: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(data);
    made.with_context(|| format!("the data folder {} cannot be made", data.display()))
}

fn make(names: &[String], certificate: &Path, key: &Path) -> Result<()> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "leno control");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let pair = KeyPair::generate()?;
    let signed = params.self_signed(&pair)?;
    write(key, 0o600, &pair.serialize_pem())?;
    write(certificate, 0o644, &signed.pem())
}

fn write(path: &Path, mode: u32, text: &str) -> Result<()> {
    let open = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path);
    let mut file = open.with_context(|| format!("{} cannot be written", path.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
}
