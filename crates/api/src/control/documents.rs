//! Checks of documents of requests, by the control plane and by clients that have none.

use super::error::ApiError;
use super::quota::Namespaces;
use super::types::File;
use leno_config::{Document, DocumentId, Effort, Problem, SecretSet, Snapshot};
use leno_intake::{Intake, Source, UnstoredDocuments};
use std::collections::BTreeMap;
use std::path::Path;

/// Documents by name.
pub(super) type Documents = BTreeMap<DocumentId, Document>;

/// Longest name of a text. Problems and documents have copies of it.
const LONGEST_NAME: usize = 1024;

/// The documents of a request, and the position of each.
pub(super) fn read(files: &[File]) -> Result<(Documents, BTreeMap<DocumentId, usize>), ApiError> {
    let texts = files.iter().map(|file| (Path::new(&file.name), &*file.text));
    let documents = Document::read_all(texts).map_err(ApiError::Problems)?;
    let order = documents.iter().enumerate().map(|(place, document)| (document.id().clone(), place)).collect();
    Ok((documents.into_iter().map(|document| (document.id().clone(), document)).collect(), order))
}

/// Refuses names of texts that problems could not repeat.
pub(super) fn check_names(files: &[File]) -> Result<(), ApiError> {
    if files.iter().any(|file| file.name.len() > LONGEST_NAME) {
        return Err(ApiError::Bad(format!("the name of a text has more than {LONGEST_NAME} bytes")));
    }
    Ok(())
}

/// Compiles documents, and compares the use of namespaces with their quotas. `documents`: those of
/// `source`, in their order. `before` is the use
/// that a namespace may have although it exceeds its quota.
pub(super) fn compile(
    intake: &Intake,
    documents: &[&Document],
    source: impl Source,
    before: &Namespaces,
    effort: &Effort,
) -> Result<(Snapshot, Namespaces), ApiError> {
    let snapshot = intake.check(source, effort)?;
    // This comes before functions get copies of the rules, which can be much larger than the
    // documents.
    let namespaces = Namespaces::of(documents, &snapshot);
    namespaces.check(before, documents, &snapshot)?;
    Ok((snapshot, namespaces))
}

/// Checks texts as a control plane without any document would check a request with them. `stored`:
/// the stored secrets that it has nevertheless; `None`: they are not known.
///
/// # Errors
/// Everything for which it would refuse the request.
pub fn check(intake: &Intake, files: &[File], stored: Option<SecretSet>) -> Result<Snapshot, Vec<Problem>> {
    let checked = || {
        check_names(files)?;
        let (documents, order) = read(files)?;
        let mut ordered: Vec<&Document> = documents.values().collect();
        ordered.sort_by_key(|document| order.get(document.id()));
        if ordered.is_empty() {
            return Err(ApiError::Bad("there is no document".to_owned()));
        }
        compile(
            intake,
            &ordered,
            UnstoredDocuments(&ordered, stored.clone()),
            &Namespaces::default(),
            &Effort::unbounded(),
        )
    };
    match checked() {
        Ok((snapshot, _)) => Ok(snapshot),
        Err(ApiError::Problems(problems) | ApiError::Quota { problems, .. }) if !problems.is_empty() => Err(problems),
        Err(other) => Err(vec![Problem {
            file: "documents".into(),
            line: 0,
            column: 0,
            field: String::new(),
            message: other.to_string(),
            fix: String::new(),
        }]),
    }
}
