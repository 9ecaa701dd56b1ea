//! The state of a control plane, leading or not: the stored documents and tokens.

use super::audit::{self, Lines};
use super::audit_index::AuditIndex;
use super::error::ApiError;
use super::forward::Leader;
use super::leading::Leading;
use super::sealing::{SealedValues, SealingKeys};
use super::tls::ApiCertificate;
use super::tokens::{self, Caller, Token};
use super::types::{
    Action, AuditChange, AuditEntry, Documents, NewToken, Role, StoredDocument, TokenInfo, TokenRequest, Wrong,
};
use crate::alerts::beginnings::Beginnings;
use anyhow::Result;
use leno_config::{DocumentId, Problem};
use leno_control::{Backend, Commit, Control, Status, StoreError, Transaction};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::block_in_place;

/// The prefix of keys that all control planes read.
const SHARED: &str = "api/";
const DOCUMENTS: &str = "api/documents/";
const TOKENS: &str = "api/tokens/";
/// Most valid tokens of one namespace, and of all.
const MAX_TOKENS_OF_NAMESPACE: usize = 256;
const MAX_TOKENS: usize = 65_536;
/// Interval of attempts to read the store.
const AGAIN: Duration = Duration::from_secs(1);

/// The state of a control plane's API.
pub struct Service {
    /// The store.
    pub backend: Arc<dyn Backend>,
    pub(crate) lines: Option<Lines>,
    /// The certificate of the API.
    pub api_certificate: ApiCertificate,
    /// The keys of stored secrets.
    pub(super) keys: SealingKeys,
    pub(crate) statuses: Statuses,
    pub(super) beginnings: Beginnings,
    state: RwLock<State>,
    pub(super) audit_index: AuditIndex,
}

/// The status of functions and nodes. It takes a lock that changes and nodes need, so the API takes
/// it at most half of the time.
#[derive(Default)]
pub(crate) struct Statuses(Arc<tokio::sync::Mutex<()>>);

impl Statuses {
    /// The status, in this request's turn.
    pub(crate) async fn of(&self, control: &Control) -> Status {
        let one = self.0.clone().lock_owned().await;
        let began = Instant::now();
        let status = block_in_place(|| control.status());
        let took = began.elapsed();
        tokio::spawn(async move {
            tokio::time::sleep(took).await;
            drop(one);
        });
        status
    }
}

/// A copy of the store, and the leader.
#[derive(Default)]
pub struct State {
    /// The store's revision of this copy.
    pub revision: u64,
    pub entries: Entries,
    /// The API has read the store at least once.
    pub read: bool,
    /// Present while this control plane leads.
    pub leading: Option<Arc<Leading>>,
    /// Another control plane that leads.
    pub leader: Option<Leader>,
    /// Problems that keep the stored documents out of force.
    pub not_in_force: Vec<Problem>,
}

/// The entries of the store.
#[derive(Default)]
pub struct Entries {
    pub documents: BTreeMap<DocumentId, DocumentEntry>,
    pub tokens: BTreeMap<String, Token>,
    /// Keys that name no document and no token. Their meaning is unknown, so nothing is published
    /// while they exist.
    pub unknown: BTreeSet<String>,
}

impl Entries {
    /// Applies an entry; `None`: it was deleted. An unreadable entry becomes a document without
    /// text, which blocks publication, or a token that nothing matches.
    fn put(&mut self, key: &str, version: u64, value: Option<&[u8]>) {
        let damaged = |error: &serde_json::Error| tracing::error!("the stored entry {key} cannot be read: {error}");
        if let Some(id) = document_of(key) {
            let Some(value) = value else { return drop(self.documents.remove(&id)) };
            let value = serde_json::from_slice(value).unwrap_or_else(|error| {
                damaged(&error);
                DocumentValue { text: String::new(), by: String::new(), at: 0.0, sealed: None }
            });
            self.documents.insert(id, DocumentEntry { version, value });
        } else if let Some(id) = key.strip_prefix(TOKENS) {
            match value.map(serde_json::from_slice) {
                Some(Ok(token)) => drop(self.tokens.insert(id.to_owned(), token)),
                Some(Err(error)) => {
                    damaged(&error);
                    self.tokens.remove(id);
                }
                None => drop(self.tokens.remove(id)),
            }
        } else if value.is_some() {
            tracing::error!("this release knows no such entry as {key}; nothing is put into force beside it");
            self.unknown.insert(key.to_owned());
        } else {
            self.unknown.remove(key);
        }
    }

    /// Problems of entries that are no documents.
    pub fn problems(&self) -> Vec<Problem> {
        let fix = "remove it from the store, or use the release that wrote it";
        let problem = |key: &String| Problem {
            file: key.into(),
            line: 0,
            column: 0,
            field: String::new(),
            message: "this release knows no such entry".to_owned(),
            fix: fix.to_owned(),
        };
        self.unknown.iter().map(problem).collect()
    }
}

/// A stored document.
#[derive(Clone)]
pub struct DocumentEntry {
    pub version: u64,
    pub value: DocumentValue,
}

/// The stored form of a document.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentValue {
    pub text: String,
    /// The token that applied it.
    pub by: String,
    /// Time of the application, in seconds since 1970.
    pub at: f64,
    /// The values of a StoredSecret, which its text stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<SealedValues>,
}

impl Service {
    /// A service of this store, with a file for the audit log. `keys` encrypt stored secrets.
    pub fn new(
        backend: Arc<dyn Backend>,
        lines: Option<Lines>,
        api_certificate: ApiCertificate,
        keys: SealingKeys,
    ) -> Arc<Self> {
        let (statuses, beginnings, state, audit_index) = Default::default();
        Arc::new(Self { backend, lines, api_certificate, keys, statuses, beginnings, state, audit_index })
    }

    /// No caller holds the lock across an await.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for changes.
    pub fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all entries from the store. Blocks on it.
    pub fn read(&self) -> Result<u64, StoreError> {
        let listing = self.backend.list(SHARED)?;
        let mut entries = Entries::default();
        for entry in listing.entries {
            entries.put(&entry.key, entry.version, Some(&entry.value));
        }
        let mut state = self.state_mut();
        (state.revision, state.entries, state.read) = (listing.revision, entries, true);
        Ok(listing.revision)
    }

    /// Follows the store while another control plane writes to it.
    pub async fn follow(&self) {
        loop {
            match block_in_place(|| self.read().and_then(|revision| self.backend.watch(SHARED, revision))) {
                Ok(mut watch) => {
                    while let Some(commit) = watch.next().await {
                        self.take(commit);
                    }
                }
                Err(error) => tracing::warn!(%error, "the store cannot be read; what was read goes on"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Applies a commit.
    fn take(&self, commit: Commit) {
        let mut state = self.state_mut();
        for (key, value) in &commit.changes {
            state.entries.put(key, commit.revision, value.as_deref());
        }
        state.revision = commit.revision;
    }

    /// The leading state, which applies changes.
    pub fn leading(&self) -> Result<Arc<Leading>, ApiError> {
        let state = self.state();
        state.leading.clone().ok_or_else(|| ApiError::NotLeader(state.leader.as_ref().map(|leader| leader.url.clone())))
    }

    /// The caller with this token.
    pub fn caller(&self, bearer: Option<&str>, from: &str) -> Result<Caller, ApiError> {
        let state = self.state();
        if !state.read {
            return Err(ApiError::Unavailable("the store was not read yet".to_owned()));
        }
        tokens::caller(&state.entries.tokens, bearer.ok_or(ApiError::Unauthenticated)?, from, now().as_secs())
    }

    /// Stored documents that a caller may read. An empty text matches all.
    pub fn documents(&self, caller: &Caller, kind: &str, namespace: &str, name: &str) -> Documents {
        let state = self.state();
        let is = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        let wanted = |id: &DocumentId| {
            is(kind, &id.kind) && is(namespace, &id.namespace) && is(name, &id.name) && caller.may_read(id)
        };
        let documents = state.entries.documents.iter().filter(|(id, _)| wanted(id));
        let not_in_force = if caller.is_everywhere() { &state.not_in_force[..] } else { &[] };
        Documents {
            revision: state.revision,
            documents: documents.map(|(id, kept)| kept.stored(id)).collect(),
            not_in_force: not_in_force.iter().map(Wrong::from).collect(),
        }
    }

    /// Tokens that a caller may list.
    pub fn tokens(&self, caller: &Caller) -> Vec<TokenInfo> {
        let state = self.state();
        let seen =
            state.entries.tokens.iter().filter(|(_, token)| caller.may_give(token.role, &token.namespaces).is_ok());
        seen.map(|(id, token)| token.info(id)).collect()
    }

    /// Creates a token. Blocks on the store.
    pub fn create_token(&self, caller: &Caller, request: TokenRequest) -> Result<NewToken, ApiError> {
        caller.may_give(request.role, &request.namespaces)?;
        self.leading()?;
        self.has_room_for_token(&request.namespaces)?;
        let TokenRequest { role, namespaces, lifetime, note } = request;
        if note.len() > 200 || note.chars().any(char::is_control) {
            return Err(ApiError::Bad("the note is longer than 200 bytes, or has control characters".to_owned()));
        }
        let (id, secret) = tokens::generate().map_err(|error| ApiError::Unavailable(error.to_string()))?;
        let created = now().as_secs();
        let expires = lifetime.map(|lifetime| created.saturating_add(lifetime));
        let hash = tokens::hash(&secret);
        let token = Token { hash, role, namespaces, note, by: caller.name.clone(), created, expires };
        self.put_token(caller, &id, Some(&token))?;
        self.state_mut().entries.tokens.insert(id.clone(), token);
        let token = tokens::text(&id, &secret);
        Ok(NewToken { id, token })
    }

    /// Refuses more tokens than a namespace, or the mesh, may have. Expired ones do not count.
    fn has_room_for_token(&self, namespaces: &BTreeSet<String>) -> Result<(), ApiError> {
        let (state, now) = (self.state(), now().as_secs());
        let valid = || state.entries.tokens.values().filter(|token| token.expires.is_none_or(|expires| now < expires));
        let is_full = |namespace: &String| {
            valid().filter(|token| token.namespaces.contains(namespace)).count() >= MAX_TOKENS_OF_NAMESPACE
        };
        let full = namespaces.iter().find(|namespace| is_full(namespace));
        match full {
            Some(namespace) => Err(ApiError::TooMany(format!(
                "the namespace {namespace} has {MAX_TOKENS_OF_NAMESPACE} tokens; revoke some, or give them a lifetime"
            ))),
            None if valid().count() >= MAX_TOKENS => {
                Err(ApiError::TooMany(format!("there are {MAX_TOKENS} tokens; revoke some, or give them a lifetime")))
            }
            None => Ok(()),
        }
    }

    /// Revokes a token. Blocks on the store.
    pub fn revoke_token(&self, caller: &Caller, id: &str) -> Result<(), ApiError> {
        let not_found = || ApiError::NotFound(format!("token {id}"));
        let token = self.state().entries.tokens.get(id).cloned().ok_or_else(not_found)?;
        caller.may_give(token.role, &token.namespaces)?;
        self.leading()?;
        self.put_token(caller, id, None)?;
        self.state_mut().entries.tokens.remove(id);
        Ok(())
    }

    fn put_token(&self, caller: &Caller, id: &str, token: Option<&Token>) -> Result<(), ApiError> {
        let mut transaction = Transaction::default();
        let key = format!("{TOKENS}{id}");
        let action = match token {
            Some(token) => {
                let value = serde_json::to_vec(token).map_err(|error| ApiError::Unavailable(error.to_string()))?;
                transaction.expect(key.clone(), 0);
                transaction.put(key, value);
                Action::Created
            }
            None => {
                transaction.delete(key);
                Action::Deleted
            }
        };
        let entry = entry(caller, vec![AuditChange { what: format!("token {id}"), action, before: 0 }]);
        audit::add(&mut transaction, &entry)?;
        self.backend.commit(&transaction)?;
        self.log(&entry);
        Ok(())
    }

    /// Creates the first token, and writes it to this file. Blocks on the store.
    pub fn first_token(&self, file: &Path) -> Result<()> {
        if !self.state().entries.tokens.is_empty() {
            return Ok(());
        }
        let (id, secret) = tokens::generate()?;
        // The file comes first: a stored token without its secret would lock all users out.
        tokens::write(file, &tokens::text(&id, &secret))?;
        let (role, namespaces, note) = (Role::Admin, Default::default(), "the first".to_owned());
        let by = "leno control".to_owned();
        let token =
            Token { hash: tokens::hash(&secret), role, namespaces, note, by, created: now().as_secs(), expires: None };
        self.put_token(&Caller::control_plane(), &id, Some(&token)).map_err(|error| anyhow::anyhow!("{error}"))?;
        self.state_mut().entries.tokens.insert(id, token);
        tracing::info!("the first token, of an admin, is in {}", file.display());
        Ok(())
    }

    /// Adds an entry to the file of the audit log, if there is one.
    pub fn log(&self, entry: &AuditEntry) {
        if let Some(lines) = &self.lines {
            lines.add(entry);
        }
    }
}

impl DocumentEntry {
    fn stored(&self, id: &DocumentId) -> StoredDocument {
        let DocumentValue { text, by, at, .. } = &self.value;
        let (document, text) = (id.into(), text.clone());
        StoredDocument { document, version: self.version, by: by.clone(), changed: *at, text }
    }
}

impl Caller {
    /// The control plane itself, at its start.
    pub fn control_plane() -> Self {
        let (name, from) = ("leno control".to_owned(), "its own process".to_owned());
        Self { name, from, role: Role::Admin, namespaces: Default::default() }
    }
}

/// An audit entry with the present time.
pub(super) fn entry(caller: &Caller, changes: Vec<AuditChange>) -> AuditEntry {
    let (by, from) = (caller.name.clone(), caller.from.clone());
    AuditEntry { time: now().as_secs_f64(), by, from, revision: 0, changes }
}

/// The time since 1970.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The key of a document's entry. A namespace is never `-`.
pub(super) fn key(id: &DocumentId) -> String {
    let namespace = if id.namespace.is_empty() { "-" } else { &id.namespace };
    format!("{DOCUMENTS}{}/{namespace}/{}", id.kind, id.name)
}

fn document_of(key: &str) -> Option<DocumentId> {
    let mut parts = key.strip_prefix(DOCUMENTS)?.split('/');
    let (kind, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let namespace = if namespace == "-" { "" } else { namespace };
    let id = DocumentId { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
    // Each document has exactly one key: of two keys, one could not be removed.
    (parts.next().is_none() && self::key(&id) == key).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_one_document() {
        for (kind, namespace, name) in [("Function", "demo", "shop"), ("Mesh", "", "main")] {
            let [kind, namespace, name] = [kind, namespace, name].map(str::to_owned);
            let id = DocumentId { kind, namespace, name };
            assert_eq!(document_of(&key(&id)), Some(id));
        }
        for bad in ["api/documents/a/b", "api/documents/a/b/c/d", "api/documents/Mesh//main", "api/tokens/a/b/c"] {
            assert_eq!(document_of(bad), None, "{bad}");
        }
    }
}
