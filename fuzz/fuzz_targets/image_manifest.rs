//! Manifests, indexes and configurations of images: read without a panic, and what is read is within the limits.
#![no_main]

// The files themselves, because the crate around them brings an HTTP client along.
#[allow(dead_code)]
#[path = "../../crates/image/src/digest.rs"]
mod digest;
#[allow(dead_code)]
#[path = "../../crates/image/src/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../crates/image/src/manifest.rs"]
mod manifest;

pub use digest::Digest;
pub use error::{Error, Result};
use libfuzzer_sys::fuzz_target;
use manifest::{Document, MAX_CONFIG_BYTES, MAX_LAYERS};

fuzz_target!(|bytes: &[u8]| {
    match manifest::read("example", bytes) {
        Ok(Document::Manifest(manifest)) => {
            assert!((1..=MAX_LAYERS).contains(&manifest.layers.len()));
            assert!(manifest.config.size <= MAX_CONFIG_BYTES as u64);
        }
        Ok(Document::Index(_)) => {}
        Err(error) => assert!(error.to_string().len() < 64 << 10),
    }
    for layers in [1, 2] {
        if let Ok((_, ids)) = manifest::config("example", bytes, layers) {
            assert_eq!(ids.len(), layers);
            assert_eq!(Digest::chain(&ids).len(), layers);
        }
    }
});
