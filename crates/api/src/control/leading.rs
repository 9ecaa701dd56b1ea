//! The leading control plane: it applies changes of documents.
//!
//! The leader checks a change together with all other documents before it stores anything. It
//! checks in the turn of the caller's tenant, against the documents at that moment, without a lock.
//! It stores the change if the documents are still the same.

mod check;
mod secrets;

use super::audit;
use super::documents::Documents;
use super::error::ApiError;
use super::history::{self, DryRuns};
use super::queries;
use super::quota::Namespaces;
use super::sealing::SealedValues;
use super::service::{DocumentEntry, DocumentValue, Service, entry, key, now};
use super::tokens::Caller;
use super::turns::{Limits, Turn, Turns};
use super::types::{Action, AuditChange, ChangeAnswer, ChangeRequest, NamespaceStatus, Replay, Role};
use super::worker::apart;
use crate::alerts::Alert;
use crate::gateways::RouteViews;
use anyhow::{Context, Result};
use arc_swap::{ArcSwap, ArcSwapOption};
use check::{CheckedChange, DocumentAction, Outcome, difference, in_order};
use leno_config::{Document, DocumentId, Effort, Problem, Snapshot};
use leno_control::{Authorities, Control, Definitions, Secrets, Status, Store, Transaction};
use leno_identity::{Authority, AuthorityFile, TrustDomain};
use leno_intake::{Intake, Tags};
use leno_model::CandidatePrograms;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::block_in_place;

/// Number of changes after which the leader trims the audit log.
const TRIM_EVERY: u32 = 500;
/// Concurrent checks of changes and of dry runs. Neither holds a lock that the other needs.
const CHANGES: Limits = Limits { all: 3, of_tenant: 1, waiting: 16 };
const DRY_RUNS: Limits = Limits { all: 1, of_tenant: 1, waiting: 4 };
/// Concurrent dry runs that wait for replays.
const REPLAYS: Limits = Limits { all: 4, of_tenant: 1, waiting: 4 };
/// Timeout of a check.
const CHECK: Duration = Duration::from_secs(15);
/// How often a change is checked again after a concurrent change. Then other changes wait for it,
/// with a shorter timeout.
const CHECKS: u32 = 4;
const CHECK_ALONE: Duration = Duration::from_secs(5);

/// The state of a control plane that leads.
pub struct Leading {
    /// The control plane.
    pub control: Control,
    /// The file with the authority's key; `None`: the key is in memory only.
    pub(super) authority_file: Option<AuthorityFile>,
    /// The last rotation after which this process removed unneeded keys from that file; 0: before
    /// any; `None`: not since its start.
    pub(super) tidied: std::sync::Mutex<Option<u64>>,
    intake: Intake,
    /// The namespaces of the documents in force.
    namespaces: ArcSwap<Namespaces>,
    /// The status of the Gateways and routes in force.
    routes: RouteViews,
    /// The definitions in force.
    definitions: ArcSwapOption<Definitions>,
    /// Locked while the leader stores and publishes documents, but not while it checks them.
    writer: Mutex<Writer>,
    changes: Arc<Turns>,
    dry_runs: Arc<Turns>,
    replays: Arc<Turns>,
    /// Results of dry runs, for the history of the changes that follow them.
    tried: DryRuns,
}

#[derive(Default)]
struct Writer {
    base: Base,
    since_trimmed: u32,
}

/// The state against which a change is checked.
#[derive(Clone, Default)]
struct Base {
    /// Increases with each change of this state.
    generation: u64,
    documents: Arc<Documents>,
    /// Stored documents that cannot be read, with the problems. They block all other changes until
    /// a change replaces or deletes them.
    broken: Arc<BTreeMap<DocumentId, Vec<Problem>>>,
    in_force: Option<Arc<Definitions>>,
    /// The values of stored secrets.
    secrets: Arc<Secrets>,
    /// The store can differ from `documents`, or from the definitions in force.
    stale: bool,
}

impl Leading {
    /// Begins to lead, with the trust domain of the stored Mesh document. Blocks on the store.
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
                    "the authority's key is in memory only: nodes have to join again when the control plane is started again; give --authority"
                );
                Authorities { replace, ..Authorities::in_memory(Authority::new(&trust_domain)?) }
            }
        };
        let control = Control::with_authorities(authorities, store, leno_control::Options::default())?;
        let base = Base { stale: true, ..Base::default() };
        let writer = Mutex::new(Writer { base, since_trimmed: TRIM_EVERY });
        let (intake, tidied, namespaces, routes, definitions, tried) = Default::default();
        let [changes, dry_runs, replays] = [CHANGES, DRY_RUNS, REPLAYS].map(Turns::new);
        let authority_file = file;
        Ok(Arc::new(Self {
            control,
            authority_file,
            tidied,
            intake,
            namespaces,
            routes,
            definitions,
            writer,
            changes,
            dry_runs,
            replays,
            tried,
        }))
    }

    /// Publishes the stored documents if they are not in force. The service keeps the problems.
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
            secrets::seal_anew(service)?;
            let (documents, mut broken) = read_all(&service.state().entries.documents);
            writer.base.secrets = Arc::new(secrets::open_all(service, &mut broken));
            (writer.base.documents, writer.base.broken) = (Arc::new(documents), Arc::new(broken));
            writer.base.generation += 1;
            Ok::<_, ApiError>(())
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
        let (published, definitions) =
            self.intake.publish(&self.control, &snapshot, Some((*base.secrets).clone())).await?;
        tracing::info!(
            documents = base.documents.len(),
            functions = published.functions,
            changed = published.changed,
            "the stored documents are in force"
        );
        let in_force = Some(Arc::new(definitions));
        self.definitions.store(in_force.clone());
        base.in_force = in_force;
        self.namespaces.store(Arc::new(Namespaces::of(&ordered, &snapshot)));
        self.routes.set(snapshot.route_report());
        base.generation += 1;
        Ok(())
    }

    /// Alerts about rules without effect in the documents in force.
    pub(super) fn notices(&self) -> Vec<Alert> {
        self.namespaces.load().notices()
    }

    /// The names of functions, jobs and External documents that name a stored secret.
    pub(super) fn secret_users(&self, id: &DocumentId) -> Vec<String> {
        self.namespaces.load().secret_users(id)
    }

    /// The status of the Gateways and routes in force.
    pub(super) fn routes(&self) -> &RouteViews {
        &self.routes
    }

    /// The definitions in force; `None`: none were published yet.
    pub(super) fn definitions(&self) -> Option<Arc<Definitions>> {
        self.definitions.load_full()
    }

    /// The quota and use of each namespace.
    pub(super) fn namespaces(&self, status: &Status) -> Vec<NamespaceStatus> {
        self.namespaces.load().status(&status.functions)
    }

    /// Whether there are definitions for nodes.
    pub fn has_definitions(&self) -> bool {
        self.control.has_definitions()
    }

    /// Checks a change. Unless it is a dry run, stores and publishes it.
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
        let files = check::files(service, &request)?;
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
            // After several concurrent changes, this one holds the lock while it is checked.
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
                Outcome::Complete(checked) => *checked,
                // Registries can be slow. Other changes do not wait for them.
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
                    let replay = self.replay(caller, checked.candidates).await?;
                    self.tried.remember(caller, &request, &replay);
                    checked.answer.replay = Some(replay);
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
            self.routes.set(&checked.routes);
            let (documents, in_force) = (Arc::new(checked.documents), Some(Arc::new(definitions)));
            self.definitions.store(in_force.clone());
            let secrets = Arc::new(checked.secrets);
            writer.base = Base { generation, documents, broken: Arc::default(), in_force, secrets, stale: false };
            service.state_mut().not_in_force.clear();
            self.trim(service, &mut writer, &checked.actions);
            return Ok(checked.answer);
        }
    }

    /// The state against which a change is checked, after an attempt to publish the stored
    /// documents.
    async fn lock(&self, service: &Service, dry_run: bool) -> Result<MutexGuard<'_, Writer>, ApiError> {
        let mut writer = self.writer.lock().await;
        // A dry run does not trigger another read of the store.
        if dry_run && writer.base.generation > 0 {
            return Ok(writer);
        }
        match self.refresh(service, &mut writer).await {
            // Problems of stored documents stay until this change, or another one, solves them.
            Ok(()) | Err(ApiError::Problems(_)) => Ok(writer),
            Err(error) => Err(error),
        }
    }

    /// Replays recorded requests with these programs, if the caller may know their functions.
    async fn replay(&self, caller: &Caller, mut candidates: Vec<CandidatePrograms>) -> Result<Replay, ApiError> {
        let _turn = self.replays.wait(caller).await?;
        let all = candidates.len();
        candidates.retain(|candidate| caller.may_know(&candidate.id));
        let hidden = all - candidates.len();
        Ok(Replay { hidden, ..queries::replay(&self.control, candidates).await })
    }

    /// Stores the documents and publishes the definitions. Returns the revision.
    fn commit(
        &self,
        service: &Service,
        writer: &mut Writer,
        caller: &Caller,
        CheckedChange { actions, sealed, history, .. }: &CheckedChange,
        definitions: &Definitions,
    ) -> Result<u64, ApiError> {
        let (mut transaction, mut changes, at) = (Transaction::default(), Vec::new(), now().as_secs_f64());
        let versions: BTreeMap<&DocumentId, u64> = {
            let state = service.state();
            let version = |id| state.entries.documents.get(id).map_or(0, |kept: &DocumentEntry| kept.version);
            actions.iter().map(|(id, ..)| (id, version(id))).collect()
        };
        for (id, action, document) in actions.iter().filter(|(_, action, _)| *action != Action::Unchanged) {
            let before = versions.get(id).copied().unwrap_or_default();
            let value = document.as_ref().map(|document| {
                let (text, sealed) = (document.text().to_owned(), sealed.get(id).cloned());
                serde_json::to_vec(&DocumentValue { text, by: caller.name.clone(), at, sealed })
            });
            let value = value.transpose().map_err(|error| ApiError::Unavailable(error.to_string()))?;
            transaction.expect(key(id), before);
            transaction.changes.push((key(id), value));
            changes.push(AuditChange { what: id.to_string(), action: *action, before });
        }
        let entry = entry(caller, changes);
        let key = audit::add(&mut transaction, &entry)?;
        history.add(&mut transaction, &*service.backend, &key);
        let mut revision = None;
        let commit = || {
            revision = Some(service.backend.commit(&transaction)?);
            Ok::<_, ApiError>(())
        };
        let (differing, removed) = difference(writer.base.in_force.as_deref(), definitions);
        let same_mesh = writer.base.in_force.as_ref().is_some_and(|before| {
            (&before.mesh, &before.modules, &before.secrets)
                == (&definitions.mesh, &definitions.modules, &definitions.secrets)
                && !writer.base.stale
        });
        let published = if same_mesh {
            // Encoding unchanged functions would take longest if there are many.
            let before = writer.base.in_force.as_ref().map(|before| &before.routes);
            let routes = (before != Some(&definitions.routes)).then_some(&definitions.routes);
            self.control.change_after(&differing, &removed, routes, &definitions.permissions, commit)
        } else {
            self.control.publish_after(definitions, commit).map(drop)
        };
        match (published, revision) {
            (Ok(()), Some(revision)) => {
                let (changed, removed) = (differing.len(), removed.len());
                tracing::info!(revision, by = caller.name, changed, removed, "documents have changed");
                self.remember(service, (actions, sealed), caller, revision, at);
                service.log(&entry);
                Ok(revision)
            }
            (Err(error), Some(revision)) => {
                writer.base.stale = true;
                service.log(&entry);
                let error = error.without_what_is_hidden(caller, &BTreeSet::new());
                Err(ApiError::Unavailable(format!("stored as revision {revision}, and not in force yet: {error}")))
            }
            (Err(error), None) => {
                // The store may have committed, with a lost response.
                writer.base.stale = true;
                Err(error)
            }
            (Ok(()), None) => Err(ApiError::Unavailable("nothing was stored".to_owned())),
        }
    }

    fn remember(
        &self,
        service: &Service,
        (actions, sealed): (&[DocumentAction], &BTreeMap<DocumentId, SealedValues>),
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
                    let (text, sealed) = (document.text().to_owned(), sealed.get(id).cloned());
                    let value = DocumentValue { text, by: caller.name.clone(), at, sealed };
                    state.entries.documents.insert(id.clone(), DocumentEntry { version: revision, value });
                }
                (_, None) => drop(state.entries.documents.remove(id)),
            }
        }
    }

    fn trim(&self, service: &Service, writer: &mut Writer, actions: &[DocumentAction]) {
        let changed = actions.iter().filter(|(_, action, _)| *action != Action::Unchanged);
        let namespaces: BTreeSet<&str> = changed.map(|(id, ..)| id.namespace.as_str()).collect();
        for namespace in namespaces {
            if let Err(error) = block_in_place(|| history::trim(&*service.backend, namespace)) {
                tracing::warn!(%error, namespace, "old differences of documents are not removed yet");
            }
        }
        writer.since_trimmed += 1;
        if writer.since_trimmed < TRIM_EVERY {
            return;
        }
        writer.since_trimmed = 0;
        let backend = &*service.backend;
        if let Err(error) = block_in_place(|| audit::trim(backend, |entry| history::keys_beside(backend, entry))) {
            tracing::warn!(%error, "old entries of the audit log are not removed yet");
        }
    }
}

/// Reads all stored documents. The second map has the problems of unreadable ones.
fn read_all(
    stored: &BTreeMap<DocumentId, DocumentEntry>,
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

/// The trust domain of the stored Mesh document, or the default.
fn trust_domain(service: &Service) -> Result<TrustDomain> {
    let state = service.state();
    let mesh = state.entries.documents.iter().find(|(id, _)| id.kind == "Mesh");
    let document = mesh.map(|(id, kept)| Document::restore(id, &kept.value.text));
    let snapshot = match document {
        Some(document) => document.and_then(|document| Snapshot::of_documents([&document])),
        None => Snapshot::of_documents([]),
    };
    match snapshot {
        Ok(snapshot) => Ok(snapshot.mesh_config().trust_domain.clone()),
        // Another trust domain would change every function's identity.
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
    let value = {
        let (text, by, at) = (document.text().to_owned(), caller.name.clone(), now().as_secs_f64());
        DocumentValue { text, by, at, sealed: None }
    };
    let mut transaction = Transaction::default();
    transaction.expect(key(&id), 0);
    transaction.put(key(&id), serde_json::to_vec(&value)?);
    let entry = entry(&caller, vec![AuditChange { what: id.to_string(), action: Action::Created, before: 0 }]);
    audit::add(&mut transaction, &entry)?;
    let version = service.backend.commit(&transaction)?;
    service.log(&entry);
    service.state_mut().entries.documents.insert(id, DocumentEntry { version, value });
    Ok(())
}
