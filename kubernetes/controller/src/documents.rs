//! The documents of the mesh: objects of the API server, and the functions of its workloads.

mod denial;
mod function;
mod object;
mod objects;
mod seen;

pub use function::Functions;
pub use object::{ACCEPTED, Condition, DocumentObject, ObjectStatus, VersionInForce};
pub use objects::{InForce, Objects, Selection, Verdict};
pub use seen::SeenStatuses;

use leno_config::{CompileCache, Document, DocumentId, DocumentSet, Effort, Problem, Snapshot};
use leno_intake::Source;
use std::collections::BTreeSet;

/// Documents of a cluster, those that were in force before in the same version, and results of the
/// last compilation. One document may name another that does not exist yet: names that are missing
/// are warnings.
pub(crate) struct ClusterDocuments<'a> {
    pub(crate) documents: &'a [&'a Document],
    pub(crate) in_force: BTreeSet<DocumentId>,
    pub(crate) cache: Option<CompileCache>,
}

impl Source for ClusterDocuments<'_> {
    fn compile(self, effort: &Effort) -> Result<Snapshot, Vec<Problem>> {
        let mut set = DocumentSet::of_documents(self.documents.iter().copied(), effort);
        (set.documents.kubernetes, set.documents.in_force) = (true, self.in_force);
        set.documents.cache = self.cache;
        leno_translate::compile(set)
    }
}
