//! Stored secrets, without their values.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A stored secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretStatus {
    /// Namespace of the document.
    pub namespace: String,
    /// Name of the document.
    pub name: String,
    /// Its keys.
    pub keys: Vec<SecretKey>,
    /// The revision that last changed it.
    pub version: u64,
    /// Who last changed it.
    pub by: String,
    /// When, in seconds since 1970.
    pub changed: f64,
    /// Functions, jobs and External documents that name it.
    pub used_by: Vec<String>,
}

/// A key of a stored secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SecretKey {
    /// Its name.
    pub key: String,
    /// The size of its value.
    pub bytes: u32,
    /// When the value last changed, in seconds since 1970.
    pub changed: f64,
}
