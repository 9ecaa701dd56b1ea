//! Files of other projects, translated into documents of the mesh: policies of Kubernetes and
//! Cilium, and, by [`compose`] and [`manifests`], programs.
//!
//! [`translate`] replaces the documents of other projects in a [`DocumentSet`] by documents of the
//! mesh at the same places in files. [`load`] and [`load_text`] also read and compile.
//!
//! A translation is never weaker than the original. A report lists each field: enforced,
//! approximated and how, or left out because nothing depends on it. A field that cannot be
//! translated without allowing more is a problem.
#![forbid(unsafe_code)]

mod blocks;
mod cilium;
mod compose;
mod deployment;
mod egress;
mod externals;
mod fqdn;
mod http;
mod interpolation;
mod kubernetes;
mod peers;
mod ports;
mod report;
mod versions;
mod walk;
mod workload;

pub use compose::compose;
pub use deployment::manifests;
pub use interpolation::{Surroundings, variables};
pub use workload::{Import, Note, Outcome};

use egress::EgressRules;
use externals::ExternalCalls;
use leno_config::document::{
    self, ApiVersion, AuthorizationRule, CalleeRules, FunctionSelector, Metadata, PolicyKind, PolicySpec,
};
use leno_config::{
    DocumentSet, Documents, ForeignDocument, ForeignKind, Node, Problem, Scope, Snapshot, TranslationRow, TypedDocument,
};
use leno_model::function_id::is_label;
use report::Report;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// One `spec` of a document, translated.
struct Translation {
    selector: FunctionSelector,
    /// Rules for inbound requests; `None`: the policy has none.
    rules: Option<Vec<AuthorizationRule>>,
    callee_rules: Option<CalleeRules>,
    egress: EgressRules,
}

/// Loads a file, or all files of a folder, as [`DocumentSet::of_path`] reads them.
///
/// # Errors
/// As [`DocumentSet::compile`].
pub fn load(path: &Path) -> Result<Snapshot, Vec<Problem>> {
    compile(DocumentSet::of_path(path))
}

/// Loads one text, as [`DocumentSet::of_text`] reads it.
///
/// # Errors
/// As [`DocumentSet::compile`].
pub fn load_text(file: &Path, text: &str) -> Result<Snapshot, Vec<Problem>> {
    compile(DocumentSet::of_text(file, text))
}

/// Translates and compiles documents.
///
/// # Errors
/// As [`DocumentSet::compile`].
pub fn compile(mut set: DocumentSet) -> Result<Snapshot, Vec<Problem>> {
    translate(&mut set);
    set.compile()
}

/// Replaces the policies of other projects by policies of the mesh, and by External documents for
/// the external destinations that they allow. Adds the report, in the order of the documents.
pub fn translate(DocumentSet { documents, problems, translations: rows, .. }: &mut DocumentSet) {
    let mut calls = Vec::new();
    for foreign in std::mem::take(&mut documents.foreign) {
        let ForeignDocument { file, node, origin, kind } = &*foreign;
        let before = problems.borrow().len();
        let translated = document(documents, &foreign.scope(problems), *kind, rows);
        documents.incomplete |= problems.borrow().len() > before;
        for (name, namespace, Translation { selector, rules, callee_rules, egress }) in translated {
            let document = policy(name, namespace, selector.clone(), rules, callee_rules);
            calls.push(ExternalCalls { policy: documents.policies.len(), selector, egress });
            let placed = TypedDocument { file: file.clone(), node: node.clone(), origin: *origin, document };
            documents.policies.push(Arc::new(placed));
        }
    }
    externals::add(documents, &calls);
}

fn api_version(kind: ForeignKind) -> &'static str {
    match kind {
        ForeignKind::Cilium | ForeignKind::CiliumClusterwide => "cilium.io/v2",
        ForeignKind::Kubernetes => "networking.k8s.io/v1",
    }
}

/// Name, namespace and content of each policy in a document.
fn document(
    documents: &Documents,
    root: &Scope<'_>,
    kind: ForeignKind,
    rows: &mut Vec<TranslationRow>,
) -> Vec<(String, String, Translation)> {
    let version = root.node().and_then(|node| node.get("apiVersion")).and_then(Node::text).unwrap_or_default();
    if version != api_version(kind) {
        let message = format!("`{}` is no version of {} that is known", version.escape_debug(), kind.name());
        root.field("apiVersion").problem(message, format!("expected {}", api_version(kind)));
        return Vec::new();
    }
    let metadata = root.field("metadata");
    let text = |name: &str| metadata.node().and_then(|node| node.get(name)).and_then(Node::text);
    let name = text("name").unwrap_or_default().replace('.', "-");
    if !is_label(&name) {
        let fix = "expected a-z, 0-9, `-` and `.`, at most 63 characters";
        metadata.field("name").problem(format!("`{}` cannot be a policy's name", name.escape_debug()), fix);
        return Vec::new();
    }
    let namespace = match kind {
        ForeignKind::CiliumClusterwide => None,
        ForeignKind::Cilium | ForeignKind::Kubernetes => Some(text("namespace").unwrap_or("default").to_owned()),
    };
    let shown = match &namespace {
        Some(namespace) => format!("{} {namespace}/{name}", kind.name()),
        None => format!("{} {name}", kind.name()),
    };
    let report = Report::new(shown, rows, documents);
    for field in walk::fields(root) {
        if !["apiVersion", "kind", "metadata", "spec", "specs", "status"].contains(&field) {
            report.refused(&root.field(field), "the field is not known");
        }
    }
    let mut translated = Vec::new();
    let mut one = |spec: &Scope<'_>, name: String| {
        let found = match kind {
            ForeignKind::Kubernetes => kubernetes::spec(&report, spec, namespace.as_deref().unwrap_or_default()),
            ForeignKind::Cilium | ForeignKind::CiliumClusterwide => cilium::spec(&report, spec, namespace.as_deref()),
        };
        if let Some(found) = found {
            if !selects_any(documents, &found.selector) {
                report.left_out(spec, "it selects no function: it says nothing here");
                return;
            }
            translated.push((name, namespace.clone().unwrap_or_else(|| "default".to_owned()), found));
        }
    };
    if root.has("spec") {
        one(&root.field("spec"), name.clone());
    }
    let list = root.field("specs");
    for index in 0..walk::length(&list) {
        one(&list.element(index), format!("{name}-{index}"));
    }
    if !root.has("spec") && !root.has("specs") {
        root.problem("there is no `spec`", "a policy without one says nothing: remove it");
    }
    translated
}

fn selects_any(documents: &Documents, selector: &FunctionSelector) -> bool {
    let of_functions = documents.functions.iter().map(|placed| &placed.document.metadata);
    let of_jobs = documents.jobs.iter().map(|placed| &placed.document.metadata);
    documents.incomplete
        || of_functions.chain(of_jobs).any(|metadata| selector.holds(&metadata.namespace, &metadata.labels))
}

fn policy(
    name: String,
    namespace: String,
    selector: FunctionSelector,
    rules: Option<Vec<AuthorizationRule>>,
    callee_rules: Option<CalleeRules>,
) -> document::Policy {
    let namespaces = if selector.namespaces.is_empty() { vec!["*".to_owned()] } else { selector.namespaces };
    document::Policy {
        api_version: ApiVersion::V1Alpha1,
        kind: PolicyKind::Policy,
        metadata: Metadata { name, namespace, labels: BTreeMap::new() },
        spec: PolicySpec {
            selector: Some(selector.labels),
            selector_expressions: selector.expressions,
            namespaces: Some(namespaces),
            authorization: rules.map(|rules| document::Authorization { rules }),
            callee_rules,
            ..PolicySpec::default()
        },
    }
}
