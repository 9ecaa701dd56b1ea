//! `spec.revisions` of a function: revisions side by side, by name.

use super::confine::{Resources, Secret};
use super::image::Volume;
use super::instance::{ExternalInstances, Liveness, Readiness};
use super::scale::Scale;
use super::wasm::Wasm;
use crate::duration::Duration;
use leno_model::size::Size;
use leno_model::{AppProtocol, Isolation, Pull};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A revision with a name: the fields of the function's `spec`, with these in their place. An `env`
/// is added to the function's, variable by variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedRevision {
    /// Its name in `traffic`, in listings and in logs: a DNS label, and not `latest` or a number.
    pub name: String,
    /// Program and arguments.
    pub command: Option<Vec<String>>,
    /// Container image.
    pub image: Option<String>,
    /// Arguments of a container.
    pub args: Option<Vec<String>>,
    /// User of a container.
    pub user: Option<String>,
    /// Folders that an instance can write to.
    pub volumes: Option<Vec<Volume>>,
    /// Whether a container may write to its volumes, `/tmp` and `/dev/shm` only.
    pub read_only_root: Option<bool>,
    /// Memory for the data that a container writes to its root.
    pub writable: Option<Size>,
    /// When a container's image is brought to a node.
    pub pull: Option<Pull>,
    /// WebAssembly component.
    pub wasm: Option<Wasm>,
    /// Instances that another system runs.
    pub external: Option<ExternalInstances>,
    /// Working directory of the command.
    pub working_directory: Option<PathBuf>,
    /// Environment variables, besides the function's or in their place.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Secrets of the command or the component.
    pub secrets: Option<Vec<Secret>>,
    /// Limits of an instance.
    pub resources: Option<Resources>,
    /// How an instance is kept apart.
    pub isolation: Option<Isolation>,
    /// Files and folders of the machine that an instance's jail shows.
    pub read_only_paths: Option<Vec<PathBuf>>,
    /// Port that the command listens on.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Protocol of the instances.
    pub protocol: Option<AppProtocol>,
    /// When an instance may get requests.
    pub readiness: Option<Readiness>,
    /// How an instance that was ready is watched.
    pub liveness: Option<Liveness>,
    /// Requests that one instance handles at a time; 0: no limit.
    pub concurrency: Option<u32>,
    /// How many instances there are.
    pub scale: Option<Scale>,
    /// Time limits of an instance.
    #[serde(default)]
    pub timeouts: RevisionTimeouts,
}

impl NamedRevision {
    /// Fields of a function that hold for all its revisions.
    pub(crate) const OF_THE_FUNCTION: [&str; 9] =
        ["ports", "queue", "callees", "expose", "paths", "traffic", "rollout", "revisions", "revisionHistory"];
}

/// Time limits of an instance, each in place of the function's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevisionTimeouts {
    /// From the start of an instance until it is ready.
    pub startup: Option<Duration>,
    /// Between asking an instance to end (SIGTERM) and killing it.
    pub grace: Option<Duration>,
}
