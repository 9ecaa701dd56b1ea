//! Checks of changes, without a lock and without a write.

use super::super::documents::{self, Documents};
use super::super::error::ApiError;
use super::super::history::{ChangeHistory, ChangedText};
use super::super::quota::Namespaces;
use super::super::sealing::SealedValues;
use super::super::service::{DocumentEntry, Service};
use super::super::tokens::Caller;
use super::super::types::{Action, ChangeAnswer, ChangeRequest, DocumentChange, Role, Wrong};
use super::{Base, Leading, secrets};
use leno_config::{Document, DocumentId, Effort, Problem, RouteReport, Snapshot};
use leno_control::{Definitions, Secrets};
use leno_intake::{Intake, Resolution, Tags, UnresolvedTags};
use leno_model::{CandidatePrograms, FunctionConfig, FunctionId};
use std::collections::{BTreeMap, BTreeSet};

/// Most problems and warnings in a response.
const MAX_PROBLEMS: usize = 500;

/// A document, its change, and its new text; `None`: it is deleted.
pub(super) type DocumentAction = (DocumentId, Action, Option<Document>);

/// The result of a check.
pub(super) struct CheckedChange {
    pub answer: ChangeAnswer,
    /// All documents after the change.
    pub documents: Documents,
    pub actions: Vec<DocumentAction>,
    /// The encrypted values of new and changed StoredSecret documents.
    pub sealed: BTreeMap<DocumentId, SealedValues>,
    /// The values of all stored secrets after the change.
    pub secrets: Secrets,
    pub namespaces: Namespaces,
    pub routes: RouteReport,
    /// The definitions after the change; `None`: a dry run, or no change.
    pub definitions: Option<Definitions>,
    /// Programs for a replay.
    pub candidates: Vec<CandidatePrograms>,
    /// Its history; empty: nothing will be stored.
    pub history: ChangeHistory,
}

/// The outcome of a check.
pub(super) enum Outcome {
    Complete(Box<CheckedChange>),
    /// Not complete: the digests of some tags are unknown.
    Unresolved(UnresolvedTags),
}

/// The documents of a request, with all others.
struct ProposedDocuments {
    documents: Documents,
    actions: Vec<DocumentAction>,
    sealed: BTreeMap<DocumentId, SealedValues>,
    secrets: Secrets,
    /// Positions of new and changed documents in the request.
    order: BTreeMap<DocumentId, usize>,
}

/// The names of the request's texts, as problems contain them.
pub(super) fn files(service: &Service, request: &ChangeRequest) -> Result<BTreeSet<String>, ApiError> {
    documents::check_names(&request.apply)?;
    let mut files: BTreeSet<String> = request.apply.iter().map(|file| file.name.clone()).collect();
    // A problem of a stored document names the document. A text with such a name in the request
    // must not make these problems visible.
    let state = service.state();
    files.retain(|file| !state.entries.documents.keys().any(|id| id.to_string() == *file));
    Ok(files)
}

/// Documents in the order of their application: stored ones by version, then those of the request.
pub(super) fn in_order<'a>(
    documents: &'a Documents,
    order: &BTreeMap<DocumentId, usize>,
    stored: &BTreeMap<DocumentId, DocumentEntry>,
) -> Vec<&'a Document> {
    let version = |id: &DocumentId| stored.get(id).map_or(0, |kept| kept.version);
    let place = |document: &&Document| match order.get(document.id()) {
        Some(place) => (1, *place as u64),
        None => (0, version(document.id())),
    };
    let mut ordered: Vec<&Document> = documents.values().collect();
    ordered.sort_by_key(place);
    ordered
}

impl Leading {
    /// Computes the effects of a change, without a lock.
    pub(super) fn check(
        &self,
        service: &Service,
        base: &Base,
        caller: &Caller,
        request: &ChangeRequest,
        tags: &Tags,
        effort: &Effort,
    ) -> Result<Outcome, ApiError> {
        let ProposedDocuments { mut documents, mut actions, sealed, secrets, order } =
            given(service, base, caller, request)?;
        let ordered = in_order(&documents, &order, &service.state().entries.documents);
        let before = self.namespaces.load();
        let (snapshot, namespaces) = documents::compile(&self.intake, &ordered, &ordered[..], &before, effort)?;
        let files = files(service, request)?;
        let warnings = warnings(&snapshot, caller, &files, base.in_force.as_deref());
        let answer = ChangeAnswer {
            revision: None,
            documents: changed(service, request, &actions),
            functions: Vec::new(),
            warnings,
            replay: None,
        };
        let is_change = actions.iter().any(|(_, action, _)| *action != Action::Unchanged);
        if !is_change && !base.stale {
            let (definitions, candidates, history) = Default::default();
            return Ok(Outcome::Complete(Box::new(CheckedChange {
                answer,
                documents,
                actions,
                sealed,
                secrets,
                namespaces,
                routes: snapshot.route_report().clone(),
                definitions,
                candidates,
                history,
            })));
        }
        let mut definitions = if request.dry_run {
            // A dry run contacts no registry.
            let ids = snapshot.functions().take_while(|_| !effort.is_over());
            let configs = ids.filter_map(|id| Some((id.clone(), snapshot.function_config(id)?))).collect();
            Definitions {
                mesh: snapshot.mesh_config().clone(),
                configs,
                routes: snapshot.gateway_routes().clone(),
                modules: snapshot.modules().clone(),
                permissions: snapshot.permissions(),
                secrets: None,
            }
        } else {
            match Intake::resolve(&self.control, &snapshot, tags)? {
                Resolution::Complete(definitions) => *definitions,
                Resolution::Incomplete(unresolved) => return Ok(Outcome::Unresolved(unresolved)),
            }
        };
        definitions.secrets = Some(secrets.clone());
        let (differing, removed) = difference(base.in_force.as_deref(), &definitions);
        let names = differing.iter().map(|config| &config.id).chain(&removed);
        let functions = names.filter(|id| caller.may_know(id)).map(ToString::to_string).collect();
        let answer = ChangeAnswer { functions, ..answer };
        if request.dry_run {
            self.control.check(&definitions)?;
            let candidates = candidates(base.in_force.as_deref(), &differing);
            let (definitions, history) = Default::default();
            return Ok(Outcome::Complete(Box::new(CheckedChange {
                answer,
                documents,
                actions,
                sealed,
                secrets,
                namespaces,
                routes: snapshot.route_report().clone(),
                definitions,
                candidates,
                history,
            })));
        }
        // From here on, problems refer to the stored text.
        for (id, action, document) in &mut actions {
            if let Some(document) = document
                && *action != Action::Unchanged
            {
                *document = Document::restore(id, document.text()).map_err(ApiError::Problems)?;
                documents.insert(id.clone(), document.clone());
            }
        }
        let (definitions, candidates) = (Some(definitions), Vec::new());
        let remaining = documents.keys().map(|id| id.namespace.as_str()).collect();
        let verdicts = self.tried.of(caller, request);
        let history = ChangeHistory::of(&changed_texts(service, &actions), &remaining, &verdicts);
        Ok(Outcome::Complete(Box::new(CheckedChange {
            answer,
            documents,
            actions,
            sealed,
            secrets,
            namespaces,
            routes: snapshot.route_report().clone(),
            definitions,
            candidates,
            history,
        })))
    }
}

/// The texts of changed documents, before and after the change.
fn changed_texts<'a>(service: &Service, actions: &'a [DocumentAction]) -> Vec<ChangedText<'a>> {
    let state = service.state();
    let changed = actions.iter().filter(|(_, action, _)| *action != Action::Unchanged);
    let texts = changed.map(|(id, _, document)| ChangedText {
        id,
        before: state.entries.documents.get(id).map(|kept| kept.value.text.clone()),
        after: document.as_ref().map(Document::text),
    });
    texts.collect()
}

/// The action for each document of the request.
fn changed(service: &Service, request: &ChangeRequest, actions: &[DocumentAction]) -> Vec<DocumentChange> {
    let state = service.state();
    let text = |id: &DocumentId| state.entries.documents.get(id).map(|kept| kept.value.text.clone());
    let shown = |text: Option<String>| text.filter(|_| request.dry_run);
    let changed = actions.iter().map(|(id, action, document)| DocumentChange {
        document: id.into(),
        action: *action,
        before: shown(text(id)),
        after: shown(document.as_ref().map(|document| document.text().to_owned())),
    });
    changed.collect()
}

/// The documents of the request together with all others, if the caller may change them.
fn given(
    service: &Service,
    base: &Base,
    caller: &Caller,
    request: &ChangeRequest,
) -> Result<ProposedDocuments, ApiError> {
    let (given, mut order) = documents::read(&request.apply)?;
    let state = service.state();
    let version = |id: &DocumentId| state.entries.documents.get(id).map_or(0, |kept| kept.version);
    for expected in &request.expect {
        let id = DocumentId::from(expected.document.clone());
        if !caller.may_read(&id) {
            return Err(ApiError::Forbidden(format!("{id} is not for this token")));
        }
        if version(&id) != expected.version {
            return Err(ApiError::Conflict(id.to_string()));
        }
    }
    let (mut documents, mut actions) = ((*base.documents).clone(), Vec::new());
    let (mut sealed, mut secrets) = (BTreeMap::new(), (*base.secrets).clone());
    let mut named: BTreeSet<DocumentId> = given.keys().cloned().collect();
    let mut broken: BTreeSet<&DocumentId> = base.broken.keys().collect();
    for (id, mut document) in given {
        caller.may_write(&id, &document.reach())?;
        if id.kind == secrets::KIND {
            // A token that cannot change a value must not try whether it is another one.
            caller.needs(Role::Editor)?;
            let stored = secrets::seal(service, state.entries.documents.get(&id), &id, &document)?;
            secrets::replace(&mut secrets, &id, stored.values);
            sealed.insert(id.clone(), stored.sealed);
            document = stored.document;
        }
        broken.remove(&id);
        let before = documents.get(&id);
        if let Some(before) = before {
            // The replaced document may affect further namespaces.
            caller.may_write(&id, &before.reach())?;
        }
        let action = match before {
            Some(before) if before.text() == document.text() => Action::Unchanged,
            _ if version(&id) > 0 => Action::Changed,
            _ => Action::Created,
        };
        if action == Action::Unchanged {
            order.remove(&id);
        }
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
        if id.kind == secrets::KIND {
            secrets::replace(&mut secrets, &id, BTreeMap::new());
        }
        actions.push((id, Action::Deleted, None));
    }
    if actions.is_empty() {
        return Err(ApiError::Bad("there is no document in the request".to_owned()));
    }
    let unknown = state.entries.problems();
    if !broken.is_empty() || !unknown.is_empty() {
        let problems = broken.iter().filter_map(|id| base.broken.get(id)).flatten();
        return Err(ApiError::Problems(problems.cloned().chain(unknown).collect()));
    }
    Ok(ProposedDocuments { documents, actions, sealed, secrets, order })
}

impl ApiError {
    /// Hides names, and problems of stored documents, that a caller may not read.
    pub(super) fn without_what_is_hidden(self, caller: &Caller, files: &BTreeSet<String>) -> Self {
        let shown = |problem: &Problem| {
            let file = problem.file.to_string_lossy();
            let namespace =
                file.split_once(' ').and_then(|(_, name)| name.split_once('/')).map(|(namespace, _)| namespace);
            files.contains(&*file) || namespace.is_some_and(|namespace| caller.namespaces.contains(namespace))
        };
        let problems = match self {
            Self::Problems(problems) if caller.is_everywhere() => return Self::Problems(few(problems)),
            Self::Problems(problems) => problems,
            Self::Definitions(error) if error.function().is_some_and(|id| !caller.may_know(id)) => {
                return Self::Bad("a function of another namespace would not be right any more".to_owned());
            }
            Self::Quota { namespace, .. } if !caller.may_know_namespace(&namespace) => {
                return Self::Forbidden("another namespace exceeds its quota; ask an operator".to_owned());
            }
            Self::Quota { namespace, reason, mut problems } => {
                problems.retain(|problem| caller.is_everywhere() || shown(problem));
                return Self::Quota { namespace, reason, problems };
            }
            other => return other,
        };
        let (mut shown, hidden): (Vec<_>, Vec<_>) = problems.into_iter().partition(shown);
        if !hidden.is_empty() {
            shown.push(Problem {
                file: "documents of other namespaces".into(),
                line: 0,
                column: 0,
                field: String::new(),
                message: "they would not be right any more, and this token may not read them".to_owned(),
                fix: "ask the holder of a token for the whole mesh".to_owned(),
            });
        }
        Self::Problems(few(shown))
    }
}

/// Bounds the number of problems in a response.
fn few(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    if more > 0 {
        problems.truncate(MAX_PROBLEMS);
        let message = format!("{more} further problems are left out");
        problems.push(Problem {
            file: "documents".into(),
            line: 0,
            column: 0,
            field: String::new(),
            message,
            fix: String::new(),
        });
    }
    problems
}

/// Warnings about documents of the request, and about fields that nodes read only at their start.
fn warnings(
    snapshot: &Snapshot,
    caller: &Caller,
    files: &BTreeSet<String>,
    in_force: Option<&Definitions>,
) -> Vec<Wrong> {
    let of_request = |problem: &&Problem| files.contains(&*problem.file.to_string_lossy());
    let across = snapshot.warnings_across().iter().filter(|(namespace, _)| caller.may_know_namespace(namespace));
    let all = snapshot.warnings().iter().chain(across.map(|(_, warning)| warning));
    let mut warnings: Vec<Wrong> = all.filter(of_request).take(MAX_PROBLEMS).map(Wrong::from).collect();
    if let Some(in_force) = in_force {
        for field in in_force.mesh.fixed_at_start(snapshot.mesh_config()) {
            let message = "each node takes this up when it is started again";
            warnings.push(Wrong::from(&snapshot.mesh_problem(field, message)));
        }
    }
    warnings
}

/// The programs that may decide requests differently from those in force. A new function has no
/// recorded requests.
fn candidates(before: Option<&Definitions>, differing: &[&FunctionConfig]) -> Vec<CandidatePrograms> {
    let before = |id: &FunctionId| before.and_then(|before| before.configs.get(id)).map(CandidatePrograms::of);
    let candidates = differing.iter().map(|config| CandidatePrograms::of(config));
    candidates.filter(|candidate| before(&candidate.id).is_some_and(|before| candidate.differs(&before))).collect()
}

/// New and changed configurations, and removed functions.
pub(super) fn difference<'a>(
    before: Option<&Definitions>,
    after: &'a Definitions,
) -> (Vec<&'a FunctionConfig>, Vec<FunctionId>) {
    let nothing = BTreeMap::new();
    let before: &BTreeMap<FunctionId, FunctionConfig> = before.map_or(&nothing, |before| &before.configs);
    let differing = after.configs.iter().filter(|(id, config)| before.get(*id) != Some(config));
    let removed = before.keys().filter(|id| !after.configs.contains_key(*id));
    (differing.map(|(_, config)| config).collect(), removed.cloned().collect())
}
