//! Documents, checked and published.
//!
//! [`Intake`] takes the documents of a [`Source`] (files, or the store of a control plane's API):
//! it translates those of other projects, compiles their modules, resolves tags of images to digests, and publishes the result.
#![forbid(unsafe_code)]

mod images;
mod modules;

pub use images::{Resolution, Tags, UnresolvedTags};

use leno_config::{Document, DocumentSet, Effort, Problem, SecretSet, Snapshot, SnapshotDifference};
use leno_control::{Control, Definitions, PublishError, PublishSummary, Secrets};
use leno_model::FunctionConfig;
use leno_proxy::modules::Modules;
use std::path::Path;
use std::sync::Arc;
use tokio::task::block_in_place;

/// A source of documents.
pub trait Source {
    /// Compiles the documents as they are now. Blocks.
    ///
    /// # Errors
    /// All problems of the documents.
    fn compile(self, effort: &Effort) -> Result<Snapshot, Vec<Problem>>;
}

/// A file, or a folder of files.
impl Source for &Path {
    fn compile(self, _: &Effort) -> Result<Snapshot, Vec<Problem>> {
        leno_translate::load(self)
    }
}

/// Stored documents, in the order in which they were applied.
impl Source for &[&Document] {
    fn compile(self, effort: &Effort) -> Result<Snapshot, Vec<Problem>> {
        leno_translate::compile(DocumentSet::of_documents(self.iter().copied(), effort))
    }
}

/// Documents that a control plane does not have yet, and the stored secrets that it has; `None`:
/// they are not known.
pub struct UnstoredDocuments<'a>(pub &'a [&'a Document], pub Option<SecretSet>);

impl Source for UnstoredDocuments<'_> {
    fn compile(self, effort: &Effort) -> Result<Snapshot, Vec<Problem>> {
        let mut set = DocumentSet::of_documents(self.0.iter().copied(), effort);
        (set.documents.unstored, set.documents.stored) = (true, self.1);
        leno_translate::compile(set)
    }
}

/// A source that its watcher has compiled.
impl Source for Result<Snapshot, Vec<Problem>> {
    fn compile(self, _: &Effort) -> Result<Snapshot, Vec<Problem>> {
        self
    }
}

/// Documents were not published.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// No digest is known for tags of images. A later attempt can succeed.
    #[error("{} problems with images", .0.len())]
    Images(Vec<Problem>),
    /// The control plane refuses the definitions.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Documents that are in force.
pub struct PublishedDocuments {
    snapshot: Arc<Snapshot>,
    definitions: Definitions,
}

/// Checks documents, and publishes them.
#[derive(Clone, Default)]
pub struct Intake {
    modules: Arc<Modules>,
}

impl Intake {
    /// An intake that keeps compiled modules in `modules`.
    pub fn new(modules: Arc<Modules>) -> Self {
        Self { modules }
    }

    /// Compiles the documents of a source and the modules that are files, and checks the names of
    /// images. Fetches nothing. Blocks.
    ///
    /// # Errors
    /// All problems of the documents.
    pub fn check(&self, source: impl Source, effort: &Effort) -> Result<Snapshot, Vec<Problem>> {
        let snapshot = source.compile(effort)?;
        let mut problems = modules::problems(&snapshot, &self.modules);
        problems.extend(images::problems(&snapshot));
        if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
    }

    /// Resolves the images of checked documents, and publishes these. `secrets`: the values of
    /// stored secrets, if the documents do not have them.
    ///
    /// # Errors
    /// A tag has no known digest, or the control plane refuses the definitions. The previous
    /// definitions stay in force.
    pub async fn publish(
        &self,
        control: &Control,
        snapshot: &Snapshot,
        secrets: Option<Secrets>,
    ) -> Result<(PublishSummary, Definitions), IntakeError> {
        let mut tags = Tags::default();
        let mut definitions = loop {
            match block_in_place(|| images::resolve(control, snapshot, &tags)).map_err(IntakeError::Images)? {
                Resolution::Complete(definitions) => break *definitions,
                Resolution::Incomplete(unresolved) => {
                    unresolved.look_up(&mut tags).await.map_err(IntakeError::Images)?;
                }
            }
        };
        if secrets.is_some() {
            definitions.secrets = secrets;
        }
        let published = block_in_place(|| control.publish(&definitions))?;
        Ok((published, definitions))
    }

    /// Publishes checked documents after others, which are in force. The cost of configuring, encoding
    /// and storing functions depends on those that differ.
    ///
    /// # Errors
    /// As [`Intake::publish`]. The previous definitions stay in force.
    pub async fn publish_after(
        &self,
        control: &Control,
        snapshot: Arc<Snapshot>,
        before: Option<PublishedDocuments>,
    ) -> Result<(PublishSummary, PublishedDocuments), IntakeError> {
        // Tags of images are looked up together.
        let difference = before.filter(|_| snapshot.containers().next().is_none()).and_then(|before| {
            let difference = snapshot.difference(&before.snapshot)?;
            Some((before.definitions, difference))
        });
        let Some((mut definitions, SnapshotDifference { changed, removed })) = difference else {
            let (summary, definitions) = self.publish(control, &snapshot, None).await?;
            return Ok((summary, PublishedDocuments { snapshot, definitions }));
        };
        let configs = changed.iter().filter_map(|id| snapshot.function_config(id));
        let configs: Vec<FunctionConfig> =
            configs.filter(|config| definitions.configs.get(&config.id) != Some(config)).collect();
        let differing: Vec<&FunctionConfig> = configs.iter().collect();
        let permissions = snapshot.permissions();
        block_in_place(|| {
            control.change_after(&differing, &removed, None, &permissions, || Ok::<_, PublishError>(()))
        })?;
        removed.iter().for_each(|id| drop(definitions.configs.remove(id)));
        let changed = configs.len();
        definitions.configs.extend(configs.into_iter().map(|config| (config.id.clone(), config)));
        definitions.permissions = permissions;
        let summary = PublishSummary { functions: definitions.configs.len(), changed, removed: removed.len() };
        Ok((summary, PublishedDocuments { snapshot, definitions }))
    }

    /// The definitions of checked documents, with the digests in `tags`. Blocks on files with
    /// certificates and credentials.
    ///
    /// # Errors
    /// Problems with names of images.
    pub fn resolve(control: &Control, snapshot: &Snapshot, tags: &Tags) -> Result<Resolution, Vec<Problem>> {
        images::resolve(control, snapshot, tags)
    }
}
