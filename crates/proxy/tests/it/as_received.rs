//! Functions that get paths as received: the bytes that arrive, and the paths that are refused in
//! every spelling.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh, allow_all};
use crate::raw::{self, Raw};
use crate::upstream::{self, Answer, connect_h2, connect_http1, empty, full};
use http::{Request, Response};
use leno_model::{AppProtocol, Expose};
use leno_policy::path::Readings;
use leno_policy::spec::{
    Action, AuthorizationRule, Counts, KeyPart, Matches, Operation, PathMatch, QuotaAlgorithm, RateLimit, StringMatch,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::net::SocketAddr;

/// Request targets that real programs send, and similar ones.
const TARGETS: [&str; 30] = [
    "/",
    "/@scope%2Fname",
    "/@scope%2fname",
    "/-/package/@scope%2fname/dist-tags?write=true",
    "/api/v4/projects/group%2Fproject/repository/files/app%2Fmodels%2Fkey.rb/raw?ref=main",
    "/api/queues/%2F/name",
    "/api/queues/%2f/name/get?x=%2f",
    "/api/exchanges/%2F//bindings",
    "/bucket/a//b.txt",
    "/bucket//",
    "//bucket/key",
    "/bucket/a%2Bb+c",
    "/bucket/a%7Eb~c",
    "/bucket/caf%C3%A9%20au%20lait",
    "/bucket/%E2%82%AC?X-Amz-Signature=%2B%2f",
    "/bucket/a=b&c,d;e:f@g!h$i'(j)*",
    "/bucket/a%3Bb%2Cc%40d",
    "/bucket/./a/../b",
    "/bucket/a%2e%2E/b",
    "/bucket/100%25",
    "/bucket/100%2525",
    "/repositories/library%252Fhello/artifacts",
    "/v2/a/b/manifests/sha256:00",
    "/a;v=1/b;v=2",
    "/a/;v=1/b",
    "/a%5Cb",
    "/%61%62%63",
    "/a?",
    "/a?b?c=/../%2e%2e//",
    "/a/",
];

/// Answers each request with its target as received.
async fn tells_targets() -> SocketAddr {
    raw::server(|mut raw: Raw| async move {
        loop {
            let head = raw.head().await;
            let Some(target) = head.split(' ').nth(1) else { return };
            raw.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}", target.len())).await;
        }
    })
    .await
}

fn web(address: SocketAddr) -> Builder {
    Builder::new().function("web", AppProtocol::Http1, address).plan("web", |target| target.as_received = true)
}

fn rule(name: &str, action: Action, path: &str) -> AuthorizationRule {
    let paths = Matches { any: vec![PathMatch::Text(StringMatch::Prefix(path.into()))], none: vec![] };
    AuthorizationRule {
        name: name.into(),
        action,
        to: vec![Operation { paths, ..Operation::default() }],
        ..allow_all()
    }
}

/// Denies `/admin`, allows everything else.
fn no_admin(config: &mut leno_model::FunctionConfig) {
    config.inbound.authorization = vec![rule("admin", Action::Deny, "/admin"), allow_all()];
}

/// Requests for `/admin`, as at least one server reads them.
const ADMIN: [&str; 12] = [
    "/admin",
    "//admin",
    "/%61dmin",
    "/a/../admin",
    "/a/%2e%2e/admin",
    "/a/..%2fadmin",
    "/a%2f..%2fadmin",
    "/.%2Fadmin",
    "/a/..;x/admin",
    "/;x/admin",
    "/.%5cadmin",
    "/a/%252e%252e/admin",
];

/// Sends a request with exactly these bytes as its target. Returns the status, and the target that
/// arrived.
async fn send(gateway: SocketAddr, target: &str) -> (u16, String) {
    let request = format!("GET {target} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n");
    let reply = raw::exchange(gateway, request).await;
    (raw::status(&reply), reply.split_once("\r\n\r\n").unwrap_or_default().1.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_that_came_arrive() {
    let mesh = web(tells_targets().await).start();
    for target in TARGETS {
        assert_eq!(send(mesh.gateway(), target).await, (200, target.to_owned()));
    }
    let upstream =
        upstream::h2c(
            |request| async move { Response::new(full(request.uri().path_and_query().unwrap().to_string())) },
        );
    let mesh = Builder::new().function("web", AppProtocol::H2c, upstream.await.address);
    let mesh = mesh.plan("web", |target| target.as_received = true).start();
    let mut h2 = connect_h2(mesh.gateway()).await;
    for target in TARGETS {
        assert_eq!(send(mesh.gateway(), target).await, (200, target.to_owned()));
        let request = Request::get(format!("http://web{target}")).body(empty()).unwrap();
        let reply = upstream::answer(h2.send_request(request).await.unwrap()).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, target));
    }
}

/// Any target is forwarded unchanged, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn no_target_is_sent_in_other_bytes() {
    let mesh = web(tells_targets().await).config("web", no_admin).start();
    let targets = r"/(/|\.|\.\.|%2e|%2F|%2f|%5C|%252F|%2|a|admin|%61|;|%3b|%2B|\+|%20|~|\?){0,9}";
    let mut runner = TestRunner::deterministic();
    let mut arrived = 0;
    for _ in 0..400 {
        let target = targets.new_tree(&mut runner).unwrap().current();
        let path = target.split('?').next().unwrap();
        let readings = Readings::as_received(path);
        match send(mesh.gateway(), &target).await {
            (200, sent) => {
                assert_eq!(sent, target);
                assert!(readings.unwrap().iter().all(|path| !path.starts_with("/admin")), "{target}");
                arrived += 1;
            }
            (400, _) => assert!(readings.is_err(), "{target}"),
            (403, _) => assert!(readings.unwrap().iter().any(|path| path.starts_with("/admin")), "{target}"),
            other => panic!("{target}: {other:?}"),
        }
    }
    assert!(arrived > 100, "{arrived}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_functions_get_normalised_paths() {
    let mesh = Mesh::web(tells_targets().await);
    for (target, status, arrives) in
        [("/@scope%2Fname", 400, ""), ("/a//b", 200, "/a/b"), ("/a%7Eb", 200, "/a~b"), ("/a/../b", 200, "/b")]
    {
        let (actual, arrived) = send(mesh.gateway(), target).await;
        assert_eq!(actual, status, "{target}");
        assert!(status != 200 || arrived == arrives, "{target}: {arrived}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_denies_one_reading_denies_the_request() {
    let mesh = web(tells_targets().await).config("web", no_admin).start();
    for target in ADMIN {
        assert_eq!(send(mesh.gateway(), target).await.0, 403, "{target}");
    }
    for target in ["/a%2Fadmin", "/a//admin", "/a?x=/admin", "/a/adm%2Fin"] {
        assert_eq!(send(mesh.gateway(), target).await, (200, target.to_owned()));
    }
    for target in ["/..%2fadmin", "/a%00", "/%zz", "/a%2500"] {
        assert_eq!(send(mesh.gateway(), target).await.0, 400, "{target}");
    }
}

/// A path that could be read as a path of `/admin` never goes to another function than the one that
/// serves `/admin`.
#[tokio::test(flavor = "multi_thread")]
async fn every_reading_has_to_lead_to_the_same_function() {
    let upstream = tells_targets().await;
    let at = |path: &str| vec![Expose { hosts: vec!["web".into()], path: path.into() }];
    let mesh = web(upstream)
        .function("admin", AppProtocol::Http1, upstream)
        .config("admin", |config| config.expose = at("/admin"))
        .config("web", |config| config.expose = at("/"))
        .start();
    for target in TARGETS {
        assert_eq!(send(mesh.gateway(), target).await, (200, target.to_owned()));
    }
    for target in ADMIN {
        // A path with a normal form leads to `admin`, which gets that form.
        let normal = leno_policy::path::normalise(target).ok().filter(|normal| normal.starts_with("/admin"));
        let (status, arrived) = send(mesh.gateway(), target).await;
        match normal {
            Some(normal) => assert_eq!((status, arrived), (200, normal.into_owned()), "{target}"),
            None => assert_eq!(status, 400, "{target}: {arrived}"),
        }
    }
    let mesh = web(upstream).config("web", |config| config.expose = at("/public")).start();
    assert_eq!(send(mesh.gateway(), "/public/a%2Fb").await.0, 200);
    for target in ["/public%2Fa", "/public/..%2Fa", "/x/../public/a", "//public/a"] {
        assert_eq!(send(mesh.gateway(), target).await.0, 400, "{target}: it is exposed under some readings only");
    }
}

fn request_id(head: &str) -> &str {
    let mut fields = head.lines().filter_map(|line| line.strip_prefix("x-request-id: "));
    fields.next().unwrap_or_else(|| panic!("no request ID: {head}"))
}

async fn call(mesh: &Mesh, target: &str) -> Answer {
    let request = Request::get(format!("http://callee{target}")).header("host", "callee");
    let request = request.header("x-request-id", "call").header("proxy-authorization", basic(&mesh.mint("caller")));
    connect_http1(mesh.outbound()).await.send(request.body(empty()).unwrap()).await
}

fn pair(address: SocketAddr) -> Builder {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    Builder::new()
        .function("callee", AppProtocol::Http1, address)
        .function("caller", AppProtocol::Http1, nowhere)
        .call("caller", "callee")
        .plan("callee", |target| target.as_received = true)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_arrive_as_they_came_on_a_node_and_between_nodes() {
    let upstream = tells_targets().await;
    let there = pair(upstream).config("callee", no_admin).start();
    let away = pair(upstream).remote("callee").with(&there).start();
    away.knows("callee", &[(&there, 1)]);
    let gateway = web(upstream).config("web", no_admin).start();
    let in_front = web(upstream).config("web", no_admin).remote("web").with(&gateway).start();
    in_front.knows("web", &[(&gateway, 1)]);
    let meshes = [
        ("handed over", pair(upstream).config("callee", no_admin).start()),
        ("mutual TLS", pair(upstream).config("callee", no_admin).mtls().start()),
        ("another node", away),
    ];
    for target in TARGETS {
        for (way, mesh) in &meshes {
            let reply = call(mesh, target).await;
            assert_eq!((reply.status, reply.text.as_str()), (200, target), "{way}");
        }
        assert_eq!(send(in_front.gateway(), target).await, (200, target.to_owned()));
    }
    for target in ADMIN {
        for (way, mesh) in &meshes {
            assert_eq!(call(mesh, target).await.status, 403, "{way}: {target}");
        }
        assert_eq!(send(in_front.gateway(), target).await.0, 403, "{target}");
    }
    let denied = meshes[2].1.told("call", TARGETS.len() + ADMIN.len()).await;
    let judged: Vec<_> = denied.iter().filter_map(|told| told.judgement.as_ref()).collect();
    assert!(judged.iter().all(|judgement| judgement.verdict == "allow"), "the callee's node denied");
}

/// The caller's own rules also apply to every reading, before the request is sent.
#[tokio::test(flavor = "multi_thread")]
async fn the_callers_rules_deny_every_reading() {
    let narrow = |config: &mut leno_model::FunctionConfig| {
        config.outbound.authorization = vec![rule("admin", Action::Deny, "/admin")];
    };
    let upstream = upstream::http1(upstream::echo).await;
    let mesh = pair(upstream.address).config("caller", narrow).start();
    for target in ADMIN {
        assert_eq!(call(&mesh, target).await.status, 403, "{target}");
    }
    assert_eq!(upstream.requests(), 0);
    assert_eq!(call(&mesh, "/a%2Fadmin").await.status, 200);
}

/// While nodes have different configurations, the stricter one applies.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_disagree_refuse() {
    let upstream = upstream::http1(upstream::echo).await;
    let strict = pair(upstream.address).plan("callee", |target| target.as_received = false).start();
    let here = pair(upstream.address).remote("callee").with(&strict).start();
    here.knows("callee", &[(&strict, 1)]);
    assert_eq!(call(&here, "/a%2Fb").await.status, 400);
    let lax = pair(upstream.address).start();
    let here = pair(upstream.address).plan("callee", |target| target.as_received = false);
    let here = here.remote("callee").with(&lax).start();
    here.knows("callee", &[(&lax, 1)]);
    assert_eq!(call(&here, "/a%2Fb").await.status, 400);
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn spellings_of_a_path_share_a_rate_limit() {
    let limit = RateLimit {
        name: "test/limit".into(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: vec![KeyPart::Path],
        algorithm: QuotaAlgorithm::FixedWindow { requests: 3, period_ms: 1 << 40 },
    };
    let mesh = web(tells_targets().await).config("web", |config| config.inbound.rate_limits = vec![limit]).start();
    for target in ["/login", "//login", "/%6Cogin"] {
        assert_eq!(send(mesh.gateway(), target).await.0, 200, "{target}");
    }
    for target in ["/login", "/x/..%2flogin", "/login;x", "/./login", "/%256Cogin"] {
        assert_eq!(send(mesh.gateway(), target).await.0, 429, "{target}");
    }
    assert_eq!(send(mesh.gateway(), "/other").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_is_judged_again_by_every_reading() {
    for change in ["rule", "route"] {
        let (_more, body) = upstream::channel();
        let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
        let upstream = upstream::http1(move |_| {
            let body = body.lock().unwrap().take();
            async move { Response::new(body.unwrap_or_else(empty)) }
        });
        let mesh = web(upstream.await.address).start();
        let mut client = Raw::connect(mesh.gateway()).await;
        client.send("GET /a%2F..%2Fadmin HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        mesh.change(&["web"], |config| match change {
            "rule" => no_admin(config),
            _ => config.expose = vec![Expose { hosts: vec!["web".into()], path: "/a".into() }],
        });
        let closed = mesh.told(request_id(&head), 1).await.remove(0);
        assert_eq!(closed.judgement.unwrap().verdict, "deny", "{change}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_explained_has_both_forms() {
    let mesh = web(tells_targets().await).config("web", no_admin).start();
    let ask = async |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n");
        let reply = raw::exchange(mesh.gateway(), request).await;
        let told = mesh.told(request_id(&reply), 1).await.remove(0);
        (told.asked.path, told.judgement.unwrap())
    };
    let (path, judgement) = ask("/a//b%2fc?x").await;
    assert_eq!(path, "/a//b%2fc");
    assert!(judgement.as_received && !judgement.path_changed);
    for reading in ["/a//b%2Fc", "/a/b%2Fc", "/a/b/c"] {
        assert!(judgement.readings.iter().any(|other| other == reading), "{:?}", judgement.readings);
    }
    let (path, judgement) = ask("/a%2f../admin").await;
    assert_eq!(path, "/a%2f../admin");
    assert!(judgement.as_received && judgement.readings.contains(&"/admin".to_owned()), "{judgement:?}");
    assert_eq!(judgement.clause, r#"the deny rule matches "GET" "/admin""#);
    let (path, judgement) = ask("/a").await;
    assert_eq!((path.as_str(), judgement.readings.len()), ("/a", 0));
}
