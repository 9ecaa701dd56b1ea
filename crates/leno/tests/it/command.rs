//! The command line: pipes that close early, contexts, names, and the answers of servers.

use leno_testkit::control::{Control, function, policy, text};
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy as mesh_policy};
use leno_testkit::{eventually, leno_program};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn control() -> Control {
    let control = Control::start(tempfile::tempdir().unwrap(), &[]);
    let documents = [function("shop", "a"), policy("shop", "a", "shop"), function("stock", "b")].join("---\n");
    control.apply(&documents);
    control
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// `leno` with an empty environment and this home.
fn leno(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(leno_program());
    command.args(arguments).env_clear().env("HOME", home).current_dir(home).stdin(Stdio::null()).output().unwrap()
}

fn succeeded(home: &Path, arguments: &[&str]) -> String {
    let output = leno(home, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    text(&output)
}

/// A home whose current context is `main`, this control plane.
fn home_with(control: &Control) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let [token, ca] = ["data/admin.token", "data/api.pem"].map(|file| control.path(file).display().to_string());
    let add = ["context", "add", "main", "--server", &control.url(), "--token-file", &token, "--ca", &ca, "-n", "a"];
    assert!(succeeded(home.path(), &add).contains("it is the current one"));
    home
}

/// Every command that prints, with a reader that is gone and with a full disk.
#[test]
fn a_closed_pipe_ends_a_command_quietly_and_a_full_disk_with_an_error() {
    let control = control();
    let mesh = Mesh::start(&(echo_function("echo", "") + &mesh_policy("open", "echo", ALLOW_ALL)));
    let (home, socket) = (home_with(&control), mesh.socket());
    let admin = format!("unix:{}", socket.display());
    fs::write(home.path().join("all.yaml"), function("shop", "a").replace("true", "false")).unwrap();
    for line in [
        "--help",
        "get --help",
        "completions bash",
        "version",
        "check all.yaml",
        "get functions",
        "get functions -A -o json",
        "get documents -o yaml",
        "get documents -o name",
        "describe function shop",
        "diff -f all.yaml",
        "apply --dry-run -f all.yaml",
        "token list",
        "ca status",
        "context list",
        "get instances --admin ADMIN",
        "get functions --admin ADMIN",
    ] {
        let arguments: Vec<&str> = line.split(' ').map(|word| if word == "ADMIN" { &admin } else { word }).collect();
        let whole = leno(home.path(), &arguments);
        assert!(!whole.stdout.is_empty(), "leno {line}: {whole:?}");
        let run = |stdout: Stdio| {
            let mut command = Command::new(leno_program());
            command.args(&arguments).env_clear().env("HOME", home.path()).current_dir(home.path());
            command
                .stdin(Stdio::null())
                .stdout(stdout)
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
                .wait_with_output()
                .unwrap()
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = run(writer.into());
        assert_eq!(closed.status.code(), Some(141), "leno {line}: {closed:?}");
        assert!(error(&whole).starts_with(&error(&closed)), "no word about it: leno {line}: {closed:?}");
        let full = run(OpenOptions::new().write(true).open("/dev/full").unwrap().into());
        assert_eq!(full.status.code(), Some(1), "leno {line}: {full:?}");
        assert!(error(&full).contains("standard output cannot be written: No space left"), "leno {line}: {full:?}");
    }
    let panicked = Command::new("sh")
        .args(["-c", "\"$0\" check missing.yaml 2>&1 | true; echo done", &leno_program().display().to_string()])
        .output()
        .unwrap();
    assert_eq!(text(&panicked), "done\n", "{panicked:?}");
}

#[test]
fn a_context_names_the_control_plane_for_all_commands() {
    let control = control();
    let home = home_with(&control);
    let file = home.path().join(".config/leno/context.yaml");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let rows = |arguments: &[&str]| -> Vec<Value> {
        let listed = succeeded(home.path(), &[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&listed).unwrap()
    };
    let names = |arguments: &[&str]| succeeded(home.path(), &[arguments, &["-o", "name"]].concat());

    // The context has the namespace `a`; options win.
    assert_eq!(names(&["get", "functions"]), "a/shop\n");
    assert_eq!(names(&["get", "functions", "-A"]), "a/shop\nb/stock\n");
    assert_eq!(names(&["get", "functions", "-n", "b"]), "b/stock\n");
    assert_eq!(names(&["-n", "b", "get", "function"]), "b/stock\n");
    assert_eq!(names(&["get", "function", "b/stock"]), "b/stock\n");
    assert_eq!(names(&["get", "policy", "shop"]), "Policy a/shop\n");
    assert_eq!(rows(&["get", "documents", "function"]).len(), 1);
    let missing = leno(home.path(), &["get", "function", "stock"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(error(&missing).contains("there is no `a/stock` among the functions"), "{missing:?}");
    assert!(succeeded(home.path(), &["token", "list"]).contains("the first"));

    let described = succeeded(home.path(), &["describe", "function", "shop"]);
    for part in ["FUNCTION", "a/shop", "REVISIONS", "INSTANCES: none", "DOCUMENT", "command: [\"true\"]"] {
        assert!(described.contains(part), "{part}: {described}");
    }
    assert!(succeeded(home.path(), &["describe", "policy", "a/shop"]).contains("action: allow"));
    assert!(succeeded(home.path(), &["describe", "namespace", "a"]).contains("a/shop"));
    let none = leno(home.path(), &["describe", "function", "stock"]);
    assert!(!none.status.success() && error(&none).contains("a/stock"), "{none:?}");
    let version = succeeded(home.path(), &["version", "-o", "json"]);
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!((&version["client"], &version["server"]), (&version["controlPlane"], &control.url().into()));

    // Of options, environment and context the first wins.
    let elsewhere = ["get", "functions", "--server", "https://127.0.0.1:1", "--token-file", "token"];
    fs::copy(control.path("data/admin.token"), home.path().join("token")).unwrap();
    let refused = leno(home.path(), &elsewhere);
    assert!(error(&refused).contains("no control plane answers at https://127.0.0.1:1"), "{refused:?}");
    let mut command = Command::new(leno_program());
    command.args(["get", "functions", "-o", "name"]).env_clear().env("HOME", home.path());
    command.env("LENO_SERVER", "https://127.0.0.1:1").env("LENO_TOKEN_FILE", home.path().join("token"));
    assert!(error(&command.output().unwrap()).contains("no control plane answers at https://127.0.0.1:1"));
    assert_eq!(text(&command.args(["--context", "main"]).output().unwrap()), "a/shop\n");

    // `local` is the node of this machine.
    let local = leno(home.path(), &["--context", "local", "get", "documents"]);
    assert!(error(&local).contains("no control plane is named"), "{local:?}");
    succeeded(home.path(), &["context", "use", "local"]);
    assert!(error(&leno(home.path(), &["get", "functions"])).contains("no node at"));
    assert!(succeeded(home.path(), &["context", "list"]).contains("*        local"));
    succeeded(home.path(), &["context", "use", "main"]);

    let url = control.url();
    for (arguments, expected) in [
        (&["context", "use", "none"][..], "there is no context `none`; there are: main, local"),
        (&["--context", "none", "get", "nodes"], "there is no context `none`"),
        (&["context", "remove", "none"], "there is no context `none`"),
        (&["context", "add", "main", "--server", &url, "--token-file", "token"], "give --replace"),
        (&["context", "add", "local", "--server", &url, "--token-file", "token"], "choose another name"),
        (&["context", "add", "b", "--server", "control:15443", "--token-file", "token"], "expected https://HOST:PORT"),
        (&["context", "add", "b", "--server", &url, "--token-file", "none"], "the token cannot be read"),
    ] {
        let refused = leno(home.path(), arguments);
        assert!(!refused.status.success() && error(&refused).contains(expected), "{arguments:?}: {refused:?}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let readable = leno(home.path(), &["get", "functions"]);
    assert!(error(&readable).contains("chmod 600"), "{readable:?}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    succeeded(home.path(), &["context", "remove", "main"]);
    assert!(error(&leno(home.path(), &["apply", "-f", "token"])).contains("leno context add"));
}

#[test]
fn a_refusal_has_the_words_of_the_server() {
    let control = control();
    let home = home_with(&control);
    let make = ["token", "create", "--role", "reader", "--namespace", "a"];
    let token = home.path().join("reader");
    fs::write(&token, succeeded(home.path(), &make)).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let reader = |arguments: &[&str]| {
        let refused = leno(home.path(), &[arguments, &["--context", "main", "--token-file", "reader"]].concat());
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {refused:?}");
        error(&refused)
    };
    for (arguments, expected) in [
        (&["delete", "function", "a/shop"][..], "(403)"),
        (&["get", "audit"], "(403)"),
        (&["nodes", "drain", "none"], "(403)"),
        (&["token", "join"], "(403)"),
    ] {
        let refused = reader(arguments);
        assert!(refused.contains("refused: ") && refused.contains(expected), "{arguments:?}: {refused}");
        assert!(!refused.contains("no control plane") && !refused.contains("away"), "{arguments:?}: {refused}");
    }
    let untrusted = ["get", "nodes", "--server", &control.url(), "--token-file", "reader"];
    let untrusted = error(&leno(home.path(), &untrusted));
    assert!(untrusted.contains("cannot be trusted") && untrusted.contains("--ca"), "{untrusted}");
    assert!(!untrusted.contains("Other("), "{untrusted}");
}

/// IDs are in `observe`, and `explain` takes the beginning of one, or the last request.
#[test]
fn a_request_is_explained_by_the_beginning_of_its_id_and_as_the_last_one() {
    let documents = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]");
    let mesh = Mesh::start(
        &(documents + &mesh_policy("open", "echo", "  authorization: {rules: [{to: [{methods: [GET]}]}]}")),
    );
    let ask = |id: &str, method: &str| {
        let header = format!("x-request-id: {id}");
        let (get, post) = (["--header", header.as_str()], ["--header", header.as_str(), "--request", method]);
        mesh.curl("/", if method == "GET" { &get } else { &post }).header("x-request-id").unwrap().to_owned()
    };
    let ids = [ask("aaaa1111", "GET"), ask("aaaa2222", "DELETE"), ask("bbbb3333", "GET")];
    let explained = |arguments: &[&str]| mesh.leno(&[&["explain"], arguments].concat());
    eventually("the records", || explained(&[&ids[2]]).status.success().then_some(()));
    let last = text(&explained(&["--last"]));
    assert!(last.contains(&ids[2]), "{last}");
    let refused = text(&explained(&["--last", "--verdict", "deny"]));
    assert!(refused.contains(&ids[1]) && refused.contains("DELETE"), "{refused}");
    let observed = text(&mesh.leno(&["observe", "--last", "20"]));
    assert!(ids.iter().all(|id| observed.contains(&format!("id={id}"))), "{observed}");
    let start = &ids[2][..ids[2].len() - 1];
    assert!(text(&explained(&[start])).contains(&ids[2]));
    let same = ids[0].bytes().zip(ids[1].bytes()).take_while(|(one, other)| one == other).count();
    let several = explained(&[&ids[0][..same]]);
    if same > 0 {
        assert!(error(&several).contains("requests have an ID that begins with"), "{several:?}");
    }
    assert!(error(&explained(&["zzzz"])).contains("does not remember request zzzz"));
}

/// Options that have a new name in common with other commands, and their former ones.
#[test]
fn former_spellings_of_options_stay() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("all.yaml"), function("shop", "a")).unwrap();
    fs::write(home.path().join("passphrase"), "correct horse battery staple").unwrap();
    for arguments in [&["check", "all.yaml"][..], &["check", "-f", "all.yaml"], &["check", "--file", "all.yaml"]] {
        assert!(succeeded(home.path(), arguments).contains("1 function"), "{arguments:?}");
    }
    let request = ["ca", "request", "--trust-domain", "mesh.example"];
    for (authority, passphrase) in [("--authority", "--authority-passphrase"), ("--ca", "--ca-passphrase")] {
        let file = [authority, "ca.pem", passphrase, "passphrase"];
        assert!(succeeded(home.path(), &[&request[..], &file].concat()).contains("CERTIFICATE REQUEST"));
    }
    for (arguments, expected) in [
        (&["node", "--control", "c:1", "--offer-memory", "512M"][..], "512Ki or 8Mi, or a number of bytes"),
        (&["node", "--control", "c:1", "--offer-cpu", "4"], "write 4.0 for processors"),
        (&["--server", "https://c", "import", "all.yaml"], "unexpected argument '--server'"),
    ] {
        let refused = leno(home.path(), arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(error(&refused).contains(expected), "{arguments:?}: {refused:?}");
    }
}

#[test]
fn a_node_lists_by_name_and_namespace() {
    let documents = echo_function("echo", "  scale: {min: 1}") + &echo_function("other", "");
    let mesh = Mesh::start(&(documents + &mesh_policy("open", "echo", ALLOW_ALL)));
    let names = |arguments: &[&str]| text(&mesh.leno(&[arguments, &["-o", "name"]].concat()));
    eventually("an instance", || names(&["get", "instances", "echo"]).starts_with("test/echo").then_some(()));
    assert_eq!(names(&["get", "functions"]), "test/echo\ntest/other\n");
    assert_eq!(names(&["get", "fn", "other"]), "test/other\n");
    assert_eq!(names(&["get", "functions", "-n", "none"]), "");
    assert!(!mesh.leno(&["get", "function", "none"]).status.success());
    assert!(error(&mesh.leno(&["get", "documents"])).contains("no control plane is named"));
}
