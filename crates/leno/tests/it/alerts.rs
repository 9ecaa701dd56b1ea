//! Conditions that need attention, of a real `leno up`, and of nodes through a control plane.

use leno_testkit::cluster::{MESH, Node, control};
use leno_testkit::control::{Control, function, text};
use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use serde_json::Value;

/// The alert of this kind about a subject, as soon as there is one.
fn alert(rows: impl Fn() -> Value, kind: &str, subject: &str) -> Value {
    eventually(&format!("the alert {kind} about {subject}"), || {
        let rows = rows();
        let rows = rows.as_array().unwrap_or_else(|| panic!("{rows}"));
        rows.iter().find(|row| row["kind"] == kind && row["subject"] == subject).cloned()
    })
}

#[test]
fn a_node_tells_what_fails_with_the_fix() {
    let failing = "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: broken, namespace: test}\nspec: {command: \
                   [/bin/sh, -c, exit 9], scale: {min: 1}}\n";
    let keys =
        "  authentication: {issuers: [{issuer: \"https://x.example\", jwks: {url: \"http://127.0.0.1:1/keys\"}}]}";
    let keyed = echo_function("keyed", "") + &policy("keys", "keyed", keys);
    let spec = format!(
        "  rateLimits: [{{name: few, requests: 2, per: 1h}}]\n  circuitBreaker: {{outlierDetection: {{consecutive5xx: 2, \
         baseEjection: 1h}}}}\n{ALLOW_ALL}"
    );
    let echo = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 1, max: 1}");
    let mesh = Mesh::start(&format!("{echo}{}{keyed}{failing}", policy("own", "echo", &spec)));
    let rows = || mesh.admin("/alerts").json();
    let broken = alert(rows, "failing", "test/broken");
    assert!(
        broken["text"].as_str().unwrap().contains("exit status: 9") && broken["function"] == "test/broken",
        "{broken}"
    );
    let keys = alert(rows, "keySet", "test/keyed");
    assert_eq!(keys["severity"], "critical", "no key was ever there: {keys}");
    assert!(keys["text"].as_str().unwrap().contains("http://127.0.0.1:1/keys cannot be fetched"), "{keys}");
    for _ in 0..2 {
        assert_eq!(mesh.get("/status/500").status, 500);
    }
    let ejected = alert(rows, "ejected", "test/echo");
    assert!(ejected["text"].as_str().unwrap().contains("own/circuitBreaker"), "{ejected}");
    assert!(ejected["since"].as_f64().unwrap() > 1.6e9, "{ejected}");
    let exhausted = alert(rows, "exhausted", "test/echo");
    assert_eq!(exhausted["severity"], "info");
    assert!(exhausted["text"].as_str().unwrap().contains("own/rateLimits/few"), "{exhausted}");
    let all = rows();
    let order: Vec<&str> = all.as_array().unwrap().iter().map(|row| row["severity"].as_str().unwrap()).collect();
    let rank = |severity: &&str| ["critical", "warning", "info", "notice"].iter().position(|known| known == severity);
    assert!(order.is_sorted_by_key(rank), "{order:?}");
    assert!(all.as_array().unwrap().iter().all(|row| row["fix"].as_str().is_some_and(|fix| !fix.is_empty())), "{all}");
    let table = text(&mesh.leno(&["get", "alerts"]));
    assert!(table.starts_with("SEVERITY") && table.contains("own/rateLimits/few"), "{table}");

    // A change that removes the causes ends the alerts.
    mesh.write(&echo);
    eventually("no alert", || rows().as_array().unwrap().is_empty().then_some(()));
}

#[test]
fn refused_calls_are_told_with_the_command_that_would_permit_them() {
    let front = echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]") + &policy("open", "front", ALLOW_ALL);
    let mesh = Mesh::start(&front);
    assert_eq!(mesh.get("/call/elsewhere.example/x").status, 403);
    let refused = alert(|| mesh.admin("/alerts").json(), "deniedEgress", "test/front");
    assert!(refused["text"].as_str().unwrap().contains("elsewhere.example"), "{refused}");
    assert!(refused["fix"].as_str().unwrap().contains("leno suggest egress test/front"), "{refused}");
}

fn reader(control: &Control, namespace: &str) -> String {
    text(&control.leno(&["token", "create", "--role", "reader", "--namespace", namespace])).trim().to_owned()
}

#[test]
fn a_control_plane_tells_of_nodes_and_hides_other_namespaces() {
    let control = control();
    let mut node = Node::join(&control, "one", &[]);
    let broken = "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: broken, namespace: test}\nspec: {command: [/bin/sh, -c, \
                  exit 9], scale: {min: 1}}\n";
    control.apply(broken);
    let [own, other] = ["test", "other"].map(|namespace| reader(&control, namespace));
    let rows = |token: &str| control.get_as(token, "/v1/alerts").1["rows"].clone();
    let failing = alert(|| rows(&own), "failing", "test/broken");
    assert_eq!(failing["node"], "one");
    assert_eq!(rows(&other), serde_json::json!([]));
    node.kill();
    let away = alert(|| rows(&control.token()), "node", "one");
    assert!(away["text"].as_str().unwrap().starts_with("the node is away"), "{away}");
    let seen = rows(&own);
    assert!(seen.as_array().unwrap().iter().all(|row| row["subject"] != "one"), "{seen}");
    assert!(text(&control.leno(&["get", "alerts"])).contains("the node is away"));
}

#[test]
fn a_revision_that_cannot_start_is_told_beside_the_one_that_serves() {
    let control = control();
    let _node = Node::join(&control, "one", &[]);
    let documents = |spec: &str| echo_function("echo", spec) + &policy("open", "echo", ALLOW_ALL);
    let apply = |spec: &str| {
        let arguments = ["apply", "-f", "-", "--wait", "--timeout", "60s"];
        control.leno_with(&arguments, &documents(&format!("  scale: {{min: 1}}\n{spec}")))
    };
    assert!(apply("").status.success());
    // It ends with the reason, and does not take the former revision for the new one.
    let broken = apply("  env: {VERSION: next}\n  readiness: {http: /status/500}\n  timeouts: {startup: 300ms}");
    let sentence = "; 100 % still served by echo-00001";
    let told = String::from_utf8(broken.stderr).unwrap();
    assert!(!broken.status.success() && told.contains("test/echo failed: echo-00002 cannot start: "), "{told}");
    assert!(told.contains(sentence), "{told}");
    let [own, other] = ["test", "other"].map(|namespace| reader(&control, namespace));
    let rows = control.get_as(&own, "/v1/revisions").1["rows"].clone();
    let shares: Vec<_> = rows.as_array().unwrap().iter().map(|row| (&row["percent"], &row["served"])).collect();
    assert_eq!(shares, [(&0.into(), &100.into()), (&100.into(), &0.into())], "{rows}");
    assert!(rows[1]["problem"].as_str().unwrap().ends_with(&format!("(node one){sentence}")), "{rows}");
    assert_eq!(control.get_as(&other, "/v1/revisions").1["rows"], serde_json::json!([]));
    let functions = control.get_as(&own, "/v1/functions").1["rows"].clone();
    assert_eq!((&functions[0]["state"], &functions[0]["ready"]), (&"failed".into(), &1.into()), "{functions}");
    let alert = alert(|| control.get_as(&own, "/v1/alerts").1["rows"].clone(), "failing", "test/echo");
    let back = "leno promote test/echo echo-00001";
    assert!(alert["text"].as_str().unwrap().starts_with("revision echo-00002 cannot start: "), "{alert}");
    assert!(alert["fix"].as_str().unwrap().contains(back), "{alert}");
    for listing in [&["get", "functions"][..], &["get", "revisions"], &["describe", "function", "test/echo"]] {
        let shown = text(&control.leno(listing));
        assert!(shown.contains("cannot start: ") && shown.contains(sentence), "{listing:?}: {shown}");
    }
    let promoted = control.leno(&back.split(' ').skip(1).collect::<Vec<_>>());
    assert!(promoted.status.success(), "{promoted:?}");
    eventually("the first to have its share again", || {
        let rows = control.get_as(&own, "/v1/revisions").1["rows"].clone();
        (rows[0]["percent"] == 100 && rows[0]["served"] == 100 && rows[1]["problem"].is_null()).then_some(())
    });
}

#[test]
fn a_control_plane_tells_of_functions_without_a_node_and_of_rejected_configuration() {
    let control = control();
    control.apply(&function("shop", "test"));
    let [own, other] = ["test", "other"].map(|namespace| reader(&control, namespace));
    let rows = |token: &str| control.get_as(token, "/v1/alerts").1["rows"].clone();
    let unplaced = eventually("the alert with its time", || {
        Some(alert(|| rows(&own), "unplaced", "test/shop")).filter(|alert| alert["since"].is_f64())
    });
    assert_eq!((&unplaced["severity"], &unplaced["function"]), (&"critical".into(), &"test/shop".into()));
    assert!(unplaced["text"].as_str().unwrap().starts_with("the function is on no node: "), "{unplaced}");
    assert_eq!(rows(&other), serde_json::json!([]));

    let _node = Node::join(&control, "one", &[]);
    let has = |rows: &Value, kind: &str| rows.as_array().unwrap().iter().any(|row| row["kind"] == kind);
    eventually("a place", || (!has(&rows(&own), "unplaced")).then_some(()));
    assert!(!has(&rows(&control.token()), "rejected"));
    // Nodes read this field only at their start.
    control.apply(&format!("{MESH}  tracing: {{otlp: \"http://127.0.0.1:9\"}}\n"));
    let rejected = alert(|| rows(&control.token()), "rejected", "one");
    assert!(rejected["text"].as_str().unwrap().contains("needs a restart of this node"), "{rejected}");
    assert!(!has(&rows(&own), "rejected"), "the configuration of the mesh is not about the namespace");
    control.apply(MESH);
    eventually("no rejected configuration", || (!has(&rows(&control.token()), "rejected")).then_some(()));
}

#[test]
fn nodes_that_leave_are_told_with_what_only_they_had_and_since_when() {
    let mut control = control();
    let mut node = Node::join(&control, "one", &[]);
    let mut edge = Node::join(&control, "edge", &["--only-gateway"]);
    control.apply(&function("shop", "test"));
    let own = reader(&control, "test");
    let rows = |control: &Control, token: &str| control.get_as(token, "/v1/alerts").1["rows"].clone();
    let events = |control: &Control| control.get("/v1/events").1["rows"].as_array().unwrap().clone();
    let event = |control: &Control, kind: &str, node: &str| {
        eventually(&format!("the event {kind} of {node}"), || {
            events(control).into_iter().find(|row| row["kind"] == kind && row["node"] == node)
        })
    };
    event(&control, "nodeJoined", "one");
    eventually("a place", || {
        let functions = control.get("/v1/functions").1;
        functions["rows"].as_array()?.iter().any(|row| !row["nodes"].as_array().unwrap().is_empty()).then_some(())
    });

    node.kill();
    let function = eventually("the alert of the function", || {
        let rows = rows(&control, &own);
        rows.as_array()?.iter().find(|row| row["text"].as_str().unwrap().contains("node one, which had it")).cloned()
    });
    assert_eq!((&function["kind"], &function["function"]), (&"unplaced".into(), &"test/shop".into()));
    let away = event(&control, "nodeAway", "one");
    let only = "1 function has no other node: test/shop";
    assert!(away["reason"].as_str().unwrap().ends_with(only), "{away}");
    let told = alert(|| rows(&control, &control.token()), "node", "one");
    assert!(told["text"].as_str().unwrap().ends_with(only) && told["severity"] == "critical", "{told}");
    assert_eq!((&told["since"], &told["at_least"]), (&away["time"], &Value::Null));
    let seen = control.get_as(&own, "/v1/events").1;
    assert!(seen["rows"].as_array().unwrap().iter().all(|row| row["kind"] != "nodeAway"), "{seen}");

    edge.kill();
    let told = eventually("the alert of the gateway", || {
        let told = alert(|| rows(&control, &control.token()), "node", "edge");
        told["text"].as_str().unwrap().contains("no other node has a gateway").then_some(told)
    });
    assert_eq!(told["severity"], "critical");

    node.start_again();
    let back = event(&control, "nodeBack", "one");
    assert!(back["reason"].as_str().unwrap().starts_with("it was away for "), "{back}");
    eventually("no alert", || {
        let rows = rows(&control, &control.token());
        rows.as_array()?.iter().all(|row| row["subject"] != "one").then_some(())
    });
    let described = text(&control.leno(&["describe", "node", "one"]));
    for part in ["LAST SEEN", "nodeJoined", "nodeAway", "nodeBack"] {
        assert!(described.contains(part), "{part}: {described}");
    }

    // A control plane that starts again does not know for how long a node has been away.
    node.kill();
    control.kill();
    control.start_again();
    let told = eventually("the alert with its time", || {
        Some(alert(|| rows(&control, &control.token()), "node", "one")).filter(|told| told["since"].is_f64())
    });
    assert_eq!(told["at_least"], true, "{told}");
    event(&control, "nodeAway", "edge");
    assert!(text(&control.leno(&["get", "alerts"])).contains(" or more"));
    let removed = control.leno(&["nodes", "revoke", "edge"]);
    assert!(removed.status.success(), "{removed:?}");
    event(&control, "nodeRemoved", "edge");
}

/// A policy whose second rule never decides.
fn covered() -> String {
    let rules = "  authorization: {rules: [{name: all, action: allow, to: [{paths: [/public/*]}]}, {name: covered, \
                 action: allow, to: [{paths: [/public/a]}]}]}\n";
    policy("own", "echo", rules)
}

#[test]
fn a_function_that_refuses_nearly_all_is_told_with_the_rule_and_rules_without_effect_with_their_line() {
    let expose = "  expose: [{hosts: [\"*\"], path: /}]";
    let quiet = echo_function("quiet", "  expose: [{hosts: [\"quiet.example\"], path: /}]");
    let closed =
        policy("closed", "quiet", "  authorization: {rules: [{name: none, action: allow, to: [{paths: [/none]}]}]}\n");
    let mesh = Mesh::start(&format!("{}{}{quiet}{closed}", echo_function("echo", expose), covered()));
    let rows = || mesh.admin("/alerts").json();
    for number in 0..25 {
        assert_eq!(mesh.get(&format!("/private/{number}")).status, 403);
    }
    assert_eq!(mesh.curl("/", &["-H", "host: quiet.example"]).status, 403);
    let refusing = eventually("the alert of the function with its time", || {
        Some(alert(rows, "refusing", "test/echo")).filter(|alert| alert["since"].is_f64())
    });
    assert_eq!((&refusing["severity"], &refusing["at_least"]), (&"warning".into(), &Value::Null));
    assert!(refusing["text"].as_str().unwrap().contains(" requests in the last minutes, "), "{refusing}");
    assert!(refusing["text"].as_str().unwrap().ends_with(" at `own/authorization/all` (authorization)"), "{refusing}");
    assert!(refusing["fix"].as_str().unwrap().starts_with("permit these callers"), "{refusing}");
    let all = rows();
    let of_quiet = |row: &&Value| row["subject"] == "test/quiet";
    assert!(!all.as_array().unwrap().iter().any(|row| of_quiet(&row)), "one request is a handful: {all}");

    let notice = all.as_array().unwrap().iter().find(|row| row["kind"] == "ruleWithoutEffect").unwrap().clone();
    assert_eq!(notice["severity"], "notice");
    let (file, line) = notice["subject"].as_str().unwrap().rsplit_once(':').unwrap();
    let text = std::fs::read_to_string(mesh.folder.path().join(file)).unwrap();
    assert!(text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap().contains("covered"), "{notice}");
    // Requests that pass end the one alert, and a change of the documents the other.
    mesh.write(&(echo_function("echo", expose) + &policy("own", "echo", ALLOW_ALL)));
    eventually("requests that pass", || (mesh.get("/private/a").status == 200).then_some(()));
    for number in 0..25 {
        assert_eq!(mesh.get(&format!("/private/{number}")).status, 200);
    }
    eventually("no alert", || rows().as_array().unwrap().is_empty().then_some(()));
}

#[test]
fn a_control_plane_tells_rules_without_effect_to_the_readers_of_their_namespace() {
    let control = control();
    control.apply(&(function("echo", "test") + "---\n" + &covered()));
    let [own, other] = ["test", "other"].map(|namespace| reader(&control, namespace));
    let rows = |token: &str| control.get_as(token, "/v1/alerts").1["rows"].clone();
    let notice = alert(|| rows(&own), "ruleWithoutEffect", "Policy test/own");
    assert_eq!((&notice["severity"], &notice["namespace"]), (&"notice".into(), &"test".into()));
    assert!(notice["text"].as_str().unwrap().starts_with("spec.authorization.rules[1]"), "{notice}");
    assert_eq!(rows(&other), serde_json::json!([]));
    // A control plane that starts again compiles the stored documents.
    let mut control = control;
    control.kill();
    control.start_again();
    alert(|| control.get_as(&own, "/v1/alerts").1["rows"].clone(), "ruleWithoutEffect", "Policy test/own");
}
