//! `spec.wasm` of a function.

use leno_model::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A WASI HTTP component (`wasi:http/proxy` 0.2). Each request has a separate instance, which sees
/// no other request, no files and no sockets; its calls go through the sidecar, by `http://`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wasm {
    /// File of the component, relative to the document's folder. Either this or `url`.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// Where nodes fetch the component; it needs `sha256`. Until it is there, requests are answered
    /// with 503.
    #[serde(default)]
    pub url: Option<String>,
    /// PEM file with the certificates to trust for `url`. Without it and `ca`: the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The certificates themselves, in PEM, in place of `caFile`.
    #[serde(default)]
    pub ca: Option<String>,
    /// The component's SHA-256 in hexadecimal digits. A component with another one is refused.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Most memory of an instance, 1Mi to 512Mi.
    #[serde(default = "default_memory")]
    pub memory: Size,
}

fn default_memory() -> Size {
    Size::from_mib(128)
}
