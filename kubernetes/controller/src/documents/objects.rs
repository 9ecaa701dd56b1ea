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

impl Selection {
    /// Whether it has versions that were not in force before.
    pub(crate) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }
}

/// Documents that are valid together.
pub struct Selection {
    /// They, compiled.
    pub snapshot: Arc<Snapshot>,
    /// What became of each object.
    pub verdicts: BTreeMap<DocumentId, Verdict>,
    /// The number of documents, with those of functions.
    pub documents: usize,
    /// Present versions that were not in force before.
    new: Vec<Document>,
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
        let candidate = |(id, entry): (&'a DocumentId, &'a Entry)| match &entry.document {
            Ok(_) => Candidate { id, entry, choice: Choice::Present, problems: Vec::new() },
            Err(found) => Candidate { id, entry, choice: entry.next(id, Choice::Present), problems: found.clone() },
        };
        let mut candidates: Vec<Candidate<'_>> = self.0.iter().map(candidate).collect();
        let mut functions: Vec<&Document> = functions.collect();
        // Of two documents that exclude each other, the compiler reports the later one.
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|index| (&candidates[*index].entry.created, *index));
        loop {
            let chosen: Vec<(&Candidate<'_>, Document)> =
                order.iter().map(|index| &candidates[*index]).filter_map(|one| Some((one, one.version()?))).collect();
            let all: Vec<&Document> =
                functions.iter().copied().chain(chosen.iter().map(|(_, document)| document)).collect();
            let before = chosen.iter().map(|(one, _)| *one).filter(|one| match one.choice {
                Choice::Present => one.entry.was_in_force(),
                choice => choice == Choice::Earlier,
            });
            let found = match check(&all, before.map(|one| one.id.clone()).collect()) {
                Ok(snapshot) => {
                    let (snapshot, documents) = (Arc::new(snapshot), all.len());
                    let is_new = |one: &Candidate<'_>| one.choice == Choice::Present && !one.entry.was_in_force();
                    let new = chosen.into_iter().filter(|(one, _)| is_new(one)).map(|(_, document)| document).collect();
                    let verdicts = candidates.into_iter().map(Candidate::verdict).collect();
                    return Ok(Selection { snapshot, verdicts, documents, new });
                }
                Err(found) => found,
            };
            drop(chosen);
            let names: BTreeMap<String, usize> = self.0.keys().map(DocumentId::to_string).zip(0..).collect();
            let mut unchanged = true;
            let mut refused = BTreeSet::new();
            for problem in &found {
                let Some(file) = problem.file.to_str() else { continue };
                if let Some(index) = names.get(file) {
                    let candidate = &mut candidates[*index];
                    if candidate.choice == Choice::Present {
                        candidate.problems.push(without_line(problem.clone()));
                    }
                    refused.insert(*index);
                } else if let Some(index) = functions.iter().position(|function| function.id().to_string() == file) {
                    tracing::error!("{problem}; its pods are not in the mesh");
                    functions.remove(index);
                    unchanged = false;
                }
            }
            for index in refused {
                let candidate = &mut candidates[index];
                if candidate.choice != Choice::Nothing {
                    candidate.choice = candidate.entry.next(candidate.id, candidate.choice);
                    unchanged = false;
                }
            }
            if unchanged {
                return Err(found);
            }
        }
    }

    /// Remembers the versions of a selection, which is in force now.
    pub fn in_force(&mut self, selection: &Selection) {
        for document in &selection.new {
            let verdict = selection.verdicts.get(document.id());
            if let Some((entry, verdict)) = self.0.get_mut(document.id()).zip(verdict)
                && entry.uid == verdict.uid
            {
                entry.good = Some((verdict.generation, document.clone()));
            }
        }
    }
}

/// An object, and the version that is tried of it.
struct Candidate<'a> {
    id: &'a DocumentId,
    entry: &'a Entry,
    choice: Choice,
    /// The problems of its present version.
    problems: Vec<Problem>,
}

impl Candidate<'_> {
    fn version(&self) -> Option<Document> {
        self.entry.version(self.id, self.choice)
    }

    fn verdict(self) -> (DocumentId, Verdict) {
        let Self { id, entry, choice, problems } = self;
        let in_force = match (choice, &entry.good) {
            (Choice::Present, _) => InForce::Present,
            (Choice::Earlier, Some((generation, good))) => InForce::Earlier(*generation, object::spec(good)),
            (Choice::Denial(_), _) => InForce::Denial,
            (Choice::Earlier | Choice::Nothing, _) => InForce::Nothing,
        };
        (id.clone(), Verdict { uid: entry.uid.clone(), generation: entry.generation, problems, in_force })
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
