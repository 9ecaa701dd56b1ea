//! Registries that are slow on purpose hold up the pulls of their own namespaces only.

mod support;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Response, body::Incoming};
use leno_image::{Digest, Error, Progress, Registries, Store};
use leno_namespaces::Namespaces;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use support::layer::{Raw, Tar};
use support::registry::{Body, Fake, insecure, whole};

const LONG: Duration = Duration::from_secs(600);

/// An image of one layer, and what a registry has of it.
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

/// A registry with these images. Answers that `slow` says yes to drip.
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
    // Some of its layers are on their way, and no more can be.
    let under_way = || begun.iter().filter(|(progress, _)| progress.snapshot().bytes > 0).count();
    while under_way() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (seen, patience) = (Progress::default(), Duration::from_secs(60));
    let reference = store.reference(&format!("{}/x@{manifest}", good.host)).unwrap();
    let pulled = tokio::time::timeout(patience, store.pull_for(Some(&shop), &reference, &seen));
    pulled.await.expect("another namespace's registry is slow").unwrap();
    let reference = store.reference(&format!("{}/y@{manifest}", good.host)).unwrap();
    let own = tokio::time::timeout(patience, store.pull_for(Some(&hostile), &reference, &seen));
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
