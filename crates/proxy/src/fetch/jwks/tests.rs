mod problems;

use super::*;
use crate::state::egress_guard::Requester;
use crate::testing;
use crate::testing::SigningKey;
use leno_files::FileAccess;
use leno_model::JwksFetch;
use leno_policy::spec::{Algorithm, Issuer, KeyId, TokenSource};
use leno_runtime::client::{CaFile, ClientError, TrustedRoots};
use leno_telemetry::exposition::Exposition;
use leno_testkit::eventually_async;
use rcgen::CertificateParams;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Allows fetches as often as the tests need.
const FAST: Pace = Pace { soonest: Duration::ZERO, after_failure: Duration::from_millis(1) };

/// An issuer that serves the answers in the list, and the last one for ever.
struct Server {
    url: String,
    answers: Arc<Mutex<VecDeque<String>>>,
}

impl Server {
    async fn start(answers: &[String]) -> Self {
        Self::start_with(answers, None).await
    }

    async fn start_with(answers: &[String], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let port = listener.local_addr().unwrap().port();
        let server = Self {
            url: format!("{scheme}://localhost:{port}/keys"),
            answers: Arc::new(Mutex::new(answers.iter().cloned().collect())),
        };
        let answers = server.answers.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = {
                    let mut answers = answers.lock().unwrap();
                    if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() }
                };
                match &tls {
                    // A client that does not trust the certificate aborts the handshake.
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(stream, &answer).await;
                        }
                    }
                    None => serve(stream, &answer).await,
                }
            }
        });
        server
    }
}

/// Answers, then closes the connection without TLS's `close_notify`.
async fn serve_and_cut(stream: TcpStream, tls: &TlsAcceptor, answer: &str) {
    let Ok(mut stream) = tls.accept(stream).await else { return };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // Ends TCP, after everything that was written.
    stream.get_mut().0.shutdown().await.unwrap();
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"GET /keys HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&head));
    // The client may close before it has read everything.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn key_set(kid: &str) -> String {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let leno_model::PublicKey::Ed25519(x) = key.verification_key(KeyId([0; 32])).key else { panic!() };
    let x = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, x);
    format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{kid}","x":"{x}"}}]}}"#)
}

fn config(name: &str, url: &str) -> FunctionConfig {
    let mut config = testing::config(name);
    config.inbound.authentication.push(Issuer {
        name: "p/authentication/login".into(),
        issuer: "https://login.example".into(),
        audiences: Vec::new(),
        keys: Vec::new(),
        sources: vec![TokenSource::Header { name: "authorization".into(), prefix: "Bearer ".into() }],
        clock_skew_ms: 0,
        forward: false,
        required: true,
        preflight: false,
        require_expiration: false,
        keys_pending: true,
        space_delimited_claims: vec![],
        claims_to_headers: Vec::new(),
    });
    config.jwks.push(JwksFetch {
        issuer: 0,
        url: url.into(),
        ca_file: None,
        ca: String::new(),
        refresh: Duration::from_secs(3600),
        timeout: Duration::from_secs(10),
    });
    config
}

fn kids(config: &FunctionConfig) -> Vec<&str> {
    assert_eq!(config.inbound.authentication[0].keys.len(), config.keys.len());
    config.inbound.authentication[0].keys.iter().filter_map(|key| key.kid.as_deref()).collect()
}

fn guard() -> EgressGuard {
    EgressGuard::new(Vec::new(), Arc::default())
}

fn unrestricted(path: &Path) -> TrustedRoots {
    TrustedRoots::File(CaFile::new(path.to_owned(), "test".to_owned(), FileAccess::Any))
}

fn named(url: &str, roots: Option<TrustedRoots>) -> Download {
    let requester = Requester { namespace: "shop".into(), egress: None };
    Download { url: url.into(), roots, requester }
}

#[tokio::test]
async fn special_addresses_are_fetched_from_only_if_the_namespace_may() {
    let server = Server::start(&[ok(&key_set("one"))]).await;
    let of = |url: &str, egress: Option<&[&str]>| {
        let block = |text: &&str| {
            let (address, prefix) = text.split_once('/').unwrap();
            leno_policy::spec::Cidr { address: address.parse().unwrap(), prefix: prefix.parse().unwrap() }
        };
        let egress = egress.map(|blocks| blocks.iter().map(block).collect());
        Download { requester: Requester { namespace: "shop".into(), egress }, ..named(url, None) }
    };
    let fetched = |what: Download| fetch(guard(), what, Duration::from_secs(10));
    let port = server.url.rsplit(':').next().unwrap();
    for host in ["localhost", "LOCALHOST.", "127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254"] {
        let url = format!("http://{host}:{port}");
        for listed in [&[][..], &["10.0.0.0/8"], &["0.0.0.0/0"]] {
            let refused = fetched(of(&url, Some(listed))).await.unwrap_err().to_string();
            assert!(refused.contains("special address") && refused.contains("`egress`"), "{url} {listed:?}: {refused}");
        }
    }
    assert_eq!(server.answers.lock().unwrap().len(), 1);
    for (url, listed) in [(&server.url, None), (&server.url, Some(&["127.0.0.0/8"][..]))] {
        fetched(of(url, listed)).await.unwrap();
    }
    let moved = format!("HTTP/1.1 302 Found\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", server.url);
    let moving = Server::start(&[moved]).await;
    let refused = fetched(of(&moving.url, None)).await.unwrap_err().to_string();
    assert!(refused.contains("redirects are not followed"), "{refused}");
}

#[tokio::test]
async fn keys_are_fetched_once_for_all_who_name_the_same_address() {
    let server = Server::start(&[ok(&key_set("one")), ok(&key_set("never"))]).await;
    let (fetcher, mut updates) = JwksFetcher::start(Arc::default(), guard(), FAST);
    for name in ["shop/orders", "shop/invoices"] {
        let before = fetcher.follow(config(name, &server.url));
        assert!(kids(&before).is_empty() && before.inbound.authentication[0].keys_pending);
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (id, config) = updates.recv().await.unwrap();
        assert_eq!((kids(&config), config.inbound.authentication[0].keys_pending), (vec!["one"], false));
        seen.push(id.to_string());
    }
    seen.sort_unstable();
    assert_eq!(seen, ["shop/invoices", "shop/orders"]);
    assert_eq!(server.answers.lock().unwrap().len(), 1, "fetched once");
    // Known keys are available at once when the configuration changes.
    let mut changed = config("shop/orders", &server.url);
    changed.concurrency = 7;
    let complete = fetcher.follow(changed);
    assert_eq!((kids(&complete), complete.concurrency), (vec!["one"], 7));
}

#[tokio::test]
async fn an_unknown_key_has_the_set_fetched_again() {
    let server = Server::start(&[ok(&key_set("one")), ok(&key_set("two"))]).await;
    let unknown = Arc::new(KeySetReports::default());
    let (fetcher, mut updates) = JwksFetcher::start(unknown.clone(), guard(), FAST);
    fetcher.follow(config("shop/orders", &server.url));
    assert_eq!(kids(&updates.recv().await.unwrap().1), ["one"]);
    unknown.report(&"shop/others".parse().unwrap());
    unknown.report(&"shop/orders".parse().unwrap());
    assert_eq!(kids(&updates.recv().await.unwrap().1), ["two"]);
}

#[tokio::test]
async fn metrics_have_the_states_of_key_sets() {
    let server = Server::start(&[ok(&key_set("one")), "HTTP/1.1 503 Busy\r\n\r\n".to_owned()]).await;
    let reports = Arc::new(KeySetReports::default());
    let (fetcher, mut updates) = JwksFetcher::start(reports.clone(), guard(), FAST);
    let has = |namespace: &str, state: &str, count: u64| {
        let sample = format!("leno_key_sets{{namespace=\"{namespace}\",state=\"{state}\"}} {count}\n");
        let reports = reports.clone();
        async move {
            eventually_async(&sample, || Exposition::default().with(&reports.counts).finish().contains(&sample)).await
        }
    };
    fetcher.follow(config("others/orders", "http://127.0.0.1:1/keys"));
    fetcher.follow(config("shop/orders", &server.url));
    updates.recv().await.unwrap();
    has("shop", "current", 1).await;
    has("others", "missing", 1).await;
    reports.report(&"shop/orders".parse().unwrap());
    has("shop", "stale", 1).await;
    fetcher.forget(&"others/orders".parse().unwrap());
    eventually_async("others to be gone", || !Exposition::default().with(&reports.counts).finish().contains("others"))
        .await;
}

#[tokio::test]
async fn reports_do_not_flood_the_issuer() {
    let mut state = State::default();
    let (soon, now) = (Pace { soonest: Duration::from_secs(30), ..FAST }, Instant::now());
    let id: FunctionId = "shop/orders".parse().unwrap();
    let source = named("http://login.example/keys", None);
    let mine = config("shop/orders", &source.url);
    state.follow(mine, &FAST);
    state.sources.get_mut(&source).unwrap().next = now;
    assert_eq!(state.due(now).0.len(), 1);
    assert!(state.due(now).0.is_empty(), "it is under way");
    state.learn(&source, Ok(KeySet::default()), &soon, now);
    let after = |seconds| now + Duration::from_secs(seconds);
    state.hurry(std::slice::from_ref(&id), &soon, after(1));
    assert!(state.due(after(29)).0.is_empty());
    assert_eq!(state.due(after(30)).0.len(), 1);
    state.learn(&source, Ok(KeySet::default()), &soon, after(30));
    state.hurry(&[id], &soon, after(31));
    assert!(state.due(after(59)).0.is_empty());
    assert_eq!(state.due(after(60)).0.len(), 1);
}

#[tokio::test]
async fn failures_keep_the_keys_and_are_repeated_at_growing_intervals() {
    let mut state = State::default();
    let (pace, now) = (Pace { after_failure: Duration::from_secs(1), ..FAST }, Instant::now());
    let source = named("http://login.example/keys", None);
    let mine = config("shop/orders", &source.url);
    state.follow(mine.clone(), &pace);
    state.sources.get_mut(&source).unwrap().next = now;
    let set = leno_config::jwks::parse(key_set("one").as_bytes());
    assert_eq!(state.learn(&source, Ok(set.clone()), &pace, now).len(), 1);
    assert!(state.learn(&source, Ok(set), &pace, now).is_empty(), "nothing changed");
    let fail = || Err(FetchError::Download(DownloadError::Status { status: http::StatusCode::BAD_GATEWAY }));
    for pause in [1, 2, 4, 8] {
        assert!(state.learn(&source, fail(), &pace, now).is_empty());
        assert_eq!(state.sources[&source].next - now, Duration::from_secs(pause));
    }
    for _ in 0..40 {
        state.learn(&source, fail(), &pace, now);
    }
    assert_eq!(state.sources[&source].next - now, Duration::from_secs(3600), "never longer than its own interval");
    assert_eq!(kids(&state.complete(&mine, std::slice::from_ref(&source))), ["one"]);
}

#[tokio::test]
async fn a_failing_issuer_is_asked_again_until_it_answers() {
    let answers = ["HTTP/1.1 503 Busy\r\n\r\n".to_owned(), ok("{"), ok(&key_set("one"))];
    let server = Server::start(&answers).await;
    let (fetcher, mut updates) = JwksFetcher::start(Arc::default(), guard(), FAST);
    fetcher.follow(config("shop/orders", &server.url));
    assert_eq!(kids(&updates.recv().await.unwrap().1), ["one"]);
}

#[tokio::test]
async fn what_is_not_a_key_set_is_refused() {
    let set = key_set("one");
    let redirect = "HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n".to_owned();
    let short = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{set}", set.len() + 1);
    for (answer, expected) in [
        (redirect, "redirects are not followed"),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(), "404"),
        (ok(&" ".repeat(300 * 1024)), "could not be read"),
        (short, "could not be read"),
        (ok("<html>"), "not JSON"),
        (ok("{}"), "no list `keys`"),
    ] {
        let server = Server::start(&[answer]).await;
        let source = named(&server.url, None);
        let error = fetch(guard(), source, Duration::from_secs(10)).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for url in ["", "/keys", "ftp://a/", "localhost:80", "http://"] {
        let source = named(url, None);
        assert!(
            matches!(
                fetch(guard(), source, Duration::from_secs(10)).await,
                Err(FetchError::Download(DownloadError::Client(ClientError::Address(_))))
            ),
            "{url}"
        );
    }
}

#[tokio::test]
async fn an_issuer_that_never_answers_costs_its_timeout_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let error = fetch(guard(), named(&url, None), Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, FetchError::Download(DownloadError::Timeout(_))), "{error}");
}

fn localhost() -> (TlsAcceptor, String) {
    serving(CertificateParams::new(["localhost".to_owned()]).unwrap())
}

/// A server with such a certificate, and the authority that signs it, in PEM.
fn serving(params: CertificateParams) -> (TlsAcceptor, String) {
    let authority = leno_testkit::keys::CertificateAuthority::default();
    let (leaf, own) = authority.sign(params);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), authority.pem())
}

#[tokio::test]
async fn an_answer_is_complete_by_its_own_framing_and_not_by_how_the_connection_ends() {
    let (tls, certificate) = localhost();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, certificate).unwrap();
    let set = key_set("one");
    let chunked = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{set}\r\n", set.len());
    let answers = [
        (ok(&set), true),
        (format!("{chunked}0\r\n\r\n"), true),
        (format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{set}", set.len()), true),
        (chunked, false),
        (format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{set}", set.len() + 1), false),
        // The body ends with the connection, which an attacker may have cut off.
        (format!("HTTP/1.1 200 OK\r\n\r\n{set}"), false),
    ];
    for (answer, complete) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/keys", listener.local_addr().unwrap().port());
        let (tls, served) = (tls.clone(), answer.clone());
        let server = tokio::spawn(async move {
            loop {
                serve_and_cut(listener.accept().await.unwrap().0, &tls, &served).await;
            }
        });
        // The answer and the end of the connection arrive together, or one after the other.
        for _ in 0..20 {
            let source = named(&url, Some(unrestricted(&file)));
            let fetched = fetch(guard(), source, Duration::from_secs(10)).await;
            assert_eq!(fetched.is_ok(), complete, "{fetched:?} of {answer}");
        }
        server.abort();
    }
}

#[tokio::test]
async fn https_trusts_the_named_roots_and_no_others() {
    let (tls, certificate) = localhost();
    let server = Server::start_with(&[ok(&key_set("one"))], Some(tls)).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &certificate).unwrap();
    let get = |url: &str, ca_file: Option<&std::path::Path>| {
        let source = named(url, ca_file.map(unrestricted));
        async move { fetch(guard(), source, Duration::from_secs(10)).await }
    };
    let keys = get(&server.url, Some(&file)).await.unwrap();
    assert_eq!(keys.keys.len(), 1);
    let inline = named(&server.url, Some(TrustedRoots::Pem(certificate)));
    assert!(fetch(guard(), inline, Duration::from_secs(10)).await.is_ok(), "the same in the document");
    let damaged = named(&server.url, Some(TrustedRoots::Pem("-----BEGIN CERTIFICATE-----".to_owned())));
    let error = fetch(guard(), damaged, Duration::from_secs(10)).await.unwrap_err().to_string();
    assert!(error.contains("`ca` of the document"), "{error}");
    let other_name = server.url.replace("localhost", "127.0.0.1");
    assert!(
        matches!(
            get(&other_name, Some(&file)).await,
            Err(FetchError::Download(DownloadError::Http(error))) if error.is_connect()
        ),
        "another name"
    );
    assert!(get(&server.url, None).await.is_err(), "not one of the system's roots");
    std::fs::write(&file, "no certificate").unwrap();
    let error = get(&server.url, Some(&file)).await.unwrap_err().to_string();
    assert!(error.contains(&file.display().to_string()), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(
        get(&server.url, Some(&file)).await,
        Err(FetchError::Download(DownloadError::Client(ClientError::Pem { .. })))
    ));
}

#[tokio::test]
async fn forgotten_functions_are_not_fetched_for() {
    let (fetcher, _updates) = JwksFetcher::start(Arc::default(), guard(), FAST);
    fetcher.follow(config("shop/orders", "http://127.0.0.1:1/keys"));
    assert_eq!(fetcher.shared.state().sources.len(), 1);
    fetcher.follow(config("shop/orders", "http://127.0.0.1:2/keys"));
    assert_eq!(fetcher.shared.state().sources.len(), 1, "the old address is nobody's any more");
    fetcher.forget(&"shop/orders".parse().unwrap());
    assert!(fetcher.shared.state().sources.is_empty());
}

/// A server that never answers, and counts the waiting clients.
async fn silent() -> (String, Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            held.push(stream);
        }
    });
    (format!("http://{address}"), count)
}

#[tokio::test]
async fn a_namespace_with_many_key_sets_has_a_few_fetches_and_leaves_others_theirs() {
    let (silent, count) = silent().await;
    let (fetcher, mut updates) = JwksFetcher::start(Arc::default(), guard(), FAST);
    for number in 0..500 {
        fetcher.follow(config(&format!("greedy/f{number}"), &format!("{silent}/{number}")));
    }
    let server = Server::start(&[ok(&key_set("one"))]).await;
    // The greedy namespace's fetches from another server are not held up either.
    for function in ["shop/orders", "greedy/other"] {
        fetcher.follow(config(function, &server.url));
        let (id, config) = updates.recv().await.unwrap();
        assert_eq!((id.to_string(), kids(&config)), (function.to_owned(), vec!["one"]));
    }
    let count = count.load(std::sync::atomic::Ordering::SeqCst);
    assert!(count <= MAX_FETCHES_OF_SERVER, "{count} requests at a time");
}

#[tokio::test]
async fn the_latest_configuration_of_a_function_is_told_as_long_as_it_is_followed() {
    let (fetcher, _changed) = JwksFetcher::start(Arc::default(), guard(), Pace::default());
    let (old, new) = (config("shop/a", "http://127.0.0.1:1/"), config("shop/a", "http://127.0.0.1:2/"));
    let id = new.id.clone();
    fetcher.follow(old);
    fetcher.follow(new.clone());
    assert_eq!(fetcher.latest(&id).map(|latest| latest.jwks), Some(new.jwks));
    fetcher.forget(&id);
    assert_eq!(fetcher.latest(&id), None);
}
