//! Documents of other projects. Config reads and stores them; `leno-translate` turns them into
//! documents of the mesh.

use crate::problem::{Origin, Problem, Scope};
use crate::yaml::Node;
use std::cell::RefCell;
use std::path::PathBuf;

/// The kind of a document of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignKind {
    /// `CiliumNetworkPolicy`.
    Cilium,
    /// `CiliumClusterwideNetworkPolicy`.
    CiliumClusterwide,
    /// `NetworkPolicy` of Kubernetes.
    Kubernetes,
}

/// A document of another project.
pub struct ForeignDocument {
    /// Its file.
    pub file: PathBuf,
    /// Its content.
    pub node: Node,
    /// Its origin.
    pub origin: Origin,
    /// Its kind.
    pub kind: ForeignKind,
}

impl ForeignKind {
    pub(crate) const NAMES: [&str; 3] = ["CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "NetworkPolicy"];

    pub(crate) fn named(kind: &str) -> Option<Self> {
        let index = Self::NAMES.iter().position(|name| *name == kind)?;
        Some([Self::Cilium, Self::CiliumClusterwide, Self::Kubernetes][index])
    }

    /// The `kind` of its documents.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl ForeignDocument {
    /// The whole document, as a place for problems.
    pub fn scope<'a>(&'a self, problems: &'a RefCell<Vec<Problem>>) -> Scope<'a> {
        Scope::root(&self.file, &self.node, problems).of(self.origin)
    }
}
