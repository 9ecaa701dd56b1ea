//! The policies of functions, as far as needed to see whether a removed function's policies still
//! exist.

use crate::digest::sha256;
use crate::document;
use leno_model::FunctionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The policies of a mesh, by fingerprint. Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    policies: Arc<BTreeSet<Fingerprint>>,
    functions: Arc<BTreeMap<FunctionId, Vec<Fingerprint>>>,
}

/// The SHA-256 of a policy without the names of its functions: they change when a function is
/// removed.
pub(crate) type Fingerprint = [u8; 32];

/// The policies that a function had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(Vec<Fingerprint>);

/// Functions without policies.
impl FromIterator<FunctionId> for Permissions {
    fn from_iter<T: IntoIterator<Item = FunctionId>>(functions: T) -> Self {
        Self::new([], functions.into_iter().map(|id| (id, Vec::new())))
    }
}

impl Permissions {
    pub(crate) fn new(
        policies: impl IntoIterator<Item = Fingerprint>,
        functions: impl IntoIterator<Item = (FunctionId, Vec<Fingerprint>)>,
    ) -> Self {
        let (policies, functions) = (policies.into_iter().collect(), functions.into_iter().collect());
        Self { policies: Arc::new(policies), functions: Arc::new(functions) }
    }

    /// The policies of a function; `None`: they are not known.
    pub fn of(&self, function: &FunctionId) -> Option<Policies> {
        self.functions.get(function).cloned().map(Policies)
    }

    /// Whether all these policies exist unchanged.
    pub fn contain(&self, policies: &Policies) -> bool {
        policies.0.iter().all(|policy| self.policies.contains(policy))
    }
}

/// The fingerprint of a policy: it changes with every change of the policy except the names of its
/// functions.
pub(crate) fn fingerprint(policy: &document::Policy) -> Fingerprint {
    let mut policy = policy.clone();
    policy.spec.functions.clear();
    sha256(format!("{policy:?}").as_bytes())
}
