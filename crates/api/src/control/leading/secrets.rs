//! Stored secrets: their documents stand for the values, which are sealed beside them.

use super::super::audit;
use super::super::error::ApiError;
use super::super::sealing::{SealError, SealedValues};
use super::super::service::{DocumentEntry, DocumentValue, Service, entry, key, now};
use super::super::tokens::Caller;
use super::super::types::{Action, AuditChange};
use leno_config::{Document, DocumentId, KeySummary, Problem, SecretDocument};
use leno_control::{Secrets, Transaction};
use leno_model::{SecretBytes, StoredKey};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// The kind of the documents.
pub(super) const KIND: &str = "StoredSecret";

/// A StoredSecret that is ready to be stored.
pub(super) struct SealedSecret {
    /// Stands for the values.
    pub document: Document,
    pub sealed: SealedValues,
    pub values: BTreeMap<String, SecretBytes>,
}

/// Seals the values of a document. Equal values stay as they are stored.
pub(super) fn seal(
    service: &Service,
    before: Option<&DocumentEntry>,
    id: &DocumentId,
    document: &Document,
) -> Result<SealedSecret, ApiError> {
    let refused =
        |error: SealError| ApiError::Problems(vec![Problem { message: error.to_string(), ..document.place() }]);
    let written = document.secret_values().map_err(ApiError::Problems)?;
    let SecretDocument { labels, values } = written.ok_or_else(|| ApiError::Bad(format!("{id} has no values")))?;
    let mut sealed = service.keys.seal(id, &values).map_err(refused)?;
    let stored = before.and_then(|before| Some((before, before.value.sealed.as_ref()?)));
    // Values that cannot be opened any more are replaced.
    let stored = stored.and_then(|(before, stored)| {
        let keys = Document::restore(id, &before.value.text).ok()?.redacted_keys()?;
        Some((keys, stored, service.keys.open(id, stored).ok()?))
    });
    let mut keys = BTreeMap::new();
    for (name, value) in &values {
        let (bytes, changed) = (u32::try_from(value.len()).unwrap_or(u32::MAX), now().as_secs());
        let mut summary = KeySummary { bytes, changed };
        if let Some((before, stored, opened)) = &stored
            && opened.get(name).is_some_and(|opened| opened.expose() == value.as_slice())
        {
            summary.changed = before.get(name).map_or(summary.changed, |before| before.changed);
            if let (true, Some(stored)) = (stored.with == sealed.with, stored.values.get(name)) {
                sealed.values.insert(name.clone(), stored.clone());
            }
        }
        keys.insert(name.clone(), summary);
    }
    let values = service.keys.open(id, &sealed).map_err(refused)?;
    let document = Document::redacted(id, labels, &keys).map_err(ApiError::Problems)?;
    Ok(SealedSecret { document, sealed, values })
}

/// Replaces the values of a document.
pub(super) fn replace(secrets: &mut Secrets, id: &DocumentId, values: BTreeMap<String, SecretBytes>) {
    let all = secrets.entry(id.namespace.clone()).or_default();
    all.retain(|key, _| key.secret != id.name);
    all.extend(values.into_iter().map(|(key, value)| (StoredKey { secret: id.name.clone(), key }, value)));
    if all.is_empty() {
        secrets.remove(&id.namespace);
    }
}

/// The values of all stored secrets. Documents whose values cannot be opened are `broken`.
pub(super) fn open_all(service: &Service, broken: &mut BTreeMap<DocumentId, Vec<Problem>>) -> Secrets {
    // The key of a passphrase takes a while, so the lock is not held.
    let all: Vec<(DocumentId, SealedValues)> = {
        let state = service.state();
        let documents = state.entries.documents.iter();
        documents.filter_map(|(id, stored)| Some((id.clone(), stored.value.sealed.clone()?))).collect()
    };
    let mut secrets = Secrets::new();
    for (id, sealed) in &all {
        match service.keys.open(id, sealed) {
            Ok(values) => replace(&mut secrets, id, values),
            Err(error) => {
                let problem = Problem {
                    file: id.to_string().into(),
                    line: 0,
                    column: 0,
                    field: String::new(),
                    message: error.to_string(),
                    fix: String::new(),
                };
                broken.entry(id.clone()).or_default().push(problem);
            }
        }
    }
    secrets
}

/// Seals values anew that are sealed with another key than the first. Blocks on the store.
pub(super) fn seal_anew(service: &Service) -> Result<(), ApiError> {
    let old: Vec<(DocumentId, DocumentEntry)> = {
        let state = service.state();
        let is_old = |stored: &DocumentEntry| stored.value.sealed.as_ref().is_some_and(|it| service.keys.is_old(it));
        let old = state.entries.documents.iter().filter(|(_, stored)| is_old(stored));
        old.map(|(id, stored)| (id.clone(), stored.clone())).collect()
    };
    let mut count = 0;
    for (id, DocumentEntry { version, value }) in &old {
        // Values that cannot be opened are reported with the documents.
        let Some(Ok(opened)) = value.sealed.as_ref().map(|sealed| service.keys.open(id, sealed)) else { continue };
        let values = opened.iter().map(|(key, value)| (key.clone(), Zeroizing::new(value.expose().to_vec())));
        let failed = |error: &dyn std::fmt::Display| ApiError::Unavailable(format!("{id}: {error}"));
        let sealed = service.keys.seal(id, &values.collect()).map_err(|error| failed(&error))?;
        let value = DocumentValue { sealed: Some(sealed), ..value.clone() };
        let mut transaction = Transaction::default();
        transaction.expect(key(id), *version);
        transaction.put(key(id), serde_json::to_vec(&value).map_err(|error| failed(&error))?);
        let changes =
            vec![AuditChange { what: format!("{id}: encrypted anew"), action: Action::Changed, before: *version }];
        let entry = entry(&Caller::control_plane(), changes);
        audit::add(&mut transaction, &entry)?;
        service.backend.commit(&transaction)?;
        service.log(&entry);
        count += 1;
    }
    if count > 0 {
        tracing::info!(documents = count, "stored secrets are encrypted with the first key now");
        service.read()?;
    }
    Ok(())
}
