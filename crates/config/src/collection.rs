//! Documents that arrive one by one, in requests, and are stored by their names.
//!
//! A document is read once. All compilations that it takes part in share the parsed document.

use crate::compile::stored_secret;
use crate::counterpart;
use crate::document::{Metadata, PolicySpec, RedactedValue};
use crate::document_id::DocumentId;
use crate::foreign::{ForeignDocument, ForeignKind};
use crate::load::{AnyDocument, broken_document, parse};
use crate::namespace_object;
use crate::problem::{Origin, Problem, Scope};
use crate::secrets::KeySummary;
use crate::yaml::{self, Mark, Node};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A document that was read.
#[derive(Clone)]
pub struct Document {
    id: Arc<DocumentId>,
    text: Arc<str>,
    parsed: AnyDocument,
}

/// The namespaces whose functions a document can affect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only these namespaces.
    Namespaces(BTreeSet<String>),
    /// Any namespace, also a future one.
    Mesh,
}

/// The content of a StoredSecret that is to be stored.
pub struct SecretDocument<'a> {
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its values, by key.
    pub values: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

/// The documents of a file of another system, such as a compose file. Aliases and merge keys are
/// replaced by what they stand for.
///
/// # Errors
/// The text is no YAML.
pub fn foreign_documents(file: &Path, text: &str) -> Result<Vec<Node>, Vec<Problem>> {
    let (mut nodes, mut problems) = (Vec::new(), Vec::new());
    for document in yaml::documents_with_aliases(text) {
        match document {
            Ok(node) => nodes.push(node),
            Err(broken) => problems.push(broken_document(file, broken)),
        }
    }
    if problems.is_empty() { Ok(nodes) } else { Err(problems) }
}

/// A text of a file without the objects of Kubernetes that the mesh does not read, and a warning for
/// each. Lines stay as they are.
pub fn without_skipped(file: &Path, text: &str) -> (String, Vec<Problem>) {
    let (separators, mut kept, mut warnings) = (Separators::of(text), text.to_owned(), Vec::new());
    // From the end, so that earlier positions stay right.
    for node in yaml::documents(text).into_iter().flatten().collect::<Vec<_>>().iter().rev() {
        let Some(warning) = counterpart::skipped(file, node) else { continue };
        let own = separators.document(node.mark.line);
        let begin = own.as_ptr().addr() - text.as_ptr().addr();
        let lines = own.matches('\n').collect::<String>();
        kept.replace_range(begin..begin + own.len(), &lines);
        warnings.push(warning);
    }
    warnings.reverse();
    (kept, warnings)
}

impl Document {
    /// Reads all documents of a text. Problems name `file`.
    ///
    /// # Errors
    /// All problems that can be found in each document alone, in the order of their lines.
    pub fn read(file: &Path, text: &str) -> Result<Vec<Self>, Vec<Problem>> {
        let problems = RefCell::new(Vec::new());
        let (mut documents, mut names, separators) = (Vec::new(), BTreeSet::new(), Separators::of(text));
        for found in yaml::documents(text) {
            let node = match found {
                Ok(node) => node,
                Err(broken) => {
                    problems.borrow_mut().push(broken_document(file, broken));
                    continue;
                }
            };
            let (line, column) = (node.mark.line, node.mark.column);
            let fail = |message: &str, fix: &str| {
                let problem = Problem::of_file(file, message, fix);
                problems.borrow_mut().push(Problem { line, column, ..problem });
            };
            let own = separators.document(line);
            let Some(parsed) = parse(file, node, Origin::Request, &problems) else { continue };
            let Some(id) = parsed.id() else {
                fail("the document has no name", "add `metadata: {name: …}`");
                continue;
            };
            // Names are keys of the store and parts of paths, so they are checked before anything is compiled.
            // Those of the Gateway API are: their schema allows longer ones.
            let is_checked = matches!(parsed, AnyDocument::GatewayApi(_));
            let wrong = [&id.namespace, &id.name].into_iter().find(|name| !is_checked && !is_plain(name));
            if let Some(wrong) = wrong {
                let fix = "expected a DNS label: a-z, 0-9 and `-`, at most 63 characters";
                fail(&format!("`{}` cannot be a name", wrong.escape_debug()), fix);
                continue;
            }
            // The stored text must mean the same as the checked document.
            let again = yaml::documents(own);
            if !matches!(&again[..], [Ok(again)] if again.says_the_same(parsed.node())) {
                fail("the document cannot be kept by itself", "begin each document on a line after `---`");
                continue;
            }
            if !names.insert(id.clone()) {
                fail(&format!("{id} is there twice"), "keep one of the two");
                continue;
            }
            documents.push(Self { id: Arc::new(id), text: own.into(), parsed });
        }
        let mut problems = problems.into_inner();
        if problems.is_empty() {
            return Ok(documents);
        }
        problems.sort();
        problems.dedup();
        Err(problems)
    }

    /// Reads all documents of several texts, each with the name of its file.
    ///
    /// # Errors
    /// As [`Document::read`], and a document that is in two texts.
    pub fn read_all<'a>(texts: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Result<Vec<Self>, Vec<Problem>> {
        let (mut all, mut problems) = (Vec::new(), Vec::new());
        let mut names: BTreeMap<DocumentId, String> = BTreeMap::new();
        for (file, text) in texts {
            let documents = Self::read(file, text).unwrap_or_else(|found| {
                problems.extend(found);
                Vec::new()
            });
            for document in documents {
                let Mark { line, column } = document.parsed.node().mark;
                if let Some(first) = names.get(&document.id) {
                    let message = format!("{} is there twice, also in {first}", document.id);
                    let problem = Problem::of_file(file, message, "keep one of the two");
                    problems.push(Problem { line, column, ..problem });
                    continue;
                }
                names.insert((*document.id).clone(), format!("{}:{line}", file.display()));
                all.push(document);
            }
        }
        if problems.is_empty() { Ok(all) } else { Err(problems) }
    }

    /// Reads one document that was stored. Problems name the document, and lines of its text.
    ///
    /// # Errors
    /// As [`Document::read`], and if the text is not one document of this name.
    pub fn restore(id: &DocumentId, text: &str) -> Result<Self, Vec<Problem>> {
        let file = id.to_string();
        let mut documents = Self::read(Path::new(&file), text)?;
        match (documents.pop(), documents.is_empty()) {
            (Some(document), true) if *document.id == *id => Ok(document),
            _ => Err(vec![Problem::of_file(Path::new(&file), "the kept text is not this document", "apply it again")]),
        }
    }

    pub(crate) fn parsed(&self) -> &AnyDocument {
        &self.parsed
    }

    /// Its name.
    pub fn id(&self) -> &DocumentId {
        &self.id
    }

    /// The document's part of the text that it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The place of the document in its text, for errors that are found later: a problem without
    /// text.
    pub fn place(&self) -> Problem {
        let Mark { line, column } = self.parsed.node().mark;
        Problem { line, column, ..Problem::of_file(self.parsed.file(), "", "") }
    }

    /// The values of a StoredSecret; `None`: a document of another kind.
    ///
    /// # Errors
    /// Values that cannot be stored, and a document without values, as a control plane shows it.
    pub fn secret_values(&self) -> Result<Option<SecretDocument<'_>>, Vec<Problem>> {
        let AnyDocument::StoredSecret(placed) = &self.parsed else { return Ok(None) };
        let problems = RefCell::new(Vec::new());
        let root = Scope::root(&placed.file, &placed.node, &problems).of(placed.origin);
        let values = stored_secret::values(&root, &placed.document.spec);
        let problems = problems.into_inner();
        let labels = &placed.document.metadata.labels;
        if problems.is_empty() { Ok(Some(SecretDocument { labels, values })) } else { Err(problems) }
    }

    /// The document of a StoredSecret that stands for its values.
    ///
    /// # Errors
    /// As [`Document::restore`].
    pub fn redacted(
        id: &DocumentId,
        labels: &BTreeMap<String, String>,
        keys: &BTreeMap<String, KeySummary>,
    ) -> Result<Self, Vec<Problem>> {
        // A JSON string is a YAML string.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata:\n  name: {}\n  namespace: {}\n",
            id.name, id.namespace
        );
        if !labels.is_empty() {
            text.push_str("  labels:\n");
        }
        for (label, value) in labels {
            text.push_str(&format!("    {}: {}\n", quoted(label), quoted(value)));
        }
        text.push_str("spec:\n  redacted:\n");
        for (key, KeySummary { bytes, changed }) in keys {
            text.push_str(&format!("    {}: {{bytes: {bytes}, changed: {changed}}}\n", quoted(key)));
        }
        Self::restore(id, &text)
    }

    /// The keys of a StoredSecret that stands for its values; `None`: another document.
    pub fn redacted_keys(&self) -> Option<BTreeMap<String, KeySummary>> {
        let AnyDocument::StoredSecret(placed) = &self.parsed else { return None };
        let summary = |value: &RedactedValue| KeySummary { bytes: value.bytes, changed: value.changed };
        let redacted = placed.document.spec.redacted.as_ref()?;
        Some(redacted.iter().map(|(key, value)| (key.clone(), summary(value))).collect())
    }

    /// The namespaces whose functions the document can affect. Only the owner of a namespace should
    /// be able to affect its functions.
    pub fn reach(&self) -> Reach {
        let own = || BTreeSet::from([self.id.namespace.clone()]);
        match &self.parsed {
            AnyDocument::Mesh(_) | AnyDocument::NamespaceQuota(_) | AnyDocument::Namespace(_) => Reach::Mesh,
            AnyDocument::Function(_)
            | AnyDocument::Job(_)
            | AnyDocument::External(_)
            | AnyDocument::Chain(_)
            | AnyDocument::StoredSecret(_) => Reach::Namespaces(own()),
            // Routes reach other namespaces only with a grant from there.
            AnyDocument::GatewayApi(_) if self.id.namespace.is_empty() => Reach::Mesh,
            AnyDocument::GatewayApi(_) => Reach::Namespaces(own()),
            AnyDocument::Policy(placed) => reach_of_policy(own(), &placed.document.spec),
            AnyDocument::Foreign(foreign) if foreign.kind == ForeignKind::CiliumClusterwide => Reach::Mesh,
            AnyDocument::Foreign(_) => Reach::Namespaces(own()),
        }
    }
}

/// The namespace is empty for a document that belongs to the mesh. Names of Kubernetes have dots.
fn is_plain(name: &str) -> bool {
    name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

fn reach_of_policy(mut namespaces: BTreeSet<String>, spec: &PolicySpec) -> Reach {
    for namespace in spec.namespaces.iter().flatten() {
        if namespace == "*" {
            return Reach::Mesh;
        }
        namespaces.insert(namespace.clone());
    }
    let named = spec.functions.iter().filter_map(|function| function.split_once('/'));
    namespaces.extend(named.map(|(namespace, _)| namespace.to_owned()));
    Reach::Namespaces(namespaces)
}

impl fmt::Debug for Document {
    /// The text is left out: it may hold secrets of functions' environments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({})", self.id)
    }
}

impl AnyDocument {
    fn id(&self) -> Option<DocumentId> {
        let placed = |kind, Metadata { name, namespace, .. }: &Metadata| Some(DocumentId::new(kind, namespace, name));
        let of_the_mesh = |kind, name: &str| Some(DocumentId::new(kind, "", name));
        match self {
            Self::Mesh(mesh) => of_the_mesh("Mesh", &mesh.document.metadata.name),
            Self::NamespaceQuota(quota) => of_the_mesh("NamespaceQuota", &quota.document.metadata.name),
            Self::Namespace(namespace) => of_the_mesh(namespace_object::KIND, &namespace.document.name),
            Self::Function(function) => placed("Function", &function.document.metadata),
            Self::Job(job) => placed("Job", &job.document.metadata),
            Self::External(external) => placed("External", &external.document.metadata),
            Self::Chain(chain) => placed("Chain", &chain.document.metadata),
            Self::Policy(policy) => placed("Policy", &policy.document.metadata),
            Self::StoredSecret(secret) => placed("StoredSecret", &secret.document.metadata),
            Self::GatewayApi(placed) => Some(DocumentId::of_resource(&placed.document)),
            Self::Foreign(foreign) => foreign.id(),
        }
    }

    fn file(&self) -> &Path {
        match self {
            Self::Mesh(mesh) => &mesh.file,
            Self::Function(function) => &function.file,
            Self::Job(job) => &job.file,
            Self::External(external) => &external.file,
            Self::Chain(chain) => &chain.file,
            Self::Policy(policy) => &policy.file,
            Self::StoredSecret(secret) => &secret.file,
            Self::NamespaceQuota(quota) => &quota.file,
            Self::Namespace(namespace) => &namespace.file,
            Self::GatewayApi(placed) => &placed.file,
            Self::Foreign(foreign) => &foreign.file,
        }
    }

    fn node(&self) -> &Node {
        match self {
            Self::Mesh(mesh) => &mesh.node,
            Self::Function(function) => &function.node,
            Self::Job(job) => &job.node,
            Self::External(external) => &external.node,
            Self::Chain(chain) => &chain.node,
            Self::Policy(policy) => &policy.node,
            Self::StoredSecret(secret) => &secret.node,
            Self::NamespaceQuota(quota) => &quota.node,
            Self::Namespace(namespace) => &namespace.node,
            Self::GatewayApi(placed) => &placed.node,
            Self::Foreign(foreign) => &foreign.node,
        }
    }
}

impl ForeignDocument {
    pub(crate) fn id(&self) -> Option<DocumentId> {
        let metadata = self.node.get("metadata")?;
        let namespace = match self.kind {
            ForeignKind::CiliumClusterwide => String::new(),
            ForeignKind::Cilium | ForeignKind::Kubernetes => {
                metadata.get("namespace").and_then(Node::text).unwrap_or("default").to_owned()
            }
        };
        let name = metadata.get("name").and_then(Node::text)?.to_owned();
        Some(DocumentId { kind: self.node.get("kind")?.text()?.to_owned(), namespace, name })
    }
}

/// The lines of a text that separate its documents. `---` in the first column separates documents
/// everywhere, even in the middle of a text.
struct Separators<'a> {
    text: &'a str,
    lines: Vec<Separator>,
}

struct Separator {
    /// From 1.
    line: usize,
    /// Position of its first byte.
    begin: usize,
    /// Position of the first byte of the next line.
    end: usize,
    /// `---`, after which the document may begin on the same line; not `...`.
    begins: bool,
}

impl<'a> Separators<'a> {
    fn of(text: &'a str) -> Self {
        let (mut lines, mut begin) = (Vec::new(), 0);
        for (index, content) in text.split_inclusive('\n').enumerate() {
            let is = |mark: &str| {
                let rest = content.strip_prefix(mark);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
            };
            let (end, begins) = (begin + content.len(), is("---"));
            if begins || is("...") {
                lines.push(Separator { line: index + 1, begin, end, begins });
            }
            begin = end;
        }
        Self { text, lines }
    }

    /// The part of the text that holds the document whose first value is in this line, counted from 1.
    fn document(&self, line: u32) -> &'a str {
        let line = usize::try_from(line).unwrap_or(usize::MAX);
        let next = self.lines.partition_point(|separator| separator.line <= line);
        let begin = match next.checked_sub(1).and_then(|before| self.lines.get(before)) {
            Some(before) if before.begins && before.line == line => before.begin,
            Some(before) => before.end,
            None => 0,
        };
        let end = self.lines.get(next).map_or(self.text.len(), |separator| separator.begin);
        self.text.get(begin..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
