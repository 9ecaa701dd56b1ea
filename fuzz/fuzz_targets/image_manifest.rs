//! Manifests, indexes and configurations of images: they are parsed without a panic, and the
//! results are within the limits.
#![no_main]

// The files themselves, because the crate around them depends on an HTTP client.
#[allow(dead_code)]
#[path = "../../crates/oci/src/digest.rs"]
mod digest;
#[allow(dead_code)]
#[path = "../../crates/oci/src/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../crates/oci/src/manifest.rs"]
mod manifest;
#[allow(dead_code)]
#[path = "../../crates/oci/src/platform.rs"]
mod platform;

pub use digest::{Digest, DigestError};
pub use error::{Error, Result};
use libfuzzer_sys::fuzz_target;
use manifest::{Document, MAX_CONFIG_BYTES, MAX_LAYERS, Manifest};
use std::sync::LazyLock;

/// A manifest for configurations, which have to fit it.
static MANIFEST: LazyLock<Manifest> = LazyLock::new(|| {
    let blob = format!(r#"{{"digest":"{}","size":1}}"#, Digest::of(b""));
    let text = format!(r#"{{"schemaVersion":2,"config":{blob},"layers":[{blob}]}}"#);
    match manifest::read("example", text.as_bytes()) {
        Ok(Document::Manifest(manifest)) => manifest,
        other => panic!("{other:?}"),
    }
});

fuzz_target!(|bytes: &[u8]| {
    match manifest::read("example", bytes) {
        Ok(Document::Manifest(manifest)) => {
            assert!((1..=MAX_LAYERS).contains(&manifest.layers.len()));
            assert!(manifest.config.size <= MAX_CONFIG_BYTES as u64);
        }
        Ok(Document::Index(entries)) => {
            for entry in entries {
                let _ = (entry.blob(), entry.is_index());
                if let Some(platform) = entry.platform() {
                    assert!(platform.rank().is_none_or(|_| platform.is_our_architecture()));
                    assert!(platform.to_string().len() < 1000);
                }
            }
        }
        Err(error) => assert!(error.to_string().len() < 64 << 10),
    }
    if let Ok(read) = manifest::configuration("example", bytes, &MANIFEST) {
        assert_eq!(Digest::chain(&read.diff_ids).len(), 1);
    }
});
