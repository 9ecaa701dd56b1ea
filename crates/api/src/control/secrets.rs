//! The listing of stored secrets. It has no values.

use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::{SecretKey, SecretStatus};
use leno_config::Document;

impl Service {
    /// The stored secrets that a caller may list.
    pub(super) fn secrets(&self, caller: &Caller) -> Result<Vec<SecretStatus>, ApiError> {
        let leading = self.leading()?;
        let state = self.state();
        let secrets = state.entries.documents.iter();
        let secrets = secrets.filter(|(id, stored)| stored.value.sealed.is_some() && caller.may_read(id));
        let row = |(id, stored): (&leno_config::DocumentId, &super::service::DocumentEntry)| {
            let keys = Document::restore(id, &stored.value.text).ok().and_then(|document| document.redacted_keys());
            let key = |(key, summary): (String, leno_config::KeySummary)| SecretKey {
                key,
                bytes: summary.bytes,
                changed: summary.changed as f64,
            };
            SecretStatus {
                namespace: id.namespace.clone(),
                name: id.name.clone(),
                keys: keys.unwrap_or_default().into_iter().map(key).collect(),
                version: stored.version,
                by: stored.value.by.clone(),
                changed: stored.value.at,
                used_by: leading.secret_users(id),
            }
        };
        Ok(secrets.map(row).collect())
    }
}
