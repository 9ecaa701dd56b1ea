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

use leno_config::{Document, DocumentId, DocumentSet, Effort, Problem, Snapshot};
use leno_intake::Source;
use std::collections::BTreeSet;

/// Documents of a cluster, and those that were in force before in the same version. One may name
/// another that does not exist yet: names that are missing are warnings.
pub(crate) struct ClusterDocuments<'a>(pub(crate) &'a [&'a Document], pub(crate) BTreeSet<DocumentId>);

impl Source for ClusterDocuments<'_> {
    fn compile(self, effort: &Effort) -> Result<Snapshot, Vec<Problem>> {
        let mut set = DocumentSet::of_documents(self.0.iter().copied(), effort);
        (set.documents.kubernetes, set.documents.in_force) = (true, self.1);
        leno_translate::compile(set)
    }
}
