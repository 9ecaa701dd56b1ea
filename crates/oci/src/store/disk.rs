//! The files of the store: unpacked layers, and images made of them. Which of them are in use, and
//! which are removed.
//!
//! ```text
//! lock                       held by the process that has the store open
//! layers/CHAIN/root          an unpacked layer, as overlayfs takes it
//! layers/CHAIN/layer.json    its size, and its omissions
//! images/DIGEST/             manifest.json, config.json; index.json, index-1.json, … (if the digest is that of an index, outermost first)
//! images/DIGEST/of-NAMESPACE the namespace has the image
//! tmp/                       files that are being made or removed
//! ```
//! Files and folders appear by a rename when they are complete. Layers may be incomplete after a
//! power failure, until an image of them is there: it comes after `syncfs`. So when the store is
//! opened, layers of no image are removed.

use super::image::{Command, Image, Lease};
use super::load::{documents_space, holders, index_name, load_image, load_layer, root_is_opaque};
use super::shares::{self, HeldLayer, Holding, Owner, Reservation};
use crate::attributes::Omissions;
use crate::beneath::OPAQUE;
use crate::manifest::Config;
use crate::space::Space;
use crate::unpack::ROOT;
use crate::{Digest, Error, Result};
use leno_namespaces::Namespaces;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, hash_map};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

/// The prefix of a mark for a namespace that has an image.
pub(super) const HOLDER: &str = "of-";

pub(crate) struct Disk {
    pub(super) folder: PathBuf,
    pub(super) limit: Space,
    state: Mutex<State>,
    temporary: AtomicU64,
    /// Locked for as long as this process has the store open.
    pub(super) lock: File,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) layers: HashMap<Digest, Arc<Layer>>,
    pub(super) images: HashMap<Digest, StoredImage>,
    /// The space taken by layers, images and unfinished files.
    pub(super) used: Space,
    pub(super) holdings: HashMap<Arc<str>, Holding>,
}

pub(super) struct StoredImage {
    pub(super) config: Arc<Command>,
    /// The layers, bottom to top.
    pub(super) layers: Vec<Digest>,
    /// The space taken by its documents.
    pub(super) documents: Space,
    /// The namespaces that have it, each with its lease, if it uses the image now. The lease of
    /// pulls for no namespace has no name.
    pub(super) leases: HashMap<Arc<str>, Weak<Lease>>,
}

impl StoredImage {
    pub(super) fn is_idle(&self) -> bool {
        self.leases.values().all(|lease| lease.strong_count() == 0)
    }

    /// Whether this namespace has the image, and does not use it.
    pub(super) fn is_idle_of(&self, name: &str) -> bool {
        self.leases.get(name).is_some_and(|lease| lease.strong_count() == 0)
    }

    /// Whether no namespace has the image, and no pull uses it.
    pub(super) fn is_unheld(&self) -> bool {
        self.leases.iter().all(|(name, lease)| name.is_empty() && lease.strong_count() == 0)
    }
}

/// An unpacked layer. It is kept as long as there is a reference besides that of [`State`].
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) chain: Digest,
    pub(crate) root: PathBuf,
    pub(crate) space: Space,
    /// The layer hides all layers below. overlayfs does not look at the attribute of a layer's
    /// root.
    pub(crate) opaque: bool,
    /// The entries and attributes of its archive that this folder lacks.
    pub(crate) omitted: Omissions,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LayerFile {
    pub(super) bytes: u64,
    /// Missing in stores of earlier releases.
    #[serde(default)]
    pub(super) files: Option<u64>,
    #[serde(default)]
    pub(super) omitted: Omissions,
}

/// The documents of an image, as received.
pub(crate) struct Documents {
    /// The indexes that lead to the manifest, outermost first.
    pub(crate) indexes: Vec<Vec<u8>>,
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
}

impl Documents {
    /// The files of an image, by name.
    fn files(&self) -> impl Iterator<Item = (String, &Vec<u8>)> {
        let files = [("manifest.json".to_owned(), &self.manifest), ("config.json".to_owned(), &self.config)];
        files.into_iter().chain(self.indexes.iter().enumerate().map(|(depth, index)| (index_name(depth), index)))
    }

    /// The space that they take on the disk, with their folder and the mark of a namespace.
    pub(crate) fn space(&self) -> Space {
        documents_space(self.files().map(|(_, content)| content.len() as u64))
    }
}

impl Disk {
    /// `limit` is reduced to half of the files that the file system can have. Images that
    /// namespaces have in the store are counted in `namespaces`.
    pub(crate) fn open(folder: &Path, limit: u64, namespaces: &Namespaces) -> Result<Arc<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot { what: "this process runs as another user".to_owned() });
        }
        let make = |path: &Path| {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(Error::io("cannot make the folder", path))
        };
        make(folder)?;
        let folder = fs::canonicalize(folder).map_err(Error::io("cannot open", folder))?;
        let lock_path = folder.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(CWD, &lock_path, flags, Mode::from_raw_mode(0o600))
            .map_err(Error::io("cannot open", &lock_path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::InUse { folder }),
            Err(error) => return Err(Error::io("cannot lock", &lock_path)(error)),
        }
        for name in ["layers", "images", "tmp"] {
            make(&folder.join(name))?;
        }
        let limit = Space {
            bytes: limit,
            files: Some(super::max_files(&folder)).filter(|files| *files > 0).unwrap_or(u64::MAX),
        };
        let disk = Self { folder, limit, state: Mutex::default(), temporary: AtomicU64::new(0), lock: lock.into() };
        for path in entries(&disk.folder.join("tmp"))? {
            remove(&path)?;
        }
        disk.try_rights()?;
        disk.load(namespaces)?;
        disk.changing(|state, moved| {
            // Nothing is in use yet, so all that is beyond the limit is removed.
            let _ = disk.free_space(state, &None, Space::default(), moved);
            Ok(())
        })?;
        Ok(Arc::new(disk))
    }

    /// Root of a user namespace can make neither devices nor `trusted.` attributes.
    fn try_rights(&self) -> Result<()> {
        let temp = self.temp()?;
        let denied = |what: &str| {
            let what = format!("{what} in {} is not permitted", self.folder.display());
            move |error: Errno| match error {
                Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP => Error::NotRoot { what: format!("{what} ({error})") },
                error => Error::Settings { place: what, reason: error.to_string() },
            }
        };
        let device = temp.path.join("whiteout");
        rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::empty(), 0)
            .map_err(denied("making the device 0/0"))?;
        rustix::fs::setxattr(&temp.path, OPAQUE, b"y", XattrFlags::empty())
            .map_err(denied("setting `trusted.overlay.opaque`"))
    }

    /// Reads the layers and images of the folder, and removes incomplete ones.
    fn load(&self, namespaces: &Namespaces) -> Result<()> {
        let mut state = self.state();
        for path in entries(&self.folder.join("layers"))? {
            match load_layer(&path) {
                Some(layer) => {
                    state.used += layer.space;
                    state.layers.insert(layer.chain, Arc::new(layer));
                }
                None => remove(&path)?,
            }
        }
        for path in entries(&self.folder.join("images"))? {
            let stored = load_image(&path)
                .filter(|(_, stored)| stored.layers.iter().all(|layer| state.layers.contains_key(layer)));
            match stored {
                Some((digest, stored)) => {
                    state.used += stored.documents;
                    state.images.insert(digest, stored);
                    for name in holders(&path) {
                        state.hold_image(&Some(namespaces.of(&name)), digest);
                    }
                }
                None => {
                    tracing::warn!(path = %path.display(), "an image is not whole and is removed; it is pulled again when it is wanted");
                    remove(&path)?;
                }
            }
        }
        let unused = state.unused_layers();
        for chain in unused {
            if let Some(layer) = state.layers.remove(&chain) {
                state.used -= layer.space;
                remove(&self.folder.join("layers").join(chain.hex()))?;
            }
        }
        Ok(())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn used(&self) -> u64 {
        self.state().used.bytes
    }

    /// An empty folder, which is removed with its handle.
    pub(crate) fn temp(&self) -> Result<Temp> {
        let path = self.next_temporary();
        DirBuilder::new().mode(0o700).create(&path).map_err(Error::io("cannot make the folder", &path))?;
        Ok(Temp { path })
    }

    fn next_temporary(&self) -> PathBuf {
        self.folder.join("tmp").join(self.temporary.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub(crate) fn layer(&self, chain: Digest) -> Option<Arc<Layer>> {
        self.state().layers.get(&chain).cloned()
    }

    /// The image, if it is in the store. It belongs to the namespace from now on.
    ///
    /// # Errors
    /// Fails if the namespace has reached its bound.
    pub(crate) fn image(self: &Arc<Self>, owner: &Owner, digest: Digest) -> Result<Option<Image>> {
        self.changing(|state, moved| {
            let Some(stored) = state.images.get(&digest) else { return Ok(None) };
            if owner.is_some() && !stored.leases.contains_key(shares::name(owner)) {
                self.bring_within(state, owner, moved, |state| state.missing_for(owner, digest))?;
                self.give(state, owner, digest)?;
            }
            Ok(self.lease(state, owner, digest))
        })
    }

    /// Records that a namespace has an image.
    fn give(&self, state: &mut State, owner: &Owner, digest: Digest) -> Result<()> {
        if owner.is_some() {
            let mark = self.holder_mark(digest, shares::name(owner));
            File::create(&mark).map_err(Error::io("cannot write", &mark))?;
            state.hold_image(owner, digest);
        }
        Ok(())
    }

    fn holder_mark(&self, digest: Digest, name: &str) -> PathBuf {
        self.image_folder(digest).join(format!("{HOLDER}{name}"))
    }

    pub(super) fn forget_holder(&self, digest: Digest, name: &str) {
        // If this fails, the namespace has the image again after a restart.
        let _ = fs::remove_file(self.holder_mark(digest, name));
    }

    fn lease(self: &Arc<Self>, state: &mut State, owner: &Owner, digest: Digest) -> Option<Image> {
        let stored = state.images.get_mut(&digest)?;
        let name: Arc<str> = shares::name(owner).into();
        if let Some(lease) = stored.leases.get(&name).and_then(Weak::upgrade) {
            return Some(Image(lease));
        }
        let layers = stored.layers.iter().map(|chain| state.layers.get(chain).cloned()).collect::<Option<Vec<_>>>()?;
        let (config, documents) = (stored.config.clone(), stored.documents.bytes);
        let lease = Arc::new(Lease { digest, config, layers, documents, disk: self.clone() });
        stored.leases.insert(name, Arc::downgrade(&lease));
        Some(Image(lease))
    }

    /// Records that the image has been used just now.
    pub(super) fn touch(&self, digest: Digest) {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        // If this fails, the image is removed before others.
        let _ = rustix::fs::utimensat(CWD, self.image_folder(digest), &times, AtFlags::empty());
    }

    fn image_folder(&self, digest: Digest) -> PathBuf {
        self.folder.join("images").join(digest.hex())
    }

    /// Keeps the folder `temp/root` as a layer, unless another pull has kept the same layer before.
    pub(crate) fn keep_layer(
        self: &Arc<Self>,
        owner: &Owner,
        temp: &Temp,
        chain: Digest,
        (reservation, omitted): (Reservation, Omissions),
    ) -> Result<Arc<HeldLayer>> {
        let (file, space) = (temp.path.join("layer.json"), reservation.used());
        let content = LayerFile { bytes: space.bytes, files: Some(space.files), omitted };
        fs::write(&file, serde_json::to_vec(&content).unwrap_or_default()).map_err(Error::io("cannot write", &file))?;
        let place = self.folder.join("layers").join(chain.hex());
        let opaque = root_is_opaque(&temp.path.join(ROOT)).map_err(Error::io("cannot open", &temp.path))?;
        let mut state = self.state();
        let known = state.layers.get(&chain).cloned();
        let layer = match known {
            Some(layer) => layer,
            None => {
                fs::rename(&temp.path, &place).map_err(Error::io("cannot make", &place))?;
                let layer = Arc::new(Layer { chain, root: place.join(ROOT), space, opaque, omitted: content.omitted });
                reservation.keep(&mut state);
                state.layers.insert(chain, layer.clone());
                return Ok(self.held(&mut state, owner, layer));
            }
        };
        let held = self.held(&mut state, owner, layer);
        drop(state);
        drop(reservation);
        Ok(held)
    }

    /// Keeps an image whose layers are there, once all of it has been flushed to the disk.
    pub(crate) fn keep_image(
        self: &Arc<Self>,
        owner: &Owner,
        digest: Digest,
        documents: &Documents,
        config: Config,
        layers: &[Arc<HeldLayer>],
    ) -> Result<Image> {
        let mut reservation = self.reservation(owner);
        reservation.take(documents.space())?;
        let folder = File::open(&self.folder).map_err(Error::io("cannot open", &self.folder))?;
        rustix::fs::syncfs(&folder).map_err(Error::io("cannot write to the disk", &self.folder))?;
        let temp = self.temp()?;
        for (name, content) in documents.files() {
            let path = temp.path.join(name);
            fs::write(&path, content).and_then(|()| sync(&path)).map_err(Error::io("cannot write", &path))?;
        }
        sync(&temp.path).map_err(Error::io("cannot write", &temp.path))?;
        let place = self.image_folder(digest);
        let mut state = self.state();
        // Another pull may have been first.
        if let hash_map::Entry::Vacant(entry) = state.images.entry(digest) {
            fs::rename(&temp.path, &place).map_err(Error::io("cannot make", &place))?;
            sync(&self.folder.join("images")).map_err(Error::io("cannot write", &place))?;
            let layers = layers.iter().map(|held| held.layer.chain).collect();
            let (config, documents) = (Arc::new(config.into()), documents.space());
            entry.insert(StoredImage { config, layers, documents, leases: HashMap::new() });
            reservation.keep(&mut state);
        } else {
            drop(state);
            drop(reservation);
            state = self.state();
        }
        let missing = || Error::io("cannot find", &place)(io::Error::from(io::ErrorKind::NotFound));
        let stored = state.images.get(&digest).ok_or_else(missing)?;
        if !stored.leases.contains_key(shares::name(owner)) {
            self.give(&mut state, owner, digest)?;
        }
        self.lease(&mut state, owner, digest).ok_or_else(missing)
    }

    /// When an image was last used.
    pub(super) fn last_used(&self, digest: Digest) -> SystemTime {
        let found = fs::metadata(self.image_folder(digest)).and_then(|metadata| metadata.modified());
        found.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn move_away(&self, path: &Path, moved: &mut Vec<PathBuf>) -> Result<()> {
        let to = self.next_temporary();
        fs::rename(path, &to).map_err(Error::io("cannot remove", path))?;
        moved.push(to);
        Ok(())
    }

    /// Moves an image that no namespace has out of the way. Its layers stay.
    pub(super) fn forget_image(&self, state: &mut State, digest: Digest, moved: &mut Vec<PathBuf>) -> Result<()> {
        self.move_away(&self.image_folder(digest), moved)?;
        if let Some(stored) = state.images.remove(&digest) {
            state.used -= stored.documents;
        }
        Ok(())
    }

    /// Moves a layer of no image out of the way. `false`: there is none.
    pub(super) fn forget_unused_layer(&self, state: &mut State, moved: &mut Vec<PathBuf>) -> Result<bool> {
        let Some(chain) = state.unused_layers().into_iter().next() else { return Ok(false) };
        self.move_away(&self.folder.join("layers").join(chain.hex()), moved)?;
        if let Some(layer) = state.layers.remove(&chain) {
            state.used -= layer.space;
        }
        Ok(true)
    }

    pub(super) fn remove_all(&self, moved: Vec<PathBuf>) -> Result<()> {
        if moved.is_empty() {
            return Ok(());
        }
        // No image may reappear after a power failure without its layers.
        for name in ["images", "layers"] {
            let path = self.folder.join(name);
            sync(&path).map_err(Error::io("cannot write", &path))?;
        }
        moved.iter().try_for_each(|path| remove(path))
    }
}

impl State {
    /// Layers of no image that no pull holds either.
    fn unused_layers(&self) -> Vec<Digest> {
        let of_images: HashSet<Digest> =
            self.images.values().flat_map(|stored| stored.layers.iter().copied()).collect();
        let unused =
            self.layers.iter().filter(|(chain, layer)| Arc::strong_count(layer) == 1 && !of_images.contains(chain));
        unused.map(|(chain, _)| *chain).collect()
    }
}

/// A folder under `tmp`.
pub(crate) struct Temp {
    pub(crate) path: PathBuf,
}

impl Drop for Temp {
    fn drop(&mut self) {
        // The folder may have become a layer. If it cannot be removed now, it is removed when the
        // store is opened.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(Error::io("cannot read", folder))?;
    entries.map(|entry| Ok(entry.map_err(Error::io("cannot read", folder))?.path())).collect()
}

fn remove(path: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(path).map_err(Error::io("cannot remove", path))?;
    let removed = if metadata.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(Error::io("cannot remove", path))
}
