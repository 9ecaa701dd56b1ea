//! The control plane that leads: it takes changes of documents, stores them and puts them into force.
//!
//! A change is checked with all other documents before anything is stored, as files are before `leno up` takes them.

use super::asked;
use super::audit;
use super::error::ApiError;
use super::quota::Namespaces;
use super::service::{DocumentValue, Kept, Service, entry, key, now};
use super::tokens::Caller;
use super::types::{Action, AuditChange, ChangeAnswer, ChangeRequest, Changed, NamespaceStatus, Replay, Role, Wrong};
use crate::images::{Outcome, Tags, Unknown};
use crate::{authority_file, check, images};
use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use leno_config::{CandidatePrograms, Document, DocumentId, FunctionId, Problem, Slice, Snapshot};
use leno_control::{Authorities, Control, Definitions, Store, StoreError, Transaction};
use leno_identity::{Authority, AuthorityFile, TrustDomain};
use leno_proxy::modules::Modules;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::block_in_place;

/// Changes after which the audit log is looked through for entries that are too old.
const TRIM_EVERY: u32 = 500;

/// What is there while a control plane leads.
pub(crate) struct Leading {
    pub control: Control,
    /// Where the authority's key is; `None`: in memory only.
    pub(super) authority_file: Option<AuthorityFile>,
    /// The rotation after which keys that are not needed any more were removed from that file, 0: before any; `None`: never since the start.
    pub(super) tidied: std::sync::Mutex<Option<u64>>,
    /// What is compiled to see whether it can be.
    modules: Modules,
    /// The namespaces of the documents in force.
    namespaces: ArcSwap<Namespaces>,
    /// Locked for a whole change: one is checked against what the one before it has left.
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Writer {
    documents: BTreeMap<DocumentId, Document>,
    /// Stored documents that cannot be read, and why. Until they are replaced or deleted nothing else changes.
    broken: BTreeMap<DocumentId, Vec<Problem>>,
    in_force: Option<Definitions>,
    /// The store may have something else than `documents`, or than what is in force.
    stale: bool,
    since_trimmed: u32,
}

/// A change that was checked.
struct Checked {
    /// All documents, as they would be.
    documents: BTreeMap<DocumentId, Document>,
    actions: Vec<(DocumentId, Action, Option<Document>)>,
    snapshot: Snapshot,
    namespaces: Namespaces,
}

/// What became of a change.
enum Attempt {
    Made(ChangeAnswer),
    /// Nothing yet: it depends on what tags of images mean.
    Asks(Unknown),
}

impl Leading {
    /// Begins to lead: with the trust domain of the stored Mesh document, and what the store has of earlier. Blocks on the store.
    pub(crate) fn begin(service: &Service, authority: &authority_file::OfControl) -> Result<Arc<Self>> {
        let trust_domain = trust_domain(service)?;
        let store = Store::new(service.backend.clone());
        let file = authority.file(&trust_domain)?;
        let authorities = match &file {
            Some(file) => Authorities {
                held: file.open()?,
                file: Some(file.path().display().to_string()),
                replace: authority.replaces(),
            },
            None => {
                tracing::warn!(
                    "the authority's key is in memory only: nodes have to join again when the control plane is started again; give --ca"
                );
                Authorities { replace: authority.replaces(), ..Authorities::in_memory(Authority::new(&trust_domain)?) }
            }
        };
        let control = Control::with_authorities(authorities, store, leno_control::Options::default())?;
        let writer = Writer { stale: true, since_trimmed: TRIM_EVERY, ..Writer::default() };
        let (modules, tidied, namespaces) = Default::default();
        let writer = Mutex::new(writer);
        Ok(Arc::new(Self { control, authority_file: file, tidied, modules, namespaces, writer }))
    }

    /// Puts the stored documents into force if they are not. What is wrong with them is told by the service.
    pub(crate) async fn put_into_force(&self, service: &Service) -> Result<(), ApiError> {
        let mut writer = self.writer.lock().await;
        self.refresh(service, &mut writer).await
    }

    async fn refresh(&self, service: &Service, writer: &mut Writer) -> Result<(), ApiError> {
        if !writer.stale {
            return Ok(());
        }
        block_in_place(|| {
            service.read()?;
            let state = service.state();
            (writer.documents, writer.broken) = read_all(&state.documents);
            Ok::<_, StoreError>(())
        })?;
        let outcome = self.publish_stored(writer).await;
        match &outcome {
            Ok(()) => {
                writer.stale = false;
                service.state_mut().not_in_force.clear();
            }
            Err(ApiError::Problems(problems)) => {
                for problem in problems {
                    tracing::error!("{problem}");
                }
                tracing::error!("the stored documents are not in force; what was before goes on");
                service.state_mut().not_in_force.clone_from(problems);
            }
            Err(error) => tracing::error!(%error, "the stored documents are not in force; what was before goes on"),
        }
        outcome
    }

    async fn publish_stored(&self, writer: &mut Writer) -> Result<(), ApiError> {
        if !writer.broken.is_empty() {
            return Err(ApiError::Problems(writer.broken.values().flatten().cloned().collect()));
        }
        let snapshot = block_in_place(|| self.compile(&writer.documents))?;
        let definitions = images::resolve(&self.control, &snapshot).await.map_err(ApiError::Problems)?;
        let published = block_in_place(|| self.control.publish(&definitions))?;
        tracing::info!(
            documents = writer.documents.len(),
            functions = published.functions,
            changed = published.changed,
            "the stored documents are in force"
        );
        writer.in_force = Some(definitions);
        self.namespaces.store(Arc::new(Namespaces::of(&writer.documents, &snapshot)));
        Ok(())
    }

    /// The use that each namespace makes of its quota.
    pub(super) fn namespaces(&self) -> Vec<NamespaceStatus> {
        self.namespaces.load().status(&self.control.status().functions)
    }

    /// Whether something is in force that nodes can be given.
    pub(crate) fn has_definitions(&self) -> bool {
        self.control.has_definitions()
    }

    /// Checks a change, and unless it is a dry run stores it and puts it into force.
    pub(crate) async fn change(
        &self,
        service: &Service,
        caller: &Caller,
        request: ChangeRequest,
    ) -> Result<ChangeAnswer, ApiError> {
        caller.needs(if request.dry_run { Role::Reader } else { Role::Editor })?;
        if request.replay && !request.dry_run {
            return Err(ApiError::Bad("`replay` is for dry runs: it tells what a change would do".to_owned()));
        }
        let mut tags = Tags::default();
        loop {
            match self.try_change(service, caller, &request, &tags).await? {
                Attempt::Made(answer) => return Ok(answer),
                // Registries may be slow, and other changes do not wait for them.
                Attempt::Asks(unknown) => unknown.ask(&mut tags).await.map_err(ApiError::Problems)?,
            }
        }
    }

    async fn try_change(
        &self,
        service: &Service,
        caller: &Caller,
        request: &ChangeRequest,
        tags: &Tags,
    ) -> Result<Attempt, ApiError> {
        let mut writer = self.writer.lock().await;
        // Stored documents that are wrong stay so until this change, or another one, mends them.
        if let Err(error) = self.refresh(service, &mut writer).await
            && !matches!(error, ApiError::Problems(_))
        {
            return Err(error);
        }
        let mut files: BTreeSet<String> = request.apply.iter().map(|file| file.name.clone()).collect();
        // Problems of a stored document are told by its name. A file of that name in the request does not let anybody see them.
        files.retain(|file| !service.state().documents.keys().any(|id| id.to_string() == *file));
        let checked = block_in_place(|| self.checked(service, &writer, caller, request));
        let Checked { documents, actions, snapshot, namespaces } =
            checked.map_err(|error| error.without_what_is_hidden(caller, &files))?;
        let is_change = actions.iter().any(|(_, action, _)| *action != Action::Unchanged);
        let warnings = warnings(&snapshot, &files, writer.in_force.as_ref());
        let mut answer =
            ChangeAnswer { revision: None, documents: Vec::new(), functions: Vec::new(), warnings, replay: None };
        let text = |id: &DocumentId| service.state().documents.get(id).map(|kept| kept.value.text.clone());
        for (id, action, document) in &actions {
            let (before, after) = (text(id), document.as_ref().map(|document| document.text().to_owned()));
            let shown = |text: Option<String>| text.filter(|_| request.dry_run);
            answer.documents.push(Changed {
                document: id.into(),
                action: *action,
                before: shown(before),
                after: shown(after),
            });
        }
        if !is_change && !writer.stale {
            return Ok(Attempt::Made(answer));
        }
        let definitions = if request.dry_run {
            // Registries are not asked.
            let slices = snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.slice(id)?))).collect();
            Definitions { mesh: snapshot.mesh_slice().clone(), slices, modules: snapshot.modules().clone() }
        } else {
            match block_in_place(|| images::define(&self.control, &snapshot, tags)).map_err(ApiError::Problems)? {
                Outcome::Defined(definitions) => *definitions,
                Outcome::Asks(unknown) => return Ok(Attempt::Asks(unknown)),
            }
        };
        let (differing, removed) = difference(writer.in_force.as_ref(), &definitions);
        let names = differing.iter().map(|slice| &slice.id).chain(&removed);
        answer.functions = names.map(ToString::to_string).collect();
        if request.dry_run {
            block_in_place(|| self.control.check(&definitions))?;
            let candidates = candidates(writer.in_force.as_ref(), &differing);
            // Others may change documents meanwhile.
            drop(writer);
            if request.replay {
                answer.replay = Some(self.replay(caller, candidates).await);
            }
            return Ok(Attempt::Made(answer));
        }
        let committed = block_in_place(|| self.commit(service, &mut writer, caller, &actions, &definitions));
        answer.revision = Some(committed?);
        self.namespaces.store(Arc::new(namespaces));
        writer.documents = documents;
        writer.broken.clear();
        writer.in_force = Some(definitions);
        writer.stale = false;
        service.state_mut().not_in_force.clear();
        self.trim(service, &mut writer);
        Ok(Attempt::Made(answer))
    }

    /// Has recorded requests judged by these programs, as far as the caller may know of them.
    async fn replay(&self, caller: &Caller, mut candidates: Vec<CandidatePrograms>) -> Replay {
        let all = candidates.len();
        if !caller.is_everywhere() {
            candidates.retain(|candidate| caller.namespaces.contains(&candidate.id.namespace));
        }
        let hidden = all - candidates.len();
        Replay { hidden, ..asked::replay(&self.control, candidates).await }
    }

    fn checked(
        &self,
        service: &Service,
        writer: &Writer,
        caller: &Caller,
        request: &ChangeRequest,
    ) -> Result<Checked, ApiError> {
        let mut given: BTreeMap<DocumentId, Document> = BTreeMap::new();
        let mut problems = Vec::new();
        for file in &request.apply {
            match Document::read(Path::new(&file.name), &file.text) {
                Ok(documents) => {
                    for document in documents {
                        let id = document.id().clone();
                        if given.insert(id.clone(), document).is_some() {
                            return Err(ApiError::Bad(format!("{id} is there twice")));
                        }
                    }
                }
                Err(found) => problems.extend(found),
            }
        }
        if !problems.is_empty() {
            return Err(ApiError::Problems(problems));
        }
        let state = service.state();
        let version = |id: &DocumentId| state.documents.get(id).map_or(0, |kept| kept.version);
        for expected in &request.expect {
            let id = DocumentId::from(expected.document.clone());
            if !caller.may_read(&id) {
                return Err(ApiError::Forbidden(format!("{id} is not for this token")));
            }
            if version(&id) != expected.version {
                return Err(ApiError::Conflict(id.to_string()));
            }
        }
        let (mut documents, mut actions) = (writer.documents.clone(), Vec::new());
        let mut named: BTreeSet<DocumentId> = given.keys().cloned().collect();
        let mut broken: BTreeSet<&DocumentId> = writer.broken.keys().collect();
        for (id, document) in given {
            caller.may_write(&id, &document.reach())?;
            broken.remove(&id);
            let before = documents.get(&id);
            if let Some(before) = before {
                // What is replaced may have reached further.
                caller.may_write(&id, &before.reach())?;
            }
            let action = match before {
                Some(before) if before.text() == document.text() => Action::Unchanged,
                _ if version(&id) > 0 => Action::Changed,
                _ => Action::Created,
            };
            documents.insert(id.clone(), document.clone());
            actions.push((id, action, Some(document)));
        }
        for name in &request.delete {
            let id = DocumentId::from(name.clone());
            if !named.insert(id.clone()) {
                return Err(ApiError::Bad(format!("{id} is there twice")));
            }
            if version(&id) == 0 || !caller.may_read(&id) {
                return Err(ApiError::NotFound(id.to_string()));
            }
            if let Some(before) = documents.remove(&id) {
                caller.may_write(&id, &before.reach())?;
            } else if !caller.is_everywhere() {
                return Err(ApiError::Forbidden(format!(
                    "{id} cannot be read, so only a token for everything can delete it"
                )));
            }
            broken.remove(&id);
            actions.push((id, Action::Deleted, None));
        }
        if actions.is_empty() {
            return Err(ApiError::Bad("there is no document in the request".to_owned()));
        }
        if !broken.is_empty() {
            let problems = broken.iter().filter_map(|id| writer.broken.get(id)).flatten();
            return Err(ApiError::Problems(problems.cloned().collect()));
        }
        drop(state);
        let snapshot = self.compile(&documents)?;
        let namespaces = Namespaces::of(&documents, &snapshot);
        namespaces.check(&self.namespaces.load())?;
        // From now on problems are told by the stored text.
        for (id, action, document) in &mut actions {
            if let Some(document) = document
                && *action != Action::Unchanged
            {
                *document = Document::restore(id, document.text()).map_err(ApiError::Problems)?;
                documents.insert(id.clone(), document.clone());
            }
        }
        Ok(Checked { documents, actions, snapshot, namespaces })
    }

    fn compile(&self, documents: &BTreeMap<DocumentId, Document>) -> Result<Snapshot, ApiError> {
        let snapshot = Snapshot::of_documents(documents.values()).map_err(ApiError::Problems)?;
        let problems = check::compile(&snapshot, &self.modules);
        if problems.is_empty() { Ok(snapshot) } else { Err(ApiError::Problems(problems)) }
    }

    /// Stores the documents and puts the definitions into force. Returns the revision.
    fn commit(
        &self,
        service: &Service,
        writer: &mut Writer,
        caller: &Caller,
        actions: &[(DocumentId, Action, Option<Document>)],
        definitions: &Definitions,
    ) -> Result<u64, ApiError> {
        let (mut transaction, mut changes, at) = (Transaction::default(), Vec::new(), now().as_secs_f64());
        let versions: BTreeMap<&DocumentId, u64> = {
            let state = service.state();
            let version = |id| state.documents.get(id).map_or(0, |kept: &Kept| kept.version);
            actions.iter().map(|(id, ..)| (id, version(id))).collect()
        };
        for (id, action, document) in actions.iter().filter(|(_, action, _)| *action != Action::Unchanged) {
            let before = versions.get(id).copied().unwrap_or_default();
            let value = document.as_ref().map(|document| {
                let value = DocumentValue { text: document.text().to_owned(), by: caller.name.clone(), at };
                serde_json::to_vec(&value)
            });
            let value = value.transpose().map_err(|error| ApiError::Unavailable(error.to_string()))?;
            transaction.expect(key(id), before);
            transaction.changes.push((key(id), value));
            changes.push(AuditChange { what: id.to_string(), action: *action, before });
        }
        let entry = entry(caller, changes);
        audit::add(&mut transaction, &entry)?;
        let mut revision = None;
        let commit = || {
            revision = Some(service.backend.commit(&transaction)?);
            Ok::<_, ApiError>(())
        };
        let (differing, removed) = difference(writer.in_force.as_ref(), definitions);
        let same_mesh = writer.in_force.as_ref().is_some_and(|before| {
            (&before.mesh, &before.modules) == (&definitions.mesh, &definitions.modules) && !writer.stale
        });
        let published = if same_mesh {
            // What did not change is not encoded again, which takes longest where there are many functions.
            self.control.change_after(&differing, &removed, commit)
        } else {
            self.control.publish_after(definitions, commit).map(drop)
        };
        match (published, revision) {
            (Ok(()), Some(revision)) => {
                let (changed, removed) = (differing.len(), removed.len());
                tracing::info!(revision, by = caller.name, changed, removed, "documents have changed");
                self.remember(service, actions, caller, revision, at);
                service.log(&entry);
                Ok(revision)
            }
            (Err(error), Some(revision)) => {
                writer.stale = true;
                service.log(&entry);
                Err(ApiError::Unavailable(format!("stored as revision {revision}, and not in force yet: {error}")))
            }
            (Err(error), None) => {
                // Perhaps it was stored and the answer was lost.
                writer.stale = true;
                Err(error)
            }
            (Ok(()), None) => Err(ApiError::Unavailable("nothing was stored".to_owned())),
        }
    }

    fn remember(
        &self,
        service: &Service,
        actions: &[(DocumentId, Action, Option<Document>)],
        caller: &Caller,
        revision: u64,
        at: f64,
    ) {
        let mut state = service.state_mut();
        state.revision = revision;
        for (id, action, document) in actions {
            match (action, document) {
                (Action::Unchanged, _) => {}
                (_, Some(document)) => {
                    let value = DocumentValue { text: document.text().to_owned(), by: caller.name.clone(), at };
                    state.documents.insert(id.clone(), Kept { version: revision, value });
                }
                (_, None) => drop(state.documents.remove(id)),
            }
        }
    }

    fn trim(&self, service: &Service, writer: &mut Writer) {
        writer.since_trimmed += 1;
        if writer.since_trimmed < TRIM_EVERY {
            return;
        }
        writer.since_trimmed = 0;
        if let Err(error) = block_in_place(|| audit::trim(&*service.backend)) {
            tracing::warn!(%error, "old entries of the audit log are not removed yet");
        }
    }
}

impl ApiError {
    /// Hides what is said of stored documents that a caller may not read.
    fn without_what_is_hidden(self, caller: &Caller, files: &BTreeSet<String>) -> Self {
        let Self::Problems(problems) = self else { return self };
        if caller.is_everywhere() {
            return Self::Problems(problems);
        }
        let shown = |problem: &Problem| {
            let file = problem.file.to_string_lossy();
            let namespace =
                file.split_once(' ').and_then(|(_, name)| name.split_once('/')).map(|(namespace, _)| namespace);
            files.contains(&*file) || namespace.is_some_and(|namespace| caller.namespaces.contains(namespace))
        };
        let (mut shown, hidden): (Vec<_>, Vec<_>) = problems.into_iter().partition(shown);
        if !hidden.is_empty() {
            shown.push(Problem {
                file: "documents of other namespaces".into(),
                line: 0,
                column: 0,
                field: String::new(),
                message: "they would not be right any more, and this token may not read them".to_owned(),
                fix: "ask somebody with a token for the whole mesh".to_owned(),
            });
        }
        Self::Problems(shown)
    }
}

/// Reads all stored documents, as far as they can be.
fn read_all(
    stored: &BTreeMap<DocumentId, Kept>,
) -> (BTreeMap<DocumentId, Document>, BTreeMap<DocumentId, Vec<Problem>>) {
    let (mut documents, mut broken) = (BTreeMap::new(), BTreeMap::new());
    for (id, kept) in stored {
        match Document::restore(id, &kept.value.text) {
            Ok(document) => drop(documents.insert(id.clone(), document)),
            Err(problems) => drop(broken.insert(id.clone(), problems)),
        }
    }
    (documents, broken)
}

/// The trust domain of the stored Mesh document, or what holds without one.
fn trust_domain(service: &Service) -> Result<TrustDomain> {
    let state = service.state();
    let mesh = state.documents.iter().find(|(id, _)| id.kind == "Mesh");
    let document = mesh.map(|(id, kept)| Document::restore(id, &kept.value.text));
    let snapshot = match document {
        Some(document) => document.and_then(|document| Snapshot::of_documents([&document])),
        None => Snapshot::of_documents([]),
    };
    match snapshot {
        Ok(snapshot) => Ok(snapshot.mesh_slice().trust_domain.parse()?),
        // Another trust domain than before would give every function another identity.
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::bail!("the stored Mesh document cannot be used: {}", lines.join("; "))
        }
    }
}

/// Stores the first Mesh document, if there is none. Blocks on the store.
pub(crate) fn first_mesh(service: &Service, file: &Path) -> Result<()> {
    if service.state().documents.keys().any(|id| id.kind == "Mesh") {
        return Ok(());
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let told = |problems: Vec<Problem>| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("\n"))
    };
    let documents = Document::read(file, &text).map_err(told)?;
    let [document] = &documents[..] else { anyhow::bail!("{}: expected one Mesh document", file.display()) };
    anyhow::ensure!(
        document.id().kind == "Mesh",
        "{}: expected a Mesh document, found {}",
        file.display(),
        document.id()
    );
    Snapshot::of_documents([document]).map_err(told)?;
    let (id, caller) = (document.id().clone(), Caller::control_plane());
    let value = DocumentValue { text: document.text().to_owned(), by: caller.name.clone(), at: now().as_secs_f64() };
    let mut transaction = Transaction::default();
    transaction.expect(key(&id), 0);
    transaction.put(key(&id), serde_json::to_vec(&value)?);
    let entry = entry(&caller, vec![AuditChange { what: id.to_string(), action: Action::Created, before: 0 }]);
    audit::add(&mut transaction, &entry)?;
    let version = service.backend.commit(&transaction)?;
    service.log(&entry);
    service.state_mut().documents.insert(id, Kept { version, value });
    Ok(())
}

/// Warnings about documents of the request, and about what nodes take up only when they are started again.
fn warnings(snapshot: &Snapshot, files: &BTreeSet<String>, in_force: Option<&Definitions>) -> Vec<Wrong> {
    let of_request = |problem: &&Problem| files.contains(&*problem.file.to_string_lossy());
    let mut warnings: Vec<Wrong> = snapshot.warnings().iter().filter(of_request).map(Wrong::from).collect();
    if let Some(in_force) = in_force {
        for field in in_force.mesh.fixed_at_start(snapshot.mesh_slice()) {
            let message = "each node takes this up when it is started again";
            warnings.push(Wrong::from(&snapshot.mesh_problem(field, message)));
        }
    }
    warnings
}

/// The programs among these slices that may decide requests differently than those in force. A function that is new has no requests yet.
fn candidates(before: Option<&Definitions>, differing: &[&Slice]) -> Vec<CandidatePrograms> {
    let before = |id: &FunctionId| before.and_then(|before| before.slices.get(id)).map(CandidatePrograms::of);
    let candidates = differing.iter().map(|slice| CandidatePrograms::of(slice));
    candidates.filter(|candidate| before(&candidate.id).is_some_and(|before| candidate.differs(&before))).collect()
}

/// Slices that are new or differ, and functions that are gone.
fn difference<'a>(before: Option<&Definitions>, after: &'a Definitions) -> (Vec<&'a Slice>, Vec<FunctionId>) {
    let nothing = BTreeMap::new();
    let before: &BTreeMap<FunctionId, Slice> = before.map_or(&nothing, |before| &before.slices);
    let differing = after.slices.iter().filter(|(id, slice)| before.get(*id) != Some(slice));
    let removed = before.keys().filter(|id| !after.slices.contains_key(*id));
    (differing.map(|(_, slice)| slice).collect(), removed.cloned().collect())
}
