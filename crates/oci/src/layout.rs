//! Makes images, as OCI layouts with the same bytes each time, and pushes them to a registry. For
//! examples, tests and benchmarks.

mod push;

pub use push::push;

use crate::digest::Hasher;
use crate::{Digest, Error, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use tar_core::EntryType;
use tar_core::builder::EntryBuilder;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const TAG: &str = "org.opencontainers.image.ref.name";

/// A layer: files, folders and links by their paths in the image. They are owned by root, dated
/// 1970, and in the order of their paths.
#[derive(Clone, Debug, Default)]
pub struct Layer(BTreeMap<String, Entry>);

#[derive(Clone, Debug)]
enum Entry {
    Folder { mode: u32 },
    File { content: Content, mode: u32 },
    Symlink { target: String },
    Device { major: u32, minor: u32 },
}

/// The content of a file.
#[derive(Clone, Debug)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The content that this file has when the image is written.
    File(PathBuf),
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Bytes(text.into())
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<PathBuf> for Content {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl Layer {
    /// An empty layer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file. Missing folders around it are added with mode 755.
    pub fn file(self, path: &str, content: impl Into<Content>, mode: u32) -> Self {
        self.entry(path, Entry::File { content: content.into(), mode })
    }

    /// Adds a folder, or sets its mode.
    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.entry(path, Entry::Folder { mode })
    }

    /// Adds a symbolic link.
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, Entry::Symlink { target: target.to_owned() })
    }

    /// Adds a character device, as old base images contain them.
    pub fn device(self, path: &str, major: u32, minor: u32) -> Self {
        self.entry(path, Entry::Device { major, minor })
    }

    /// Hides the files of layers below at a path.
    pub fn whiteout(self, path: &str) -> Self {
        let (folder, name) = path.trim_matches('/').rsplit_once('/').unwrap_or(("", path.trim_matches('/')));
        self.file(&format!("{folder}/.wh.{name}"), "", 0o644)
    }

    fn entry(mut self, path: &str, entry: Entry) -> Self {
        let path = path.trim_matches('/');
        for (slash, _) in path.match_indices('/') {
            self.0.entry(path[..slash].to_owned()).or_insert(Entry::Folder { mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
        self
    }

    fn write(&self, archive: &mut impl Write) -> Result<()> {
        for (path, entry) in &self.0 {
            let wrong =
                |error: io::Error| Error::Image { image: format!("layer entry `{path}`"), reason: error.to_string() };
            let (mut content, size): (Box<dyn Read>, u64) = match entry {
                Entry::File { content: Content::Bytes(bytes), .. } => (Box::new(&bytes[..]), bytes.len() as u64),
                Entry::File { content: Content::File(source), .. } => {
                    let file = File::open(source).map_err(Error::io("cannot open", source))?;
                    let size = file.metadata().map_err(Error::io("cannot open", source))?.len();
                    (Box::new(file.take(size)), size)
                }
                Entry::Folder { .. } | Entry::Symlink { .. } | Entry::Device { .. } => (Box::new(io::empty()), 0),
            };
            let header = match entry {
                Entry::File { mode, .. } => header(EntryType::Regular, path, "", *mode, size, (0, 0)),
                Entry::Folder { mode } => header(EntryType::Directory, &format!("{path}/"), "", *mode, 0, (0, 0)),
                Entry::Symlink { target } => header(EntryType::Symlink, path, target, 0o777, 0, (0, 0)),
                Entry::Device { major, minor } => header(EntryType::Char, path, "", 0o666, 0, (*major, *minor)),
            };
            let header = header.map_err(|error| wrong(io::Error::other(error.to_string())))?;
            archive.write_all(&header).map_err(wrong)?;
            let written = io::copy(&mut content, archive).map_err(wrong)?;
            if written != size {
                return Err(wrong(io::Error::other("the file became shorter while it was read")));
            }
            let padding = size.next_multiple_of(512) - size;
            io::copy(&mut io::repeat(0).take(padding), archive).map_err(wrong)?;
        }
        archive
            .write_all(&[0; 1024])
            .map_err(|error| Error::Image { image: "layer".to_owned(), reason: error.to_string() })
    }
}

fn header(
    kind: EntryType,
    path: &str,
    target: &str,
    mode: u32,
    size: u64,
    device: (u32, u32),
) -> tar_core::Result<Vec<u8>> {
    let mut header = EntryBuilder::new_ustar();
    header.path(path).entry_type(kind).mode(mode)?.uid(0)?.gid(0)?.mtime(0)?.size(size)?;
    if !target.is_empty() {
        header.link_name(target);
    }
    if kind == EntryType::Char {
        header.device(device.0, device.1)?;
    }
    Ok(header.finish_bytes())
}

/// An image that is being made.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    layers: Vec<Layer>,
    config: BTreeMap<&'static str, Value>,
    environment: Vec<String>,
    ports: BTreeMap<String, Value>,
    plain: bool,
}

impl Builder {
    /// An image without layers. It needs at least one to be written.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a layer on top.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// The beginning of the command.
    pub fn entrypoint(self, words: &[&str]) -> Self {
        self.set("Entrypoint", json!(words))
    }

    /// The rest of the command.
    pub fn cmd(self, words: &[&str]) -> Self {
        self.set("Cmd", json!(words))
    }

    /// A variable of the environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// `user` or `user:group`, names or numbers.
    pub fn user(self, user: &str) -> Self {
        self.set("User", json!(user))
    }

    /// The folder in which the command starts.
    pub fn working_dir(self, folder: &str) -> Self {
        self.set("WorkingDir", json!(folder))
    }

    /// The signal that asks the command to end, such as `SIGINT`.
    pub fn stop_signal(self, signal: &str) -> Self {
        self.set("StopSignal", json!(signal))
    }

    /// A port that the command listens on, such as `8080/tcp`.
    pub fn expose(mut self, port: &str) -> Self {
        self.ports.insert(port.to_owned(), json!({}));
        self
    }

    /// Leaves the layers uncompressed. (Otherwise: gzip.)
    pub fn uncompressed(mut self) -> Self {
        self.plain = true;
        self
    }

    fn set(mut self, key: &'static str, value: Value) -> Self {
        self.config.insert(key, value);
        self
    }

    /// Writes the image into an OCI layout, which may contain others, and tags it. The tag is taken
    /// from the image that had it. Returns the digest of the manifest.
    pub fn write(&self, folder: &Path, tag: &str) -> Result<Digest> {
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).map_err(Error::io("cannot make the folder", &blobs))?;
        let put = |name: &Path, content: &Value| {
            let bytes = content.to_string().into_bytes();
            fs::write(name, &bytes).map_err(Error::io("cannot write", name)).map(|()| bytes)
        };
        let blob = |content: &Value| -> Result<Value> {
            let digest = Digest::of(content.to_string().as_bytes());
            let bytes = put(&blobs.join(digest.hex()), content)?;
            Ok(json!({ "digest": digest.to_string(), "size": bytes.len() }))
        };
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for layer in &self.layers {
            let (descriptor, diff_id) = self.write_layer(layer, &blobs)?;
            layers.push(descriptor);
            diff_ids.push(diff_id.to_string());
        }
        let mut config = self.config.clone();
        if !self.environment.is_empty() {
            config.insert("Env", json!(self.environment));
        }
        if !self.ports.is_empty() {
            config.insert("ExposedPorts", json!(self.ports));
        }
        let config = json!({ "architecture": "amd64", "os": "linux", "config": config, "rootfs": { "type": "layers", "diff_ids": diff_ids } });
        let config = typed("application/vnd.oci.image.config.v1+json", blob(&config)?);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        let digest = Digest::of(manifest.to_string().as_bytes());
        let mut manifest = typed(MANIFEST, blob(&manifest)?);
        manifest["annotations"] = json!({ TAG: tag });
        manifest["platform"] = json!({ "os": "linux", "architecture": "amd64" });

        let index_path = folder.join("index.json");
        let mut manifests = match fs::read(&index_path) {
            Ok(bytes) => manifests_of(&bytes)
                .map_err(|error| Error::Image { image: index_path.display().to_string(), reason: error.to_string() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io("cannot read", &index_path)(error)),
        };
        manifests.retain(|manifest| manifest["annotations"][TAG] != tag);
        manifests.push(manifest);
        put(&index_path, &json!({ "schemaVersion": 2, "manifests": manifests }))?;
        put(&folder.join("oci-layout"), &json!({ "imageLayoutVersion": "1.0.0" }))?;
        Ok(digest)
    }

    /// A descriptor, and the digest of the archive.
    fn write_layer(&self, layer: &Layer, blobs: &Path) -> Result<(Value, Digest)> {
        let path = blobs.join("layer.tmp");
        let write = Error::io::<io::Error>("cannot write", &path);
        let file = File::create(&path).map_err(Error::io("cannot write", &path))?;
        let blob = Hashing::new(BufWriter::new(file));
        let (blob, diff_id) = if self.plain {
            let mut archive = blob;
            layer.write(&mut archive)?;
            let diff_id = archive.hasher.clone().finish();
            (archive, diff_id)
        } else {
            let mut archive = Hashing::new(GzBuilder::new().write(blob, Compression::default()));
            layer.write(&mut archive)?;
            (archive.to.finish().map_err(Error::io("cannot write", &path))?, archive.hasher.finish())
        };
        let Hashing { mut to, hasher, bytes } = blob;
        to.flush().map_err(write)?;
        let digest = hasher.finish();
        fs::rename(&path, blobs.join(digest.hex())).map_err(Error::io("cannot write", &path))?;
        let media_type = if self.plain {
            "application/vnd.oci.image.layer.v1.tar"
        } else {
            "application/vnd.oci.image.layer.v1.tar+gzip"
        };
        Ok((typed(media_type, json!({ "digest": digest.to_string(), "size": bytes })), diff_id))
    }
}

fn typed(media_type: &str, mut descriptor: Value) -> Value {
    descriptor["mediaType"] = json!(media_type);
    descriptor
}

#[derive(Debug, thiserror::Error)]
enum IndexError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it has no `manifests`; expected the index of an OCI layout")]
    NoManifests,
}

fn manifests_of(index: &[u8]) -> Result<Vec<Value>, IndexError> {
    let index: Value = serde_json::from_slice(index)?;
    index["manifests"].as_array().cloned().ok_or(IndexError::NoManifests)
}

struct Hashing<W> {
    to: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W> Hashing<W> {
    fn new(to: W) -> Self {
        Self { to, hasher: Hasher::default(), bytes: 0 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
