//! Folders of the machine that a program shares with the machine, such as a folder of uploads. Their
//! files belong to an account of the machine. A program sees this owner as its own user, through a
//! mount that maps the two (an *idmapped* mount), so it makes files of this owner and of no other.

use crate::error::bad;
use crate::jailer_process::{Jailer, pair};
use crate::wire::{self, Event, Make};
use crate::{shown, view};
use leno_files::{HostAccess, Owner};
use rustix::fs::fstat;
use rustix::net::RecvFlags;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Why a node without root gives no program such a folder.
pub(crate) const HOST_NEEDS_ROOT: &str =
    "a volume with `hostPath` needs a node that runs as root: only root can map the owner of its files";

/// The ID that the kernel shows in place of IDs that it cannot show.
const NOBODY: u32 = 65534;

/// A folder that the machine has for other purposes too. File systems that are mounted in it are not
/// shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFolder {
    /// Its path on the machine.
    pub source: PathBuf,
    /// Its path in the jail.
    pub path: PathBuf,
    /// The program may write to it.
    pub writable: bool,
    /// The folders that the namespace may have.
    pub access: HostAccess,
}

/// Maps owners of files to users of jails.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    /// A jail does not keep the jailer alive, which ends all jails.
    jailer: Weak<Mutex<Jailer>>,
}

impl Owners {
    pub(crate) fn new(jailer: &Arc<Mutex<Jailer>>) -> Self {
        Self { jailer: Arc::downgrade(jailer) }
    }

    /// The mounts of these folders, in their order: see [`Owners::mount`].
    pub(crate) fn mounts(&self, folders: &[HostFolder], user: Owner) -> io::Result<Vec<OwnedFd>> {
        folders.iter().map(|folder| self.mount(folder, user)).collect()
    }

    /// Makes a mount of a folder, attached nowhere, whose owner is `user`: the machine's IDs of a
    /// user of a jail. Blocks as long as the file system does.
    fn mount(&self, folder: &HostFolder, user: Owner) -> io::Result<OwnedFd> {
        let HostFolder { source, writable, access, .. } = folder;
        let named = |error: io::Error, hint: &str| {
            io::Error::new(error.kind(), format!("the folder {} of this node: {error}{hint}", source.display()))
        };
        let (found, owner) = access.open(source).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => "; make it, or place the function on nodes that have it",
                _ => "",
            };
            named(error, hint)
        })?;
        // The path to which links have led.
        let real = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
        if let Some(reason) = shown::unshowable(&real) {
            return Err(bad(format!("no program may have the folder {}: {reason}", real.display())));
        }
        if leno_files::is_kernels(found.as_fd())? {
            return Err(bad(format!("no program may have the folder {}: it is the kernel's", real.display())));
        }
        let there = fstat(&found)?;
        let present = Owner { user: there.st_uid, group: there.st_gid };
        let owner = owner.unwrap_or(present);
        if owner.user == 0 || owner.group == 0 {
            return Err(bad(format!(
                "the folder {} belongs to root, and no program writes as root: give it to another user and group (chown), \
                 or name an `owner` for it in `hostPaths` of the namespace's quota",
                source.display()
            )));
        }
        let make = Make::Users {
            account: user.user,
            users: mapping(owner.user, user.user, present.user),
            groups: mapping(owner.group, user.group, present.group),
        };
        let users = self.users(&make).map_err(|error| named(error, ""))?;
        let mount = view::host_folder(found.as_fd(), users.as_fd(), *writable);
        mount.map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::EINVAL | libc::EOPNOTSUPP) => {
                    "; its file system has no idmapped mounts (ext4, xfs, btrfs and others have, from Linux 5.12 on): \
                     move the folder to one that has"
                }
                _ => "",
            };
            named(error, hint)
        })
    }

    fn users(&self, make: &Make) -> io::Result<OwnedFd> {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the jailer has ended");
        let (answers, theirs) = pair()?;
        let jailer = self.jailer.upgrade().ok_or_else(over)?;
        jailer.lock().unwrap_or_else(PoisonError::into_inner).ask(make, &theirs)?;
        drop((theirs, jailer));
        match wire::receive(&answers, RecvFlags::empty())?.ok_or_else(over)? {
            (Event::Users, descriptors) => {
                let [users] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
                Ok(users)
            }
            (Event::Failed(reason), _) => Err(io::Error::other(reason)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The IDs on the disk, and those of the machine in their place: the owner of new files is the
/// jail's user. The kernel does not write to a folder of an unknown owner, so another present owner
/// of the folder is the one that no process has.
fn mapping(owner: u32, in_jail: u32, present: u32) -> Vec<(u32, u32)> {
    let other = (present != owner).then_some((present, NOBODY));
    std::iter::once((owner, in_jail)).chain(other).collect()
}
