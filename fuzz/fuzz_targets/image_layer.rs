//! Two layers, one on top of the other: nothing outside of their folders changes, and inside are
//! only files that an image may have. It also searches a layer for a file. It needs root, as the
//! store does: otherwise most entries fail at their owner.
#![no_main]

// The files themselves, because the crate around them depends on an HTTP client.
#[allow(dead_code)]
#[path = "../../crates/oci/src/archive.rs"]
mod archive;
#[allow(dead_code)]
#[path = "../../crates/oci/src/attributes.rs"]
mod attributes;
#[allow(dead_code)]
#[path = "../../crates/oci/src/beneath.rs"]
mod beneath;
#[allow(dead_code)]
#[path = "../../crates/oci/src/lower.rs"]
mod lower;
#[allow(dead_code)]
#[path = "../../crates/oci/src/path.rs"]
mod path;
#[allow(dead_code)]
#[path = "../../crates/oci/src/refusal.rs"]
mod refusal;
#[allow(dead_code)]
#[path = "../../crates/oci/src/space.rs"]
mod space;
#[allow(dead_code)]
#[path = "../../crates/oci/src/steps.rs"]
mod steps;
#[allow(dead_code)]
#[path = "../../crates/oci/src/tree.rs"]
mod tree;
#[allow(dead_code)]
#[path = "../../crates/oci/src/unpack.rs"]
mod unpack;

use libfuzzer_sys::fuzz_target;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use unpack::Limits;

/// A folder of this process alone. In memory, where that is possible.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("leno-fuzz-{}", std::process::id()));
    fs::create_dir_all(folder.join("outside")).unwrap();
    fs::write(folder.join("outside/file"), "untouched").unwrap();
    folder
});

// The first two bytes are the length of the lower archive.
fuzz_target!(|bytes: &[u8]| {
    let Some((length, archives)) = bytes.split_first_chunk::<2>() else { return };
    let (lower, upper) = archives.split_at(usize::from(u16::from_le_bytes(*length)).min(archives.len()));
    let limits = Limits { entries: 1000, file_bytes: 16 << 20 };
    if let Ok(Some(found)) = unpack::find(upper, "index.json", 4096, limits) {
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
});

/// Unpacks a layer. Returns whether it is valid.
fn layer(archive: &[u8], folder: &Path, lower: &[&Path]) -> bool {
    fs::create_dir_all(folder).unwrap();
    let mut left: u64 = 16 << 20;
    let mut reserve = |space: space::Space| {
        left = left.checked_sub(space.bytes).ok_or_else(|| io::Error::other("full"))?;
        Ok(())
    };
    let limits = Limits { entries: 1000, file_bytes: 16 << 20 };
    let Ok(mut omitted) = unpack::read(archive, folder, limits, &mut reserve) else { return false };
    let built = unpack::build(folder, lower, &mut reserve, &mut omitted).is_ok();
    only_what_an_image_may_have(&folder.join(unpack::ROOT));
    built
}

fn only_what_an_image_may_have(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        let whiteout = kind.is_char_device() && found.rdev() == 0;
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_fifo() || whiteout, "{}", path.display());
        if kind.is_dir() {
            only_what_an_image_may_have(&path);
        }
    }
}
