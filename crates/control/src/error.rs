//! Why definitions are refused.

use crate::resource::Subject;
use leno_config::{FunctionId, ModuleHash};
use leno_identity::{BadSpiffeId, SpiffeId, TrustDomain};

/// Why definitions cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionsError {
    /// The authority of this control plane certifies one trust domain.
    #[error("the mesh's trust domain is `{found}` and the authority's `{expected}`; it can only change with a restart")]
    TrustDomain {
        /// Of the definitions.
        found: String,
        /// Of the authority.
        expected: TrustDomain,
    },
    /// A slice is filed under another function's name.
    #[error("the slice of {found} is filed under {function}")]
    Misfiled {
        /// Where it is.
        function: FunctionId,
        /// Whose it is.
        found: FunctionId,
    },
    /// An identity is no SPIFFE ID.
    #[error("the identity of {function}: {reason}")]
    Identity {
        /// Whose.
        function: FunctionId,
        /// What is wrong.
        reason: BadSpiffeId,
    },
    /// An identity that the authority cannot certify, or the gateway's.
    #[error("the identity of {function} cannot be `{identity}`: it is outside the trust domain, or the gateway's own")]
    Foreign {
        /// Whose.
        function: FunctionId,
        /// Which.
        identity: SpiffeId,
    },
    /// A slice names a module that is not there.
    #[error("an extension of {function} needs the module {module}, which is missing")]
    Module {
        /// Whose.
        function: FunctionId,
        /// Which.
        module: ModuleHash,
    },
    /// A function is added before there is a mesh to add it to.
    #[error("{function} cannot be added: nothing was published yet")]
    NoMesh {
        /// Which.
        function: FunctionId,
    },
    /// `spec.traffic` names a revision that is not there.
    #[error("{function} has no revision `{revision}`; it has {kept}")]
    Revision {
        /// Whose.
        function: FunctionId,
        /// Which.
        revision: String,
        /// Those that there are.
        kept: String,
    },
    /// A payload cannot be written.
    #[error("{subject} cannot be encoded: {reason}")]
    Encoding {
        /// Which.
        subject: Subject,
        /// Why not.
        reason: String,
    },
}
