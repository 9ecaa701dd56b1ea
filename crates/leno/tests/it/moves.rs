//! Moves of functions between nodes, under load: no request fails.

use leno_testkit::cluster::load::Load;
use leno_testkit::cluster::{Node, control};
use leno_testkit::control::{Control, text};
use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, echo_function, policy};
use serde_json::Value;

const PATHS: [&str; 5] = ["/call/back/", "/one", "/two", "/three", "/four"];

/// A function that calls another one, and four more. Some have one instance all the time, which
/// cannot be on two nodes at once.
fn documents() -> String {
    let front = echo_function("front", "  expose: [{hosts: [\"*\"], path: /call}]\n  callees: [back]");
    let back = echo_function("back", "  scale: {min: 1, max: 1}");
    let mut all = format!("{front}{back}{}{}", policy("front", "front", ALLOW_ALL), policy("back", "back", ALLOW_ALL));
    for (name, scale) in [("one", "{min: 1, max: 1}"), ("two", "{min: 1}"), ("three", "{max: 1}"), ("four", "{}")] {
        let spec = format!("  expose: [{{hosts: [\"*\"], path: /{name}}}]\n  scale: {scale}");
        all += &echo_function(name, &spec);
        all += &policy(name, name, ALLOW_ALL);
    }
    all
}

/// Number of functions on each node.
fn counts(control: &Control, names: &[&str]) -> Vec<usize> {
    let (_, status) = control.get("/v1/status");
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let count = |name: &&str| {
        let node = nodes.iter().find(|node| node["name"] == **name);
        node.and_then(|node| node["hosted"].as_array().map(Vec::len)).unwrap_or(0)
    };
    names.iter().map(count).collect()
}

/// Whether each function is on one node, so that no move is under way.
fn are_settled(control: &Control) -> bool {
    counts(control, &["one", "two", "three"]).iter().sum::<usize>() == 6
}

#[test]
fn no_request_fails_while_functions_move_to_a_node_that_comes_leaves_and_comes_back() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _nodes = ["one", "two"].map(|name| Node::join(&control, name, &[]));
    control.apply(&documents());
    for path in PATHS {
        eventually("an answer", || gateway.get(path).filter(|answer| answer.status == 200));
    }
    assert_eq!(counts(&control, &["one", "two"]), [3, 3]);
    let load = PATHS.map(|path| Load::start_at(&gateway, path));
    let _third = Node::join(&control, "three", &[]);
    let is_balanced = || are_settled(&control) && counts(&control, &["one", "two", "three"]) == [2, 2, 2];
    eventually("two functions to move", is_balanced);
    let moves = || {
        let events = control.leno(&["get", "events", "--json"]);
        let rows: Value = serde_json::from_slice(&events.stdout).unwrap();
        let rows = rows.as_array().unwrap().iter();
        let to_third =
            rows.filter(|row| row["reason"].as_str().is_some_and(|why| why.contains("to node three, which")));
        to_third.filter(|row| row["load"].as_str().is_some_and(|load| load.contains("functions and uses"))).count()
    };
    eventually("both events", || moves() == 2);
    assert!(text(&control.leno(&["get", "events"])).contains("it moves from node"));
    // The load of nodes comes from functions of all namespaces.
    let reader = text(&control.leno(&["token", "create", "--role", "reader", "--namespace", "test"]));
    let (_, seen) = control.get_as(reader.trim(), "/v1/events");
    let seen = seen["rows"].as_array().unwrap().iter();
    let seen: Vec<_> = seen.filter(|row| row["reason"].as_str().is_some_and(|why| why.contains("it moves"))).collect();
    let told = |row: &&Value| row["load"].is_null() && !row["reason"].as_str().unwrap().contains('%');
    assert!(seen.len() == 2 && seen.iter().all(told), "{seen:?}");

    assert!(control.leno(&["nodes", "drain", "three"]).status.success());
    eventually("the node to be empty", || are_settled(&control) && counts(&control, &["three"]) == [0]);
    assert!(control.leno(&["nodes", "uncordon", "three"]).status.success());
    eventually("functions to come back", is_balanced);
    for load in load {
        assert!(load.stop() > 0);
    }
}
