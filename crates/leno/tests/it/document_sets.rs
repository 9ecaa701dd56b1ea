//! One set of documents for `leno up` and for a control plane: what `leno apply` deletes, sends,
//! and refuses to send.

use leno_testkit::control::{Control, function, policy, text};
use leno_testkit::keys::TokenKey;
use serde_json::json;
use std::fs;
use std::process::Output;

const MESH: &str = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: main}\n";

fn with_redb() -> Control {
    Control::start(tempfile::tempdir().unwrap(), &[])
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn names(control: &Control) -> Vec<String> {
    let rows = control.documents();
    let mut names: Vec<_> = rows
        .iter()
        .map(|row| {
            let text = |field: &str| row[field].as_str().unwrap_or_default();
            format!("{} {}/{}", text("kind"), text("namespace"), text("name"))
        })
        .collect();
    names.sort();
    names
}

#[test]
fn pruning_deletes_what_the_set_has_no_more_and_nothing_else() {
    let control = with_redb();
    let quota = "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: a}\n";
    let all = [
        function("shop", "a"),
        function("old", "a"),
        policy("old", "a", "old"),
        function("stock", "b"),
        function("other", "b"),
        function("third", "c"),
        MESH.to_owned(),
        quota.to_owned(),
    ];
    control.apply(&all.join("---\n"));
    let before = names(&control);
    let set = function("shop", "a").replace("true", "false");
    let run = |arguments: &[&str]| control.leno_with(&[arguments, &["-f", "-"]].concat(), &set);

    let tried = run(&["apply", "--prune", "--dry-run"]);
    assert!(tried.status.success(), "{tried:?}");
    for line in ["Function a/shop would be changed", "Function a/old would be deleted", "Policy a/old would be deleted"]
    {
        assert!(text(&tried).contains(line), "{tried:?}");
    }
    assert_eq!(text(&tried).matches("would be deleted").count(), 2, "{tried:?}");
    let diff = run(&["diff", "--prune"]);
    assert_eq!(diff.status.code(), Some(1), "{diff:?}");
    assert!(text(&diff).contains("--- Function a/old (stored)") && !text(&diff).contains("b/stock"), "{diff:?}");
    assert_eq!(names(&control), before, "a dry run deletes nothing");

    // Without `--prune` nothing is deleted, and a refused change deletes nothing.
    assert!(run(&["apply"]).status.success());
    assert_eq!(names(&control), before);
    let broken = control.leno_with(&["apply", "--prune", "-f", "-"], &policy("p", "a", "nobody"));
    assert_eq!(broken.status.code(), Some(2), "{broken:?}");
    assert_eq!(names(&control), before, "all of it, or nothing");

    let pruned = run(&["apply", "--prune"]);
    assert!(pruned.status.success(), "{pruned:?}");
    assert!(text(&pruned).contains("Function a/old deleted\n"), "{pruned:?}");
    let left = |gone: &[&str]| -> Vec<String> {
        before.iter().filter(|name| !gone.contains(&name.as_str())).cloned().collect()
    };
    assert_eq!(names(&control), left(&["Function a/old", "Policy a/old"]));
    assert!(text(&run(&["apply", "--prune"])).contains("nothing changed"));

    // Of two namespaces in the set, `-n` prunes one.
    let both = format!("{}---\n{}", function("new", "a"), function("stock", "b"));
    let pruned = control.leno_with(&["apply", "--prune", "-n", "b", "-f", "-"], &both);
    assert!(pruned.status.success(), "{pruned:?}");
    let mut expected = left(&["Function a/old", "Policy a/old", "Function b/other"]);
    expected.push("Function a/new".to_owned());
    expected.sort();
    assert_eq!(names(&control), expected);
}

#[test]
fn a_set_without_documents_of_the_namespace_prunes_nothing() {
    let control = with_redb();
    control.apply(&format!("{}---\n{}", function("shop", "a"), function("stock", "b")));
    let before = names(&control);
    for (arguments, set, message) in [
        (&["--prune"][..], "", "--prune needs a document of a namespace"),
        (&["--prune"], MESH, "--prune needs a document of a namespace"),
        (&["--prune", "-n", "b"], &function("shop", "a"), "no document is of the namespace `b`"),
        (&["-n", "b"], &function("shop", "a"), "--prune"),
    ] {
        let refused = control.leno_with(&[&["apply", "-f", "-"], arguments].concat(), set);
        assert!(!refused.status.success() && errors(&refused).contains(message), "{arguments:?} {refused:?}");
        assert_eq!(names(&control), before);
    }
    // A token of one namespace cannot prune another.
    let made = control.leno(&["token", "create", "--role", "editor", "--namespace", "a"]);
    fs::write(control.path("a.token"), text(&made)).unwrap();
    fs::set_permissions(control.path("a.token"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let refused = control.leno_with(&["--token-file", "a.token", "apply", "--prune", "-f", "-"], &function("new", "b"));
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(names(&control), before);
}

#[test]
fn a_check_for_a_control_plane_says_what_one_refuses() {
    let control = with_redb();
    fs::create_dir(control.path("set")).unwrap();
    let folder = "spec: {command: [\"true\"], workingDirectory: app}\n";
    let relative = function("shop", "a").replace("spec: {command: [\"true\"]}\n", folder);
    let layout = function("image", "a").replace("command: [\"true\"]", "image: \"oci:images/shop:v1\"");
    let module = "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: wasm, namespace: a}\nspec: \
                  {wasm: {path: shop.wasm}}\n";
    let mesh = format!("{MESH}spec: {{listeners: {{admin: \"127.0.0.1:15000\", adminToken: admin.token}}}}\n");
    control.write("set/a.yaml", &format!("{relative}---\n{layout}---\n{module}"));
    control.write("set/b.yaml", &format!("{mesh}---\n{}", MESH.replace("main", "second")));
    fs::create_dir(control.path("set/app")).unwrap();

    let checked = control.leno(&["check", "--for", "control", "set"]);
    assert_eq!(checked.status.code(), Some(2), "{checked:?}");
    let said = errors(&checked);
    for line in [
        "set/a.yaml:4:45 spec.workingDirectory: app is a relative path; expected an absolute path",
        "spec.image: the control plane reads no files for documents that come in a request; add the digest",
        "spec.wasm.path: the control plane reads no files for documents that come in a request; expected `url` with `sha256`",
        "spec.listeners.adminToken: admin.token is a relative path",
        "set/b.yaml:6:1: there is another Mesh document, in set/b.yaml:1",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    // A control plane without documents refuses the same in the same words.
    let file = |name: &str| json!({ "name": name, "text": fs::read_to_string(control.path(name)).unwrap() });
    let request = json!({ "apply": [file("set/a.yaml"), file("set/b.yaml")] });
    let (status, refusal) = control.post(&control.token(), "/v1/changes", &request);
    let problems = refusal["problems"].as_array().unwrap();
    assert_eq!((status, problems.len()), (422, said.lines().count() - 1), "{refusal}\n{said}");
    for (problem, line) in problems.iter().zip(said.lines()) {
        let text = |field: &str| problem[field].as_str().unwrap();
        let place = format!("{}:{}:{}", text("file"), problem["line"], problem["column"]);
        let [field, message, fix] = ["field", "message", "fix"].map(text);
        assert!([&place, field, message, fix].iter().all(|part| line.contains(part)), "{line}\n{problem}");
    }
    // `leno apply` does not send such paths.
    for command in ["apply", "diff"] {
        let refused = control.leno(&[command, "-f", "set"]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(errors(&refused).ends_with("leno: 5 problems\nleno: nothing was sent\n"), "{refused:?}");
        assert!(said.lines().take(5).all(|line| errors(&refused).contains(line)), "{refused:?}");
    }
    assert!(names(&control).is_empty());

    // A document in two files has both places, here and there.
    control.write("set/a.yaml", &function("shop", "a"));
    control.write("set/b.yaml", &function("shop", "a"));
    for arguments in [&["check", "--for", "control", "set"][..], &["apply", "-f", "set"]] {
        let twice = control.leno(arguments);
        let expected = "set/b.yaml:1:1: Function a/shop is there twice, also in set/a.yaml:1; keep one of the two";
        assert_eq!(twice.status.code(), Some(2), "{twice:?}");
        assert!(errors(&twice).contains(expected), "{twice:?}");
    }

    // Quotas are the control plane's only.
    let quota = "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: a}\nspec: {functions: 1}\n";
    control.write("set/b.yaml", &format!("{quota}---\n{}", function("second", "a")));
    let full = control.leno(&["check", "--for", "control", "set"]);
    assert_eq!(full.status.code(), Some(2), "{full:?}");
    assert!(errors(&full).contains("set/b.yaml:6:1: the namespace `a`: its documents need 2"), "{full:?}");

    fs::remove_file(control.path("set/b.yaml")).unwrap();
    let fine = control.leno(&["check", "--for", "control", "set"]);
    assert!(fine.status.success(), "{fine:?}");
    assert!(text(&fine).contains("set: read 1 file for a control plane"), "{fine:?}");
    assert!(control.leno(&["apply", "-f", "set"]).status.success());
}

#[test]
fn key_sets_in_files_are_sent_in_the_documents() {
    let control = with_redb();
    fs::create_dir_all(control.path("set/keys")).unwrap();
    let (shop, key) = (function("shop", "a"), TokenKey::default().jwk());
    let rules = |path: &str| {
        let spec = format!(
            "{{functions: [shop], authentication: {{issuers: [{{issuer: \"https://login.example\", audiences: [shop], \
             jwks: {{file: {path}}}}}]}}}}"
        );
        format!("apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: users, namespace: a}}\nspec: {spec}\n")
    };
    let documents = format!("{shop}---\n{}", rules("keys/login.json"));
    control.write("set/all.yaml", &documents);
    control.write("set/keys/login.json", &serde_json::to_string_pretty(&json!({ "keys": [key] })).unwrap());

    // The same set is for a node and for a control plane.
    assert!(control.leno(&["check", "set"]).status.success());
    let line = "set/all.yaml:9 spec.authentication.issuers[0].jwks.file: inlined set/keys/login.json\n";
    for (arguments, code) in
        [(&["check", "--for", "control", "set"][..], 0), (&["diff", "-f", "set"], 1), (&["apply", "-f", "set"], 0)]
    {
        let done = control.leno(arguments);
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        assert!(text(&done).contains(line), "{done:?}");
    }
    let stored = control.leno(&["get", "documents", "policy", "a/users", "-o", "yaml"]);
    assert!(text(&stored).contains(&format!("jwks: {{inline: {}}}", json!({ "keys": [key] }))), "{stored:?}");
    assert!(text(&control.leno(&["apply", "-f", "set"])).ends_with("nothing changed\n"));
    // The format for programs stays whole.
    let tried = control.leno(&["apply", "--dry-run", "-o", "json", "-f", "set"]);
    assert!(serde_json::from_slice::<serde_json::Value>(&tried.stdout).is_ok(), "{tried:?}");
    assert!(errors(&tried).contains(line), "{tried:?}");

    // What cannot be in a document stays on this machine.
    let private = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": key["x"], "d": "c2VjcmV0" }] });
    control.write("set/keys/login.json", &private.to_string());
    let refused = control.leno(&["apply", "-f", "set"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let expected = "set/keys/login.json: keys[0]: the key has the private member `d`";
    assert!(errors(&refused).contains(expected) && errors(&refused).contains("nothing was sent"), "{refused:?}");
    fs::remove_file(control.path("set/keys/login.json")).unwrap();
    assert!(errors(&control.leno(&["apply", "-f", "set"])).contains("set/keys/login.json: No such file"));
    let from_input = control.leno_with(&["apply", "-f", "-"], &rules("keys/login.json"));
    assert!(errors(&from_input).contains("give the documents as a file (`-f FILE`)"), "{from_input:?}");
}
