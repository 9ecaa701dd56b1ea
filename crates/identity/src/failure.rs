//! Reasons of failed TLS handshakes, in words.

use crate::reason::{path, words};
use crate::verify::PeerError;
use rustls::{CertificateError, Error as TlsLibraryError, OtherError};
use std::error::Error;
use std::io;

/// The reason of a failed handshake anywhere among the causes of an error; `None`: TLS is not the
/// reason. The TLS library writes most reasons as names of its types.
pub fn handshake_failure(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<TlsLibraryError>() {
            return Some(in_words(error));
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
        // These have texts with names and times.
        CertificateError::NotValidForNameContext { .. }
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYetContext { .. }
        | CertificateError::InvalidPurposeContext { .. } => return Some(format!("the peer's {reason}")),
        CertificateError::Other(OtherError(other)) => return Some(path(other.downcast_ref()?)),
        other => return Some(format!("the peer's certificate cannot be used: {}", words(other))),
    };
    Some(text.to_owned())
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
}
