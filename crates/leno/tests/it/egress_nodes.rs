//! A mesh of several processes in which egress nodes carry calls to external services for other
//! nodes.

use crate::outside::{self, Names, Server, external, reading};
use leno_testkit::cluster::load::Load;
use leno_testkit::cluster::network::{HUB, Hub, NodeNetwork, ip};
use leno_testkit::cluster::restart::RestartedNode;
use leno_testkit::cluster::{MESH, Node, Place, control_of, status};
use leno_testkit::control::Control;
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{self, ALLOW_ALL, echo_function, example, policy, public_folder};
use leno_testkit::{Answer, eventually, try_curl};
use serde_json::Value;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The address of external servers, for the networks that have a route to it.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// A field of a Mesh document: the name server, and the nodes that connect to external services.
fn egress(names: &Names, nodes: &str) -> String {
    format!("  egress: {{nameServers: [\"{}\"], nodes: {nodes}}}\n", names.address)
}

fn caller(callees: &str) -> String {
    echo_function("caller", &format!("  expose: [{{hosts: [\"*\"], path: /}}]\n  callees: [{callees}]"))
        + &policy("in", "caller", ALLOW_ALL)
}

/// The nodes that host a function, and those that have a certificate for it.
fn carriers(control: &Control, name: &str) -> (Vec<String>, Vec<String>) {
    let (_, status) = control.get("/v1/status");
    let list = |field: &str| status[field].as_array().cloned().unwrap_or_default();
    let function = list("functions").into_iter().find(|function| function["function"] == name);
    let nodes = function.and_then(|function| function["nodes"].as_array().cloned()).unwrap_or_default();
    let identity = format!("/{}", name.replace('/', "/sa/"));
    let certified = list("identities");
    let certified = certified.iter().filter(|row| row["identity"].as_str().unwrap().ends_with(&identity));
    let named = |row: &Value| row["node"].as_str().unwrap().to_owned();
    (nodes.iter().map(named).collect(), certified.map(named).collect())
}

/// The flows that a node reports.
fn flows(node: &Node) -> Vec<Value> {
    let output = node.leno(&["observe", "--json", "--last", "1000"]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn post(gateway: &Node, path: &str) -> Option<Answer> {
    try_curl(&format!("http://{}{path}", gateway.gateway), &["--request", "POST"])
}

/// Opens a route to the external servers.
fn open(place: &NodeNetwork, number: u8) {
    let enter = format!("--net=/proc/{}/ns/net", place.holder.id());
    let address = format!("10.78.0.{number}/24");
    let add = ["ip", "addr", "add", &address, "dev", "eth0"];
    assert!(std::process::Command::new("nsenter").arg(enter).args(add).status().unwrap().success());
}

/// The same place, with an empty folder mounted over this folder.
fn without(place: &NodeNetwork, folder: &Path) -> Place {
    let mut command = place.place.command.clone();
    let program = command.pop().unwrap();
    let hide = format!("mount -t tmpfs none {} && exec \"$@\"", folder.display());
    command.extend(["unshare", "--mount", "sh", "-c", &hide, "sh", &program].map(str::to_owned));
    Place { address: place.place.address, command }
}

#[test]
fn only_egress_nodes_have_secrets_and_a_way_out_and_others_take_over() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root may make network namespaces");
        return;
    }
    let hub = Hub::enter();
    ip(&format!("addr add {OUTSIDE}/24 dev hub"));
    let (names, authority) = (Names::start_at(OUTSIDE), CertificateAuthority::default());
    names.set("api.shop.example", outside::Answer::Addresses(vec![OUTSIDE], 60));
    let server = Server::https(&format!("{OUTSIDE}:0"), &authority, &["api.shop.example"], None);
    let secrets = tempfile::tempdir().unwrap();
    fs::write(secrets.path().join("ca.pem"), authority.pem()).unwrap();
    fs::write(secrets.path().join("token"), "swordfish\n").unwrap();
    let files = format!("  namespaces: {{files: [{}]}}\n", secrets.path().display());
    let control = control_of(HUB, &(egress(&names, "egress") + &files));
    let places: Vec<NodeNetwork> = (1..=5).map(|number| hub.place(number)).collect();
    let gateway = Node::join_at(&places[0].place, &control, "edge", &["--only-gateway"], &[]);
    let nodes = [1, 2].map(|place| {
        Node::join_at(&without(&places[place], secrets.path()), &control, &format!("node{place}"), &[], &[])
    });
    let mut exits = [(3, "exit"), (4, "out")].map(|(place, name)| {
        open(&places[place], place as u8 + 10);
        Node::join_at(&places[place].place, &control, name, &["--egress"], &["--offer-instances", "0"])
    });
    let folder = secrets.path().display();
    control.apply(
        &(caller("api")
            + &external(
                "api",
                &format!(
                    "  hosts: [api.shop.example]\n  resolvesTo: [10.78.0.0/24]\n  ports: [{{port: {}, protocol: https}}]\n  \
                     tls: {{caFile: {folder}/ca.pem}}\n  credentials: [{{scheme: Bearer, from: {folder}/token}}]",
                    server.port()
                ),
            )
            + &reading("api", "")),
    );
    let path = "/call/api.shop.example/items";
    let answer = eventually("an answer", || gateway.get(path).filter(|answer| answer.status == 200));
    let seen = answer.json();
    assert_eq!((&seen["uri"], &seen["tls"]["sni"]), (&"/items".into(), &"api.shop.example".into()));
    let headers = seen["headers"].as_object().unwrap();
    assert_eq!(headers["authorization"], "Bearer swordfish");
    assert_eq!(headers.keys().collect::<Vec<_>>(), ["authorization", "host"], "nothing of the mesh goes out");

    // Rules are in force, and the egress node does not send refused requests.
    let requests = server.requests();
    assert_eq!(status(post(&gateway, path)), Some(403));
    assert_eq!(status(gateway.get("/call/api.shop.example/admin/keys")), Some(403));
    assert_eq!(status(gateway.get("/call/other.shop.example/")), Some(403), "not a callee");
    assert_eq!(status(gateway.get("/call/api.shop.example:1234/")), Some(421), "no such port");
    assert_eq!(server.requests(), requests);

    // The hosts of the External, the nodes with a certificate for it, and the roles of nodes.
    let both = vec!["exit".to_owned(), "out".to_owned()];
    eventually("certificates", || (carriers(&control, "test/api") == (both.clone(), both.clone())).then_some(()));
    let listed: Vec<Value> = serde_json::from_slice(&control.leno(&["get", "nodes", "--json"]).stdout).unwrap();
    let roles = |name: &str| listed.iter().find(|row| row["node"] == name).unwrap()["roles"].to_string();
    assert_eq!(["edge", "node1", "exit"].map(roles), ["[\"gateway\"]", "[]", "[\"egress\"]"]);

    // Both nodes record the call: the caller's node has the egress node to which it sent the call,
    // and the egress node has the rule and the address.
    let told = nodes.iter().flat_map(flows).filter(|flow| flow["target"] == "test/api" && flow["kind"] == "outbound");
    assert!(told.count() >= 3, "{:?}", nodes.iter().map(flows).collect::<Vec<_>>());
    let carried: Vec<Value> = exits.iter().flat_map(flows).filter(|flow| flow["target"] == "test/api").collect();
    let allowed = carried.iter().find(|flow| flow["verdict"] == "allow").expect("what was allowed");
    assert_eq!((&allowed["kind"], &allowed["rule"]), (&"inbound".into(), &"api/authorization/read".into()));
    assert!(allowed["source"].as_str().unwrap().ends_with("/ns/test/sa/caller"), "{allowed}");
    let denied = carried.iter().filter(|flow| flow["verdict"] == "deny").count();
    assert_eq!(denied, 2, "{carried:?}");

    // One egress node dies, and the other takes over. Without any, calls fail.
    exits[0].kill();
    for _ in 0..5 {
        eventually("an answer by the other", || gateway.get(path).filter(|answer| answer.status == 200));
    }
    exits[1].kill();
    eventually("nobody to carry it", || gateway.get(path).filter(|answer| answer.status == 503));
    let requests = server.requests();
    for _ in 0..5 {
        assert_eq!(status(gateway.get(path)), Some(503));
    }
    assert_eq!(server.requests(), requests);
    exits[0].start_again();
    eventually("it to be carried again", || gateway.get(path).filter(|answer| answer.status == 200));
}

#[test]
fn a_namespace_has_key_sets_fetched_only_from_where_it_may() {
    let issuer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = issuer.local_addr().unwrap().port();
    let connections = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = connections.clone();
    std::thread::spawn(move || {
        for _ in issuer.incoming() {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let count = || connections.load(std::sync::atomic::Ordering::SeqCst);
    let control = control_of(HERE, "");
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    let keys = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: login, namespace: test}}\nspec:\n  functions: [caller]\n  \
         authentication:\n    issuers:\n    - {{issuer: \"https://login.example\", required: false, jwks: {{url: \"http://localhost:{port}/keys\"}}}}\n"
    );
    control.apply(&(caller("") + &keys));
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    assert_eq!(count(), 0, "a special address that no quota lists");
    control.apply(
        "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: test}\nspec: {egress: [127.0.0.0/8, \"::1/128\"]}\n",
    );
    eventually("a fetch", || (count() > 0).then_some(()));
}

#[test]
fn names_of_the_outside_do_not_lead_to_machines_of_the_mesh() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root may make network namespaces");
        return;
    }
    let _hub = Hub::enter();
    // Public addresses. One belongs to no interface, but packets to it arrive here all the same.
    let [own, routed] = [Ipv4Addr::new(93, 184, 215, 14), Ipv4Addr::new(93, 184, 216, 34)];
    ip(&format!("addr add {own}/32 dev hub"));
    ip(&format!("route add local {routed}/32 dev lo"));
    let names = Names::start();
    let server = Server::http("0.0.0.0:0");
    let port = server.port();
    for (name, address) in [("public", own), ("routed", routed), ("wide", own), ("meant", own)] {
        names.set(&format!("{name}.shop.example"), outside::Answer::Addresses(vec![address], 60));
    }
    let of = |name: &str, rest: &str| {
        let spec = format!("  hosts: [{name}.shop.example]\n{rest}  ports: [{{port: {port}, protocol: http}}]");
        external(name, &spec) + &reading(name, "")
    };
    let documents = caller("public, routed, wide, meant, block")
        + &of("public", "")
        + &of("routed", "")
        + &of("wide", "  resolvesTo: [0.0.0.0/0, 93.184.0.0/16]\n")
        + &of("meant", &format!("  resolvesTo: [{own}]\n"))
        + &external("block", &format!("  addresses: [93.184.0.0/16]\n  ports: [{{port: {port}, protocol: http}}]"))
        + &reading("block", "");
    let mesh = format!("  instances: {{isolation: process, accounts: node}}\n{}", names.mesh());
    let leno = std::process::Command::new(env!("CARGO_BIN_EXE_leno"));
    let mesh = mesh::Mesh::start_with_command(leno, &mesh, &documents, |_| ());
    let call = |host: &str| mesh.get(&format!("/call/{host}:{port}/")).status;
    for host in ["public.shop.example", "routed.shop.example", "wide.shop.example"] {
        assert_eq!(call(host), 503, "{host}");
    }
    assert_ne!(call(&own.to_string()), 200, "a block with other addresses");
    assert_eq!(server.connections(), 0);
    let output = mesh.leno(&["observe", "--json", "--last", "1000"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("93.184.215.14 (one of the mesh's machines)"), "{told}");
    assert_eq!(call("meant.shop.example"), 200, "listed by itself");
}

#[test]
fn a_mesh_that_has_egress_nodes_carry_calls_from_now_on_fails_without_any() {
    let names = Names::start();
    names.set("api.shop.example", outside::Answer::Addresses(vec![HERE], 60));
    let server = Server::http("127.0.0.1:0");
    let control = control_of(HERE, &egress(&names, "caller"));
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    let port = server.port();
    let spec = format!(
        "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {port}, protocol: http}}]"
    );
    control.apply(&(caller("api") + &external("api", &spec) + &reading("api", "")));
    let path = format!("/call/api.shop.example:{port}/");
    let answers = |expected: u16| eventually("it", || gateway.get(&path).filter(|answer| answer.status == expected));
    answers(200);
    // The caller's node carries these connections itself, so no node has a certificate for the
    // External.
    assert_eq!(carriers(&control, "test/api"), (vec!["one".to_owned()], vec![]));

    control.apply(&format!("{MESH}{}", egress(&names, "egress")));
    answers(503);
    let requests = server.requests();
    assert_eq!(status(gateway.get(&path)), Some(503));
    assert_eq!(server.requests(), requests);
    assert_eq!(carriers(&control, "test/api").0, [""; 0]);
    let mut exit = RestartedNode::of(Node::join(&control, "exit", &["--egress"]));
    answers(200);
    assert_eq!(carriers(&control, "test/api").0, ["exit"]);
    // After a hot restart, the new process continues to carry these connections.
    let load = Load::start_at(&gateway, path.clone().leak());
    exit.upgrade();
    exit.wait();
    load.stop();
    assert_eq!(carriers(&control, "test/api"), (vec!["exit".to_owned()], vec!["exit".to_owned()]));

    control.apply(&format!("{MESH}{}", egress(&names, "caller")));
    eventually("the caller's node to do it", || (carriers(&control, "test/api").0 == ["one"]).then_some(()));
    answers(200);
    let both = control.leno(&["token", "join", "--egress", "--only-gateway"]);
    assert!(!both.status.success());
    let (refused, _) =
        control.post(&control.token(), "/v1/join-tokens", &serde_json::json!({ "egress": true, "onlyGateway": true }));
    assert_eq!(refused, 400);
}

#[test]
fn connections_without_requests_are_carried_too() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let (names, authority) = (Names::start(), CertificateAuthority::default());
    let server = Server::http("127.0.0.1:0");
    let secure = Server::https("127.0.0.1:0", &authority, &["api.tls.example"], None);
    let (port, tls_port) = (server.port(), secure.port());
    names.set("db.shop.example", outside::Answer::Addresses(vec![HERE], 60));
    names.set("api.tls.example", outside::Answer::Addresses(vec![HERE], 60));
    let control = control_of(HERE, &egress(&names, "egress"));
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let node = Node::join(&control, "one", &[]);
    let exit = Node::join_at(&Place::here(), &control, "exit", &["--egress"], &["--offer-instances", "0"]);
    let folder = tempfile::tempdir().unwrap();
    public_folder(folder.path());
    let function = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: caller, namespace: test}}\nspec:\n  command: [\"{}\"]\n  \
         workingDirectory: {}/public\n  isolation: strict\n  callees: [db, block, tls]\n  expose: [{{hosts: [\"*\"], path: /}}]\n",
        example("wire").display(),
        folder.path().display()
    );
    let tcp =
        |more: &str, protocol: &str, port: u16| format!("{more}\n  ports: [{{port: {port}, protocol: {protocol}}}]");
    let by_port = |name: &str, port: u16| {
        let rule = format!("{{name: caller, from: [{{identities: [caller]}}], to: [{{ports: [{port}]}}]}}");
        policy(name, name, &format!("  authorization: {{rules: [{rule}]}}"))
    };
    control.apply(
        &(function
            + &policy("in", "caller", ALLOW_ALL)
            + &external("db", &tcp("  hosts: [db.shop.example]\n  resolvesTo: [127.0.0.0/8]", "tcp", port))
            + &external("block", &tcp("  addresses: [127.0.0.0/8, 203.0.113.0/24]", "tcp", port))
            + &external("tls", &tcp("  hosts: [\"*.tls.example\"]\n  resolvesTo: [127.0.0.0/8]", "tls", tls_port))
            + &by_port("db", port)
            + &by_port("block", port)
            + &by_port("tls", tls_port)),
    );
    let request = |to: &str| gateway.get(&format!("/request/{to}/whatever"));
    let by_name = format!("db.shop.example:{port}");
    eventually("an answer", || request(&by_name).filter(|answer| answer.body.starts_with("HTTP/1.1 200")));
    let connections = server.connections();
    for refused in [format!("203.0.113.9:{port}"), format!("198.51.100.1:{port}"), "db.shop.example:1234".to_owned()] {
        let answer = request(&refused).unwrap();
        assert!(!answer.body.starts_with("HTTP/1.1 200"), "{refused}: {answer:?}");
    }
    assert_eq!(server.connections(), connections);
    let hello = |name: &str| gateway.get(&format!("/hello/api.tls.example:{tls_port}/{name}"));
    hello("api.tls.example");
    assert_eq!(secure.connections(), 1);
    hello("db.shop.example");
    assert_eq!(secure.connections(), 1, "another name does not get through");

    let carried = |flow: &Value| flow["kind"] == "connection" && flow["target"] == "test/db";
    let flow = eventually("its record", || flows(&exit).into_iter().find(carried));
    assert_eq!(
        (&flow["rule"], &flow["host"]),
        (&"db/authorization/caller".into(), &format!("127.0.0.1:{port}").into())
    );
    assert!(flow["sent"].as_u64().unwrap() > 10 && flow["received"].as_u64().unwrap() > 10, "{flow}");
    let flow = eventually("its record", || flows(&node).into_iter().find(carried));
    assert!(flow["rule"].is_null(), "its rules are elsewhere: {flow}");
    // The egress node connects to the address that the function called.
    let missed = |flow: &Value| flow["target"] == "test/block" && flow["reason"].to_string().contains("203.0.113.9");
    eventually("an address that nobody has", || flows(&exit).into_iter().find(missed));
}
