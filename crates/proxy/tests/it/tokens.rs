//! Tokens whose keys the node fetches, and the handling of invalid ones.

use crate::mesh::{Builder, Mesh, id};
use crate::upstream::{self, Answer, connect_http1, echo, empty, full};
use http::{Request, Response};
use leno_model::FunctionConfig;
use leno_model::{AppProtocol, JwksFetch, PublicKey, VerificationKey};
use leno_policy::spec::{Algorithm, Counts, Issuer, Key, KeyId, KeyPart, QuotaAlgorithm, RateLimit, TokenSource};
use leno_proxy::FunctionEntry;
use leno_proxy::jwks::{JwksFetcher, Pace};
use leno_testkit::keys::TokenKey;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

/// Signs a token that names no key.
fn token(key: &TokenKey) -> String {
    token_until(key, 4_102_444_800)
}

/// A token that expires in so many seconds.
pub(crate) fn expiring_token(key: &TokenKey, seconds: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    token_until(key, now.as_secs() + seconds)
}

fn token_until(key: &TokenKey, exp: u64) -> String {
    key.token(&json!({"iss": "https://login.example", "sub": "ann", "exp": exp}))
}

/// Makes the function require a token that this key has signed.
pub(crate) fn wants_tokens_of(config: &mut FunctionConfig, key: &TokenKey) {
    wants_tokens(config, String::new());
    config.jwks.clear();
    config.inbound.rate_limits.clear();
    let id = KeyId([7; 32]);
    config.keys = vec![VerificationKey { id, key: PublicKey::Ed25519(key.public().into()) }];
    let issuer = &mut config.inbound.authentication[0];
    issuer.keys_pending = false;
    issuer.keys = vec![Key { kid: None, algorithms: vec![Algorithm::EdDSA], id }];
}

/// Makes the function require a token of the issuer, and lets an address fail twice in an hour.
fn wants_tokens(config: &mut FunctionConfig, url: String) {
    config.inbound.authentication.push(Issuer {
        name: "p/authentication/login".into(),
        issuer: "https://login.example".into(),
        audiences: vec![],
        keys: vec![],
        keys_pending: true,
        sources: vec![TokenSource::Header { name: "authorization".into(), prefix: "Bearer ".into() }],
        clock_skew_ms: 0,
        forward: false,
        required: true,
        require_expiration: true,
        preflight: false,
        space_delimited_claims: vec![],
        claims_to_headers: vec![],
    });
    config.inbound.rate_limits.push(RateLimit {
        name: "p/rateLimits/failures".into(),
        counts: Counts::AuthenticationFailures,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: vec![KeyPart::Address],
        algorithm: QuotaAlgorithm::TokenBucket { requests: 2, period_ms: 3_600_000, burst: 2 },
    });
    let (refresh, timeout) = (Duration::from_secs(3600), Duration::from_secs(30));
    config.jwks.push(JwksFetch { issuer: 0, url, ca_file: None, ca: String::new(), refresh, timeout });
}

async fn with_token(mesh: &Mesh, token: &str) -> Answer {
    let request = Request::get("/").header("host", "web").header("authorization", format!("Bearer {token}"));
    connect_http1(mesh.gateway()).await.send(request.body(empty()).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_judged_when_their_keys_have_come_and_bad_ones_are_limited() {
    let keys = [TokenKey::default(), TokenKey::default()];
    let (good, forged) = (token(&keys[1]), token(&TokenKey::default()));
    let (set, gate) = (json!({"keys": keys.each_ref().map(TokenKey::jwk)}).to_string(), Arc::new(Semaphore::new(0)));
    let held = gate.clone();
    let issuer = upstream::http1(move |_| {
        let (set, gate) = (set.clone(), held.clone());
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(full(set))
        }
    })
    .await;
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .config("web", |config| wants_tokens(config, format!("http://{}/keys", issuer.address)))
        .start();
    let (fetcher, mut fetched) =
        JwksFetcher::start(mesh.node.policy_state.tokens.key_sets.clone(), mesh.node.egress_guard(), Pace::default());
    let before = mesh.node.snapshot.load().functions.get(&id("web")).unwrap().config.clone();
    fetcher.follow(before);

    for token in [&good, &forged, &good, &forged] {
        let answer = with_token(&mesh, token).await;
        assert_eq!((answer.status, &answer.headers["retry-after"]), (503, &"1".parse().unwrap()));
    }
    assert_eq!(upstream.requests(), 0);

    gate.add_permits(1);
    let (_, complete) = fetched.recv().await.unwrap();
    let mut change = mesh.node.snapshot.load().change();
    change.insert(Arc::new(FunctionEntry::load(&leno_sandbox::Engine::inline(), complete)));
    mesh.node.snapshot.store(Arc::new(change.finish()));

    assert_eq!(with_token(&mesh, &good).await.status, 200);
    for status in [401, 401, 429, 429] {
        let answer = with_token(&mesh, &forged).await;
        assert_eq!((answer.status, answer.headers.contains_key("retry-after")), (status, status == 429));
    }
    assert_eq!(upstream::get(mesh.gateway(), "/").await.status, 429, "without a token");
    assert_eq!(with_token(&mesh, &good).await.status, 200, "whoever authenticates is not limited");
    assert_eq!(upstream.requests(), 2);
}
