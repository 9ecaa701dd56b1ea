//! `spec.resources` and `spec.secrets` of functions and jobs.

use leno_model::SecretSource;
use leno_model::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of one instance. Cgroup v2 enforces them where the node has its controllers and may make
/// groups; elsewhere `leno get functions -o wide` shows the reason in the column LIMITS NOT IN
/// FORCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// Memory, from 1Mi. An instance that takes more is killed as a whole.
    pub memory: Option<Size>,
    /// Processor time, in cores: `0.5` is half of one; 0.01 to 1024.
    #[schemars(range(min = 0.01, max = 1024.0))]
    pub cpu: Option<f64>,
    /// Processes and threads, at least 1.
    #[schemars(range(min = 1))]
    pub pids: Option<u32>,
}

/// Something that an instance needs to know and the documents must not hold. The node reads it when
/// an instance starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// The environment variable, or the file's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Where it comes from: a file of the node, relative to the document's folder, or
    /// `{secret: NAME, key: KEY}` of a StoredSecret.
    pub from: SecretSource,
    /// How the instance gets it.
    #[serde(default)]
    pub r#as: SecretAs,
}

/// How an instance gets a secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SecretAs {
    /// As a file that only the instance's account can read, in the folder that `LENO_SECRETS`
    /// names; gone when the instance is.
    #[default]
    File,
    /// As an environment variable, without the line end at its end.
    Env,
}
