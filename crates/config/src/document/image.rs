//! `spec.volumes` of functions and jobs, and `spec.images` of the mesh.

use leno_model::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A folder of an instance. Without a `name` it is in memory, empty when the instance starts, and its
/// content counts against the instance's memory. With a `name`, a node keeps it on its disk: it
/// outlives instances, restarts, upgrades, and the function. With a `hostPath` it is a folder that
/// the node has for other purposes too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Where the program sees it: an absolute path. It hides the content of an image there. For a
    /// command: not below `/usr` or `/etc`; below a folder that the jail shows, such as the working
    /// directory, an empty folder has to be there.
    pub path: PathBuf,
    /// Capacity, at least 4Ki in memory and 16Mi on disk. Without it: 64Mi in memory; a volume with
    /// a `name` needs it. A volume on disk can grow and not shrink.
    #[serde(default)]
    pub size: Option<Size>,
    /// Name of a volume on disk: lower-case letters, digits and `-`. Functions of the namespace that
    /// use the same name have the same volume. Not for jobs.
    #[serde(default)]
    pub name: Option<String>,
    /// Who may have a volume on disk at a time. Without it: one instance.
    #[serde(default)]
    pub access: Option<VolumeAccess>,
    /// The node that keeps a volume on disk, or has the folder of `hostPath` (`leno get nodes`). The
    /// function runs there and nowhere else; while the node is away, it does not run. A volume on
    /// disk needs it in documents that are applied to a control plane.
    #[serde(default)]
    pub node: Option<String>,
    /// A folder of the node, which has to exist there. A relative path starts from the folder of the
    /// document. Documents that are applied to a control plane name folders that `hostPaths` of
    /// their namespace's quota lists. All instances on the node have the same folder. Files that the
    /// program makes belong to the owner of the folder, or to the one that the quota names.
    #[serde(default)]
    pub host_path: Option<PathBuf>,
    /// `false`: the program may write to the folder of `hostPath`. Without it: `true`.
    #[serde(default)]
    pub read_only: Option<bool>,
}

/// Who may have a volume on disk at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VolumeAccess {
    /// One instance. Another one starts when it has ended.
    #[default]
    SingleWriter,
    /// Any number of instances on the node.
    Shared,
}

/// Where a node keeps images, and where it gets them. All of this is read when the node starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// The folder in which images are kept, unpacked, relative to the document's folder. Each node
    /// needs a separate one. It must not be in the folder of the documents, unless its name begins
    /// with a dot: images may bring documents.
    pub folder: PathBuf,
    /// What all images together may take on the disk, at least 1Mi. The node removes images that no
    /// function in force uses when it needs space, least recently used first.
    pub size: Size,
    /// Where images are whose names have no registry, such as `docker.io`. Without it such names
    /// are refused.
    pub default_registry: Option<String>,
    /// A `config.json` of Docker, relative to the document's folder: its `auths` are the
    /// credentials of registries that have none in `registries`. Credential helpers are refused:
    /// they are programs, which would run as root.
    pub docker_config: Option<PathBuf>,
    /// What there is to say of registries and of mirrors. Others are asked over HTTPS and without
    /// credentials.
    pub registries: Vec<ImageRegistry>,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            folder: PathBuf::from("/var/lib/leno/images"),
            size: Size::from_mib(32 << 10),
            default_registry: None,
            docker_config: None,
            registries: Vec::new(),
        }
    }
}

/// A registry, or a mirror of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageRegistry {
    /// Its host, with `:port` if it is not 443: `ghcr.io`, `registry.example:5000`.
    pub host: String,
    /// Hosts (and `:port`) that are asked first, in this order, for the same images. A mirror that
    /// needs settings has a separate element.
    #[serde(default)]
    pub mirrors: Vec<String>,
    /// PEM file with authorities to trust besides the machine's, relative to the document's folder.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// It speaks plain HTTP. An attacker on the network path can read credentials and private
    /// images, and change the digest of a tag.
    #[serde(default)]
    pub insecure: bool,
    /// The user that it knows this node as; needs `passwordFile`.
    #[serde(default)]
    pub username: Option<String>,
    /// File with that user's password, relative to the document's folder; the line end at its end
    /// is no part of it.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// File with a bearer token that it accepts, in place of user and password.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
}
