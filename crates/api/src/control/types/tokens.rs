//! Tokens of the API.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;

/// Permissions of a token.
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
    /// Permissions of its bearer.
    pub role: Role,
    /// Where; empty: everywhere.
    #[serde(default)]
    pub namespaces: BTreeSet<String>,
    /// For how many seconds from now; `null`: until it is revoked.
    #[serde(default)]
    pub lifetime: Option<u64>,
    /// Its purpose.
    #[serde(default)]
    pub note: String,
}

/// A new token. The API shows it only once.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// Its public part.
    pub id: String,
    /// The value for `Authorization: Bearer`.
    pub token: String,
}

/// A token without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Its public part.
    pub id: String,
    /// Permissions of its bearer.
    pub role: Role,
    /// Where; empty: everywhere.
    pub namespaces: BTreeSet<String>,
    /// Its purpose.
    pub note: String,
    /// Who made it.
    pub by: String,
    /// When, in seconds since 1970.
    pub created: f64,
    /// When it ends, in seconds since 1970; `null`: when it is revoked.
    pub expires: Option<f64>,
}

/// The rights of the token that a request bears.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OwnToken {
    /// Permissions of its bearer.
    pub role: Role,
    /// Where; empty: everywhere.
    pub namespaces: BTreeSet<String>,
}
