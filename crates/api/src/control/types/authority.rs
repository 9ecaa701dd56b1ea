//! The mesh's authority and its rotation.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

/// A step in the rotation of the mesh's authority.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotationRequest {
    /// The step.
    pub action: RotationAction,
    /// Names of nodes for which the rotation does not wait.
    #[serde(default)]
    pub without: Vec<String>,
}

/// What to do about the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RotationAction {
    /// Replace it.
    Begin,
    /// Try whether all nodes would take the certificates of another one.
    Drill,
    /// Do not wait for some nodes any more.
    Without,
    /// Go back to the one that was before.
    Abort,
}

/// The authority of the mesh, and how far its replacement is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityAnswer {
    /// Key identifier of the authority that signs, in hexadecimal digits.
    pub signs: String,
    /// The file that its key is kept in, at the control plane that leads; `null`: in memory only.
    pub file: Option<String>,
    /// When nothing that it signs is valid any more, in seconds since 1970.
    pub not_after: u64,
    /// The roots that nodes are given.
    pub roots: Vec<TrustedRoot>,
    /// `trust`, `renew` or `withdraw`; `null`: it is not being replaced.
    pub phase: Option<String>,
    /// It is a drill.
    pub drill: bool,
    /// It goes back to the authority that was before.
    pub aborted: bool,
    /// When the phase began, in seconds since 1970; 0: there is none.
    pub since: u64,
    /// The nodes for which the rotation waits, each with the missing step.
    pub waiting: BTreeMap<String, String>,
    /// The nodes for which the rotation does not wait.
    pub without: BTreeSet<String>,
    /// How the last replacement or drill ended.
    pub last: Option<RotationEnd>,
    /// Roots and intermediates in the last quarter of their life, at most 30 days.
    pub warnings: Vec<String>,
}

/// A root certificate that nodes are given.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustedRoot {
    /// SHA-256 of the certificate in DER, in hexadecimal digits.
    pub sha256: String,
    /// When it expires, in seconds since 1970.
    pub not_after: u64,
    /// Certificates are signed under it now.
    pub signs: bool,
}

/// How a replacement of the authority or a drill ended.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RotationEnd {
    /// Which one it was, counted from 1.
    pub number: u64,
    /// It was a drill.
    pub drill: bool,
    /// It was aborted.
    pub aborted: bool,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Of a drill: the nodes that would fail, and why.
    pub failed: BTreeMap<String, String>,
}
