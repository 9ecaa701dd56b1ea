//! Instances that are containers.

use leno_room::{Container, Image, Volume};
use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A container to run, in place of a program of the machine. It always has a room.
///
/// Variables, secrets, limits, port and read-only paths are those of the command or process that it goes with; that one's own `argv` and `directory` are
/// not used.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerSpec {
    /// The image, unpacked on this machine.
    pub image: Image,
    /// Instead of the image's entrypoint and command.
    pub command: Option<Vec<String>>,
    /// Instead of the image's command.
    pub args: Option<Vec<String>>,
    /// Instead of the image's working directory.
    pub directory: Option<PathBuf>,
    /// Instead of the image's user.
    pub user: Option<String>,
    /// Folders in memory.
    pub volumes: Vec<Volume>,
    /// The container may only write to volumes, `/tmp` and `/dev/shm`.
    pub read_only: bool,
    /// How many bytes it may write to its root ([`leno_room::DEFAULT_WRITABLE`]).
    pub writable: u64,
    /// Held until the last instance of this spec has ended.
    pub lease: Lease,
}

/// What keeps an image's layers where they are. All are equal: another lease of the same image is no reason to start instances again.
#[derive(Clone, Default)]
pub struct Lease(Option<Arc<dyn Any + Send + Sync>>);

impl Lease {
    /// Holds this.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(held)))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", if self.0.is_some() { "held" } else { "none" })
    }
}

impl PartialEq for Lease {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lease {}

impl ContainerSpec {
    /// The container, without what differs from instance to instance.
    pub(crate) fn container(&self) -> Container {
        let Self { image, command, args, directory, user, volumes, read_only, writable, lease: _ } = self.clone();
        Container { image, command, args, directory, user, volumes, read_only, writable, ..Container::default() }
    }
}
