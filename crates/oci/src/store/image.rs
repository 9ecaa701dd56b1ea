use super::disk::{Disk, Layer};
use crate::Digest;
use crate::attributes::Omissions;
use crate::manifest::{Config, Words};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// An unpacked image. It is a lease: while it or a clone of it exists, its layers stay on the disk.
#[derive(Clone)]
pub struct Image(pub(super) Arc<Lease>);

pub(crate) struct Lease {
    pub(super) digest: Digest,
    pub(super) config: Arc<Command>,
    /// The layers, bottom to top.
    pub(super) layers: Vec<Arc<Layer>>,
    /// The bytes of its documents.
    pub(super) documents: u64,
    pub(super) disk: Arc<Disk>,
}

/// The part of a configuration that describes the container's program.
#[derive(Debug, Default)]
pub(crate) struct Command {
    user: Option<String>,
    env: Vec<String>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    exposed_ports: Vec<String>,
}

impl From<Config> for Command {
    fn from(config: Config) -> Self {
        let words = |words: Option<Words>| words.map(Words::list).unwrap_or_default();
        Self {
            user: config.user,
            env: config.env.into_iter().flatten().flatten().collect(),
            entrypoint: words(config.entrypoint),
            cmd: words(config.cmd),
            working_dir: config.working_dir,
            stop_signal: config.stop_signal,
            exposed_ports: config.exposed_ports.into_iter().flat_map(BTreeMap::into_keys).collect(),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.disk.touch(self.digest);
    }
}

impl Image {
    /// The digest that it was pulled by: that of its manifest, or of an index that the manifest is in.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// The folders of its layers, bottom to top, as overlayfs takes them (`lowerdir` lists them the
    /// other way round). They must not be written to.
    ///
    /// Layers that a layer above hides altogether are left out.
    pub fn layers(&self) -> Vec<PathBuf> {
        let lowest = self.0.layers.iter().rposition(|layer| layer.opaque).unwrap_or(0);
        self.0.layers[lowest..].iter().map(|layer| layer.root.clone()).collect()
    }

    /// The bytes that its layers and documents take on the disk. Other images may share the layers.
    pub fn bytes(&self) -> u64 {
        self.0.documents + self.0.layers.iter().map(|layer| layer.space.bytes).sum::<u64>()
    }

    /// The entries and attributes of its layers that are left out of every container.
    pub fn omissions(&self) -> Omissions {
        let mut all = Omissions::default();
        self.0.layers.iter().for_each(|layer| all.add(&layer.omitted));
        all
    }

    /// The user: `user`, `user:group`, names or numbers. `None` (or empty): root.
    pub fn user(&self) -> Option<&str> {
        self.0.config.user.as_deref().filter(|user| !user.is_empty())
    }

    /// The environment: `NAME=value`.
    pub fn env(&self) -> &[String] {
        &self.0.config.env
    }

    /// The beginning of the command.
    pub fn entrypoint(&self) -> &[String] {
        &self.0.config.entrypoint
    }

    /// The rest of the command, which the caller may replace.
    pub fn cmd(&self) -> &[String] {
        &self.0.config.cmd
    }

    /// The folder in which the command starts. `None` (or empty): `/`.
    pub fn working_dir(&self) -> Option<&str> {
        self.0.config.working_dir.as_deref().filter(|folder| !folder.is_empty())
    }

    /// The signal that asks the command to end, a name or number such as `SIGINT`. `None`: SIGTERM.
    pub fn stop_signal(&self) -> Option<&str> {
        self.0.config.stop_signal.as_deref().filter(|signal| !signal.is_empty())
    }

    /// The ports that the command listens on, such as `8080/tcp`.
    pub fn exposed_ports(&self) -> &[String] {
        &self.0.config.exposed_ports
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("digest", &self.digest()).field("layers", &self.layers()).finish()
    }
}
