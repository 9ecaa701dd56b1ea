//! Containers and the registries that their images come from, as slices tell of them.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What runs in place of a program of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Its image, as the document names it; the path of a layout or an archive is absolute.
    pub image: String,
    /// `sha256:…`: what the image was when the revision was made. `None`: nobody has looked yet.
    pub digest: Option<String>,
    /// Instead of the image's entrypoint and command.
    pub command: Option<Vec<String>>,
    /// Instead of the image's command.
    pub args: Option<Vec<String>>,
    /// Instead of the image's working directory.
    pub directory: Option<PathBuf>,
    /// Instead of the image's user.
    pub user: Option<String>,
    /// Folders in memory.
    pub volumes: Vec<Volume>,
    /// It may write to volumes, `/tmp` and `/dev/shm` only.
    pub read_only: bool,
    /// How many bytes it may write to its root; `None`: the usual number.
    pub writable: Option<u64>,
    /// When its image is brought to a node.
    pub pull: Pull,
}

/// A folder in memory, empty at first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Where the container sees it; absolute.
    pub path: PathBuf,
    /// Bytes that it holds; `None`: the usual number.
    pub size: Option<u64>,
}

/// When an image is brought to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Pull {
    /// When the node is told of the function, ahead of its first start.
    #[default]
    Ahead,
    /// When it is to be started.
    OnDemand,
}

/// Where a node keeps images, and where it gets them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// The folder in which they are kept.
    pub folder: PathBuf,
    /// Bytes that they may take there.
    pub size: u64,
    /// Where names without a registry are.
    pub default_registry: Option<String>,
    /// A configuration of Docker with the credentials of registries.
    pub docker_config: Option<PathBuf>,
    /// What there is to say of registries and mirrors.
    pub registries: Vec<ImageRegistry>,
}

/// A registry, or a mirror of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRegistry {
    /// Host, and `:port`.
    pub host: String,
    /// Hosts that are asked first.
    pub mirrors: Vec<String>,
    /// PEM file with authorities to trust besides the machine's.
    pub ca_file: Option<PathBuf>,
    /// It speaks plain HTTP.
    pub insecure: bool,
    /// What it wants to see.
    pub credentials: Option<RegistryCredentials>,
}

/// What proves to a registry who asks.
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
