//! Layers as other tools build them: entries that they leave to the layers below, and entries that
//! they add.

use super::{mount, unpack};
use crate::support::layer::{Raw, Tar};
use crate::support::layout::Blobs;
use crate::support::{pull, store, tree, xattrs};
use leno_oci::{Digest, Omissions};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tar_core::EntryType;

fn attribute(tar: Tar, path: &str, key: &str, value: &[u8]) -> Tar {
    let kind = if path.ends_with('/') { EntryType::Directory } else { EntryType::Regular };
    tar.entry(kind, path, b"", |header| header.mode(0o755).unwrap().add_pax(&format!("SCHILY.xattr.{key}"), value))
}

/// The image of these layers as a container sees it: paths, with targets and contents.
async fn seen(layers: impl IntoIterator<Item = Vec<u8>>) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let layers = unpack(folder.path(), layers).await.unwrap();
    let merged = mount(folder.path(), &layers);
    let shown = |(path, seen): (std::path::PathBuf, crate::support::FileProperties)| {
        (path.display().to_string(), String::from_utf8(seen.content).unwrap())
    };
    tree(&merged.0).into_iter().map(shown).collect()
}

#[tokio::test]
async fn the_bytes_of_a_layer_say_what_they_are() {
    let layer = Tar::default().file("x", b"content").end();
    let zstd = ruzstd::encoding::compress_to_vec(&layer[..], ruzstd::encoding::CompressionLevel::Fastest);
    let gzip = super::gzip(&layer);
    for (media_type, bytes) in [
        // BuildKit with compression=zstd and oci-mediatypes=false.
        ("application/vnd.docker.image.rootfs.diff.tar.zstd", &zstd),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", &zstd),
        ("application/vnd.docker.image.rootfs.diff.tar.zstd", &gzip),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", &gzip),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", &layer),
        ("application/octet-stream", &zstd),
        ("", &gzip),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::default();
        let config = json!({
            "os": "linux", "architecture": "amd64", "config": { "Volumes": { "/data": null }, "Labels": null },
            "rootfs": { "type": "layers", "diff_ids": [Digest::of(&layer).to_string()] },
        });
        let config = blobs.json("application/vnd.docker.container.image.v1+json", &config);
        let layer = blobs.put(media_type, bytes.clone());
        let docker = "application/vnd.docker.distribution.manifest.v2+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": docker, "config": config, "layers": [layer] });
        let manifest = blobs.json(docker, &manifest);
        let reference = blobs.write(&folder.path().join("layout"), &[manifest]);
        let image = pull(&store(&folder.path().join("store")), &reference).await.unwrap();
        assert_eq!(fs::read(image.layers()[0].join("x")).unwrap(), b"content", "{media_type}");
    }
}

#[tokio::test]
async fn bazel_and_crane_append_write_below_links_of_the_base() {
    // A Debian base with a merged /usr, and layers that have files and no folders.
    let base =
        Tar::default().folder("usr/lib/").folder("usr/bin/").symlink("lib", "usr/lib").symlink("bin", "/usr/bin");
    let base = base.symlink("sbin", "bin").symlink("up", "../../../usr").file("usr/lib/old.so", b"old").end();
    let append = Tar::default()
        .file("./lib/new.so", b"new")
        .file("/sbin/tool", b"tool")
        .file("up/share/doc/x", b"x")
        .symlink("lib/link.so", "new.so")
        .hard_link("bin/again", "sbin/tool")
        .end();
    let seen = seen([base, append]).await;
    for (path, content) in [
        ("lib", "usr/lib"),
        ("bin", "/usr/bin"),
        ("usr/lib/old.so", "old"),
        ("usr/lib/new.so", "new"),
        ("usr/lib/link.so", "new.so"),
        ("usr/bin/tool", "tool"),
        ("usr/bin/again", "tool"),
        ("usr/share/doc/x", "x"),
    ] {
        assert_eq!(seen.get(path).map(String::as_str), Some(content), "{path}: {seen:?}");
    }
}

#[tokio::test]
async fn links_lead_to_the_roots_of_the_image_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("outside")).unwrap();
    let outside = folder.path().join("outside");
    let base = Tar::default()
        .symlink("up", "../../../../../../outside")
        .symlink("absolute", outside.to_str().unwrap())
        .symlink("p", "/proc/self/root/etc")
        .symlink("dangling", "not/there")
        .symlink("d/here", ".")
        .symlink("chain", "up")
        .end();
    let above = Tar::default()
        .file("up/one", b"1")
        .file("absolute/two", b"2")
        .file("p/leno-was-here", b"3")
        .file("dangling/four", b"4")
        .file("d/here/here/five", b"5")
        .file("chain/six", b"6")
        .file("chain/.wh.seven", b"")
        .end();
    let layers = unpack(folder.path(), [base, above]).await.unwrap();
    let seen = tree(&layers[1]);
    let expected = ["outside/one", "proc/self/root/etc/leno-was-here", "not/there/four", "d/five", "outside/six"];
    for path in expected {
        assert!(seen.contains_key(Path::new(path)), "{path}: {:?}", seen.keys());
    }
    let inside = outside.strip_prefix("/").unwrap().join("two");
    assert_eq!(seen[&inside].content, b"2");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(!Path::new("/etc/leno-was-here").exists());
    assert_eq!(tree(&layers[0]).len(), 8, "the layer below is as it was");
}

#[tokio::test]
async fn kaniko_links_to_files_of_layers_below() {
    let folder = tempfile::tempdir().unwrap();
    let capability = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let base = Tar::default()
        .entry(EntryType::Directory, "etc/", b"", |header| header.mode(0o750).unwrap().uid(3).unwrap())
        .entry(EntryType::Regular, "etc/conf", b"conf", |header| {
            header.mode(0o4751).unwrap().uid(7).unwrap().gid(8).unwrap().mtime(9).unwrap();
            header.add_pax("SCHILY.xattr.security.capability", capability).add_pax("SCHILY.xattr.user.a", b"b")
        })
        .symlink("etc/link", "conf")
        .symlink("lib", "usr/lib")
        .file("usr/lib/a.so", b"a")
        .file("etc/replaced", b"old")
        .entry(EntryType::Fifo, "etc/pipe", b"", |header| header.mode(0o622).unwrap())
        .end();
    let above = Tar::default()
        .hard_link("etc/alias", "etc/conf")
        .hard_link("/usr/conf", "./etc/alias")
        .hard_link("etc/other-link", "etc/link")
        .hard_link("b.so", "lib/a.so")
        .file("etc/replaced", b"new")
        .hard_link("etc/of-new", "etc/replaced")
        .hard_link("etc/pipe-too", "etc/pipe")
        .end();
    let top = Tar::default().hard_link("third", "etc/alias").end();
    let before = Raw::plain([base.clone()]).layout(&folder.path().join("alone"));
    let before = pull(&store(&folder.path().join("other")), &before).await.unwrap();
    let layers = unpack(folder.path(), [base, above, top]).await.unwrap();
    let (base, above, top) = (tree(&layers[0]), tree(&layers[1]), tree(&layers[2]));
    assert_eq!(base, tree(&before.layers()[0]), "the layer below is as it was");
    let (below, conf) = (&base[Path::new("etc/conf")], &above[Path::new("etc/conf")]);
    assert_eq!(
        (conf.mode, conf.owner, conf.mtime, &conf.xattrs),
        (below.mode, below.owner, below.mtime, &below.xattrs)
    );
    assert_eq!(conf.xattrs.len(), 2);
    for (path, same_as, content) in [
        ("etc/alias", "etc/alias", "conf"),
        ("etc/conf", "etc/alias", "conf"),
        ("usr/conf", "etc/alias", "conf"),
        ("etc/other-link", "etc/link", "conf"),
        ("usr/lib/a.so", "b.so", "a"),
        ("etc/of-new", "etc/of-new", "new"),
        ("etc/pipe-too", "etc/pipe", ""),
    ] {
        let seen = &above[Path::new(path)];
        assert_eq!((seen.same_as.to_str().unwrap(), &*seen.content), (same_as, content.as_bytes()), "{path}");
    }
    assert_eq!(above[Path::new("etc/other-link")].mode & 0o170000, 0o120000);
    assert_eq!((above[Path::new("etc")].mode & 0o7777, above[Path::new("etc")].owner), (0o750, (3, 0)));
    assert_eq!(top[Path::new("third")].content, b"conf");
    assert_eq!(top[Path::new("third")].same_as, Path::new("etc/alias"));
}

#[tokio::test]
async fn a_hard_link_needs_what_is_still_there() {
    let base = || Tar::default().file("d/a", b"a").folder("folder/").end();
    for (above, expected) in [
        (Tar::default().file("d/.wh.a", b"").hard_link("b", "d/a").end(), "neither this layer nor those below it have"),
        (Tar::default().file("d/.wh..wh..opq", b"").hard_link("b", "d/a").end(), "neither this layer"),
        (
            Tar::default().file(".wh.d", b"").hard_link("b", "d/a").end(),
            "it leads through `d`, which the image does not have",
        ),
        (Tar::default().folder("d/a/").hard_link("b", "d/a").end(), "which is no file"),
        (Tar::default().hard_link("b", "folder").end(), "which is no file"),
        (Tar::default().hard_link("d/a", "d/a").end(), "hard link to itself"),
        (Tar::default().hard_link("b", "d/a/x").end(), "it is below `d/a`, which is no folder"),
        (Tar::default().file("d/a/x", b"").end(), "it is below `d/a`, which is no folder"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = unpack(folder.path(), [base(), above]).await.expect_err(expected).to_string();
        assert!(error.contains(expected), "expected {expected}\n{error}");
    }
}

#[tokio::test]
async fn later_entries_of_a_layer_replace_earlier_ones() {
    let base = Tar::default().file("a/old", b"").file("b/old", b"").symlink("c", "b").file("e/old", b"").end();
    let above = Tar::default()
        // A file replaces a folder with entries, and a folder replaces that file. The new folder
        // has no entries of the layer below.
        .file("a/new/x", b"")
        .file("a", b"file")
        .file("a/", b"")
        .file("a/newest", b"")
        // First through the link, then in place of the link.
        .file("c/through", b"")
        .folder("c/")
        .file("c/own", b"")
        .symlink("e", "b")
        .file("e/of-b", b"")
        .end();
    let seen = seen([base, above]).await;
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(names, ["", "a", "a/newest", "b", "b/of-b", "b/old", "b/through", "c", "c/own", "e"]);
}

#[tokio::test]
async fn devices_are_left_out_and_fifos_made() {
    let folder = tempfile::tempdir().unwrap();
    let device = |tar: Tar, kind, path: &str, number: (u32, u32)| {
        tar.entry(kind, path, b"", |header| header.device(number.0, number.1).unwrap())
    };
    let base = Tar::default().file("dev/null", b"a file").file("dev/gone/x", b"").file("kept", b"").end();
    let above = device(Tar::default(), EntryType::Char, "dev/null", (1, 3));
    let above = device(above, EntryType::Block, "dev/sda", (8, 0));
    // The archive of an overlayfs upper folder, with its marks as they are.
    let above = device(above, EntryType::Char, "dev/gone", (0, 0));
    let above =
        above.file("was-a-file", b"").entry(EntryType::Char, "was-a-file", b"", |header| header.device(5, 1).unwrap());
    let above = above.hard_link("dev/another", "dev/null").hard_link("dev/third", "dev/another");
    let above = above
        .entry(EntryType::Fifo, "run/ctl", b"", |header| header.mode(0o620).unwrap().uid(5).unwrap().mtime(6).unwrap())
        .end();
    let reference = Raw::plain([base, above]).layout(&folder.path().join("layout"));
    let opened = store(&folder.path().join("store"));
    let image = pull(&opened, &reference).await.unwrap();
    let expected = Omissions {
        devices: 6,
        attributes: 0,
        examples: ["dev/null", "dev/sda", "dev/gone", "was-a-file", "dev/another"].map(str::to_owned).to_vec(),
    };
    assert_eq!(image.omissions(), expected);
    assert!(image.omissions().to_string().starts_with("6 device nodes and 0 extended attributes (dev/null, dev/sda"));
    let fifo = fs::symlink_metadata(image.layers()[1].join("run/ctl")).unwrap();
    assert!(fifo.file_type().is_fifo());
    assert_eq!((fifo.mode() & 0o7777, fifo.uid(), fifo.mtime()), (0o620, 5, 6));
    let merged = mount(folder.path(), &image.layers());
    let names: Vec<String> = tree(&merged.0).keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", "dev", "kept", "run", "run/ctl"]);
    drop(merged);
    let digest = image.digest();
    drop((image, opened));
    let again = store(&folder.path().join("store")).image(digest).unwrap();
    assert_eq!(again.omissions(), expected, "a store that is opened again still knows");
}

#[tokio::test]
async fn attributes_of_the_builders_machine_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let capability = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let foreign: [&str; 18] = [
        "user.overlay.impure",
        "user.overlay.opaque",
        "trusted.overlay.opaque",
        "trusted.overlay.redirect",
        "trusted.other",
        "com.apple.provenance",
        "com.apple.quarantine",
        "btrfs.compression",
        "security.SMACK64",
        "security.selinux",
        "security.ima",
        "security.evm",
        "security.apparmor",
        "system.nfs4_acl",
        "system.richacl",
        "ceph.dir.layout",
        "user.",
        "no-namespace",
    ];
    let tar = attribute(Tar::default(), "etc/", "user.kept", b"1");
    let tar = foreign.iter().fold(tar, |tar, key| attribute(attribute(tar, "d/", key, b"y"), "f", key, b"\x01\x02"));
    let tar = attribute(tar, "tool", "security.capability", capability);
    let tar = attribute(tar, "large", "user.large", &[7; 60_000]);
    let link = |header: &mut tar_core::builder::EntryBuilder| {
        header.link_name("tool");
        header.add_pax("SCHILY.xattr.user.note", b"links have no such attributes");
    };
    let tar = tar.entry(EntryType::Symlink, "link", b"", |header| {
        link(header);
        header
    });
    let reference = Raw::plain([tar.file("after", b"after").end()]).layout(&folder.path().join("layout"));
    let image = pull(&store(&folder.path().join("store")), &reference).await.unwrap();
    let root = image.layers()[0].clone();
    let keys = |path: &str| xattrs(&root.join(path)).into_keys().collect::<Vec<_>>();
    assert_eq!((keys("etc"), keys("tool")), (vec!["user.kept".to_owned()], vec!["security.capability".to_owned()]));
    assert!(keys("d").is_empty() && keys("f").is_empty() && keys("link").is_empty());
    assert_eq!(fs::read(root.join("after")).unwrap(), b"after");
    let omitted = image.omissions();
    // Whether large attributes can be set depends on the file system.
    let large = u64::from(keys("large").is_empty());
    assert_eq!((omitted.devices, omitted.attributes), (0, 2 * foreign.len() as u64 + 1 + large));
    assert_eq!(omitted.examples.len(), 5);
}
