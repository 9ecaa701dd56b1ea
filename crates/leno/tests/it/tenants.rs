//! A tenant, or one address, cannot delay others at the API of `leno control`: real processes and
//! sockets.

use leno_testkit::control::{Control, function, policy, text};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn control() -> Control {
    Control::start(tempfile::tempdir().unwrap(), &[])
}

fn token(control: &Control, role: &str, namespaces: &[&str]) -> String {
    let mut arguments = vec!["token", "create", "--role", role];
    namespaces.iter().for_each(|namespace| arguments.extend(["--namespace", namespace]));
    let made = control.leno(&arguments);
    assert!(made.status.success(), "{made:?}");
    text(&made).trim().to_owned()
}

fn apply(control: &Control, token: &str, documents: &str) -> (u16, Value) {
    control.post(token, "/v1/changes", &json!({ "apply": [{ "name": "x.yaml", "text": documents }] }))
}

fn dry_run(control: &Control, token: &str, documents: &str) -> (u16, Value) {
    let request = json!({ "apply": [{ "name": "x.yaml", "text": documents }], "dryRun": true });
    control.post(token, "/v1/changes", &request)
}

fn exposed(name: &str, namespace: &str, host: &str) -> String {
    function(name, namespace)
        .replace("[\"true\"]}", &format!("[\"true\"], expose: [{{hosts: [\"{host}\"], path: /{name}}}]}}"))
}

/// Functions, and a policy with rules for all of them.
fn bomb(functions: usize, rules: usize) -> String {
    let mut text = String::new();
    for number in 0..functions {
        writeln!(text, "{}---", function(&format!("f{number}"), "a")).unwrap();
    }
    text += "apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: p, namespace: a}\nspec:\n  selector: {}\n  authorization:\n    rules:\n";
    for number in 0..rules {
        writeln!(text, "    - {{to: [{{paths: [/{number}]}}]}}").unwrap();
    }
    text
}

/// The peak memory of a process, in bytes.
fn peak_memory(control: &Control) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", control.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn what_a_dry_run_would_take_is_bounded_before_it_is_taken() {
    let control = control();
    let reader = token(&control, "reader", &[]);
    let (status, answer) = dry_run(&control, &reader, &bomb(900, 12_000));
    assert!(matches!(status, 403 | 422), "{status} {answer}");
    assert!(answer.to_string().contains("rules"), "the bound is named: {answer}");
    assert!(peak_memory(&control) < 1 << 30, "{} bytes", peak_memory(&control));
    let (status, answer) = dry_run(&control, &reader, &"# nothing\n".repeat(750_000));
    assert_eq!(status, 413, "{answer}");
    assert!(apply(&control, &control.token(), &function("shop", "a")).0 == 200);
}

#[test]
fn dry_runs_of_one_token_hold_up_nobodys_changes() {
    let control = control();
    let [reader, editor] = [token(&control, "reader", &["a"]), token(&control, "editor", &["b"])];
    let (mine, done) = (bomb(20, 300), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let floods: Vec<_> = (0..24)
            .map(|_| {
                scope.spawn(|| {
                    let mut refused = 0;
                    while !done.load(Ordering::Relaxed) {
                        let (status, answer) = dry_run(&control, &reader, &mine);
                        assert!(matches!(status, 200 | 422 | 429 | 503), "{status} {answer}");
                        refused += u32::from(status == 429);
                    }
                    refused
                })
            })
            .collect();
        for number in 0..10 {
            let (status, answer) = apply(&control, &editor, &function(&format!("shop{number}"), "b"));
            assert_eq!(status, 200, "{answer}");
            let (status, answer) = dry_run(&control, &editor, &function("other", "b"));
            assert_eq!(status, 200, "others' dry runs have their turns: {answer}");
        }
        done.store(true, Ordering::Relaxed);
        let refused: u32 = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
        assert!(refused > 0, "24 at a time are more than one token may have waiting");
    });
}

#[test]
fn changes_that_are_made_at_the_same_time_are_all_made() {
    let control = control();
    let tokens = ["a", "b", "c", "d"].map(|namespace| (namespace, token(&control, "editor", &[namespace])));
    std::thread::scope(|scope| {
        for (namespace, token) in &tokens {
            scope.spawn(|| {
                for number in 0..10 {
                    let (status, answer) = apply(&control, token, &function(&format!("f{number}"), namespace));
                    assert_eq!(status, 200, "{answer}");
                }
            });
        }
    });
    assert_eq!(control.documents().len(), 40);
    let status = control.get("/v1/status").1;
    assert_eq!(status["functions"].as_array().unwrap().len(), 40, "and in force");
}

#[test]
fn connections_of_one_address_leave_room_for_others() {
    let control = control();
    let address: SocketAddr = control.url().trim_start_matches("https://").parse().unwrap();
    let mut held = Vec::new();
    // More connections than the API permits in total, from several addresses. None of them ever
    // sends a request.
    for source in 2..8 {
        for _ in 0..64 {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, source), 0)).into()).unwrap();
            socket.connect(&address.into()).unwrap();
            held.push(TcpStream::from(socket));
        }
    }
    for _ in 0..5 {
        assert_eq!(control.get("/v1/documents").0, 200);
    }
    // The API closed some of the other connections to accept these.
    let is_closed = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        stream.read(&mut [0]).map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |read| read == 0)
    };
    assert!(held.iter_mut().any(is_closed));
}

#[test]
fn a_host_is_its_namespaces() {
    let control = control();
    let [good, bad] = ["good", "bad"].map(|namespace| token(&control, "editor", &[namespace]));
    assert_eq!(apply(&control, &good, &exposed("web", "good", "good.example")).0, 200);
    for host in ["good.example", "GOOD.example", "*.example", "*.good.example", "*"] {
        let (status, answer) = apply(&control, &bad, &exposed("h", "bad", host));
        assert_eq!(status, 422, "{host}: {answer}");
        let told = answer["problems"].to_string();
        assert!(told.contains("x.yaml") && told.contains("is taken"), "{host}: {answer}");
        assert!(!told.contains("good/web") && !told.contains("Function good"), "{host}: {answer}");
    }
    assert_eq!(apply(&control, &bad, &exposed("h", "bad", "bad.example")).0, 200);
    assert_eq!(apply(&control, &good, &exposed("api", "good", "good.example")).0, 200, "one namespace shares its host");
    // A namespace can claim a host that another one gave up. A change of a document that already
    // has the host is no later claim.
    assert_eq!(apply(&control, &good, &exposed("web", "good", "good.example").replace("true", "false")).0, 200);
    let both = format!("{}---\n{}", function("web", "good"), function("api", "good"));
    assert_eq!(apply(&control, &good, &both).0, 200);
    assert_eq!(apply(&control, &bad, &exposed("h", "bad", "good.example")).0, 200);
}

#[test]
fn who_is_named_by_another_tenant_changes_and_deletes_as_before() {
    let control = control();
    let [a, b] = ["a", "b"].map(|namespace| token(&control, "editor", &[namespace]));
    assert_eq!(apply(&control, &b, &function("stock", "b")).0, 200);
    let caller = function("caller", "a").replace("[\"true\"]}", "[\"true\"], callees: [b/stock]}");
    let named = "apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: p, namespace: a}\nspec: {functions: [caller], authorization: {rules: [{from: [{identities: [b/stock]}]}]}, externalAuthorization: [{name: x, service: b/stock, protocol: http}]}\n";
    let (status, answer) = apply(&control, &a, &format!("{caller}---\n{named}"));
    assert!(status == 200 && !answer["warnings"].to_string().contains("b/stock"), "{answer}");

    let delete = json!({ "delete": [{ "kind": "Function", "namespace": "b", "name": "stock" }] });
    let (status, answer) = control.post(&b, "/v1/changes", &delete);
    assert_eq!(status, 200, "{answer}");
    assert!(!answer.to_string().contains("caller"), "nor does it learn by whom: {answer}");
    let job = "apiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {name: stock, namespace: b}\nspec: {command: [\"true\"]}\n";
    assert_eq!(apply(&control, &b, job).0, 200, "another thing of that name");

    let (status, answer) = apply(&control, &a, &format!("{caller}---\n{named}"));
    let warnings = answer["warnings"].to_string();
    assert_eq!(status, 200, "{answer}");
    assert!(warnings.contains("spec.callees[0]") && warnings.contains("b/stock"), "its owner is warned: {answer}");
    let missing = caller.replace("b/stock", "nobody");
    assert_eq!(apply(&control, &a, &missing).0, 422, "within a namespace it is wrong as before");
}

#[test]
fn a_token_of_a_namespace_learns_no_names_of_others() {
    let control = control();
    let editor = token(&control, "editor", &["a"]);
    let secret = function("caller", "hidden").replace("[\"true\"]}", "[\"true\"], callees: [a/shop]}");
    control.apply(&format!("{}---\n{secret}---\n{}", function("shop", "a"), function("zshop", "hidden")));
    for documents in [
        policy("p", "a", "zshop"),
        policy("p", "a", "caler"),
        function("x", "a").replace("[\"true\"]}", "[\"true\"], callees: [zshop]}"),
    ] {
        let (status, answer) = dry_run(&control, &editor, &documents);
        assert_eq!(status, 422, "{answer}");
        assert!(!answer.to_string().contains("hidden"), "{answer}");
    }
    // The change affects the configuration of callers in another namespace.
    let ports = function("shop", "a").replace("[\"true\"]}", "[\"true\"], ports: [{port: 5432, protocol: tcp}]}");
    let (status, answer) = dry_run(&control, &editor, &ports);
    assert_eq!((status, &answer["functions"]), (200, &json!(["a/shop"])), "{answer}");
}

#[test]
fn no_answer_to_a_tenant_has_a_name_of_another() {
    const API: &str = "apiVersion: leno.dev/v1alpha1\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("passphrase"), "correct horse battery\n").unwrap();
    let control = Control::start(folder, &["--ca", "ca.pem", "--ca-passphrase", "passphrase"]);
    // All names of the other namespace, its hosts and its files begin with `zqx`.
    let others = [
        format!(
            "{API}kind: StoredSecret\nmetadata: {{name: zqxsecret, namespace: zqxden}}\nspec: {{stringData: {{zqxkey: zqxvalue}}}}\n"
        ),
        format!(
            "{API}kind: Function\nmetadata: {{name: zqxshop, namespace: zqxden}}\nspec:\n  command: [\"true\"]\n  port: 9000\n  \
             expose: [{{hosts: [zqx.example, \"*.wild.example\"], path: /}}]\n  callees: [a/shop, zqxapi]\n  \
             secrets: [{{name: A, from: {{secret: zqxsecret, key: zqxkey}}}}, {{name: B, from: /etc/zqxfile}}]\n  \
             volumes: [{{path: /data, name: zqxvolume, size: 16Mi, node: zqxnode}}]\n"
        ),
        format!(
            "{API}kind: Function\nmetadata: {{name: zqxcart, namespace: zqxden}}\nspec: {{command: [\"true\"], protocol: chain}}\n"
        ),
        format!(
            "{API}kind: Function\nmetadata: {{name: zqxlast, namespace: zqxden}}\nspec: {{command: [\"true\"], protocol: chain}}\n"
        ),
        format!(
            "{API}kind: Chain\nmetadata: {{name: zqxchain, namespace: zqxden}}\nspec: {{entry: zqxcart, functions: [{{name: zqxcart}}, {{name: zqxlast}}]}}\n"
        ),
        format!("{API}kind: Job\nmetadata: {{name: zqxjob, namespace: zqxden}}\nspec: {{command: [\"true\"]}}\n"),
        format!(
            "{API}kind: External\nmetadata: {{name: zqxapi, namespace: zqxden}}\nspec: {{hosts: [api.zqx.example], ports: [{{port: 443, protocol: https}}]}}\n"
        ),
        format!(
            "{API}kind: Policy\nmetadata: {{name: zqxpolicy, namespace: zqxden}}\nspec:\n  functions: [zqxshop]\n  \
             authentication: {{issuers: [{{issuer: \"https://zqx.example\", jwks: {{url: \"https://zqx.example/keys\"}}}}]}}\n  \
             authorization: {{rules: [{{name: zqxrule, from: [{{identities: [zqxden/zqxcart]}}]}}]}}\n"
        ),
        format!(
            "{API}kind: NamespaceQuota\nmetadata: {{name: zqxden}}\nspec: {{hosts: [zqx.example, \"*.wild.example\"], files: [/etc/zqxfolder], functions: 20}}\n"
        ),
        format!(
            "{API}kind: NamespaceQuota\nmetadata: {{name: a}}\nspec: {{functions: 30, documentBytes: 64Ki, secrets: 3}}\n"
        ),
        function("shop", "a"),
    ];
    control.apply(&others.join("---\n"));
    let tokens =
        [token(&control, "editor", &["a"]), token(&control, "admin", &["a"]), token(&control, "reader", &["a"])];

    let spec = |fields: &str| {
        format!("{API}kind: Function\nmetadata: {{name: x, namespace: a}}\nspec: {{command: [\"true\"], {fields}}}\n")
    };
    let of = |kind: &str, spec: &str| format!("{API}kind: {kind}\nmetadata: {{name: x, namespace: a}}\nspec: {spec}\n");
    let with_secret = |from: &str| spec(&format!("secrets: [{{name: A, from: {from}}}]"));
    let many: String = (0..40).map(|number| format!("{}---\n", function(&format!("f{number}"), "a"))).collect();
    // The tenant guesses names that are nearly those, and collides where it can.
    let mut tried = vec![
        many,
        function("x", "a").replace("true", &"x".repeat(70 << 10)),
        with_secret("{secret: qxsecret, key: qxkey}"),
        with_secret("{secret: qxs, key: qxkey}"),
        with_secret("relative/file"),
        with_secret("/etc/other"),
        of("StoredSecret", "{stringData: {a: b, b: c, c: d, d: e}}"),
        of("External", "{hosts: [api.qx.example], ports: [{port: 443, protocol: https}], tls: {caFile: relative}}"),
        of(
            "External",
            "{hosts: [api.qx.example], ports: [{port: 443, protocol: https}], credentials: [{from: {secret: qxsecret, key: x}}]}",
        ),
        of("Chain", "{entry: qxcart, functions: [{name: qxcart}, {name: shop}]}"),
        of("Policy", "{functions: [qxshop]}"),
        of("Policy", "{functions: [shop], authorization: {rules: [{from: [{identities: [qxcart]}]}]}}"),
        of("Policy", "{functions: [shop], authorization: {rules: [{from: [{principals: [\"*\"]}]}]}}"),
        of(
            "Policy",
            "{functions: [shop], authentication: {issuers: [{issuer: \"https://qx.example\", jwks: {file: keys.json}}]}}",
        ),
        of("Policy", "{functions: [shop], externalAuthorization: [{name: x, service: qxjob, protocol: http}]}"),
        of("Policy", "{selector: {}, namespaces: [\"*\"], authorization: {rules: []}}"),
        of("NamespaceQuota", "{functions: 1}"),
        of("Mesh", "{}"),
        spec("callees: [qxshop, qxapi]"),
        spec("port: 9000, isolation: process"),
        spec("volumes: [{path: /data, name: qxvolume, size: 16Mi, node: one}]"),
        spec("traffic: [{revision: x-9, percent: 100}]"),
        spec("workingDirectory: relative, readOnlyPaths: [relative]"),
        "{not yaml".to_owned(),
        "kind: Pod\n".to_owned(),
    ];
    for host in ["*", "*.example", "a.wild.example", "*.wild.example"] {
        tried.push(spec(&format!("expose: [{{hosts: [\"{host}\"], path: /}}]")));
    }
    let (mut refused, mut answers) = (0, Vec::new());
    for token in &tokens {
        for documents in &tried {
            for (status, answer) in [dry_run(&control, token, documents), apply(&control, token, documents)] {
                refused += u32::from(status >= 400);
                answers.push(format!("{documents:.200} -> {status} {answer}"));
            }
        }
        for path in [
            "/v1/documents",
            "/v1/documents?kind=StoredSecret",
            "/v1/secrets",
            "/v1/status",
            "/v1/namespaces",
            "/v1/functions",
            "/v1/instances",
            "/v1/events",
            "/v1/flows",
            "/v1/requests/0",
            "/v1/audit",
            "/v1/tokens",
            "/v1/authority",
            "/metrics",
            "/v1/logs/a/shop",
            "/v1/logs/a/qxshop",
        ] {
            let (status, answer) = control.get_as(token, path);
            answers.push(format!("{path} -> {status} {answer}"));
        }
        for kind in ["Function", "StoredSecret", "Policy"] {
            let delete = json!({ "delete": [{ "kind": kind, "namespace": "a", "name": "qxshop" }] });
            let (status, answer) = control.post(token, "/v1/changes", &delete);
            answers.push(format!("deletion -> {status} {answer}"));
        }
    }
    assert!(refused > 60, "most of that is wrong: {refused}");
    for answer in &answers {
        // `x` is exposed at a host that overlaps, of which the answer repeats what the tenant wrote.
        assert!(!answer.contains("zqx"), "{answer}");
    }
    // With a changed quota, and with documents that are not in force, it is the same.
    control.apply(&format!("{API}kind: NamespaceQuota\nmetadata: {{name: zqxden}}\nspec: {{functions: 1}}\n"));
    for token in &tokens {
        let (status, answer) = dry_run(&control, token, &function("y", "a"));
        assert!(!answer.to_string().contains("zqx"), "{status} {answer}");
    }
}

#[test]
fn tokens_of_a_namespace_are_bounded() {
    let control = control();
    let admin = token(&control, "admin", &["a"]);
    let make = || control.post(&admin, "/v1/tokens", &json!({ "role": "reader", "namespaces": ["a"] })).0;
    let made = (0..300).take_while(|_| make() == 200).count();
    assert!(made < 300, "a namespace has at most 256");
    assert_eq!(make(), 429);
    assert!(!token(&control, "reader", &["b"]).is_empty(), "others make theirs");
}

#[test]
fn a_tenant_names_a_metadata_service_only_where_the_operator_lists_it() {
    let control = control();
    let editor = token(&control, "editor", &["a"]);
    let api = "apiVersion: leno.dev/v1alpha1\n";
    let at = |address: &str| {
        format!(
            "{api}kind: Function\nmetadata: {{name: f, namespace: a}}\nspec: {{external: {{addresses: [\"{address}\"]}}}}\n"
        )
    };
    let external = format!(
        "{api}kind: External\nmetadata: {{name: e, namespace: a}}\nspec: {{addresses: [169.254.169.254], ports: [{{port: 80, protocol: http}}]}}\n"
    );
    let documents = [
        (at("169.254.169.254:80"), "spec.external.addresses[0]"),
        (at("[::ffff:169.254.169.254]:80"), "spec.external.addresses[0]"),
        (external, "spec.addresses[0]"),
    ];
    let refused = |documents: &str, field: &str| {
        for (status, answer) in [dry_run(&control, &editor, documents), apply(&control, &editor, documents)] {
            let told = answer["problems"].to_string();
            assert_eq!(status, 422, "{answer}");
            assert!(
                told.contains(field) && told.contains("169.254.169.254") && told.contains("NamespaceQuota"),
                "{told}"
            );
        }
    };
    for (text, field) in &documents {
        refused(text, field);
    }
    assert_eq!(apply(&control, &editor, &at("127.0.0.1:9000")).0, 200, "loopback is as before");
    let quota =
        |listed: &str| format!("{api}kind: NamespaceQuota\nmetadata: {{name: a}}\nspec: {{egress: [\"{listed}\"]}}\n");
    let (status, answer) = apply(&control, &editor, &quota("169.254.169.254"));
    assert_eq!(status, 403, "a tenant gives itself nothing: {answer}");
    control.apply(&quota("0.0.0.0/0"));
    refused(&documents[0].0, documents[0].1);
    control.apply(&quota("169.254.169.254"));
    for (text, _) in &documents {
        let (status, answer) = apply(&control, &editor, text);
        assert_eq!(status, 200, "{answer}");
    }
}

#[test]
fn a_tenant_has_folders_of_nodes_that_the_operator_lists_and_no_others() {
    let control = control();
    let editor = token(&control, "editor", &["a"]);
    let quota = |path: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {{name: a}}\nspec: {{hostPaths: [{{path: {path}, owner: \"1000\"}}]}}\n"
        )
    };
    let sharing = |path: &str| {
        let volumes = format!("spec: {{volumes: [{{path: /data, hostPath: {path}, readOnly: false}}], ");
        function("shop", "a").replace("spec: {", &volumes)
    };
    let refused = |path: &str| {
        let (status, answer) = apply(&control, &editor, &sharing(path));
        assert_eq!(status, 422, "{path}: {answer}");
        let told = answer.to_string();
        assert!(told.contains("spec.volumes[0].hostPath") && told.contains("NamespaceQuota"), "{path}: {told}");
    };
    refused("/srv/shop/data");
    assert_eq!(apply(&control, &editor, &quota("/srv/shop")).0, 403, "a tenant gives itself nothing");
    control.apply(&quota("/srv/shop"));
    for path in ["/srv/shopping", "/srv/shop/../other", "/srv", "/"] {
        refused(path);
    }
    let (status, answer) = apply(&control, &editor, &sharing("/srv/shop/data"));
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_callee_that_admits_only_others_is_told_to_tokens_that_may_know_it() {
    let control = control();
    let calling = |name: &str, namespace: &str, callees: &str| {
        function(name, namespace).replace("spec: {", &format!("spec: {{callees: [{callees}], "))
    };
    let rules = "apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: stock, namespace: b}\n\
                 spec: {functions: [stock], authorization: {rules: [{name: r, from: [{identities: [other]}]}]}}\n";
    control.apply(&[function("stock", "b"), calling("other", "b", "stock"), rules.to_owned()].join("---\n"));
    let warned = |token: &str| {
        let (status, answer) = dry_run(&control, token, &calling("shop", "a", "b/stock"));
        assert_eq!(status, 200, "{answer}");
        answer["warnings"].to_string().contains("calls of `a/shop` to `b/stock` are refused with 403")
    };
    assert!(!warned(&token(&control, "editor", &["a"])), "the rules of b are nothing that a token for a may know");
    assert!(warned(&token(&control, "editor", &["a", "b"])));
    assert!(warned(&control.token()));
    let applied = control.apply(&calling("shop", "a", "b/stock"));
    let told = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert!(told.contains("`stock/authorization/r`"), "{told}");
    // The same from the documents alone.
    let all = [calling("shop", "a", "b/stock"), function("stock", "b"), calling("other", "b", "stock"), rules.into()];
    control.write("all.yaml", &all.join("---\n"));
    let checked = control.leno(&["check", "all.yaml", "--for", "control"]);
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(told.contains("calls of `a/shop` to `b/stock` are refused with 403"), "{told}");
}
