//! The policies of a function in words, of a real `leno up`, and of nodes through a control plane.

use leno_testkit::cluster::{Node, control};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{eventually, try_curl};
use serde_json::Value;

/// A function that the gateway exposes, and its caller.
fn documents() -> String {
    let rules = "  authorization:\n    rules:\n    - {name: public, to: [{paths: [\"/public/*\"]}]}\n    - {name: covered, to: [{paths: [/public/a]}]}\n    \
                 - {name: no-delete, action: deny, to: [{methods: [DELETE]}]}\n  rateLimits: [{name: each, requests: 100, per: 24h, key: [address]}]\n";
    echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 1}")
        + &echo_function("front", "  callees: [echo]")
        + &policy("own", "echo", rules)
        + &policy("later", "echo", &format!("  mode: audit\n{ALLOW_ALL}"))
}

fn rule<'a>(policies: &'a Value, name: &str) -> &'a Value {
    let sections = policies["inbound"].as_array().unwrap_or_else(|| panic!("{policies}"));
    let mut rules = sections.iter().flat_map(|section| section["rules"].as_array().unwrap());
    rules.find(|rule| rule["name"] == name).unwrap_or_else(|| panic!("no {name}: {policies}"))
}

/// The policies, as soon as the node has counted so many refusals of the deny rule.
fn with_hits(denied: u64, read: impl Fn() -> Value) -> Value {
    eventually("the hits of the deny rule", || {
        let policies = read();
        (rule(&policies, "own/authorization/no-delete")["hits"]["deny"] == denied).then_some(policies)
    })
}

fn assert_policies(policies: &Value) {
    assert_eq!(policies["identity"], "spiffe://test.example/ns/test/sa/echo");
    assert_eq!(policies["callers"], serde_json::json!(["test/front"]));
    assert!(policies["since"].as_u64().unwrap() > 1_600_000_000, "{policies}");
    let public = rule(policies, "own/authorization/public");
    assert_eq!((&public["action"], &public["clauses"][0]), (&"allow".into(), &"to: paths [\"/public/*\"]".into()));
    assert!(public["hits"]["allow"].as_u64().unwrap() >= 1, "{public}");
    let covered = rule(policies, "own/authorization/covered");
    assert!(covered["without_effect"].as_str().unwrap().contains("own/authorization/public"), "{covered}");
    assert_eq!(rule(policies, "later/authorization/everything")["audited"], true);
    let kinds: Vec<_> = policies["inbound"].as_array().unwrap().iter().map(|section| &section["policy"]).collect();
    assert_eq!(kinds[..2], ["authorization", "rateLimits"]);
    assert_eq!(policies["gateway"][0]["rules"][0]["clauses"][0], "hosts *, path /");
}

#[test]
fn a_node_tells_each_rule_with_its_hits() {
    let mesh = Mesh::start(&documents());
    assert_eq!(mesh.get("/public/a").status, 200);
    assert_eq!(mesh.curl("/public/a", &["-X", "DELETE"]).status, 403);
    assert_eq!(mesh.get("/private").status, 403);
    assert_policies(&with_hits(1, || mesh.admin("/policies/test/echo").json()));
    assert_eq!((mesh.admin("/policies/test/none").status, mesh.admin("/policies/none").status), (404, 400));

    let told = text(&mesh.leno(&["explain", "function", "test/echo"]));
    for part in [
        "REACHED BY\n  clients of the gateway: hosts *, path /\n  test/front\n",
        "    deny own/authorization/no-delete: 1 denied\n        to: methods [\"DELETE\"]\n",
        "    otherwise: a request that no rule allows is refused with 403\n",
        "        100 requests each 1d, at most 100 at once\n        for each: address\n",
        "NOT IN FORCE\n",
        "  later/authorization/everything: the node reports its decisions",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = text(&mesh.leno(&["explain", "function", "front", "-n", "test"]));
    assert!(
        told.contains("  nothing: no gateway exposes it")
            && told.contains("allow test/front/callees\n        test/echo\n"),
        "{told}"
    );
    let json = mesh.leno(&["explain", "function", "test/echo", "-o", "json"]);
    assert_policies(&serde_json::from_slice(&json.stdout).unwrap());
    let unknown = mesh.leno(&["explain", "function", "test/none"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no function test/none"), "{unknown:?}");
    assert!(!mesh.leno(&["explain", "two", "words"]).status.success());
}

fn reader(control: &Control, namespace: &str) -> String {
    let made = control.leno(&["token", "create", "--role", "reader", "--namespace", namespace]);
    text(&made).trim().to_owned()
}

#[test]
fn a_control_plane_adds_the_hits_of_nodes_and_hides_other_namespaces() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let node = Node::join(&control, "one", &[]);
    let foreign = echo_function("foreign", "  callees: [test/echo]").replace("namespace: test", "namespace: other");
    control.apply(&(documents() + &foreign));
    eventually("an answer", || gateway.get("/public/a").filter(|answer| answer.status == 200));
    eventually("a refusal", || {
        try_curl(&format!("http://{}/public/a", gateway.gateway), &["-X", "DELETE", "--max-time", "20"])
            .filter(|answer| answer.status == 403)
    });
    let read = |token: &str| control.get_as(token, "/v1/functions/test/echo/policies");
    let [own, other] = ["test", "other"].map(|namespace| reader(&control, namespace));
    let policies = with_hits(1, || read(&own).1);
    assert_policies(&policies);
    assert_eq!((&policies["hidden_callers"], &policies["missing"]), (&1.into(), &Value::Null));
    assert_eq!(read(&other).0, 403);
    let (status, answer) = control.get("/v1/functions/test/none/policies");
    assert_eq!(status, 404, "{answer}");
    let all = control.get("/v1/functions/test/echo/policies").1;
    assert_eq!(all["callers"], serde_json::json!(["other/foreign", "test/front"]));
    let told = text(&control.leno(&["explain", "function", "test/echo"]));
    assert!(told.contains("\n  other/foreign\n") && told.contains("no-delete: 1 denied"), "{told}");

    // The rules are known while no node answers.
    node.pause();
    let (status, answer) = read(&own);
    node.resume();
    assert_eq!(status, 200);
    assert!(answer["missing"][0].as_str().unwrap().starts_with("node one: "), "{answer}");
    assert_eq!(rule(&answer, "own/authorization/no-delete")["hits"], Value::Null);
}

/// The row of a limit, as soon as it has this state.
fn limit(rows: impl Fn() -> Value, kind: &str, state: &str) -> Value {
    eventually(&format!("{kind} {state}"), || {
        let rows = rows();
        let rows = rows.as_array().unwrap_or_else(|| panic!("{rows}"));
        rows.iter().find(|row| row["kind"] == kind && row["state"] == state).cloned()
    })
}

#[test]
fn limits_are_told_with_their_use_and_endpoints_with_their_ejection() {
    let spec = "  authorization: {rules: [{name: all}]}\n  rateLimits: [{name: each, requests: 3, per: 1h, key: [address, header: x-key]}]\n  \
                circuitBreaker: {maxRequests: 50, outlierDetection: {consecutive5xx: 2, baseEjection: 1h}}";
    let documents =
        echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 1, max: 1}\n  concurrency: 7")
            + &policy("own", "echo", spec);
    let mesh = Mesh::start(&documents);
    let rows = || mesh.admin("/limits/test/echo").json();
    for _ in 0..2 {
        assert_eq!(mesh.curl("/status/500", &["-H", "x-key: hunter2"]).status, 500);
    }
    let used = limit(rows, "rateLimit", "used");
    assert_eq!(
        (&used["used"], &used["of"], &used["name"]),
        (&2.into(), &3.into(), &"own/rateLimits/each".into()),
        "{used}"
    );
    let key = used["key"].as_str().unwrap();
    assert!(key.starts_with("address 127.0.0.1, header x-key #") && !key.contains("hunter2"), "{used}");
    let ejected = limit(rows, "ejection", "ejected");
    let time = |field: &str| ejected[field].as_f64().unwrap_or_else(|| panic!("{ejected}"));
    assert_eq!((&ejected["callee"], &ejected["used"]), (&"test/echo".into(), &1.into()));
    assert!((3590.0..3610.0).contains(&(time("until") - time("since"))), "{ejected}");
    assert_eq!(limit(rows, "requests", "free")["of"], 50);
    assert_eq!(limit(rows, "concurrency", "free")["of"], 7);
    // The ejected endpoint answers no request, and each counts.
    assert_eq!(mesh.curl("/", &["-H", "x-key: hunter2"]).status, 503);
    let table = text(&mesh.leno(&["get", "limits"]));
    assert!(
        table.starts_with("FUNCTION") && table.contains("own/rateLimits/each") && table.contains("ejected"),
        "{table}"
    );
    assert_eq!(mesh.admin("/limits/test/none").json(), serde_json::json!([]));
    assert_eq!(mesh.admin("/limits/none").status, 400);
}

#[test]
fn limits_of_nodes_are_for_readers_of_their_namespace() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    control.apply(&documents());
    eventually("an answer", || gateway.get("/public/a").filter(|answer| answer.status == 200));
    let [own, other] = ["test", "other"].map(|namespace| reader(&control, namespace));
    let rows = |token: &str, query: &str| {
        let (status, page) = control.get_as(token, &format!("/v1/limits{query}"));
        assert_eq!((status, &page["missing"]), (200, &serde_json::json!([])), "{page}");
        page["rows"].clone()
    };
    let used = limit(|| rows(&own, "?function=test/echo"), "rateLimit", "used");
    assert_eq!((&used["node"], &used["of"]), (&"one".into(), &100.into()), "{used}");
    assert_eq!(rows(&other, ""), serde_json::json!([]));
    assert_eq!(
        rows(&own, "?function=test/front")
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["function"] != "test/front")
            .count(),
        0
    );
    assert_eq!(control.get("/v1/limits?function=none").0, 400);
    assert!(text(&control.leno(&["get", "limits"])).contains("own/rateLimits/each"));
}

#[test]
fn readers_of_the_caller_see_the_state_of_a_circuit_breaker_but_not_the_use_of_others() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    let front = echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [other/back]");
    let breaker = format!(
        "  circuitBreaker: {{maxRequests: 50, outlierDetection: {{consecutive5xx: 2, baseEjection: 1h}}}}\n{ALLOW_ALL}"
    );
    let back = echo_function("back", "  scale: {min: 1, max: 1}") + &policy("own", "back", &breaker);
    let back = back.replace("namespace: test", "namespace: other");
    control.apply(&(front + &policy("open", "front", ALLOW_ALL) + &back));
    eventually("an answer", || gateway.get("/call/back.other/").filter(|answer| answer.status == 200));
    let [caller, all] = [reader(&control, "test"), control.token()];
    let rows = |token: &str| control.get_as(token, "/v1/limits?function=test/front").1["rows"].clone();
    let ejected = eventually("the ejection", || {
        gateway.get("/call/back.other/status/500");
        rows(&all).as_array().unwrap().iter().find(|row| row["kind"] == "ejection").cloned()
    });
    assert_eq!((&ejected["callee"], ejected["key"].is_string()), (&"other/back".into(), true), "{ejected}");

    let rows = rows(&caller);
    let of_callee: Vec<&Value> = rows.as_array().unwrap().iter().filter(|row| row["callee"] == "other/back").collect();
    let states: Vec<_> =
        of_callee.iter().map(|row| ["kind", "state"].map(|field| row[field].as_str().unwrap())).collect();
    assert_eq!(states, [["requests", "free"], ["ejection", "ejected"]]);
    for row in of_callee {
        for field in ["used", "of", "key", "since", "until"] {
            assert!(row[field].is_null(), "{field}: {row}");
        }
    }
    let address = ejected["key"].as_str().unwrap();
    let alerts = |token: &str| control.get_as(token, "/v1/alerts").1["rows"].to_string();
    eventually("the alert", || alerts(&caller).contains("an endpoint of other/back failed").then_some(()));
    assert!(!alerts(&caller).contains(address) && alerts(&all).contains(address));
    assert!(text(&control.leno(&["get", "limits"])).contains(address));
}
