//! TLS of the API, with the operator's certificate or a self-signed one.

use anyhow::{Context, Result};
use leno_identity::{ServerCertificates, gateway_server_config, not_after};
use leno_model::CertificateFiles;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// The certificate of the API.
pub enum Certificate {
    /// PEM files of the certificate chain and its key.
    Files(PathBuf, PathBuf),
    /// Self-signed, in the data folder. The API makes it at its first start, also for these names.
    SelfSigned(Vec<String>),
}

impl Certificate {
    /// The configuration of a server at this address, and the self-signed certificate, which
    /// clients must trust.
    pub fn config(&self, data: &Path, address: &str) -> Result<(Arc<ServerConfig>, Option<PathBuf>)> {
        let further = match self {
            Self::Files(certificate, key) => return Ok((server_config(certificate, key)?, None)),
            Self::SelfSigned(names) => names,
        };
        let (certificate, key) = (data.join("api.pem"), data.join("api.key"));
        if !certificate.exists() || !key.exists() {
            let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.to_owned()];
            names.extend(further.iter().cloned());
            names.dedup();
            make(&names, &certificate, &key).context("no certificate for the API could be made")?;
        }
        Ok((server_config(&certificate, &key)?, Some(certificate)))
    }

    /// The certificate of the API itself, in DER; `None`: it cannot be read.
    pub fn leaf(&self, data: &Path) -> Option<Vec<u8>> {
        let text = self.text(data)?;
        let leaf = CertificateDer::pem_slice_iter(&text).next()?.ok()?;
        Some(leaf.to_vec())
    }

    fn text(&self, data: &Path) -> Option<Vec<u8>> {
        let path = match self {
            Self::Files(certificate, _) => certificate.clone(),
            Self::SelfSigned(_) => data.join("api.pem"),
        };
        std::fs::read(path).ok()
    }

    /// The certificate's expiry, in seconds since 1970; `None`: unknown.
    pub fn ends(&self, data: &Path) -> Option<u64> {
        let text = self.text(data)?;
        let chain = CertificateDer::pem_slice_iter(&text).map_while(Result::ok);
        chain.filter_map(|certificate| not_after(&certificate)).map(|end| end.as_secs()).min()
    }
}

fn server_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let files = CertificateFiles { certificate: certificate.to_owned(), key: key.to_owned() };
    Ok(gateway_server_config(ServerCertificates::read([files])?)?)
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
