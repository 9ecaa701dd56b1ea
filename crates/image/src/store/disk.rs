//! What is on the disk: unpacked layers, and images made of them. Which of them are in use, and which have to go.
//!
//! ```text
//! lock                       held by the process that has the store
//! layers/CHAIN/root          an unpacked layer, as overlayfs wants it
//! layers/CHAIN/layer.json    its size
//! images/DIGEST/             manifest.json, config.json; index.json, index-1.json, … (if the digest is that of an index, outermost first)
//! tmp/                       what is being made or removed
//! ```
//! Whatever is made appears by a rename. Layers may be incomplete after a power failure, until an image of them is there: it comes after `syncfs`. So
//! when the store is opened, layers of no image are removed.

use super::image::{Command, Image, Lease};
use crate::manifest::{self, Config, Configuration, Descriptor, Document};
use crate::tree::{OPAQUE, is_opaque};
use crate::{Digest, Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, hash_map};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

/// In what pieces room is taken, in bytes, while there is plenty.
const PIECE: u64 = 4 << 20;

pub(crate) struct Disk {
    folder: PathBuf,
    limit: u64,
    state: Mutex<State>,
    temporary: AtomicU64,
    /// For as long as this process has the store.
    _lock: File,
}

#[derive(Default)]
struct State {
    layers: HashMap<Digest, Arc<Layer>>,
    images: HashMap<Digest, Stored>,
    /// Bytes of layers, and of room that is taken.
    used: u64,
}

struct Stored {
    config: Arc<Command>,
    /// Bottom to top.
    layers: Vec<Digest>,
    lease: Weak<Lease>,
}

/// An unpacked layer. As long as somebody besides [`State`] has it, it stays.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) chain: Digest,
    pub(crate) root: PathBuf,
    pub(crate) bytes: u64,
    /// Nothing below shows through. overlayfs does not look at the attribute of a layer's root.
    pub(crate) opaque: bool,
}

#[derive(Serialize, Deserialize)]
struct LayerFile {
    bytes: u64,
}

/// What came for an image, as it came.
pub(crate) struct Documents {
    /// Those that lead to the manifest, outermost first.
    pub(crate) indexes: Vec<Vec<u8>>,
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
}

impl Disk {
    pub(crate) fn open(folder: &Path, limit: u64) -> Result<Arc<Self>> {
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
        let disk = Self { folder, limit, state: Mutex::default(), temporary: AtomicU64::new(0), _lock: lock.into() };
        for path in entries(&disk.folder.join("tmp"))? {
            remove(&path)?;
        }
        disk.try_rights()?;
        disk.load()?;
        let room = disk.make_room(&mut disk.state(), 0);
        match room {
            Ok(removed) => disk.remove_all(removed)?,
            Err((removed, _)) => disk.remove_all(removed)?,
        }
        Ok(Arc::new(disk))
    }

    /// Root of a user namespace may make neither devices nor `trusted.` attributes.
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

    /// Reads what is there, and removes what is not whole.
    fn load(&self) -> Result<()> {
        let mut state = self.state();
        for path in entries(&self.folder.join("layers"))? {
            match load_layer(&path) {
                Some(layer) => {
                    state.used += layer.bytes;
                    state.layers.insert(layer.chain, Arc::new(layer));
                }
                None => remove(&path)?,
            }
        }
        for path in entries(&self.folder.join("images"))? {
            let stored = load_image(&path)
                .filter(|(_, stored)| stored.layers.iter().all(|layer| state.layers.contains_key(layer)));
            match stored {
                Some((digest, stored)) => drop(state.images.insert(digest, stored)),
                None => {
                    tracing::warn!(path = %path.display(), "an image is not whole and is removed; it is pulled again when it is wanted");
                    remove(&path)?;
                }
            }
        }
        let unused = state.unused_layers();
        for chain in unused {
            if let Some(layer) = state.layers.remove(&chain) {
                state.used -= layer.bytes;
                remove(&self.folder.join("layers").join(chain.hex()))?;
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn used(&self) -> u64 {
        self.state().used
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

    pub(crate) fn image(self: &Arc<Self>, digest: Digest) -> Option<Image> {
        self.lease(&mut self.state(), digest)
    }

    fn lease(self: &Arc<Self>, state: &mut State, digest: Digest) -> Option<Image> {
        let stored = state.images.get_mut(&digest)?;
        if let Some(lease) = stored.lease.upgrade() {
            return Some(Image(lease));
        }
        let layers = stored.layers.iter().map(|chain| state.layers.get(chain).cloned()).collect::<Option<Vec<_>>>()?;
        let lease = Arc::new(Lease { digest, config: stored.config.clone(), layers, disk: self.clone() });
        stored.lease = Arc::downgrade(&lease);
        Some(Image(lease))
    }

    /// The image has been used just now.
    pub(super) fn touch(&self, digest: Digest) {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        // At worst it goes before another.
        let _ = rustix::fs::utimensat(CWD, self.image_folder(digest), &times, AtFlags::empty());
    }

    fn image_folder(&self, digest: Digest) -> PathBuf {
        self.folder.join("images").join(digest.hex())
    }

    /// Keeps what is in `temp/root`, unless another has kept the same before.
    pub(crate) fn keep_layer(&self, temp: &Temp, chain: Digest, room: Room) -> Result<Arc<Layer>> {
        let file = temp.path.join("layer.json");
        let text = serde_json::to_vec(&LayerFile { bytes: room.used }).unwrap_or_default();
        fs::write(&file, text).map_err(Error::io("cannot write", &file))?;
        let place = self.folder.join("layers").join(chain.hex());
        let opaque = root_is_opaque(&temp.path.join("root")).map_err(Error::io("cannot open", &temp.path))?;
        let mut state = self.state();
        if let Some(layer) = state.layers.get(&chain) {
            return Ok(layer.clone());
        }
        fs::rename(&temp.path, &place).map_err(Error::io("cannot make", &place))?;
        let layer = Arc::new(Layer { chain, root: place.join("root"), bytes: room.used, opaque });
        state.used -= room.taken - room.used;
        room.keep();
        state.layers.insert(chain, layer.clone());
        Ok(layer)
    }

    /// Keeps an image whose layers are there, once all of it is on the disk.
    pub(crate) fn keep_image(
        self: &Arc<Self>,
        digest: Digest,
        documents: &Documents,
        config: Config,
        layers: &[Arc<Layer>],
    ) -> Result<Image> {
        let folder = File::open(&self.folder).map_err(Error::io("cannot open", &self.folder))?;
        rustix::fs::syncfs(&folder).map_err(Error::io("cannot write to the disk", &self.folder))?;
        let temp = self.temp()?;
        let files = [("manifest.json".to_owned(), &documents.manifest), ("config.json".to_owned(), &documents.config)];
        let indexes = documents.indexes.iter().enumerate().map(|(depth, index)| (index_name(depth), index));
        for (name, content) in files.into_iter().chain(indexes) {
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
            let layers = layers.iter().map(|layer| layer.chain).collect();
            entry.insert(Stored { config: Arc::new(config.into()), layers, lease: Weak::new() });
        }
        let lost = || Error::Io { doing: "cannot find", path: place, source: Arc::new(io::ErrorKind::NotFound.into()) };
        self.lease(&mut state, digest).ok_or_else(lost)
    }

    pub(crate) fn room(self: &Arc<Self>) -> Room {
        Room { disk: Some(self.clone()), taken: 0, used: 0 }
    }

    /// Takes room, and returns how much: more than is asked for if it is free anyway.
    fn take(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state();
        let free = self.limit.saturating_sub(state.used);
        let piece = bytes.max(PIECE.min(free / 64));
        if piece <= free {
            state.used += piece;
            return Ok(piece);
        }
        let room = self.make_room(&mut state, bytes);
        if room.is_ok() {
            state.used += bytes;
        }
        drop(state);
        match room {
            Ok(removed) => self.remove_all(removed).map(|()| bytes),
            Err((removed, error)) => self.remove_all(removed).and(Err(error)),
        }
    }

    /// Moves out of the way what is not in use, least recently used images first, until there is room. What has been moved has to be removed.
    fn make_room(&self, state: &mut State, bytes: u64) -> Result<Vec<PathBuf>, (Vec<PathBuf>, Error)> {
        let mut moved = Vec::new();
        while state.used.saturating_add(bytes) > self.limit {
            let full = || Error::Full { folder: self.folder.clone(), limit: self.limit, needed: bytes };
            let away = |path: PathBuf, moved: &mut Vec<PathBuf>| {
                let to = self.next_temporary();
                fs::rename(&path, &to).map_err(Error::io("cannot remove", &path))?;
                moved.push(to);
                Ok(())
            };
            if let Some(chain) = state.unused_layers().into_iter().next() {
                if let Err(error) = away(self.folder.join("layers").join(chain.hex()), &mut moved) {
                    return Err((moved, error));
                }
                if let Some(layer) = state.layers.remove(&chain) {
                    state.used -= layer.bytes;
                }
                continue;
            }
            let idle =
                state.images.iter().filter(|(_, stored)| stored.lease.strong_count() == 0).map(|(digest, _)| *digest);
            // An image whose layers are all in use, by others, frees nothing but is no loss either.
            let oldest = idle.min_by_key(|digest| last_used(&self.image_folder(*digest)));
            let Some(oldest) = oldest else { return Err((moved, full())) };
            if let Err(error) = away(self.image_folder(oldest), &mut moved) {
                return Err((moved, error));
            }
            state.images.remove(&oldest);
            tracing::info!(image = %oldest, "an image that is not in use makes room for others");
        }
        Ok(moved)
    }

    fn remove_all(&self, moved: Vec<PathBuf>) -> Result<()> {
        if moved.is_empty() {
            return Ok(());
        }
        // No image may come back after a power failure without its layers.
        for name in ["images", "layers"] {
            let path = self.folder.join(name);
            sync(&path).map_err(Error::io("cannot write", &path))?;
        }
        moved.iter().try_for_each(|path| remove(path))
    }
}

impl State {
    /// Layers of no image that nobody else has either.
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
        // It may have become a layer. What cannot be removed now is removed when the store is opened.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Bytes of the store's limit for something that is being made.
pub(crate) struct Room {
    /// Gone once a layer has it.
    disk: Option<Arc<Disk>>,
    taken: u64,
    used: u64,
}

impl Room {
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        let used = self.used.saturating_add(bytes);
        if used > self.taken
            && let Some(disk) = &self.disk
        {
            let missing = used - self.taken;
            self.taken += disk.take(missing)?;
        }
        self.used = used;
        Ok(())
    }

    fn keep(mut self) {
        self.disk = None;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            disk.state().used -= self.taken;
        }
    }
}

fn load_layer(path: &Path) -> Option<Layer> {
    let chain = Digest::from_hex(path.file_name()?.to_str()?)?;
    let file: LayerFile = serde_json::from_slice(&fs::read(path.join("layer.json")).ok()?).ok()?;
    let root = path.join("root");
    let opaque = root_is_opaque(&root).ok()?;
    Some(Layer { chain, root, bytes: file.bytes, opaque })
}

fn load_image(path: &Path) -> Option<(Digest, Stored)> {
    let digest = Digest::from_hex(path.file_name()?.to_str()?)?;
    let name = digest.to_string();
    let mut next = digest;
    let manifest = fs::read(path.join("manifest.json")).ok()?;
    let found = Digest::of(&manifest);
    for depth in 0.. {
        let Ok(index) = fs::read(path.join(index_name(depth))) else { break };
        let Document::Index(entries) = manifest::read(&name, &index).ok().filter(|_| Digest::of(&index) == next)?
        else {
            return None;
        };
        let inner = fs::read(path.join(index_name(depth + 1))).map_or(found, |inner| Digest::of(&inner));
        // The disk may have come to a machine with another processor.
        let leads = |entry: &Descriptor| {
            let runs = entry.platform().is_none_or(|platform| platform.rank().is_some());
            runs && entry.blob().is_ok_and(|blob| blob.digest == inner)
        };
        next = entries.iter().any(leads).then_some(inner)?;
    }
    let Document::Manifest(manifest) = manifest::read(&name, &manifest).ok().filter(|_| found == next)? else {
        return None;
    };
    let config =
        fs::read(path.join("config.json")).ok().filter(|config| Digest::of(config) == manifest.config.digest)?;
    let configuration = manifest::configuration(&name, &config, &manifest).ok()?;
    let Configuration { config, diff_ids, platform } = configuration;
    platform.rank()?;
    Some((digest, Stored { config: Arc::new(config.into()), layers: Digest::chain(&diff_ids), lease: Weak::new() }))
}

/// The file of an index that so many others lead to.
fn index_name(depth: usize) -> String {
    if depth == 0 { "index.json".to_owned() } else { format!("index-{depth}.json") }
}

fn root_is_opaque(root: &Path) -> io::Result<bool> {
    let folder = rustix::fs::openat(
        CWD,
        root,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    Ok(is_opaque(folder.as_fd())?)
}

fn last_used(folder: &Path) -> SystemTime {
    fs::metadata(folder).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
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
