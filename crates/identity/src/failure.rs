//! Reasons of failed TLS handshakes, in words.

use crate::reason::{path, words};
use crate::verify::PeerError;
use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error as TlsLibraryError, OtherError};
use std::error::Error;
use std::io;
use x509_parser::time::ASN1Time;

/// Why a certificate of the peer was refused, as far as it decides the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateFault {
    /// Its life is over.
    Expired,
    /// Its life has not begun, by this machine's clock.
    NotValidYet,
    /// It is for other names.
    Name,
    /// No trusted root has signed it.
    UnknownIssuer,
    /// Its form, its purpose or its signature.
    Other,
}

/// The reason of a failed handshake anywhere among the causes of an error; `None`: TLS is not the
/// reason. The TLS library writes most reasons as names of its types.
pub fn handshake_failure(error: &(dyn Error + 'static)) -> Option<String> {
    tls_error(error).map(in_words)
}

/// Why the peer's certificate was refused; `None`: it was not the reason.
pub fn certificate_fault(error: &(dyn Error + 'static)) -> Option<CertificateFault> {
    let TlsLibraryError::InvalidCertificate(reason) = tls_error(error)? else { return None };
    Some(match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => CertificateFault::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => CertificateFault::NotValidYet,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => CertificateFault::Name,
        // An authority that was made anew has its earlier name, and another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => CertificateFault::UnknownIssuer,
        _ => CertificateFault::Other,
    })
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsLibraryError> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<TlsLibraryError>() {
            return Some(error);
        }
        // The source of an I/O error is that of the error within.
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = within.map(|within| within as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

/// A failed handshake, in words.
pub(crate) fn in_words(error: &TlsLibraryError) -> String {
    let reason = match error {
        _ if PeerError::of(error).is_some() => PeerError::of(error).map(PeerError::to_string),
        TlsLibraryError::InvalidCertificate(reason) => certificate(reason),
        TlsLibraryError::AlertReceived(alert) => Some(format!("the peer ended the handshake: {}", words(alert))),
        TlsLibraryError::PeerIncompatible(reason) => Some(format!("the peer's TLS does not fit: {}", words(reason))),
        TlsLibraryError::PeerMisbehaved(reason) => Some(format!("the peer violates TLS: {}", words(reason))),
        _ => None,
    };
    reason.unwrap_or_else(|| error.to_string())
}

fn certificate(reason: &CertificateError) -> Option<String> {
    let text = match reason {
        CertificateError::UnknownIssuer => "no trusted root has signed the peer's certificate (UnknownIssuer)",
        CertificateError::Expired => "the peer's certificate has expired",
        CertificateError::NotValidYet => "the peer's certificate is not valid yet",
        CertificateError::NotValidForName => "the peer's certificate is not for this name",
        CertificateError::ExpiredContext { not_after, .. } => {
            return Some(format!("the peer's certificate has expired at {}", date(*not_after)?));
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let (begin, now) = (date(*not_before)?, date(*time)?);
            return Some(format!("the peer's certificate is not valid before {begin}, and it is {now} here"));
        }
        // These have texts with names.
        CertificateError::NotValidForNameContext { .. } | CertificateError::InvalidPurposeContext { .. } => {
            return Some(format!("the peer's {reason}"));
        }
        CertificateError::Other(OtherError(other)) => return Some(path(other.downcast_ref()?)),
        other => return Some(format!("the peer's certificate cannot be used: {}", words(other))),
    };
    Some(text.to_owned())
}

fn date(time: UnixTime) -> Option<ASN1Time> {
    ASN1Time::from_timestamp(time.as_secs().try_into().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn reasons_are_words_wherever_the_tls_error_is() {
        let authority = CertificateError::Other(OtherError(Arc::new(webpki::Error::CaUsedAsEndEntity)));
        for (error, expected) in [
            (TlsLibraryError::InvalidCertificate(authority), "the certificate of an authority (CaUsedAsEndEntity)"),
            (TlsLibraryError::InvalidCertificate(CertificateError::UnknownIssuer), "no trusted root has signed"),
            (TlsLibraryError::InvalidCertificate(CertificateError::BadEncoding), "bad encoding (BadEncoding)"),
            (TlsLibraryError::AlertReceived(rustls::AlertDescription::UnknownCA), "unknown"),
        ] {
            let error = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
            let reason = handshake_failure(&error).expect("TLS is the reason");
            assert!(reason.contains(expected) && !reason.contains("Other("), "{reason}");
        }
        assert_eq!(handshake_failure(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }

    #[test]
    fn times_of_certificates_are_dates() {
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let expired = CertificateError::ExpiredContext { time: at(2_000_000_000), not_after: at(1_000_000_000) };
        let early = CertificateError::NotValidYetContext { time: at(1_000_000_000), not_before: at(2_000_000_000) };
        let told = |error: CertificateError| {
            let error = io::Error::other(TlsLibraryError::InvalidCertificate(error));
            (certificate_fault(&error).unwrap(), handshake_failure(&error).unwrap())
        };
        let (fault, text) = told(expired);
        assert!(fault == CertificateFault::Expired && text.contains("expired at Sep  9 01:46:40 2001"), "{text}");
        let (fault, text) = told(early);
        assert!(
            fault == CertificateFault::NotValidYet && text.contains("not valid before May 18 03:33:20 2033"),
            "{text}"
        );
        assert_eq!(certificate_fault(&io::Error::from(io::ErrorKind::TimedOut)), None);
    }
}
