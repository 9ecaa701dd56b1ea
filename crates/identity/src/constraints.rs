//! Name constraints that path validation does not understand.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Name constraints of a kind that path validation does not understand. It refuses every identity under a certificate that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "name constraints on {0}, which Leno cannot check: no identity under it would be accepted. Use a certificate without them (constraints on DNS names and IP addresses are checked)"
)]
pub struct UnknownConstraints(&'static str);

/// The name constraints of a certificate because of which path validation refuses everything under
/// it.
pub(crate) fn unknown_constraints(der: &CertificateDer<'_>) -> Option<UnknownConstraints> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => constraints_of(&certificate),
        _ => None,
    }
}

/// The same for a parsed certificate.
pub(crate) fn constraints_of(certificate: &X509Certificate<'_>) -> Option<UnknownConstraints> {
    let constraints = certificate.name_constraints().ok()??.value;
    let subtrees = constraints.permitted_subtrees.iter().chain(&constraints.excluded_subtrees).flatten();
    let unknown = |base: &GeneralName<'_>| match base {
        GeneralName::URI(_) => Some(UnknownConstraints("URIs")),
        GeneralName::DirectoryName(_) => Some(UnknownConstraints("directory names")),
        _ => None,
    };
    subtrees.map(|subtree| &subtree.base).find_map(unknown)
}
