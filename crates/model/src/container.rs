//! Containers, and the registries of their images.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A container that runs in place of a program of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The image's name in the document. The path of a layout or an archive is absolute.
    pub image: String,
    /// `sha256:…`: the image's digest when the control plane made the revision; `None`: not
    /// resolved yet.
    pub digest: Option<String>,
    /// Replaces the image's entrypoint and command.
    pub command: Option<Vec<String>>,
    /// Replaces the image's command.
    pub args: Option<Vec<String>>,
    /// Replaces the image's working directory.
    pub directory: Option<PathBuf>,
    /// Replaces the image's user.
    pub user: Option<String>,
    /// Folders in memory.
    pub volumes: Vec<Volume>,
    /// The container can write only to volumes, `/tmp` and `/dev/shm`.
    pub read_only: bool,
    /// Bytes that the container can write to its root; `None`: the node's default.
    pub writable: Option<u64>,
    /// When a node pulls the image.
    pub pull: Pull,
}

/// A folder in memory, empty at first, or one of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Absolute path in the container or the jail.
    pub path: PathBuf,
    /// Capacity in bytes; `None`: the node's default, or a folder of the node.
    pub size: Option<u64>,
    /// The folder of the node; `None`: it is in memory.
    pub host: Option<HostVolume>,
}

/// A folder that a node had before any function did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostVolume {
    /// Absolute path on the node.
    pub path: PathBuf,
    /// Whether the program may write to it.
    pub writable: bool,
    /// The only node that has it; `None`: each node that may have the function.
    pub node: Option<String>,
}

/// A folder that a node keeps, whatever becomes of the instances that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentVolume {
    /// Its name in the namespace, on the node.
    pub name: String,
    /// Absolute path in the container or the jail.
    pub path: PathBuf,
    /// Capacity in bytes.
    pub size: u64,
    /// Several instances may have it at a time.
    pub shared: bool,
    /// The node that keeps it; `None`: the only one.
    pub node: Option<String>,
}

/// When an image is brought to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Pull {
    /// When the node gets the function, ahead of its first start.
    #[default]
    Ahead,
    /// When it is to be started.
    OnDemand,
}

/// A node's image store and its registries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// The store's folder.
    pub folder: PathBuf,
    /// The store's capacity in bytes.
    pub size: u64,
    /// The registry of image names without one.
    pub default_registry: Option<String>,
    /// A configuration of Docker with the credentials of registries.
    pub docker_config: Option<PathBuf>,
    /// Registries and mirrors.
    pub registries: Vec<ImageRegistry>,
}

/// A registry, or a mirror of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRegistry {
    /// Host, and `:port`.
    pub host: String,
    /// Hosts that the node tries first.
    pub mirrors: Vec<String>,
    /// PEM file with authorities to trust besides the machine's.
    pub ca_file: Option<PathBuf>,
    /// The registry speaks plain HTTP.
    pub insecure: bool,
    /// The node's credentials.
    pub credentials: Option<RegistryCredentials>,
}

/// A node's credentials for a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegistryCredentials {
    /// A user, and a file with the password.
    Password {
        /// The user.
        username: String,
        /// The file.
        file: PathBuf,
    },
    /// A file with a bearer token.
    Token(PathBuf),
}
