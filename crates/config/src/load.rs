//! Files -> documents.

use crate::compile::{Documents, TypedDocument};
use crate::counterpart::{self, Counterpart};
use crate::deserialize::deserialize;
use crate::document;
use crate::document_id::DocumentId;
use crate::folder::{self, DocumentFiles};
use crate::foreign::{ForeignDocument, ForeignKind};
use crate::gateway_document;
use crate::namespace_object::{self, NamespaceObject};
use crate::nearest::did_you_mean;
use crate::problem::{Origin, Problem, Scope};
use crate::yaml::{Node, SyntaxError, Value};
use aws_lc_rs::digest;
use leno_files::FileAccess;
use leno_gateway_api::Resource;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of this many bytes holds tens of thousands of functions.
const LARGEST_FILE: u64 = 16 << 20;
/// All files together.
const LARGEST_TOTAL: u64 = 128 << 20;

/// The texts of the files that [`DocumentSet::of_path`](crate::DocumentSet::of_path) reads, unparsed.
///
/// # Errors
/// Files that cannot be read.
pub fn texts(path: &Path) -> Result<Vec<(PathBuf, String)>, Vec<Problem>> {
    let DocumentFiles { files, problems, .. } = folder::find(path);
    let (texts, problems) = read(files, problems);
    if problems.is_empty() { Ok(texts) } else { Err(problems) }
}

pub(crate) fn read(files: Vec<PathBuf>, mut problems: Vec<Problem>) -> (Vec<(PathBuf, String)>, Vec<Problem>) {
    let mut texts = Vec::new();
    let mut total = 0;
    for file in files {
        match text(&file, &mut total) {
            Ok(text) => texts.push((file, text)),
            Err(problem) => problems.push(problem),
        }
    }
    (texts, problems)
}

fn text(file: &Path, total: &mut u64) -> Result<String, Problem> {
    let fail = |error: std::io::Error| Problem::of_file(file, format!("cannot be read: {error}"), "");
    let text = leno_files::read(file, &FileAccess::Any, LARGEST_FILE);
    let size = text.as_ref().map_or(0, |text| text.len() as u64);
    *total += size;
    if text.as_ref().is_err_and(|error| error.kind() == ErrorKind::FileTooLarge) || *total > LARGEST_TOTAL {
        let fix =
            format!("expected at most {} MiB in a file and {} MiB in all", LARGEST_FILE >> 20, LARGEST_TOTAL >> 20);
        return Err(Problem::of_file(file, "too large", fix));
    }
    String::from_utf8(text.map_err(fail)?).map_err(|error| {
        let before = error.utf8_error().valid_up_to();
        Problem::of_file(file, format!("not UTF-8 text (after {before} bytes)"), "save the file as UTF-8")
    })
}

/// A typed document of any kind.
#[derive(Clone)]
pub(crate) enum AnyDocument {
    Mesh(Arc<TypedDocument<document::Mesh>>),
    Function(Arc<TypedDocument<document::Function>>),
    Job(Arc<TypedDocument<document::Job>>),
    External(Arc<TypedDocument<document::External>>),
    Chain(Arc<TypedDocument<document::Chain>>),
    Policy(Arc<TypedDocument<document::Policy>>),
    StoredSecret(Arc<TypedDocument<document::StoredSecret>>),
    NamespaceQuota(Arc<TypedDocument<document::NamespaceQuota>>),
    Namespace(Arc<TypedDocument<NamespaceObject>>),
    GatewayApi(Arc<TypedDocument<Resource>>),
    Foreign(Arc<ForeignDocument>),
}

impl AnyDocument {
    /// Adds the document to those of its kind.
    pub(crate) fn add_to(self, documents: &mut Documents) {
        match self {
            Self::Mesh(document) => documents.meshes.push(document),
            Self::Function(document) => documents.functions.push(document),
            Self::Job(document) => documents.jobs.push(document),
            Self::External(document) => documents.externals.push(document),
            Self::Chain(document) => documents.chains.push(document),
            Self::Policy(document) => documents.policies.push(document),
            Self::StoredSecret(document) => documents.stored_secrets.push(document),
            Self::NamespaceQuota(document) => documents.namespace_quotas.push(document),
            Self::Namespace(document) => documents.namespaces.push(document),
            Self::GatewayApi(document) => documents.gateway_api.push(document),
            Self::Foreign(document) => documents.foreign.push(document),
        }
    }
}

/// The typed document; `None`: problems were reported.
pub(crate) fn parse(file: &Path, node: Node, origin: Origin, problems: &RefCell<Vec<Problem>>) -> Option<AnyDocument> {
    let root = Scope::root(file, &node, problems);
    let Some(kind) = node.get("kind").and_then(Node::text) else {
        let fix = "expected `apiVersion: leno.dev/v1alpha1` and `kind: Mesh`, `Function`, `Job`, `External`, `Chain`, `Policy`, `StoredSecret` or `NamespaceQuota`, or a kind of the Gateway API";
        if counterpart::is_compose(&node) {
            let fix = "write a `Function` for each service: docs/coming-from.md has the fields";
            root.problem("this is a file of Docker Compose, and no document of the mesh", fix);
            return None;
        }
        root.problem("this is no document of the mesh: it has no `kind`", fix);
        return None;
    };
    if namespace_object::is_one(&node) {
        let document = namespace_object::read(&root)?;
        let file = file.to_owned();
        return Some(AnyDocument::Namespace(Arc::new(TypedDocument { file, node, origin, document })));
    }
    let counterpart = counterpart::of(&node, &DocumentId::KINDS).filter(|_| ForeignKind::named(kind).is_none());
    if let Some(Counterpart { system, kind, here, .. }) = counterpart {
        root.field("kind").problem(format!("`{kind}` is a kind of {system}"), format!("its counterpart: {here}"));
        return None;
    }
    let group = node.get("apiVersion").and_then(Node::text).and_then(|version| version.split('/').next());
    if gateway_document::is_one(group.unwrap_or_default(), kind) {
        let document = gateway_document::read(&root, group.unwrap_or_default(), kind)?;
        let file = file.to_owned();
        return Some(AnyDocument::GatewayApi(Arc::new(TypedDocument { file, node, origin, document })));
    }
    match kind {
        "Mesh" => typed(file, node, origin, problems).map(AnyDocument::Mesh),
        "Function" => typed(file, node, origin, problems).map(AnyDocument::Function),
        "Job" => typed(file, node, origin, problems).map(AnyDocument::Job),
        "External" => typed(file, node, origin, problems).map(AnyDocument::External),
        "Chain" => typed(file, node, origin, problems).map(AnyDocument::Chain),
        "Policy" => typed(file, node, origin, problems).map(AnyDocument::Policy),
        "StoredSecret" => without_values(&node, problems, |problems| {
            typed(file, node.clone(), origin, problems).map(AnyDocument::StoredSecret)
        }),
        "NamespaceQuota" => typed(file, node, origin, problems).map(AnyDocument::NamespaceQuota),
        other => match ForeignKind::named(other) {
            Some(kind) => {
                Some(AnyDocument::Foreign(Arc::new(ForeignDocument { file: file.to_owned(), node, origin, kind })))
            }
            None => {
                let message = format!("there is no kind `{}`", other.escape_debug());
                root.field("kind").problem(message, did_you_mean(other, DocumentId::KINDS));
                None
            }
        },
    }
}

fn typed<T: DeserializeOwned>(
    file: &Path,
    node: Node,
    origin: Origin,
    problems: &RefCell<Vec<Problem>>,
) -> Option<Arc<TypedDocument<T>>> {
    let document = deserialize(&Scope::root(file, &node, problems))?;
    Some(Arc::new(TypedDocument { file: file.to_owned(), node, origin, document }))
}

/// Reports the problems of a StoredSecret without any of its values.
fn without_values<T>(
    node: &Node,
    problems: &RefCell<Vec<Problem>>,
    parse: impl FnOnce(&RefCell<Vec<Problem>>) -> Option<T>,
) -> Option<T> {
    let own = RefCell::new(Vec::new());
    let parsed = parse(&own);
    let mut values = Vec::new();
    node.get("spec").into_iter().for_each(|spec| scalars(spec, &mut values));
    for mut problem in own.into_inner() {
        // Messages have values in the form that `describe` gives them.
        let has = |text: &str| values.iter().any(|value| text.contains(&**value));
        if problem.field.starts_with("spec") && (has(&problem.message) || has(&problem.fix)) {
            let fix = "expected `stringData: {KEY: TEXT}`, or `data: {KEY: BASE64}`".to_owned();
            problem = Problem { message: "this has another form than expected".to_owned(), fix, ..problem };
        }
        problems.borrow_mut().push(problem);
    }
    parsed
}

/// The first characters of all texts in a node, as messages have them.
fn scalars(node: &Node, texts: &mut Vec<String>) {
    match &node.value {
        Value::Scalar { text, .. } if !text.is_empty() => {
            texts.push(text.chars().take(8).collect::<String>().escape_debug().to_string());
        }
        Value::Scalar { .. } => {}
        Value::List(nodes) => nodes.iter().for_each(|node| scalars(node, texts)),
        Value::Map(entries) => entries.iter().for_each(|(_, node)| scalars(node, texts)),
    }
}

/// A document that is not YAML.
pub(crate) fn broken_document(file: &Path, error: SyntaxError) -> Problem {
    let (line, column) = (error.mark.line, error.mark.column);
    Problem { file: file.to_owned(), line, column, field: String::new(), message: error.message, fix: error.fix }
}

/// Hash over the documents and all files that they refer to.
pub(crate) fn version(texts: &[(PathBuf, String)], inputs: &[PathBuf]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut add = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    for (file, text) in texts {
        add(file.as_os_str().as_encoded_bytes());
        add(text.as_bytes());
    }
    for file in inputs {
        add(file.as_os_str().as_encoded_bytes());
        add(&leno_files::read(file, &FileAccess::Any, LARGEST_TOTAL).unwrap_or_default());
    }
    let hash = context.finish();
    hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
