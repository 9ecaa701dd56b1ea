//! The objects of the API server that are documents, and the version of each that is in force.
//!
//! An object with a problem stops no other one. Its last valid version stays in force. A policy
//! without one is replaced by a policy that refuses all calls to the same functions.

use super::denial::{self, Target};
use super::object::{self, DocumentObject, document, unreadable, without_line};
use crate::api::{BrokenObject, Change, Metadata, ObjectKey};
use crate::crds::ObjectKind;
use leno_config::{Document, DocumentId, Problem, Snapshot};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All objects that are documents.
#[derive(Clone, Default)]
pub struct Objects(BTreeMap<DocumentId, Entry>);

#[derive(Clone)]
struct Entry {
    uid: String,
    created: String,
    /// The present version.
    generation: i64,
    spec: Arc<Value>,
    document: Result<Document, Vec<Problem>>,
    /// The last version that was in force.
    good: Option<(i64, Document)>,
}

/// The version of an object that is in force.
#[derive(Clone, Debug, PartialEq)]
pub enum InForce {
    /// The present one.
    Present,
    /// An earlier one, of this generation and specification.
    Earlier(i64, Value),
    /// None: a policy that refuses all calls to its functions.
    Denial,
    /// None.
    Nothing,
}

/// The result for one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The identifier of the object.
    pub uid: String,
    /// The generation that it is about.
    pub generation: i64,
    /// The problems of the present version.
    pub problems: Vec<Problem>,
    /// The version in force.
    pub in_force: InForce,
}

/// Documents that are valid together.
pub struct Selection {
    /// They, compiled.
    pub snapshot: Arc<Snapshot>,
    /// What became of each object.
    pub verdicts: BTreeMap<DocumentId, Verdict>,
    /// The number of documents, with those of functions.
    pub documents: usize,
    chosen: BTreeMap<DocumentId, Document>,
}

/// The version that is tried of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Present,
    Earlier,
    Denial(Target),
    Nothing,
}

impl Objects {
    /// Applies a change of the objects of a kind. Returns whether a document changed: a change of a
    /// status is none.
    pub fn apply(&mut self, kind: &ObjectKind, change: Change<DocumentObject>) -> bool {
        match change {
            Change::Replaced { objects, broken } => {
                let present = objects.iter().map(|object| object.metadata.key());
                let present: BTreeSet<ObjectKey> =
                    present.chain(broken.iter().map(|broken| broken.key.clone())).collect();
                let count = self.0.len();
                self.0.retain(|id, _| id.kind != kind.name || present.contains(&key_of(id)));
                let mut changed = self.0.len() < count;
                for object in objects {
                    changed |= self.put(kind, object);
                }
                for broken in broken {
                    changed |= self.put_broken(kind, broken);
                }
                changed
            }
            Change::Put(object) => self.put(kind, object),
            Change::Broken(broken) => self.put_broken(kind, broken),
            Change::Gone(key) => self.0.remove(&id_of(kind, &key)).is_some(),
        }
    }

    fn put(&mut self, kind: &ObjectKind, object: DocumentObject) -> bool {
        let DocumentObject { metadata, spec, status } = object;
        let id = id_of(kind, &metadata.key());
        let Metadata { uid, creation_timestamp: created, generation, .. } = metadata;
        let generation = generation.unwrap_or_default();
        let before = self.0.remove(&id).filter(|before| before.uid == uid);
        let is_same = before.as_ref().is_some_and(|before| before.generation == generation && *before.spec == spec);
        let mut entry = match before {
            Some(before) if is_same => before,
            before => {
                let document = document(&id, &spec);
                let good = before.and_then(|before| before.good).or_else(|| {
                    // A controller that begins continues with the version that the last one had in force.
                    let earlier = status.in_force.as_ref()?;
                    Some((earlier.generation, super::object::document(&id, &earlier.spec).ok()?))
                });
                Entry { uid, created, generation, spec: Arc::new(spec), document, good }
            }
        };
        // Another controller has this version in force.
        let is_accepted = !entry.was_in_force() && status.is_accepted(generation);
        if let Some(document) = entry.document.as_ref().ok().filter(|_| is_accepted) {
            entry.good = Some((generation, document.clone()));
        }
        self.0.insert(id, entry);
        !is_same || is_accepted
    }

    fn put_broken(&mut self, kind: &ObjectKind, broken: BrokenObject) -> bool {
        let id = id_of(kind, &broken.key);
        let problem = unreadable(&id, &broken.field, &broken.message);
        let entry = self.0.entry(id).or_insert_with(|| Entry {
            uid: String::new(),
            created: String::new(),
            generation: 0,
            spec: Arc::default(),
            document: Err(Vec::new()),
            good: None,
        });
        let document = Err(vec![problem]);
        let is_same = entry.document.as_ref().err() == document.as_ref().err();
        entry.document = document;
        !is_same
    }

    /// The Mesh objects.
    pub fn meshes(&self) -> impl Iterator<Item = Result<&Document, &[Problem]>> {
        let meshes = self.0.iter().filter(|(id, _)| id.kind == "Mesh");
        meshes.map(|(_, entry)| entry.document.as_ref().map_err(Vec::as_slice))
    }

    /// Chooses a version of each object, so that all of them and the functions are valid together.
    /// `check` compiles documents, of which some were in force before in the same version.
    ///
    /// # Errors
    /// Problems that no choice avoids.
    pub fn select<'a>(
        &'a self,
        functions: impl Iterator<Item = &'a Document>,
        check: impl Fn(&[&Document], BTreeSet<DocumentId>) -> Result<Snapshot, Vec<Problem>>,
    ) -> Result<Selection, Vec<Problem>> {
        let mut choices: BTreeMap<&DocumentId, Choice> = self.0.keys().map(|id| (id, Choice::Present)).collect();
        let mut problems: BTreeMap<&DocumentId, Vec<Problem>> = BTreeMap::new();
        for (id, entry) in &self.0 {
            if let Err(found) = &entry.document {
                problems.insert(id, found.clone());
                choices.insert(id, entry.next(id, Choice::Present));
            }
        }
        let mut functions: BTreeMap<&DocumentId, &Document> =
            functions.map(|document| (document.id(), document)).collect();
        // Of two documents that exclude each other, the compiler reports the later one.
        let mut order: Vec<(&DocumentId, &Entry)> = self.0.iter().collect();
        order.sort_by_key(|(id, entry)| (&entry.created, *id));
        loop {
            let chosen: Vec<(&DocumentId, Document)> =
                order.iter().filter_map(|(id, entry)| Some((*id, entry.version(id, choices[*id])?))).collect();
            let all: Vec<&Document> =
                functions.values().copied().chain(chosen.iter().map(|(_, document)| document)).collect();
            let before = chosen.iter().map(|(id, _)| *id).filter(|id| match choices[id] {
                Choice::Present => self.0[id].was_in_force(),
                choice => choice == Choice::Earlier,
            });
            let found = match check(&all, before.cloned().collect()) {
                Ok(snapshot) => {
                    let snapshot = Arc::new(snapshot);
                    let documents = all.len();
                    let chosen = chosen.into_iter().map(|(id, document)| (id.clone(), document)).collect();
                    let verdicts = self.verdicts(&choices, problems);
                    return Ok(Selection { snapshot, verdicts, documents, chosen });
                }
                Err(found) => found,
            };
            let names: BTreeMap<String, &DocumentId> = self.0.keys().map(|id| (id.to_string(), id)).collect();
            let mut unchanged = true;
            let mut refused = BTreeSet::new();
            for problem in &found {
                let Some(file) = problem.file.to_str() else { continue };
                if let Some(id) = names.get(file) {
                    if choices[*id] == Choice::Present {
                        problems.entry(id).or_default().push(without_line(problem.clone()));
                    }
                    refused.insert(*id);
                } else if let Some(id) = functions.keys().find(|id| id.to_string() == file).copied() {
                    tracing::error!("{problem}; its pods are not in the mesh");
                    functions.remove(id);
                    unchanged = false;
                }
            }
            for id in refused {
                if let Some(choice) = choices.get_mut(id).filter(|choice| **choice != Choice::Nothing) {
                    *choice = self.0[id].next(id, *choice);
                    unchanged = false;
                }
            }
            if unchanged {
                return Err(found);
            }
        }
    }

    fn verdicts(
        &self,
        choices: &BTreeMap<&DocumentId, Choice>,
        mut problems: BTreeMap<&DocumentId, Vec<Problem>>,
    ) -> BTreeMap<DocumentId, Verdict> {
        let verdict = |(id, entry): (&DocumentId, &Entry)| {
            let in_force = match (choices[id], &entry.good) {
                (Choice::Present, _) => InForce::Present,
                (Choice::Earlier, Some((generation, good))) => InForce::Earlier(*generation, object::spec(good)),
                (Choice::Denial(_), _) => InForce::Denial,
                (Choice::Earlier | Choice::Nothing, _) => InForce::Nothing,
            };
            let problems = problems.remove(id).unwrap_or_default();
            (id.clone(), Verdict { uid: entry.uid.clone(), generation: entry.generation, problems, in_force })
        };
        self.0.iter().map(verdict).collect()
    }

    /// Remembers the versions of a selection, which is in force now.
    pub fn in_force(&mut self, selection: &Selection) {
        for (id, verdict) in &selection.verdicts {
            let Some(entry) = self.0.get_mut(id) else { continue };
            let is_present = verdict.in_force == InForce::Present && entry.uid == verdict.uid;
            if entry.good.as_ref().is_some_and(|(generation, _)| is_present && *generation == verdict.generation) {
                continue;
            }
            if let Some(document) = selection.chosen.get(id).filter(|_| is_present) {
                entry.good = Some((verdict.generation, document.clone()));
            }
        }
    }
}

impl Entry {
    /// Whether the present version was in force.
    fn was_in_force(&self) -> bool {
        self.good.as_ref().is_some_and(|(generation, _)| *generation == self.generation)
    }

    fn version(&self, id: &DocumentId, choice: Choice) -> Option<Document> {
        match choice {
            Choice::Present => self.document.as_ref().ok().cloned(),
            Choice::Earlier => self.good.as_ref().map(|(_, document)| document.clone()),
            Choice::Denial(target) => denial::of(id, &self.spec, target),
            Choice::Nothing => None,
        }
    }

    /// The version to try when this one is refused.
    fn next(&self, id: &DocumentId, choice: Choice) -> Choice {
        let is_policy = id.kind == "Policy";
        let earlier = self.good.is_some() && !self.was_in_force();
        let can_deny = |target| is_policy && denial::of(id, &self.spec, target).is_some();
        match choice {
            Choice::Present if earlier => Choice::Earlier,
            Choice::Present | Choice::Earlier if can_deny(Target::OfPolicy) => Choice::Denial(Target::OfPolicy),
            Choice::Present | Choice::Earlier | Choice::Denial(Target::OfPolicy)
                if is_policy && (self.spec.is_null() || denial::has_target(&self.spec)) =>
            {
                Choice::Denial(Target::Namespace)
            }
            _ => Choice::Nothing,
        }
    }
}

fn id_of(kind: &ObjectKind, key: &ObjectKey) -> DocumentId {
    DocumentId { kind: kind.name.to_owned(), namespace: key.namespace.clone(), name: key.name.clone() }
}

fn key_of(id: &DocumentId) -> ObjectKey {
    ObjectKey { namespace: id.namespace.clone(), name: id.name.clone() }
}
