//! Instances that are containers, and the images that they wait for.

use crate::variables::Variables;
use leno_files::HostAccess;
use leno_jail::{Container, HostFolder, Image, Volume};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// A container to run, in place of a program of the machine. It always has a jail.
///
/// Variables, secrets, limits, port and read-only paths are those of its command or process, whose
/// `argv` and `directory` are not used.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerSpec {
    /// Names the image, with its digest. Two names are two images.
    pub image: String,
    /// Where the image comes from.
    pub source: Source,
    /// Instead of the image's entrypoint and command.
    pub command: Option<Vec<String>>,
    /// Instead of the image's command.
    pub args: Option<Vec<String>>,
    /// Instead of the image's working directory.
    pub directory: Option<PathBuf>,
    /// Instead of the image's user.
    pub user: Option<String>,
    /// Folders in memory, and those of the node.
    pub volumes: Vec<leno_model::Volume>,
    /// The container may only write to volumes, `/tmp` and `/dev/shm`.
    pub read_only: bool,
    /// Maximum number of bytes that it may write to its root ([`leno_jail::DEFAULT_WRITABLE`]).
    pub writable: u64,
}

/// The folders in memory, with the default size if the document gives none.
pub(crate) fn in_memory(volumes: &[leno_model::Volume]) -> Vec<Volume> {
    let volume = |leno_model::Volume { path, size, .. }: &leno_model::Volume| Volume {
        path: path.clone(),
        size: size.unwrap_or(leno_jail::DEFAULT_WRITABLE),
    };
    volumes.iter().filter(|volume| volume.host.is_none()).map(volume).collect()
}

/// The folders of the node. `access`: those that the namespace may have.
pub(crate) fn host_folders(volumes: &[leno_model::Volume], access: &HostAccess) -> Vec<HostFolder> {
    let folder = |volume: &leno_model::Volume| {
        let leno_model::HostVolume { path: source, writable, .. } = volume.host.clone()?;
        Some(HostFolder { source, path: volume.path.clone(), writable, access: access.clone() })
    };
    volumes.iter().filter_map(folder).collect()
}

/// Why an image is not on this machine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ImageUnavailable {
    /// The pull failed, for this reason.
    #[error("{0}")]
    Pull(String),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

/// Pulls an image to this machine.
pub trait ImageSource: Send + Sync + 'static {
    /// The image, as soon as it is on this machine, or why it is not. Begins the pull, unless that
    /// is under way. A caller that drops the future does not end the pull.
    fn image(&self) -> Pin<Box<dyn Future<Output = Result<LocalImage, ImageUnavailable>> + Send + '_>>;

    /// The progress of the pull.
    fn state(&self) -> ImageState;
}

/// The progress of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// In words: `34/200 MiB`.
    pub words: String,
    /// Compressed bytes that are here.
    pub bytes: u64,
    /// Compressed bytes of the image; 0: not known yet.
    pub bytes_total: u64,
}

impl fmt::Display for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// The state of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageState {
    /// Not on this machine, and not requested.
    Elsewhere,
    /// The pull is under way.
    Pulling(PullProgress),
    /// On this machine. Describes the parts that are left out of it, if any.
    Here(Option<String>),
    /// Not on this machine, for this reason.
    Failed(String),
}

/// The source of a container's image. All sources are equal, so a changed source does not restart
/// instances.
#[derive(Clone)]
pub struct Source(Arc<dyn ImageSource>);

impl Source {
    /// Wraps this source.
    pub fn new(source: Arc<dyn ImageSource>) -> Self {
        Self(source)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?})", self.0.state())
    }
}

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// An image on this machine.
#[derive(Clone)]
pub struct LocalImage {
    /// The image.
    pub image: Image,
    /// Held until the last instance that uses it has ended.
    pub lease: Lease,
}

impl ImageSource for LocalImage {
    fn image(&self) -> Pin<Box<dyn Future<Output = Result<LocalImage, ImageUnavailable>> + Send + '_>> {
        Box::pin(std::future::ready(Ok(self.clone())))
    }

    fn state(&self) -> ImageState {
        ImageState::Here(None)
    }
}

/// Keeps an image's layers in place.
#[derive(Clone, Default)]
pub struct Lease(Option<Arc<dyn Any + Send + Sync>>);

impl Lease {
    /// Holds this value.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(held)))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", if self.0.is_some() { "held" } else { "none" })
    }
}

/// A container whose image is here.
#[derive(Clone)]
pub(crate) struct RunnableContainer {
    spec: Arc<ContainerSpec>,
    unpacked: LocalImage,
}

impl ContainerSpec {
    /// The state of its image.
    pub(crate) fn state(&self) -> ImageState {
        self.source.0.state()
    }

    /// The container, as soon as its image is here.
    pub(crate) async fn ready(self: &Arc<Self>) -> Result<RunnableContainer, ImageUnavailable> {
        let unpacked = self.source.0.image().await?;
        Ok(RunnableContainer { spec: Arc::clone(self), unpacked })
    }
}

impl RunnableContainer {
    /// The same container, with the values of variables in its command and arguments. References in
    /// the image's own entrypoint stay.
    pub(crate) fn expanded(&self, variables: &Variables) -> Self {
        let ContainerSpec { command, args, .. } = &*self.spec;
        let command = command.as_deref().map(|command| variables.expand(command));
        let args = args.as_deref().map(|args| variables.expand(args));
        let spec = ContainerSpec { command, args, ..(*self.spec).clone() };
        Self { spec: Arc::new(spec), unpacked: self.unpacked.clone() }
    }

    /// Its folders in memory, and those of the node.
    pub(crate) fn volumes(&self) -> &[leno_model::Volume] {
        &self.spec.volumes
    }

    /// The container of one instance. `visible`: files and folders of the machine that it sees.
    pub(crate) fn instance(
        &self,
        visible: &[PathBuf],
        own_group: bool,
        environment: BTreeMap<String, String>,
        hostname: String,
        secrets: Vec<(String, Vec<u8>)>,
        (descriptors, processes): (Option<u64>, Option<u32>),
    ) -> Container {
        let image = self.unpacked.image.clone();
        let ContainerSpec { command, args, directory, user, volumes, read_only, writable, .. } = (*self.spec).clone();
        let visible = visible.to_vec();
        Container {
            namespace: String::new(),
            image,
            command,
            args,
            directory,
            user,
            environment,
            hostname,
            visible,
            secrets,
            volumes: in_memory(&volumes),
            folders: Vec::new(),
            host: Vec::new(),
            descriptors,
            processes,
            read_only,
            own_group,
            writable,
        }
    }
}
