//! Remedies of key sets that give no keys.

use super::FetchError;
use crate::fetch::download::DownloadError;
use crate::state::tokens::KeySetProblem;
use http::StatusCode;
use leno_config::jwks::KeySet;
use leno_identity::{CertificateFault, certificate_fault};
use std::error::Error;
use std::io;

impl FetchError {
    /// The failed fetch of `url`, with the remedy.
    pub(super) fn problem(&self, url: &str) -> KeySetProblem {
        KeySetProblem { reason: self.to_string(), fix: self.fix(url), is_empty: false }
    }

    fn fix(&self, url: &str) -> String {
        match self {
            Self::Download(error) => of_download(error, url),
            Self::Task(_) => "look at the log of the node".to_owned(),
            Self::NotAKeySet(_) => NO_KEY_SET.to_owned(),
        }
    }
}

/// The problem of a fetched key set; `None`: it has usable keys.
pub(super) fn of_key_set(keys: &KeySet) -> Option<KeySetProblem> {
    if !keys.keys.is_empty() {
        return None;
    }
    let refused = keys.refused.iter().map(ToString::to_string).chain(keys.skipped.iter().cloned());
    let reasons: Vec<String> = refused.take(3).collect();
    let reason = if reasons.is_empty() { "it is empty".to_owned() } else { reasons.join("; ") };
    let fix = "the issuer has to publish a signing key: RSA of 2048 bits or more, P-256, P-384, P-521 or Ed25519";
    Some(KeySetProblem { reason, fix: fix.to_owned(), is_empty: true })
}

const NO_KEY_SET: &str =
    "name the issuer's key set in `jwks.url`: `jwks_uri` of its `/.well-known/openid-configuration` has the address";

fn of_download(error: &DownloadError, url: &str) -> String {
    let host = url.split('/').nth(2).unwrap_or_default();
    match error {
        DownloadError::Host(_) => format!("correct the host {host} in `jwks.url`, or do what the reason says"),
        DownloadError::Client(_) => "correct `jwks.url` or `jwks.caFile`, as the reason says".to_owned(),
        DownloadError::Http(error) => of_exchange(error, host),
        DownloadError::Status { status } => of_status(*status, host),
        DownloadError::Body(_) => format!("look at {host}: a key set has at most 256 KiB, and arrives whole"),
        DownloadError::Timeout(_) => {
            format!("make {host} reachable from the node (routes, firewalls), or find out why it is slow")
        }
    }
}

fn of_exchange(error: &(dyn Error + 'static), host: &str) -> String {
    match certificate_fault(error) {
        Some(CertificateFault::Expired) => {
            format!("the issuer has to renew the certificate of its server {host}; nothing is to be changed here")
        }
        Some(CertificateFault::NotValidYet) => {
            format!("set the clock of the node; if it is right, the issuer has to replace the certificate of {host}")
        }
        Some(CertificateFault::Name) => {
            format!("name a host of the certificate in `jwks.url`, or the issuer has to get a certificate for {host}")
        }
        Some(CertificateFault::UnknownIssuer) => {
            format!("name the file with the authority of {host} in `jwks.caFile`, if you trust it")
        }
        Some(CertificateFault::Other) => format!("the issuer has to replace the certificate of its server {host}"),
        None if leno_identity::handshake_failure(error).is_some() => {
            format!("the server {host} has to speak TLS 1.2 or 1.3; correct the scheme or port in `jwks.url`")
        }
        None if has_kind(error, io::ErrorKind::ConnectionRefused) => {
            format!("start the server {host}, or correct the port in `jwks.url`: nothing listens there")
        }
        None => format!("make {host} reachable from the node (routes, firewalls), or correct `jwks.url`"),
    }
}

fn of_status(status: StatusCode, host: &str) -> String {
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => format!("correct the path in `jwks.url`; {NO_KEY_SET}"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("the issuer has to serve its key set without credentials; look at {host}")
        }
        status if status.is_redirection() => "name the final address in `jwks.url`".to_owned(),
        status if status.is_server_error() => format!("look at the log of the server {host}: it fails"),
        _ => format!("look at the server {host}, and correct `jwks.url`"),
    }
}

/// Whether a cause is an I/O error of this kind.
fn has_kind(error: &(dyn Error + 'static), kind: io::ErrorKind) -> bool {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == kind))
}
