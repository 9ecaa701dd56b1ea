//! `kind: Job`.

use super::confine::{Resources, Secret};
use super::image::Volume;
use super::value::{ApiVersion, Metadata};
use crate::duration::Duration;
use leno_model::size::Size;
use leno_model::{Isolation, Pull};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A command that runs to its end, once for each definition, on one node, with the mesh around its
/// calls. It is no function, and has no callers. Names of fields are those of a Kubernetes Job,
/// where it has them; fields in seconds there are durations here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Job {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `Job`.
    pub kind: JobKind,
    /// Name of the job, and the labels by which policies select it. Functions and jobs share their
    /// names: `identities` of policies name either.
    pub metadata: Metadata,
    /// Properties of the job. Every change of them is a new run; a job with an unchanged document
    /// runs once, whether it succeeds or fails.
    pub spec: JobSpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum JobKind {
    /// `Job`.
    Job,
}

/// Properties of a job. It has a `command` or an `image`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobSpec {
    /// Program and arguments. It calls a function by its name: `http://stock/…`; with
    /// `isolation: process`, through the proxy in `HTTP_PROXY`. It has succeeded when it exits with
    /// status 0; processes that it leaves behind end with it. No shell is involved;
    /// `$(NAME)` of a variable in `env` is replaced by its value, and `$$(NAME)` stands for the text
    /// `$(NAME)`. With an `image`: instead of its `Entrypoint` and `Cmd`.
    #[serde(default)]
    pub command: Option<Vec<String>>,
    /// A container image to run: `registry/repository:tag`, `registry/repository@sha256:…`,
    /// `oci:FOLDER:tag` or `oci-archive:FILE:tag` (an OCI layout, or an archive of one, relative to
    /// the document's folder). Names without a registry are in the mesh's `images.defaultRegistry`.
    /// A tag is resolved once, when the job is made or changed, and the digest is kept.
    #[serde(default)]
    pub image: Option<String>,
    /// Arguments of a container, instead of the image's `Cmd`. Variables as in `command`.
    #[serde(default)]
    pub args: Option<Vec<String>>,
    /// User of a container, instead of the image's: `user`, `user:group`, names of the image or
    /// numbers.
    #[serde(default)]
    pub user: Option<String>,
    /// Folders in memory that a process can write to, besides `/tmp`. They need a jail.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// `true`: a container may write to its volumes, `/tmp` and `/dev/shm` only.
    #[serde(default)]
    pub read_only_root: bool,
    /// Memory for the data that a container writes to its root, at least 4Ki. Without it: 64Mi.
    #[serde(default)]
    pub writable: Option<Size>,
    /// When a container's image is brought to a node.
    #[serde(default)]
    pub pull: Pull,
    /// Working directory of the command, relative to the document's folder. Without it: that
    /// folder; of a document that was applied to a control plane, an empty folder. With
    /// an `image`: an absolute path in it, instead of its `WorkingDir`.
    #[serde(default)]
    pub working_directory: Option<PathBuf>,
    /// Environment variables of the command. It gets none of the node's but `PATH`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Secrets of the command.
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// Limits of one process group of the command.
    #[serde(default)]
    pub resources: Resources,
    /// How a process group of the command is kept apart. Without it: as the Mesh document says in
    /// `instances`.
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// Files and folders of the machine that its jail shows, read-only, besides `/usr` and the
    /// working directory. Relative to the document's folder.
    #[serde(default)]
    pub read_only_paths: Vec<PathBuf>,
    /// Functions and External documents that it may call: `name` in its own namespace, or
    /// `namespace/name`. Calls to anything else are denied. Whether the callee lets it in is up to
    /// the callee's policies.
    #[serde(default)]
    pub callees: Vec<String>,
    /// So many run at a time, 1 to `completions`.
    #[schemars(range(min = 1, max = 1000))]
    #[serde(default = "one")]
    pub parallelism: u32,
    /// So many must succeed, 1 to 100000.
    #[schemars(range(min = 1, max = 100_000))]
    #[serde(default = "one")]
    pub completions: u32,
    /// So many may fail and be tried again, with a pause that grows; one more, and the job has
    /// failed. 0 to 1000.
    #[schemars(range(max = 1000))]
    #[serde(default = "backoff_limit")]
    pub backoff_limit: u32,
    /// From its start, all tries together: what runs then is ended, and the job has failed. Without
    /// it: no limit.
    #[serde(default)]
    pub active_deadline: Option<Duration>,
    /// How long it is listed after its end. It does not run again afterwards, as its document is
    /// still there. Without it: as long as its document.
    #[serde(default)]
    pub ttl_after_finished: Option<Duration>,
    /// Between asking a process to end (SIGTERM) and killing it, when the deadline has passed, the
    /// job is removed, or the node ends.
    #[serde(default = "grace")]
    pub termination_grace_period: Duration,
}

fn one() -> u32 {
    1
}

fn backoff_limit() -> u32 {
    6
}

fn grace() -> Duration {
    Duration::from_secs(30)
}
