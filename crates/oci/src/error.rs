use crate::Digest;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What went wrong, where, and what would be right.
///
/// Errors are cloned, because several pulls may wait for one download.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store needs rights that this process does not have.
    #[error(
        "images need a node that runs as root: {what}; run the node as root, outside of a user namespace (without root, owners, devices and `trusted.` attributes of files cannot be kept)"
    )]
    NotRoot {
        /// What is not permitted.
        what: String,
    },
    /// Another process has the store open.
    #[error("the image store {} is open in another process; give each node a folder of its own", folder.display())]
    InUse {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// A reference that cannot be read, or not used here.
    #[error("image reference `{reference}`: {reason}")]
    Reference {
        /// The reference as given.
        reference: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A setting of [`Registries`](crate::Registries) or a file that it names.
    #[error("{place}: {reason}")]
    Settings {
        /// The setting or the file.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A registry could not be reached, or broke off.
    #[error("{url}: {reason}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// The causes, outermost first.
        reason: String,
        /// The connection did not come about or was lost, so that another try may succeed.
        is_lost: bool,
    },
    /// A registry refused a request, or answered with nonsense.
    #[error("{url}: {reason}")]
    Answer {
        /// What was asked for.
        url: String,
        /// The status, if it is an error.
        status: Option<u16>,
        /// What the registry says, or what is wrong with the answer.
        reason: String,
        /// When the registry wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// No manifest, or no platform of it, for this node.
    #[error("image {image} is not made for {machine}; it is there for: {}", there.join(", "))]
    Platform {
        /// The image.
        image: String,
        /// This machine, such as `linux/amd64`.
        machine: String,
        /// The platforms that there are, such as `linux/arm64`.
        there: Vec<String>,
    },
    /// A manifest, index, configuration or layout that is not what it should be.
    #[error("image {image}: {reason}")]
    Image {
        /// The image, or the file.
        image: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A layer that is not what the manifest says, or that no careful node unpacks.
    #[error("layer {layer}: {reason}")]
    Layer {
        /// The digest of the (compressed) layer.
        layer: Digest,
        /// What is wrong with it. Names the entry, if it is about one.
        reason: String,
    },
    /// Images that are in use fill the store.
    #[error("the image store {} is full: its limit is {limit} {unit}, and images in use, or within the share of another namespace, leave less than {needed} more; raise the limit, or use fewer or smaller images", folder.display())]
    Full {
        /// The folder of the store.
        folder: PathBuf,
        /// `bytes` or `files`.
        unit: &'static str,
        /// The limit.
        limit: u64,
        /// What was asked for.
        needed: u64,
    },
    /// The unpacked images that a namespace uses have all that its quota allows.
    #[error(
        "namespace {namespace} has all that its bound `{bound}` allows on this node: {limit}; its images in use leave less than {needed} more. Raise the bound in its quota, or use fewer or smaller images"
    )]
    Quota {
        /// The namespace.
        namespace: String,
        /// The field of the quota.
        bound: &'static str,
        /// Its value: bytes or files.
        limit: u64,
        /// What was asked for.
        needed: u64,
    },
    /// The file system of the store has hardly any room left.
    #[error("the file system of the image store {} is full: {free} {unit} are free, and {reserve} stay free for the rest of the node", folder.display())]
    Disk {
        /// The folder of the store.
        folder: PathBuf,
        /// `bytes` or `files`.
        unit: &'static str,
        /// How many are free.
        free: u64,
        /// How many the store leaves.
        reserve: u64,
    },
    /// A file or folder on this machine.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// Such as `cannot open`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, path: path.as_ref().to_owned(), source: Arc::new(source.into()) }
    }
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
