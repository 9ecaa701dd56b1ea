//! The control plane that leads: it takes changes of documents, stores them and puts them into force.
//!
//! A change is checked with all other documents before anything is stored, as files are before `leno up` takes them. It is checked in its tenant's turn, against the
//! documents as they are when it begins, while others may change them; it is stored if they have not.

mod checked;

use super::audit;
use super::error::ApiError;
use super::queries;
use super::quota::Namespaces;
use super::service::{DocumentValue, Kept, Service, entry, key, now};
use super::tokens::Caller;
use super::turns::{Limits, Turn, Turns};
use super::types::{Action, AuditChange, ChangeAnswer, ChangeRequest, NamespaceStatus, Replay, Role};
use super::worker::apart;
use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use checked::{Checked, Documents, Outcome, difference, in_order};
use leno_config::{CandidatePrograms, Document, DocumentId, Effort, Problem, Snapshot};
use leno_control::{Authorities, Control, Definitions, Status, Store, StoreError, Transaction};
use leno_identity::{Authority, AuthorityFile, TrustDomain};
use leno_intake::{Intake, Tags};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::block_in_place;

/// Changes after which the audit log is looked through for entries that are too old.
const TRIM_EVERY: u32 = 500;
/// Changes that are checked at a time, and dry runs. None needs a lock that another one has.
const CHANGES: Limits = Limits { all: 3, of_tenant: 1, waiting: 16 };
const DRY_RUNS: Limits = Limits { all: 1, of_tenant: 1, waiting: 4 };
/// Dry runs that wait for nodes to replay requests.
const REPLAYS: Limits = Limits { all: 4, of_tenant: 1, waiting: 4 };
/// How long a check may take.
const CHECK: Duration = Duration::from_secs(15);
/// How often a change is checked again because others came first. Then others wait, not as long.
const CHECKS: u32 = 4;
const CHECK_ALONE: Duration = Duration::from_secs(5);

/// What is there while a control plane leads.
pub struct Leading {
    /// The control plane.
    pub control: Control,
    /// Where the authority's key is; `None`: in memory only.
    pub(super) authority_file: Option<AuthorityFile>,
    /// The rotation after which keys that are not needed any more were removed from that file, 0: before any; `None`: never since the start.
    pub(super) tidied: std::sync::Mutex<Option<u64>>,
    intake: Intake,
    /// The namespaces of the documents in force.
    namespaces: ArcSwap<Namespaces>,
    /// Locked while documents are stored and put into force, and not while they are checked.
    writer: Mutex<Writer>,
    changes: Arc<Turns>,
    dry_runs: Arc<Turns>,
    replays: Arc<Turns>,
}

#[derive(Default)]
struct Writer {
    base: Base,
    since_trimmed: u32,
}

/// The state that a change is checked against.
#[derive(Clone, Default)]
struct Base {
    /// Counts what was put here.
    generation: u64,
    documents: Arc<Documents>,
    /// Stored documents that cannot be read, and why. Until they are replaced or deleted nothing else changes.
    broken: Arc<BTreeMap<DocumentId, Vec<Problem>>>,
    in_force: Option<Arc<Definitions>>,
    /// The store may have something else than `documents`, or than what is in force.
    stale: bool,
}

impl Leading {
    /// Begins to lead: with the trust domain of the stored Mesh document, and what the store has of earlier. Blocks on the store.
    ///
    /// `authority_file` opens the file with the authority's key; without one the key is in memory
    /// only. `replace` replaces the mesh's authority by this one.
    ///
    /// # Errors
    /// The store or the file cannot be used.
    pub fn begin(
        service: &Service,
        authority_file: impl FnOnce(&TrustDomain) -> Result<Option<AuthorityFile>>,
        replace: bool,
    ) -> Result<Arc<Self>> {
        let trust_domain = trust_domain(service)?;
        let store = Store::new(service.backend.clone());
        let file = authority_file(&trust_domain)?;
        let authorities = match &file {
            Some(file) => Authorities { held: file.open()?, file: Some(file.path().display().to_string()), replace },
            None => {
                tracing::warn!(
                    "the authority's key is in memory only: nodes have to join again when the control plane is started again; give --ca"
                );
                Authorities { replace, ..Authorities::in_memory(Authority::new(&trust_domain)?) }
            }
        };
        let control = Control::with_authorities(authorities, store, leno_control::Options::default())?;
        let base = Base { stale: true, ..Base::default() };
        let writer = Mutex::new(Writer { base, since_trimmed: TRIM_EVERY });
        let (intake, tidied, namespaces) = Default::default();
        let [changes, dry_runs, replays] = [CHANGES, DRY_RUNS, REPLAYS].map(Turns::new);
        let authority_file = file;
        Ok(Arc::new(Self { control, authority_file, tidied, intake, namespaces, writer, changes, dry_runs, replays }))
    }

    /// Puts the stored documents into force if they are not. What is wrong with them is told by the service.
    pub async fn put_into_force(&self, service: &Service) -> Result<(), ApiError> {
        let mut writer = self.writer.lock().await;
        self.refresh(service, &mut writer).await
    }

    async fn refresh(&self, service: &Service, writer: &mut Writer) -> Result<(), ApiError> {
        if !writer.base.stale {
            return Ok(());
        }
        block_in_place(|| {
            service.read()?;
            let (documents, broken) = read_all(&service.state().entries.documents);
            (writer.base.documents, writer.base.broken) = (Arc::new(documents), Arc::new(broken));
            writer.base.generation += 1;
            Ok::<_, StoreError>(())
        })?;
        let outcome = self.publish_stored(service, writer).await;
        match &outcome {
            Ok(()) => {
                writer.base.stale = false;
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

    async fn publish_stored(&self, service: &Service, writer: &mut Writer) -> Result<(), ApiError> {
        let base = &mut writer.base;
        let unknown = service.state().entries.problems();
        if !base.broken.is_empty() || !unknown.is_empty() {
            return Err(ApiError::Problems(base.broken.values().flatten().cloned().chain(unknown).collect()));
        }
        let ordered = in_order(&base.documents, &BTreeMap::new(), &service.state().entries.documents);
        let snapshot = block_in_place(|| self.intake.check(&ordered[..], &Effort::unbounded()))?;
        let (published, definitions) = self.intake.publish(&self.control, &snapshot).await?;
        tracing::info!(
            documents = base.documents.len(),
            functions = published.functions,
            changed = published.changed,
            "the stored documents are in force"
        );
        base.in_force = Some(Arc::new(definitions));
        self.namespaces.store(Arc::new(Namespaces::of(&base.documents, &snapshot)));
        base.generation += 1;
        Ok(())
    }

    /// The use that each namespace makes of its quota.
    pub(super) fn namespaces(&self, status: &Status) -> Vec<NamespaceStatus> {
        self.namespaces.load().status(&status.functions)
    }

    /// Whether something is in force that nodes can be given.
    pub fn has_definitions(&self) -> bool {
        self.control.has_definitions()
    }

    /// Checks a change, and unless it is a dry run stores it and puts it into force.
    pub async fn change(
        self: &Arc<Self>,
        service: &Arc<Service>,
        caller: &Caller,
        request: ChangeRequest,
    ) -> Result<ChangeAnswer, ApiError> {
        caller.needs(if request.dry_run { Role::Reader } else { Role::Editor })?;
        if request.replay && !request.dry_run {
            return Err(ApiError::Bad("`replay` is for dry runs: it tells what a change would do".to_owned()));
        }
        let files = checked::files(service, &request)?;
        let turns = if request.dry_run { &self.dry_runs } else { &self.changes };
        let turn = turns.wait(caller).await?;
        let changing = self.change_in_turn(service, caller, Arc::new(request), turn);
        changing.await.map_err(|error| error.without_what_is_hidden(caller, &files))
    }

    async fn change_in_turn(
        self: &Arc<Self>,
        service: &Arc<Service>,
        caller: &Caller,
        request: Arc<ChangeRequest>,
        mut turn: Turn,
    ) -> Result<ChangeAnswer, ApiError> {
        let mut tags = Arc::new(Tags::default());
        let mut checks = 1;
        loop {
            let writer = self.lock(service, request.dry_run).await?;
            let base = writer.base.clone();
            // A change that others have come before again and again has them wait for a while.
            let alone = Some(writer).filter(|_| checks > CHECKS);
            let limit = if alone.is_some() { CHECK_ALONE } else { CHECK };
            let work = {
                let (leading, service, caller) = (self.clone(), service.clone(), caller.clone());
                let (request, base, tags) = (request.clone(), base.clone(), tags.clone());
                move |effort: &Effort| leading.check(&service, &base, &caller, &request, &tags, effort)
            };
            let outcome;
            (outcome, turn) = apart(turn, limit, work).await?;
            let mut checked = match outcome {
                Outcome::Checked(checked) => *checked,
                // Registries may be slow, and other changes do not wait for them.
                Outcome::Unresolved(unresolved) => {
                    drop((alone, turn));
                    unresolved.look_up(Arc::make_mut(&mut tags)).await.map_err(ApiError::Problems)?;
                    turn = self.changes.wait(caller).await?;
                    continue;
                }
            };
            if request.dry_run {
                drop((alone, turn));
                if request.replay {
                    checked.answer.replay = Some(self.replay(caller, checked.candidates).await?);
                }
                return Ok(checked.answer);
            }
            let mut writer = match alone {
                Some(writer) => writer,
                None => self.writer.lock().await,
            };
            if writer.base.generation != base.generation || writer.base.stale != base.stale {
                checks += 1;
                continue;
            }
            let Some(definitions) = checked.definitions.take() else { return Ok(checked.answer) };
            let committed = block_in_place(|| self.commit(service, &mut writer, caller, &checked, &definitions));
            checked.answer.revision = Some(committed?);
            let generation = base.generation + 1;
            self.namespaces.store(Arc::new(checked.namespaces));
            let (documents, in_force) = (Arc::new(checked.documents), Some(Arc::new(definitions)));
            writer.base = Base { generation, documents, broken: Arc::default(), in_force, stale: false };
            service.state_mut().not_in_force.clear();
            self.trim(service, &mut writer);
            return Ok(checked.answer);
        }
    }

    /// What documents are checked against, with what is in the store in force as far as it can be.
    async fn lock(&self, service: &Service, dry_run: bool) -> Result<MutexGuard<'_, Writer>, ApiError> {
        let mut writer = self.writer.lock().await;
        // A dry run does not trigger another read of the store.
        if dry_run && writer.base.generation > 0 {
            return Ok(writer);
        }
        match self.refresh(service, &mut writer).await {
            // Stored documents that are wrong stay so until this change, or another one, mends them.
            Ok(()) | Err(ApiError::Problems(_)) => Ok(writer),
            Err(error) => Err(error),
        }
    }

    /// Has recorded requests judged by these programs, as far as the caller may know of them.
    async fn replay(&self, caller: &Caller, mut candidates: Vec<CandidatePrograms>) -> Result<Replay, ApiError> {
        let _turn = self.replays.wait(caller).await?;
        let all = candidates.len();
        candidates.retain(|candidate| caller.may_know(&candidate.id));
        let hidden = all - candidates.len();
        Ok(Replay { hidden, ..queries::replay(&self.control, candidates).await })
    }

    /// Stores the documents and puts the definitions into force. Returns the revision.
    fn commit(
        &self,
        service: &Service,
        writer: &mut Writer,
        caller: &Caller,
        Checked { actions, .. }: &Checked,
        definitions: &Definitions,
    ) -> Result<u64, ApiError> {
        let (mut transaction, mut changes, at) = (Transaction::default(), Vec::new(), now().as_secs_f64());
        let versions: BTreeMap<&DocumentId, u64> = {
            let state = service.state();
            let version = |id| state.entries.documents.get(id).map_or(0, |kept: &Kept| kept.version);
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
        let (differing, removed) = difference(writer.base.in_force.as_deref(), definitions);
        let same_mesh = writer.base.in_force.as_ref().is_some_and(|before| {
            (&before.mesh, &before.modules) == (&definitions.mesh, &definitions.modules) && !writer.base.stale
        });
        let published = if same_mesh {
            // What did not change is not encoded again, which takes longest where there are many functions.
            self.control.change_after(&differing, &removed, &definitions.permissions, commit)
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
                writer.base.stale = true;
                service.log(&entry);
                Err(ApiError::Unavailable(format!("stored as revision {revision}, and not in force yet: {error}")))
            }
            (Err(error), None) => {
                // Perhaps it was stored and the answer was lost.
                writer.base.stale = true;
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
                    state.entries.documents.insert(id.clone(), Kept { version: revision, value });
                }
                (_, None) => drop(state.entries.documents.remove(id)),
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
    let mesh = state.entries.documents.iter().find(|(id, _)| id.kind == "Mesh");
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
pub fn first_mesh(service: &Service, file: &Path) -> Result<()> {
    if service.state().entries.documents.keys().any(|id| id.kind == "Mesh") {
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
    service.state_mut().entries.documents.insert(id, Kept { version, value });
    Ok(())
}
