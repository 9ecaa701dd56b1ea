//! The root of a container: the layers of an image, which all its containers share, and the files
//! that this container writes on top, in memory.
//!
//! Layers are on disk with the owners that the image gives them. A container's users have other IDs
//! on the machine, so each layer is seen through a mount that maps the owners (an *idmapped*
//! mount). Overlayfs puts them together. Root mounts it: only root may read the attribute that
//! marks a folder as opaque, and processes in the jail cannot change root's mounts. The thread that
//! mounts it has a mount namespace that ends with it, so the machine never sees any of these
//! mounts, and nothing is left over when a step fails.

use crate::step::{During, Unmade};
use crate::view::{READ_ONLY, set_attributes, set_attributes_mapped};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use rustix::mount::{mount, mount_change, move_mount, open_tree};
use std::ffi::CString;
use std::fmt::Write;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

/// Maximum number of layers that overlayfs supports.
pub(crate) const MOST_LAYERS: usize = 500;
/// The root may hold one file for each so many bytes. Files have to be limited too, because the
/// kernel's memory for them does not count as theirs.
const BYTES_PER_FILE: u64 = 4096;
/// Where the thread builds the tree: a folder that every machine has.
const WORKSHOP: &str = "/tmp";

/// The parts of a container's root.
#[derive(Debug)]
pub(crate) struct Root {
    /// Folders, the bottom one first.
    pub layers: Vec<PathBuf>,
    /// The user namespace that maps the owners.
    pub users: OwnedFd,
    /// The machine ID of the container's root user.
    pub owner: u32,
    /// Maximum number of bytes that the container may write.
    pub writable: u64,
}

impl Root {
    /// Mounts the root. The result is attached nowhere.
    ///
    /// # Errors
    /// Names the layer, or the missing feature of the kernel or right of the account.
    pub(crate) fn mount(self) -> io::Result<OwnedFd> {
        let named = std::thread::Builder::new().name("leno-overlay".to_owned());
        let thread = named.spawn(move || self.mount_here())?;
        thread.join().map_err(|_| io::Error::other("the thread that mounts a container's root has ended"))?
    }

    fn mount_here(self) -> io::Result<OwnedFd> {
        let layers = self.layers.iter().map(|layer| self.layer(layer)).collect::<io::Result<Vec<_>>>()?;
        self.assemble(&layers)
            .map_err(|error| io::Error::other(format!("the container's root: {error}{}", old_kernel())))
    }

    /// A mount of a layer that shows its owners as the container's users.
    fn layer(&self, path: &Path) -> io::Result<OwnedFd> {
        let explain = |error: io::Error| {
            let hint = match error.raw_os_error() {
                Some(libc::EINVAL) => {
                    format!(
                        "; its file system has no idmapped mounts (ext4, xfs, btrfs and others have){}",
                        old_kernel()
                    )
                }
                Some(libc::EPERM) => "; containers need a node with CAP_SYS_ADMIN".to_owned(),
                _ => String::new(),
            };
            io::Error::new(error.kind(), format!("layer {}: {error}{hint}", path.display()))
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, path, flags).map_err(io::Error::from).map_err(explain)?;
        set_attributes_mapped(mount.as_fd(), READ_ONLY, self.users.as_fd()).map_err(explain)?;
        Ok(mount)
    }

    fn assemble(&self, layers: &[OwnedFd]) -> Result<OwnedFd, Unmade> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).during("a mount namespace")?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).during("mounts")?;
        let files = (self.writable / BYTES_PER_FILE).max(1024);
        let limits = format!("mode=755,size={},nr_inodes={}", self.writable, files + layers.len() as u64 + 8);
        let limits = CString::new(limits).during("limits")?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", WORKSHOP, "tmpfs", flags, Some(limits.as_c_str())).during("memory for what it writes")?;
        rustix::process::chdir(WORKSHOP).during("memory for what it writes")?;
        for folder in ["root", "upper", "work"] {
            DirBuilder::new().mode(0o755).create(folder).during("folders")?;
        }
        chown("upper", Some(self.owner), Some(self.owner)).during("its owner")?;
        // A page holds all options of a mount. With names as short as these, that is enough for all layers that overlayfs takes.
        let mut options =
            String::from("redirect_dir=nofollow,metacopy=off,index=off,upperdir=upper,workdir=work,lowerdir=");
        for (index, layer) in layers.iter().enumerate() {
            DirBuilder::new().create(index.to_string()).during("folders")?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(layer, "", CWD, index.to_string(), flags).during("a layer")?;
        }
        for index in (0..layers.len()).rev() {
            let separator = if index == 0 { "" } else { ":" };
            // Writing to a string does not fail.
            let _ = write!(options, "{index}{separator}");
        }
        let options = CString::new(options).during("options")?;
        mount("overlay", "root", "overlay", flags, Some(options.as_c_str())).during("overlayfs")?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let root = open_tree(CWD, "root", flags).during("overlayfs")?;
        set_attributes(root.as_fd(), Path::new(""), libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV, false)
            .during("overlayfs")?;
        Ok(root)
    }
}

/// A hint for the error of a kernel that cannot do it.
fn old_kernel() -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 19) { String::new() } else { format!("; containers need Linux 5.19, this is {release}") }
}
