use crate::Digest;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An error of a pull or of the store. Its message names the place, the cause, and the remedy.
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
        /// The operation that is not permitted.
        what: String,
    },
    /// Another process has the store open.
    #[error("the image store {} is open in another process; give each node a folder of its own", folder.display())]
    InUse {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// A reference that cannot be parsed, or not used here.
    #[error("image reference `{reference}`: {reason}")]
    Reference {
        /// The reference as given.
        reference: String,
        /// The fault in the reference, and a correct form.
        reason: String,
    },
    /// A setting of [`Registries`](crate::Registries) or a file that it names.
    #[error("{place}: {reason}")]
    Settings {
        /// The setting or the file.
        place: String,
        /// The fault in the setting or file.
        reason: String,
    },
    /// A registry could not be reached, or the connection to it broke.
    #[error("{url}: {reason}")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The causes, outermost first.
        reason: String,
        /// The connection could not be established or was lost, so that another try may succeed.
        is_lost: bool,
    },
    /// A registry refused a request, or its answer cannot be understood.
    #[error("{url}: {reason}")]
    Answer {
        /// The requested URL.
        url: String,
        /// The status, if it is an error.
        status: Option<u16>,
        /// The registry's own message, or the fault in its answer.
        reason: String,
        /// When the registry wants the request to be repeated.
        retry_after: Option<Duration>,
    },
    /// No manifest, or no platform of it, for this node.
    #[error("image {image} is not made for {machine}; it is there for: {}", there.join(", "))]
    Platform {
        /// The image.
        image: String,
        /// This machine, such as `linux/amd64`.
        machine: String,
        /// The platforms of the image, such as `linux/arm64`.
        there: Vec<String>,
    },
    /// A manifest, index, configuration or layout that is invalid.
    #[error("image {image}: {reason}")]
    Image {
        /// The image, or the file.
        image: String,
        /// The fault in it.
        reason: String,
    },
    /// A layer that differs from its manifest, or that is not safe to unpack.
    #[error("layer {layer}: {reason}")]
    Layer {
        /// The digest of the (compressed) layer.
        layer: Digest,
        /// The fault in the layer. It names the archive's entry, if it is about one.
        reason: String,
    },
    /// The images in use fill the store.
    #[error("the image store {} is full: its limit is {limit} {unit}, and images in use, or within the share of another namespace, leave less than {needed} more; raise the limit, or use fewer or smaller images", folder.display())]
    Full {
        /// The folder of the store.
        folder: PathBuf,
        /// `bytes` or `files`.
        unit: &'static str,
        /// The limit.
        limit: u64,
        /// The requested amount.
        needed: u64,
    },
    /// The unpacked images that a namespace uses take up its whole quota.
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
        /// The requested amount.
        needed: u64,
    },
    /// The file system of the store has hardly any space left.
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
        /// The failed operation, such as `cannot open`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Makes an error for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { doing, path: path.as_ref().to_owned(), source: Arc::new(source.into()) }
    }
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
