//! Tokens of the API.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read documents and status.
    Reader,
    /// Also apply and delete documents.
    Editor,
    /// Also make and revoke tokens, and read the audit log.
    Admin,
}

/// A token to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// What its bearer may do.
    pub role: Role,
    /// Where; empty: everywhere.
    #[serde(default)]
    pub namespaces: BTreeSet<String>,
    /// For how many seconds from now; `null`: until it is revoked.
    #[serde(default)]
    pub lifetime: Option<u64>,
    /// What it is for.
    #[serde(default)]
    pub note: String,
}

/// A token that was made. Nobody can ask for it again.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// Its public part.
    pub id: String,
    /// What `Authorization: Bearer` wants.
    pub token: String,
}

/// A token without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Its public part.
    pub id: String,
    /// What its bearer may do.
    pub role: Role,
    /// Where; empty: everywhere.
    pub namespaces: BTreeSet<String>,
    /// What it is for.
    pub note: String,
    /// Who made it.
    pub by: String,
    /// When, in seconds since 1970.
    pub created: f64,
    /// When it ends, in seconds since 1970; `null`: when it is revoked.
    pub expires: Option<f64>,
}
