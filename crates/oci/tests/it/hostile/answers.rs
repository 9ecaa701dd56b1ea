//! Answers that are compressed on the way, arrive late, or are nonsense of a mirror.

use super::{Shelf, last, one_layer, pull_from};
use crate::support::registry::{Body, Fake, broken, insecure, whole};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Request, Response};
use leno_oci::{Digest, Error, Registries, Registry, Resolver, Result};
use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn encoded(coding: &str, bytes: Vec<u8>) -> Response<Body> {
    Response::builder().header(CONTENT_ENCODING, coding).body(whole(bytes)).unwrap()
}

/// The requested blob or manifest.
fn wanted<'a>(shelf: &'a Shelf, request: &Request<Incoming>) -> &'a Vec<u8> {
    shelf.blobs.get(&last(request)).unwrap_or_else(|| &shelf.blobs[&shelf.manifest.to_string()])
}

async fn resolve(registries: Registries, host: &str) -> Result<Digest> {
    let resolver = Resolver::new(registries).unwrap();
    resolver.resolve(&resolver.reference(&format!("{host}/x:1")).unwrap()).await
}

/// Resolves a tag and pulls the image, which has one file.
async fn resolve_and_pull(shelf: &Shelf, registries: Registries, host: &str) {
    assert_eq!(resolve(registries.clone(), host).await.unwrap(), shelf.manifest);
    let folder = tempfile::tempdir().unwrap();
    let image = pull_from(folder.path(), host, shelf.manifest, registries).await.unwrap();
    assert_eq!(fs::metadata(image.layers()[0].join("x")).unwrap().len(), 300_000);
}

#[tokio::test]
async fn what_is_compressed_on_the_way_is_what_it_was_before() {
    type Encode = fn(&[u8]) -> Vec<u8>;
    let shelf = one_layer(300_000);
    for (coding, small, large) in [
        ("gzip", gzip as Encode, gzip as Encode),
        ("X-GZip", gzip, gzip),
        ("deflate", deflate, deflate),
        // Bodies that are labelled as compressed, but are not.
        ("gzip", <[u8]>::to_vec, <[u8]>::to_vec),
        ("identity", <[u8]>::to_vec, <[u8]>::to_vec),
    ] {
        let served = shelf.clone();
        let fake = Fake::start(move |request| {
            assert_eq!(request.headers()[ACCEPT_ENCODING], "identity");
            let host = request.headers()[HOST].to_str().unwrap();
            if request.uri().path() == "/token" {
                return encoded(coding, small(br#"{"token":"","access_token":"T"}"#));
            }
            if !request.headers().contains_key("authorization") {
                let challenge = format!("Bearer realm=\"http://{host}/token\"");
                return Response::builder().status(401).header(WWW_AUTHENTICATE, challenge).body(whole("")).unwrap();
            }
            let encode = if served.is_layer(&request) { large } else { small };
            encoded(coding, encode(wanted(&served, &request)))
        })
        .await;
        resolve_and_pull(&shelf, insecure(&[&fake.host]), &fake.host).await;
    }
}

#[tokio::test]
async fn a_compressed_download_that_breaks_off_comes_again_from_its_beginning() {
    let shelf = one_layer(300_000);
    let (served, asked) = (shelf.clone(), Arc::new(AtomicUsize::new(0)));
    let fake = Fake::start(move |request| {
        assert!(!request.headers().contains_key("range"));
        let whole_body = gzip(wanted(&served, &request));
        if served.is_layer(&request) && asked.fetch_add(1, Ordering::SeqCst) == 0 {
            let half = whole_body[..whole_body.len() / 2].to_vec();
            let builder = Response::builder().header(CONTENT_ENCODING, "gzip").header(CONTENT_LENGTH, whole_body.len());
            return builder.body(broken(half, false)).unwrap();
        }
        encoded("gzip", whole_body)
    })
    .await;
    resolve_and_pull(&shelf, insecure(&[&fake.host]), &fake.host).await;
}

#[tokio::test]
async fn codings_that_are_not_known_and_bombs_are_refused() {
    let shelf = one_layer(1000);
    for (coding, body, expected) in [
        ("br", b"x".to_vec(), "`Content-Encoding: br`, though it was asked for none"),
        ("gzip, gzip", gzip(&gzip(b"x")), "`Content-Encoding: gzip, gzip`"),
        ("gzip", gzip(&vec![b' '; 64 << 20]), "the answer is longer than 4194304 bytes"),
        ("zstd", zstd(&vec![b' '; 64 << 20]), "the answer is longer than 4194304 bytes"),
        ("deflate", b"no zlib".to_vec(), "its Deflate coding is broken"),
    ] {
        let fake = Fake::start(move |_| encoded(coding, body.clone())).await;
        let error = resolve(insecure(&[&fake.host]), &fake.host).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let served = shelf.clone();
    let fake = Fake::start(move |request| match served.is_layer(&request) {
        true => encoded("gzip", gzip(&vec![0; 64 << 20])),
        false => served.answer(&request),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(folder.path(), &fake.host, shelf.manifest, insecure(&[&fake.host])).await.unwrap_err();
    assert!(error.to_string().contains("longer than the 2560 bytes"), "{error}");
}

#[tokio::test]
async fn a_busy_registry_is_asked_again() {
    let shelf = one_layer(300_000);
    let soon = httpdate::fmt_http_date(SystemTime::now());
    for (status, wait) in
        [(503, None), (429, Some("0")), (429, Some(soon.as_str())), (502, Some("nonsense")), (500, None)]
    {
        // Each document is refused once.
        let (served, wait) = (shelf.clone(), wait.map(str::to_owned));
        let refused = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
        let fake = Fake::start(move |request| {
            if !refused.lock().unwrap().insert(request.uri().path().to_owned()) {
                return served.answer(&request);
            }
            let builder = Response::builder().status(status);
            wait.iter().fold(builder, |builder, wait| builder.header(RETRY_AFTER, wait)).body(whole("busy")).unwrap()
        })
        .await;
        resolve_and_pull(&shelf, insecure(&[&fake.host]), &fake.host).await;
    }
}

#[tokio::test]
async fn a_registry_that_is_busy_for_longer_is_given_up_and_quoted() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let fake = Fake::start(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        Response::builder().status(429).header(RETRY_AFTER, "3600").body(whole("")).unwrap()
    })
    .await;
    let error = resolve(insecure(&[&fake.host]), &fake.host).await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: Some(429), retry_after: Some(_), .. }), "{error:?}");
    assert!(error.to_string().contains("it wants to be asked again in 3600 s"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let fake = Fake::start(|_| Response::builder().status(503).body(whole("")).unwrap()).await;
    let short = Registries { busy_timeout: Duration::from_millis(500), ..insecure(&[&fake.host]) };
    let error = resolve(short, &fake.host).await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: Some(503), .. }), "{error:?}");
}

#[tokio::test]
async fn a_connection_that_is_lost_is_made_again() {
    let shelf = one_layer(300_000);
    let served = shelf.clone();
    let registry = Fake::start(move |request| served.answer(&request)).await;
    // Closes its first connection without an answer, and passes the others on.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let to = registry.host.clone();
    let relay = tokio::spawn(async move {
        drop(listener.accept().await.unwrap());
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(&to).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    resolve_and_pull(&shelf, insecure(&[&host]), &host).await;
    relay.abort();
}

type Answer = Arc<dyn Fn(&Shelf, &Request<Incoming>) -> Response<Body> + Send + Sync>;

/// Invalid answers of mirrors.
fn nonsense() -> Vec<(&'static str, Answer)> {
    fn of(
        name: &'static str,
        answer: impl Fn(&Shelf, &Request<Incoming>) -> Response<Body> + Send + Sync + 'static,
    ) -> (&'static str, Answer) {
        (name, Arc::new(answer))
    }
    let status = |status: u16| Response::builder().status(status);
    let typed = |content_type: &str, body: Vec<u8>| {
        Response::builder().header(CONTENT_TYPE, content_type).body(whole(body)).unwrap()
    };
    vec![
        of("html", move |_, _| typed("text/html", b"<html>Please log in</html>".to_vec())),
        of("empty", |_, _| Response::new(whole(""))),
        of("empty object", |_, _| Response::new(whole("{}"))),
        of("no content", move |_, _| status(204).body(whole("")).unwrap()),
        of("internal error", move |_, _| status(500).body(whole("")).unwrap()),
        of("busy for an hour", move |_, _| status(429).header(RETRY_AFTER, "3600").body(whole("")).unwrap()),
        of("forbidden", move |_, _| status(403).body(whole("")).unwrap()),
        of("challenge of nothing", move |_, _| status(401).body(whole("")).unwrap()),
        of("redirect loop", move |_, request| {
            let place = format!("http://{}{}", request.headers()[HOST].to_str().unwrap(), request.uri());
            status(302).header(LOCATION, place).body(whole("")).unwrap()
        }),
        of("redirect to nowhere", move |_, _| status(301).body(whole("")).unwrap()),
        of("truncated", |shelf, request| {
            let bytes = wanted(shelf, request);
            let half = bytes[..bytes.len() / 2].to_vec();
            Response::builder().header(CONTENT_LENGTH, bytes.len()).body(broken(half, false)).unwrap()
        }),
        of("cut and whole", |shelf, request| {
            let bytes = wanted(shelf, request);
            Response::new(whole(bytes[..bytes.len() / 2].to_vec()))
        }),
        of("old schema", move |_, _| {
            typed(
                "application/vnd.docker.distribution.manifest.v1+json",
                br#"{"schemaVersion":1,"fsLayers":[]}"#.to_vec(),
            )
        }),
        of("another digest", |shelf, request| {
            let builder = Response::builder().header("docker-content-digest", Digest::of(b"other").to_string());
            let mut bytes = wanted(shelf, request).clone();
            // If a document is requested by its digest, its bytes decide.
            bytes.push(b' ');
            builder.body(whole(bytes)).unwrap()
        }),
        of("another type", |shelf, request| {
            let builder =
                Response::builder().header(CONTENT_TYPE, "application/vnd.oci.image.index.v1+json; charset=utf-8");
            let mut bytes = wanted(shelf, request).clone();
            bytes.push(b' ');
            builder.body(whole(bytes)).unwrap()
        }),
        of("unknown coding", |shelf, request| encoded("br", wanted(shelf, request).clone())),
        of("silence", |_, _| Response::new(broken(Vec::new(), true))),
    ]
}

#[tokio::test]
async fn mirrors_that_answer_nonsense_are_passed_over() {
    let shelf = one_layer(300_000);
    for (name, answer) in nonsense() {
        let served = shelf.clone();
        let mirror = Fake::start(move |request| answer(&served, &request)).await;
        let served = shelf.clone();
        let registry = Fake::start(move |request| served.answer(&request)).await;
        let mut registries = insecure(&[&mirror.host]);
        let mirrors = vec![mirror.host.clone()];
        registries
            .registries
            .insert(registry.host.clone(), Registry { mirrors, insecure: true, ..Registry::default() });
        let quick = Duration::from_millis(300);
        let registries = Registries { mirror_timeout: quick, idle_timeout: quick, ..registries };
        println!("{name}");
        resolve_and_pull(&shelf, registries, &registry.host).await;
    }
}

#[tokio::test]
async fn a_tag_is_pinned_to_nothing_that_is_no_image() {
    for (name, answer) in nonsense() {
        if name == "silence" {
            continue;
        }
        let shelf = one_layer(1000);
        let fake = Fake::start(move |request| answer(&shelf, &request)).await;
        let short = Registries { busy_timeout: Duration::ZERO, ..insecure(&[&fake.host]) };
        let error = resolve(short, &fake.host).await.expect_err(name).to_string();
        assert!(error.contains(&fake.host), "{name}: {error}");
    }
}
