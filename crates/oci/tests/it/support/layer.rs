//! Layers that no tool makes, and layouts with them.

use leno_oci::Digest;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tar_core::EntryType;
use tar_core::builder::EntryBuilder;

/// An archive, entry by entry.
#[derive(Default)]
pub(crate) struct Tar(pub Vec<u8>);

impl Tar {
    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        path: &str,
        content: &[u8],
        change: impl FnOnce(&mut EntryBuilder) -> &mut EntryBuilder,
    ) -> Self {
        let mut header = EntryBuilder::new_ustar();
        header.path(path).entry_type(kind).mode(0o644).unwrap().uid(0).unwrap().gid(0).unwrap().mtime(0).unwrap();
        header.size(content.len() as u64).unwrap();
        change(&mut header);
        self.0.extend(header.finish_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, path, content, |header| header)
    }

    pub(crate) fn folder(self, path: &str) -> Self {
        self.entry(EntryType::Directory, path, b"", |header| header.mode(0o755).unwrap())
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, b"", |header| header.link_name(target))
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, b"", |header| header.link_name(target))
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// An image of such layers. Each may be compressed; its digest is that of the unpacked archive.
pub(crate) struct Raw {
    pub(crate) layers: Vec<(Vec<u8>, Digest)>,
}

impl Raw {
    pub(crate) fn plain(layers: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self {
            layers: layers
                .into_iter()
                .map(|layer| {
                    let id = Digest::of(&layer);
                    (layer, id)
                })
                .collect(),
        }
    }

    /// All blobs by digest; the last is the manifest.
    pub(crate) fn blobs(&self) -> Vec<(Digest, Vec<u8>)> {
        let mut blobs: Vec<(Digest, Vec<u8>)> = Vec::new();
        let mut descriptors = Vec::new();
        for (layer, _) in &self.layers {
            blobs.push((Digest::of(layer), layer.clone()));
            descriptors.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": Digest::of(layer).to_string(),
                "size": layer.len(),
            }));
        }
        let ids: Vec<String> = self.layers.iter().map(|(_, id)| id.to_string()).collect();
        let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": { "type": "layers", "diff_ids": ids } })
            .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": Digest::of(config.as_bytes()).to_string(),
                "size": config.len(),
            },
            "layers": descriptors,
        });
        for blob in [config, manifest.to_string()] {
            blobs.push((Digest::of(blob.as_bytes()), blob.into_bytes()));
        }
        blobs
    }

    /// Writes a layout, and returns the reference of the image in it.
    pub(crate) fn layout(&self, folder: &Path) -> String {
        let blobs = self.blobs();
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        for (digest, blob) in &blobs {
            fs::write(folder.join("blobs/sha256").join(digest.hex()), blob).unwrap();
        }
        let (digest, manifest) = blobs.last().unwrap();
        let entry: Value = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest.to_string(),
            "size": manifest.len(),
        });
        fs::write(folder.join("index.json"), json!({ "schemaVersion": 2, "manifests": [entry] }).to_string()).unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        format!("oci:{}", folder.display())
    }
}
