//! Files -> documents -> [`Snapshot`].

use crate::compile::{self, Documents, TypedDocument};
use crate::deserialize::deserialize;
use crate::document;
use crate::folder::{self, DocumentFiles};
use crate::import::{self, Foreign, Kind};
use crate::nearest::did_you_mean;
use crate::problem::{Origin, Problem, Scope};
use crate::snapshot::{Read, Snapshot};
use crate::yaml::{self, Node, SyntaxError};
use aws_lc_rs::digest;
use leno_files::FileAccess;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of this many bytes holds tens of thousands of functions.
const LARGEST_FILE: u64 = 16 << 20;
/// All files together.
const LARGEST_TOTAL: u64 = 128 << 20;

/// Loads a file, or all `*.yaml` and `*.yml` files of a folder and of the folders in it, in the
/// order of their names. Links are followed, names that begin with a dot are not read.
///
/// # Errors
/// All problems, ordered by file and line. No part of the documents can be used then.
pub fn load(path: &Path) -> Result<Snapshot, Vec<Problem>> {
    let DocumentFiles { files, problems, hidden, others } = folder::find(path);
    let (texts, problems) = read(files, problems);
    let folder = path.is_dir().then_some(path);
    let mut snapshot = build(&texts, problems, folder)?;
    (snapshot.read.hidden, snapshot.read.others) = (hidden, others);
    Ok(snapshot)
}

/// The texts of the files that [`load`] reads, unparsed.
///
/// # Errors
/// Files that cannot be read.
pub fn texts(path: &Path) -> Result<Vec<(PathBuf, String)>, Vec<Problem>> {
    let DocumentFiles { files, problems, .. } = folder::find(path);
    let (texts, problems) = read(files, problems);
    if problems.is_empty() { Ok(texts) } else { Err(problems) }
}

fn read(files: Vec<PathBuf>, mut problems: Vec<Problem>) -> (Vec<(PathBuf, String)>, Vec<Problem>) {
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

/// Loads one text; `file` is its name in problems, and its folder the base of relative paths in the
/// text.
///
/// # Errors
/// As [`load`].
pub fn load_text(file: &Path, text: &str) -> Result<Snapshot, Vec<Problem>> {
    build(&[(file.to_owned(), text.to_owned())], Vec::new(), None)
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

fn build(texts: &[(PathBuf, String)], problems: Vec<Problem>, folder: Option<&Path>) -> Result<Snapshot, Vec<Problem>> {
    let folder = folder.map(Path::to_owned);
    let mut documents = Documents { incomplete: !problems.is_empty(), folder, ..Documents::default() };
    let mut foreign = Vec::new();
    let problems = RefCell::new(problems);
    for (file, text) in texts {
        for document in yaml::documents(text) {
            let before = problems.borrow().len();
            match document {
                Ok(node) => {
                    if let Some(parsed) = parse(file, node, Origin::File, &problems) {
                        parsed.add_to(&mut documents, &mut foreign);
                    }
                }
                Err(broken) => problems.borrow_mut().push(broken_document(file, broken)),
            }
            documents.incomplete |= problems.borrow().len() > before;
        }
    }
    if let ([(file, _), ..], false) = (texts, documents.incomplete)
        && documents.meshes.is_empty()
        && documents.functions.is_empty()
        && documents.jobs.is_empty()
        && documents.externals.is_empty()
        && documents.chains.is_empty()
        && documents.policies.is_empty()
        && documents.namespace_quotas.is_empty()
        && foreign.is_empty()
    {
        problems.borrow_mut().push(Problem::of_file(file, "there is no document", "add a Function to begin with"));
    }
    let mut snapshot = finish(documents, &foreign, problems)?;
    snapshot.version = version(texts, &snapshot.inputs);
    snapshot.read.files = texts.len();
    snapshot.inputs.splice(0..0, texts.iter().map(|(file, _)| file.clone()));
    Ok(snapshot)
}

/// Translates, checks and compiles documents.
pub(crate) fn finish(
    mut documents: Documents,
    foreign: &[Arc<Foreign>],
    problems: RefCell<Vec<Problem>>,
) -> Result<Snapshot, Vec<Problem>> {
    let (own, externals) = (documents.policies.len(), documents.externals.len());
    let imports = import::translate(foreign, &mut documents, &problems);
    let mut snapshot = compile::compile(&documents, &problems);
    let mut problems = problems.into_inner();
    if documents.effort.is_over() {
        let problem = Problem::of_file(Path::new("documents"), "checking them took too long", "apply them in parts");
        return Err(vec![problem]);
    }
    if !problems.is_empty() {
        problems.sort();
        problems.dedup();
        return Err(problems);
    }
    snapshot.imports = imports;
    snapshot.read = Read {
        documents: [
            ("Mesh", documents.meshes.len()),
            ("Function", documents.functions.len()),
            ("Job", documents.jobs.len()),
            ("External", externals),
            ("Chain", documents.chains.len()),
            ("Policy", own),
            ("NamespaceQuota", documents.namespace_quotas.len()),
            ("translated policy", foreign.len()),
        ],
        ..Read::default()
    };
    Ok(snapshot)
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
    NamespaceQuota(Arc<TypedDocument<document::NamespaceQuota>>),
    Foreign(Arc<Foreign>),
}

impl AnyDocument {
    /// Adds the document to those of its kind.
    pub(crate) fn add_to(self, documents: &mut Documents, foreign: &mut Vec<Arc<Foreign>>) {
        match self {
            Self::Mesh(document) => documents.meshes.push(document),
            Self::Function(document) => documents.functions.push(document),
            Self::Job(document) => documents.jobs.push(document),
            Self::External(document) => documents.externals.push(document),
            Self::Chain(document) => documents.chains.push(document),
            Self::Policy(document) => documents.policies.push(document),
            Self::NamespaceQuota(document) => documents.namespace_quotas.push(document),
            Self::Foreign(document) => foreign.push(document),
        }
    }
}

/// The kinds that a document may be of.
pub(crate) const KINDS: [&str; 10] = [
    "Mesh",
    "Function",
    "Job",
    "External",
    "Chain",
    "Policy",
    "NamespaceQuota",
    Kind::NAMES[0],
    Kind::NAMES[1],
    Kind::NAMES[2],
];

/// The typed document; `None`: problems were reported.
pub(crate) fn parse(file: &Path, node: Node, origin: Origin, problems: &RefCell<Vec<Problem>>) -> Option<AnyDocument> {
    let root = Scope::root(file, &node, problems);
    let Some(kind) = node.get("kind").and_then(Node::text) else {
        let fix = "expected `apiVersion: leno.dev/v1alpha1` and `kind: Mesh`, `Function`, `Job`, `External`, `Chain`, `Policy` or `NamespaceQuota`";
        root.problem("this is no document of the mesh: it has no `kind`", fix);
        return None;
    };
    match kind {
        "Mesh" => typed(file, node, origin, problems).map(AnyDocument::Mesh),
        "Function" => typed(file, node, origin, problems).map(AnyDocument::Function),
        "Job" => typed(file, node, origin, problems).map(AnyDocument::Job),
        "External" => typed(file, node, origin, problems).map(AnyDocument::External),
        "Chain" => typed(file, node, origin, problems).map(AnyDocument::Chain),
        "Policy" => typed(file, node, origin, problems).map(AnyDocument::Policy),
        "NamespaceQuota" => typed(file, node, origin, problems).map(AnyDocument::NamespaceQuota),
        other => match Kind::named(other) {
            Some(kind) => Some(AnyDocument::Foreign(Arc::new(Foreign { file: file.to_owned(), node, origin, kind }))),
            None => {
                let message = format!("there is no kind `{}`", other.escape_debug());
                root.field("kind").problem(message, did_you_mean(other, KINDS));
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

/// A document that is not YAML.
pub(crate) fn broken_document(file: &Path, broken: SyntaxError) -> Problem {
    let (line, column) = (broken.mark.line, broken.mark.column);
    Problem { file: file.to_owned(), line, column, field: String::new(), message: broken.message, fix: broken.fix }
}

/// Hash over the documents and all files that they refer to.
fn version(texts: &[(PathBuf, String)], inputs: &[PathBuf]) -> String {
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
