//! Stored secrets: `leno control`, nodes and functions as processes, with redb and with etcd.

use leno_testkit::cluster::{MESH, Node, Place, control, nodes_of};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{ALLOW_ALL, Mesh, policy};
use leno_testkit::{Answer, EtcdServer, eventually, leno_program, try_curl};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

/// Not part of any other text.
const VALUE: &str = "zanzibar-swordfish-1";
const CHANGED: &str = "zanzibar-swordfish-2";
/// `[0, 255, 1]`
const BINARY: &str = "AP8B";

/// Answers with the secrets that it has.
const SERVER: &str = r#"
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        with open(os.environ["LENO_SECRETS"] + "/binary", "rb") as file:
            body = (os.environ["PASSWORD"][::-1] + " " + file.read().hex()).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

fn secret(name: &str, namespace: &str, value: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {{name: {name}, namespace: {namespace}, \
         labels: {{team: blue}}}}\nspec: {{stringData: {{password: {value}}}, data: {{binary: {BINARY}}}}}\n"
    )
}

/// A function that needs the keys of the secret `db`.
fn reader(name: &str, more: &str) -> String {
    let program = serde_json::to_string(SERVER).unwrap();
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  \
         command: [\"python3\", \"-c\", {program}]\n  secrets:\n  \
         - {{name: PASSWORD, from: {{secret: db, key: password}}, as: env}}\n  \
         - {{name: binary, from: {{secret: db, key: binary}}}}\n{more}\n"
    )
}

fn exposed(name: &str) -> String {
    reader(name, "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 1, max: 1}") + &policy("open", name, ALLOW_ALL)
}

fn expected(value: &str) -> String {
    format!("{} 00ff01", value.chars().rev().collect::<String>())
}

fn answers(answer: Option<Answer>, value: &str) -> Option<()> {
    answer.filter(|answer| answer.status == 200 && answer.body == expected(value)).map(drop)
}

fn token(control: &Control, role: &str, namespace: &str) -> String {
    let made = control.leno(&["token", "create", "--role", role, "--namespace", namespace]);
    assert!(made.status.success(), "{made:?}");
    text(&made).trim().to_owned()
}

fn change(control: &Control, token: &str, documents: &str, dry_run: bool) -> (u16, Value) {
    let request = json!({ "apply": [{ "name": "x.yaml", "text": documents }], "dryRun": dry_run });
    control.post(token, "/v1/changes", &request)
}

/// Everything that a command printed.
fn printed(output: &Output) -> String {
    format!("{}{}", text(output), String::from_utf8_lossy(&output.stderr))
}

/// Whether a process has these bytes in its private memory. Pages that it never touched are not
/// read: a node reserves many.
fn memory_has(pid: u32, needle: &str) -> bool {
    const PAGE: u64 = 4096;
    let file = |name: &str| fs::File::open(format!("/proc/{pid}/{name}")).unwrap();
    let (memory, pages) = (file("mem"), file("pagemap"));
    let (mut begin, mut end, mut found) = (0, 0, false);
    for line in fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap().lines() {
        if let Some((from, to)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) {
            [begin, end] = [from, to].map(|address| u64::from_str_radix(address, 16).unwrap());
        }
        if !line.starts_with("Anonymous:") || line.ends_with(" 0 kB") {
            continue;
        }
        let mut present = Vec::new();
        for first in (begin / PAGE..end / PAGE).step_by(512) {
            // Eight bytes for each page; the highest bit tells whether it is in memory.
            let mut entries = [0; 8 * 512];
            let read = pages.read_at(&mut entries, 8 * first).unwrap_or_default();
            for (page, entry) in (first..end / PAGE).zip(entries[..read].as_chunks::<8>().0) {
                let mut bytes = [0; PAGE as usize];
                if u64::from_ne_bytes(*entry) >> 63 == 1 && memory.read_exact_at(&mut bytes, PAGE * page).is_ok() {
                    present.extend(bytes);
                }
            }
        }
        found |= present.windows(needle.len()).any(|window| window == needle.as_bytes());
    }
    found
}

/// Whether a file of a folder has these bytes.
fn is_on_disk(folder: &Path, needle: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_on_disk(&path, needle);
        }
        // Sockets and files that are gone by now cannot be read.
        fs::read(&path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle.as_bytes()))
    })
}

/// A control plane with a key file.
fn keyed(keys: &[&str], more: &[&str]) -> Control {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mesh.yaml"), MESH).unwrap();
    for (name, key) in [("old.key", KEYS[0]), ("new.key", KEYS[1])] {
        fs::write(folder.path().join(name), key).unwrap();
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let mut arguments = vec!["--mesh", "mesh.yaml"];
    keys.iter().for_each(|key| arguments.extend(["--secret-key", *key]));
    arguments.extend(more);
    Control::start(folder, &arguments)
}

const KEYS: [&str; 2] =
    ["AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n"];

#[test]
fn a_function_has_its_secret_and_only_its_node_and_nobody_is_shown_it() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let nodes = [Node::join(&control, "one", &[]), Node::join(&control, "two", &[])];
    control.apply(&format!("{}{}", secret("db", "test", VALUE), exposed("shop")));
    eventually("its answer", || answers(gateway.get("/"), VALUE));

    let host = eventually("its report", || Some(nodes_of(&control, "test/shop")).filter(|host| !host.is_empty()));
    assert_eq!(host.len(), 1, "{host:?}");
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("\n*** NOT tested: only root may look into the memory of nodes ***\n");
    }
    for node in nodes.iter().chain([&gateway]) {
        if is_root {
            assert_eq!(memory_has(node.process.pid(), VALUE), node.name == host[0], "{} of {host:?}", node.name);
        }
        assert!(!is_on_disk(node.folder.path(), VALUE), "{}", node.name);
    }

    // A change is in force for instances that start then, as a changed file is.
    control.apply(&secret("db", "test", CHANGED));
    let restarted = exposed("shop").replace("max: 1}", "max: 1}\n  env: {AGAIN: \"1\"}");
    control.apply(&restarted);
    eventually("the changed value", || answers(gateway.get("/"), CHANGED));

    let editor = token(&control, "editor", "test");
    let mut shown = String::new();
    for arguments in [
        &["get", "secrets", "-o", "wide"][..],
        &["get", "secrets", "-o", "json"],
        &["get", "documents", "-o", "yaml"],
        &["get", "documents", "StoredSecret", "test/db", "-o", "json"],
        &["describe", "secret", "test/db"],
        &["get", "audit", "-o", "json"],
        &["get", "events", "-o", "json"],
        &["get", "namespaces", "-o", "wide"],
    ] {
        let output = control.leno(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        shown += &printed(&output);
    }
    shown += &printed(&control.leno_with(&["diff", "-f", "-"], &secret("db", "test", VALUE)));
    shown += &printed(&control.leno_with(&["apply", "--dry-run", "-f", "-"], &secret("db", "test", VALUE)));
    shown += &change(&control, &editor, &secret("db", "test", VALUE), true).1.to_string();
    shown += &control.get("/v1/status").1.to_string();
    shown += &control.output();
    shown += &fs::read_to_string(control.path("audit.jsonl")).unwrap();
    nodes.iter().for_each(|node| shown += &node.process.output());
    for value in [VALUE, CHANGED, BINARY] {
        assert!(!shown.contains(value), "{value} is in {shown}");
    }
    for part in ["password", "binary", "test/shop", "redacted"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(!is_on_disk(&control.path("data"), CHANGED) && !is_on_disk(&control.path("data"), VALUE));

    // A document that a control plane shows cannot be applied, and replaces nothing.
    let documents = text(&control.leno(&["get", "documents", "StoredSecret", "-o", "yaml"]));
    let refused = control.leno_with(&["apply", "-f", "-"], &documents);
    assert!(!refused.status.success() && printed(&refused).contains("spec.redacted"), "{refused:?}");
    assert_eq!(change(&control, &editor, &secret("db", "test", CHANGED), false).1["revision"], Value::Null);
}

#[test]
fn who_may_write_list_and_name_a_secret() {
    let control = control();
    let [editor, reader_token] = [token(&control, "editor", "test"), token(&control, "reader", "test")];
    let other = token(&control, "admin", "other");
    let (status, answer) = change(&control, &editor, &secret("db", "test", VALUE), false);
    assert_eq!(status, 200, "{answer}");
    for dry_run in [true, false] {
        for (token, what) in [(&reader_token, "a reader"), (&other, "an admin of another namespace")] {
            let (status, answer) = change(&control, token, &secret("db", "test", VALUE), dry_run);
            assert_eq!(status, 403, "{what}: {answer}");
        }
    }
    let (status, listed) = control.get_as(&reader_token, "/v1/secrets");
    assert_eq!((status, &listed[0]["name"], &listed[0]["keys"][1]["bytes"]), (200, &json!("db"), &json!(VALUE.len())));
    assert_eq!(control.get_as(&other, "/v1/secrets").1, json!([]));

    // A secret is named from its own namespace only, and a missing one is refused with line and field.
    let document = reader("shop", "");
    let elsewhere = document.replace("namespace: test", "namespace: other");
    for (token, text, parts) in [
        (&other, &elsewhere, ["no StoredSecret `db`", "spec.secrets[0].from.secret", "namespace `other`"]),
        (&editor, &document.replace("secret: db,", "secret: dc,"), ["no StoredSecret `dc`", "mean `db`", "line\":8"]),
        (&editor, &document.replace("key: binary", "key: binari"), ["no key `binari`", "mean `binary`", "from.key"]),
    ] {
        let (status, answer) = change(&control, token, text, false);
        let told = answer.to_string();
        assert_eq!(status, 422, "{answer}");
        parts.iter().for_each(|part| assert!(told.contains(part), "{part}: {told}"));
        assert!(token == &editor || !told.contains("test"), "{told}");
    }
    assert_eq!(change(&control, &editor, &document, false).0, 200);
    let (status, listed) = control.get_as(&reader_token, "/v1/secrets");
    assert_eq!((status, &listed[0]["usedBy"]), (200, &json!(["test/shop"])));
    // It is not deleted while it is named.
    let delete = json!({ "delete": [{ "kind": "StoredSecret", "namespace": "test", "name": "db" }] });
    assert_eq!(control.post(&editor, "/v1/changes", &delete).0, 422);

    // Values that cannot be stored are named by their keys.
    let large = "x".repeat((64 << 10) + 1);
    for (text, part) in [
        (secret("db", "test", &large), "65537 bytes"),
        (secret("db", "test", VALUE).replace(BINARY, "\"?~?~\""), "base64"),
        (secret("db", "test", VALUE).replace("password:", "binary:"), "`binary` is in `stringData` too"),
        (secret("db", "test", VALUE).replace("{stringData: {password", "{stringDat: {password"), "no such field"),
        (secret("db", "test", VALUE).replace(&format!("{{password: {VALUE}}}"), VALUE), "another form"),
    ] {
        let (status, answer) = change(&control, &editor, &text, false);
        let told = answer.to_string();
        assert!(status == 422 && told.contains(part) && told.contains("x.yaml"), "{part}: {told}");
        assert!(!told.contains(VALUE) && !told.contains("xxxx") && !told.contains("?~?~"), "{told}");
    }
    // The namespace's bounds.
    let quota = |fields: &str| {
        let quota = "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: test}\nspec: ";
        control.apply(&format!("{quota}{fields}\n"));
    };
    for (fields, bound) in [("{secrets: 3}", "`secrets`"), ("{secretBytes: 1Ki}", "`secretBytes`")] {
        quota(fields);
        let (status, answer) = change(&control, &editor, &secret("more", "test", &"y".repeat(2000)), false);
        assert!(status == 403 && answer.to_string().contains(bound), "{answer}");
    }
}

#[test]
fn a_control_plane_without_a_key_stores_no_secret_and_a_key_is_replaced() {
    let without = keyed(&[], &[]);
    let refused = without.leno_with(&["apply", "-f", "-"], &secret("db", "test", VALUE));
    let told = printed(&refused);
    assert!(!refused.status.success() && told.contains("--secret-key") && told.contains("openssl rand"), "{told}");
    assert!(!is_on_disk(&without.path("data"), VALUE));

    let mut control = keyed(&["old.key"], &[]);
    control.apply(&secret("db", "test", VALUE));
    let sealed_with_first = |control: &Control| control.output().contains("encrypted with the first key");
    assert!(!sealed_with_first(&control));
    // With the new key alone the control plane reports that it cannot read the stored secrets, and
    // goes on. The document can be applied again.
    control.kill();
    control.set_arguments(&["--mesh", "mesh.yaml", "--secret-key", "new.key"]);
    control.start_again_unready();
    control.eventually("it to say so", |control| {
        control.ready().is_some_and(|text| text.contains("not in force")) && control.output().contains("--secret-key")
    });
    control.kill();
    control.set_arguments(&["--mesh", "mesh.yaml", "--secret-key", "new.key", "--secret-key", "old.key"]);
    control.start_again();
    control.eventually("values to be encrypted anew", sealed_with_first);
    control.kill();
    control.set_arguments(&["--mesh", "mesh.yaml", "--secret-key", "new.key"]);
    control.start_again();
    let unchanged = control.apply(&secret("db", "test", VALUE));
    assert!(text(&unchanged).contains("nothing changed"), "{unchanged:?}");
    // A key that others can read is no key.
    control.kill();
    fs::set_permissions(control.path("new.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let ended = control.leno(&["control", "--data", "other", "--secret-key", "new.key"]);
    assert!(!ended.status.success() && printed(&ended).contains("chmod 600"), "{ended:?}");
}

#[test]
fn secrets_are_in_etcd_and_with_the_next_leader_and_after_restarts() {
    let etcd = EtcdServer::start();
    let address = etcd.address();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [mesh, ca, passphrase] = ["mesh.yaml", "ca.pem", "passphrase"].map(path);
    fs::write(&mesh, MESH).unwrap();
    fs::write(&passphrase, "correct horse battery").unwrap();
    let arguments =
        ["--etcd", &*address, "--etcd-lease", "2", "--mesh", &*mesh, "--ca", &*ca, "--ca-passphrase", &*passphrase];
    let mut first = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let second = Control::start_following(&first, &arguments);
    let other = second.nodes();
    let more = ["--control", &*other];
    let place = Place::here();
    let gateway = Node::join_at(&place, &first, "edge", &["--only-gateway"], &more);
    let mut node = Node::join_at(&place, &first, "one", &[], &more);
    first.apply(&format!("{}{}", secret("db", "test", VALUE), exposed("shop")));
    eventually("its answer", || answers(gateway.get("/"), VALUE));
    assert!(!is_on_disk(etcd.folder(), VALUE), "etcd has ciphertexts");
    assert_eq!(second.get("/v1/secrets").1[0]["usedBy"], json!(["test/shop"]), "a follower lists");

    // The next leader has the secrets too, and a node that starts anew gets them.
    first.kill();
    eventually("the other one to lead", || second.leads().then_some(()));
    node.kill();
    node.start_again();
    eventually("its answer after all that", || answers(gateway.get("/"), VALUE));
    second.eventually("a change to be taken", |control| {
        control.leno_with(&["apply", "-f", "-"], &secret("db", "test", CHANGED)).status.success()
    });
    second.apply(&exposed("shop").replace("max: 1}", "max: 1}\n  env: {AGAIN: \"1\"}"));
    eventually("the changed value", || answers(gateway.get("/"), CHANGED));
    assert!(!is_on_disk(etcd.folder(), CHANGED), "etcd has ciphertexts");
}

#[test]
fn up_takes_secrets_of_a_folder_and_a_changed_one_is_in_force_for_new_instances() {
    let secret = |value: &str| secret("db", "test", value).trim_start_matches("---\n").to_owned();
    let documents = exposed("shop");
    let mesh = Mesh::start_with_command(Command::new(leno_program()), "", &documents, |folder| {
        fs::write(folder.join("secret.yaml"), secret(VALUE)).unwrap();
        fs::set_permissions(folder.join("secret.yaml"), fs::Permissions::from_mode(0o644)).unwrap();
    });
    let url = format!("http://127.0.0.1:{}/", mesh.ports.gateway);
    eventually("its answer", || answers(try_curl(&url, &[]), VALUE));
    mesh.line("other accounts can read it (mode 644); chmod 600");
    fs::write(mesh.folder.path().join("secret.yaml"), secret(CHANGED)).unwrap();
    mesh.write(&documents.replace("max: 1}", "max: 1}\n  env: {AGAIN: \"1\"}"));
    eventually("the changed value", || answers(try_curl(&url, &[]), CHANGED));
    let output = mesh.output().join("\n");
    assert!(!output.contains(VALUE) && !output.contains(CHANGED), "{output}");
}

#[test]
fn create_secret_reads_files_and_standard_input() {
    let control = control();
    fs::write(control.path("binary"), [0, 255, 1]).unwrap();
    let create = |arguments: &[&str]| control.leno_with(&[&["create-secret", "test/db"], arguments].concat(), VALUE);
    let made = create(&["--from-file", "password=-", "--from-file", "binary", "--from-literal", "user=shop=1"]);
    assert!(made.status.success(), "{made:?}");
    let (_, listed) = control.get("/v1/secrets");
    let keys: Vec<(&str, u64)> = listed[0]["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| (key["key"].as_str().unwrap(), key["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(keys, [("binary", 3), ("password", VALUE.len() as u64), ("user", 6)]);
    let again = create(&["--from-literal", "user=shop"]);
    assert!(!again.status.success() && printed(&again).contains("--replace"), "{again:?}");
    assert!(create(&["--from-literal", "user=shop", "--replace"]).status.success());
    assert_eq!(control.get("/v1/secrets").1[0]["keys"].as_array().unwrap().len(), 1);
    for (arguments, part) in [
        (&[][..], "--from-file"),
        (&["--from-literal", "user"], "KEY=VALUE"),
        (&["--from-file", "a=-", "--from-file", "b=-"], "standard input"),
        (&["--from-literal", "a=1", "--from-literal", "a=2"], "twice"),
        (&["--from-file", "a=/nonexistent"], "/nonexistent"),
    ] {
        let refused = create(arguments);
        assert!(!refused.status.success() && printed(&refused).contains(part), "{arguments:?}: {refused:?}");
    }
}

#[test]
fn a_check_for_a_control_plane_says_what_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("functions.yaml"), exposed("shop")).unwrap();
    let check = |more: &[&str]| {
        let path = folder.path().display().to_string();
        let mut command = Command::new(leno_program());
        command.args(["check", &path]).args(more).env_remove("LENO_SERVER").env("HOME", folder.path()).output().unwrap()
    };
    let up = check(&[]);
    assert!(!up.status.success() && printed(&up).contains("there is no StoredSecret `db`"), "{up:?}");
    let unknown = check(&["--for", "control"]);
    assert!(unknown.status.success() && printed(&unknown).contains("is not known"), "{unknown:?}");
    fs::write(folder.path().join("secret.yaml"), secret("db", "test", VALUE)).unwrap();
    let known = check(&["--for", "control"]);
    assert!(known.status.success() && !printed(&known).contains("is not known"), "{known:?}");
}
