//! TLS of the API: a certificate of the operator's, or one that is made at the first start.

use anyhow::{Context, Result};
use leno_identity::{gateway_server_config, not_after};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// PEM files of a certificate and its key.
#[derive(clap::Args)]
pub(crate) struct Certificate {
    /// PEM file with the certificate of the API, and the certificates between it and its authority. Without it, one that signs itself is made at the
    /// first start: `api.pem` in the data folder, which clients give as --ca.
    #[arg(long, value_name = "FILE", requires = "api_key")]
    api_certificate: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE", requires = "api_certificate")]
    api_key: Option<PathBuf>,
    /// Further names and IP addresses that clients use for the API, for the certificate that is made.
    #[arg(long, value_name = "NAME")]
    api_name: Vec<String>,
}

impl Certificate {
    /// The configuration of a server at this address, and the certificate that clients have to trust if it was made here.
    pub(crate) fn config(&self, data: &Path, address: &str) -> Result<(Arc<ServerConfig>, Option<PathBuf>)> {
        if let (Some(certificate), Some(key)) = (&self.api_certificate, &self.api_key) {
            return Ok((gateway_server_config(certificate, key)?, None));
        }
        let (certificate, key) = (data.join("api.pem"), data.join("api.key"));
        if !certificate.exists() || !key.exists() {
            let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.to_owned()];
            names.extend(self.api_name.iter().cloned());
            names.dedup();
            make(&names, &certificate, &key).context("no certificate for the API could be made")?;
        }
        Ok((gateway_server_config(&certificate, &key)?, Some(certificate)))
    }

    /// When the certificate expires, in seconds since 1970; `None`: that is not known.
    pub(crate) fn ends(&self, data: &Path) -> Option<u64> {
        let path = self.api_certificate.clone().unwrap_or_else(|| data.join("api.pem"));
        let text = std::fs::read(path).ok()?;
        let chain = CertificateDer::pem_slice_iter(&text).map_while(Result::ok);
        chain.filter_map(|certificate| not_after(&certificate)).map(|end| end.as_secs()).min()
    }
}

/// Makes the data folder, for this account only.
pub(crate) fn make_folder(data: &Path) -> Result<()> {
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
