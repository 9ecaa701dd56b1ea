//! Certificate authorities in files, for connections to servers outside the mesh.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime, pem};
use x509_parser::error::X509Error;
use x509_parser::nom;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The usable certificates of a PEM file.
#[derive(Debug)]
pub struct Roots {
    /// Authorities that are valid now.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Certificates that are valid now and no authorities. Each is trusted for itself alone.
    pub servers: Vec<CertificateDer<'static>>,
    /// Certificates of the file that are not usable: subject and reason of each.
    pub refused: Vec<String>,
    /// When the first of the usable ones expires, in seconds since 1970. The file must be read
    /// again then.
    pub expires: u64,
}

/// Why a file has no usable certificate.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// It is not PEM.
    #[error("no PEM: {0}")]
    Pem(#[from] pem::Error),
    /// It has no certificate.
    #[error("no certificate in it; expected PEM (`-----BEGIN CERTIFICATE-----`)")]
    Empty,
    /// None of its certificates is usable. Holds the subject and reason of each.
    #[error("no usable certificate in it: {}", .0.join("; "))]
    Unusable(Vec<String>),
}

/// Why a certificate is not usable now.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(" is not X.509: {0}")]
    Syntax(#[from] nom::Err<X509Error>),
    #[error(" (`{}`) {defect}", subject.escape_debug())]
    Defect { subject: String, defect: Defect },
}

#[derive(Debug, thiserror::Error)]
enum Defect {
    #[error("has bytes after its end")]
    Excess,
    #[error("expired at {0}")]
    Expired(ASN1Time),
    #[error("is not valid before {0}")]
    NotYetValid(ASN1Time),
}

/// Reads the certificates of a PEM file. A TLS library accepts any certificate as a root, even an
/// expired one, or a server's, whose key could then sign for all names. Here only an authority is a
/// root; another certificate stands for the one server that shows it.
///
/// # Errors
/// The file is no PEM, has no certificate, or none of them is usable.
pub fn roots(text: &[u8], now: UnixTime) -> Result<Roots, RootsError> {
    let mut roots = Roots { authorities: Vec::new(), servers: Vec::new(), refused: Vec::new(), expires: u64::MAX };
    for (index, certificate) in CertificateDer::pem_slice_iter(text).enumerate() {
        let certificate = certificate?;
        match usability(&certificate, now.as_secs()) {
            Ok(usability) => {
                roots.expires = roots.expires.min(usability.expires);
                if usability.is_authority { &mut roots.authorities } else { &mut roots.servers }.push(certificate);
            }
            Err(reason) => roots.refused.push(format!("certificate {}{reason}", index + 1)),
        }
    }
    match (roots.authorities.is_empty() && roots.servers.is_empty(), roots.refused.is_empty()) {
        (true, true) => Err(RootsError::Empty),
        (true, false) => Err(RootsError::Unusable(roots.refused)),
        (false, _) => Ok(roots),
    }
}

struct Usability {
    is_authority: bool,
    /// In seconds since 1970.
    expires: u64,
}

fn usability(certificate: &CertificateDer<'_>, now: u64) -> Result<Usability, Unusable> {
    let (rest, parsed) = X509Certificate::from_der(certificate)?;
    let refused = |defect| Err(Unusable::Defect { subject: parsed.subject().to_string(), defect });
    if !rest.is_empty() {
        return refused(Defect::Excess);
    }
    let validity = parsed.validity();
    let seconds = |time: ASN1Time| u64::try_from(time.timestamp()).unwrap_or_default();
    let (from, expires) = (seconds(validity.not_before), seconds(validity.not_after));
    if now > expires {
        return refused(Defect::Expired(validity.not_after));
    }
    if now < from {
        return refused(Defect::NotYetValid(validity.not_before));
    }
    // A certificate of version 1 has no constraints, so it cannot state that it is an authority.
    let constraints = parsed.basic_constraints().ok().flatten();
    let usage = parsed.key_usage().ok().flatten();
    let is_authority = constraints.is_some_and(|constraints| constraints.value.ca)
        && usage.is_none_or(|usage| usage.value.key_cert_sign());
    Ok(Usability { is_authority, expires })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd};

    fn pem(name: &str, change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2030, 1, 1));
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn what_is_not_valid_now_is_left_out_with_the_reason() {
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_750_000_000));
        let good = pem("good", |_| ());
        let old = pem("old", |params| params.not_after = date_time_ymd(2024, 1, 1));
        let early = pem("early", |params| params.not_before = date_time_ymd(2029, 1, 1));
        for (text, subject, reason) in [(&old, "CN=old", "expired at"), (&early, "CN=early", "not valid before")] {
            let error = roots(text.as_bytes(), now).unwrap_err().to_string();
            assert!(error.contains(subject) && error.contains(reason), "{error}");
            // The usable certificates beside it still work, as while a root is replaced.
            let both = roots(format!("{text}{good}").as_bytes(), now).unwrap();
            assert_eq!((both.authorities.len(), both.refused.len()), (1, 1), "{subject}");
            assert!(both.refused[0].contains(reason));
        }
        let usable = roots(good.as_bytes(), now).unwrap();
        assert_eq!(usable.expires, 1_893_456_000);
        assert!(
            roots(good.as_bytes(), UnixTime::since_unix_epoch(std::time::Duration::from_secs(usable.expires + 1)))
                .is_err()
        );
        for (text, reason) in
            [(&b""[..], "no certificate"), (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "X.509")]
        {
            let error = roots(text, now).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
    #[test]
    fn what_is_no_authority_is_no_root() {
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_750_000_000));
        let good = pem("good", |_| ());
        for server in [
            pem("leaf", |params| params.is_ca = IsCa::ExplicitNoCa),
            pem("plain", |params| params.is_ca = IsCa::NoCa),
            pem("useless", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
        ] {
            let roots = roots(format!("{server}{good}").as_bytes(), now).unwrap();
            assert_eq!((roots.authorities.len(), roots.servers.len(), roots.refused.len()), (1, 1, 0));
        }
    }
}
