//! Revisions that documents declare by name: with `leno up` and files, and with a control plane on
//! etcd and a node.

use super::{Client, documents, load, revision};
use leno_testkit::cluster::{MESH, Node};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{EtcdServer, eventually};
use serde_json::{Value, json};
use std::process::Output;

const ROLLOUT: &str = "  rollout: {steps: [40], interval: 1s, maxErrorRate: 10, minRequests: 20}\n";

/// Two revisions with these variables, and shares; the function's own content is in neither.
fn two(stable: &str, next: &str, shares: [u8; 2], fields: &str) -> String {
    let [one, other] = shares;
    documents(
        "VERSION: base, MODE: declared",
        &format!(
            "  revisions:\n  - {{name: stable, env: {{{stable}}}}}\n  - {{name: next, env: {{{next}}}, concurrency: 7}}\n  \
             traffic:\n  - {{revision: stable, percent: {one}}}\n  \
             - {{revision: next, percent: {other}, tag: next, headers: {{x-group: staff}}}}\n{fields}"
        ),
    )
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Whether the command succeeded, and both its outputs.
fn leno(mesh: &Mesh, arguments: &[&str]) -> (bool, String) {
    let output = mesh.leno(arguments);
    (output.status.success(), text(&output) + &errors(&output))
}

#[test]
fn a_start_without_a_store_has_all_declared_revisions() {
    let mut mesh = Mesh::start(&two("VERSION: 1", "VERSION: 2", [70, 30], ""));
    for _ in 0..2 {
        let mut client = Client::new(&mesh);
        for headers in ["leno-tag: next\r\n", "x-group: staff\r\n"] {
            assert_eq!(client.post(headers).version, "2");
        }
        let versions: Vec<String> = (0..200).map(|_| client.post("").version).collect();
        let next = versions.iter().filter(|version| *version == "2").count();
        assert!((10..150).contains(&next) && versions.iter().all(|version| version != "base"), "{next}");
        let (one, other) = (revision(&mesh, "echo-00001").unwrap(), revision(&mesh, "echo-00002").unwrap());
        assert_eq!((&one["declared"], &one["percent"]), (&json!("stable"), &json!(70)));
        assert_eq!((&other["declared"], &other["percent"]), (&json!("next"), &json!(30)));
        // The names are in logs, metrics and events.
        assert!(!mesh.log_lines("revision", "echo-00002 (next)", next).is_empty());
        mesh.metrics(&["function=\"test/echo\",revision=\"echo-00001\",revision_name=\"stable\""]);
        let events = mesh.admin("/events").json();
        assert!(events.as_array().unwrap().iter().any(|event| event["revision"] == "echo-00001 (stable)"), "{events}");
        mesh.restart(&[]);
    }

    // Shares are in the document: commands show the change of the file.
    let promoted = mesh.leno(&["promote", "test/echo", "next"]);
    assert_eq!(promoted.status.code(), Some(1), "{promoted:?}");
    assert!(errors(&promoted).contains("the documents are files"), "{promoted:?}");
    let line = "spec:\n  traffic:\n  - {revision: next, percent: 100, tag: next, headers: {x-group: staff}}\n";
    assert_eq!(text(&promoted), line);
    let (done, told) = leno(&mesh, &["undo", "test/echo"]);
    assert!(!done && told.contains("there is nothing to undo"), "{told}");
    mesh.write(&two("VERSION: 1", "VERSION: 2", [0, 100], ""));
    mesh.wait_for("the other revision to have everything", |mesh| {
        revision(mesh, "echo-00002").is_some_and(|row| row["percent"] == 100)
    });
    let undone = text(&mesh.leno(&["undo", "test/echo", "--dry-run"]));
    assert!(undone.contains("  - {revision: stable, percent: 70}\n"), "{undone}");
    // A name that is removed drains. The other one keeps its number.
    let only = documents("VERSION: 2, MODE: declared", "  concurrency: 7\n  revisions: [{name: next}]\n");
    mesh.write(&only);
    mesh.wait_for("one revision", |mesh| {
        mesh.instances("test/echo").iter().all(|row| row["instance"].as_str().unwrap().contains("echo-00002/"))
    });
    assert_eq!(Client::new(&mesh).post("").version, "2");
}

#[test]
fn rollouts_of_names_are_paused_resumed_promoted_and_undone() {
    let mut mesh = Mesh::start(&two("VERSION: 1", "VERSION: 2", [50, 50], ROLLOUT));
    let store = mesh.folder.path().join(".store").display().to_string();
    mesh.restart(&["--store", &store]);
    let of_name = |mesh: &Mesh, number: &str| {
        let row = revision(mesh, number)?;
        Some((row["declared"].as_str()?.to_owned(), row["percent"].as_u64()?, row["paused"].as_bool()?))
    };
    let (done, told) = leno(&mesh, &["pause", "test/echo"]);
    assert!(done && told.contains("stay at their steps"), "{told}");
    mesh.write(&two("VERSION: 3", "VERSION: 2", [50, 50], ROLLOUT));
    mesh.wait_for("the rollout", |mesh| of_name(mesh, "echo-00003") == Some(("stable".to_owned(), 20, true)));
    // A pause outlives a restart. Requests and time do not advance it, also after that.
    mesh.restart(&["--store", &store]);
    assert_eq!(of_name(&mesh, "echo-00003"), Some(("stable".to_owned(), 20, true)));
    let answers = load(&mut mesh, "enough requests for a decision", |mesh| {
        revision(mesh, "echo-00003").is_some_and(|row| row["requests"].as_u64() > Some(100))
    });
    assert!(answers.iter().any(|answer| answer.version == "3"));
    assert_eq!(of_name(&mesh, "echo-00003"), Some(("stable".to_owned(), 20, true)));
    let (done, told) = leno(&mesh, &["resume", "test/echo"]);
    assert!(done && told.contains("echo-00003 (stable): 40 % -> 40 %"), "{told}");
    load(&mut mesh, "the new content to have its name's share", |mesh| {
        of_name(mesh, "echo-00003") == Some(("stable".to_owned(), 50, false))
    });

    // A bad content is rolled back within its name, and the former one keeps the share.
    mesh.write(&two("VERSION: 3", "VERSION: 4, STATUS: \"500\"", [50, 50], ROLLOUT));
    let answers = load(&mut mesh, "the bad content to be rolled back", |mesh| {
        revision(mesh, "echo-00004").is_some_and(|row| row["failed"].is_string())
    });
    assert!(answers.iter().all(|answer| (answer.status == 500) == (answer.version == "4")));
    assert_eq!(of_name(&mesh, "echo-00002"), Some(("next".to_owned(), 50, false)));
    assert_eq!(Client::new(&mesh).post("leno-tag: next\r\n").version, "2");
    let (done, told) = leno(&mesh, &["undo", "test/echo"]);
    assert!(!done && told.contains("echo-00004 (next) was rolled back already"), "{told}");

    // The step is too long for this test, and the user ends it.
    let slow = ROLLOUT.replace("interval: 1s", "interval: 1d");
    mesh.write(&two("VERSION: 3", "VERSION: 5", [50, 50], &slow));
    mesh.wait_for("the next rollout", |mesh| of_name(mesh, "echo-00005") == Some(("next".to_owned(), 20, false)));
    assert_eq!(Client::new(&mesh).post("leno-tag: next\r\n").version, "5", "a tag leads to the new content");
    let (done, told) = leno(&mesh, &["promote", "test/echo", "--dry-run"]);
    assert!(done && told.contains("it would be: echo-00005 (next): 40 % -> 100 %"), "{told}");
    assert!(leno(&mesh, &["promote", "test/echo"]).0);
    assert_eq!(of_name(&mesh, "echo-00005"), Some(("next".to_owned(), 50, false)));
    let (done, told) = leno(&mesh, &["promote", "test/echo"]);
    assert!(!done && told.contains("no rollout of test/echo is under way") && told.contains("stable, next"), "{told}");
    let (done, told) = leno(&mesh, &["undo", "test/echo"]);
    assert!(done && told.contains("echo-00005 (next): 100 % -> 0 %"), "{told}");
    assert_eq!(of_name(&mesh, "echo-00002"), Some(("next".to_owned(), 50, false)));
    let events = mesh.admin("/events").json();
    let reasons: Vec<&str> = events.as_array().unwrap().iter().filter_map(|event| event["reason"].as_str()).collect();
    for reason in ["resumed by the node's account", "promoted by the node's account", "undone by the node's account"] {
        assert!(reasons.contains(&reason), "{reasons:?}");
    }
}

/// The text of the stored Function, and its version.
fn stored(control: &Control) -> (String, u64) {
    let (status, document) = control.get("/v1/documents/Function/test/echo");
    assert_eq!(status, 200, "{document}");
    (document["text"].as_str().unwrap().to_owned(), document["version"].as_u64().unwrap())
}

#[test]
fn a_control_plane_changes_the_stored_document() {
    let server = EtcdServer::start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mesh.yaml"), MESH).unwrap();
    std::fs::write(folder.path().join("passphrase"), "correct horse battery\n").unwrap();
    let etcd = server.address();
    let authority = ["--mesh", "mesh.yaml", "--ca", "ca.pem", "--ca-passphrase", "passphrase"];
    let arguments = [&["--etcd", &etcd, "--etcd-lease", "2"][..], &authority].concat();
    let mut control = Control::start(folder, &arguments);
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    let function = echo_function(
        "echo",
        "  # shares are changed by the team on call\n  expose: [{hosts: [\"*\"], path: /}]\n  revisions:\n  \
         - {name: stable, env: {VERSION: \"1\"}}\n  - {name: next, env: {VERSION: \"2\"}}\n  \
         traffic:\n  - {revision: stable, percent: 90}\n  - {revision: next, percent: 10}\n  \
         rollout: {steps: [40], interval: 1d}",
    );
    control.apply(&(function.clone() + &policy("open", "echo", ALLOW_ALL)));
    let serves = |version: &str| {
        eventually("an answer of the revision", || {
            let answer = gateway.get("/").filter(|answer| answer.status == 200)?;
            (answer.json()["environment"]["VERSION"] == version).then_some(())
        });
    };
    serves("1");
    let (before, version) = stored(&control);
    let token = |role: &str, namespace: &str| {
        text(&control.leno(&["token", "create", "--role", role, "--namespace", namespace])).trim().to_owned()
    };
    let (reader, other) = (token("reader", "test"), token("editor", "other"));
    let path = "/v1/functions/test/echo/rollout";
    let promote = json!({"action": "promote", "revision": "next"});
    assert_eq!(control.post(&reader, path, &promote).0, 403);
    assert_eq!(control.post(&other, path, &promote).0, 404, "it may not know the function");
    let dry_run = json!({"action": "promote", "revision": "next", "dryRun": true});
    let (status, answer) = control.post(&reader, path, &dry_run);
    assert_eq!(
        (status, &answer["traffic"]),
        (200, &json!([{"revision": "next", "latest": null, "percent": 100, "tag": null, "headers": {}}])),
        "{answer}"
    );
    assert_eq!(answer["change"]["documents"][0]["action"], "changed");
    let stale = control.leno(&["promote", "test/echo", "next", "--if-version", &(version - 1).to_string()]);
    assert!(errors(&stale).contains("has another version than expected"), "{stale:?}");
    let unknown = control.leno(&["promote", "test/echo", "nxt"]);
    assert!(errors(&unknown).contains("test/echo has no revision `nxt`; it has stable, next"), "{unknown:?}");
    assert_eq!(stored(&control), (before.clone(), version), "nothing of it has changed anything");

    let promoted = control.leno(&["promote", "test/echo", "next", "--if-version", &version.to_string()]);
    assert!(text(&promoted).contains("Function test/echo changed"), "{promoted:?}");
    let line = "  traffic: [{revision: next, percent: 100}]\n  rollout:";
    let (after, _) = stored(&control);
    assert!(after.contains(line) && after.contains("# shares are changed by the team on call"), "{after}");
    serves("2");
    // Everything of it is in the store.
    control.kill();
    control.start_again();
    let undone = control.leno(&["undo", "test/echo"]);
    assert!(text(&undone).contains("Function test/echo changed"), "{undone:?}");
    assert!(stored(&control).0.contains("traffic: [{revision: stable, percent: 90}, {revision: next, percent: 10}]"));

    // The state of rollouts is the control plane's, and outlives it.
    control.apply(&function.replace("\"1\"", "\"3\""));
    let row = |control: &Control, declared: &str, percent: u64| {
        let listed: Vec<Value> =
            serde_json::from_slice(&control.leno(&["get", "revisions", "--json"]).stdout).unwrap_or_default();
        listed.into_iter().find(|row| row["declared"] == declared && row["percent"] == percent)
    };
    assert!(row(&control, "stable", 36).is_some() && row(&control, "stable", 54).is_some());
    let paused = control.leno(&["pause", "test/echo"]);
    assert!(text(&paused).contains("echo-00003 (stable): 40 % -> 40 %"), "{paused:?}");
    control.kill();
    control.start_again();
    assert_eq!(row(&control, "stable", 36).unwrap()["paused"], true);
    let undone = control.leno(&["undo", "test/echo"]);
    assert!(text(&undone).contains("echo-00003 (stable): 40 % -> 0 %"), "{undone:?}");
    assert_eq!(row(&control, "stable", 90).unwrap()["revision"], "echo-00001");
    let again = control.leno(&["undo", "test/echo"]);
    assert!(errors(&again).contains("echo-00003 (stable) was rolled back already (undone by token"), "{again:?}");
    let audit = text(&control.leno(&["get", "audit"]));
    for what in ["rollout of Function test/echo: pause changed", "rollout of Function test/echo: undo changed"] {
        assert!(audit.contains(what), "{audit}");
    }
}
