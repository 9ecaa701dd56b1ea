//! Registries that lie, stall and break off.

mod answers;

use crate::support::layer::{Raw, Tar};
use crate::support::registry::{Body, Fake, broken, insecure, whole};
use crate::support::{self, pull, tree};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, HOST, LOCATION, RANGE, WWW_AUTHENTICATE};
use hyper::{Request, Response, body::Incoming};
use leno_oci::{Credentials, Digest, Error, Image, Progress, Registries, Registry, Result, Store};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The documents of an image that a registry serves, by the last part of the path.
#[derive(Clone)]
struct Shelf {
    blobs: Arc<HashMap<String, Vec<u8>>>,
    manifest: Digest,
    layers: Vec<Digest>,
}

fn shelf(layers: Vec<Vec<u8>>) -> Shelf {
    let raw = Raw::plain(layers);
    let blobs = raw.blobs();
    Shelf {
        manifest: blobs.last().unwrap().0,
        layers: raw.layers.iter().map(|(layer, _)| Digest::of(layer)).collect(),
        blobs: Arc::new(blobs.into_iter().map(|(digest, blob)| (digest.to_string(), blob)).collect()),
    }
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn one_layer(length: usize) -> Shelf {
    shelf(vec![Tar::default().file("x", &noise(length)).end()])
}

impl Shelf {
    /// Answers as a registry should; all tags name the same manifest.
    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let name = last(request);
        let name = if self.blobs.contains_key(&name) { name } else { self.manifest.to_string() };
        let blob = &self.blobs[&name];
        match range(request) {
            Some(from) => Response::builder()
                .status(206)
                .header(CONTENT_RANGE, format!("bytes {from}-{}/{}", blob.len() - 1, blob.len()))
                .body(whole(blob[from..].to_vec()))
                .unwrap(),
            None => Response::new(whole(blob.clone())),
        }
    }

    fn is_layer(&self, request: &Request<Incoming>) -> bool {
        self.layers.iter().any(|layer| layer.to_string() == last(request))
    }
}

fn last(request: &Request<Incoming>) -> String {
    request.uri().path().rsplit('/').next().unwrap().to_owned()
}

fn range(request: &Request<Incoming>) -> Option<usize> {
    let range = request.headers().get(RANGE)?.to_str().unwrap();
    Some(range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap())
}

async fn pull_from(folder: &Path, host: &str, digest: Digest, registries: Registries) -> Result<Image> {
    let store = Store::open(&folder.join("store"), Default::default(), registries).unwrap();
    let reference = store.reference(&format!("{host}/x@{digest}")).unwrap();
    let result = store.pull(&reference, &Progress::default()).await;
    if result.is_err() {
        assert_eq!(store.used_bytes(), 0);
        for left in ["layers", "images", "tmp"] {
            assert_eq!(fs::read_dir(folder.join("store").join(left)).unwrap().count(), 0, "{left} is not empty");
        }
    }
    result
}

/// The error of a pull from a registry that answers like this.
async fn refused(
    shelf: &Shelf,
    answer: impl Fn(&Shelf, Request<Incoming>) -> Response<Body> + Send + Sync + 'static,
) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let served = shelf.clone();
    let fake = Fake::start(move |request| answer(&served, request)).await;
    let quick = Registries { idle_timeout: Duration::from_millis(300), ..insecure(&[&fake.host]) };
    pull_from(folder.path(), &fake.host, shelf.manifest, quick).await.unwrap_err()
}

#[tokio::test]
async fn what_has_another_digest_is_refused() {
    let shelf = one_layer(1000);
    let manifest = shelf.manifest;
    let error = refused(&shelf, move |shelf, request| {
        if last(&request) == manifest.to_string() {
            Response::new(whole(r#"{"schemaVersion":2}"#))
        } else {
            shelf.answer(&request)
        }
    });
    let error = error.await.to_string();
    assert!(error.contains(&format!("what comes for {manifest} has the digest")), "{error}");

    let error = refused(&shelf, |shelf, request| {
        let mut blob = shelf.blobs[&last(&request)].clone();
        if shelf.is_layer(&request) {
            blob[700] ^= 1;
        }
        Response::new(whole(blob))
    });
    let error = error.await.to_string();
    assert!(error.contains(&format!("layer {}: its content has the digest", shelf.layers[0])), "{error}");

    let error = refused(&shelf, |shelf, request| {
        let blob = if shelf.is_layer(&request) || last(&request) == shelf.manifest.to_string() {
            shelf.blobs[&last(&request)].clone()
        } else {
            b"{}".to_vec()
        };
        Response::new(whole(blob))
    });
    let error = error.await.to_string();
    assert!(error.contains("has the digest"), "{error}");
}

#[tokio::test]
async fn lengths_have_to_be_those_of_the_manifest() {
    let shelf = one_layer(1000);
    for (change, expected) in
        [(-1i64, "the blob has 2559 bytes; its manifest says 2560"), (1, "the blob has 2561 bytes")]
    {
        let error = refused(&shelf, move |shelf, request| {
            let mut blob = shelf.blobs[&last(&request)].clone();
            if shelf.is_layer(&request) {
                blob.resize((blob.len() as i64 + change) as usize, 0);
            }
            Response::new(whole(blob))
        });
        let error = error.await.to_string();
        assert!(error.contains(expected), "{error}");
    }
    // The answer does not announce its length.
    let error = refused(&shelf, |shelf, request| {
        let mut blob = shelf.blobs[&last(&request)].clone();
        if !shelf.is_layer(&request) {
            return Response::new(whole(blob));
        }
        blob.extend([0; 100_000]);
        Response::new(broken(blob, false))
    });
    let error = error.await.to_string();
    assert!(error.contains("longer than the 2560 bytes"), "{error}");
    // The body ends early, again and again.
    let error = refused(&shelf, |shelf, request| {
        let blob = shelf.blobs[&last(&request)].clone();
        if !shelf.is_layer(&request) {
            return Response::new(whole(blob));
        }
        match range(&request) {
            None => Response::new(broken(blob[..1000].to_vec(), false)),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", blob.len() - 1, blob.len());
                Response::builder().status(206).header(CONTENT_RANGE, range).body(broken(Vec::new(), false)).unwrap()
            }
        }
    });
    let error = error.await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_download_that_breaks_off_goes_on() {
    for knows_ranges in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let shelf = one_layer(1 << 20);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (served, seen) = (shelf.clone(), requests.clone());
        let fake = Fake::start(move |request| {
            if !served.is_layer(&request) {
                return served.answer(&request);
            }
            let mut seen = seen.lock().unwrap();
            seen.push(range(&request));
            let blob = &served.blobs[&last(&request)];
            match (seen.len(), range(&request)) {
                (1, _) => Response::builder()
                    .header(CONTENT_LENGTH, blob.len())
                    .body(broken(blob[..300_000].to_vec(), false))
                    .unwrap(),
                (2, Some(from)) if knows_ranges => {
                    let range = format!("bytes {from}-{}/{}", blob.len() - 1, blob.len());
                    let part = blob[from..700_000].to_vec();
                    Response::builder().status(206).header(CONTENT_RANGE, range).body(broken(part, false)).unwrap()
                }
                _ if knows_ranges => served.answer(&request),
                _ => Response::new(whole(blob.clone())),
            }
        })
        .await;
        let image = pull_from(folder.path(), &fake.host, shelf.manifest, insecure(&[&fake.host])).await.unwrap();
        assert_eq!(fs::read(image.layers()[0].join("x")).unwrap(), noise(1 << 20));
        let expected = if knows_ranges { vec![None, Some(300_000), Some(700_000)] } else { vec![None, Some(300_000)] };
        assert_eq!(*requests.lock().unwrap(), expected);
    }
}

#[tokio::test]
async fn another_range_than_asked_for_is_refused() {
    let shelf = one_layer(1000);
    let error = refused(&shelf, |shelf, request| {
        let blob = shelf.blobs[&last(&request)].clone();
        match (shelf.is_layer(&request), range(&request)) {
            (true, None) => Response::builder()
                .header(CONTENT_LENGTH, blob.len())
                .body(broken(blob[..1000].to_vec(), false))
                .unwrap(),
            (true, Some(_)) => {
                Response::builder().status(206).header(CONTENT_RANGE, "bytes 5-9/10").body(whole("12345")).unwrap()
            }
            _ => Response::new(whole(blob)),
        }
    });
    let error = error.await.to_string();
    assert!(error.contains("asked for what follows byte 1000, it sends `Content-Range: bytes 5-9/10`"), "{error}");
}

#[tokio::test]
async fn a_registry_that_goes_silent_is_given_up() {
    let shelf = one_layer(1000);
    let error = refused(&shelf, |shelf, request| {
        let blob = shelf.blobs[&last(&request)].clone();
        if shelf.is_layer(&request) { Response::new(broken(Vec::new(), true)) } else { Response::new(whole(blob)) }
    });
    let error = error.await;
    assert!(matches!(&error, Error::Unreachable { reason, .. } if reason.contains("timed out")), "{error:?}");
}

#[tokio::test]
async fn redirects_are_counted_and_stay_encrypted() {
    let shelf = one_layer(1000);
    let error = refused(&shelf, |_, request| {
        let host = request.headers()[HOST].to_str().unwrap();
        Response::builder().status(307).header(LOCATION, format!("http://{host}/v2/x/blobs/a")).body(whole("")).unwrap()
    });
    let error = error.await.to_string();
    assert!(error.contains("more than 5 redirects"), "{error}");
    let error = refused(&shelf, |_, _| {
        Response::builder().status(307).header(LOCATION, "http://127.0.0.1:9/secret?key=1").body(whole("")).unwrap()
    });
    let error = error.await.to_string();
    assert!(error.contains("redirected to http://127.0.0.1:9/secret, which is no HTTPS"), "{error}");
}

#[tokio::test]
async fn what_is_too_long_is_not_read() {
    let shelf = one_layer(1000);
    for chunked in [false, true] {
        let error = refused(&shelf, move |_, _| {
            let long = vec![b' '; 5 << 20];
            Response::new(if chunked { broken(long, true) } else { whole(long) })
        });
        let error = error.await.to_string();
        assert!(error.contains("the answer is longer than 4194304 bytes"), "{error}");
    }
    let layers = (0..10_000).map(|i: u32| i.to_le_bytes().to_vec()).collect();
    let many = self::shelf(layers);
    let error = refused(&many, |shelf, request| shelf.answer(&request)).await.to_string();
    assert!(error.contains("it has 10000 layers; expected 1 to 128"), "{error}");
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = one_layer(1000);
    let leaked = Arc::new(AtomicUsize::new(0));
    let (served, counter) = (shelf.clone(), leaked.clone());
    let storage = Fake::start(move |request| {
        counter.fetch_add(usize::from(request.headers().contains_key(AUTHORIZATION)), Ordering::SeqCst);
        served.answer(&request)
    })
    .await;
    let (served, elsewhere) = (shelf.clone(), storage.host.clone());
    let registry = Fake::start(move |request| {
        // The user is `user`, the password `secret`.
        if request.headers().get(AUTHORIZATION).is_none_or(|value| value != "Basic dXNlcjpzZWNyZXQ=") {
            return Response::builder()
                .status(401)
                .header(WWW_AUTHENTICATE, "Basic realm=\"x\"")
                .body(whole(""))
                .unwrap();
        }
        if served.is_layer(&request) {
            let place = format!("http://{elsewhere}{}?signature=1", request.uri().path());
            return Response::builder().status(307).header(LOCATION, place).body(whole("")).unwrap();
        }
        served.answer(&request)
    })
    .await;
    let mut registries = insecure(&[&storage.host, &registry.host]);
    let credentials = Credentials::Basic { username: "user".to_owned(), password: "secret".to_owned() };
    registries.registries.get_mut(&registry.host).unwrap().credentials = Some(credentials);
    pull_from(folder.path(), &registry.host, shelf.manifest, registries).await.unwrap();
    assert_eq!(leaked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn tokens_come_from_the_server_that_the_registry_names() {
    let shelf = one_layer(1000);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (served, seen) = (shelf.clone(), asked.clone());
    let fake = Fake::start(move |request| {
        let host = request.headers()[HOST].to_str().unwrap().to_owned();
        let authorization = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        if request.uri().path() == "/token" {
            let method = request.method().to_string();
            seen.lock().unwrap().push((method, request.uri().query().unwrap_or_default().to_owned(), authorization));
            return Response::new(whole(r#"{"access_token":"T","expires_in":60}"#));
        }
        if authorization.as_deref() != Some("Bearer T") {
            let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"example\",scope=\"ignored\"");
            return Response::builder().status(401).header(WWW_AUTHENTICATE, challenge).body(whole("")).unwrap();
        }
        served.answer(&request)
    })
    .await;
    let query = "scope=repository%3Ax%3Apull&service=example".to_owned();
    let basic = Credentials::Basic { username: "user".to_owned(), password: "secret".to_owned() };
    for (credentials, expected) in [
        (None, vec![("GET".to_owned(), query.clone(), None)]),
        (Some(basic), vec![("GET".to_owned(), query, Some("Basic dXNlcjpzZWNyZXQ=".to_owned()))]),
        (Some(Credentials::Identity("I".to_owned())), vec![("POST".to_owned(), String::new(), None)]),
        (Some(Credentials::Token("T".to_owned())), vec![]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut registries = insecure(&[&fake.host]);
        registries.registries.get_mut(&fake.host).unwrap().credentials = credentials;
        pull_from(folder.path(), &fake.host, shelf.manifest, registries).await.unwrap();
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), expected, "one token serves all requests of a pull");
    }

    let elsewhere = |_: &Shelf, _: Request<Incoming>| {
        let challenge = "Bearer realm=\"http://127.0.0.1:9/token\"";
        Response::builder().status(401).header(WWW_AUTHENTICATE, challenge).body(whole("")).unwrap()
    };
    let error = refused(&shelf, elsewhere).await.to_string();
    assert!(error.contains("this token server is no HTTPS"), "{error}");
}

#[tokio::test]
async fn pulls_of_the_same_layers_share_one_download() {
    let folder = tempfile::tempdir().unwrap();
    let layers: Vec<Vec<u8>> = (0..3u8).map(|i| Tar::default().file("x", &[i; 100_000]).end()).collect();
    let shelf = shelf(layers);
    let requests = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let (served, seen) = (shelf.clone(), requests.clone());
    // The first layer does not end before all pulls have asked for their manifest.
    let fake = Fake::start(move |request| {
        if served.is_layer(&request) {
            *seen.lock().unwrap().entry(last(&request)).or_default() += 1;
        }
        served.answer(&request)
    })
    .await;
    let store = Store::open(&folder.path().join("store"), Default::default(), insecure(&[&fake.host])).unwrap();
    let reference = store.reference(&format!("{}/x@{}", fake.host, shelf.manifest)).unwrap();
    let pulls = (0..8).map(|_| {
        let (store, reference) = (store.clone(), reference.clone());
        tokio::spawn(async move { store.pull(&reference, &Progress::default()).await })
    });
    for pull in pulls.collect::<Vec<_>>() {
        assert_eq!(pull.await.unwrap().unwrap().layers().len(), 3);
    }
    let requests = requests.lock().unwrap();
    assert_eq!(requests.len(), 3);
    assert!(requests.values().all(|count| *count == 1), "{requests:?}");
}

#[tokio::test]
async fn a_pull_that_is_dropped_leaves_nothing_and_does_not_end_anothers() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = one_layer(1 << 20);
    let (to, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let served = shelf.clone();
    let blocked = Arc::new(AtomicUsize::new(1));
    let stalls = blocked.clone();
    let fake = Fake::start(move |request| {
        if served.is_layer(&request) {
            to.send(()).unwrap();
            if stalls.load(Ordering::SeqCst) == 1 {
                let blob = &served.blobs[&last(&request)];
                return Response::builder()
                    .header(CONTENT_LENGTH, blob.len())
                    .body(broken(blob[..500_000].to_vec(), true))
                    .unwrap();
            }
        }
        served.answer(&request)
    })
    .await;
    let store = Store::open(&folder.path().join("store"), Default::default(), insecure(&[&fake.host])).unwrap();
    let reference = store.reference(&format!("{}/x@{}", fake.host, shelf.manifest)).unwrap();
    let start = |progress: &Progress| {
        let (store, reference, progress) = (store.clone(), reference.clone(), progress.clone());
        tokio::spawn(async move { store.pull(&reference, &progress).await })
    };
    let progress = Progress::default();
    let first = start(&progress);
    asked.recv().await.unwrap();
    while progress.snapshot().bytes < 500_000 {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    // The thread that unpacks notices that the download has ended.
    while store.used_bytes() > 0 || fs::read_dir(folder.path().join("store/tmp")).unwrap().count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    blocked.store(0, Ordering::SeqCst);
    let image = start(&Progress::default()).await.unwrap().unwrap();
    assert_eq!(tree(&image.layers()[0]).len(), 2);
}

#[tokio::test]
async fn a_mirror_that_lies_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = one_layer(100_000);
    let served = shelf.clone();
    let mirror = Fake::start(move |request| {
        let mut blob = served.blobs[&last(&request)].clone();
        let middle = blob.len() / 2;
        blob[middle] ^= 1;
        Response::new(whole(blob))
    })
    .await;
    let served = shelf.clone();
    let registry = Fake::start(move |request| served.answer(&request)).await;
    let mut registries = insecure(&[&mirror.host, &registry.host]);
    registries.registries.insert(
        registry.host.clone(),
        Registry { mirrors: vec![mirror.host.clone()], insecure: true, ..Registry::default() },
    );
    let image = pull_from(folder.path(), &registry.host, shelf.manifest, registries).await.unwrap();
    assert_eq!(fs::read(image.layers()[0].join("x")).unwrap(), noise(100_000));
}

#[tokio::test]
async fn a_proxy_is_asked_unless_no_proxy_names_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = one_layer(1000);
    let served = shelf.clone();
    let proxied = Arc::new(AtomicUsize::new(0));
    let counter = proxied.clone();
    let proxy = Fake::start(move |request| {
        counter.fetch_add(usize::from(request.uri().host() == Some("registry.invalid")), Ordering::SeqCst);
        served.answer(&request)
    })
    .await;
    let mut registries = insecure(&["registry.invalid"]);
    registries.proxies.http_proxy = Some(format!("http://{}", proxy.host));
    pull_from(folder.path(), "registry.invalid", shelf.manifest, registries.clone()).await.unwrap();
    assert_eq!(proxied.load(Ordering::SeqCst), 3);
    registries.proxies.no_proxy = Some("registry.invalid".to_owned());
    let error = pull_from(tempfile::tempdir().unwrap().path(), "registry.invalid", shelf.manifest, registries)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(proxied.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn of_several_platforms_this_one_is_pulled() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = one_layer(1000);
    let entry = |digest: Digest, size: usize, architecture: &str| {
        serde_json::json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest.to_string(), "size": size,
            "platform": { "os": "linux", "architecture": architecture },
        })
    };
    let size = shelf.blobs[&shelf.manifest.to_string()].len();
    let index =
        |entries: &[serde_json::Value]| serde_json::json!({ "schemaVersion": 2, "manifests": entries }).to_string();
    let good = index(&[entry(Digest::of(b""), 1, "arm64"), entry(shelf.manifest, size, "amd64")]);
    let bad = index(&[entry(Digest::of(b""), 1, "arm64"), entry(Digest::of(b""), 1, "riscv64")]);
    let served = {
        let (shelf, good, bad) = (shelf.clone(), good.clone(), bad.clone());
        move |request: Request<Incoming>| match last(&request) {
            name if name == Digest::of(good.as_bytes()).to_string() || name == "good" => {
                Response::new(whole(good.clone()))
            }
            name if name == Digest::of(bad.as_bytes()).to_string() => Response::new(whole(bad.clone())),
            _ => shelf.answer(&request),
        }
    };
    let fake = Fake::start(served).await;
    let digest = Digest::of(good.as_bytes());
    let store = Store::open(&folder.path().join("store"), Default::default(), insecure(&[&fake.host])).unwrap();
    let image = pull(&store, &format!("{}/x:good", fake.host)).await.unwrap();
    assert_eq!((image.digest(), image.layers().len()), (digest, 1));
    drop((image, store));
    let store = Store::open(&folder.path().join("store"), Default::default(), support::registries()).unwrap();
    assert!(store.image(digest).is_some(), "it is known by the digest of the index after a restart, too");
    drop(store);
    let error =
        pull_from(tempfile::tempdir().unwrap().path(), &fake.host, Digest::of(bad.as_bytes()), insecure(&[&fake.host]))
            .await;
    let error = error.unwrap_err();
    assert!(matches!(&error, Error::Platform { there, .. } if *there == ["linux/arm64", "linux/riscv64"]), "{error}");
}
