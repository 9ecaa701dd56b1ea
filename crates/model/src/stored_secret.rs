//! Secrets that a control plane keeps and delivers to nodes. Nothing prints their values.

use crate::function_id::FunctionId;
use leno_files::FileAccess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use zeroize::Zeroizing;

/// A key of a StoredSecret document. The document is in the namespace of the one that names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredKey {
    /// Name of the document.
    pub secret: String,
    /// Key in it.
    pub key: String,
}

impl fmt::Display for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key `{}` of the StoredSecret `{}`", self.key, self.secret)
    }
}

/// A value that is never printed, and that is overwritten when it is dropped.
#[derive(Clone)]
pub struct SecretBytes {
    bytes: Arc<Zeroizing<Vec<u8>>>,
    mark: [u8; 16],
}

impl SecretBytes {
    /// `mark` identifies the value, and only holders of a key can compute it.
    pub fn new(bytes: Zeroizing<Vec<u8>>, mark: [u8; 16]) -> Self {
        Self { bytes: Arc::new(bytes), mark }
    }

    /// The value.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    /// Identifies the value.
    pub fn mark(&self) -> [u8; 16] {
        self.mark
    }
}

/// Compares the marks.
impl PartialEq for SecretBytes {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The stored secrets of one function.
pub type SecretValues = BTreeMap<StoredKey, SecretBytes>;

/// The stored secrets that the control plane has delivered to a node, by function. They are in
/// memory only.
#[derive(Clone, Debug, Default)]
pub struct StoredSecrets(Arc<RwLock<BTreeMap<FunctionId, Arc<SecretValues>>>>);

impl StoredSecrets {
    /// Replaces the secrets of a function.
    pub fn set(&self, function: FunctionId, values: Arc<SecretValues>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(function, values);
    }

    /// Drops the secrets of a function.
    pub fn remove(&self, function: &FunctionId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(function);
    }

    /// The secrets of a function; `None`: the control plane has delivered none.
    pub fn of(&self, function: &FunctionId) -> Option<Arc<SecretValues>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(function).cloned()
    }

    /// Reads what the documents of a function name, as it is now.
    pub fn reader(&self, function: &FunctionId, files: FileAccess) -> super::SecretReader {
        super::SecretReader::new(files, self.of(function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_printed() {
        let bytes = SecretBytes::new(Zeroizing::new(b"swordfish".to_vec()), [7; 16]);
        let key = StoredKey { secret: "db".to_owned(), key: "password".to_owned() };
        let secrets = StoredSecrets::default();
        secrets.set("shop/cart".parse().unwrap(), Arc::new(BTreeMap::from([(key, bytes)])));
        let text = format!("{secrets:?} {secrets:#?}");
        assert!(text.contains("password") && !text.contains("swordfish") && !text.contains("115"), "{text}");
        assert!(secrets.of(&"shop/other".parse().unwrap()).is_none());
    }
}
