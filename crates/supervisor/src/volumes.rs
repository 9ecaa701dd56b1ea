//! Persistent volumes of this node: folders that outlive instances, restarts and upgrades.
//!
//! A volume is in `NAMESPACE/NAME` of the node's folder. Where the node can, it is an ext4 file
//! system in the file `disk.img`, which bounds its size, mounted at `fs`. The mount is the
//! machine's, so it stays when the node ends, and two processes of the node share it. Otherwise
//! `fs` is a plain folder. The content is in `fs/data`. A lock on the file `lock` tells who has the
//! volume: one instance, or any number that share it.

use crate::orphans;
use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The file system in which a volume is.
const IMAGE: &str = "disk.img";
/// The programs that make, grow and mount it.
const MAKE: &str = "/usr/sbin/mkfs.ext4";
const CHECK: &str = "/usr/sbin/e2fsck";
const GROW: &str = "/usr/sbin/resize2fs";
const MOUNT: &str = "/usr/bin/mount";

/// The persistent volumes of a node.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    folder: Arc<Path>,
}

/// How many volumes a namespace may have on a node, and how many bytes they may hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeBounds {
    /// Volumes.
    pub count: u32,
    /// Bytes.
    pub bytes: u64,
}

/// A volume that an instance is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeRequest<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    /// Bytes that it holds.
    pub size: u64,
    /// Other instances may have it too.
    pub shared: bool,
    /// The user and group of a new one.
    pub owner: u32,
    pub bounds: VolumeBounds,
}

/// A volume of an instance. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct VolumeLease {
    /// The folder with its content.
    pub data: PathBuf,
    /// Why its size is not in force.
    pub unbounded: Option<String>,
    _lock: OwnedFd,
}

/// A volume, as listings show it.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeStatus {
    /// Namespace and name.
    pub volume: String,
    /// Bytes that it may hold.
    pub size: u64,
    /// Bytes that it holds; `None`: it is not mounted, or its size is not in force.
    pub used: Option<u64>,
    /// An instance has it.
    pub in_use: bool,
    /// Its size is in force.
    pub bounded: bool,
    /// Its folder.
    pub folder: PathBuf,
}

/// Why an instance cannot have a volume, or why it is not deleted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Another instance has it.
    #[error("the volume `{0}` is in use")]
    InUse(String),
    /// There is none of this name.
    #[error("there is no volume `{0}` on this node")]
    Unknown(String),
    /// A bound of the namespace is reached.
    #[error(
        "the volume `{name}` is refused: {bound}; delete another with `leno delete-volume`, or raise `{field}` in the quota"
    )]
    Bound {
        /// Namespace and name.
        name: String,
        /// The bound.
        bound: String,
        /// Its field in the quota.
        field: &'static str,
    },
    /// The volume is larger than asked for.
    #[error("the volume `{name}` has {has}, and does not shrink to {asked}: keep its `size`, or delete it")]
    Larger {
        /// Namespace and name.
        name: String,
        /// Its size.
        has: leno_model::size::Size,
        /// The document's.
        asked: leno_model::size::Size,
    },
    /// The machine cannot do it.
    #[error("the volume `{name}`: {error}")]
    Io {
        /// Namespace and name.
        name: String,
        /// The cause.
        error: io::Error,
    },
}

impl VolumeStore {
    /// The volumes in this folder, which is made when the first one is.
    pub fn new(folder: &Path) -> Self {
        // Jails have another working directory.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self { folder: folder.into() }
    }

    /// Gives an instance a volume, and makes it if there is none. Blocks.
    pub(crate) fn open(&self, request: &VolumeRequest<'_>) -> Result<VolumeLease, VolumeError> {
        let name = format!("{}/{}", request.namespace, request.name);
        let failed = |error| VolumeError::Io { name: name.clone(), error };
        let namespace = self.folder.join(request.namespace);
        DirBuilder::new().recursive(true).mode(0o700).create(&namespace).map_err(failed)?;
        let _turn = locked(&namespace.join(".lock"), FlockOperation::LockExclusive).map_err(failed)?;
        let folder = namespace.join(request.name);
        // A volume that grows takes bytes as a new one does.
        if !folder.exists() || size_of(&folder) < request.size {
            admit(&namespace, request, &name)?;
            DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
        }
        let operation = match request.shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let lock = match locked(&folder.join("lock"), operation) {
            Err(error) if error.raw_os_error() == Some(Errno::WOULDBLOCK.raw_os_error()) => {
                return Err(VolumeError::InUse(name));
            }
            lock => lock.map_err(failed)?,
        };
        let has = size_of(&folder);
        if has > request.size {
            let [has, asked] = [has, request.size].map(leno_model::size::Size);
            return Err(VolumeError::Larger { name, has, asked });
        }
        let unbounded = attach(&folder, request).map_err(failed)?;
        let data = folder.join("fs/data");
        if !data.exists() {
            DirBuilder::new().create(&data).map_err(failed)?;
            fs::set_permissions(&data, Permissions::from_mode(0o1777)).map_err(failed)?;
            if rustix::process::geteuid().is_root() {
                chown(&data, Some(request.owner), Some(request.owner)).map_err(failed)?;
            }
        }
        Ok(VolumeLease { data, unbounded, _lock: lock })
    }

    /// All volumes, in the order of their names. Blocks.
    pub fn list(&self) -> Vec<VolumeStatus> {
        let mut all: Vec<VolumeStatus> = folders(&self.folder)
            .flat_map(|namespace| {
                let volumes: Vec<_> = folders(&namespace).collect();
                volumes.into_iter().map(move |folder| status(&namespace, folder))
            })
            .collect();
        all.sort_by(|one, other| one.volume.cmp(&other.volume));
        all
    }

    /// Deletes a volume with its content. Blocks.
    ///
    /// # Errors
    /// There is no such volume, an instance has it, or the machine refuses.
    pub fn delete(&self, namespace: &str, volume: &str) -> Result<(), VolumeError> {
        let name = format!("{namespace}/{volume}");
        let failed = |error| VolumeError::Io { name: name.clone(), error };
        let is_label = |text: &str| !text.is_empty() && !text.contains(['/', '\0']) && !text.starts_with('.');
        let folder = self.folder.join(namespace).join(volume);
        if !is_label(namespace) || !is_label(volume) || !folder.is_dir() {
            return Err(VolumeError::Unknown(name));
        }
        let turn = self.folder.join(namespace).join(".lock");
        let _turn = locked(&turn, FlockOperation::LockExclusive).map_err(failed)?;
        let _lock = locked(&folder.join("lock"), FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| VolumeError::InUse(name.clone()))?;
        if is_mounted(&folder).map_err(failed)? {
            unmount(folder.join("fs"), UnmountFlags::empty()).map_err(|error| failed(error.into()))?;
        }
        fs::remove_dir_all(&folder).map_err(failed)
    }
}

/// Whether the namespace in this folder may have the volume with this size, beside its others.
fn admit(namespace: &Path, request: &VolumeRequest<'_>, name: &str) -> Result<(), VolumeError> {
    let others = folders(namespace).filter(|folder| !folder.ends_with(request.name));
    let others: Vec<u64> = others.map(|folder| size_of(&folder)).collect();
    let refuse = |bound, field| Err(VolumeError::Bound { name: name.to_owned(), bound, field });
    if others.len() >= request.bounds.count as usize {
        let bound = format!("the namespace has {} volumes on this node, the most that it may have", others.len());
        return refuse(bound, "volumes");
    }
    let bytes = others.iter().copied().fold(request.size, u64::saturating_add);
    if bytes > request.bounds.bytes {
        let [all, most] = [bytes, request.bounds.bytes].map(leno_model::size::Size);
        let bound = format!("the volumes of the namespace would hold {all} on this node, and may hold {most}");
        return refuse(bound, "volumeBytes");
    }
    Ok(())
}

/// The folders in a folder, apart from hidden ones.
fn folders(of: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let is_volume = |path: &PathBuf| path.is_dir() && path.file_name().is_some_and(|name| !starts_with_dot(name));
    entries.map(|entry| entry.path()).filter(is_volume)
}

fn starts_with_dot(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn status(namespace: &Path, folder: PathBuf) -> VolumeStatus {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bounded = folder.join(IMAGE).exists();
    let mounted = is_mounted(&folder).unwrap_or(false);
    let used = statvfs(folder.join("fs")).ok().filter(|_| mounted);
    let used = used.map(|there| (there.f_blocks - there.f_bfree) * there.f_frsize);
    // An instance that opens the volume has the turn, and must not find this lock.
    let try_lock = |path: &Path| locked(path, FlockOperation::NonBlockingLockExclusive);
    let turn = try_lock(&namespace.join(".lock"));
    let in_use = turn.is_err() || try_lock(&folder.join("lock")).is_err();
    VolumeStatus {
        volume: format!("{}/{}", name(namespace), name(&folder)),
        size: size_of(&folder),
        used,
        in_use,
        bounded,
        folder,
    }
}

/// Opens a file and locks it.
fn locked(path: &Path, operation: FlockOperation) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&file, operation)?;
    Ok(file.into())
}

/// The size of a volume; 0: it is only being made.
fn size_of(folder: &Path) -> u64 {
    let image = fs::metadata(folder.join(IMAGE)).map(|image| image.len());
    let written = || fs::read_to_string(folder.join("size")).ok()?.trim().parse().ok();
    image.ok().or_else(written).unwrap_or(0)
}

fn is_mounted(folder: &Path) -> io::Result<bool> {
    match fs::metadata(folder.join("fs")) {
        Ok(inner) => Ok(inner.dev() != fs::metadata(folder)?.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the volume's file system if it has none yet, gives it its size, and mounts it. Returns why
/// the size is not in force, if it is not.
fn attach(folder: &Path, request: &VolumeRequest<'_>) -> io::Result<Option<String>> {
    let (image, place) = (folder.join(IMAGE), folder.join("fs"));
    DirBuilder::new().recursive(true).mode(0o711).create(&place)?;
    let is_plain = place.join("data").exists() && !image.exists();
    if let Some(reason) =
        no_sized_volumes().filter(|_| !image.exists()).or(is_plain.then(|| "it was made without".to_owned()))
    {
        fs::write(folder.join("size"), request.size.to_string())?;
        return Ok(Some(reason));
    }
    if !image.exists() {
        // A file that is only half made must not be taken for a file system.
        let new = folder.join("disk.new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.set_len(request.size)?;
        run(MAKE, &["-q".as_ref(), "-F".as_ref(), "-m".as_ref(), "0".as_ref(), new.as_os_str()])?;
        file.sync_all()?;
        fs::rename(new, &image)?;
    }
    let grows = fs::metadata(&image)?.len() < request.size;
    if grows && !request.shared && is_mounted(folder)? {
        unmount(&place, UnmountFlags::empty())?;
    }
    if is_mounted(folder)? {
        return Ok(grows.then(|| "it grows when no other instance has it".to_owned()));
    }
    if grows {
        OpenOptions::new().write(true).open(&image)?.set_len(request.size)?;
        run(CHECK, &["-f".as_ref(), "-p".as_ref(), image.as_os_str()])?;
        run(GROW, &[image.as_os_str()])?;
    }
    let options = "loop,nosuid,nodev,noatime";
    run(
        MOUNT,
        &["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str(), place.as_os_str()],
    )?;
    Ok(None)
}

/// Why this machine cannot enforce the sizes of volumes, which needs file systems in files; `None`:
/// it probably can.
pub fn no_sized_volumes() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("the node is not root".to_owned());
    }
    if let Some(missing) = [MAKE, CHECK, GROW, MOUNT].into_iter().find(|program| !Path::new(program).is_file()) {
        return Some(format!("{missing} is not installed (packages e2fsprogs and mount)"));
    }
    (!Path::new("/dev/loop-control").exists()).then(|| "the machine has no loop devices".to_owned())
}

/// Runs a program of the machine to its end.
fn run(program: &str, arguments: &[&OsStr]) -> io::Result<()> {
    let start = || {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        Ok((child.id(), child))
    };
    let (mut child, _apart) = orphans::start_apart(start)?;
    let mut said = String::new();
    if let Some(errors) = child.stderr.take() {
        errors.take(4096).read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    // e2fsck ends with 1 when it has repaired something.
    if status.success() || (program == CHECK && status.code() == Some(1)) {
        return Ok(());
    }
    Err(io::Error::other(format!("{program} {status}: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(name: &'a str, size: u64, shared: bool) -> VolumeRequest<'a> {
        let bounds = VolumeBounds { count: 2, bytes: 100 << 20 };
        VolumeRequest { namespace: "shop", name, size, shared, owner: 1000, bounds }
    }

    /// A store whose volumes are deleted when this is dropped: their mounts are the machine's.
    struct TestStore {
        store: VolumeStore,
        _folder: tempfile::TempDir,
    }

    impl TestStore {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            Self { store: VolumeStore::new(folder.path()), _folder: folder }
        }
    }

    impl Drop for TestStore {
        fn drop(&mut self) {
            for volume in self.store.list() {
                let (namespace, name) = volume.volume.split_once('/').unwrap();
                let _ = self.store.delete(namespace, name);
            }
        }
    }

    #[test]
    fn a_volume_keeps_its_content_and_has_one_writer_unless_it_is_shared() {
        let TestStore { store, .. } = &TestStore::new();
        let first = store.open(&request("data", 20 << 20, false)).unwrap();
        fs::write(first.data.join("file"), "kept").unwrap();
        let refused = store.open(&request("data", 20 << 20, false)).unwrap_err();
        assert!(matches!(refused, VolumeError::InUse(_)), "{refused}");
        assert!(matches!(store.delete("shop", "data"), Err(VolumeError::InUse(_))));
        drop(first);
        let [one, two] = [(), ()].map(|()| store.open(&request("data", 20 << 20, true)).unwrap());
        assert_eq!(fs::read_to_string(two.data.join("file")).unwrap(), "kept");
        assert!(store.list()[0].in_use);
        drop((one, two));
        store.delete("shop", "data").unwrap();
        assert!(store.list().is_empty());
        assert!(matches!(store.delete("shop", "../shop"), Err(VolumeError::Unknown(_))));
    }

    #[test]
    fn sizes_are_in_force_and_grow() {
        if let Some(reason) = no_sized_volumes() {
            eprintln!("SKIPPED: sizes are not in force here: {reason}");
            return;
        }
        let TestStore { store, .. } = &TestStore::new();
        let lease = store.open(&request("data", 20 << 20, false)).unwrap();
        assert_eq!(lease.unbounded, None);
        let full = fs::write(lease.data.join("large"), vec![1; 30 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        drop(lease);
        let lease = store.open(&request("data", 60 << 20, false)).unwrap();
        fs::write(lease.data.join("large"), vec![1; 30 << 20]).unwrap();
        drop(lease);
        let refused = store.open(&request("data", 20 << 20, false)).unwrap_err();
        assert!(refused.to_string().contains("has 60Mi, and does not shrink to 20Mi"), "{refused}");
    }

    #[test]
    fn a_namespace_has_so_many_volumes_and_bytes() {
        let TestStore { store, .. } = &TestStore::new();
        let _first = store.open(&request("one", 20 << 20, false)).unwrap();
        let refused = store.open(&request("large", 90 << 20, false)).unwrap_err();
        assert!(refused.to_string().contains("would hold 110Mi on this node, and may hold 100Mi"), "{refused}");
        let second = store.open(&request("two", 20 << 20, false)).unwrap();
        drop(second);
        let refused = store.open(&request("two", 90 << 20, false)).unwrap_err();
        assert!(refused.to_string().contains("would hold 110Mi"), "a volume that grows is counted: {refused}");
        let refused = store.open(&request("three", 20 << 20, false)).unwrap_err();
        assert!(refused.to_string().contains("has 2 volumes on this node"), "{refused}");
    }
}
