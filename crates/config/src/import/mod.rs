//! Policies of Kubernetes and Cilium, translated into policies of the mesh.
//!
//! A translation is never weaker than the original. A report lists each field: enforced,
//! approximated and how, or left out because nothing depends on it. A field that cannot be
//! translated without allowing more is a problem.

mod blocks;
mod cilium;
mod externals;
mod fqdn;
mod http;
mod kubernetes;
mod outside;
mod peers;
mod ports;
mod report;
mod walk;

use crate::compile::{Documents, TypedDocument};
use crate::document::{
    self, ApiVersion, AuthorizationRule, CalleeRules, FunctionSelector, Metadata, PolicyKind, PolicySpec,
};
use crate::imported::Row;
use crate::problem::{Origin, Problem, Scope};
use crate::yaml::Node;
use externals::ExternalCalls;
use leno_model::function_id::is_label;
use outside::OutsideRules;
use report::Report;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A policy of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cilium,
    CiliumClusterwide,
    Kubernetes,
}

impl Kind {
    pub(crate) const NAMES: [&str; 3] = ["CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "NetworkPolicy"];

    pub(crate) fn named(kind: &str) -> Option<Self> {
        let index = Self::NAMES.iter().position(|name| *name == kind)?;
        Some([Self::Cilium, Self::CiliumClusterwide, Self::Kubernetes][index])
    }

    fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    fn api_version(self) -> &'static str {
        match self {
            Self::Cilium | Self::CiliumClusterwide => "cilium.io/v2",
            Self::Kubernetes => "networking.k8s.io/v1",
        }
    }
}

/// A document of another project.
pub(crate) struct Foreign {
    pub file: PathBuf,
    pub node: Node,
    pub origin: Origin,
    pub kind: Kind,
}

/// One `spec` of a document, translated.
struct Translation {
    selector: FunctionSelector,
    /// Rules for inbound requests; `None`: the policy has none.
    rules: Option<Vec<AuthorizationRule>>,
    callee_rules: Option<CalleeRules>,
    outside: OutsideRules,
}

/// Translates all policies. Adds the translations to the documents, and External documents for the
/// external destinations that they allow. Returns the report, in the order of the documents.
pub(crate) fn translate(
    foreign: &[Arc<Foreign>],
    documents: &mut Documents,
    problems: &RefCell<Vec<Problem>>,
) -> Vec<Row> {
    let (mut rows, mut translations) = (Vec::new(), Vec::new());
    for foreign in foreign {
        let Foreign { file, node, origin, kind } = &**foreign;
        let before = problems.borrow().len();
        let root = Scope::root(file, node, problems).of(*origin);
        let translated = document(documents, &root, *kind, &mut rows);
        documents.incomplete |= problems.borrow().len() > before;
        for (name, namespace, Translation { selector, rules, callee_rules, outside }) in translated {
            let document = policy(name, namespace, selector.clone(), rules, callee_rules);
            translations.push(ExternalCalls { policy: documents.policies.len(), selector, outside });
            let placed = TypedDocument { file: file.clone(), node: node.clone(), origin: *origin, document };
            documents.policies.push(Arc::new(placed));
        }
    }
    externals::add(documents, &translations);
    rows
}

/// Name, namespace and content of each policy in a document.
fn document(
    documents: &Documents,
    root: &Scope<'_>,
    kind: Kind,
    rows: &mut Vec<Row>,
) -> Vec<(String, String, Translation)> {
    let version = root.node().and_then(|node| node.get("apiVersion")).and_then(Node::text).unwrap_or_default();
    if version != kind.api_version() {
        let message = format!("`{}` is no version of {} that is known", version.escape_debug(), kind.name());
        root.field("apiVersion").problem(message, format!("expected {}", kind.api_version()));
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
        Kind::CiliumClusterwide => None,
        Kind::Cilium | Kind::Kubernetes => Some(text("namespace").unwrap_or("default").to_owned()),
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
            Kind::Kubernetes => kubernetes::spec(&report, spec, namespace.as_deref().unwrap_or_default()),
            Kind::Cilium | Kind::CiliumClusterwide => cilium::spec(&report, spec, namespace.as_deref()),
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
