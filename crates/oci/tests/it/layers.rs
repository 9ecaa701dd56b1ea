//! Layers: the files that they become, and those that are refused.

mod builders;

use crate::support::layer::{Raw, Tar};
use crate::support::{self, pull, registries, store, tree, xattrs};
use leno_oci::{Digest, Error, Limits, Result, Store};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tar_core::{EntryType, SparseEntry};

/// Pulls an image of these layers. Returns their folders.
async fn unpack(folder: &Path, layers: impl IntoIterator<Item = Vec<u8>>) -> Result<Vec<PathBuf>> {
    let reference = Raw::plain(layers).layout(&folder.join("layout"));
    let image = pull(&store(&folder.join("store")), &reference).await?;
    let layers = image.layers();
    // The store stays, so dropping the lease does not matter: nothing else needs the space.
    Ok(layers)
}

/// The error for an image with one such layer.
async fn refused(layer: Vec<u8>, expected: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("outside")).unwrap();
    fs::write(folder.path().join("outside/file"), "untouched").unwrap();
    let error = unpack(folder.path(), [layer]).await.expect_err(expected);
    assert!(matches!(error, Error::Layer { .. }), "{error:?}");
    assert_eq!(fs::read_to_string(folder.path().join("outside/file")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(folder.path().join("outside")).unwrap().count(), 1);
    for left in ["layers", "images", "tmp"] {
        let left = folder.path().join("store").join(left);
        assert_eq!(fs::read_dir(&left).unwrap().count(), 0, "{} is left", left.display());
    }
    error.to_string()
}

#[tokio::test]
async fn files_keep_what_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let capability = b"\x01\x00\x00\x02\x00\x04\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let layer = Tar::default()
        .entry(EntryType::Directory, "./", b"", |header| header.mode(0o750).unwrap())
        .entry(EntryType::Directory, "tmp/", b"", |header| header.mode(0o1777).unwrap().mtime(7).unwrap())
        .entry(EntryType::Regular, "/bin/su", b"su", |header| {
            header.mode(0o4755).unwrap().uid(0).unwrap().gid(42).unwrap().mtime(1_700_000_000).unwrap();
            header.add_pax("mtime", "1700000000.25");
            header.add_pax("SCHILY.xattr.security.capability", capability);
            header.add_pax("SCHILY.xattr.user.note", "two\nlines");
            header.add_pax("SCHILY.xattr.security.selinux", "label")
        })
        .entry(EntryType::Regular, &long, b"long", |header| header.uid(70_000).unwrap().gid(3_000_000).unwrap())
        .file("tmp/a", b"A")
        .hard_link("tmp/b", "./tmp/a")
        .symlink("tmp/c", "/etc/passwd")
        .hard_link("tmp/d", "/tmp/c")
        .end();
    let layers = unpack(folder.path(), [layer]).await.unwrap();
    let seen = tree(&layers[0]);
    let at = |path: &str| seen.get(Path::new(path)).unwrap_or_else(|| panic!("{path} is missing: {:?}", seen.keys()));
    assert_eq!(at("").mode & 0o7777, 0o750);
    assert_eq!(
        (at("tmp").mode & 0o7777, at("tmp").mtime),
        (0o1777, (7, 0)),
        "not the time at which its entries were made"
    );
    assert_eq!((at("bin/su").mode & 0o7777, at("bin/su").owner), (0o4755, (0, 42)));
    assert_eq!(at("bin/su").mtime, (1_700_000_000, 250_000_000));
    let kept =
        [("security.capability".to_owned(), capability.to_vec()), ("user.note".to_owned(), b"two\nlines".to_vec())];
    assert_eq!(at("bin/su").xattrs, kept.into());
    assert_eq!((at("bin").mode & 0o7777, at("bin").owner, at("bin").mtime), (0o755, (0, 0), (0, 0)));
    assert_eq!((at(&long).owner, at(&long).content.as_slice()), ((70_000, 3_000_000), &b"long"[..]));
    assert_eq!((at("tmp/b").same_as.as_path(), at("tmp/b").content.as_slice()), (Path::new("tmp/a"), &b"A"[..]));
    assert_eq!(
        (at("tmp/d").same_as.as_path(), at("tmp/d").content.as_slice()),
        (Path::new("tmp/c"), &b"/etc/passwd"[..])
    );
}

#[tokio::test]
async fn a_sparse_file_stays_sparse() {
    for gnu in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let map = [SparseEntry { offset: 1 << 20, length: 3 }, SparseEntry { offset: 8 << 20, length: 4 }];
        let mut header =
            if gnu { tar_core::builder::EntryBuilder::new_gnu() } else { tar_core::builder::EntryBuilder::new_ustar() };
        header
            .path("sparse")
            .entry_type(EntryType::Regular)
            .mode(0o600)
            .unwrap()
            .uid(0)
            .unwrap()
            .gid(0)
            .unwrap()
            .mtime(0)
            .unwrap();
        header.size(7).unwrap().sparse(&map, 64 << 20);
        let mut layer = Tar::default();
        layer.0.extend(header.finish_bytes());
        layer.0.extend(b"onetwo!");
        layer.0.resize(layer.0.len().next_multiple_of(512), 0);
        let layers = unpack(folder.path(), [layer.file("after", b"x").end()]).await.unwrap();
        let content = fs::read(layers[0].join("sparse")).unwrap();
        assert_eq!(content.len(), 64 << 20);
        assert_eq!(
            (&content[1 << 20..(1 << 20) + 4], &content[8 << 20..(8 << 20) + 5]),
            (&b"one\0"[..], &b"two!\0"[..])
        );
        let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(layers[0].join("sparse")).unwrap());
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
        assert_eq!(fs::read(layers[0].join("after")).unwrap(), b"x");
    }
}

#[tokio::test]
async fn whiteouts_are_what_overlayfs_wants() {
    let folder = tempfile::tempdir().unwrap();
    let below = Tar::default().file("gone", b"").file("folder/old", b"").file("kept/x", b"").file("again/old", b"");
    let below = below.file("later/old", b"").file("parent/old", b"").file("file", b"old").end();
    let above = Tar::default()
        .file(".wh.gone", b"")
        .file("folder/.wh..wh..opq", b"")
        .file("folder/new", b"")
        .file(".wh..wh.plnk/1.2", b"")
        .file(".wh..wh.aufs", b"")
        .file("again/new", b"")
        .file(".wh.again", b"")
        .file("file", b"stays")
        .file(".wh.file", b"")
        .file(".wh.nothing", b"")
        .file(".wh.later", b"")
        .folder("later/")
        .file(".wh.parent", b"")
        .file("parent/child", b"")
        .end();
    let layers = unpack(folder.path(), [below, above]).await.unwrap();
    let names: Vec<String> = tree(&layers[1]).keys().map(|path| path.display().to_string()).collect();
    let expected =
        ["", "again", "again/new", "file", "folder", "folder/new", "gone", "later", "parent", "parent/child"];
    assert_eq!(names, expected);
    let gone = &tree(&layers[1])[Path::new("gone")];
    assert_eq!((gone.mode & 0o170000, gone.device), (0o020000, 0), "a character device 0/0");
    let opaque =
        |name: &str| xattrs(&layers[1].join(name)).get("trusted.overlay.opaque").map(Vec::as_slice) == Some(b"y");
    assert!(opaque("folder") && opaque("again") && opaque("later") && opaque("parent") && !opaque(""));

    let merged = mount(folder.path(), &layers);
    let seen: Vec<String> = tree(&merged.0).keys().map(|path| path.display().to_string()).collect();
    let expected =
        ["", "again", "again/new", "file", "folder", "folder/new", "kept", "kept/x", "later", "parent", "parent/child"];
    assert_eq!(seen, expected);
}

/// The overlayfs mount of layers, until it is dropped.
struct OverlayMount(PathBuf);

fn mount(folder: &Path, layers: &[PathBuf]) -> OverlayMount {
    let place = folder.join("merged");
    fs::create_dir(&place).unwrap();
    let lower: Vec<String> = layers.iter().rev().map(|layer| layer.display().to_string()).collect();
    let lower = match lower.len() {
        1 => format!("{}:{}", lower[0], folder.join("store").display()),
        _ => lower.join(":"),
    };
    support::run(
        support::tool("mount").args(["-t", "overlay", "overlay", "-o", &format!("lowerdir={lower}")]).arg(&place),
    );
    OverlayMount(place)
}

impl Drop for OverlayMount {
    fn drop(&mut self) {
        support::run(support::tool("umount").arg(&self.0));
    }
}

#[tokio::test]
async fn an_opaque_root_hides_all_layers_below() {
    let folder = tempfile::tempdir().unwrap();
    let layers = [
        Tar::default().file("a", b"").end(),
        Tar::default().file("b", b"").file(".wh..wh..opq", b"").end(),
        Tar::default().file("c", b"").end(),
    ];
    let layers = unpack(folder.path(), layers).await.unwrap();
    assert_eq!(layers.len(), 2);
    let merged = mount(folder.path(), &layers);
    let seen: Vec<String> = tree(&merged.0).keys().map(|path| path.display().to_string()).collect();
    assert_eq!(seen, ["", "b", "c"]);
}

#[tokio::test]
async fn folders_without_an_entry_are_those_of_the_layer_below() {
    let folder = tempfile::tempdir().unwrap();
    let private = |path: &str, tar: Tar| {
        tar.entry(EntryType::Directory, path, b"", |header| {
            header.mode(0o1770).unwrap().uid(7).unwrap().gid(8).unwrap().mtime(9).unwrap()
        })
    };
    let below = private("tmp/", Tar::default().folder("./"));
    let below = private("gone/", private("hidden/inner/", private("tmp/inner/", below)));
    let between = Tar::default().file(".wh.gone", b"").file("hidden/.wh..wh..opq", b"").end();
    let above = Tar::default()
        .file("tmp/inner/x", b"")
        .file("gone/x", b"")
        .file("hidden/inner/x", b"")
        .file("new/x", b"")
        .end();
    let layers = unpack(folder.path(), [below.end(), between, above]).await.unwrap();
    let seen = tree(&layers[2]);
    let at =
        |path: &str| (seen[Path::new(path)].mode & 0o7777, seen[Path::new(path)].owner, seen[Path::new(path)].mtime.0);
    for (path, expected) in [
        ("tmp", (0o1770, (7, 8), 9)),
        ("tmp/inner", (0o1770, (7, 8), 9)),
        ("gone", (0o755, (0, 0), 0)),
        ("hidden/inner", (0o755, (0, 0), 0)),
        ("new", (0o755, (0, 0), 0)),
    ] {
        assert_eq!(at(path), expected, "{path}");
    }
}

#[tokio::test]
async fn what_leads_out_of_a_layer_is_refused() {
    let attribute = |key: &str, value: &str| {
        Tar::default()
            .entry(EntryType::Directory, "d/", b"", |header| header.mode(0o755).unwrap().add_pax(key, value))
            .end()
    };
    let deep = "a/".repeat(200) + "x";
    for (layer, expected) in [
        (Tar::default().file("../outside/file", b"!").end(), "entry `../outside/file`: its path has `..`"),
        (Tar::default().file("a/../../outside/file", b"!").end(), "its path has `..`"),
        (Tar::default().file("f", b"").file("f/x", b"").end(), "it is below `f`, which is no folder"),
        (
            Tar::default().symlink("a", "/etc").hard_link("p", "a/passwd").end(),
            "entry `p`: it leads through `etc`, which the image does not have",
        ),
        (Tar::default().hard_link("p", "../../../../etc/passwd").end(), "its path has `..`"),
        (
            Tar::default().hard_link("p", "/etc/passwd").end(),
            "entry `p`: it leads through `etc`, which the image does not have",
        ),
        (
            Tar::default().folder("etc/").hard_link("p", "/etc/passwd").end(),
            "it is a hard link to `etc/passwd`, which neither this layer nor those below it have",
        ),
        (Tar::default().symlink("a", "b").symlink("b", "a").file("a/x", b"").end(), "more than 40 symbolic links"),
        (Tar::default().symlink("a", &"./".repeat(1500)).file("a/x", b"").end(), "more than 1024 names"),
        (Tar::default().file("d/x", b"").hard_link("d", "d/x").end(), "it is a hard link to `d/x`, which it replaces"),
        (Tar::default().file("p", b"").hard_link("p", "p").end(), "hard link to itself"),
        (Tar::default().folder("d/").hard_link("p", "d").end(), "hard link to `d`, which is no file"),
        (
            Tar::default().file(".wh.x", b"").hard_link("p", "x").end(),
            "which neither this layer nor those below it have",
        ),
        (Tar::default().file("..", b"").end(), "its path has `..`"),
        (Tar::default().file("/", b"x").end(), "it has content"),
        (Tar::default().symlink("./", "/").end(), "root of the image"),
        (Tar::default().file("a/.wh.", b"").end(), "whiteout without a name"),
        (Tar::default().file("a/.wh...", b"").end(), "whiteout without a name"),
        (Tar::default().file(".wh.a/b", b"").end(), "below a whiteout"),
        (Tar::default().entry(EntryType::Directory, "d/", b"content", |header| header).end(), "it has content"),
        (Tar::default().entry(EntryType::Fifo, "f", b"content", |header| header).end(), "it has content"),
        (
            Tar::default().entry(EntryType::Symlink, "s", b"content", |header| header.link_name("x")).end(),
            "it has content",
        ),
        (Tar::default().entry(EntryType::Other(b'Z'), "z", b"", |header| header).end(), "it has the type 'Z'"),
        (attribute("path", "a\0b"), "zero byte"),
        (attribute("uid", "4294967295"), "beyond what Linux has"),
        (Tar::default().file(&deep, b"").end(), "deeper than 128"),
        (Tar::default().file(&"n".repeat(256), b"").end(), "longer than 255"),
        (Tar::default().file("x", &[0; 1000]).0[..700].to_vec(), "ends within an entry"),
        (b"no archive, but long enough to be one".repeat(100), "archive is broken"),
        (
            b"\xfd7zXZ\0rest".to_vec(),
            "it is compressed with xz; expected a tar archive, plain or compressed with gzip or zstd",
        ),
        (b"BZh91AY&SYrest".to_vec(), "it is compressed with bzip2"),
    ] {
        let error = refused(layer, expected).await;
        assert!(error.contains(expected), "expected {expected}\n{error}");
    }
    assert!(!Path::new("/etc/leno-was-here").exists());
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn pull_limited(layer: Vec<u8>, id: Digest, limits: Limits) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let reference = Raw { layers: vec![(layer, id)] }.layout(&folder.path().join("layout"));
    let store = Store::open(&folder.path().join("store"), limits, registries()).unwrap();
    let error = pull(&store, &reference).await.unwrap_err();
    assert_eq!(store.used_bytes(), 0, "{error}");
    assert_eq!(fs::read_dir(folder.path().join("store/tmp")).unwrap().count(), 0);
    error
}

#[tokio::test]
async fn bombs_are_refused() {
    let limits = Limits { image_bytes: 4 << 20, entries: 100, ..Limits::default() };
    let large = Tar::default().file("zeros", &vec![0; 64 << 20]).end();
    let error = pull_limited(gzip(&large), Digest::of(&large), limits).await.to_string();
    assert!(error.contains("entry `zeros`: it has 67108864 bytes; the limit of an image is 4194304"), "{error}");

    let behind_the_end = [Tar::default().file("x", b"").end(), vec![0; 64 << 20]].concat();
    let error = pull_limited(gzip(&behind_the_end), Digest::of(&behind_the_end), limits).await.to_string();
    assert!(error.contains("more than 4194304 bytes"), "{error}");

    let many = (0..101).fold(Tar::default(), |tar, i| tar.file(&i.to_string(), b"")).end();
    let error = pull_limited(gzip(&many), Digest::of(&many), limits).await.to_string();
    assert!(error.contains("more than 100 entries"), "{error}");

    let extended = Tar::default()
        .entry(EntryType::Regular, "x", b"", |header| header.add_pax("comment", vec![b'x'; 2 << 20]))
        .end();
    let error = pull_limited(gzip(&extended), Digest::of(&extended), limits).await.to_string();
    assert!(error.contains("metadata exceeds limit"), "{error}");

    let fits = Tar::default().file("x", &vec![7; 3 << 20]).end();
    let error = pull_limited(gzip(&fits), Digest::of(&fits), Limits { store_bytes: 2 << 20, ..limits }).await;
    assert!(matches!(error, Error::Full { limit, .. } if limit == 2 << 20), "{error}");
}

#[tokio::test]
async fn what_an_archive_says_of_no_file_takes_space_too() {
    // A name, an attribute and a comment can fill a disk or a processor as content can.
    let limits = Limits { image_bytes: 64 << 20, store_bytes: 1 << 20, ..Limits::default() };
    let many = |key: &str, length: usize| {
        let entry = |tar: Tar, number: usize| {
            let value = vec![b'x'; length];
            tar.entry(EntryType::Regular, &number.to_string(), b"", |header| header.add_pax(key, value))
        };
        (0..40).fold(Tar::default(), entry).end()
    };
    for (key, length) in [("SCHILY.xattr.user.x", 3000), ("comment", 60_000)] {
        let layer = many(key, length);
        let limits = Limits { store_bytes: 100 << 10, ..limits };
        let error = pull_limited(gzip(&layer), Digest::of(&layer), limits).await;
        assert!(matches!(error, Error::Full { .. }), "{key}: {error}");
    }
    // Headers for all entries that follow, of which there are none.
    let global = (0..40).fold(Tar::default(), |tar, _| {
        let value = [b"60013 comment=".to_vec(), vec![b'x'; 59_998], b"\n".to_vec()].concat();
        tar.entry(EntryType::XGlobalHeader, "g", &value, |header| header)
    });
    let global = global.file("x", b"").end();
    let error = pull_limited(gzip(&global), Digest::of(&global), limits).await;
    assert!(matches!(error, Error::Full { .. }), "{error}");
    let trailing = [Tar::default().file("x", b"").end(), vec![0; 17 << 20]].concat();
    let error = pull_limited(gzip(&trailing), Digest::of(&trailing), limits).await.to_string();
    assert!(error.contains("16777216 bytes after the end of its archive"), "{error}");
}

#[tokio::test]
async fn a_layer_in_several_gzip_members_is_unpacked_and_no_other_bytes_are() {
    let folder = tempfile::tempdir().unwrap();
    let layer = Tar::default().file("x", &b"0123456789".repeat(5000)).end();
    let (first, second) = layer.split_at(20_000);
    let members = [gzip(first), gzip(second)].concat();
    let reference = Raw { layers: vec![(members.clone(), Digest::of(&layer))] }.layout(&folder.path().join("layout"));
    let image = pull(&store(&folder.path().join("store")), &reference).await.unwrap();
    assert_eq!(fs::read(image.layers()[0].join("x")).unwrap(), b"0123456789".repeat(5000));
    // The trailing bytes are no gzip member; other tools ignore them, and would see the same image
    // under another digest.
    let followed = [members, b"something else".to_vec()].concat();
    let error = pull_limited(followed, Digest::of(&layer), Limits::default()).await.to_string();
    assert!(error.contains("cannot be unpacked"), "{error}");
}

#[tokio::test]
async fn of_entries_with_one_path_the_last_one_stands_and_a_hard_link_keeps_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let setuid = |tar: Tar| tar.entry(EntryType::Regular, "f", b"second", |header| header.mode(0o4755).unwrap());
    let layer = setuid(Tar::default().file("f", b"first").hard_link("kept", "f"))
        .symlink("s", "/etc/passwd")
        .hard_link("t", "s")
        .file("t", b"own")
        .file(".wh.gone", b"")
        .file("gone", b"back")
        .file("late", b"hidden")
        .file(".wh.late", b"")
        .end();
    let layers = unpack(folder.path(), [layer]).await.unwrap();
    let seen = tree(&layers[0]);
    let content = |name: &str| String::from_utf8_lossy(&seen[Path::new(name)].content).into_owned();
    assert_eq!((content("f"), content("kept"), content("t")), ("second".into(), "first".into(), "own".into()));
    assert_eq!((content("gone"), content("late")), ("back".into(), "hidden".into()));
    assert_eq!(fs::read_link(layers[0].join("s")).unwrap(), Path::new("/etc/passwd"));
}

/// A layout whose files are links and special files. `replace` is given the folder of its blobs and the name of its layer's.
async fn changed_layout(replace: impl FnOnce(&Path, &Path)) -> Result<Vec<PathBuf>> {
    let folder = tempfile::tempdir().unwrap();
    let layer = Tar::default().file("x", b"x").end();
    let blob = folder.path().join("layout/blobs/sha256").join(Digest::of(&layer).hex());
    let reference = Raw::plain([layer]).layout(&folder.path().join("layout"));
    replace(folder.path(), &blob);
    let image = pull(&store(&folder.path().join("store")), &reference).await?;
    Ok(image.layers())
}

#[tokio::test]
async fn blobs_of_a_layout_are_regular_files_in_it() {
    let other_name = |blob: &Path| blob.with_file_name("elsewhere");
    changed_layout(|_, blob| {
        fs::rename(blob, other_name(blob)).unwrap();
        symlink("elsewhere", blob).unwrap();
    })
    .await
    .unwrap();
    changed_layout(|_, blob| {
        fs::hard_link(blob, other_name(blob)).unwrap();
    })
    .await
    .unwrap();
    let refusal = |error: Result<Vec<PathBuf>>| error.unwrap_err().to_string();
    let absolute = changed_layout(|folder, blob| {
        fs::rename(blob, folder.join("outside")).unwrap();
        symlink(folder.join("outside"), blob).unwrap();
    });
    assert!(refusal(absolute.await).contains("leads out"));
    let up = changed_layout(|folder, blob| {
        fs::rename(blob, folder.join("outside")).unwrap();
        symlink("../../../outside", blob).unwrap();
    });
    assert!(refusal(up.await).contains("leads out"));
    let fifo = changed_layout(|_, blob| {
        fs::remove_file(blob).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, blob, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
    });
    assert!(refusal(fifo.await).contains("a FIFO"));
    let to_fifo = changed_layout(|_, blob| {
        fs::remove_file(blob).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, other_name(blob), rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
        symlink("elsewhere", blob).unwrap();
    });
    assert!(refusal(to_fifo.await).contains("a FIFO"));
    let magic = changed_layout(|_, blob| {
        fs::remove_file(blob).unwrap();
        symlink("/proc/self/fd/0", blob).unwrap();
    });
    assert!(refusal(magic.await).contains("leads out"));
    let folder = changed_layout(|_, blob| {
        fs::remove_file(blob).unwrap();
        fs::create_dir(blob).unwrap();
    });
    assert!(refusal(folder.await).contains("a folder"));
    // Terabytes of zeros, of which no more is read than the manifest announces.
    let sparse =
        changed_layout(|_, blob| fs::File::options().write(true).open(blob).unwrap().set_len(4 << 40).unwrap());
    assert!(refusal(sparse.await).contains("more than"));
    let index = changed_layout(|folder, _| {
        let index = fs::File::options().write(true).open(folder.join("layout/index.json"));
        index.unwrap().set_len(4 << 40).unwrap();
    });
    assert!(refusal(index.await).contains("longer than"));
    let blobs = changed_layout(|folder, _| {
        fs::rename(folder.join("layout/blobs"), folder.join("blobs")).unwrap();
        symlink("../blobs", folder.join("layout/blobs")).unwrap();
    });
    assert!(refusal(blobs.await).contains("leads out"));
}

#[tokio::test]
async fn a_layer_has_to_be_what_the_configuration_says() {
    let layer = Tar::default().file("x", b"x").end();
    let error = pull_limited(layer, Digest::of(b"another"), Limits::default()).await.to_string();
    assert!(
        error.contains("unpacked it has the digest") && error.contains(&Digest::of(b"another").to_string()),
        "{error}"
    );
    let broken = gzip(&Tar::default().file("x", &[1; 5000]).end());
    let error =
        pull_limited(broken[..broken.len() - 20].to_vec(), Digest::of(b""), Limits::default()).await.to_string();
    assert!(error.contains("it cannot be unpacked"), "{error}");
}

#[tokio::test]
async fn zstd_in_several_frames_is_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let layer = Tar::default().file("x", &b"0123456789".repeat(50_000)).end();
    let (first, second) = layer.split_at(100_000);
    // A skippable frame stands between those with the content.
    let skipped = [&[0x51, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"???"].concat();
    let frame = |bytes: &[u8]| ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    let blob = [frame(first), skipped, frame(second)].concat();
    let reference = Raw { layers: vec![(blob, Digest::of(&layer))] }.layout(&folder.path().join("layout"));
    let image = pull(&store(&folder.path().join("store")), &reference).await.unwrap();
    assert_eq!(fs::read(image.layers()[0].join("x")).unwrap(), b"0123456789".repeat(50_000));
}
