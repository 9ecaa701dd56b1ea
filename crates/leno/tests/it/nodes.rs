//! A mesh of several processes: a control plane, nodes that joined it, and a gateway.

use leno_testkit::cluster::load::Load;
use leno_testkit::cluster::network::{HUB, Hub, NodeNetwork};
use leno_testkit::cluster::{MESH, Node, Place, control, control_at, documents, nodes_of, status};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{ALLOW_ALL, echo_function, first_answer, policy};
use leno_testkit::{EtcdServer, eventually};
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn a_function_on_another_node_is_reached_through_the_gateway_and_survives_its_nodes() {
    let mut control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let mut nodes = [Node::join(&control, "one", &[]), Node::join(&control, "two", &[])];
    control.apply(&documents());
    // A cold start on another node than the gateway.
    let answer = eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    assert!(answer.header("x-request-id").is_some());
    let hosts = eventually("the report", || Some(nodes_of(&control, "test/front")).filter(|nodes| !nodes.is_empty()));
    let host = hosts[0].clone();

    // Without the control plane, requests still succeed.
    control.kill();
    assert_eq!(status(gateway.get("/")), Some(200));
    control.start_again();
    eventually("all nodes to come back", || {
        let (_, status) = control.get("/v1/status");
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        (nodes.len() == 3 && nodes.iter().all(|node| node["connected"] == Value::Bool(true))).then_some(())
    });
    assert_eq!(status(gateway.get("/")), Some(200));

    // The host of the function dies, and another node takes its place.
    let dead = nodes.iter().position(|node| node.name == host).unwrap();
    nodes[dead].kill();
    eventually("an answer from another node", || gateway.get("/").filter(|answer| answer.status == 200));
    let hosts = eventually("the report", || Some(nodes_of(&control, "test/front")).filter(|nodes| !nodes.is_empty()));
    assert!(hosts.iter().all(|node| *node != host), "{hosts:?}");

    // It starts again without a token.
    nodes[dead].start_again();
    assert_eq!(status(gateway.get("/")), Some(200));
}

/// A gateway that starts again answers when it has its routes. Without a control plane it waits.
#[test]
fn a_gateway_answers_nothing_before_it_has_its_routes() {
    let mut control = control();
    let mut gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    control.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    for control_is_there in [true, false] {
        gateway.kill();
        if !control_is_there {
            control.kill();
        }
        let first = first_answer(gateway.gateway);
        gateway.start_again_unready();
        if !control_is_there {
            gateway.wait_for("to look for the control plane", |node| node.has_said("settings of the mesh"));
            assert!(!first.is_finished(), "it has answered without a configuration");
            control.start_again();
        }
        let status = first.join().unwrap();
        // The node of the function may come back to the control plane after the gateway.
        assert!(status == 200 || (status == 503 && !control_is_there), "{status}");
    }
}

#[test]
fn a_call_from_one_node_to_another_is_judged_on_both() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    // Each node has capacity for one function.
    let place = Place::here();
    let _nodes = ["one", "two"].map(|name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "1"]));
    let front =
        echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [back]\n  scale: {min: 1, max: 1}");
    let back = echo_function("back", "  scale: {min: 1, max: 1}");
    let rules = "  authorization: {rules: [{name: front, action: allow, from: [{identities: [test/front]}], to: [{paths: [/ok]}]}]}";
    control.apply(&format!("{front}{back}{}{}", policy("open", "front", ALLOW_ALL), policy("inner", "back", rules)));
    let hosts = eventually("both to run", || {
        let hosts = [nodes_of(&control, "test/front"), nodes_of(&control, "test/back")].concat();
        (hosts.len() == 2).then_some(hosts)
    });
    assert_ne!(hosts[0], hosts[1]);
    eventually("an answer", || gateway.get("/call/back/ok").filter(|answer| answer.status == 200));
    assert_eq!(status(gateway.get("/call/back/forbidden")), Some(403), "the callee's policy, on its node");
    assert_eq!(status(gateway.get("/call/stranger/ok")), Some(403), "not among the caller's callees");
}

#[test]
fn a_chain_over_two_nodes_is_called_and_judged_like_any_functions() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    // Each node has capacity for one function.
    let place = Place::here();
    let nodes = ["one", "two"].map(|name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "1"]));
    let spec = "  protocol: chain\n  env: {CHAIN: \"1\"}\n  scale: {min: 1, max: 1}";
    let front = echo_function("front", &format!("{spec}\n  expose: [{{hosts: [\"*\"], path: /}}]\n  callees: [back]"));
    let back = echo_function("back", spec);
    let chain = "---\napiVersion: leno.dev/v1alpha1\nkind: Chain\nmetadata: {name: line, namespace: test}\nspec:\n  entry: front\n  \
                 direct: true\n  functions: [{name: front, to: [back]}, {name: back}]\n";
    let rules = "  authorization: {rules: [{name: front, action: allow, from: [{identities: [test/front]}], to: [{paths: [/same, /status/201]}]}]}";
    let policies = policy("open", "front", ALLOW_ALL) + &policy("inner", "back", rules);
    control.apply(&format!("{front}{back}{chain}{policies}"));
    let hosts = eventually("both to run", || {
        let hosts = [nodes_of(&control, "test/front"), nodes_of(&control, "test/back")].concat();
        (hosts.len() == 2).then_some(hosts)
    });
    assert_ne!(hosts[0], hosts[1]);
    eventually("an answer", || gateway.get("/call/back.test/status/201").filter(|answer| answer.status == 201));
    assert_eq!(status(gateway.get("/forward/back.test/status/201")), Some(201));
    assert_eq!(status(gateway.get("/call/back.test/forbidden")), Some(403), "the callee's policy, on its node");
    assert_eq!(status(gateway.get("/call/stranger.test/same")), Some(403), "not among the caller's callees");
    // A body goes to the function and back, from one node's memory to the other's.
    let body = "x".repeat(50_000);
    let url = format!("http://{}/call/back.test/same", gateway.gateway);
    let output = Command::new("curl").args(["--silent", "--data", &body, &url]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), body);
    let caller = nodes.iter().find(|node| node.name == hosts[0]).unwrap();
    let chains = caller.leno(&["get", "chains", "--json"]);
    let rows: Value = serde_json::from_slice(&chains.stdout).unwrap();
    let told = &rows.as_array().unwrap().iter().find(|row| row["function"] == "test/front").unwrap()["direct"];
    assert_eq!(told["test/back"], "this node does not host it", "{rows}");
}

#[test]
fn a_node_that_is_cut_off_is_replaced_and_comes_back() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root may make network namespaces");
        return;
    }
    let hub = Hub::enter();
    let control = control_at(HUB);
    let places: Vec<NodeNetwork> = (1..=4).map(|number| hub.place(number)).collect();
    let gateway = Node::join_at(&places[0].place, &control, "edge", &["--only-gateway"], &[]);
    let names = ["one", "two", "three"];
    let join = |(place, name): (&NodeNetwork, &&str)| Node::join_at(&place.place, &control, name, &[], &[]);
    let _nodes: Vec<Node> = places[1..].iter().zip(&names).map(join).collect();
    control.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    let host = eventually("the report", || nodes_of(&control, "test/front").into_iter().next());
    let cut = &places[1 + names.iter().position(|name| *name == host).unwrap()];
    cut.cut();
    eventually("an answer from another node", || gateway.get("/").filter(|answer| answer.status == 200));
    let elsewhere = |nodes: &Vec<String>| nodes.iter().any(|node| *node != host);
    eventually("another home", || Some(nodes_of(&control, "test/front")).filter(elsewhere));
    let connected = || {
        let (_, status) = control.get("/v1/status");
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().any(|node| node["name"] == *host && node["connected"] == Value::Bool(true))
    };
    eventually("it to be missed", || (!connected()).then_some(()));
    cut.mend();
    eventually("it to come back", || connected().then_some(()));
    assert_eq!(status(gateway.get("/")), Some(200));
}

#[test]
fn a_rate_limit_is_one_for_all_nodes() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    // Each node has capacity for one instance, and there are two nodes.
    let place = Place::here();
    let _nodes = ["one", "two"].map(|name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "1"]));
    let front = echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 2, max: 2}");
    let limit = "  authorization: {rules: [{name: everything, action: allow}]}\n  rateLimits: [{name: few, requests: 20, per: 1h}]";
    control.apply(&format!("{front}{}", policy("few", "front", limit)));
    eventually("both instances", || (nodes_of(&control, "test/front").len() == 2).then_some(()));
    // Requests go to both nodes, slowly enough for shares of the limit to move between them.
    let mut admitted = 0;
    eventually("the limit to be used", || {
        let status = status(gateway.get("/"));
        admitted += usize::from(status == Some(200));
        (admitted >= 10 && status == Some(429)).then_some(())
    });
    for _ in 0..200 {
        admitted += usize::from(status(gateway.get("/")) == Some(200));
    }
    assert!((10..=20).contains(&admitted), "{admitted} of 20");
}

#[test]
fn requests_go_on_while_the_leader_dies_and_while_etcd_is_down() {
    let mut server = EtcdServer::start();
    let authority = tempfile::tempdir().unwrap();
    let path = |name: &str| authority.path().join(name).display().to_string();
    let (mesh, ca, passphrase, address) = (path("mesh.yaml"), path("ca.pem"), path("passphrase"), server.address());
    fs::write(&mesh, MESH).unwrap();
    fs::write(&passphrase, "correct horse battery").unwrap();
    let arguments =
        ["--etcd", &*address, "--etcd-lease", "2", "--mesh", &*mesh, "--ca", &*ca, "--ca-passphrase", &*passphrase];
    let mut first = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let second = Control::start_following(&first, &arguments);
    let (place, other) = (Place::here(), second.nodes());
    let more = ["--control", &*other];
    let gateway = Node::join_at(&place, &first, "edge", &["--only-gateway"], &more);
    let _nodes = ["one", "two"].map(|name| Node::join_at(&place, &first, name, &[], &more));
    first.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));

    let load = Load::start(&gateway);
    first.kill();
    eventually("all nodes to come to the other one", || {
        let (status, listed) = second.get("/v1/status");
        let nodes = listed["nodes"].as_array().cloned().unwrap_or_default();
        let connected = nodes.iter().filter(|node| node["connected"] == Value::Bool(true)).count();
        (status == 200 && connected == 3).then_some(())
    });
    assert!(load.stop() > 0);

    let load = Load::start(&gateway);
    server.kill();
    eventually("changes to be refused", || {
        let refused = second.leno_with(&["apply", "-f", "-"], &echo_function("late", ""));
        (!refused.status.success()).then_some(())
    });
    server.run();
    eventually("changes to be taken again", || {
        second.leno_with(&["apply", "-f", "-"], &echo_function("late", "")).status.success().then_some(())
    });
    assert!(load.stop() > 0);
}

#[test]
fn a_revoked_node_is_out_and_a_token_is_for_one() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let one = Node::join(&control, "one", &[]);
    control.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    let revoked = control.leno(&["nodes", "revoke", "one"]);
    assert!(revoked.status.success(), "{revoked:?}");
    eventually("nothing to serve it", || gateway.get("/").filter(|answer| answer.status == 503));
    eventually("it to be told", || one.has_said("was revoked").then_some(()));
    let again = control.leno(&["nodes", "revoke", "one"]);
    assert!(!again.status.success(), "{again:?}");
    // A node cannot join without a token, and not with a used one either.
    let token = one.folder.path().join("token");
    for (token, told) in [(Some(&token), "was used"), (None, "give it a --join token")] {
        let folder = tempfile::tempdir().unwrap();
        let mut arguments: Vec<String> =
            ["node", "--control", &control.nodes(), "--name", "one", "--state", "state"].map(str::to_owned).into();
        arguments.extend(token.into_iter().flat_map(|path| ["--join".to_owned(), path.display().to_string()]));
        let refused =
            Command::new(env!("CARGO_BIN_EXE_leno")).args(&arguments).current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(told), "{text}");
    }
}

#[test]
fn a_node_that_offers_more_than_its_token_allows_gets_no_more_than_that() {
    let control = control();
    let most = u64::MAX.to_string();
    let offer = ["--offer-cpu", &most, "--offer-memory", &most, "--offer-instances", "4294967295"];
    let caps = ["--max-instances", "1", "--max-cpu", "2000", "--max-memory", "1073741824"];
    let mut greedy = Node::join_at(&Place::here(), &control, "greedy", &caps, &offer);
    let _honest = Node::join_at(&Place::here(), &control, "honest", &[], &["--offer-instances", "10"]);
    let all = |from: usize| -> Vec<String> { (from..from + 4).map(|number| format!("f{number}")).collect() };
    let document = |name: &String| echo_function(name, "  callees: []\n  scale: {min: 1}");
    let placed = |names: &[String]| -> Vec<Vec<String>> {
        let nodes = |name: &String| Some(nodes_of(&control, &format!("test/{name}"))).filter(|nodes| !nodes.is_empty());
        names.iter().map(|name| eventually(&format!("an instance of {name}"), || nodes(name))).collect()
    };
    let on_greedy = |nodes: &[Vec<String>]| nodes.iter().flatten().filter(|node| *node == "greedy").count();
    control.apply(&all(0).iter().map(document).collect::<String>());
    let first = placed(&all(0));
    assert!(on_greedy(&first) <= 1, "{first:?}");
    let told = |control: &Control| -> Value {
        let (_, status) = control.get("/v1/status");
        status["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "greedy").unwrap().clone()
    };
    let capacity = told(&control)["capacity"].clone();
    assert_eq!((&capacity["instances"], &capacity["cpu_millis"]), (&1.into(), &2000.into()), "{capacity}");
    assert_eq!(capacity["memory"], 1_u64 << 30, "{capacity}");

    // A revoked node cannot come back with its certificate either.
    greedy.kill();
    greedy.start_again();
    control.apply(&all(0).iter().chain(&all(4)).map(document).collect::<String>());
    let later = [placed(&all(0)), placed(&all(4))].concat();
    assert!(on_greedy(&later) <= 1, "{later:?}");
    let capacity = told(&control)["capacity"].clone();
    assert_eq!(capacity["instances"], 1, "{capacity}");
}

#[test]
fn a_node_outlives_an_upgrade_that_is_asked_for_without_sense() {
    let control = control();
    let node = Node::join(&control, "one", &[]);
    for ask in [
        r#"{"binary":null,"timeout":18446744073709551615}"#,
        r#"{"binary":"/dev/zero","timeout":1}"#,
        r#"{"binary":"/no/such/program","timeout":1}"#,
        r#"{"binary":null,"timeout":-1}"#,
        "[",
    ] {
        let answer = Command::new("curl")
            .args(["--silent", "--max-time", "30", "--data", ask, "--write-out", "%{http_code}", "--unix-socket"])
            .arg(node.folder.path().join("admin.sock"))
            .arg("http://node/upgrade")
            .output()
            .unwrap();
        let answer = String::from_utf8(answer.stdout).unwrap();
        assert!(answer.ends_with("409") || answer.ends_with("400"), "{ask}: {answer}");
    }
    assert!(node.leno(&["get", "functions"]).status.success());
}

#[test]
fn who_may_make_join_tokens() {
    let control = control();
    for (role, namespace) in [("editor", None), ("reader", None), ("admin", Some("test"))] {
        let mut arguments = vec!["token", "create", "--role", role];
        arguments.extend(namespace.into_iter().flat_map(|namespace| ["--namespace", namespace]));
        let token = text(&control.leno(&arguments)).trim().to_owned();
        let body = serde_json::json!({});
        for path in ["/v1/join-tokens", "/v1/nodes/one/cordon"] {
            let body = if path.ends_with("cordon") { serde_json::json!({ "cordoned": true }) } else { body.clone() };
            assert_eq!(control.post(&token, path, &body).0, 403, "{role} {namespace:?} {path}");
        }
    }
    let (status, made) =
        control.post(&control.token(), "/v1/join-tokens", &serde_json::json!({ "addresses": ["10.0.0.0/24", "::1"] }));
    assert_eq!(status, 200, "{made}");
    assert!(made["token"].as_str().unwrap().starts_with("leno-join-"));
    for bad in [serde_json::json!({ "addresses": ["here"] }), serde_json::json!({ "node": "No Name" })] {
        assert_eq!(control.post(&control.token(), "/v1/join-tokens", &bad).0, 400, "{bad}");
    }
    let audit = text(&control.leno(&["get", "audit", "--json"]));
    assert!(audit.contains("join token") && !audit.contains("leno-join-"), "{audit}");
}
