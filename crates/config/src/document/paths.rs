//! How a function gets the paths of its requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How paths of requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Paths {
    /// Form in which a path is forwarded.
    pub send: SendPaths,
}

/// Form in which a path is forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SendPaths {
    /// The path that rules were compared with, which means the same to every server. A request
    /// whose path has none is refused.
    #[default]
    Normalised,
    /// The bytes that came. A request is allowed only if it is under every reading of its path:
    /// with `%2F` as a slash and not, with slashes merged and not, with dot segments resolved and
    /// not, and so on.
    AsReceived,
}

impl Paths {
    /// Whether the bytes that came are forwarded.
    pub(crate) fn as_received(self) -> bool {
        self.send == SendPaths::AsReceived
    }
}
