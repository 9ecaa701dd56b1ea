//! The store verifies, unpacks and keeps images until their space is needed for others.

mod choose;
mod disk;
mod image;
mod layer;
mod load;
mod shares;
pub(crate) mod source;

pub use image::Image;

use crate::client::{AddressCheck, Client};
use crate::manifest::Blob;
use crate::progress::{LayerProgress, Progress, Stage};
use crate::registries::Registries;
use crate::unpack::Limits as LayerLimits;
use crate::{Digest, Error, Reference, Result};
use choose::{Choice, choose};
use disk::{Disk, Documents};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared, try_join_all};
use leno_namespaces::{Namespace, Namespaces, Turns};
use shares::HeldLayer;
use source::{FetchedLayer, Source, blocking, resolve};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of namespaces that can have all of their permitted layers in progress at once.
const NAMESPACES_AT_ONCE: usize = 16;

/// Limits of images and of the store.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How much the store keeps, in bytes on the disk (as files and folders take them, roughly). A
    /// pull for which there is no space fails. Images that are not in use are removed to make
    /// space: first those of the namespace that pulls, then those of namespaces that have more than
    /// it would have then, least recently used first.
    pub store_bytes: u64,
    /// How large an image may be, in bytes: all layers on the disk, and each layer as an archive.
    pub image_bytes: u64,
    /// How many entries a layer may have.
    pub entries: u64,
    /// How many layers are fetched and unpacked at once for one namespace. One of them is reserved
    /// for a registry from which no other layer is being fetched, so that a slow registry does not
    /// block others. All namespaces together have sixteen times as many.
    pub parallel: usize,
}

impl Default for Limits {
    /// 32 GiB for the store, 8 GiB and layers of a million entries for an image, 4 layers at once.
    fn default() -> Self {
        Self { store_bytes: 32 << 30, image_bytes: 8 << 30, entries: 1_000_000, parallel: 4 }
    }
}

/// Unpacked images in a folder. One process has it open at a time. A clone is the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    disk: Arc<Disk>,
    client: Arc<Client>,
    default_registry: Option<String>,
    limits: Limits,
    flights: Mutex<HashMap<FlightKey, InFlight>>,
    turns: Arc<Turns>,
}

/// A layer that is being fetched, for all pulls that wait for it. Its result is the layer with all
/// layers below it, bottom to top.
type Flight = Shared<BoxFuture<'static, Result<Vec<Arc<HeldLayer>>>>>;

/// The source and the namespace are parts of the key: no namespace waits for another's registry or
/// rate.
type FlightKey = (Digest, Digest, String, String);

struct InFlight {
    flight: WeakShared<BoxFuture<'static, Result<Vec<Arc<HeldLayer>>>>>,
    progress: Arc<LayerProgress>,
}

impl Store {
    /// Opens or makes a store. Removes partial files of an earlier process. Blocks while it reads
    /// the folder.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::InUse`] (another process has it open, or an [`Image`] of an
    /// earlier store of this process exists), or another error if `registries` or the folder is
    /// invalid.
    pub fn open(folder: &Path, limits: Limits, registries: Registries) -> Result<Self> {
        Self::open_for(folder, limits, registries, &Namespaces::default())
    }

    /// As [`Store::open`]. Images that namespaces have in the store from earlier pulls are counted
    /// in `namespaces`.
    ///
    /// # Errors
    /// The same.
    pub fn open_for(folder: &Path, limits: Limits, registries: Registries, namespaces: &Namespaces) -> Result<Self> {
        let default_registry = registries.default_registry.clone();
        let disk = Disk::open(folder, limits.store_bytes, namespaces)?;
        let client = Arc::new(Client::new(registries)?);
        let parallel = limits.parallel.clamp(1, 64);
        let turns = Turns::new(parallel * NAMESPACES_AT_ONCE, parallel, (parallel - 1).max(1));
        Ok(Self(Arc::new(Inner { disk, client, default_registry, limits, flights: Mutex::default(), turns })))
    }

    /// Reads a reference; names without a registry are in this store's default registry.
    ///
    /// # Errors
    /// [`Error::Reference`].
    pub fn reference(&self, text: &str) -> Result<Reference> {
        Reference::parse(text, self.0.default_registry.as_deref())
    }

    /// As [`Resolver::resolve`](crate::Resolver::resolve), by the store's own connections.
    ///
    /// # Errors
    /// When the registry, its mirrors, the layout or the archive do not have it.
    pub async fn resolve(&self, reference: &Reference) -> Result<Digest> {
        resolve(reference, &self.0.client).await
    }

    /// The image, if it is in the store.
    pub fn image(&self, digest: Digest) -> Option<Image> {
        self.0.disk.image(&None, digest).ok().flatten()
    }

    /// The bytes of the limit that are used.
    pub fn used_bytes(&self) -> u64 {
        self.0.disk.used()
    }

    /// Fetches an image, if it is not in the store. The reference needs a digest. Pulls of the same
    /// layers share one download. A pull that is dropped ends, unless another waits for the same
    /// layers.
    ///
    /// # Errors
    /// Fails if the registry refuses the request, or if the image is invalid. Nothing of a refused
    /// image remains.
    pub async fn pull(&self, reference: &Reference, progress: &Progress) -> Result<Image> {
        self.pull_for(None, reference, progress).await
    }

    /// As [`Store::pull`], within the rate, the turns and the bounds of a namespace. The image
    /// belongs to that namespace from then on.
    ///
    /// # Errors
    /// The same.
    pub async fn pull_for(
        &self,
        share: Option<&Arc<Namespace>>,
        reference: &Reference,
        progress: &Progress,
    ) -> Result<Image> {
        self.pull_checked(share, &AddressCheck::default(), reference, progress).await
    }

    /// As [`Store::pull_for`], for an image named by a document that is not the operator's: `check`
    /// judges the addresses of registries that the settings do not name.
    ///
    /// # Errors
    /// The same.
    pub async fn pull_checked(
        &self,
        share: Option<&Arc<Namespace>>,
        check: &AddressCheck,
        reference: &Reference,
        progress: &Progress,
    ) -> Result<Image> {
        let digest = reference
            .digest()
            .ok_or_else(|| reference.wrong("it has no digest; resolve its tag first, and keep the digest"))?;
        let inner = &self.0;
        let (owner, disk) = (share.cloned(), inner.disk.clone());
        let of_owner = owner.clone();
        if let Some(image) = blocking(move || disk.image(&of_owner, digest)).await? {
            progress.stage(Stage::Done);
            return Ok(image);
        }
        let name = reference.to_string();
        // Requests for the manifest take a turn as well.
        let turn = inner.turns.take(share.map_or("", |share| share.name()), &reference.origin()).await;
        let client = Arc::new(inner.client.checked(check)?);
        let source = Source::new(reference, &client, &inner.disk, inner.layer_limits(), owner.clone());
        let source = Arc::new(source.await?);
        let Choice { indexes, manifest_bytes, manifest, config_bytes, configuration } =
            choose(&source, &name, digest).await?;
        let compressed = manifest.layers.iter().fold(0, |all: u64, layer| all.saturating_add(layer.size));
        if compressed > inner.limits.image_bytes {
            let reason = format!(
                "its layers have {compressed} bytes, still compressed; the limit is {}",
                inner.limits.image_bytes
            );
            return Err(Error::Image { image: name, reason });
        }
        drop(turn);

        let diff_ids = &configuration.diff_ids;
        let (mut flights, mut parts, mut below) = (Vec::new(), Vec::new(), None);
        for ((blob, diff_id), chain) in manifest.layers.iter().zip(diff_ids).zip(Digest::chain(diff_ids)) {
            let (flight, part) = inner.flight(&source, *blob, *diff_id, chain, below);
            below = Some(flight.clone());
            flights.push(flight);
            parts.push(part);
        }
        progress.layers(parts);
        drop(below);
        let layers = try_join_all(flights).await?.pop().unwrap_or_default();

        progress.stage(Stage::Sync);
        let disk = inner.disk.clone();
        let documents = Documents { indexes, manifest: manifest_bytes, config: config_bytes };
        let image =
            blocking(move || disk.keep_image(&owner, digest, &documents, configuration.config, &layers)).await?;
        progress.stage(Stage::Done);
        Ok(image)
    }
}

impl Inner {
    fn layer_limits(&self) -> LayerLimits {
        LayerLimits { entries: self.limits.entries, file_bytes: self.limits.image_bytes }
    }

    /// The download of a layer, which is started if it is not in progress.
    fn flight(
        self: &Arc<Self>,
        source: &Arc<Source>,
        blob: Blob,
        diff_id: Digest,
        chain: Digest,
        below: Option<Flight>,
    ) -> (Flight, Arc<LayerProgress>) {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.flight.upgrade().is_some_and(|flight| flight.peek().is_none()));
        let key = (chain, blob.digest, source.key.clone(), source.namespace().to_owned());
        if let Some(under_way) = flights.get(&key)
            && let Some(flight) = under_way.flight.upgrade()
        {
            return (flight, under_way.progress.clone());
        }
        let progress = LayerProgress::new(blob.size);
        let flight = self.clone().bring(source.clone(), blob, diff_id, chain, below, progress.clone()).boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(key, InFlight { flight: weak, progress: progress.clone() });
        }
        (flight, progress)
    }

    async fn bring(
        self: Arc<Self>,
        source: Arc<Source>,
        blob: Blob,
        diff_id: Digest,
        chain: Digest,
        below: Option<Flight>,
        progress: Arc<LayerProgress>,
    ) -> Result<Vec<Arc<HeldLayer>>> {
        enum LayerLookup {
            /// Held from here on, so that it is not removed to make space.
            Here(Arc<HeldLayer>),
            Fetched(FetchedLayer),
        }
        let found = match self.disk.layer(chain) {
            Some(layer) => {
                let (disk, owner) = (self.disk.clone(), source.share.clone());
                LayerLookup::Here(blocking(move || disk.hold(&owner, layer)).await?)
            }
            None => {
                let _turn = self.turns.take(source.namespace(), &source.key).await;
                LayerLookup::Fetched(source.layer(&self.disk, blob, diff_id, self.layer_limits(), &progress).await?)
            }
        };
        let mut layers = match below {
            Some(below) => below.await?,
            None => Vec::new(),
        };
        let layer = match found {
            LayerLookup::Here(layer) => layer,
            LayerLookup::Fetched(FetchedLayer { temp, mut reservation, mut omitted }) => {
                let _turn = self.turns.take(source.namespace(), &source.key).await;
                let (disk, lower, owner) = (self.disk.clone(), layers.clone(), source.share.clone());
                blocking(move || {
                    let lower: Vec<&Path> = lower.iter().rev().map(|held| held.layer.root.as_path()).collect();
                    layer::build(&temp.path, blob, &lower, &mut reservation, &mut omitted)?;
                    disk.keep_layer(&owner, &temp, chain, (reservation, omitted))
                })
                .await?
            }
        };
        layers.push(layer);
        let bytes = layers.iter().fold(0, |all: u64, held| all.saturating_add(held.layer.space.bytes));
        if bytes > self.limits.image_bytes {
            let reason = format!(
                "with those below it, it takes {bytes} bytes on the disk; the limit of an image is {}",
                self.limits.image_bytes
            );
            return Err(Error::Layer { layer: blob.digest, reason });
        }
        progress.done();
        Ok(layers)
    }
}

/// How many files and folders a store in this folder may have: half of those that its file system
/// can have. The folder need not exist yet. 0: the file system does not tell.
pub fn max_files(folder: &Path) -> u64 {
    let found = folder.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
    found.map_or(0, |found| found.f_files / 2)
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}
