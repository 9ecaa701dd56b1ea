//! Indexes, manifests and configurations: read, checked and brought into the form that a pull needs.

use crate::{Digest, Error, Result};
use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// How long a manifest or an index may be, in bytes: what registries accept.
pub(crate) const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// How long a configuration may be, in bytes.
pub(crate) const MAX_CONFIG_BYTES: usize = 4 << 20;
/// How many layers an image may have. Docker's own limit is 127; overlayfs takes 500.
pub(crate) const MAX_LAYERS: usize = 128;

/// What a digest leads to.
#[derive(Debug)]
pub(crate) enum Document {
    /// The manifest of linux/amd64 in it.
    Index(Blob),
    Manifest(Manifest),
}

#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Blob,
    /// Bottom to top.
    pub(crate) layers: Vec<Blob>,
}

/// A blob as a descriptor names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// Reads what has come for an image; its digest has been verified.
pub(crate) fn read(image: &str, bytes: &[u8]) -> Result<Document> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape {
        #[serde(default)]
        schema_version: u64,
        media_type: Option<String>,
        layers: Option<IgnoredAny>,
        manifests: Option<IgnoredAny>,
    }
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let shape: Shape =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its manifest is not readable: {error}")))?;
    if shape.schema_version != 2 {
        return Err(wrong(format!(
            "its manifest has schema version {}; expected 2 (push it again with a newer tool)",
            shape.schema_version
        )));
    }
    let media_type = shape.media_type.as_deref().unwrap_or_default();
    let is_index = match (shape.layers.is_some(), shape.manifests.is_some()) {
        (true, false) => false,
        (false, true) => true,
        // Who reads it as a manifest and who reads it as an index would see different images.
        (true, true) => {
            return Err(wrong("its manifest has both `layers` and `manifests`; expected one of them".to_owned()));
        }
        (false, false) => return Err(wrong("its manifest has neither `layers` nor `manifests`".to_owned())),
    };
    let expected = match is_index {
        true => {
            ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"]
        }
        false => ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"],
    };
    if !media_type.is_empty() && !expected.contains(&media_type) {
        return Err(wrong(format!("its manifest says that it is `{media_type}`; expected `{}`", expected[0])));
    }
    if is_index { index(image, bytes).map(Document::Index) } else { manifest(image, bytes).map(Document::Manifest) }
}

fn index(image: &str, bytes: &[u8]) -> Result<Blob> {
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let index: ImageIndex =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its index is not readable: {error}")))?;
    let mut there = Vec::new();
    for descriptor in index.manifests() {
        let Some(platform) = descriptor.platform() else {
            // What has no platform is for any; an index of one image is often written so.
            if index.manifests().len() == 1 {
                return blob(descriptor).map_err(wrong);
            }
            continue;
        };
        if *platform.os() == Os::Linux && *platform.architecture() == Arch::Amd64 {
            return blob(descriptor).map_err(wrong);
        }
        there.push(match platform.variant() {
            Some(variant) => format!("{}/{}/{variant}", platform.os(), platform.architecture()),
            None => format!("{}/{}", platform.os(), platform.architecture()),
        });
    }
    there.sort();
    there.dedup();
    there.truncate(20);
    if there.is_empty() {
        there.push("no platform that its index names".to_owned());
    }
    Err(Error::Platform { image: image.to_owned(), there })
}

fn manifest(image: &str, bytes: &[u8]) -> Result<Manifest> {
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let manifest: ImageManifest =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its manifest is not readable: {error}")))?;
    match manifest.config().media_type() {
        MediaType::ImageConfig => {}
        MediaType::Other(other) if other == "application/vnd.docker.container.image.v1+json" => {}
        other => return Err(wrong(format!("it is an artifact of type `{other}`, no image that can be started"))),
    }
    if manifest.config().size() > MAX_CONFIG_BYTES as u64 {
        return Err(wrong(format!(
            "its configuration has {} bytes; the limit is {MAX_CONFIG_BYTES}",
            manifest.config().size()
        )));
    }
    let count = manifest.layers().len();
    if count == 0 || count > MAX_LAYERS {
        return Err(wrong(format!("it has {count} layers; expected 1 to {MAX_LAYERS}")));
    }
    let mut layers = Vec::with_capacity(count);
    for descriptor in manifest.layers() {
        match descriptor.media_type() {
            MediaType::ImageLayer | MediaType::ImageLayerGzip | MediaType::ImageLayerZstd => {}
            MediaType::Other(other)
                if [
                    "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "application/vnd.docker.image.rootfs.diff.tar",
                ]
                .contains(&other.as_str()) => {}
            other => {
                return Err(wrong(format!(
                    "a layer has type `{other}`; expected a tar archive, plain or compressed with gzip or zstd"
                )));
            }
        }
        layers.push(blob(descriptor).map_err(wrong)?);
    }
    Ok(Manifest { config: blob(manifest.config()).map_err(wrong)?, layers })
}

fn blob(descriptor: &Descriptor) -> Result<Blob, String> {
    Ok(Blob { digest: descriptor.digest().to_string().parse()?, size: descriptor.size() })
}

/// Reads the configuration of an image with so many layers, and the digests of its unpacked layers, bottom to top.
pub(crate) fn config(image: &str, bytes: &[u8], layers: usize) -> Result<(ImageConfiguration, Vec<Digest>)> {
    let wrong = |reason: String| Error::Image { image: image.to_owned(), reason };
    let config: ImageConfiguration =
        serde_json::from_slice(bytes).map_err(|error| wrong(format!("its configuration is not readable: {error}")))?;
    if *config.os() != Os::Linux || *config.architecture() != Arch::Amd64 {
        let there = vec![format!("{}/{}", config.os(), config.architecture())];
        return Err(Error::Platform { image: image.to_owned(), there });
    }
    if config.rootfs().typ() != "layers" {
        return Err(wrong(format!(
            "its configuration has `rootfs.type: {}`; expected `layers`",
            config.rootfs().typ()
        )));
    }
    let diff_ids: Vec<Digest> = config
        .rootfs()
        .diff_ids()
        .iter()
        .map(|id| id.parse().map_err(|error| wrong(format!("rootfs.diff_ids: {error}"))))
        .collect::<Result<_>>()?;
    if diff_ids.len() != layers {
        return Err(wrong(format!("its manifest has {layers} layers, its configuration {}", diff_ids.len())));
    }
    Ok((config, diff_ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(kind: &str) -> String {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{}","size":3}}"#,
            Digest::of(kind.as_bytes())
        )
    }

    fn refused(text: &str) -> String {
        read("example/x", text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_is_read() {
        let (config, layer) = (descriptor("config.v1+json"), descriptor("layer.v1.tar+gzip"));
        let text = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#);
        let Document::Manifest(manifest) = read("example/x", text.as_bytes()).unwrap() else { panic!() };
        assert_eq!(manifest.config, Blob { digest: Digest::of(b"config.v1+json"), size: 3 });
        assert_eq!(manifest.layers, [Blob { digest: Digest::of(b"layer.v1.tar+gzip"), size: 3 }]);
    }

    #[test]
    fn of_an_index_the_manifest_for_this_platform_is_taken() {
        let entry = |platform: &str| {
            let digest = Digest::of(platform.as_bytes());
            let (os, architecture) = platform.split_once('/').unwrap();
            format!(
                r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":3,"platform":{{"os":"{os}","architecture":"{architecture}"}}}}"#
            )
        };
        let text = |entries: &[&str]| {
            let entries: Vec<String> = entries.iter().map(|platform| entry(platform)).collect();
            format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","))
        };
        let found = read("example/x", text(&["windows/amd64", "linux/arm64", "linux/amd64"]).as_bytes()).unwrap();
        assert!(matches!(found, Document::Index(blob) if blob.digest == Digest::of(b"linux/amd64")));
        let error = refused(&text(&["windows/amd64", "linux/arm64", "linux/arm64"]));
        assert_eq!(error, "image example/x is not made for linux/amd64; it is there for: linux/arm64, windows/amd64");
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let (config, layer) = (descriptor("config.v1+json"), descriptor("layer.v1.tar"));
        let many = vec![layer.clone(); 10_000].join(",");
        for (text, expected) in [
            ("{".to_owned(), "not readable"),
            (r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(), "schema version 1"),
            (r#"{"schemaVersion":2}"#.to_owned(), "neither"),
            (r#"{"schemaVersion":2,"layers":[],"manifests":[]}"#.to_owned(), "both"),
            (
                r#"{"schemaVersion":2,"layers":[],"mediaType":"application/vnd.oci.image.index.v1+json"}"#.to_owned(),
                "says that it is",
            ),
            (format!(r#"{{"schemaVersion":2,"config":{config},"layers":[]}}"#), "it has 0 layers"),
            (
                format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{many}]}}"#),
                "it has 10000 layers; expected 1 to 128",
            ),
            (format!(r#"{{"schemaVersion":2,"config":{layer},"layers":[{layer}]}}"#), "artifact of type"),
            (format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{config}]}}"#), "a layer has type"),
            (
                format!(
                    r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#,
                    descriptor("layer.nondistributable.v1.tar+gzip")
                ),
                "nondistributable",
            ),
        ] {
            let error = refused(&text);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_configuration_has_to_fit_the_manifest() {
        let text = |architecture: &str| {
            let id = Digest::of(b"layer");
            format!(
                r#"{{"os":"linux","architecture":"{architecture}","rootfs":{{"type":"layers","diff_ids":["{id}"]}}}}"#
            )
        };
        assert_eq!(config("x", text("amd64").as_bytes(), 1).unwrap().1, [Digest::of(b"layer")]);
        let error = config("x", text("amd64").as_bytes(), 2).unwrap_err().to_string();
        assert!(error.contains("2 layers, its configuration 1"), "{error}");
        let error = config("x", text("arm64").as_bytes(), 1).unwrap_err().to_string();
        assert!(error.contains("there for: linux/arm64"), "{error}");
    }
}
