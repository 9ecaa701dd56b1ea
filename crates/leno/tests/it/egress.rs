//! Calls to external services: by name and by address, with TLS and with secrets of the node, and
//! the refusals of such calls.

mod backend_tls;
mod stored;
mod tcp;

use crate::outside::{Answer, Names, Server, external, reading};
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{self, Mesh, echo, policy};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn caller(callees: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: caller, namespace: test}}\nspec:\n  command: [\"{}\"]\n  \
         expose: [{{hosts: [\"*\"], path: /}}]\n  callees: [{callees}]\n",
        echo().display()
    ) + &policy("in", "caller", mesh::ALLOW_ALL)
}

fn start(names: &Names, documents: &str, prepare: impl FnOnce(&Path)) -> Mesh {
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mesh = format!("  instances: {{isolation: process, accounts: node}}\n{}", names.mesh());
    Mesh::start_with_command(leno, &mesh, documents, prepare)
}

/// The server's view of a call to it.
fn seen(mesh: &Mesh, host: &str, path: &str) -> Value {
    let answer = mesh.get(&format!("/call/{host}{path}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = answer.json();
    assert_eq!(seen["outside"], true, "{seen}");
    seen
}

fn status(mesh: &Mesh, host: &str, path: &str) -> u16 {
    mesh.get(&format!("/call/{host}{path}")).status
}

/// The log line with the reason why the latest request to `host` was refused or failed.
fn reason(mesh: &mut Mesh, host: &str, fragment: &str) -> Value {
    let mut found = None;
    mesh.wait_for("the flow", |mesh| {
        let output = mesh.leno(&["observe", "--json", "--last", "1000"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let mut flows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        found = flows.find(|flow| {
            flow["host"].as_str().is_some_and(|at| at.starts_with(host))
                && flow["reason"].as_str().is_some_and(|reason| reason.contains(fragment))
        });
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn the_node_begins_tls_and_adds_the_secret_and_judges_each_request() {
    let (names, authority) = (Names::start(), CertificateAuthority::default());
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 60));
    let server = Server::https("127.0.0.1:0", &authority, &["api.shop.example"], Some(&authority));
    let port = server.port();
    let documents = caller("api")
        + &external(
            "api",
            &format!(
                "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {port}, protocol: https}}]\n  \
                 tls: {{caFile: ca.pem, certificate: client.pem, key: client.key}}\n  credentials: [{{scheme: Bearer, from: token}}, \
                 {{header: x-basic, username: shop, from: password}}, {{header: x-plain, from: token}}]"
            ),
        )
        + &reading("api", "");
    let mut mesh = start(&names, &documents, |folder| {
        fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
        authority.write(folder, "client", &["node.example"]);
        fs::write(folder.join("token"), "swordfish\n").unwrap();
        fs::write(folder.join("password"), "open sesame").unwrap();
    });
    let seen = seen(&mesh, "api.shop.example", "/items");
    assert_eq!((&seen["method"], &seen["uri"]), (&"GET".into(), &"/items".into()));
    let tls = &seen["tls"];
    assert_eq!(
        (&tls["sni"], &tls["alpn"], &tls["client"]),
        (&"api.shop.example".into(), &"http/1.1".into(), &true.into())
    );
    let headers = seen["headers"].as_object().unwrap();
    assert_eq!(headers["authorization"], "Bearer swordfish");
    assert_eq!(headers["x-basic"], "Basic c2hvcDpvcGVuIHNlc2FtZQ==");
    assert_eq!(headers["x-plain"], "swordfish");
    assert_eq!(headers["host"], format!("api.shop.example:{port}"));
    // The node sends no headers of the mesh.
    let mut known = vec!["authorization", "host", "x-basic", "x-plain"];
    let told: Vec<&str> = headers.keys().map(String::as_str).filter(|name| !known.contains(name)).collect();
    assert_eq!(told, [""; 0], "{headers:?}");

    // The function cannot replace the secret, and the sidecar judges its path and method.
    let calls = r#"[{"method":"GET","host":"api.shop.example","path":"/","headers":[["authorization","mine"],["x-custom","1"],["traceparent","00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]],"http2":false}]"#;
    assert_eq!(mesh.curl("/send", &["--data", calls]).status, 200);
    known.push("x-custom");
    assert_eq!(server.requests(), 2);
    for (path, method) in [("/admin/keys", "GET"), ("/items", "POST"), ("/items/..%2fadmin/keys", "GET")] {
        let refused = mesh.curl(&format!("/call/api.shop.example{path}"), &["--request", method]);
        assert!((400..404).contains(&refused.status), "{method} {path}: {refused:?}");
    }
    assert_eq!(server.requests(), 2, "nothing that was refused went out");
    let lines = mesh.log_lines("rule", "api/authorization/read", 2);
    assert!(lines.iter().all(|line| line["target"] == "test/api"), "the rule that decided is in the log: {lines:?}");

    // A secret that cannot be read: the node sends no request without it. Calls of running
    // functions carry the file's new content.
    fs::write(mesh.folder.path().join("token"), "trout").unwrap();
    mesh.wait_for("the new secret", |mesh| {
        let answer = mesh.get("/call/api.shop.example/");
        answer.json()["headers"]["authorization"] == "Bearer trout"
    });
    fs::remove_file(mesh.folder.path().join("token")).unwrap();
    mesh.wait_for("the secret to be missed", |mesh| status(mesh, "api.shop.example", "/") == 503);
    let flow = reason(&mut mesh, "api.shop.example", "the credential authorization");
    assert!(!flow.to_string().contains("trout"), "{flow}");
}

/// A certificate that signed itself, and its key, as people make them.
fn openssl(folder: &Path, stem: &str, more: &[&str]) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let (certificate, key) = (folder.join(stem).with_extension("pem"), folder.join(stem).with_extension("key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=api.shop.example", "-days", "2"])
        .args(more)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl, of the Debian package openssl");
    assert!(made.status.success(), "{made:?}");
    (CertificateDer::from_pem_file(certificate).unwrap(), PrivateKeyDer::from_pem_file(key).unwrap())
}

#[test]
fn a_certificate_that_signed_itself_is_trusted_for_its_server_alone() {
    const NAMED: [&str; 2] = ["-addext", "subjectAltName=DNS:api.shop.example"];
    let folder = tempfile::tempdir().unwrap();
    let authority = openssl(folder.path(), "authority", &NAMED);
    let leaf = openssl(folder.path(), "leaf", &[&NAMED[..], &["-addext", "basicConstraints=CA:FALSE"]].concat());
    let other_name = openssl(folder.path(), "other-name", &["-addext", "subjectAltName=DNS:www.shop.example"]);
    let nameless = openssl(folder.path(), "nameless", &[]);
    let client = ["-addext", "extendedKeyUsage=clientAuth"];
    let client = openssl(folder.path(), "client-only", &[&NAMED[..], &client].concat());
    // The last one's file has the certificate of another server.
    let cases = [
        ("authority", authority, Ok(())),
        ("leaf", leaf, Ok(())),
        ("other-name", other_name, Err("only valid for DnsName(\"www.shop.example\")")),
        ("nameless", nameless, Err("not valid for any names")),
        ("client-only", client, Err("InvalidPurpose")),
        ("authority", openssl(folder.path(), "unlisted", &NAMED), Err("CaUsedAsEndEntity")),
        ("leaf", openssl(folder.path(), "unlisted-leaf", &NAMED), Err("UnknownIssuer")),
    ];
    let names = Names::start();
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 60));
    for (listed, (certificate, key), expected) in cases {
        let server = Server::with_certificate("127.0.0.1:0", certificate, key, None);
        let documents = caller("api")
            + &external(
                "api",
                &format!(
                    "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {}, protocol: https}}]\n  \
                     tls: {{caFile: ca.pem}}",
                    server.port()
                ),
            )
            + &reading("api", "");
        let mut mesh = start(&names, &documents, |documents| {
            fs::copy(folder.path().join(listed).with_extension("pem"), documents.join("ca.pem")).unwrap();
        });
        match expected {
            Ok(()) => assert_eq!(seen(&mesh, "api.shop.example", "/items")["uri"], "/items", "{listed}"),
            Err(fragment) => {
                assert_eq!(status(&mesh, "api.shop.example", "/items"), 503, "{listed}");
                let flow = reason(&mut mesh, "api.shop.example", fragment).to_string();
                assert!(!flow.contains("Other("), "{flow}");
            }
        }
    }
}

#[test]
fn rules_are_about_where_a_call_goes() {
    let (names, authority) = (Names::start(), CertificateAuthority::default());
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 60));
    let server = Server::https("127.0.0.1:0", &authority, &["api.shop.example"], None);
    let plain = Server::http("127.0.0.1:0");
    let (port, plain_port) = (server.port(), plain.port());
    let documents = |rules: &str| {
        caller("api, block")
            + &external(
                "api",
                &format!(
                    "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.1]\n  ports: [{{port: {port}, protocol: https}}]\n  \
                     tls: {{caFile: ca.pem}}"
                ),
            )
            + &external(
                "block",
                &format!("  addresses: [127.0.0.1]\n  ports: [{{port: {plain_port}, protocol: http}}]"),
            )
            + &policy("api", "api", &format!("  authorization: {{rules: [{rules}]}}"))
            + &policy(
                "block",
                "block",
                "  authorization: {rules: [{name: not-this, action: deny, to: [{hosts: [127.0.0.9]}]}, {name: all}]}",
            )
    };
    let only = format!("{{name: only, to: [{{ports: [{port}]}}]}}");
    let mut mesh =
        start(&names, &documents(&only), |folder| fs::write(folder.join("ca.pem"), authority.pem()).unwrap());
    // Rules match the port of the service, whatever port the function called.
    seen(&mesh, "api.shop.example", "/");
    seen(&mesh, &format!("api.shop.example:{port}"), "/");
    mesh.write(&documents(&format!("{{name: deny, action: deny, to: [{{ports: [{port}]}}]}}, {{name: all}}")));
    mesh.wait_for("the change", |mesh| status(mesh, &format!("api.shop.example:{port}"), "/") == 403);
    assert_eq!(status(&mesh, "api.shop.example", "/"), 403);
    // Rules match the normal form of an address.
    seen(&mesh, &format!("127.0.0.1:{plain_port}"), "/");
    for other in ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "127.1", "0x7f000001", "2130706433"] {
        let refused = status(&mesh, &format!("{other}:{plain_port}"), "/");
        assert!((400..404).contains(&refused), "{other}: {refused}");
    }
}

#[test]
fn what_was_refused_becomes_documents_to_review() {
    let names = Names::start();
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 60));
    names.set("known.example", Answer::Addresses(vec![HERE], 60));
    let server = Server::http("127.0.0.1:0");
    let port = server.port();
    let other = external(
        "known",
        &format!("  hosts: [known.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {port}, protocol: http}}]"),
    );
    let stock = mesh::echo_function("stock", "") + &other;
    let mut mesh = start(&names, &(caller("known") + &stock), |_| ());
    for _ in 0..3 {
        assert_eq!(status(&mesh, "api.shop.example", "/v1/items"), 403);
    }
    assert_eq!(status(&mesh, "203.0.113.7:8080", "/x"), 403);
    assert_eq!(status(&mesh, "stock", "/x"), 403);
    assert_eq!(status(&mesh, &format!("known.example:{port}"), "/x"), 403, "no policy is about it");
    mesh.metrics(&[r#"leno_destinations_refused_total{source="test/caller",asked="request"} 6"#]);

    let suggested = mesh.leno(&["suggest", "egress", "caller"]);
    let text = String::from_utf8(suggested.stdout).unwrap();
    assert!(suggested.status.success(), "{text}");
    for expected in ["# 3 times.", "callees: [203-0-113-7, api-shop-example, stock]", "known-from-caller"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    mesh.write(&(caller("known, api-shop-example, 203-0-113-7, stock") + &stock + &text));
    mesh.wait_for("the suggested documents to be in force", |mesh| {
        status(mesh, "api.shop.example", "/v1/items") == 503
    });
    reason(&mut mesh, "api.shop.example", "`resolvesTo` does not admit");
    assert_eq!(status(&mesh, "api.shop.example", "/v1/other"), 403, "what was not asked for is not allowed");
    assert_eq!(seen(&mesh, &format!("known.example:{port}"), "/x")["method"], "GET");
    let listed = String::from_utf8(mesh.leno(&["get", "externals"]).stdout).unwrap();
    assert!(listed.contains("test/api-shop-example") && listed.contains("443 https"), "{listed}");
    assert!(!mesh.leno(&["suggest", "egress", "nobody"]).status.success());
}

#[test]
fn names_and_addresses_that_nobody_listed_are_refused() {
    let names = Names::start();
    let server = Server::http("127.0.0.1:0");
    let port = server.port();
    for (name, addresses) in [
        ("a.wild.example", vec![HERE]),
        ("b.a.wild.example", vec![HERE]),
        ("api.public.example", vec![HERE]),
        ("meta.public.example", vec![Ipv4Addr::new(169, 254, 169, 254)]),
        ("mesh.public.example", vec![Ipv4Addr::new(100, 64, 0, 1), Ipv4Addr::new(10, 0, 0, 1)]),
        ("evil.example", vec![HERE]),
    ] {
        names.set(name, Answer::Addresses(addresses, 60));
    }
    let documents = caller("wild, public, block")
        + &external(
            "wild",
            &format!(
                "  hosts: [\"*.wild.example\"]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {port}, protocol: http}}]"
            ),
        )
        + &external("public", &format!("  hosts: [\"*.public.example\"]\n  ports: [{{port: {port}, protocol: http}}]"))
        + &external("block", &format!("  addresses: [127.0.0.0/31]\n  ports: [{{port: {port}, protocol: http}}]"))
        + &reading("wild", "")
        + &reading("public", "")
        + &reading("block", "");
    let mut mesh = start(&names, &documents, |_| ());
    let at = |host: &str| format!("{host}:{port}");
    assert_eq!(seen(&mesh, &at("a.wild.example"), "/")["headers"]["host"], at("a.wild.example"));
    assert_eq!(seen(&mesh, &at("A.Wild.Example."), "/")["headers"]["host"], at("a.wild.example"));
    assert_eq!(seen(&mesh, &at("127.0.0.1"), "/")["headers"]["host"], at("127.0.0.1"));
    let before = server.connections();

    // Not callees.
    for host in
        ["b.a.wild.example", "wild.example", "evil.example", "127.0.0.2", "169.254.169.254", "[::1]", "localhost"]
    {
        assert_eq!(status(&mesh, &at(host), "/"), 403, "{host}");
    }
    // A port that the document does not list.
    assert_eq!(status(&mesh, "a.wild.example:9", "/"), 421);
    assert_eq!(status(&mesh, "a.wild.example", "/"), 421, "port 80");
    // Names of public servers that resolve to this machine, its metadata service, and private
    // networks, including the mesh's.
    for (host, address) in [
        ("api.public.example", "127.0.0.1"),
        ("meta.public.example", "169.254.169.254"),
        ("mesh.public.example", "100.64.0.1, 10.0.0.1"),
    ] {
        assert_eq!(status(&mesh, &at(host), "/"), 503, "{host}");
        let flow = reason(&mut mesh, host, "`resolvesTo` does not admit");
        assert!(flow["reason"].as_str().unwrap().contains(address), "{flow}");
    }
    assert_eq!(server.connections(), before, "nobody was connected to");
    for host in ["b.a.wild.example", "evil.example", "localhost"] {
        assert_eq!(names.asked(host), 0, "what is refused is not looked up: {host}");
    }
}

#[test]
fn an_answer_is_used_as_long_as_it_says_and_one_that_changes_cannot_lead_elsewhere() {
    let names = Names::start();
    let (first, second) = (Server::http("127.0.0.1:0"), Server::http("127.0.0.2:0"));
    let port = first.port();
    let documents = caller("api, other")
        + &external(
            "api",
            &format!(
                "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.1]\n  ports: [{{port: {port}, protocol: http}}]"
            ),
        )
        + &external(
            "other",
            &format!(
                "  hosts: [other.shop.example]\n  resolvesTo: [127.0.0.2]\n  ports: [{{port: {}, protocol: http}}]",
                second.port()
            ),
        )
        + &reading("api", "")
        + &reading("other", "");
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 3600));
    names.set("other.shop.example", Answer::Addresses(vec![Ipv4Addr::new(127, 0, 0, 2)], 1));
    let mut mesh = start(&names, &documents, |_| ());
    let (api, other) = (format!("api.shop.example:{port}"), format!("other.shop.example:{}", second.port()));
    for _ in 0..5 {
        seen(&mesh, &api, "/");
    }
    assert_eq!(names.asked("api.shop.example"), 1, "its answer holds for an hour");

    seen(&mesh, &other, "/");
    // DNS rebinding: the name resolves to an address that another document permits, and this one
    // does not.
    names.set("other.shop.example", Answer::Addresses(vec![HERE], 1));
    mesh.wait_for("the answer to be over", |mesh| status(mesh, &other, "/") == 503);
    reason(&mut mesh, "other.shop.example", "`resolvesTo` does not admit");
    assert!(names.asked("other.shop.example") >= 2);
    names.set("other.shop.example", Answer::Addresses(vec![HERE, Ipv4Addr::new(127, 0, 0, 2)], 0));
    mesh.wait_for("the right address", |mesh| status(mesh, &other, "/") == 200);
    let before = (first.requests(), second.requests());
    for _ in 0..4 {
        seen(&mesh, &other, "/");
    }
    assert_eq!((first.requests(), second.requests()), (before.0, before.1 + 4), "of two addresses, one is admitted");
}

#[test]
fn hostile_name_servers_harm_nobody_else() {
    let names = Names::start();
    let server = Server::http("127.0.0.1:0");
    let port = server.port();
    let spec = |hosts: &str| {
        format!(
            "  hosts: [{hosts}]\n  resolvesTo: [127.0.0.0/8]\n  timeouts: {{connect: 1s}}\n  \
             ports: [{{port: {port}, protocol: http}}]"
        )
    };
    let documents = caller("wild, good")
        + &external("wild", &spec("\"*.wild.example\""))
        + &external("good", &spec("good.example"))
        + &reading("wild", "")
        + &reading("good", "");
    names.set("good.example", Answer::Addresses(vec![HERE], 0));
    names.set("silent.wild.example", Answer::Silence);
    names.set("huge.wild.example", Answer::Huge(4000));
    let mut mesh = start(&names, &documents, |_| ());
    assert_eq!(status(&mesh, &format!("huge.wild.example:{port}"), "/"), 503, "nobody is at these addresses");
    reason(&mut mesh, "huge.wild.example", "no connection");
    assert_eq!(status(&mesh, &format!("silent.wild.example:{port}"), "/"), 503);
    reason(&mut mesh, "silent.wild.example", "cannot be looked up: no answer within 1s");

    // Many look-ups of names that do not exist, and of one that the server never answers.
    let call =
        |host: &str| format!(r#"{{"method":"GET","host":"{host}:{port}","path":"/","headers":[],"http2":false}}"#);
    let mut storm = String::from("[");
    for number in 0..300 {
        let _ = write!(storm, "{},", call(&format!("n{number}.wild.example")));
    }
    storm += &call("silent.wild.example");
    storm.push(']');
    let running = std::thread::scope(|scope| {
        let storm = scope.spawn(|| mesh.curl("/send", &["--data", &storm]));
        for _ in 0..20 {
            seen(&mesh, &format!("good.example:{port}"), "/");
        }
        storm.join().unwrap()
    });
    let answers = running.json();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 301);
    assert!(answers.iter().all(|answer| answer == 503 || answer["status"] == 503), "{answers:?}");
    reason(&mut mesh, "n7.wild.example", "n7.wild.example cannot be looked up");
    seen(&mesh, &format!("good.example:{port}"), "/");
}

#[test]
fn what_dies_outside_is_told_and_what_lives_there_is_found() {
    let names = Names::start();
    let (first, second) = (Server::http("127.0.0.1:0"), None::<Server>);
    drop(second);
    let port = first.port();
    let second = Server::http(&format!("127.0.0.2:{port}"));
    let documents = caller("api")
        + &external(
            "api",
            &format!(
                "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {port}, protocol: http}}]"
            ),
        )
        + &reading(
            "api",
            "  retry: {attempts: 2, retryOn: [5xx]}\n  circuitBreaker: {outlierDetection: {consecutive5xx: 2, baseEjection: 1h, maxEjectionPercent: 50}}",
        );
    names.set("api.shop.example", Answer::Addresses(vec![HERE, Ipv4Addr::new(127, 0, 0, 2)], 3600));
    let mut mesh = start(&names, &documents, |_| ());
    let api = format!("api.shop.example:{port}");
    for _ in 0..8 {
        seen(&mesh, &api, "/");
    }
    assert!(first.requests() >= 2 && second.requests() >= 2, "both addresses are used");

    // One server answers with errors. The node uses the other's answers, and stops asking the
    // first.
    first.set_fails(true);
    for _ in 0..10 {
        seen(&mesh, &api, "/");
    }
    let requests = first.requests();
    for _ in 0..10 {
        seen(&mesh, &api, "/");
    }
    assert_eq!(first.requests(), requests, "it is ejected");

    second.die();
    assert_eq!(status(&mesh, &api, "/"), 503);
    assert_eq!(mesh.get("/hello").status, 200, "the function goes on");
    reason(&mut mesh, "api.shop.example", "no connection");
}

#[test]
fn roots_that_have_expired_or_are_no_authority_are_not_trusted() {
    let (names, authority, gone) = (Names::start(), CertificateAuthority::default(), CertificateAuthority::expired());
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 60));
    let signed_by =
        |authority: &CertificateAuthority| Server::https("127.0.0.1:0", authority, &["api.shop.example"], None);
    let (server, old) = (signed_by(&authority), signed_by(&gone));
    let documents = |server: &Server, file: &str| {
        let ports = format!("ports: [{{port: {}, protocol: https}}]", server.port());
        let spec =
            format!("  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  {ports}\n  tls: {{caFile: {file}}}");
        caller("api") + &external("api", &spec) + &reading("api", "")
    };
    let leaf = authority.issue(&["api.shop.example"]).0.pem();
    let mut mesh = start(&names, &documents(&server, "both.pem"), |folder| {
        fs::write(folder.join("both.pem"), format!("{}{}", gone.pem(), authority.pem())).unwrap();
        fs::write(folder.join("gone.pem"), gone.pem()).unwrap();
        fs::write(folder.join("leaf.pem"), leaf).unwrap();
    });
    // A valid root is enough beside an expired one.
    assert_eq!(status(&mesh, "api.shop.example", "/"), 200);
    let told = "certificate 1 (`CN=gone`) expired at";
    mesh.wait_for(told, |mesh| mesh.output().iter().any(|line| line.contains(told) && line.contains("left out")));
    for (server, file, fragment) in [
        (&old, "both.pem", "certificate"),
        (&old, "gone.pem", "no usable certificate in it: certificate 1 (`CN=gone`) expired at"),
        (&server, "leaf.pem", "UnknownIssuer"),
    ] {
        let before = server.requests();
        mesh.write(&documents(server, file));
        mesh.wait_for(fragment, |mesh| {
            let answer = status(mesh, "api.shop.example", "/");
            let observed = mesh.leno(&["observe", "--json", "--last", "20"]);
            answer == 503 && String::from_utf8_lossy(&observed.stdout).contains(fragment)
        });
        assert_eq!(server.requests(), before, "{file}");
    }
}

#[test]
fn http2_goes_out_where_it_is_spoken() {
    let (names, authority) = (Names::start(), CertificateAuthority::default());
    names.set("grpc.shop.example", Answer::Addresses(vec![HERE], 60));
    let server = Server::https("127.0.0.1:0", &authority, &["other.shop.example"], None);
    let port = server.port();
    let spec = |tls: &str| {
        format!(
            "  hosts: [grpc.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  traceContext: true\n  \
             ports: [{{port: {port}, protocol: https, http2: true}}]\n  tls: {{{tls}}}"
        )
    };
    let documents = |tls: &str| caller("grpc") + &external("grpc", &spec(tls)) + &reading("grpc", "");
    let right = "caFile: ca.pem, serverName: other.shop.example";
    let mut mesh =
        start(&names, &documents(right), |folder| fs::write(folder.join("ca.pem"), authority.pem()).unwrap());
    let seen = seen(&mesh, "grpc.shop.example", "/items");
    assert_eq!((&seen["version"], &seen["tls"]["alpn"]), (&"HTTP/2.0".into(), &"h2".into()), "{seen}");
    assert_eq!(seen["uri"], format!("https://grpc.shop.example:{port}/items"));
    assert_eq!(seen["tls"]["sni"], "other.shop.example");
    assert!(seen["headers"]["x-request-id"].is_string(), "trace context goes out where it is wanted: {seen}");
    assert!(seen["headers"]["x-forwarded-client-cert"].is_null(), "{seen}");

    // A server that proves another name, or a name without a trusted issuer, gets no request.
    for (wrong, fragment) in
        [("caFile: ca.pem", "certificate not valid for name"), ("serverName: other.shop.example", "certificate")]
    {
        mesh.write(&documents(wrong));
        mesh.wait_for("the change", |mesh| status(mesh, "grpc.shop.example", "/") == 503);
        let before = server.requests();
        assert_eq!(status(&mesh, "grpc.shop.example", "/"), 503);
        reason(&mut mesh, "grpc.shop.example", fragment);
        assert_eq!(server.requests(), before);
    }
}
