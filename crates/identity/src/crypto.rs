//! The cryptography of all TLS in the mesh.

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use std::sync::{Arc, LazyLock};

pub(crate) static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    PROVIDER.signature_verification_algorithms
}
