//! A layer, unpacked: nothing outside of its folder changes, and in it is only what an image may have. And a file looked for in it. Wants root, as the store
//! does: otherwise most entries end at their owner.
#![no_main]

// The files themselves, because the crate around them brings an HTTP client along.
#[allow(dead_code)]
#[path = "../../crates/image/src/tree.rs"]
mod tree;
#[allow(dead_code)]
#[path = "../../crates/image/src/unpack.rs"]
mod unpack;

use libfuzzer_sys::fuzz_target;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use unpack::Limits;

/// Of this process alone. In memory, where that is possible.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("leno-fuzz-{}", std::process::id()));
    fs::create_dir_all(folder.join("outside")).unwrap();
    fs::write(folder.join("outside/file"), "untouched").unwrap();
    folder
});

fuzz_target!(|archive: &[u8]| {
    if let Ok(Some(found)) = unpack::find(archive, "index.json", 4096) {
        assert!(found.len() <= 4096);
    }
    let root = FOLDER.join("root");
    fs::create_dir(&root).unwrap();
    let mut left: u64 = 16 << 20;
    let limits = Limits { entries: 1000, file_bytes: 16 << 20 };
    let _ = unpack::unpack(archive, &root, limits, &mut |space| {
        left = left.checked_sub(space.bytes).ok_or_else(|| io::Error::other("full"))?;
        Ok(())
    });
    only_what_an_image_may_have(&root);
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(fs::read_dir(&*FOLDER).unwrap().count(), 1);
    assert_eq!(fs::read_dir(FOLDER.join("outside")).unwrap().count(), 1);
    let file = FOLDER.join("outside/file");
    assert_eq!((fs::read(&file).unwrap(), fs::metadata(&file).unwrap().nlink()), (b"untouched".to_vec(), 1));
});

fn only_what_an_image_may_have(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        let whiteout = kind.is_char_device() && found.rdev() == 0;
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink() || whiteout, "{}", path.display());
        if kind.is_dir() {
            only_what_an_image_may_have(&path);
        }
    }
}
