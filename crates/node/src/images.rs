//! The images of this node's containers. The node opens the store when it first needs an image, so
//! a node without containers needs neither the store's folder nor root.

mod pull;
mod registries;

pub(crate) use registries::secret;
pub use registries::{SecretError, registries};

use leno_files::FileAccess;
use leno_jail::DEFAULT_WRITABLE;
use leno_namespaces::{Namespace, Namespaces};
use leno_oci::{AddressCheck, DigestError, Image, Limits, Progress, Store};
use leno_proxy::{EgressGuard, Requester};
use leno_supervisor::{ContainerSpec, FunctionSpec, JailSupport, Source};
use pull::Pull;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tokio::sync::OnceCell;
use tokio::task::{JoinError, spawn_blocking};

/// Pulls images to this node.
pub(crate) struct Images {
    settings: leno_model::Images,
    /// Why this node runs no containers; `None`: it probably can.
    no_containers: Option<String>,
    store: OnceCell<Store>,
    /// Pulls that a function in force or an instance uses, by their namer and by name with digest.
    pulls: Mutex<HashMap<(Namer, String), Weak<Pull>>>,
    namespaces: Arc<Namespaces>,
    /// Set when the node exists, before the first pull.
    guard: OnceLock<EgressGuard>,
}

/// Why an image cannot be pulled to this node.
#[derive(Debug, thiserror::Error)]
enum ImageError {
    #[error("{0}")]
    NoContainers(String),
    #[error("nobody has said which image its tag means")]
    NoDigest,
    #[error(transparent)]
    Digest(DigestError),
    #[error("the node is not there yet")]
    NoGuard,
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("{}: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error(transparent)]
    Store(#[from] leno_oci::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// The namespace of a document, the files that it may name, and the addresses from which its images
/// may be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Namer {
    pub files: FileAccess,
    pub requester: Requester,
}

impl Images {
    pub(crate) fn new(settings: leno_model::Images, jails: &JailSupport, namespaces: Arc<Namespaces>) -> Arc<Self> {
        let no_containers = match jails {
            JailSupport::Available(jails) => jails.no_containers().map(ToString::to_string),
            JailSupport::Unavailable(reason) => {
                Some(format!("a container runs in a jail, and this node has none: {reason}"))
            }
        };
        namespaces.limit_images(settings.size, leno_oci::max_files(&settings.folder));
        Arc::new(Self {
            settings,
            no_containers,
            store: OnceCell::new(),
            pulls: Mutex::default(),
            namespaces,
            guard: OnceLock::new(),
        })
    }

    /// Sets the guard, which judges the addresses of registries that the operator has not named. A
    /// second call changes nothing.
    pub(crate) fn set_guard(&self, guard: EgressGuard) {
        let _ = self.guard.set(guard);
    }

    /// Whether the store is open. Only one process can open it at a time.
    pub(crate) fn are_used(&self) -> bool {
        self.store.initialized()
    }

    /// Adds the container to the spec of a function that is one.
    pub(crate) fn contain(self: &Arc<Self>, mut spec: FunctionSpec, requester: &Requester) -> FunctionSpec {
        let namer = Namer { files: spec.files.clone(), requester: requester.clone() };
        spec.container = spec.run.container().map(|container| self.container(container, namer));
        spec
    }

    /// A container, whose image is pulled ahead of its first start if it says so.
    pub(crate) fn container(self: &Arc<Self>, container: &leno_model::Container, namer: Namer) -> Arc<ContainerSpec> {
        let leno_model::Container { image, digest, command, args, directory, user, volumes, read_only, writable, pull } =
            container.clone();
        let name = match &digest {
            Some(digest) if !image.contains('@') => format!("{image}@{digest}"),
            _ => image.clone(),
        };
        let source = self.pull(&name, image, digest, namer);
        if pull == leno_model::Pull::Ahead {
            source.begin_ahead();
        }
        Arc::new(ContainerSpec {
            image: name,
            source: Source::new(source),
            command,
            args,
            directory,
            user,
            volumes,
            read_only,
            writable: writable.unwrap_or(DEFAULT_WRITABLE),
        })
    }

    /// The pull that all functions of a namespace share if they use the same image. Another
    /// namespace has another pull, so it only waits for its own registry and rate.
    fn pull(self: &Arc<Self>, name: &str, image: String, digest: Option<String>, namer: Namer) -> Arc<Pull> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namer.clone(), name.to_owned());
        if let Some(pull) = pulls.get(&key).and_then(Weak::upgrade) {
            return pull;
        }
        pulls.retain(|_, pull| pull.strong_count() > 0);
        let share = self.namespaces.of(&namer.requester.namespace);
        let pull = Arc::new(Pull::new(self.clone(), (share, namer), image, digest));
        pulls.insert(key, Arc::downgrade(&pull));
        pull
    }

    /// The images on this node that are in use, by name with digest.
    pub(crate) fn kept(&self) -> BTreeSet<String> {
        let pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let here = pulls.iter().filter(|(_, pull)| pull.upgrade().is_some_and(|pull| pull.is_here()));
        here.map(|((_, name), _)| name.clone()).collect()
    }

    /// Pulls an image to this node.
    async fn bring(
        &self,
        (share, namer): (&Arc<Namespace>, &Namer),
        image: &str,
        digest: Option<&str>,
        progress: &Progress,
    ) -> Result<Image, ImageError> {
        if let Some(reason) = &self.no_containers {
            return Err(ImageError::NoContainers(reason.clone()));
        }
        let digest = digest.ok_or(ImageError::NoDigest)?.parse().map_err(ImageError::Digest)?;
        let store = self.store.get_or_try_init(|| self.open()).await?;
        let reference = store.reference(image)?.with_digest(digest);
        let reference = reference.named_by(&namer.requester.namespace, &namer.files);
        let check = self.check(&namer.requester)?;
        Ok(store.pull_checked(Some(share), &check, &reference, progress).await?)
    }

    fn check(&self, requester: &Requester) -> Result<AddressCheck, ImageError> {
        if requester.egress.is_none() {
            return Ok(AddressCheck::default());
        }
        let guard = self.guard.get().ok_or(ImageError::NoGuard)?.clone();
        let requester = requester.clone();
        Ok(AddressCheck::new(move |address| guard.check(address, &requester).map_err(|error| error.to_string())))
    }

    async fn open(&self) -> Result<Store, ImageError> {
        let (settings, namespaces) = (self.settings.clone(), self.namespaces.clone());
        let open = move || {
            let registries = registries(&settings, &FileAccess::Any)?;
            let limits = Limits { store_bytes: settings.size, ..Limits::default() };
            let limits = Limits { image_bytes: limits.image_bytes.min(settings.size), ..limits };
            // Other programs may share the parent folders, so these get the default mode.
            if let Some(parent) = settings.folder.parent() {
                std::fs::create_dir_all(parent)
                    .map_err(|error| ImageError::Folder { folder: parent.to_owned(), error })?;
            }
            let store = Store::open_for(&settings.folder, limits, registries, &namespaces)?;
            tracing::info!("images are kept in {}", settings.folder.display());
            Ok(store)
        };
        spawn_blocking(open).await?
    }
}
