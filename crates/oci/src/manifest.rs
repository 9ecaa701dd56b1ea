//! Indexes, manifests and configurations: parsed, checked and brought into the form that a pull
//! needs.
//!
//! They are parsed as Go parses them, because Go programs write them: each member may be missing or
//! `null`, and both mean the same.

use crate::platform::{Platform, this_machine};
use crate::{Digest, DigestError, Error, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// How long a manifest or an index may be, in bytes: the limit of registries.
pub(crate) const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// How long a configuration may be, in bytes.
pub(crate) const MAX_CONFIG_BYTES: usize = 4 << 20;
/// How many layers an image may have. Docker's own limit is 127; overlayfs takes 500.
pub(crate) const MAX_LAYERS: usize = 128;

pub(crate) const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
pub(crate) const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// A document that a digest names.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Blob,
    config_type: String,
    /// The layers, bottom to top.
    pub(crate) layers: Vec<Blob>,
}

/// A blob as a descriptor names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// A descriptor as parsed. Those of other platforms need not be valid.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Descriptor {
    media_type: Option<String>,
    digest: Option<String>,
    size: Option<u64>,
    platform: Option<Platform>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

impl Descriptor {
    pub(crate) fn blob(&self) -> Result<Blob, DigestError> {
        let digest = self.digest.as_deref().unwrap_or_default().parse()?;
        Ok(Blob { digest, size: self.size.unwrap_or_default() })
    }

    fn media_type(&self) -> &str {
        self.media_type.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_index(&self) -> bool {
        INDEX_TYPES.contains(&self.media_type())
    }

    /// The platform; `None` also if it is present but empty.
    pub(crate) fn platform(&self) -> Option<&Platform> {
        self.platform.as_ref().filter(|platform| !platform.is_unnamed())
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name)?.as_deref()
    }
}

/// Parses a manifest or an index, whose digest has been verified.
pub(crate) fn read(image: &str, bytes: &[u8]) -> Result<Document> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Shape {
        schema_version: Option<u64>,
        media_type: Option<String>,
        config: Option<IgnoredAny>,
        layers: Option<IgnoredAny>,
        manifests: Option<IgnoredAny>,
    }
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let shape: Shape =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its manifest is not readable: {error}")))?;
    // Go omits members that no tool has set, or writes them as 0.
    let version = shape.schema_version.unwrap_or_default();
    if version != 2 && version != 0 {
        let hint = "expected 2 (push it again with a newer tool)";
        return Err(wrong(format!("its manifest has schema version {version}; {hint}")));
    }
    let media_type = shape.media_type.as_deref().unwrap_or_default();
    let is_index = match (shape.layers.is_some() || shape.config.is_some(), shape.manifests.is_some()) {
        (true, false) => false,
        (false, true) => true,
        // A reader that takes it as a manifest and one that takes it as an index would see
        // different images.
        (true, true) => {
            let reason = "its manifest has both `layers` (or `config`) and `manifests`; expected one of them";
            return Err(wrong(reason.to_owned()));
        }
        (false, false) if INDEX_TYPES.contains(&media_type) => true,
        (false, false) => return Err(wrong("its manifest has neither `layers` nor `manifests`".to_owned())),
    };
    let expected = if is_index { INDEX_TYPES } else { MANIFEST_TYPES };
    if !media_type.is_empty() && !expected.contains(&media_type) {
        return Err(wrong(format!("its manifest says that it is `{media_type}`; expected `{}`", expected[0])));
    }
    if is_index { index(image, bytes).map(Document::Index) } else { manifest(image, bytes).map(Document::Manifest) }
}

/// The descriptors of an index, or of the `index.json` of a layout.
pub(crate) fn index(image: &str, bytes: &[u8]) -> Result<Vec<Descriptor>> {
    #[derive(Deserialize)]
    struct Index {
        manifests: Option<Vec<Option<Descriptor>>>,
    }
    let index: Index = serde_json::from_slice(bytes).map_err(|error| Error::Image {
        image: image.to_owned(),
        reason: format!("its index is not readable: {error}"),
    })?;
    Ok(index.manifests.into_iter().flatten().flatten().collect())
}

fn manifest(image: &str, bytes: &[u8]) -> Result<Manifest> {
    #[derive(Deserialize)]
    struct Layers {
        config: Option<Descriptor>,
        layers: Option<Vec<Descriptor>>,
    }
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let Layers { config, layers } =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its manifest is not readable: {error}")))?;
    let (config, layers) = (config.unwrap_or_default(), layers.unwrap_or_default());
    let config_type = config.media_type().to_owned();
    let size = config.size.unwrap_or_default();
    if size > MAX_CONFIG_BYTES as u64 {
        return Err(wrong(format!("its configuration has {size} bytes; the limit is {MAX_CONFIG_BYTES}")));
    }
    let config = config.blob().map_err(|reason| wrong(format!("its configuration: {reason}")))?;
    let count = layers.len();
    if count == 0 || count > MAX_LAYERS {
        return Err(wrong(format!("it has {count} layers; expected 1 to {MAX_LAYERS}")));
    }
    // The media type of a layer is not relied on: the first bytes of the layer show its format.
    // Encrypted layers are the exception.
    if let Some(encrypted) = layers.iter().find(|layer| layer.media_type().ends_with("+encrypted")) {
        let media_type = encrypted.media_type();
        return Err(wrong(format!("a layer has type `{media_type}`; encrypted layers are not supported")));
    }
    let layers: Result<_, DigestError> = layers.iter().map(Descriptor::blob).collect();
    Ok(Manifest { config, config_type, layers: layers.map_err(|reason| wrong(format!("a layer: {reason}")))? })
}

/// The part of an image's configuration that describes the container. Members that Leno does not
/// use are not parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Config {
    pub(crate) user: Option<String>,
    pub(crate) env: Option<Vec<Option<String>>>,
    pub(crate) entrypoint: Option<Words>,
    pub(crate) cmd: Option<Words>,
    pub(crate) working_dir: Option<String>,
    pub(crate) stop_signal: Option<String>,
    pub(crate) exposed_ports: Option<BTreeMap<String, IgnoredAny>>,
}

/// A command. Docker also accepts one word without a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Words {
    Many(Vec<Option<String>>),
    One(String),
}

impl Words {
    pub(crate) fn list(self) -> Vec<String> {
        match self {
            Self::Many(words) => words.into_iter().map(Option::unwrap_or_default).collect(),
            Self::One(word) => vec![word],
        }
    }
}

/// A parsed configuration.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) platform: Platform,
    pub(crate) config: Config,
    /// The digests of the unpacked layers, bottom to top.
    pub(crate) diff_ids: Vec<Digest>,
}

/// Parses the configuration of an image.
pub(crate) fn configuration(image: &str, bytes: &[u8], manifest: &Manifest) -> Result<Configuration> {
    #[derive(Deserialize)]
    struct Shape {
        os: Option<String>,
        architecture: Option<String>,
        variant: Option<String>,
        config: Option<Config>,
        rootfs: Option<RootFs>,
    }
    #[derive(Deserialize)]
    struct RootFs {
        r#type: Option<String>,
        diff_ids: Option<Vec<Option<String>>>,
    }
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    // Registries also keep artifacts that are no images. The type of their configuration may show
    // it.
    let artifact = || {
        let known = CONFIG_TYPES.contains(&manifest.config_type.as_str()) || manifest.config_type.is_empty();
        (!known).then(|| {
            wrong(format!("it is an artifact of type `{}`, no image that can be started", manifest.config_type))
        })
    };
    let shape: Shape = serde_json::from_slice(bytes)
        .map_err(|error| artifact().unwrap_or_else(|| wrong(format!("its configuration is not readable: {error}"))))?;
    let Some(rootfs) = shape.rootfs else {
        return Err(artifact().unwrap_or_else(|| wrong("its configuration has no `rootfs`".to_owned())));
    };
    let kind = rootfs.r#type.unwrap_or_default();
    if !matches!(kind.as_str(), "layers" | "") {
        return Err(wrong(format!("its configuration has `rootfs.type: {kind}`; expected `layers`")));
    }
    let ids = rootfs.diff_ids.unwrap_or_default().into_iter().map(Option::unwrap_or_default);
    let diff_ids: Vec<Digest> =
        ids.map(|id| id.parse().map_err(|error| wrong(format!("rootfs.diff_ids: {error}")))).collect::<Result<_>>()?;
    let layers = manifest.layers.len();
    if diff_ids.len() != layers {
        return Err(wrong(format!("its manifest has {layers} layers, its configuration {}", diff_ids.len())));
    }
    let platform = Platform::new(shape.os.as_deref(), shape.architecture.as_deref(), shape.variant.as_deref());
    Ok(Configuration { platform, config: shape.config.unwrap_or_default(), diff_ids })
}

/// The error for an image that is available for these platforms only.
pub(crate) fn not_for_this_machine<'a>(image: &str, platforms: impl Iterator<Item = &'a Platform>) -> Error {
    let named: Vec<&Platform> = platforms.filter(|platform| !platform.is_unknown()).collect();
    let machine = this_machine(named.iter().any(|platform| platform.is_our_architecture()));
    let mut there: Vec<String> = named.iter().map(ToString::to_string).collect();
    there.sort();
    there.dedup();
    there.truncate(20);
    if there.is_empty() {
        there.push("no platform that its index names".to_owned());
    }
    Error::Platform { image: image.to_owned(), machine, there }
}

#[cfg(test)]
mod tests;
