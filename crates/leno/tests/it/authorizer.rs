//! External authorizers: over gRPC and over HTTP, as Externals and as functions, and all their
//! possible answers.

use crate::authorizer_server::{Authorizer, ReceivedCheck, Say};
use crate::outside::Server;
use leno_testkit::Answer;
use leno_testkit::mesh::{self, Mesh, echo_function, policy};
use serde_json::{Value, json};

/// Some rules of the functions' policies.
const RULES: &str =
    "  authorization: {rules: [{name: shop, to: [{paths: [\"/items/*\", \"/open/*\", \"/call/*\", \"/status/*\"]}]}]}";

/// The protocol of an authorizer, and whether it is an External or a function.
#[derive(Clone, Copy, Debug)]
enum Way {
    Grpc { outside: bool },
    Http { outside: bool },
}

const WAYS: [Way; 4] = [
    Way::Grpc { outside: true },
    Way::Grpc { outside: false },
    Way::Http { outside: true },
    Way::Http { outside: false },
];

impl Way {
    fn protocol(self) -> &'static str {
        match self {
            Self::Grpc { .. } => "grpc",
            Self::Http { .. } => "http",
        }
    }

    /// The document of the authorizer `authz`, and the policy that lets these functions ask it.
    fn authorizer(self, port: u16, callers: &str) -> String {
        let (grpc, outside) = match self {
            Self::Grpc { outside } => (true, outside),
            Self::Http { outside } => (false, outside),
        };
        let document = if outside {
            let http2 = if grpc { ", http2: true" } else { "" };
            format!(
                "kind: External\nmetadata: {{name: authz, namespace: test}}\nspec:\n  addresses: [127.0.0.9]\n  ports: [{{port: {port}, protocol: http{http2}}}]\n"
            )
        } else {
            let protocol = if grpc { "grpc" } else { "http1" };
            format!(
                "kind: Function\nmetadata: {{name: authz, namespace: test}}\nspec:\n  protocol: {protocol}\n  external: {{addresses: [\"127.0.0.9:{port}\"]}}\n"
            )
        };
        let callers = format!("  authorization: {{rules: [{{name: shops, from: [{{identities: [{callers}]}}]}}]}}");
        format!("---\napiVersion: leno.dev/v1alpha1\n{document}") + &policy("authz", "authz", &callers)
    }
}

/// A function at `<name>.example`, and the policy that sends its requests to the authorizer.
fn function(name: &str, protocol: &str, more: &str, policy_more: &str) -> String {
    let expose = format!("  expose: [{{hosts: [{name}.example], path: /}}]\n  isolation: process");
    let asks = format!(
        "{RULES}\n  externalAuthorization:\n  - name: ext\n    service: authz\n    protocol: {protocol}\n{more}{policy_more}"
    );
    echo_function(name, &expose) + &policy(&format!("guard-{name}"), name, &asks)
}

fn shop(way: Way, more: &str) -> String {
    let more = format!(
        "    timeout: 20s\n    upstreamHeaders: [x-user]\n    clientHeaders: [www-authenticate, location]\n    when: [{{notPaths: [\"/open/*\"]}}]\n{more}"
    );
    function("shop", way.protocol(), &more, "")
}

fn get(mesh: &Mesh, name: &str, path: &str, headers: &[&str]) -> Answer {
    let host = format!("host: {name}.example");
    let mut arguments = vec!["--header", &host];
    headers.iter().for_each(|header| arguments.extend(["--header", header]));
    mesh.curl(path, &arguments)
}

fn explained(mesh: &Mesh, answer: &Answer) -> String {
    mesh.explain(answer.header("x-request-id").unwrap_or_else(|| panic!("{answer:?}")))
}

/// Where paths are forwarded unchanged, the sidecar refuses a request if the authorizer would
/// refuse one reading of its path.
#[test]
fn an_authorizer_is_asked_about_each_reading_of_a_path() {
    let way = Way::Grpc { outside: true };
    let server = Authorizer::start();
    let shop = shop(way, "").replace("  isolation: process", "  isolation: process\n  paths: {send: asReceived}");
    let mesh = Mesh::start(&(way.authorizer(server.port(), "shop") + &shop));
    server.say(Say::Decide(|asked| !asked.path.starts_with("/items/admin")));
    for path in ["/items/a%2f..%2fadmin", "/items/./admin", "/items//admin", "/items/%61dmin?q", "/items/admin"] {
        let answer = get(&mesh, "shop", path, &[]);
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
    }
    let before = server.count();
    let answer = get(&mesh, "shop", "/items/a%2fb?q=%2f", &[]);
    let explained = explained(&mesh, &answer);
    assert_eq!(answer.status, 200, "{explained}");
    assert_eq!(answer.json()["path"], "/items/a%2fb?q=%2f");
    let asked: Vec<String> = server.asked().into_iter().skip(before).map(|asked| asked.path).collect();
    assert_eq!(asked, ["/items/a%2Fb?q=%2f", "/items/a/b?q=%2f", "/items/a%2fb?q=%2f"]);
    for line in ["sent on as it came", "/items/a%2Fb", "/items/a/b"] {
        assert!(explained.contains(line), "{line}: {explained}");
    }
}

#[test]
fn an_authorizer_allows_refuses_and_says_who_it_is_whichever_way_it_is_asked() {
    for way in WAYS {
        let server = Authorizer::start();
        let mesh = Mesh::start(&(way.authorizer(server.port(), "shop") + &shop(way, "    includeHeaders: [x-team]\n")));
        // Allowed, with headers: the function gets those that the policy names, and clients cannot
        // forge them.
        server.say(Say::Allow(vec![("x-user", "ann"), ("x-other", "1")]));
        let sent = ["x-user: root", "X_User: root", "x-team: red", "x-secret: 1", "authorization: Bearer a"];
        let answer = get(&mesh, "shop", "/items/1?q=%2f", &sent);
        assert_eq!(answer.status, 200, "{way:?}: {answer:?}");
        let headers = answer.json()["headers"].clone();
        assert_eq!(headers["x-user"], json!(["ann"]), "{way:?}: {headers}");
        assert!(headers.get("x_user").is_none() && headers.get("x-other").is_none(), "{way:?}: {headers}");
        let asked = server.asked().pop().unwrap();
        assert_eq!((&*asked.method, &*asked.path), ("GET", "/items/1?q=%2f"), "{way:?}");
        assert_eq!(asked.headers.get("x-team").map(String::as_str), Some("red"), "{way:?}: {asked:?}");
        let is_there = |name: &str| asked.headers.contains_key(name);
        assert!(!is_there("x-user") && !is_there("x_user") && !is_there("x-secret"), "{way:?}: {asked:?}");
        assert_eq!(is_there("authorization"), matches!(way, Way::Http { .. }), "{way:?}: {asked:?}");
        if let Way::Grpc { .. } = way {
            assert_eq!((&*asked.host, &*asked.scheme), ("shop.example", "http"), "{asked:?}");
            assert_eq!(asked.destination, "spiffe://test.example/ns/test/sa/shop");
            assert_eq!(Some(asked.id.as_str()), answer.header("x-request-id"));
        }
        assert!(explained(&mesh, &answer).contains("guard-shop/externalAuthorization/ext: allowed"), "{way:?}");
        // Allowed without headers: the function does not get the client's headers of those names
        // either, whether or not the sidecar asked the authorizer.
        server.say(Say::Allow(vec![]));
        for (path, asks) in [("/items/1", 1), ("/open/1", 0)] {
            let before = server.count();
            let headers = get(&mesh, "shop", path, &["x-user: root", "X_User: root"]).json()["headers"].clone();
            assert!(headers.get("x-user").is_none() && headers.get("x_user").is_none(), "{way:?} {path}: {headers}");
            assert_eq!(server.count() - before, asks, "{way:?} {path}");
        }
        // A request that no rule allows is refused without a call to the authorizer.
        let before = server.count();
        assert_eq!(get(&mesh, "shop", "/secret", &[]).status, 403);
        assert_eq!(server.count(), before, "{way:?}");
        // Refused.
        let headers =
            vec![("www-authenticate", "Bearer realm=\"x\""), ("x-inside", "1"), ("content-type", "text/html")];
        server.say(Say::Refuse(401, headers, "<p>no</p>"));
        let answer = get(&mesh, "shop", "/items/1", &[]);
        assert_eq!((answer.status, &*answer.body), (401, "<p>no</p>"), "{way:?}: {answer:?}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"x\""));
        assert_eq!(answer.header("content-type"), Some("text/html"));
        assert_eq!(answer.header("x-inside"), None);
        let told = explained(&mesh, &answer);
        assert!(
            told.contains("guard-shop/externalAuthorization/ext") && told.contains("it refused with 401"),
            "{told}"
        );
        server.say(Say::Refuse(302, vec![("location", "https://login.example/")], ""));
        let answer = get(&mesh, "shop", "/items/1", &[]);
        assert_eq!((answer.status, answer.header("location")), (302, Some("https://login.example/")), "{way:?}");
        mesh.metrics(&["policy=\"externalAuthorization\"", "rule=\"guard-shop/externalAuthorization/ext\""]);
    }
}

/// A decision from the fields that policies for Envoy read. Like the plug-in of Open Policy Agent,
/// it derives `parsed_path` from the path, and takes the other fields from the message.
fn opa(asked: &ReceivedCheck) -> bool {
    let header = |name: &str| asked.headers.get(name).map_or("", String::as_str);
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let parsed_path: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let reads = header(":method") == "GET" && parsed_path[0] == "items" && header(":path").starts_with("/items/");
    let agrees =
        header(":path") == asked.path && header(":authority") == asked.host && header(":scheme") == asked.scheme;
    // Rules with `not` allow requests without the field.
    let not_admin = header(":authority") != "admin.example" && header("upgrade") != "websocket";
    reads && agrees && not_admin && !query.contains("drop")
}

#[test]
fn policies_for_envoy_find_what_envoy_sends() {
    let (way, server) = (Way::Grpc { outside: true }, Authorizer::start());
    let named = function("named", "grpc", "    timeout: 20s\n    includeHeaders: [x-team]\n", "");
    let shop = shop(way, "").replace("[shop.example]", "[shop.example, admin.example]");
    let mesh = Mesh::start(&(way.authorizer(server.port(), "shop, named") + &shop + &named));
    server.say(Say::Decide(opa));
    let handshake = [
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
    ];
    let cases: &[(&str, &str, &str, &[&str], u16)] = &[
        ("GET", "shop.example", "/items/1?q=%2F", &[], 200),
        ("GET", "SHOP.example.:80", "/items//2", &[], 200),
        ("GET", "shop.example", "/items/1?drop", &[], 403),
        ("POST", "shop.example", "/items/1", &[], 403),
        ("GET", "shop.example", "/call/1", &[], 403),
        ("GET", "admin.example", "/items/1", &[], 403),
        // An authorizer reads a host as routes and rules do.
        ("GET", "ADMIN.example.", "/items/1", &[], 403),
        ("GET", "shop.example", "/items/1", &handshake, 403),
        ("GET", "named.example", "/items/1", &["x-team: red", "x-other: 1"], 200),
    ];
    for (method, host, path, fields, status) in cases {
        for (option, protocol) in [("--http1.1", "HTTP/1.1"), ("--http2-prior-knowledge", "HTTP/2")] {
            if !fields.is_empty() && fields[0].starts_with("connection") && protocol == "HTTP/2" {
                continue;
            }
            let host = format!("host: {host}");
            let fields = fields.iter().flat_map(|field| ["--header", field]);
            let arguments: Vec<&str> =
                [option, "--request", method, "--header", &host].into_iter().chain(fields).collect();
            let answer = mesh.curl(path, &arguments);
            let asked = server.asked().pop().unwrap();
            assert_eq!(answer.status, *status, "{method} {host} {path} {protocol}: {asked:?}");
            assert_eq!(asked.protocol, protocol);
            let expected = [
                (":method", &asked.method),
                (":path", &asked.path),
                (":authority", &asked.host),
                (":scheme", &asked.scheme),
            ];
            for (name, value) in expected {
                assert_eq!(asked.headers.get(name), Some(value), "{asked:?}");
            }
            assert!(!asked.headers.contains_key("host"), "{asked:?}");
        }
    }
    let asked = server.asked();
    let websocket = asked.iter().find(|asked| asked.headers.contains_key("sec-websocket-key")).unwrap();
    let of_handshake = ["upgrade", "connection"].map(|name| websocket.headers[name].to_ascii_lowercase());
    assert_eq!(of_handshake, ["websocket", "upgrade"]);
    let named: Vec<&str> = asked.last().unwrap().headers.keys().map(String::as_str).collect();
    assert_eq!(named, [":authority", ":method", ":path", ":scheme", "x-team"]);
    assert_eq!(asked[1].host, "shop.example");
    assert_eq!(asked[2].host, "shop.example:80");
}

#[test]
fn headers_are_shown_joined_or_as_they_came() {
    let (way, server) = (Way::Grpc { outside: true }, Authorizer::start());
    let raw = function("raw", "grpc", "    timeout: 20s\n    rawHeaders: true\n", "");
    let mesh = Mesh::start(&(way.authorizer(server.port(), "shop, raw") + &shop(way, "") + &raw));
    server.say(Say::Allow(vec![]));
    let sent = ["x-two;", "x-two: b", "x-empty;", "x-latin: \u{e9}"];
    assert_eq!(get(&mesh, "shop", "/items/1", &sent).status, 200);
    let asked = server.asked().pop().unwrap();
    assert_eq!((&*asked.headers["x-two"], &*asked.headers["x-empty"]), (",b", ""), "{asked:?}");
    assert_eq!(asked.raw_headers, []);
    assert_eq!(get(&mesh, "raw", "/items/1", &sent).status, 200);
    let asked = server.asked().pop().unwrap();
    assert!(asked.headers.is_empty(), "{asked:?}");
    let of = |name: &str| -> Vec<Vec<u8>> {
        asked.raw_headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    };
    assert_eq!((of(":path"), of(":authority")), (vec![b"/items/1".to_vec()], vec![b"raw.example".to_vec()]));
    assert_eq!((of("x-two"), of("x-empty")), (vec![vec![], b"b".to_vec()], vec![vec![]]));
    assert_eq!(of("x-latin"), [String::from("\u{e9}").into_bytes()]);
}

#[test]
fn without_an_answer_to_rely_on_the_request_is_refused() {
    for way in WAYS {
        let mut server = Authorizer::start();
        let documents = way.authorizer(server.port(), "shop, quick")
            + &shop(way, "    statusOnError: 500\n")
            + &function("quick", way.protocol(), "    timeout: 100ms\n", "");
        let mut mesh = Mesh::start(&documents);
        let refused = |mesh: &mut Mesh, name: &str, status: u16, why: &str| {
            let answer = get(mesh, name, "/items/1", &[]);
            assert_eq!(answer.status, status, "{way:?} {why}: {answer:?}");
            let told = explained(mesh, &answer);
            let rule = format!("guard-{name}/externalAuthorization/ext");
            assert!(told.contains(&rule) && told.contains(why), "{way:?} {why}: {told}");
            assert!(!answer.body.contains(why), "why is for the operator only: {answer:?}");
        };
        server.say(Say::Silence);
        refused(&mut mesh, "quick", 503, "it did not answer within 100ms");
        server.say(Say::Huge);
        refused(&mut mesh, "shop", 500, "larger than 65536 bytes");
        server.say(Say::Break);
        refused(&mut mesh, "shop", 500, "it could not be asked");
        server.say(Say::Allow(vec![("x-user", "a\tb\u{7f}")]));
        if let Way::Grpc { .. } = way {
            refused(&mut mesh, "shop", 500, "the value for header `x-user`");
            for bytes in [&b""[..], b"\0\0\0\0\0", b"garbage", b"\0\0\0\0\x01\xff", b"\x01\0\0\0\0"] {
                server.say(Say::Bytes(bytes.to_vec()));
                refused(&mut mesh, "shop", 500, "its answer is not understood");
            }
            server.say(Say::Grpc(14));
            refused(&mut mesh, "shop", 500, "its gRPC call failed with status 14");
            server.say(Say::Refuse(200, vec![], ""));
            refused(&mut mesh, "shop", 500, "200 is not the status of a refusal");
        } else {
            for status in [204, 500, 503] {
                server.say(Say::Refuse(status, vec![], ""));
                refused(&mut mesh, "shop", 500, &format!("it answered with status {status}"));
            }
        }
        server.die();
        refused(&mut mesh, "shop", 500, "it could not be asked");
    }
}

#[test]
fn an_authorizer_that_does_not_let_the_function_ask_refuses() {
    let way = Way::Http { outside: false };
    let server = Authorizer::start();
    server.say(Say::Allow(vec![]));
    let documents =
        way.authorizer(server.port(), "other") + &shop(way, "") + &echo_function("other", "  isolation: process");
    let mesh = Mesh::start(&documents);
    let answer = get(&mesh, "shop", "/items/1", &[]);
    assert_eq!((answer.status, server.count()), (503, 0), "{answer:?}");
    let told = explained(&mesh, &answer);
    assert!(told.contains("a policy refused the call with 403"), "{told}");
    assert!(told.contains("spiffe://test.example/ns/test/sa/shop"), "the call itself is told too: {told}");
}

#[test]
fn answers_are_remembered_by_the_key_that_the_policy_names() {
    for way in [Way::Grpc { outside: true }, Way::Http { outside: false }] {
        let server = Authorizer::start();
        let cache = "    timeout: 20s\n    upstreamHeaders: [x-user]\n    includeHeaders: [x-key]\n    cache: {ttl: 1h, key: [{header: x-key}, method, path]}\n";
        let mesh =
            Mesh::start(&(way.authorizer(server.port(), "cached") + &function("cached", way.protocol(), cache, "")));
        server.say(Say::Allow(vec![("x-user", "ann")]));
        let ask = |path: &str, headers: &[&str]| {
            let before = server.count();
            let answer = get(&mesh, "cached", path, headers);
            (answer.status, server.count() - before, answer)
        };
        let (status, asked, _) = ask("/items/1", &["x-key: a"]);
        assert_eq!((status, asked), (200, 1), "{way:?}");
        let (status, asked, answer) = ask("/items/1", &["x-key: a", "x-other: 1", "x-user: root"]);
        assert_eq!((status, asked), (200, 0), "{way:?}");
        assert_eq!(answer.json()["headers"]["x-user"], json!(["ann"]), "{way:?}");
        assert!(explained(&mesh, &answer).contains("allowed (remembered)"), "{way:?}");
        for (path, headers) in [
            ("/items/2", &["x-key: a"][..]),
            ("/items/1?q", &["x-key: a"]),
            ("/items/1", &["x-key: b"]),
            ("/items/1", &["x-key: a", "x-key: b"]),
        ] {
            assert_eq!(ask(path, headers).1, 1, "{way:?} {path} {headers:?}");
            assert_eq!(ask(path, headers).1, 0, "{way:?} {path} {headers:?}");
        }
        // A request that lacks a part of the key is never answered from the cache.
        assert_eq!((ask("/items/1", &[]).1, ask("/items/1", &[]).1), (1, 1), "{way:?}");
        // The cache keeps refusals, but no failures.
        server.say(Say::Refuse(403, vec![], "no"));
        for asked in [1, 0] {
            let (status, count, answer) = ask("/items/3", &["x-key: a"]);
            assert_eq!((status, count, &*answer.body), (403, asked, "no"), "{way:?}");
        }
        server.say(Say::Break);
        assert_eq!(ask("/items/4", &["x-key: a"]).0, 503, "{way:?}");
        server.say(Say::Allow(vec![]));
        assert_eq!(ask("/items/4", &["x-key: a"]).0, 200, "{way:?}");
        assert_eq!(ask("/items/1", &["x-key: a"]).1, 0, "{way:?}: what was known is known");
    }
}

#[test]
fn an_audited_authorizer_is_asked_and_told_and_refuses_nobody() {
    let way = Way::Grpc { outside: false };
    let server = Authorizer::start();
    let documents = way.authorizer(server.port(), "watched")
        + &function("watched", way.protocol(), "    timeout: 20s\n", "  mode: audit\n");
    let mut mesh = Mesh::start(&documents);
    server.say(Say::Refuse(401, vec![], "no"));
    let answer = get(&mesh, "watched", "/items/1", &[]);
    assert_eq!((answer.status, server.count()), (200, 1), "{answer:?}");
    server.say(Say::Break);
    assert_eq!(get(&mesh, "watched", "/items/2", &[]).status, 200);
    // Each worker writes its own lines.
    let mut lines = mesh.log_lines("audit_rule", "guard-watched/externalAuthorization/ext", 2);
    lines.sort_by_key(|line| line["path"].to_string());
    let clauses: Vec<&Value> = lines.iter().map(|line| &line["audit_clause"]).collect();
    assert_eq!(clauses[0], "it refused with 401");
    assert!(clauses[1].as_str().unwrap().contains("it could not be asked"), "{clauses:?}");
    assert!(lines.iter().all(|line| line["audit_verdict"] == "deny" && line["verdict"] == "allow"), "{lines:?}");
}

#[test]
fn a_call_between_functions_is_asked_about_with_the_caller() {
    let way = Way::Grpc { outside: true };
    let server = Authorizer::start();
    server.say(Say::Allow(vec![]));
    let caller = echo_function(
        "caller",
        "  expose: [{hosts: [caller.example], path: /}]\n  callees: [shop]\n  isolation: process",
    ) + &policy("in", "caller", mesh::ALLOW_ALL);
    let mesh = Mesh::start(&(way.authorizer(server.port(), "shop") + &shop(way, "") + &caller));
    assert_eq!(get(&mesh, "caller", "/call/shop/items/7", &[]).status, 200);
    let asked: Vec<ReceivedCheck> = server.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!((&*asked[0].source, &*asked[0].path), ("spiffe://test.example/ns/test/sa/caller", "/items/7"));
}

#[test]
fn a_call_to_the_outside_is_asked_about() {
    let (server, api) = (Authorizer::start(), Server::http("127.0.0.9:0"));
    let way = Way::Http { outside: false };
    let external = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: External\nmetadata: {{name: api, namespace: test}}\nspec:\n  addresses: [127.0.0.9]\n  \
         ports: [{{port: {}, protocol: http}}]\n",
        api.port()
    );
    let asks = "  authorization: {rules: [{from: [{identities: [caller]}]}]}\n  externalAuthorization: [{name: ext, service: authz, protocol: http, \
                timeout: 20s, upstreamHeaders: [x-user]}]";
    let caller = echo_function(
        "caller",
        "  expose: [{hosts: [caller.example], path: /}]\n  callees: [api]\n  isolation: process",
    ) + &policy("in", "caller", mesh::ALLOW_ALL);
    let mesh = Mesh::start(&(way.authorizer(server.port(), "api") + &external + &policy("out", "api", asks) + &caller));
    let path = format!("/call/127.0.0.9:{}/items/7", api.port());
    server.say(Say::Allow(vec![("x-user", "ann")]));
    let answer = get(&mesh, "caller", &path, &[]);
    assert_eq!((answer.status, server.count(), api.requests()), (200, 1, 1), "{answer:?}");
    assert_eq!(answer.json()["headers"]["x-user"], "ann");
    server.say(Say::Refuse(403, vec![], ""));
    assert_eq!(get(&mesh, "caller", &path, &[]).status, 403);
    assert_eq!((server.count(), api.requests()), (2, 1));
}

#[test]
fn an_authorizer_behind_tls_is_asked_like_any_other() {
    for way in [Way::Grpc { outside: false }, Way::Http { outside: false }] {
        let server = Authorizer::start();
        let documents = way.authorizer(server.port(), "shop") + &shop(way, "");
        let mut mesh = Mesh::start_with("  mtls: {sameNode: always}\n", &documents);
        server.say(Say::Allow(vec![("x-user", "ann")]));
        let answer = get(&mesh, "shop", "/items/1", &[]);
        assert_eq!(answer.status, 200, "{way:?}: {answer:?}");
        assert_eq!(answer.json()["headers"]["x-user"], json!(["ann"]), "{way:?}");
        server.say(Say::Break);
        let answer = get(&mesh, "shop", "/items/1", &[]);
        assert_eq!(answer.status, 503, "{way:?}: {answer:?}");
        mesh.log_lines("direction", "inbound", 2);
    }
}

/// A Gateway, a route that asks `authz`, and a function whose policy has no authorizer.
fn routed(gateway: u16, port: u16, way: Way) -> String {
    let api = "---\napiVersion: gateway.networking.k8s.io/v1\n";
    let (protocol, http) = match way {
        Way::Grpc { .. } => ("GRPC", ", grpc: {}"),
        Way::Http { .. } => {
            ("HTTP", ", http: {path: /check, allowedHeaders: [x-team], allowedResponseHeaders: [x-user]}")
        }
    };
    let shop = echo_function("shop", "  isolation: process\n  scale: {min: 1}") + &policy("shop", "shop", RULES);
    let open = policy("open-authz", "authz", mesh::ALLOW_ALL);
    format!(
        "{}{open}{shop}{api}kind: Gateway\nmetadata: {{name: gate, namespace: test}}\nspec: {{gatewayClassName: leno, listeners: [{{name: http, port: {gateway}, protocol: HTTP}}]}}\n{api}kind: HTTPRoute\nmetadata: {{name: shop, namespace: test}}\nspec:\n  parentRefs: [{{name: gate}}]\n  hostnames: [shop.example]\n  rules:\n  - filters: [{{type: ExternalAuth, externalAuth: {{protocol: {protocol}, backendRef: {{name: authz, port: {port}}}{http}}}}}]\n    backendRefs: [{{name: shop, port: 80}}]\n",
        way.authorizer(port, "shop")
    )
}

#[test]
fn a_route_asks_an_authorizer_before_policies_judge() {
    let server = Authorizer::start();
    let mut mesh = Mesh::start("");
    for way in WAYS {
        server.say(Say::Allow(vec![("x-user", "ann"), ("x-other", "1"), ("x-leno-caller", "root")]));
        mesh.write(&routed(mesh.ports.gateway, server.port(), way));
        let sent = ["x-user: root", "X_User: root", "x-team: red", "authorization: Bearer a"];
        let begin = server.count();
        // The route of the way before must be gone.
        mesh.wait_for("the route", |mesh| {
            let asked = server.asked().into_iter().skip(begin).next_back();
            let is_http = asked.is_some_and(|asked| asked.path.starts_with("/check/"));
            let answer = get(mesh, "shop", "/items/1?q=%2f", &sent);
            answer.status == 200 && is_http == matches!(way, Way::Http { .. })
        });
        let answer = get(&mesh, "shop", "/items/1?q=%2f", &sent);
        let headers = &answer.json()["headers"];
        assert_eq!(headers["x-user"], json!(["ann"]), "{way:?}: {answer:?}");
        assert!(headers["x_user"].is_null(), "{way:?}: {answer:?}");
        assert_eq!(headers["x-other"].is_null(), matches!(way, Way::Http { .. }), "{way:?}: {answer:?}");
        let asked = server.asked().pop().unwrap();
        let prefix = if matches!(way, Way::Http { .. }) { "/check" } else { "" };
        assert_eq!(
            (asked.method.as_str(), asked.path.as_str()),
            ("GET", &*format!("{prefix}/items/1?q=%2f")),
            "{way:?}"
        );
        assert_eq!(asked.headers.get("authorization").map(String::as_str), Some("Bearer a"), "{way:?}");
        if let Way::Grpc { .. } = way {
            assert!(asked.destination.ends_with("/sa/shop") && asked.host == "shop.example", "{asked:?}");
        }
        // The policies judge afterwards.
        let before = server.count();
        assert_eq!(get(&mesh, "shop", "/private", &sent).status, 403, "{way:?}");
        assert_eq!(server.count(), before + 1, "{way:?}");
        server.say(Say::Refuse(401, vec![("www-authenticate", "Basic"), ("x-secret", "1")], "who?"));
        let answer = get(&mesh, "shop", "/items/1", &[]);
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Basic")), "{way:?}: {answer:?}");
        assert_eq!((answer.header("x-secret"), answer.body.as_str()), (None, "who?"), "{way:?}");
        let explained = explained(&mesh, &answer);
        assert!(explained.contains("test/shop/externalAuth/0"), "{way:?}: {explained}");
        server.say(Say::Break);
        assert_eq!(get(&mesh, "shop", "/items/1", &[]).status, 503, "{way:?}");
    }
}
