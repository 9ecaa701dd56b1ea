//! SHA-256.

use aws_lc_rs::digest::{SHA256, digest};
use leno_model::ModuleHash;

/// The hash of a module.
pub fn module_hash(module: &[u8]) -> ModuleHash {
    sha256(module).into()
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}
