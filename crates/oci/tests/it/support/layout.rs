//! OCI layouts, document by document, as tools other than ours write them.

use super::layer::Tar;
use leno_oci::Digest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The blobs of a layout.
#[derive(Default)]
pub(crate) struct Blobs(pub BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Keeps a blob, and returns its descriptor.
    pub(crate) fn put(&mut self, media_type: &str, bytes: impl Into<Vec<u8>>) -> Value {
        let bytes = bytes.into();
        let digest = Digest::of(&bytes);
        let descriptor = json!({ "mediaType": media_type, "digest": digest.to_string(), "size": bytes.len() });
        self.0.insert(digest.hex(), bytes);
        descriptor
    }

    pub(crate) fn json(&mut self, media_type: &str, document: &Value) -> Value {
        self.put(media_type, document.to_string())
    }

    /// An image with one file, `name`, and this configuration, to which the layer is added.
    pub(crate) fn image(&mut self, name: &str, mut config: Value) -> Value {
        let layer = Tar::default().file(name, name.as_bytes()).end();
        config["rootfs"] = json!({ "type": "layers", "diff_ids": [Digest::of(&layer).to_string()] });
        let layer = self.put(LAYER, layer);
        let config = self.json(CONFIG, &config);
        self.json(MANIFEST, &json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] }))
    }

    /// An image for linux/amd64, as its descriptor says.
    pub(crate) fn named(&mut self, name: &str, platform: Value) -> Value {
        let mut image = self.image(name, json!({ "os": "linux", "architecture": "amd64" }));
        image["platform"] = platform;
        image
    }

    pub(crate) fn index(&mut self, entries: &[Value]) -> Value {
        self.json(INDEX, &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries }))
    }

    /// Writes the layout, and returns the reference of it.
    pub(crate) fn write(&self, folder: &Path, entries: &[Value]) -> String {
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        for (name, bytes) in &self.0 {
            fs::write(folder.join("blobs/sha256").join(name), bytes).unwrap();
        }
        fs::write(folder.join("index.json"), json!({ "schemaVersion": 2, "manifests": entries }).to_string()).unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        format!("oci:{}", folder.display())
    }
}
