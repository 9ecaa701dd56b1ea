//! `spec.extensions` of a policy.

use crate::duration::Duration;
use leno_model::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A policy of your own: a proxy-wasm module (ABI 0.2.1). It sees requests that all other policies
/// allow, each in a separate instance that knows of no other request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extension {
    /// Name of the extension in logs, in records, and of the rule by which it refuses.
    pub name: String,
    /// File of the module, relative to the document's folder. Either this or `url`.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// Where nodes fetch the module; it needs `sha256`. Until it is there, requests are refused
    /// with 503, whatever `failMode` says.
    #[serde(default)]
    pub url: Option<String>,
    /// PEM file with the certificates to trust for `url`. Without it and `ca`: the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The certificates themselves, in PEM, in place of `caFile`.
    #[serde(default)]
    pub ca: Option<String>,
    /// The module's SHA-256 in hexadecimal digits. A module with another one is refused.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Heads that it sees.
    #[serde(default)]
    pub phase: Phase,
    /// Whose calls it sees.
    #[serde(default)]
    pub direction: Direction,
    /// The module's configuration: any text, often JSON.
    #[serde(default)]
    pub configuration: String,
    /// Longest run, 50us to 100ms of processor time; for the response as much again.
    #[serde(default = "default_deadline")]
    pub deadline: Duration,
    /// Most memory of an instance, 64Ki to 64Mi.
    #[serde(default = "default_memory")]
    pub memory: Size,
    /// What becomes of a request whose run fails.
    #[serde(default)]
    pub fail_mode: FailMode,
}

/// What an extension sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The request's head.
    #[default]
    Request,
    /// The response's head; its instance is started when that is there.
    Response,
    /// Both; one instance is kept in between.
    Both,
}

/// Whose calls an extension sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Calls to the function.
    #[default]
    Inbound,
    /// Calls that the function makes.
    Outbound,
}

/// What becomes of a request whose run fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailMode {
    /// It is refused with 503.
    #[default]
    Closed,
    /// It goes on as if there were no extension, and is counted. Not where there was no run: where
    /// the module is not loaded, or no instance is free, the request is refused.
    Open,
}

fn default_deadline() -> Duration {
    Duration::from_millis(5)
}

fn default_memory() -> Size {
    Size::from_mib(8)
}
