//! The documents of the mesh: objects of the API server, and the functions of its workloads.

mod denial;
mod function;
mod object;
mod objects;
mod seen;

pub use function::Functions;
pub use object::{Condition, DocumentObject, ObjectStatus, VersionInForce};
pub use objects::{InForce, Objects, Selection, Verdict};
pub use seen::SeenStatuses;

use leno_config::{Document, DocumentSet, Effort, Problem, Snapshot};
use leno_intake::Source;

/// Documents of a cluster. One may name another that does not exist yet: names that are missing are
/// warnings.
pub(crate) struct ClusterDocuments<'a>(pub(crate) &'a [&'a Document]);

impl Source for ClusterDocuments<'_> {
    fn compile(self, effort: &Effort) -> Result<Snapshot, Vec<Problem>> {
        let mut set = DocumentSet::of_documents(self.0.iter().copied(), effort);
        set.documents.kubernetes = true;
        leno_translate::compile(set)
    }
}
