//! `kind: NamespaceQuota`.

use super::value::ApiVersion;
use leno_model::Engine;
use leno_model::Isolation;
use leno_model::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The share of the mesh that the functions, jobs and External documents of one namespace get
/// together: [quotas](../quotas.md). A field that the document leaves out has the value of the Mesh
/// document (`spec.namespaces`), or else its default. A token that is limited to namespaces cannot
/// apply it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamespaceQuota {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `NamespaceQuota`.
    pub kind: NamespaceQuotaKind,
    /// Names the namespace.
    pub metadata: NamespaceQuotaMetadata,
    /// The bounds.
    #[serde(default)]
    pub spec: NamespaceLimits,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespaceQuotaKind {
    /// `NamespaceQuota`.
    NamespaceQuota,
}

/// The document itself is in no namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceQuotaMetadata {
    /// The namespace: a DNS label.
    pub name: String,
}

/// Bounds of a namespace. Those of connections, requests, processes, memory, images and rates hold
/// on each node; the others hold for the whole mesh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NamespaceLimits {
    /// Functions, jobs and External documents, 1 to 100000. Without it: 1000.
    #[schemars(range(min = 1, max = 100_000))]
    pub functions: Option<u32>,
    /// Instances of functions and processes of jobs that run at a time, 1 to 100000: on one node,
    /// and on all nodes of a control plane together. The control plane refuses documents whose
    /// `scale.min` and `parallelism` need more together. Without it: 500.
    #[schemars(range(min = 1, max = 100_000))]
    pub instances: Option<u32>,
    /// Processor time of all instances on one node, in cores: `0.5` is half of one; 0.01 to 1024.
    /// Without it: a share that is as large as that of each other namespace where processors are
    /// busy.
    #[schemars(range(min = 0.01, max = 1024.0))]
    pub cpu: Option<f64>,
    /// Memory of all instances on one node, from 1Mi. Without it: half of the machine's.
    pub memory: Option<Size>,
    /// Processes and threads of all instances on one node, 1 to 4194304. Without it: 4096.
    #[schemars(range(min = 1, max = 4_194_304))]
    pub pids: Option<u32>,
    /// Connections that a node holds for the namespace: from and to its instances, and to external
    /// services that they call; 16 to 1000000. Without it: an eighth of those that the node may
    /// have.
    #[schemars(range(min = 16, max = 1_000_000))]
    pub connections: Option<u32>,
    /// Requests to its functions, and from its functions, that are open on one node at a time; 1 to
    /// 1000000. Without it: 4096.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub open_requests: Option<u32>,
    /// Requests that wait for an instance on one node at a time; 1 to 1000000. Without it: 1024.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub waiting_requests: Option<u32>,
    /// Bytes a second that one node pulls of images and modules for the namespace, from 64Ki.
    /// Without it: no bound; namespaces take turns.
    pub pull_bandwidth: Option<Size>,
    /// Bytes that the unpacked images of the namespace take on the disk of one node, from 1Mi.
    /// Without it: a quarter of the node's image store (`spec.images.size` of the Mesh document),
    /// and at least 1Gi. A layer counts in full for each namespace that has it.
    pub image_bytes: Option<Size>,
    /// Files and folders that the unpacked images of the namespace have on one node, 100 to
    /// 1000000000. Without it: 500000, and at most an eighth of those that the file system of the
    /// node's image store can have.
    #[schemars(range(min = 100, max = 1_000_000_000))]
    pub image_files: Option<u32>,
    /// Persistent volumes on one node, those of deleted functions included, 0 to 10000. Without it:
    /// 16.
    #[schemars(range(max = 10_000))]
    pub volumes: Option<u32>,
    /// Bytes that the persistent volumes on one node may hold together, from 16Mi. Without it: 64Gi.
    pub volume_bytes: Option<Size>,
    /// Folders of the nodes that `volumes` of the namespace may be (`hostPath`), with the folders in
    /// them. Links may not lead out of them. Without it: none for documents that were applied to a
    /// control plane, any for documents that are files.
    pub host_paths: Option<Vec<HostPath>>,
    /// Values of StoredSecret documents, 0 to 10000. Without it: 200.
    #[schemars(range(max = 10_000))]
    pub secrets: Option<u32>,
    /// Bytes of all values of StoredSecret documents, from 1Ki to 16Mi. Without it: 1Mi.
    pub secret_bytes: Option<Size>,
    /// Bytes a second that the namespace writes to the log of one node: output of instances, access
    /// log lines and refusals; from 1Ki. Without it: 1Mi. The node leaves out the rest, and logs
    /// how much it left out.
    pub log_bandwidth: Option<Size>,
    /// Size of all documents of the namespace that were applied to a control plane, 1Ki to 64Mi.
    /// Without it: 4Mi.
    pub document_bytes: Option<Size>,
    /// Rules of policies, each counted once for every function of the namespace that it applies to;
    /// 1 to 10000000. Without it: 100000.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub rules: Option<u32>,
    /// Documents of the Gateway API: Gateways, routes, ReferenceGrants and BackendTLSPolicies; 0 to
    /// 100000. Without it: 2000.
    #[schemars(range(max = 100_000))]
    pub routes: Option<u32>,
    /// Matches of all rules of routes, each counted once for every hostname and parent of its route;
    /// 0 to 10000000. Without it: 20000.
    #[schemars(range(max = 10_000_000))]
    pub route_matches: Option<u32>,
    /// Hosts of the gateway that belong to the namespace, and to no other: `shop.example`,
    /// `*.shop.example`. With this field, functions of the namespace are exposed at these hosts
    /// only. Without it: a host belongs to the namespace that has it first. Not for
    /// `spec.namespaces` of the Mesh document.
    pub hosts: Option<Vec<String>>,
    /// `strict`: no function or job of the namespace can choose `isolation: process`. `auto`: none
    /// can where the node can make jails. Without it: the `isolation` of the Mesh document,
    /// `spec.instances`.
    pub isolation: Option<Isolation>,
    /// Engines that policies may choose for functions of the namespace. Without it: any.
    pub engines: Option<Vec<Engine>>,
    /// Folders of the nodes. Files that documents of the namespace name (`secrets`, `credentials`,
    /// TLS files, image layouts) are opened below these only. Links may lead from one place in such
    /// a folder to another place in it. Without it: none for documents that were applied to a
    /// control plane; any file for documents that are files, as with `leno up`.
    pub files: Option<Vec<PathBuf>>,
    /// Blocks of special addresses (loopback, private networks, metadata services, machines of the
    /// mesh) from which nodes and control plane fetch what documents of the namespace name: key
    /// sets, modules, images. Public addresses are always allowed. Without it: none for documents
    /// that were applied to a control plane; all for documents that are files. Documents that were
    /// applied to a control plane name an address of a metadata service (`external` of functions,
    /// External documents) only if a block here has it and no addresses of other kinds, such as
    /// `169.254.169.254`.
    pub egress: Option<Vec<String>>,
}

/// A folder of the nodes that programs may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostPath {
    /// Its absolute path.
    pub path: PathBuf,
    /// The owner of files that programs make there: a user ID, or `user:group`, such as `1000:1000`;
    /// not root. Without a group, it has the user's number. Without it: the owner of the folder.
    #[serde(default)]
    pub owner: Option<String>,
}
