//! `leno apply --dry-run` and `leno logs`, in a mesh of several processes.

use leno_testkit::cluster::{Node, Place, control, nodes_of};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{Mesh, echo_function, policy};
use leno_testkit::{Process, eventually};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};

/// Rules that allow these paths of the function, for all callers.
fn rules(function: &str, paths: &str) -> String {
    let rules = format!("  authorization: {{rules: [{{name: paths, action: allow, to: [{{paths: [{paths}]}}]}}]}}");
    policy(function, function, &rules)
}

const EXPOSED: &str = "  callees: [back]\n  scale: {min: 1, max: 1}\n  expose: [{hosts: [\"*\"], path: /}]";

/// `front`, which calls `back`, on two nodes with capacity for one function each.
fn two_functions() -> (Control, Node, [Node; 2]) {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let place = Place::here();
    let nodes = ["one", "two"].map(|name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "1"]));
    let (front, back) = (echo_function("front", EXPOSED), echo_function("back", "  scale: {min: 1, max: 1}"));
    control.apply(&format!("{front}{back}{}{}", rules("front", "\"/*\""), rules("back", "/ok, /fine")));
    eventually("both to run", || {
        let hosts = [nodes_of(&control, "test/front"), nodes_of(&control, "test/back")].concat();
        (hosts.len() == 2 && hosts[0] != hosts[1]).then_some(())
    });
    eventually("an answer", || gateway.get("/call/back/fine").filter(|answer| answer.status == 200));
    (control, gateway, nodes)
}

fn dry_run(control: &Control, documents: &str) -> Value {
    let tried = control.leno_with(&["apply", "--dry-run", "-o", "json", "-f", "-"], documents);
    assert!(tried.status.success(), "{tried:?}");
    serde_json::from_slice(&tried.stdout).unwrap()
}

/// The result of the replay for one function.
fn found<'a>(answer: &'a Value, function: &str) -> &'a Value {
    let functions = answer["replay"]["functions"].as_array().unwrap();
    functions.iter().find(|found| found["function"] == function).unwrap_or_else(|| panic!("{function}: {answer}"))
}

#[test]
fn a_dry_run_counts_what_would_have_been_decided_differently() {
    let (control, gateway, _nodes) = two_functions();
    let counts = |answer: &Value, function: &str| {
        let found = found(answer, function);
        ["judged", "newlyDenied", "newlyAllowed"].map(|count| found[count].as_u64().unwrap())
    };
    for (path, status) in [("ok", 200), ("ok", 200), ("ok", 200), ("fine", 200), ("none", 403), ("none", 403)] {
        assert_eq!(gateway.get(&format!("/call/back/{path}")).unwrap().status, status, "{path}");
    }

    // The record exists shortly after the response.
    let other = rules("back", "/fine, /none");
    let judged = eventually("all records", || {
        let [judged, denied, allowed] = counts(&dry_run(&control, &other), "test/back");
        (denied == 3 && allowed == 2).then_some(judged)
    });
    // These six requests, and the test's earlier ones, which waited for the function.
    assert!(judged >= 7, "{judged}");
    let fewer = rules("back", "/fine");
    let answer = dry_run(&control, &fewer);
    assert_eq!(counts(&answer, "test/back"), [judged, 3, 0]);
    assert_eq!(answer["replay"]["functions"].as_array().unwrap().len(), 1, "no other function changes: {answer}");
    let examples = found(&answer, "test/back")["examples"].as_array().unwrap();
    assert_eq!(examples.len(), 3);
    let host = nodes_of(&control, "test/back").remove(0);
    for example in examples {
        assert_eq!(
            (&example["caller"], &example["path"], &example["method"]),
            (&json!("test/front"), &json!("/ok"), &json!("GET"))
        );
        assert_eq!((&example["node"], &example["direction"]), (&json!(host), &json!("inbound")));
        assert_eq!(
            (&example["before"]["verdict"], &example["before"]["rule"]),
            (&json!("allow"), &json!("back/authorization/paths"))
        );
        assert_eq!(
            (&example["after"]["verdict"], &example["after"]["policy"]),
            (&json!("deny"), &json!("authorization"))
        );
        assert!(example["requestId"].as_str().is_some_and(|id| !id.is_empty()));
    }
    let answer = dry_run(&control, &rules("back", "/ok, /fine, /none"));
    assert_eq!(counts(&answer, "test/back"), [judged, 0, 2]);
    assert_eq!(found(&answer, "test/back")["examples"][0]["after"]["rule"], "back/authorization/paths");

    // Without changes between, the replay repeats the earlier decisions.
    assert_eq!(gateway.get("/call/back/ok").unwrap().status, 200);
    assert_eq!(gateway.get("/call/back/none").unwrap().status, 403);
    eventually("these records", || (counts(&dry_run(&control, &other), "test/back")[1..] == [4, 3]).then_some(()));

    // The output for users.
    let shown = text(&control.leno_with(&["apply", "--dry-run", "-f", "-"], &fewer));
    for expected in
        ["Policy test/back would be changed", "ALLOWED → DENIED", "test/front", "allow by back/authorization/paths"]
    {
        assert!(shown.contains(expected), "no `{expected}` in:\n{shown}");
    }
    let same = text(&control.leno_with(&["apply", "--dry-run", "-f", "-"], &rules("back", "/ok, /fine")));
    assert!(same.contains("no request would be decided differently"), "{same}");

    // The answer reports requests that it cannot judge: here the rule needs a header that no
    // earlier rule read, and that every client sends.
    let header =
        "  authorization: {rules: [{name: agent, action: allow, when: [{header: user-agent, values: [none]}]}]}";
    let answer = dry_run(&control, &policy("front", "front", header));
    let [judged, denied, _] = counts(&answer, "test/front");
    let unjudged = &found(&answer, "test/front")["unjudged"];
    assert_eq!(unjudged[0]["reason"], "the value of its header user-agent was not kept", "{answer}");
    assert!(unjudged[0]["requests"].as_u64().unwrap() >= 6);
    // The replay judges its own calls by the unchanged program.
    assert!(judged >= 6 && denied == 0, "{answer}");

    // The answer reports that it does not replay a limit.
    let limited = format!("{fewer}  rateLimits:\n  - {{name: all, requests: 1, per: 1m}}\n");
    let answer = dry_run(&control, &limited);
    assert_eq!(found(&answer, "test/back")["leftOut"], json!(["rate limits"]));
    assert_eq!(
        counts(&answer, "test/back")[1],
        counts(&dry_run(&control, &fewer), "test/back")[1],
        "as many as without it"
    );
}

fn token(control: &Control, arguments: &[&str]) -> String {
    let made = control.leno(&[&["token", "create"], arguments].concat());
    assert!(made.status.success(), "{made:?}");
    text(&made).trim().to_owned()
}

#[test]
fn readers_are_told_of_their_own_namespaces_only() {
    let (control, gateway, _nodes) = two_functions();
    let other = token(&control, &["--role", "reader", "--namespace", "other"]);
    let own = token(&control, &["--role", "reader", "--namespace", "test"]);
    assert_eq!(gateway.get("/call/back/ok").unwrap().status, 200);

    let (status, refusal) = control.get_as(&other, "/v1/logs/test/back");
    assert_eq!(status, 403, "{refusal}");
    let (status, page) = control.get_as(&own, "/v1/logs/test/back");
    assert_eq!(status, 200);
    assert!(page["lines"][0]["text"].as_str().unwrap().starts_with("listening on "), "{page}");
    assert_eq!(control.get_as(&own, "/v1/logs/test/none").0, 404);
    assert_eq!(control.get_as(&own, "/v1/logs/test/back?after=x").0, 400);
    assert_eq!(control.get_as("leno.a.b", "/v1/logs/test/back").0, 401);

    let change = |text: String| json!({"apply": [{"name": "x.yaml", "text": text}], "dryRun": true, "replay": true});
    let (status, refusal) = control.post(&other, "/v1/changes", &change(rules("back", "/fine")));
    assert_eq!(status, 403, "{refusal}");
    let (status, answer) = control.post(&own, "/v1/changes", &change(rules("back", "/fine")));
    assert_eq!(status, 200, "{answer}");
    eventually("its records", || {
        let (_, answer) = control.post(&own, "/v1/changes", &change(rules("back", "/fine")));
        (found(&answer, "test/back")["judged"].as_u64().unwrap() > 0).then_some(())
    });
    // A change in one namespace may affect functions of another, whose traffic its author may not
    // see.
    let label = |value: &str| {
        echo_function("front", EXPOSED)
            .replace("namespace: test}", &format!("namespace: test, labels: {{tier: {value}}}}}"))
    };
    let elsewhere = "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: far, namespace: other}\nspec: {command: [\"true\"]}\n---\n\
                     apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: far, namespace: other}\nspec:\n  functions: [far]\n  \
                     authorization: {rules: [{name: web, action: allow, from: [{namespaces: [test], labels: {tier: web}}]}]}\n";
    control.apply(&format!("{elsewhere}{}", label("web")));
    let (status, answer) = control.post(&own, "/v1/changes", &change(label("db")));
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer["replay"]["functions"].as_array().unwrap().iter().all(|found| found["function"] != "other/far"),
        "{answer}"
    );
    assert_eq!(answer["replay"]["hidden"], 1, "{answer}");

    let mut not_dry = change(rules("back", "/fine"));
    not_dry["dryRun"] = false.into();
    assert_eq!(control.post(&control.token(), "/v1/changes", &not_dry).0, 400);
}

fn leno(control: &Control, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.args(arguments).env("LENO_SERVER", control.url());
    command.env("LENO_TOKEN_FILE", control.path("data/admin.token")).env("LENO_CA", control.path("data/api.pem"));
    command
}

#[test]
fn logs_come_from_every_node_and_go_on() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let place = Place::here();
    let nodes = ["one", "two"].map(|name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "1"]));
    // One instance on each node.
    let function = echo_function("front", "  scale: {min: 2, max: 2}\n  expose: [{hosts: [\"*\"], path: /}]");
    control.apply(&format!("{function}{}", rules("front", "\"/*\"")));
    eventually("two instances", || {
        let mut hosts = nodes_of(&control, "test/front");
        hosts.sort();
        (hosts == ["one", "two"]).then_some(())
    });
    let from = |lines: &[String], node: &str| {
        lines.iter().any(|line| line.starts_with(&format!("{node}/")) && line.contains(" | listening on "))
    };
    let shown = text(&control.leno(&["logs", "test/front"]));
    let lines: Vec<String> = shown.lines().map(str::to_owned).collect();
    assert!(from(&lines, "one") && from(&lines, "two"), "{shown}");
    let shown = text(&control.leno(&["logs", "test/front", "--node", "two"]));
    let lines: Vec<String> = shown.lines().map(str::to_owned).collect();
    assert!(!from(&lines, "one") && from(&lines, "two"), "{shown}");
    let shown = text(&control.leno(&["logs", "test/front", "--node", "two", "--json"]));
    let line: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
    assert_eq!((&line["node"], &line["stream"]), (&json!("two"), &json!("stdout")));
    assert!(line["time"].as_f64().unwrap() > 1.7e9);

    // Lines written from now on, on any node.
    let mut follow = leno(&control, &["logs", "test/front", "--follow", "--tail", "0"]);
    let mut following = Process::spawn(follow.stdin(Stdio::null())).unwrap();
    let pauses = |lines: &[String], node: &str| {
        lines.iter().filter(|line| line.starts_with(&format!("{node}/")) && line.ends_with(" | pausing")).count()
    };
    eventually("both nodes to have answered", || {
        assert_eq!(gateway.get("/slow/1").unwrap().status, 200);
        let lines = following.lines();
        (pauses(&lines, "one") > 0 && pauses(&lines, "two") > 0).then_some(())
    });
    assert!(!from(&following.lines(), "one"), "that was before");

    // The output includes a later instance from its first line. `--previous` shows the instance
    // that ended.
    assert_eq!(gateway.get("/crash").unwrap().status / 100, 5);
    following.wait_until("it shows the next instance", |following| {
        let lines = following.lines();
        from(&lines, "one") || from(&lines, "two")
    });
    eventually("the one that ended", || {
        let previous = text(&control.leno(&["logs", "test/front", "--previous"]));
        (previous.lines().filter(|line| line.contains("listening on")).count() == 1).then_some(())
    });

    // Without a control plane, the command asks the node itself.
    let admin = format!("unix:{}", nodes[0].folder.path().join("admin.sock").display());
    let local =
        Command::new(env!("CARGO_BIN_EXE_leno")).args(["logs", "test/front", "--admin", &admin]).output().unwrap();
    assert!(text(&local).contains(" | listening on "), "{local:?}");

    // The command reports nodes that are away.
    drop(nodes);
    let away = eventually("the nodes to be away", || {
        let away = control.leno(&["logs", "test/front"]);
        text(&away).is_empty().then_some(away)
    });
    assert!(away.status.success(), "{away:?}");
}

/// A program that writes more lines than the node keeps before the client reads on.
const CHATTY: &str = "import http.server, os, sys\nclass H(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        \
                      count = int(self.path.strip('/') or 0)\n        for number in range(count):\n            print(f'line {number} ' + 'x' * 50)\n        \
                      print('\\x1b[2Jdone', file=sys.stderr)\n        sys.stdout.flush()\n        self.send_response(200)\n        \
                      self.send_header('content-length', '0')\n        self.end_headers()\n    def log_message(self, *a): pass\nprint('up', flush=True)\n\
                      http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()\n";

#[test]
fn what_a_slow_reader_has_missed_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("chatty.py");
    fs::write(&program, CHATTY).unwrap();
    let function = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: chatty, namespace: test}}\nspec:\n  command: [python3, \"{}\"]\n  \
         isolation: process\n  scale: {{min: 1, max: 1}}\n  expose: [{{hosts: [\"*\"], path: /}}]\n",
        program.display()
    );
    let mesh = Mesh::start(&format!("{function}{}", rules("chatty", "\"/*\"")));
    assert_eq!(mesh.curl("/3", &[]).status, 200);
    let admin = format!("unix:{}", mesh.socket().display());
    let page = |query: &str| -> Value {
        serde_json::from_str(&mesh.admin(&format!("/logs/test/chatty?{query}")).body).unwrap()
    };
    let first = eventually("its lines", || {
        Some(page("")).filter(|page| page["lines"].as_array().is_some_and(|lines| lines.len() == 5))
    });
    let after = first["after"].as_str().unwrap().to_owned();
    assert_eq!(page(&format!("after={after}"))["lines"], json!([]));

    assert_eq!(mesh.curl("/5000", &[]).status, 200);
    let next = eventually("the last line", || {
        let page = page(&format!("after={after}"));
        let total = page["dropped"].as_u64().unwrap() + page["lines"].as_array().unwrap().len() as u64;
        (total == 5001).then_some(page)
    });
    let kept = next["lines"].as_array().unwrap();
    let bytes: usize = kept.iter().map(|line| line["text"].as_str().unwrap().len()).sum();
    assert!(bytes <= 64 << 10 && kept.len() > 100, "{bytes} bytes in {} lines", kept.len());

    // The node may read the two streams in any order, so a separate request writes the last line.
    assert_eq!(mesh.curl("/0", &[]).status, 200);
    eventually("a line that moves no cursor", || {
        let arguments = ["logs", "test/chatty", "--tail", "2", "--admin", &admin];
        let shown = text(&Command::new(env!("CARGO_BIN_EXE_leno")).args(arguments).output().unwrap());
        assert_eq!(shown.lines().count(), 2, "{shown}");
        shown.contains(r" ! \u{1b}[2Jdone").then_some(())
    });
    let none =
        Command::new(env!("CARGO_BIN_EXE_leno")).args(["logs", "test/none", "--admin", &admin]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&none.stderr).contains("there is no function or job test/none on this node"),
        "{none:?}"
    );
}
