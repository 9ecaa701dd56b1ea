//! `--prune`: the stored documents that a set of documents has no more.

use super::sources::names;
use super::{Connection, checked};
use anyhow::{Result, ensure};
use leno_api::control::types::{ChangeRequest, Documents, ExpectedVersion, Name};
use std::collections::BTreeSet;

/// Whether to delete stored documents that are not in the set.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Prune {
    /// Also delete the documents that the control plane has in the namespaces of these documents,
    /// and that are not among them. Never stored secrets, the Mesh document and others of the whole
    /// mesh.
    #[arg(long)]
    prune: bool,
    /// Delete in this namespace only (several times, if need be); by default in each that has one
    /// of the documents.
    #[arg(short, long = "namespace", value_name = "NAMESPACE", requires = "prune")]
    namespaces: Vec<String>,
}

impl Prune {
    /// Adds the deletions to a request that applies documents. Each expects the version that was
    /// listed, so a change of the document in the meantime refuses the request.
    pub(super) fn add_to(&self, request: &mut ChangeRequest, connection: &Connection) -> Result<()> {
        if !self.prune {
            return Ok(());
        }
        let applied: BTreeSet<Name> = names(&request.apply)?.into_iter().collect();
        let with_documents: BTreeSet<&str> =
            applied.iter().map(|name| &*name.namespace).filter(|namespace| !namespace.is_empty()).collect();
        ensure!(
            !with_documents.is_empty(),
            "--prune needs a document of a namespace: these have none, and it would delete everything or nothing"
        );
        for namespace in &self.namespaces {
            ensure!(
                with_documents.contains(&**namespace),
                "no document is of the namespace `{}`: --prune would delete everything in it; delete its documents by \
                 name with `leno delete`",
                namespace.escape_debug()
            );
        }
        for namespace in with_documents {
            if !self.namespaces.is_empty() && !self.namespaces.iter().any(|wanted| wanted == namespace) {
                continue;
            }
            let listed: Documents = connection.get(&format!("/v1/documents?namespace={}", checked(namespace)?))?;
            for stored in listed.documents {
                // The filter is repeated here, where a mistake would delete documents of others.
                let is_kept = stored.document.kind == "StoredSecret" || applied.contains(&stored.document);
                if stored.document.namespace == namespace && !is_kept {
                    request.expect.push(ExpectedVersion { document: stored.document.clone(), version: stored.version });
                    request.delete.push(stored.document);
                }
            }
        }
        Ok(())
    }
}
