//! A deliberately slow registry delays only the pulls of one namespace, and images take only
//! the disk quota of the namespace that pulls them.

use crate::support::layer::{Raw, Tar};
use crate::support::registry::{Body, Fake, insecure, whole};
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Response, body::Incoming};
use leno_files::FileAccess;
use leno_namespaces::{Bounds, Namespace, Namespaces, Resource};
use leno_oci::{Digest, Error, Image, Limits, Progress, Registries, Store};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tar_core::EntryType;

const LONG: Duration = Duration::from_secs(600);

/// An image of one layer, with the documents that a registry serves.
struct Shelf {
    manifest: Digest,
    layer: String,
    blobs: HashMap<String, Vec<u8>>,
}

fn shelf(name: &str) -> Shelf {
    let raw = Raw::plain(vec![Tar::default().file(name, &[7; 5000]).end()]);
    let blobs = raw.blobs();
    Shelf {
        manifest: blobs.last().unwrap().0,
        layer: Digest::of(&raw.layers[0].0).to_string(),
        blobs: blobs.into_iter().map(|(digest, blob)| (digest.to_string(), blob)).collect(),
    }
}

/// A body of a byte each 20 ms, without end.
fn drips(length: usize) -> Response<Body> {
    let pieces = futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"x"))), ()))
    });
    Response::builder().header("content-length", length).body(BodyExt::boxed(StreamBody::new(pieces))).unwrap()
}

/// A registry with these images. Answers selected by `slow` drip.
async fn registry(shelves: Vec<Shelf>, slow: impl Fn(&Shelf, &str) -> bool + Send + Sync + 'static) -> Fake {
    let answer = move |request: Request<Incoming>| {
        let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let shelf = shelves.iter().find(|shelf| shelf.blobs.contains_key(&name)).unwrap();
        let blob = &shelf.blobs[&name];
        if slow(shelf, &name) { drips(blob.len()) } else { Response::new(whole(blob.clone())) }
    };
    Fake::start(answer).await
}

fn store(folder: &Path, registries: Registries) -> Store {
    Store::open(&folder.join("store"), Default::default(), registries).unwrap()
}

#[tokio::test]
async fn a_slow_registry_of_one_namespace_keeps_no_other_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (images, good) = ((0..8).map(|number| shelf(&format!("slow-{number}"))), shelf("good"));
    let slow: Vec<Shelf> = images.collect();
    let (digests, manifest): (Vec<Digest>, _) = (slow.iter().map(|shelf| shelf.manifest).collect(), good.manifest);
    let slow = registry(slow, |shelf, name| *name == *shelf.layer).await;
    let good = registry(vec![good], |_, _| false).await;
    let patient = Registries { slow_timeout: LONG, idle_timeout: LONG, ..insecure(&[&slow.host, &good.host]) };
    let (store, namespaces) = (store(folder.path(), patient), Namespaces::default());
    let (hostile, shop) = (namespaces.of("hostile"), namespaces.of("shop"));
    let begun: Vec<_> = digests
        .into_iter()
        .map(|digest| {
            let reference = store.reference(&format!("{}/x@{digest}", slow.host)).unwrap();
            let (store, hostile, progress) = (store.clone(), hostile.clone(), Progress::default());
            let seen = progress.clone();
            (seen, tokio::spawn(async move { store.pull_for(Some(&hostile), &reference, &progress).await.map(drop) }))
        })
        .collect();
    // Some of its layers are in progress, and no more can be.
    let under_way = || begun.iter().filter(|(progress, _)| progress.snapshot().bytes > 0).count();
    while under_way() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (seen, budget) = (Progress::default(), Duration::from_secs(60));
    let reference = store.reference(&format!("{}/x@{manifest}", good.host)).unwrap();
    let pulled = tokio::time::timeout(budget, store.pull_for(Some(&shop), &reference, &seen));
    pulled.await.expect("another namespace's registry is slow").unwrap();
    let reference = store.reference(&format!("{}/y@{manifest}", good.host)).unwrap();
    let own = tokio::time::timeout(budget, store.pull_for(Some(&hostile), &reference, &seen));
    own.await.expect("its other registry is slow").unwrap();
    assert!(begun.iter().all(|(_, task)| !task.is_finished()));
    begun.into_iter().for_each(|(_, task)| task.abort());
}

#[tokio::test]
async fn a_download_that_hardly_comes_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let image = shelf("slow");
    let digest = image.manifest;
    let slow = registry(vec![image], |shelf, name| *name == *shelf.layer).await;
    let quick = Registries { slow_timeout: Duration::from_millis(300), ..insecure(&[&slow.host]) };
    let store = store(folder.path(), quick);
    let reference = store.reference(&format!("{}/x@{digest}", slow.host)).unwrap();
    let error = store.pull(&reference, &Progress::default()).await.unwrap_err();
    assert!(error.to_string().contains("less than 4096 bytes a second came"), "{error}");
    assert_eq!(store.used_bytes(), 0);
}

#[tokio::test]
async fn a_manifest_or_a_tag_that_hardly_comes_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let image = shelf("slow");
    let digest = image.manifest;
    let slow = registry(vec![image], |shelf, name| *name == shelf.manifest.to_string()).await;
    let quick = Registries { answer_timeout: Duration::from_millis(300), ..insecure(&[&slow.host]) };
    let store = store(folder.path(), quick);
    let reference = store.reference(&format!("{}/x@{digest}", slow.host)).unwrap();
    let error = store.pull(&reference, &Progress::default()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("no whole answer within"), "{error}");
}

const MIB: u64 = 1 << 20;

/// Bytes that neither compression nor a file system makes fewer.
fn noise(seed: u8, length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
}

/// A layer with a file of so many MiB.
fn layer(seed: u8, mib: usize) -> Vec<u8> {
    Tar::default().file(&seed.to_string(), &noise(seed, mib << 20)).end()
}

/// Writes an image of these layers into a new layout, and returns its reference.
fn layout(folder: &Path, name: &str, layers: Vec<Vec<u8>>) -> String {
    Raw::plain(layers).layout(&folder.join(name))
}

fn open(folder: &Path, mib: u64, namespaces: &Namespaces) -> Store {
    let limits = Limits { store_bytes: mib * MIB, ..Limits::default() };
    Store::open_for(&folder.join("store"), limits, crate::support::registries(), namespaces).unwrap()
}

fn bounded(namespaces: &Namespaces, name: &str, mib: u64, files: u64) -> Arc<Namespace> {
    namespaces.set(name, Bounds { image_bytes: Some(mib * MIB), image_files: Some(files), ..Bounds::default() })
}

async fn pull_for(store: &Store, namespace: &Arc<Namespace>, reference: &str) -> leno_oci::Result<Image> {
    let reference = store.reference(reference)?.named_by(namespace.name(), &FileAccess::Any);
    let digest = store.resolve(&reference).await?;
    store.pull_for(Some(namespace), &reference.with_digest(digest), &Progress::default()).await
}

fn used(namespace: &Namespace) -> (u64, u64) {
    let of = |resource| namespace.count(resource).used();
    (of(Resource::ImageBytes), of(Resource::ImageFiles))
}

/// Waits until a refused pull has removed its files.
async fn nothing_on_its_way(folder: &Path, namespace: &Namespace, expected: (u64, u64)) {
    while used(namespace) != expected || fs::read_dir(folder.join("store/tmp")).unwrap().count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_namespace_has_so_many_bytes_of_images_and_lets_its_own_go_first() {
    let (folder, namespaces) = (tempfile::tempdir().unwrap(), Namespaces::default());
    let folder = folder.path();
    let (hostile, shop) = (bounded(&namespaces, "hostile", 4, 1000), bounded(&namespaces, "shop", 4, 1000));
    let store = open(folder, 64, &namespaces);
    let kept = pull_for(&store, &shop, &layout(folder, "shop", vec![layer(9, 1)])).await.unwrap().digest();
    let before = used(&shop);
    let first = pull_for(&store, &hostile, &layout(folder, "a", vec![layer(1, 2)])).await.unwrap();
    let in_use = used(&hostile);
    let error = pull_for(&store, &hostile, &layout(folder, "b", vec![layer(2, 3)])).await.unwrap_err();
    let expected = "namespace hostile has all that its bound `imageBytes` allows on this node: 4194304";
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(hostile.count(Resource::ImageBytes).refused(), 1);
    nothing_on_its_way(folder, &hostile, in_use).await;
    // The same image, not in use any more, is removed to make space.
    let digest = first.digest();
    drop(first);
    pull_for(&store, &hostile, &layout(folder, "b", vec![layer(2, 3)])).await.unwrap();
    assert!(store.image(digest).is_none() && store.image(kept).is_some());
    assert_eq!(used(&shop), before);
}

#[tokio::test]
async fn a_namespace_has_so_many_files_of_images_also_those_that_an_archive_only_implies() {
    let (folder, namespaces) = (tempfile::tempdir().unwrap(), Namespaces::default());
    let folder = folder.path();
    let hostile = bounded(&namespaces, "hostile", 1000, 200);
    let store = open(folder, 4000, &namespaces);
    let files = (0..300).fold(Tar::default(), |tar, i| tar.file(&i.to_string(), b"")).end();
    let links = (0..300).fold(Tar::default(), |tar, i| tar.symlink(&i.to_string(), "x")).end();
    let whiteouts = (0..300).fold(Tar::default(), |tar, i| tar.file(&format!(".wh.{i}"), b"")).end();
    // Three entries, and over 350 folders.
    let deep = |top: u8| format!("{top}{}", "/d".repeat(120));
    let implied = (0..3).fold(Tar::default(), |tar, top| tar.file(&deep(top), b"")).end();
    for (name, layer) in [("files", files), ("links", links), ("whiteouts", whiteouts), ("implied", implied)] {
        let error = pull_for(&store, &hostile, &layout(folder, name, vec![layer])).await.unwrap_err();
        assert!(error.to_string().contains("its bound `imageFiles` allows on this node: 200"), "{name}: {error}");
        nothing_on_its_way(folder, &hostile, (0, 0)).await;
    }
    // Images take files besides those of their layers: many small ones are bounded too.
    let mut held = Vec::new();
    let error = loop {
        let small = Tar::default().file("x", &[held.len() as u8]).end();
        match pull_for(&store, &hostile, &layout(folder, &held.len().to_string(), vec![small])).await {
            Ok(image) => held.push(image),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("imageFiles") && held.len() < 50, "{} {error}", held.len());
}

#[tokio::test]
async fn attributes_and_long_links_take_bytes() {
    let (folder, namespaces) = (tempfile::tempdir().unwrap(), Namespaces::default());
    let folder = folder.path();
    let hostile = bounded(&namespaces, "hostile", 1, 100_000);
    let store = open(folder, 64, &namespaces);
    let attribute = vec![b'x'; 2000];
    let attributed = (0..300).fold(Tar::default(), |tar, i| {
        let name = i.to_string();
        tar.entry(EntryType::Regular, &name, b"", |header| header.add_pax("SCHILY.xattr.user.x", &attribute[..]))
    });
    let target = "t".repeat(90);
    let links = (0..300).fold(Tar::default(), |tar, i| tar.symlink(&i.to_string(), &target));
    for (name, layer) in [("attributes", attributed.end()), ("links", links.end())] {
        let error = pull_for(&store, &hostile, &layout(folder, name, vec![layer])).await.unwrap_err();
        assert!(error.to_string().contains("imageBytes"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_shared_layer_counts_for_each_namespace_and_stays_for_the_other_one() {
    let (folder, namespaces) = (tempfile::tempdir().unwrap(), Namespaces::default());
    let folder = folder.path();
    let (a, b) = (bounded(&namespaces, "a", 8, 1000), bounded(&namespaces, "b", 3, 1000));
    let store = open(folder, 64, &namespaces);
    let base = layer(1, 2);
    let of_a = layout(folder, "a", vec![base.clone()]);
    let digest = pull_for(&store, &a, &of_a).await.unwrap().digest();
    pull_for(&store, &a, &layout(folder, "a2", vec![base.clone(), layer(2, 1)])).await.unwrap();
    assert!((3 * MIB..4 * MIB).contains(&used(&a).0), "once for the namespace: {:?}", used(&a));
    let lease = pull_for(&store, &b, &of_a).await.unwrap();
    assert!((2 * MIB..3 * MIB).contains(&used(&b).0), "in full: {:?}", used(&b));
    let in_store = store.used_bytes();
    assert!(in_store < 4 * MIB, "once in the store: {in_store}");
    // A layer that is in the store already counts as well.
    let two = layout(folder, "b2", vec![base, layer(2, 1)]);
    let error = pull_for(&store, &b, &two).await.unwrap_err();
    assert!(error.to_string().contains("namespace b has all that its bound `imageBytes`"), "{error}");
    drop(lease);
    let other = pull_for(&store, &b, &layout(folder, "b3", vec![layer(3, 2)])).await.unwrap();
    assert!(store.image(digest).is_some(), "the other namespace still has it");
    drop((store, other));
    // A new process counts the same.
    let (before, again) = ((used(&a), used(&b)), Namespaces::default());
    let _store = open(folder, 64, &again);
    assert_eq!((used(&again.of("a")), used(&again.of("b"))), before);
}

#[tokio::test]
async fn no_namespace_pushes_out_images_of_one_that_has_less() {
    let (folder, namespaces) = (tempfile::tempdir().unwrap(), Namespaces::default());
    let folder = folder.path();
    let (hostile, shop) = (bounded(&namespaces, "hostile", 100, 1000), bounded(&namespaces, "shop", 100, 1000));
    let store = open(folder, 10, &namespaces);
    let kept = pull_for(&store, &shop, &layout(folder, "shop", vec![layer(9, 2)])).await.unwrap().digest();
    for seed in 1..8 {
        pull_for(&store, &hostile, &layout(folder, &seed.to_string(), vec![layer(seed, 2)])).await.unwrap();
    }
    let error = pull_for(&store, &hostile, &layout(folder, "large", vec![layer(20, 9)])).await.unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    while store.used_bytes() > 3 * MIB {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = used(&shop);
    for seed in 1..4 {
        pull_for(&store, &hostile, &layout(folder, &seed.to_string(), vec![layer(seed, 2)])).await.unwrap();
    }
    assert!(store.used_bytes() > 8 * MIB);
    // A namespace that has less gets its share back.
    let in_use = store.image(kept).unwrap();
    pull_for(&store, &shop, &layout(folder, "shop2", vec![layer(10, 2)])).await.unwrap();
    assert!(used(&hostile).0 < 5 * MIB && used(&shop).0 > before.0 + 2 * MIB);
    drop(in_use);
}
