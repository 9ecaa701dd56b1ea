//! `kind: Function`.

use super::confine::{Resources, Secret};
use super::image::Volume;
use super::instance::{ExternalInstances, Liveness, Readiness};
use super::paths::Paths;
use super::revisions::NamedRevision;
use super::rollout::{Rollout, TrafficTarget};
use super::scale::Scale;
use super::value::{ApiVersion, Metadata};
use super::wasm::Wasm;
use crate::duration::Duration;
use leno_model::revision::HISTORY;
use leno_model::size::Size;
use leno_model::{AppProtocol, Isolation, Pods, PortProtocol, Pull};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A deployable unit: a program that serves HTTP or gRPC. The mesh starts it when it is asked for,
/// and stands between it and everybody else. Without a Policy that allows something, every request
/// to it is denied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Function {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `Function`.
    pub kind: FunctionKind,
    /// Name of the function, and the labels by which policies select it.
    pub metadata: Metadata,
    /// Its properties.
    pub spec: FunctionSpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FunctionKind {
    /// `Function`.
    Function,
}

/// Properties of a function. It has a `command`, an `image`, a `wasm` component, or `external`
/// addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FunctionSpec {
    /// Program and arguments of an instance. It must listen on the port in its environment variable
    /// `PORT`, at `127.0.0.1`, `::1` or all addresses; outside jails at `127.0.0.1`. It calls
    /// another function by its name: `http://stock/…`; with `isolation: process`, through the proxy
    /// in `HTTP_PROXY`. No shell is involved; `$(PORT)` and `$(NAME)` of a variable in `env` are
    /// replaced by their values, and `$$(PORT)` stands for the text `$(PORT)`. With an `image`:
    /// instead of its `Entrypoint` and `Cmd`.
    pub command: Option<Vec<String>>,
    /// A container image to run: `registry/repository:tag`, `registry/repository@sha256:…`,
    /// `oci:FOLDER:tag` or `oci-archive:FILE:tag` (an OCI layout, or an archive of one, relative to
    /// the document's folder). Names without a registry are in the mesh's `images.defaultRegistry`.
    /// A tag is resolved once, when a revision is made, and the digest is kept.
    pub image: Option<String>,
    /// Arguments of a container, instead of the image's `Cmd`. Variables as in `command`.
    pub args: Option<Vec<String>>,
    /// User of a container, instead of the image's: `user`, `user:group`, names of the image or
    /// numbers.
    pub user: Option<String>,
    /// Folders in memory that an instance can write to, besides `/tmp`. They need a jail.
    pub volumes: Vec<Volume>,
    /// `true`: a container may write to its volumes, `/tmp` and `/dev/shm` only.
    pub read_only_root: bool,
    /// Memory for the data that a container writes to its root, at least 4Ki. Without it: 64Mi.
    pub writable: Option<Size>,
    /// When a container's image is brought to a node.
    pub pull: Pull,
    /// A WebAssembly component that the node runs itself, with a separate instance for each
    /// request.
    pub wasm: Option<Wasm>,
    /// Instances that another system runs.
    pub external: Option<ExternalInstances>,
    /// Pods of Kubernetes that run it. Only the control plane for Kubernetes writes it.
    #[schemars(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<Pods>,
    /// Working directory of the command, relative to the document's folder. Without it: that
    /// folder; of a document that was applied to a control plane, an empty folder. With
    /// an `image`: an absolute path in it, instead of its `WorkingDir`.
    pub working_directory: Option<PathBuf>,
    /// Environment variables, as text; numbers and `true` are taken as written. A command gets none
    /// of the node's but `PATH`, a component none at all; a container has its image's too.
    pub env: BTreeMap<String, String>,
    /// Secrets of the command or the component.
    pub secrets: Vec<Secret>,
    /// Limits of an instance of the command.
    pub resources: Resources,
    /// How an instance of the command is kept apart. Without it: as the Mesh document says in
    /// `instances`.
    pub isolation: Option<Isolation>,
    /// Files and folders of the machine that an instance's jail shows, read-only, besides `/usr`
    /// and the working directory. Relative to the document's folder.
    pub read_only_paths: Vec<PathBuf>,
    /// Port that the command listens on. Without it every instance gets a free one. In jails, each
    /// instance has its own network: any number of instances and functions can have the same port,
    /// also one below 1024 (80 needs a node that redirects calls in the kernel; 1 is the node's).
    /// Without a jail, a node runs at most one instance of the function at a time, and no other
    /// function of the node can have the same port.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Protocol of the instances.
    pub protocol: AppProtocol,
    /// Ports at which the command serves something else than HTTP. Callers connect to them by the
    /// function's name. A function with such ports needs a jail, and so do its callers.
    pub ports: Vec<Port>,
    /// When an instance may get requests. Without it: when it accepts a TCP connection.
    pub readiness: Option<Readiness>,
    /// How an instance that was ready is watched, and when another one takes its place.
    pub liveness: Option<Liveness>,
    /// Requests that one instance handles at a time; 0: no limit. Of a component: requests that a
    /// node runs at a time.
    pub concurrency: u32,
    /// How many instances there are.
    pub scale: Scale,
    /// Requests that may wait on a node for an instance, 1 to 100000. Further ones are refused with
    /// 503 and `Retry-After`.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Time limits.
    pub timeouts: FunctionTimeouts,
    /// Functions and External documents that it may call: `name` in its own namespace, or
    /// `namespace/name`. Calls to anything else are denied. Whether the callee lets it in is up to
    /// the callee's policies.
    pub callees: Vec<String>,
    /// Where the gateway offers it to the outside. Without this the gateway does not know it.
    pub expose: Vec<Expose>,
    /// How paths of requests arrive.
    pub paths: Paths,
    /// Revisions side by side, each with a name, 16 at most: this document's fields with others in
    /// their place. Each start of the mesh has all of them. `traffic` gives them their shares. Each
    /// one counts as a function in the quota of the namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub revisions: Vec<NamedRevision>,
    /// Which revisions get requests. Without it: the latest, as `rollout` says. With `revisions` it
    /// names these, and only one alone needs no `traffic`.
    pub traffic: Vec<TrafficTarget>,
    /// How a new revision takes over. Without it: at once, when its first instances are ready.
    pub rollout: Option<Rollout>,
    /// Revisions that are kept, 1 to 1000: the newest, and those in use.
    #[schemars(range(min = 1, max = 1000))]
    pub revision_history: u32,
}

impl Default for FunctionSpec {
    fn default() -> Self {
        Self {
            command: None,
            image: None,
            args: None,
            user: None,
            volumes: Vec::new(),
            read_only_root: false,
            writable: None,
            pull: Pull::default(),
            wasm: None,
            external: None,
            pods: None,
            working_directory: None,
            env: BTreeMap::new(),
            secrets: Vec::new(),
            resources: Resources::default(),
            isolation: None,
            read_only_paths: Vec::new(),
            port: None,
            protocol: AppProtocol::default(),
            ports: Vec::new(),
            readiness: None,
            liveness: None,
            concurrency: 0,
            scale: Scale::default(),
            queue: 1024,
            timeouts: FunctionTimeouts::default(),
            callees: Vec::new(),
            expose: Vec::new(),
            paths: Paths::default(),
            revisions: Vec::new(),
            traffic: Vec::new(),
            rollout: None,
            revision_history: HISTORY,
        }
    }
}

/// A port at which a command serves something else than HTTP. Which callers may connect to it, the
/// authorization rules of the function's policies say: as of a request that has a caller and a
/// port, and no method, host, path, header or user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its number. Port 1 is the node's, and port 80 is for HTTP.
    #[schemars(range(min = 2))]
    pub port: u16,
    /// Protocol of the first bytes.
    #[serde(default)]
    pub protocol: PortProtocol,
    /// Whether the kernel may carry bytes from the caller's jail to the function's by itself, where
    /// it can. `tls` goes through the node.
    #[serde(default = "enabled")]
    #[schemars(extend("default" = true))]
    pub splice: bool,
}

fn enabled() -> bool {
    true
}

/// Time limits of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FunctionTimeouts {
    /// A whole exchange, all tries together. `0s`: no limit. Without it: the mesh's
    /// `limits.requestTimeout`.
    pub request: Option<Duration>,
    /// From the start of an instance until it is ready; requests that wait for it wait no longer
    /// either.
    pub startup: Duration,
    /// Between asking an instance to end (SIGTERM) and killing it. Of a component: time that it has
    /// after its answer's last byte.
    pub grace: Duration,
}

impl Default for FunctionTimeouts {
    fn default() -> Self {
        Self { request: None, startup: Duration::from_secs(10), grace: Duration::from_secs(5) }
    }
}

/// Hosts and a path under which the gateway offers a function. The most specific host wins, then
/// the longest path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Expose {
    /// Host names without port: `shop.example`, `*.shop.example` (any name below), `*` (any). Case
    /// and a dot at the end do not matter, and names beyond ASCII stand for their Punycode.
    pub hosts: Vec<String>,
    /// Path prefix by whole segments: `/orders` covers `/orders` and `/orders/7`, not `/orders2`.
    pub path: String,
}

impl Default for Expose {
    fn default() -> Self {
        Self { hosts: vec!["*".to_owned()], path: "/".to_owned() }
    }
}
