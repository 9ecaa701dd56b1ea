//! `leno control` and its client commands: real processes, real HTTPS, a real etcd.

use leno_testkit::EtcdServer;
use leno_testkit::control::{Control, FUNCTION, function, policy, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

fn with_redb() -> Control {
    Control::start(tempfile::tempdir().unwrap(), &[])
}

#[test]
fn documents_are_applied_listed_changed_and_deleted() {
    let control = with_redb();
    let applied = control.apply(&format!("{}---\n{}", function("shop", "a"), policy("shop", "a", "shop")));
    assert!(text(&applied).contains("Function a/shop created"), "{applied:?}");
    assert!(text(&applied).contains("Policy a/shop created"), "{applied:?}");
    let again = control.apply(&function("shop", "a"));
    assert!(text(&again).contains("Function a/shop unchanged\nnothing changed"), "{again:?}");

    let listed = control.documents();
    assert_eq!(listed.iter().map(|row| row["name"].as_str().unwrap()).collect::<Vec<_>>(), ["shop", "shop"]);
    let status: Value = control.get("/v1/status").1;
    assert_eq!(status["functions"][0]["function"], "a/shop", "what is applied is in force: {status}");

    let diff = control.leno_with(&["diff", "-f", "-"], &function("shop", "a").replace("true", "false"));
    assert_eq!(diff.status.code(), Some(1), "{diff:?}");
    assert!(text(&diff).contains("-spec: {command: [\"true\"]}\n+spec: {command: [\"false\"]}"), "{diff:?}");
    assert!(text(&diff).contains("1 function would have another configuration\n  a/shop"), "{diff:?}");
    assert_eq!(control.documents(), listed, "a dry run changes nothing");

    let kept = control.leno(&["get", "documents", "function", "a/shop", "-o", "yaml"]);
    assert!(text(&kept).contains("by token") && text(&kept).contains(function("shop", "a").trim()), "{kept:?}");

    let dangling = control.leno(&["delete", "Function", "a/shop"]);
    assert_eq!(dangling.status.code(), Some(2), "{dangling:?}");
    let error = String::from_utf8(dangling.stderr).unwrap();
    assert!(error.contains("Policy a/shop:4:20 spec.functions[0]: there is no function `a/shop`"), "{error}");
    control.write("both.yaml", &format!("{}---\n{}", function("shop", "a"), policy("shop", "a", "shop")));
    let deleted = control.leno(&["delete", "-f", "both.yaml"]);
    assert!(deleted.status.success(), "{deleted:?}");
    assert!(control.documents().is_empty());
    assert_eq!(control.get("/v1/status").1["functions"], json!([]));

    let audit = control.leno(&["get", "audit"]);
    assert!(text(&audit).contains("Function a/shop"), "{audit:?}");
    let entries: Vec<Value> = serde_json::from_value(control.get("/v1/audit").1).unwrap();
    assert_eq!(entries[0]["changes"][0]["action"], "deleted");
    assert_eq!(entries[0]["changes"][0]["before"], listed[0]["version"]);
    assert_eq!(entries[0]["from"], "127.0.0.1");
    let lines = fs::read_to_string(control.path("audit.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), entries.len(), "{lines}");
}

#[test]
fn one_wrong_document_refuses_all_with_file_line_and_field() {
    let control = with_redb();
    let wrong = function("bad", "a").replace("command", "comand");
    control.write("all.yaml", &format!("{}---\n{wrong}", function("good", "a")));
    let refused = control.leno(&["apply", "-f", "all.yaml"]);
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8(refused.stderr).unwrap();
    let checked = control.leno(&["check", "all.yaml"]);
    let first = String::from_utf8(checked.stderr).unwrap().lines().next().unwrap().to_owned();
    assert!(first.starts_with("all.yaml:9:8 spec.comand:"), "{first}");
    assert!(error.starts_with(&first), "as `leno check` tells it:\n{error}\n{first}");
    assert!(control.documents().is_empty(), "nothing of it is stored");

    // Invalid only together with the stored documents.
    control.apply(&function("good", "a"));
    let twice = control.leno_with(&["apply", "-f", "-"], &policy("p", "a", "nobody"));
    assert!(
        String::from_utf8(twice.stderr)
            .unwrap()
            .contains("standard input:4:20 spec.functions[0]: there is no function")
    );
    assert_eq!(control.documents().len(), 1);
}

#[test]
fn chains_are_documents_like_any_other() {
    let control = with_redb();
    let chain = "apiVersion: leno.dev/v1alpha1\nkind: Chain\nmetadata: {name: boutique, namespace: a}\nspec: {entry: shop, functions: [{name: shop}]}\n";
    let applied = control.apply(&format!("{}---\n{chain}", function("shop", "a")));
    assert!(text(&applied).contains("Chain a/boutique created"), "{applied:?}");
    let changed = chain.replace("entry: shop", "entry: shop, memory: 1Mi");
    let diff = control.leno_with(&["diff", "-f", "-"], &changed);
    assert_eq!(diff.status.code(), Some(1), "{diff:?}");
    assert!(text(&diff).contains("1 function would have another configuration\n  a/shop"), "{diff:?}");
    assert!(text(&control.apply(&changed)).contains("Chain a/boutique"));
    let kept = control.leno(&["get", "documents", "chain", "a/boutique", "-o", "yaml"]);
    assert!(text(&kept).contains("memory: 1Mi"), "{kept:?}");

    let token = |namespace: &str| {
        text(&control.leno(&["token", "create", "--role", "editor", "--namespace", namespace])).trim().to_owned()
    };
    let change = json!({ "apply": [{ "name": "x", "text": chain }] });
    assert_eq!(control.post(&token("b"), "/v1/changes", &change).0, 403, "a chain of another namespace");
    assert_eq!(control.post(&token("a"), "/v1/changes", &change).0, 200);

    let dangling = control.leno(&["delete", "Function", "a/shop"]);
    let error = String::from_utf8(dangling.stderr).unwrap();
    assert!(error.contains("Chain a/boutique:4:"), "{error}");
    assert!(control.leno(&["delete", "chain", "a/boutique"]).status.success());
    assert!(control.leno(&["delete", "Function", "a/shop"]).status.success());
}

#[test]
fn roles_and_namespaces_are_kept_to() {
    let control = with_redb();
    control.apply(&format!("{}---\n{}", function("shop", "a"), function("stock", "b")));
    let token = |arguments: &[&str]| {
        let made = control.leno(&[&["token", "create"], arguments].concat());
        assert!(made.status.success(), "{made:?}");
        text(&made).trim().to_owned()
    };
    let change = |token: &str, documents: &str| {
        control.post(token, "/v1/changes", &json!({ "apply": [{ "name": "x", "text": documents }] })).0
    };
    let other = |name: &str, namespace: &str| function(name, namespace).replace("true", "false");
    let reader = token(&["--role", "reader"]);
    assert_eq!(control.get_as(&reader, "/v1/documents").0, 200);
    assert_eq!(change(&reader, &other("shop", "a")), 403);
    let dry = json!({ "apply": [{ "name": "x", "text": other("shop", "a") }], "dryRun": true });
    assert_eq!(control.post(&reader, "/v1/changes", &dry).0, 200);
    assert_eq!(control.get_as(&reader, "/v1/audit").0, 403);
    assert_eq!(control.get_as(&reader, "/v1/tokens").0, 403);

    let editor = token(&["--role", "editor", "--namespace", "a"]);
    assert_eq!(change(&editor, &other("shop", "a")), 200);
    assert_eq!(change(&editor, &other("stock", "b")), 403);
    assert_eq!(change(&editor, "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\n"), 403);
    assert_eq!(change(&editor, &policy("p", "a", "b/stock")), 403, "a policy for functions of another namespace");
    assert_eq!(change(&editor, &policy("p", "a", "shop")), 200);
    assert_eq!(control.post(&editor, "/v1/tokens", &json!({ "role": "reader" })).0, 403);
    let seen = control.get_as(&editor, "/v1/documents").1;
    assert!(seen["documents"].as_array().unwrap().iter().all(|document| document["namespace"] == "a"), "{seen}");
    assert_eq!(control.get_as(&editor, "/v1/documents/Function/b/stock").0, 404);
    let seen = control.get_as(&editor, "/v1/status").1;
    assert_eq!((seen["functions"].as_array().unwrap().len(), &seen["nodes"]), (1, &json!([])));
    let delete = json!({ "delete": [{ "kind": "Function", "namespace": "b", "name": "stock" }] });
    assert_eq!(control.post(&editor, "/v1/changes", &delete).0, 404);

    let expect = |version: u64| {
        let id = json!({ "kind": "Function", "namespace": "b", "name": "stock" });
        json!({ "apply": [], "delete": [], "expect": [{ "document": id, "version": version }], "dryRun": true })
    };
    assert_eq!([0, 1].map(|version| control.post(&editor, "/v1/changes", &expect(version)).0), [403; 2]);
    // The change would break a policy of another namespace. The response names no problems of that
    // namespace, whatever name the file has.
    control.apply(&policy("theirs", "b", "a/shop"));
    for file in ["x", "Policy b/theirs"] {
        let delete = json!({
            "apply": [{ "name": file, "text": other("more", "a") }],
            "delete": [{ "kind": "Function", "namespace": "a", "name": "shop" }, { "kind": "Policy", "namespace": "a", "name": "p" }],
            "dryRun": true,
        });
        let (status, refusal) = control.post(&editor, "/v1/changes", &delete);
        assert_eq!(status, 422, "{refusal}");
        assert!(!refusal.to_string().contains("Policy b/theirs"), "{refusal}");
    }

    let admin = token(&["--role", "admin", "--namespace", "a"]);
    assert_eq!(control.post(&admin, "/v1/tokens", &json!({ "role": "editor", "namespaces": ["b"] })).0, 403);
    assert_eq!(control.post(&admin, "/v1/tokens", &json!({ "role": "editor", "namespaces": ["a"] })).0, 200);
    assert_eq!(control.get_as(&admin, "/v1/audit").0, 403, "the log is of the whole mesh");

    for wrong in ["", "x", &editor[..editor.len() - 1]] {
        assert_eq!(control.get_as(wrong, "/v1/documents").0, 401);
    }
    let id = reader.split('.').nth(1).unwrap();
    assert!(control.leno(&["token", "revoke", id]).status.success());
    assert_eq!(control.get_as(&reader, "/v1/documents").0, 401);
    let tokens = control.leno(&["token", "list"]);
    assert!(text(&tokens).contains("the first") && !text(&tokens).contains(id), "{tokens:?}");
    let stored = fs::read(control.path("data/control.redb")).unwrap();
    let secret = editor.split('.').nth(2).unwrap();
    assert!(!stored.windows(secret.len()).any(|part| part == secret.as_bytes()), "hashes only");
    let mode = |file: &str| fs::metadata(control.path(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data/admin.token"), mode("data/api.key"), mode("data")), (0o600, 0o600, 0o700));
}

#[test]
fn of_two_writers_who_saw_the_same_version_one_wins() {
    let control = with_redb();
    control.apply(&function("shop", "a"));
    let version = control.documents()[0]["version"].to_string();
    let change = |command: &str| {
        let text = function("shop", "a").replace("true", command);
        control.leno_with(&["apply", "-f", "-", "--if-version", &version], &text)
    };
    let outcomes = std::thread::scope(|scope| {
        let writers = ["one", "two"].map(|command| scope.spawn(move || change(command).status.success()));
        writers.map(|writer| writer.join().unwrap())
    });
    assert_ne!(outcomes[0], outcomes[1], "{outcomes:?}");
    let late = change("three");
    assert!(String::from_utf8(late.stderr).unwrap().contains("409"));
    let made = control.leno_with(&["apply", "-f", "-", "--if-version", "0"], &function("new", "a"));
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let control = with_redb();
    let admin = control.token();
    for (body, status) in [
        (json!({}), 400),
        (json!({ "aply": [] }), 400),
        (json!({ "apply": [{ "name": "x", "text": "" }] }), 400),
        (json!({ "apply": [{ "name": "x", "text": "a: [" }] }), 422),
        (json!({ "delete": [{ "kind": "Function", "namespace": "a", "name": "none" }] }), 404),
        (json!({ "apply": [{ "name": "x", "text": function("../x", "a") }] }), 422),
        (json!({ "apply": [{ "name": "x", "text": "x".repeat(17 << 20) }] }), 413),
    ] {
        assert_eq!(
            control.post(&admin, "/v1/changes", &body).0,
            status,
            "{}",
            &body.to_string()[..60.min(body.to_string().len())]
        );
    }
    // The answer is there although nothing has read the body.
    for path in ["/v1/changes", "/v1/jobs/test/none/rerun", "/v1/nothing"] {
        let refused: Vec<u16> = (0..5).map(|_| control.post("leno_nobody", path, &json!({ "a": "b" })).0).collect();
        assert_eq!(refused, [if path == "/v1/nothing" { 404 } else { 401 }; 5], "{path}");
    }
    assert_eq!(control.get("/v1/nothing").0, 404);
    assert_eq!(control.get("/v1/audit?limit=x").0, 400);
    assert_eq!(control.get_as("", "/openapi.json").0, 200);
    assert_eq!(control.get_as("", "/readyz").0, 200);
    let described = control.get_as("", "/openapi.json").1;
    assert!(described["paths"]["/v1/changes"].is_object());
    assert!(control.documents().is_empty());
}

#[test]
fn a_restart_keeps_documents_tokens_and_revisions() {
    let mut control = with_redb();
    control.apply(&function("shop", "a"));
    control.apply(&function("shop", "a").replace("true", "false"));
    let (documents, status) = (control.documents(), control.get("/v1/status").1);
    control.kill();
    control.start_again();
    assert_eq!(control.documents(), documents);
    assert_eq!(control.get("/v1/status").1["functions"], status["functions"]);
    assert_eq!(status["functions"][0]["revisions"].as_array().unwrap().len(), 2);
}

#[test]
fn the_mesh_document_is_the_first_and_its_trust_domain_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mesh = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: main}\nspec: {trustDomain: shop.example}\n";
    fs::write(folder.path().join("mesh.yaml"), mesh).unwrap();
    let mut control = Control::start(folder, &["--mesh", "mesh.yaml"]);
    control.apply(&function("shop", "a"));
    assert_eq!(control.get("/v1/status").1["functions"][0]["identity"], "spiffe://shop.example/ns/a/sa/shop");
    let other = control.leno_with(&["apply", "-f", "-"], &mesh.replace("shop.example", "other.example"));
    assert!(!other.status.success());
    let second = control.leno_with(&["apply", "-f", "-"], &mesh.replace("name: main", "name: second"));
    assert!(String::from_utf8(second.stderr).unwrap().contains("there is another Mesh document, in Mesh main:1"));
    // The file has no effect when the store already has a Mesh document.
    control.write("mesh.yaml", &mesh.replace("shop.example", "other.example"));
    control.kill();
    control.start_again();
    assert_eq!(control.get("/v1/status").1["functions"][0]["identity"], "spiffe://shop.example/ns/a/sa/shop");
}

#[test]
fn a_bad_document_in_the_store_does_not_take_down_the_others() {
    let mut control = with_redb();
    control.apply(&function("shop", "a"));
    control.apply(&function("stock", "a"));
    control.kill();
    {
        use leno_control::{Backend, Redb, Transaction};
        let store = Redb::open(&control.path("data/control.redb")).unwrap();
        let mut transaction = Transaction::default();
        let broken = json!({ "text": FUNCTION.replace("command", "comand"), "by": "somebody", "at": 0.0 });
        transaction.put("api/documents/Function/a/stock", broken.to_string());
        store.commit(&transaction).unwrap();
    }
    control.start_again_unready();
    assert_eq!(control.get("/v1/status").1["functions"].as_array().unwrap().len(), 2, "the last good state goes on");
    assert_eq!(control.get_as("", "/readyz").0, 503);
    let listed = control.get("/v1/documents").1;
    assert_eq!(listed["notInForce"][0]["file"], "Function a/stock", "{listed}");
    let other = control.leno_with(&["apply", "-f", "-"], &function("new", "a"));
    assert_eq!(other.status.code(), Some(2), "nothing is checked against what cannot be read: {other:?}");
    control.apply(&function("stock", "a"));
    assert_eq!(control.get_as("", "/readyz").0, 200);
    control.apply(&function("new", "a"));
}

#[test]
fn contexts_name_control_planes() {
    let control = with_redb();
    let config = control.path("config/leno/config");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let (url, data) = (control.url(), control.path("data"));
    let context = format!("{{server: {url}, tokenFile: {0}/admin.token, ca: {0}/api.pem}}", data.display());
    fs::write(&config, format!("current: test\ncontexts:\n  test: {context}\n")).unwrap();
    let get = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_leno"));
        command.args(["get", "documents"]).env("XDG_CONFIG_HOME", control.path("config")).output().unwrap()
    };
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(String::from_utf8(get().stderr).unwrap().contains("chmod 600"));
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(get().status.success(), "{:?}", get());
    // Without the certificate, the client does not send the token.
    fs::write(&config, format!("current: test\ncontexts:\n  test: {}\n", context.replace("api.pem", "admin.token")))
        .unwrap();
    assert!(!get().status.success());
}

#[test]
fn etcd_keeps_everything_and_its_failure_stops_only_changes() {
    let mut server = EtcdServer::start();
    let mut control = Control::start(tempfile::tempdir().unwrap(), &["--etcd", &server.address(), "--etcd-lease", "2"]);
    control.apply(&function("shop", "a"));
    let documents = control.documents();
    control.kill();
    control.start_again();
    assert_eq!(control.documents(), documents);
    server.kill();
    let refused = control.leno_with(&["apply", "-f", "-"], &function("new", "a"));
    assert!(!refused.status.success());
    assert_eq!(control.documents(), documents, "reads go on");
    server.run();
    control.eventually("changes to be taken again", |control| {
        control.leno_with(&["apply", "-f", "-"], &function("new", "a")).status.success()
    });
    assert_eq!(control.documents().len(), 2);
}

#[test]
fn another_control_plane_takes_over_and_loses_nothing_that_was_acknowledged() {
    let server = EtcdServer::start();
    let etcd = server.address();
    let arguments = ["--etcd", &*etcd, "--etcd-lease", "2"];
    let mut one = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let two = Control::start_following(&one, &arguments);
    // A follower answers reads, and redirects writers to the leader.
    one.apply(&function("first", "a"));
    two.eventually("the follower to follow", |two| two.documents().len() == 1);
    let token = two.token();
    let change = json!({ "apply": [{ "name": "x", "text": function("x", "a") }] });
    let (status, refusal) = two.post(&token, "/v1/changes", &change);
    assert_eq!((status, &refusal["leader"]), (421, &json!(one.url())));
    let through = two.leno_with(&["apply", "-f", "-"], &function("second", "a"));
    assert!(through.status.success(), "the command asks the leader itself: {through:?}");

    let mut acknowledged = BTreeSet::from(["first".to_owned(), "second".to_owned()]);
    let mut after_the_kill = 0;
    for number in 0..2000 {
        if number == 10 {
            one.kill();
        }
        let name = format!("f{number}");
        let asked = if number < 10 { &one } else { &two };
        let change = json!({ "apply": [{ "name": "x", "text": function(&name, "a") }] });
        if asked.try_post(&token, "/v1/changes", &change).is_some_and(|(status, _)| status == 200) {
            acknowledged.insert(name);
            after_the_kill += usize::from(number >= 10);
        }
        if after_the_kill == 5 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(after_the_kill, 5, "the other one takes over:\n{}", two.output());
    let stored: BTreeSet<String> =
        two.documents().iter().map(|document| document["name"].as_str().unwrap().to_owned()).collect();
    assert!(acknowledged.is_subset(&stored), "{:?}", acknowledged.difference(&stored));
    let in_force = two.get("/v1/status").1["functions"].as_array().unwrap().len();
    assert_eq!(in_force, stored.len(), "and all of it is in force");
}

/// A registry that accepts connections and never answers.
#[test]
fn a_slow_registry_delays_nobody_else() {
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/shop:1", registry.local_addr().unwrap());
    let asked = std::thread::spawn(move || registry.accept().map(|(stream, _)| (stream, registry)));
    let control = Control::start(tempfile::tempdir().unwrap(), &[]);
    let waits = function("waits", "a").replace("command: [\"true\"]", &format!("image: \"{image}\""));
    let change = |text: &str| json!({ "apply": [{ "name": "x", "text": text }] });
    control.apply(
        "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: a}\nspec: {egress: [127.0.0.1/32]}\n",
    );
    let token = control.token();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| control.post(&token, "/v1/changes", &change(&waits)));
        let (_stream, _registry) = asked.join().unwrap().unwrap();
        // The registry received the request, and has not answered. No other change waits for it.
        assert_eq!(control.post(&token, "/v1/changes", &change(&function("quick", "a"))).0, 200);
        assert!(!waiting.is_finished(), "the registry has not answered yet");
        // It closes the connection, and refuses the next.
        drop((_stream, _registry));
        let (status, refusal) = waiting.join().unwrap();
        assert_eq!(status, 422, "{refusal}");
        assert!(refusal.to_string().contains("which image that is cannot be found out"), "{refusal}");
    });
    assert_eq!(control.documents().len(), 2, "the quota and the quick function");
}

#[test]
fn a_namespace_gets_no_more_than_its_quota_and_sees_how_much_that_is() {
    let control = with_redb();
    let made = control.leno(&["token", "create", "--role", "editor", "--namespace", "a"]);
    let tenant = text(&made).trim().to_owned();
    let change = |token: &str, documents: &str, delete: &[Value]| {
        let apply = if documents.is_empty() { json!([]) } else { json!([{ "name": "x", "text": documents }]) };
        control.post(token, "/v1/changes", &json!({ "apply": apply, "delete": delete }))
    };
    let quota = |spec: &str| {
        format!("apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {{name: a}}\nspec: {spec}\n")
    };
    let scaled =
        |name: &str, min: u32| function(name, "a").replace("spec: {", &format!("spec: {{scale: {{min: {min}}}, "));

    // A tenant has the default quota, and cannot raise it.
    let (status, refusal) = change(&tenant, &scaled("big", 501), &[]);
    assert_eq!(status, 403, "{refusal}");
    let error = refusal["error"].as_str().unwrap();
    assert!(error.contains("the namespace a: its documents need 501 of `instances`, and its quota is 500"), "{error}");
    assert_eq!(change(&tenant, &quota("{instances: 1000}"), &[]).0, 403, "the quota is not the tenant's");
    control.apply(&quota("{functions: 2, instances: 10, documentBytes: 1Ki}"));

    assert_eq!(change(&tenant, &scaled("one", 6), &[]).0, 200);
    assert_eq!(change(&tenant, &scaled("two", 5), &[]).0, 403, "11 instances of all functions together");
    assert_eq!(change(&tenant, &scaled("two", 4), &[]).0, 200);
    // The third function of two. It is named by its place in the request.
    let (status, refusal) = change(&tenant, &format!("{}---\n{}", scaled("two", 4), function("three", "a")), &[]);
    let problems = refusal["problems"].as_array().unwrap_or_else(|| panic!("{refusal}"));
    let lines = scaled("two", 4).lines().count() as u64 + 1;
    assert_eq!((status, problems.len()), (403, 1), "{refusal}");
    assert_eq!((&problems[0]["file"], problems[0]["line"].as_u64()), (&json!("x"), Some(lines + 1)), "{refusal}");
    control.write("three.yaml", &function("three", "a"));
    let refused = control.leno(&["apply", "-f", "three.yaml"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("three.yaml:1:1: the namespace `a`: its documents need 3 of `functions`"), "{told}");
    let long = format!("{}# {}\n", scaled("two", 4), "x".repeat(1024));
    let (status, refusal) = change(&tenant, &long, &[]);
    assert!(status == 403 && refusal["error"].as_str().unwrap().contains("`documentBytes`"), "{refusal}");
    assert_eq!(change(&control.token(), &function("three", "b"), &[]).0, 200, "another namespace has its own quota");

    // The operator lowers the quota: existing functions stay, and may shrink.
    control.apply(&quota("{functions: 1, instances: 5, hosts: [a.example]}"));
    assert_eq!(change(&tenant, &scaled("two", 3), &[]).0, 200);
    assert_eq!(change(&tenant, &scaled("two", 4), &[]).0, 403);

    let (_, listed) = control.get_as(&tenant, "/v1/namespaces");
    assert_eq!(listed.as_array().unwrap().len(), 1, "a tenant sees no other namespace: {listed}");
    assert_eq!(listed[0]["functions"], json!({ "used": 2, "bound": 1 }));
    assert_eq!(listed[0]["hosts"], json!(["a.example"]));
    let table = text(&control.leno(&["get", "namespaces", "-o", "wide"]));
    let of_b = table.lines().find(|line| line.starts_with("b ")).unwrap_or_else(|| panic!("{table}"));
    assert!(of_b.contains("1/1000") && of_b.contains("500") && of_b.contains("0/100000"), "{table}");
}

/// Puts an entry of control planes into etcd, as an attacker with write access to etcd would.
fn tamper(server: &EtcdServer, key: &str, value: &[u8]) {
    use base64::Engine as _;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let entry = json!({ "key": encode(format!("/leno/{key}").as_bytes()), "value": encode(value) });
    let mut put = Command::new("curl")
        .args(["--silent", "--fail", "--noproxy", "*", "--data-binary", "@-"])
        .arg(format!("{}/v3/kv/put", server.address()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("curl is installed (make setup)");
    put.stdin.take().unwrap().write_all(entry.to_string().as_bytes()).unwrap();
    assert!(put.wait().unwrap().success());
}

#[test]
fn entries_that_were_tampered_with_are_named_and_stop_no_other() {
    let server = EtcdServer::start();
    let etcd = server.address();
    let arguments = ["--etcd", &*etcd, "--etcd-lease", "2"];
    let mut one = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let two = Control::start_following(&one, &arguments);
    one.apply(&format!("{}---\n{}---\n{}", function("shop", "a"), function("cart", "b"), function("rest", "b")));
    let [revoked, kept] =
        ["a", "b"].map(|name| text(&one.leno(&["token", "create", "--role", "editor", "--namespace", name])));
    let [revoked, kept] = [revoked.trim(), kept.trim()];
    let id = |token: &str| token.split('.').nth(1).unwrap().to_owned();
    two.eventually("both tokens", |two| {
        [revoked, kept].iter().all(|token| two.get_as(token, "/v1/documents").0 == 200)
    });

    // A follower keeps following: it learns of a revoked token.
    for (key, value) in [
        ("api/documents/Function/b/cart", &b"{"[..]),
        ("api/documents/Function/a/%2e%2e", b"{\"text\":\"\",\"by\":\"\",\"at\":0}"),
        ("api/tokens/00000000", b"[1,2]"),
        ("api/tokens/11111111", b"{\"hash\":\"\",\"role\":\"owner\"}"),
        ("nodes/../edge", b"\0\0\0\0"),
        ("nodes/edge", &[0xff; 1 << 20]),
        ("join-tokens/+f", b""),
    ] {
        tamper(&server, key, value);
    }
    assert!(one.leno(&["token", "revoke", &id(revoked)]).status.success());
    two.eventually("the token to be refused", |two| two.get_as(revoked, "/v1/documents").0 == 401);
    assert_eq!(two.get_as(kept, "/v1/documents").0, 200);

    // A new leader reports invalid entries, and accepts the change that repairs them.
    one.kill();
    two.eventually("the other one to lead", |two| two.ready().is_some_and(|text| text.starts_with("leads")));
    for said in [
        "api/documents/Function/b/cart cannot be read",
        "Function b/cart",
        "nodes/../edge",
        "nodes/edge",
        "join-tokens/+f",
    ] {
        two.eventually(said, |two| two.output().contains(said));
    }
    let change = |text: &str| json!({ "apply": [{ "name": "x", "text": text }] });
    let (status, refusal) = two.post(&two.token(), "/v1/changes", &change(&function("new", "a")));
    assert!(status == 422 && refusal.to_string().contains("Function b/cart"), "{refusal}");
    let odd = json!({ "apply": [{ "name": "x", "text": function("cart", "b") }], "delete": [{ "kind": "Function", "namespace": "a", "name": "%2e%2e" }] });
    let (status, answer) = two.post(&two.token(), "/v1/changes", &odd);
    assert_eq!(status, 200, "{answer}");

    // The document of another namespace, and an entry of an unknown kind.
    let listed = two.documents();
    let shop = listed.iter().find(|row| row["name"] == "shop").unwrap();
    let value = json!({ "text": shop["text"], "by": "somebody", "at": 0.0 }).to_string();
    tamper(&server, "api/documents/Function/b/rest", value.as_bytes());
    tamper(&server, "api/orders/b/rest", value.as_bytes());
    one.start_again_following();
    drop(two);
    one.eventually("the first one to lead", |one| one.ready().is_some_and(|text| text.starts_with("leads")));
    let refused = one.leno_with(&["apply", "-f", "-"], &function("new", "a"));
    let words = String::from_utf8(refused.stderr).unwrap();
    assert!(words.contains("Function b/rest: the kept text is not this document"), "{words}");
    assert!(words.contains("api/orders/b/rest: this release knows no such entry"), "{words}");
}
