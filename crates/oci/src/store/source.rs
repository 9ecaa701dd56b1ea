//! The sources of an image's parts: a registry with its mirrors, or an OCI layout on this machine.

use super::disk::{Disk, Temp};
use super::layer::{self, DownloadReader};
use super::shares::{Owner, Reservation};
use crate::attributes::Omissions;
use crate::client::{Client, Endpoint, ReceiverGone};
use crate::decompress::decompress;
use crate::manifest::{self, Blob, Descriptor, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use crate::platform::Platform;
use crate::progress::LayerProgress;
use crate::reference::{Local, Place, Reference};
use crate::refusal::Failure;
use crate::unpack::{self, Limits};
use crate::{Digest, DigestError, Error, Result};
use leno_files::{FileAccess, readers};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// A layout or archive that has not been read by then is on a file system that hangs.
const MAX_UNPACK_TIME: Duration = Duration::from_secs(600);
/// How many pieces of a download (each up to some 400 KiB) may wait to be unpacked.
const PIECES_AHEAD: usize = 4;
/// Opens a blob on the thread that unpacks it.
type OpenBlob = Box<dyn FnOnce() -> Result<Box<dyn Read>> + Send>;

const INDEX: &str = "index.json";
const TAG: &str = "org.opencontainers.image.ref.name";
const NAME: &str = "io.containerd.image.name";

pub(crate) struct Source {
    kind: Kind,
    /// The image as messages name it.
    image: String,
    /// Distinguishes downloads of the same blob from different places.
    pub(crate) key: String,
    /// The namespace that it is pulled for; `None`: for none.
    pub(crate) share: Owner,
}

/// A layer that has been read, but not yet been built on top of others.
pub(crate) struct FetchedLayer {
    pub(crate) temp: Temp,
    pub(crate) reservation: Reservation,
    pub(crate) omitted: Omissions,
}

enum Kind {
    Registry { client: Arc<Client>, endpoints: Vec<Endpoint> },
    Layout(Arc<Layout>),
}

struct Layout {
    folder: Local,
    /// The folder of an unpacked archive, with its reserved space.
    _temp: Option<(Temp, Reservation)>,
}

impl Source {
    /// The name of the namespace that it is pulled for; empty: none.
    pub(crate) fn namespace(&self) -> &str {
        self.share.as_ref().map_or("", |share| share.name())
    }

    pub(crate) async fn new(
        reference: &Reference,
        client: &Arc<Client>,
        disk: &Arc<Disk>,
        limits: Limits,
        share: Owner,
    ) -> Result<Self> {
        let Place::Archive(file) = &reference.place else {
            return Ok(Self { share, ..Self::direct(reference, client)? });
        };
        let (reservation, temp, key) = (disk.reservation(&share), disk.temp()?, reference.origin());
        let layout = file.run(move |file| open_archive(file, temp, reservation, limits)).await?;
        Ok(Self { kind: Kind::Layout(Arc::new(layout)), image: reference.to_string(), key, share })
    }

    /// A source of which nothing has to be unpacked: a registry or a layout.
    pub(crate) fn direct(reference: &Reference, client: &Arc<Client>) -> Result<Self> {
        let key = reference.origin();
        let kind = match &reference.place {
            Place::Registry { registry, repository } => {
                let endpoints = client.endpoints(registry, repository)?;
                Kind::Registry { client: client.clone(), endpoints }
            }
            Place::Layout(folder) | Place::Archive(folder) => {
                Kind::Layout(Arc::new(Layout { folder: folder.clone(), _temp: None }))
            }
        };
        Ok(Self { kind, image: reference.to_string(), key, share: None })
    }

    /// The digest that a tag names now; without a tag, that of the only image of a layout.
    async fn resolve(&self, tag: Option<&str>) -> Result<Digest> {
        match &self.kind {
            Kind::Registry { client, endpoints } => {
                let manifest = self.ask(client, endpoints, Selector::Tag(tag.unwrap_or("latest"))).await?;
                Ok(Digest::of(&manifest))
            }
            Kind::Layout(layout) => {
                let (own, tag, image) = (layout.clone(), tag.map(str::to_owned), self.image.clone());
                layout.folder.run(move |_| own.resolve(tag.as_deref(), &image)).await
            }
        }
    }

    /// Fetches and verifies a manifest or an index.
    pub(crate) async fn manifest(&self, digest: Digest) -> Result<Vec<u8>> {
        match &self.kind {
            Kind::Registry { client, endpoints } => self.ask(client, endpoints, Selector::Manifest(digest)).await,
            Kind::Layout(layout) => self.local(layout, digest, MAX_MANIFEST_BYTES).await,
        }
    }

    /// Fetches and verifies a configuration.
    pub(crate) async fn config(&self, blob: Blob) -> Result<Vec<u8>> {
        let bytes = match &self.kind {
            Kind::Registry { client, endpoints } => self.ask(client, endpoints, Selector::Config(blob.digest)).await?,
            Kind::Layout(layout) => self.local(layout, blob.digest, MAX_CONFIG_BYTES).await?,
        };
        // If a tool has left out the size, the digest still holds.
        if blob.size != 0 && bytes.len() as u64 != blob.size {
            let reason = format!("its configuration has {} bytes; its manifest says {}", bytes.len(), blob.size);
            return Err(Error::Image { image: self.image.clone(), reason });
        }
        Ok(bytes)
    }

    /// Asks one endpoint after another.
    async fn ask(&self, client: &Client, endpoints: &[Endpoint], wanted: Selector<'_>) -> Result<Vec<u8>> {
        let mut answer = Err(nobody());
        for (others, endpoint) in (0..endpoints.len()).rev().zip(endpoints) {
            answer = match wanted {
                Selector::Tag(tag) => client.tag(endpoint, tag, &self.image, MAX_MANIFEST_BYTES).await,
                Selector::Manifest(digest) => {
                    let bytes = client.manifest(endpoint, digest, MAX_MANIFEST_BYTES).await;
                    bytes.and_then(|bytes| self.verified(digest, bytes))
                }
                Selector::Config(digest) => {
                    let bytes = client.small_blob(endpoint, digest, MAX_CONFIG_BYTES).await;
                    bytes.and_then(|bytes| self.verified(digest, bytes))
                }
            };
            if counts(&answer, endpoint, others) {
                break;
            }
        }
        answer
    }

    fn verified(&self, digest: Digest, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let found = Digest::of(&bytes);
        if found == digest {
            return Ok(bytes);
        }
        let reason = format!("what comes for {digest} has the digest {found}");
        Err(Error::Image { image: self.image.clone(), reason })
    }

    async fn local(&self, layout: &Arc<Layout>, digest: Digest, limit: usize) -> Result<Vec<u8>> {
        let own = layout.clone();
        let bytes = layout.folder.run(move |_| own.read(&blob_path(digest), limit)).await?;
        self.verified(digest, bytes)
    }

    /// Reads a layer into a new folder.
    pub(crate) async fn layer(
        &self,
        disk: &Arc<Disk>,
        blob: Blob,
        diff_id: Digest,
        limits: Limits,
        progress: &Arc<LayerProgress>,
    ) -> Result<FetchedLayer> {
        let unpack = |disk: Arc<Disk>, progress: Arc<LayerProgress>, open: OpenBlob| {
            let owner = self.share.clone();
            move || {
                let source = open()?;
                let (temp, mut reservation) = (disk.temp()?, disk.reservation(&owner));
                let omitted = layer::read(source, blob, diff_id, &temp.path, limits, &mut reservation, &progress)?;
                Ok(FetchedLayer { temp, reservation, omitted })
            }
        };
        match &self.kind {
            Kind::Layout(layout) => {
                let own = layout.clone();
                let open: OpenBlob = Box::new(move || Ok(Box::new(own.open(&blob_path(blob.digest))?)));
                let unpack = unpack(disk.clone(), progress.clone(), open);
                layout.folder.run(move |_| unpack()).await
            }
            Kind::Registry { client, endpoints } => {
                let mut answer = Err(nobody());
                for (others, endpoint) in (0..endpoints.len()).rev().zip(endpoints) {
                    let (to, from) = mpsc::channel(PIECES_AHEAD);
                    let open: OpenBlob = Box::new(move || Ok(Box::new(DownloadReader::new(from, blob.size))));
                    let unpacked = blocking(unpack(disk.clone(), progress.clone(), open));
                    let downloaded = client.blob(
                        endpoint,
                        blob.digest,
                        blob.size,
                        (to, self.share.as_ref().map(|share| &share.pulls)),
                    );
                    let (unpacked, downloaded) = futures_util::future::join(unpacked, downloaded).await;
                    answer = match downloaded {
                        // The unpacker ended last, or it ended first and its result has the cause.
                        Ok(Ok(()) | Err(ReceiverGone)) => unpacked,
                        Err(error) => Err(error),
                    };
                    if counts(&answer, endpoint, others) {
                        break;
                    }
                }
                answer
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Selector<'a> {
    Tag(&'a str),
    Manifest(Digest),
    Config(Digest),
}

fn nobody() -> Error {
    Error::Settings { place: "registries".to_owned(), reason: "none is there to ask".to_owned() }
}

/// Whether the answer is final, with `others` further endpoints to ask. The last endpoint is the
/// registry itself, whose error counts in any case.
fn counts<T>(answer: &Result<T>, endpoint: &Endpoint, others: usize) -> bool {
    match answer {
        // A fault of this machine is the same with every endpoint.
        Ok(_) | Err(Error::Full { .. } | Error::Quota { .. } | Error::Disk { .. } | Error::Io { .. }) => true,
        Err(_) if others == 0 => true,
        Err(error) => {
            tracing::warn!(%error, "{endpoint} does not have what is asked for; the next one is asked");
            false
        }
    }
}

impl Layout {
    fn resolve(&self, tag: Option<&str>, image: &str) -> Result<Digest> {
        let bytes = self.read(INDEX, MAX_MANIFEST_BYTES)?;
        chosen(&bytes, tag, image)
    }

    fn read(&self, name: &str, limit: usize) -> Result<Vec<u8>> {
        let path = self.folder.path.join(name);
        let mut bytes = Vec::new();
        self.open(name)?.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(Error::io("cannot read", &path))?;
        if bytes.len() > limit {
            return Err(Error::Image {
                image: path.display().to_string(),
                reason: format!("it is longer than {limit} bytes"),
            });
        }
        Ok(bytes)
    }

    /// A file of the layout; no link leads out of it.
    fn open(&self, name: &str) -> Result<File> {
        let folder = leno_files::open_directory(&self.folder.path, &self.folder.access);
        let file = folder.and_then(|folder| leno_files::open_in(folder.as_fd(), Path::new(name)));
        file.map_err(Error::io("cannot open", &self.folder.path.join(name)))
    }
}

/// The image in a layout's index that has this tag; without a tag, the only image. Where a tag
/// names one image for each platform, this machine's is chosen.
fn chosen(index: &[u8], tag: Option<&str>, image: &str) -> Result<Digest> {
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let entries =
        manifest::index(image, index).map_err(|error| wrong(format!("{INDEX}: {error}; expected an OCI layout")))?;
    let tag_of = |entry: &Descriptor| entry.annotation(TAG).map(str::to_owned);
    let mut named: Vec<&Descriptor> =
        entries.iter().filter(|entry| tag.is_none() || tag_of(entry).as_deref() == tag).collect();
    if let Some(tag) = tag.filter(|_| named.is_empty()) {
        // Podman and containerd write whole names.
        let ends = |name: Option<&str>| name.and_then(|name| name.rsplit_once(':')).is_some_and(|(_, end)| end == tag);
        let named_so = |entry: &&Descriptor| ends(entry.annotation(TAG)) || ends(entry.annotation(NAME));
        named = entries.iter().filter(named_so).collect();
    }
    let undigested = |error: DigestError| wrong(error.to_string());
    let mut found = digests(named.iter().copied()).map_err(undigested)?;
    if found.len() > 1 {
        let rank = |entry: &&Descriptor| entry.platform().and_then(Platform::rank);
        if let Some(best) = named.iter().filter_map(rank).max() {
            found = digests(named.iter().copied().filter(|entry| rank(entry) == Some(best))).map_err(undigested)?;
        }
    }
    match found[..] {
        [digest] => Ok(digest),
        _ => {
            let tags: Vec<String> = entries.iter().filter_map(tag_of).take(20).collect();
            let asked = tag.map_or_else(|| "of any tag".to_owned(), |tag| format!("with the tag `{tag}`"));
            Err(wrong(format!("the layout has {} images {asked}; its tags are: {}", found.len(), tags.join(", "))))
        }
    }
}

/// Each digest once.
fn digests<'a>(entries: impl Iterator<Item = &'a Descriptor>) -> Result<Vec<Digest>, DigestError> {
    let mut digests = Vec::new();
    for entry in entries {
        let Blob { digest, .. } = entry.blob()?;
        if !digests.contains(&digest) {
            digests.push(digest);
        }
    }
    Ok(digests)
}

/// The digest that a reference names now.
pub(crate) async fn resolve(reference: &Reference, client: &Arc<Client>) -> Result<Digest> {
    if let Some(digest) = reference.digest() {
        return Ok(digest);
    }
    let tag = reference.tag.as_deref();
    if let Place::Archive(file) = &reference.place {
        return resolve_archive(file, tag, &reference.to_string()).await;
    }
    Source::direct(reference, client)?.resolve(tag).await
}

/// The digest that a tag names in an archive of a layout. The archive is not unpacked.
async fn resolve_archive(local: &Local, tag: Option<&str>, image: &str) -> Result<Digest> {
    let (tag, image) = (tag.map(str::to_owned), image.to_owned());
    local
        .run(move |local| {
            let path = &local.path;
            let wrong = |reason: String| Error::Image { image: path.display().to_string(), reason };
            let file = local.open()?;
            let archive =
                decompress(BufReader::with_capacity(64 << 10, file)).map_err(Error::io("cannot read", path))?;
            let crate::Limits { entries, image_bytes, .. } = crate::Limits::default();
            let limits = Limits { entries, file_bytes: image_bytes };
            let index = unpack::find(archive, INDEX, MAX_MANIFEST_BYTES, limits).map_err(|failure| match failure {
                Failure::Layer(reason) => wrong(reason),
                Failure::Read(error) | Failure::Write(_, error) => {
                    wrong(format!("it cannot be read: {error}; expected a tar archive of an OCI layout"))
                }
            })?;
            let index =
                index.ok_or_else(|| wrong(format!("it has no {INDEX}; expected a tar archive of an OCI layout")))?;
            chosen(&index, tag.as_deref(), &image)
        })
        .await
}

fn blob_path(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Unpacks an archive of a layout next to the store's layers.
fn open_archive(local: &Local, temp: Temp, mut reservation: Reservation, limits: Limits) -> Result<Layout> {
    let path = &local.path;
    let wrong = |reason: String| Error::Image { image: path.display().to_string(), reason };
    let file = local.open()?;
    let archive = decompress(BufReader::with_capacity(64 << 10, file)).map_err(Error::io("cannot read", path))?;
    let archive = archive.take(limits.file_bytes);
    let mut take = |space| reservation.take(space).map_err(io::Error::other);
    let unpacked = unpack::read(archive, &temp.path, limits, &mut take)
        .and_then(|mut omitted| unpack::build(&temp.path, &[], &mut take, &mut omitted));
    unpacked.map_err(|failure| match failure {
        Failure::Layer(reason) => wrong(reason),
        Failure::Read(error) => match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => wrong(format!("it cannot be unpacked: {error}; expected a tar archive of an OCI layout")),
        },
        Failure::Write(entry, error) => wrong(format!("entry `{entry}` cannot be written: {error}")),
    })?;
    let folder = temp.path.join(unpack::ROOT);
    let folder = Local { path: folder, access: FileAccess::Any, ..local.clone() };
    Ok(Layout { folder, _temp: Some((temp, reservation)) })
}

impl Local {
    /// Opens the archive.
    fn open(&self) -> Result<File> {
        leno_files::open(&self.path, &self.access).map_err(Error::io("cannot open", &self.path))
    }

    /// Runs a function that reads the archive on a thread that reads images of its namespace.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> Result<T> + Send + 'static) -> Result<T> {
        if let Some(reason) = self.access.refusal(&self.namespace, &self.path) {
            return Err(Error::Image { image: self.path.display().to_string(), reason });
        }
        let own = self.clone();
        let ran = readers::run_image(&self.namespace, MAX_UNPACK_TIME, move || Ok(work(&own))).await;
        ran.map_err(Error::io("cannot read", &self.path))?
    }
}

/// Runs a blocking function on a thread for such functions.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let stopped = |error: tokio::task::JoinError| Error::Settings {
        place: "this process".to_owned(),
        reason: format!("it is stopping: {error}"),
    };
    spawn_blocking(work).await.map_err(stopped)?
}
