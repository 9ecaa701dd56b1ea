//! Entry points of the targets in `fuzz/`. Each function panics if a property does not hold.

use crate::Digest;
use crate::manifest::{self, Document, MAX_CONFIG_BYTES, MAX_LAYERS, Manifest};
use crate::space::Space;
use crate::unpack::{self, Limits};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{fs, io};

const LIMITS: Limits = Limits { entries: 1000, file_bytes: 16 << 20 };

/// A folder of this process alone. In memory, where that is possible.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("leno-fuzz-{}", std::process::id()));
    fs::create_dir_all(folder.join("outside")).unwrap();
    fs::write(folder.join("outside/file"), "untouched").unwrap();
    folder
});

/// Unpacks two layers, one on top of the other: nothing outside of their folders changes, and
/// inside are only files that an image may have. It also searches a layer for a file. It needs
/// root, as the store does: otherwise most entries fail at their owner.
///
/// The first two bytes are the length of the lower archive.
pub fn layers(bytes: &[u8]) {
    let Some((length, archives)) = bytes.split_first_chunk::<2>() else { return };
    let (lower, upper) = archives.split_at(usize::from(u16::from_le_bytes(*length)).min(archives.len()));
    if let Ok(Some(found)) = unpack::find(upper, "index.json", 4096, LIMITS) {
        assert!(found.len() <= 4096);
    }
    let inside = FOLDER.join("inside");
    let (below, above) = (inside.join("lower"), inside.join("upper"));
    if layer(lower, &below, &[]) {
        layer(upper, &above, &[&below.join(unpack::ROOT)]);
    }
    fs::remove_dir_all(&inside).unwrap();
    assert_eq!(fs::read_dir(&*FOLDER).unwrap().count(), 1);
    assert_eq!(fs::read_dir(FOLDER.join("outside")).unwrap().count(), 1);
    let file = FOLDER.join("outside/file");
    assert_eq!((fs::read(&file).unwrap(), fs::metadata(&file).unwrap().nlink()), (b"untouched".to_vec(), 1));
}

/// Unpacks a layer. Returns whether it is valid.
fn layer(archive: &[u8], folder: &Path, lower: &[&Path]) -> bool {
    fs::create_dir_all(folder).unwrap();
    let mut left: u64 = 16 << 20;
    let mut reserve = |space: Space| {
        left = left.checked_sub(space.bytes).ok_or_else(|| io::Error::other("full"))?;
        Ok(())
    };
    let Ok(mut omitted) = unpack::read(archive, folder, LIMITS, &mut reserve) else { return false };
    let built = unpack::build(folder, lower, &mut reserve, &mut omitted).is_ok();
    has_only_files_of_images(&folder.join(unpack::ROOT));
    built
}

fn has_only_files_of_images(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        let whiteout = kind.is_char_device() && found.rdev() == 0;
        let is_allowed = kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_fifo() || whiteout;
        assert!(is_allowed, "{}", path.display());
        if kind.is_dir() {
            has_only_files_of_images(&path);
        }
    }
}

/// A manifest for configurations, which have to fit it.
static MANIFEST: LazyLock<Manifest> = LazyLock::new(|| {
    let blob = format!(r#"{{"digest":"{}","size":1}}"#, Digest::of(b""));
    let text = format!(r#"{{"schemaVersion":2,"config":{blob},"layers":[{blob}]}}"#);
    match manifest::read("example", text.as_bytes()) {
        Ok(Document::Manifest(manifest)) => manifest,
        other => panic!("{other:?}"),
    }
});

/// Parses a manifest, an index or a configuration of an image: there is no panic, and the results
/// are within the limits.
pub fn manifest(bytes: &[u8]) {
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
}
