//! The stored state of a control plane: documents, the revisions of functions, the outcomes of
//! jobs, and records such as tokens. Instances, endpoints and counters are not stored; nodes report
//! them again.
//!
//! There are two back ends: [`Redb`], a file of one control plane, and [`Etcd`], which several
//! control planes share. In etcd, the store has only entries that the documents do not imply.
//!
//! The authority's private key is never stored. Its root certificate is stored: the next process
//! trusts it beside its own new root, until the certificates that it signed have expired. The phase
//! of a rotation is stored too.

mod backend;
mod etcd;
mod redb;

pub use backend::{Backend, Commit, Entry, Limits, Listing, StoreError, Term, Transaction, Watch};
pub use etcd::{Etcd, EtcdOptions};
pub use redb::Redb;

use crate::admission::{Member, Members, Token};
use crate::definitions::{Definitions, Modules};
use crate::history::{Histories, History};
use crate::job::Outcome;
use crate::revocations::Revocation;
use crate::rotation::AuthorityRecord;
use leno_config::Permissions;
use leno_identity::MembershipMark;
use leno_model::{FunctionConfig, FunctionId, GatewayRoutes};
use leno_wire::check_node_name;
use leno_wire::encoding::{from_bytes, to_bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

const MESH: &str = "compiled/mesh";
const ROUTES: &str = "compiled/routes";
const SLICES: &str = "compiled/slices/";
const MODULES: &str = "compiled/modules/";
const REVISIONS: &str = "revisions/";
const OUTCOMES: &str = "outcomes/";
const ROOT: &str = "root";
const AUTHORITY: &str = "authority";
const NODES: &str = "nodes/";
const JOIN_TOKENS: &str = "join-tokens/";
const REVOCATIONS: &str = "revocations/";

/// The control plane's persistent storage. Clones are the same store.
#[derive(Clone)]
pub struct Store(Option<Arc<dyn Backend>>);

impl Store {
    /// A store in memory only. Its entries end with the process.
    pub fn memory() -> Self {
        Self(None)
    }

    /// Opens or creates the file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self::new(Arc::new(Redb::open(path)?)))
    }

    /// A store in this back end.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self(Some(backend))
    }

    /// The definitions that were saved last, for a start without their documents.
    pub(crate) fn definitions(&self) -> Result<Option<Definitions>, StoreError> {
        let Some(backend) = &self.0 else { return Ok(None) };
        let Some(mesh) = backend.get(MESH)? else { return Ok(None) };
        let mesh = decode(&**backend, &mesh)?;
        let routes = backend.get(ROUTES)?.map(|entry| decode(&**backend, &entry)).transpose()?.unwrap_or_default();
        let mut configs = BTreeMap::new();
        for entry in backend.list(SLICES)?.entries {
            configs.insert(function(&**backend, &entry, SLICES)?, decode::<FunctionConfig>(&**backend, &entry)?);
        }
        let mut modules = BTreeMap::new();
        for entry in backend.list(MODULES)?.entries {
            let hash = leno_wire::module_hash(&entry.value);
            if entry.key.strip_prefix(MODULES) != Some(hash.to_string().as_str()) {
                return Err(damaged(&**backend, &entry, "it has another SHA-256"));
            }
            modules.insert(hash, Arc::from(entry.value));
        }
        Ok(Some(Definitions { mesh, configs, routes, modules, permissions: Permissions::default(), secrets: None }))
    }

    /// The revisions that were saved last, by function.
    pub(crate) fn histories(&self) -> Result<Histories, StoreError> {
        let histories: BTreeMap<FunctionId, History> = self.of_functions(REVISIONS)?;
        for (id, history) in &histories {
            if let (Err(error), Some(backend)) = (history.check(id), &self.0) {
                let reason = error.to_string();
                return Err(StoreError::Damaged { store: backend.name(), entry: format!("{REVISIONS}{id}"), reason });
            }
        }
        Ok(Histories(histories))
    }

    /// How jobs ended, by job.
    pub(crate) fn outcomes(&self) -> Result<BTreeMap<FunctionId, Outcome>, StoreError> {
        self.of_functions(OUTCOMES)
    }

    fn of_functions<T: DeserializeOwned>(&self, prefix: &str) -> Result<BTreeMap<FunctionId, T>, StoreError> {
        let Some(backend) = &self.0 else { return Ok(BTreeMap::new()) };
        let entries = backend.list(prefix)?.entries;
        entries.iter().map(|entry| Ok((function(&**backend, entry, prefix)?, decode(&**backend, entry)?))).collect()
    }

    /// Saves a publication, whose revisions were `before`. In a file this is atomic. In etcd it may
    /// take several transactions; after a failure, the next publication saves the missing entries.
    pub(crate) fn save(
        &self,
        definitions: &Definitions,
        modules: &Modules,
        before: &Histories,
        after: &Histories,
    ) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let backend = &**backend;
        let mut transaction = Transaction::default();
        for (id, history) in &after.0 {
            if before.0.get(id) != Some(history) {
                transaction.put(format!("{REVISIONS}{id}"), encode(backend, history)?);
            }
        }
        for id in before.0.keys().filter(|id| !after.0.contains_key(*id)) {
            transaction.delete(format!("{REVISIONS}{id}"));
        }
        let run = |(id, config)| Some((id, after.0.get(id)?.run_of(config)?));
        let runs: BTreeMap<&FunctionId, String> = definitions.configs.iter().filter_map(run).collect();
        for (id, outcome) in self.outcomes()? {
            // A job that goes back to an earlier definition runs again.
            if runs.get(&id) != Some(&outcome.report.run) {
                transaction.delete(format!("{OUTCOMES}{id}"));
            }
        }
        if !backend.is_shared() {
            let mut wanted = BTreeMap::from([(MESH.to_owned(), encode(backend, &definitions.mesh)?)]);
            if !definitions.routes.is_empty() {
                wanted.insert(ROUTES.to_owned(), encode(backend, &definitions.routes)?);
            }
            for (id, config) in &definitions.configs {
                wanted.insert(format!("{SLICES}{id}"), encode(backend, config)?);
            }
            wanted.extend(modules.iter().map(|(hash, module)| (format!("{MODULES}{hash}"), module.to_vec())));
            for entry in backend.list("compiled/")?.entries {
                match wanted.remove(&entry.key) {
                    Some(value) if value == entry.value => {}
                    Some(value) => transaction.put(entry.key, value),
                    None => transaction.delete(entry.key),
                }
            }
            wanted.into_iter().for_each(|(key, value)| transaction.put(key, value));
        }
        commit_in_parts(backend, transaction)
    }

    /// Adds or replaces one function.
    pub(crate) fn put(&self, config: &FunctionConfig, history: &History) -> Result<(), StoreError> {
        self.change(&[(config, history)], &[], None)
    }

    /// Adds, replaces and removes functions, and replaces the routes of gateways, in the way of
    /// [`Store::save`].
    pub(crate) fn change(
        &self,
        kept: &[(&FunctionConfig, &History)],
        removed: &[FunctionId],
        routes: Option<&GatewayRoutes>,
    ) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let backend = &**backend;
        let mut transaction = Transaction::default();
        for (config, history) in kept {
            let id = &config.id;
            if !backend.is_shared() {
                transaction.put(format!("{SLICES}{id}"), encode(backend, config)?);
            }
            transaction.put(format!("{REVISIONS}{id}"), encode(backend, history)?);
            let key = format!("{OUTCOMES}{id}");
            let outcome = backend.get(&key)?.map(|entry| decode::<Outcome>(backend, &entry)).transpose()?;
            if outcome.is_some_and(|outcome| history.run_of(config).as_ref() != Some(&outcome.report.run)) {
                transaction.delete(key);
            }
        }
        match routes.filter(|_| !backend.is_shared()) {
            Some(routes) if routes.is_empty() => transaction.delete(ROUTES.to_owned()),
            Some(routes) => transaction.put(ROUTES.to_owned(), encode(backend, routes)?),
            None => {}
        }
        for id in removed {
            for prefix in [SLICES, REVISIONS, OUTCOMES] {
                transaction.delete(format!("{prefix}{id}"));
            }
        }
        commit_in_parts(backend, transaction)
    }

    /// Replaces the revisions of all functions and the outcomes of all jobs.
    pub(crate) fn replace(&self, histories: &Histories, outcomes: &[(FunctionId, Outcome)]) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let backend = &**backend;
        let mut wanted = BTreeMap::new();
        for (id, history) in &histories.0 {
            wanted.insert(format!("{REVISIONS}{id}"), encode(backend, history)?);
        }
        for (id, outcome) in outcomes {
            wanted.insert(format!("{OUTCOMES}{id}"), encode(backend, outcome)?);
        }
        let mut transaction = Transaction::default();
        for prefix in [REVISIONS, OUTCOMES] {
            let entries = backend.list(prefix)?.entries.into_iter().map(|entry| entry.key);
            entries.filter(|key| !wanted.contains_key(key)).for_each(|key| transaction.delete(key));
        }
        wanted.into_iter().for_each(|(key, value)| transaction.put(key, value));
        commit_in_parts(backend, transaction)
    }

    /// Replaces the revisions of a job that is to run again, and forgets its outcome. `noted` is
    /// stored atomically with it.
    pub(crate) fn rerun(&self, id: &FunctionId, history: &History, noted: Transaction) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let mut transaction = noted;
        transaction.put(format!("{REVISIONS}{id}"), encode(&**backend, history)?);
        transaction.delete(format!("{OUTCOMES}{id}"));
        backend.commit(&transaction).map(drop)
    }

    /// Saves the revisions of a function together with other changes.
    pub(crate) fn steer(&self, id: &FunctionId, history: &History, mut noted: Transaction) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        noted.put(format!("{REVISIONS}{id}"), encode(&**backend, history)?);
        backend.commit(&noted).map(drop)
    }

    /// Replaces the revisions of one function.
    pub(crate) fn put_history(&self, id: &FunctionId, history: &History) -> Result<(), StoreError> {
        self.put_one(&format!("{REVISIONS}{id}"), history)
    }

    /// Removes the revisions of all functions, which belong to another trust domain.
    pub(crate) fn forget_histories(&self) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let mut transaction = Transaction::default();
        backend.list(REVISIONS)?.entries.into_iter().for_each(|entry| transaction.delete(entry.key));
        commit_in_parts(&**backend, transaction)
    }

    /// Saves how a job ended. The outcome is kept until the job's definition changes.
    pub(crate) fn save_outcome(&self, id: &FunctionId, outcome: &Outcome) -> Result<(), StoreError> {
        self.put_one(&format!("{OUTCOMES}{id}"), outcome)
    }

    /// Nodes that joined, join tokens, and revoked memberships. A node or a token whose entry
    /// cannot be read is skipped and logged. A revocation that cannot be read is an error, because
    /// the node would be trusted again.
    pub(crate) fn members(&self) -> Result<Members, StoreError> {
        let Some(backend) = &self.0 else { return Ok(Members::default()) };
        let backend = &**backend;
        let mut members = Members::default();
        for entry in backend.list(NODES)?.entries {
            match member(backend, &entry) {
                Ok((name, member)) => drop(members.members.insert(name, member)),
                Err(error) => tracing::error!(%error, "this node is no member any more; have it join again"),
            }
        }
        for entry in backend.list(JOIN_TOKENS)?.entries {
            match join_token(backend, &entry) {
                Ok((hash, token)) => drop(members.tokens.insert(hash, token)),
                Err(error) => tracing::error!(%error, "this join token is not valid any more; make another one"),
            }
        }
        for entry in backend.list(REVOCATIONS)?.entries {
            let (mark, revocation) = revocation(backend, &entry)?;
            members.revocations.0.insert(mark, revocation);
        }
        Ok(members)
    }

    /// Saves the differences. Nodes that were admitted within the process end with it and are not
    /// saved.
    pub(crate) fn save_members(
        &self,
        before: &Members,
        after: &Members,
        mut transaction: Transaction,
    ) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let backend = &**backend;
        let joined = |members: &Members| -> BTreeMap<Arc<str>, Member> {
            let joined = members.members.iter().filter(|(_, member)| member.joined_by.is_some());
            joined.map(|(name, member)| (name.clone(), member.clone())).collect()
        };
        let (nodes_before, nodes) = (joined(before), joined(after));
        for (name, member) in nodes.iter().filter(|(name, member)| nodes_before.get(*name) != Some(*member)) {
            transaction.put(format!("{NODES}{name}"), encode(backend, member)?);
        }
        for name in nodes_before.keys().filter(|name| !nodes.contains_key(*name)) {
            transaction.delete(format!("{NODES}{name}"));
        }
        for (hash, token) in after.tokens.iter().filter(|(hash, token)| before.tokens.get(*hash) != Some(*token)) {
            transaction.put(format!("{JOIN_TOKENS}{}", hex(hash)), encode(backend, token)?);
        }
        for hash in before.tokens.keys().filter(|hash| !after.tokens.contains_key(*hash)) {
            transaction.delete(format!("{JOIN_TOKENS}{}", hex(hash)));
        }
        let (revoked_before, revoked) = (&before.revocations.0, &after.revocations.0);
        for (mark, revocation) in
            revoked.iter().filter(|(mark, revocation)| revoked_before.get(*mark) != Some(*revocation))
        {
            transaction.put(format!("{REVOCATIONS}{}", hex(&mark.0)), encode(backend, revocation)?);
        }
        for mark in revoked_before.keys().filter(|mark| !revoked.contains_key(*mark)) {
            transaction.delete(format!("{REVOCATIONS}{}", hex(&mark.0)));
        }
        commit_in_parts(backend, transaction)
    }

    /// The root certificate (DER) of the process that last used this store.
    pub(crate) fn root(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(backend) = &self.0 else { return Ok(None) };
        Ok(backend.get(ROOT)?.map(|entry| entry.value))
    }

    /// The stored state of the authority; `None`: the store is of a release without it.
    pub(crate) fn authority(&self) -> Result<Option<AuthorityRecord>, StoreError> {
        let Some(backend) = &self.0 else { return Ok(None) };
        backend.get(AUTHORITY)?.map(|entry| decode(&**backend, &entry)).transpose()
    }

    /// Saves the state of the authority, and the root (DER) of the one that signs.
    pub(crate) fn save_authority(&self, remembered: &AuthorityRecord, root: &[u8]) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let mut transaction = Transaction::default();
        transaction.put(ROOT, root);
        transaction.put(AUTHORITY, encode(&**backend, remembered)?);
        backend.commit(&transaction).map(drop)
    }

    fn put_one(&self, key: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let Some(backend) = &self.0 else { return Ok(()) };
        let mut transaction = Transaction::default();
        transaction.put(key, encode(&**backend, value)?);
        backend.commit(&transaction).map(drop)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    // Only the canonical text of these bytes is accepted. Another one would stay when the entry is
    // removed.
    (hex(&bytes) == text).then_some(bytes)
}

/// Commits changes that do not have to be atomic together.
fn commit_in_parts(backend: &dyn Backend, transaction: Transaction) -> Result<(), StoreError> {
    if transaction.changes.is_empty() {
        return Ok(());
    }
    if transaction.check(backend.limits()).is_ok() {
        return backend.commit(&transaction).map(drop);
    }
    let mut part = Transaction::default();
    for change in transaction.changes {
        part.changes.push(change);
        if part.check(backend.limits()).is_err() {
            let last = part.changes.split_off(part.changes.len() - 1);
            if !part.changes.is_empty() {
                backend.commit(&part)?;
            }
            part.changes = last;
        }
    }
    backend.commit(&part).map(drop)
}

/// Names of fields are stored, so that entries stay readable when a field is added.
fn encode(backend: &dyn Backend, value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let encoded = to_bytes(value);
    encoded.map_err(|error| StoreError::Failed { store: backend.name(), reason: error.to_string() })
}

fn decode<T: DeserializeOwned>(backend: &dyn Backend, entry: &Entry) -> Result<T, StoreError> {
    from_bytes(&entry.value).map_err(|error| damaged(backend, entry, &error.to_string()))
}

fn member(backend: &dyn Backend, entry: &Entry) -> Result<(Arc<str>, Member), StoreError> {
    let name = entry.key.strip_prefix(NODES).unwrap_or_default();
    check_node_name(name).map_err(|error| damaged(backend, entry, &error.to_string()))?;
    let member: Member = decode(backend, entry)?;
    if member.joined_by.is_none() {
        return Err(damaged(backend, entry, "it does not say by which token the node joined"));
    }
    Ok((name.into(), member))
}

fn join_token(backend: &dyn Backend, entry: &Entry) -> Result<([u8; 32], Token), StoreError> {
    let hash = entry.key.strip_prefix(JOIN_TOKENS).and_then(from_hex);
    let hash = hash.ok_or_else(|| damaged(backend, entry, "its key is not a SHA-256"))?;
    Ok((hash, decode(backend, entry)?))
}

fn revocation(backend: &dyn Backend, entry: &Entry) -> Result<(MembershipMark, Revocation), StoreError> {
    let mark = entry.key.strip_prefix(REVOCATIONS).and_then(from_hex);
    let mark = mark.ok_or_else(|| damaged(backend, entry, "its key is not the mark of a membership"))?;
    Ok((MembershipMark(mark), decode(backend, entry)?))
}

/// The function of an entry.
fn function(backend: &dyn Backend, entry: &Entry, prefix: &str) -> Result<FunctionId, StoreError> {
    let id = entry.key.strip_prefix(prefix).and_then(|id| id.parse().ok());
    id.ok_or_else(|| damaged(backend, entry, "its key names no function"))
}

fn damaged(backend: &dyn Backend, entry: &Entry, reason: &str) -> StoreError {
    StoreError::Damaged { store: backend.name(), entry: entry.key.clone(), reason: reason.to_owned() }
}
