//! Errors of refused definitions.

use leno_identity::{SpiffeId, TrustDomain};
use leno_model::{FunctionId, ModuleHash};
use leno_wire::Subject;

/// Why definitions cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionsError {
    /// The mesh's trust domain is not the one that this control plane's authority certifies.
    #[error("the mesh's trust domain is `{found}` and the authority's `{expected}`; it can only change with a restart")]
    TrustDomain {
        /// The trust domain in the definitions.
        found: String,
        /// The trust domain of the authority.
        expected: TrustDomain,
    },
    /// A function configuration is filed under another function's name.
    #[error("the configuration of {found} is filed under {function}")]
    Misfiled {
        /// The name under which the function configuration is filed.
        function: FunctionId,
        /// The name in the function configuration.
        found: FunctionId,
    },
    /// A function's identity is outside of the trust domain, has no path, or is in a namespace of
    /// the mesh itself.
    #[error(
        "the identity of {function} cannot be `{identity}`: it is outside the trust domain, or in a namespace of the mesh itself"
    )]
    Foreign {
        /// The function.
        function: FunctionId,
        /// The function's identity.
        identity: SpiffeId,
    },
    /// A function configuration names a module that was not published.
    #[error("an extension of {function} needs the module {module}, which is missing")]
    Module {
        /// The function.
        function: FunctionId,
        /// SHA-256 of the missing module.
        module: ModuleHash,
    },
    /// A function is added before the first publication, so there is no mesh yet.
    #[error("{function} cannot be added: nothing was published yet")]
    NoMesh {
        /// The function.
        function: FunctionId,
    },
    /// `spec.traffic` names a revision that does not exist.
    #[error("{function} has no revision `{revision}`; it has {kept}")]
    Revision {
        /// The function.
        function: FunctionId,
        /// The revision that was named.
        revision: String,
        /// The revisions that exist, separated by commas.
        kept: String,
    },
    /// A payload cannot be encoded.
    #[error("{subject} cannot be encoded: {reason}")]
    Encoding {
        /// The resource.
        subject: Subject,
        /// The cause of the failure.
        reason: String,
    },
}

impl DefinitionsError {
    /// The function that it concerns, if any.
    pub fn function(&self) -> Option<&FunctionId> {
        match self {
            Self::Misfiled { function, .. }
            | Self::Foreign { function, .. }
            | Self::Module { function, .. }
            | Self::NoMesh { function }
            | Self::Revision { function, .. } => Some(function),
            Self::Encoding { subject, .. } => match subject {
                Subject::FunctionConfig(function)
                | Subject::Secrets(function)
                | Subject::Route(function)
                | Subject::Endpoints(function) => Some(function),
                _ => None,
            },
            Self::TrustDomain { .. } => None,
        }
    }
}
