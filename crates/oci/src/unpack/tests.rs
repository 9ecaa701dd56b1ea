//! For any content of an image's archives: nothing outside of the folder changes, inside there are
//! only permitted files, and all layers together are the image that containerd would make of them.

mod model;

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use tar_core::builder::EntryBuilder;

#[derive(Clone, Debug)]
struct EntrySpec {
    kind: EntryType,
    path: String,
    target: String,
    content: Vec<u8>,
}

/// Few names, so that entries collide with each other.
fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        6 => Just("a"), 6 => Just("b"), 4 => Just("c"), 1 => Just(".."), 1 => Just("."), 1 => Just(""),
        1 => Just(".wh.a"), 1 => Just(".wh.b"), 1 => Just(".wh..wh..opq"), 1 => Just("outside"),
    ];
    (any::<bool>(), prop::collection::vec(name, 1..5)).prop_map(|(absolute, names)| {
        let path = names.join("/");
        if absolute { format!("/{path}") } else { path }
    })
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => path(), 1 => Just("../outside".to_owned()), 1 => Just("../../outside".to_owned()), 1 => Just("/".to_owned()),
        1 => Just("/proc/self/root".to_owned()), 1 => Just("../outside/file".to_owned()),
    ]
}

fn wanted() -> impl Strategy<Value = EntrySpec> {
    let kind = prop_oneof![
        5 => Just(EntryType::Regular), 5 => Just(EntryType::Directory), 5 => Just(EntryType::Symlink), 3 => Just(EntryType::Link),
        1 => Just(EntryType::Fifo), 1 => Just(EntryType::Char),
    ];
    (kind, path(), target(), prop::collection::vec(any::<u8>(), 0..600)).prop_map(|(kind, path, target, content)| {
        let content = if kind == EntryType::Regular && !path.ends_with('/') { content } else { Vec::new() };
        EntrySpec { kind, path, target, content }
    })
}

fn archive(entries: &[EntrySpec]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        let mut header = EntryBuilder::new_gnu();
        header
            .path(&entry.path)
            .entry_type(entry.kind)
            .mode(0o4777)
            .unwrap()
            .uid(1)
            .unwrap()
            .gid(2)
            .unwrap()
            .mtime(3)
            .unwrap();
        header.size(entry.content.len() as u64).unwrap();
        if matches!(entry.kind, EntryType::Symlink | EntryType::Link) {
            header.link_name(&entry.target);
        }
        archive.extend(header.finish_bytes());
        archive.extend(&entry.content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.extend([0; 1024]);
    archive
}

/// All metadata of the files outside, except access times.
fn outside(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for path in [folder.to_owned(), folder.join("outside"), folder.join("outside/file")] {
        let found = fs::symlink_metadata(&path).unwrap();
        let content = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        all.push(format!(
            "{path:?} {} {:o} {} {}.{} {content:?}",
            found.nlink(),
            found.mode(),
            found.uid(),
            found.ctime(),
            found.ctime_nsec()
        ));
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
    assert_eq!(fs::read_dir(folder.join("outside")).unwrap().count(), 1);
    all
}

fn only_what_an_image_may_have(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        let whiteout = kind.is_char_device() && found.rdev() == 0;
        assert!(
            kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_fifo() || whiteout,
            "{}",
            path.display()
        );
        assert!(!path.file_name().unwrap().to_string_lossy().starts_with(".wh."), "{}", path.display());
        if kind.is_dir() {
            only_what_an_image_may_have(&path);
        }
    }
}

/// Files, folders and links in a folder.
fn inodes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| 1 + if path.is_dir() && !path.is_symlink() { inodes(&path) } else { 0 }).sum()
}

/// Runs both parts, on top of these layers, topmost first. Returns the space that it took.
fn unpack(archive: &[u8], folder: &Path, lower: &[&Path]) -> Result<Space, Failure> {
    let limits = Limits { entries: 100, file_bytes: 1 << 20 };
    let mut taken = Space::default();
    let mut reserve = |space| {
        taken += space;
        Ok(())
    };
    let mut omitted = read(archive, folder, limits, &mut reserve)?;
    build(folder, lower, &mut reserve, &mut omitted)?;
    Ok(taken)
}

fn layers() -> impl Strategy<Value = Vec<Vec<EntrySpec>>> {
    prop::collection::vec(prop::collection::vec(wanted(), 1..8), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_outside_changes_and_all_is_where_the_image_has_it(layers in layers()) {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        fs::create_dir(&inside).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/file"), "untouched").unwrap();
        let before = outside(folder.path());
        let mut model = model::Model::default();
        let mut roots: Vec<PathBuf> = Vec::new();
        for (at, entries) in layers.iter().enumerate() {
            let layer = inside.join(at.to_string());
            fs::create_dir(&layer).unwrap();
            let lower: Vec<&Path> = roots.iter().rev().map(PathBuf::as_path).collect();
            let result = unpack(&archive(entries), &layer, &lower);
            let expected = model.layer(entries);
            prop_assert_eq!(outside(folder.path()), before.clone());
            if layer.join(ROOT).is_dir() {
                only_what_an_image_may_have(&layer.join(ROOT));
            }
            match result {
                Ok(used) => {
                    prop_assert!(expected.is_ok(), "{} is not refused", at);
                    prop_assert!(used.bytes >= entries.len() as u64 * INODE, "{:?}", used);
                    prop_assert!(used.files >= inodes(&layer.join(ROOT)), "{:?}", used);
                }
                Err(Failure::Layer(reason)) => {
                    prop_assert!(reason.starts_with("entry `") || reason.ends_with("empty path"), "{}", reason);
                    prop_assert!(expected.is_err(), "{} is refused: {}", at, reason);
                    return Ok(());
                }
                Err(other) => prop_assert!(false, "an entry is refused by us, not by the system: {:?}", other),
            }
            roots.push(layer.join(ROOT));
            let topmost_first: Vec<&Path> = roots.iter().rev().map(PathBuf::as_path).collect();
            prop_assert_eq!(model::merged(&topmost_first), model.files());
        }
    }
}

#[test]
fn one_file_is_found_without_unpacking() {
    fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (path, kind, content) in entries {
            let mut header = EntryBuilder::new_ustar();
            header.path(path).entry_type(*kind).mode(0o644).unwrap().size(content.len() as u64).unwrap();
            if *kind == EntryType::Symlink {
                header.link_name("elsewhere");
            }
            archive.extend(header.finish_bytes());
            archive.extend_from_slice(content);
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    }
    let limits = Limits { entries: 2, file_bytes: 1 << 20 };
    let find = |archive: &[u8], name: &str, most: usize| find(archive, name, most, limits);
    let file = EntryType::Regular;
    let whole =
        archive(&[("blobs/index.json", file, b"no"), ("./index.json", file, b"{}"), ("index.json", file, b"late")]);
    assert_eq!(find(&whole[..], "index.json", 2).unwrap().as_deref(), Some(&b"{}"[..]));
    assert!(
        matches!(find(&whole[..], "index.json", 1), Err(Failure::Layer(reason)) if reason.contains("longer than 1"))
    );
    assert!(
        matches!(find(&whole[..], "oci-layout", 9), Err(Failure::Layer(reason)) if reason.contains("more than 2 entries"))
    );
    let long = archive(&[("long", file, &vec![0; 2 << 20][..])]);
    assert!(find(&long, "oci-layout", 9).is_err(), "it ends at the bound");
    let short = archive(&[("short", file, b"")]);
    assert_eq!(find(&short, "oci-layout", 9).unwrap(), None);
    let link = archive(&[("index.json", EntryType::Symlink, b"")]);
    assert_eq!(find(&link[..], "index.json", 9).unwrap(), None);
    let outside = archive(&[("../index.json", file, b"{}")]);
    assert!(matches!(find(&outside[..], "index.json", 9), Err(Failure::Layer(reason)) if reason.contains("`..`")));
    assert!(matches!(find(&whole[..1536], "index.json", 9), Err(Failure::Read(_) | Failure::Layer(_))));
}
