use super::*;
use serde_json::json;
use std::time::Instant;

fn counts(
    node: &str,
    direction: &str,
    (source, target): (&str, &str),
    (requests, denied, failed): (u64, u64, u64),
) -> Counts {
    let source = match source.split_once('/') {
        Some((namespace, name)) => format!("spiffe://mesh.example/ns/{namespace}/sa/{name}"),
        None => source.to_owned(),
    };
    Counts {
        node: node.to_owned(),
        direction: direction.to_owned(),
        source,
        target: target.to_owned(),
        requests,
        denied,
        failed,
        duration_ms: 3.0 * requests as f64,
        durations: Vec::new(),
        latencies: Latencies::of_ms((denied..requests).map(|_| 3.0)),
    }
}

fn mesh(seconds: u64, start: Instant, edges: Vec<Counts>) -> Mesh {
    let functions = json!([
        {"function": "shop/web", "state": "ready", "reason": null, "callees": ["shop/cart", "shop/pay"], "exposed": true},
        {"function": "shop/cart", "state": "failed", "reason": "exits with 1", "callees": [], "exposed": false},
        {"function": "shop/pay", "external": true, "callees": []},
    ]);
    let functions = serde_json::from_value(functions).unwrap();
    Mesh { at: start + Duration::from_secs(seconds), functions, edges, refusals: Vec::new(), missing: Vec::new() }
}

fn edge<'a>(graph: &'a Graph, source: &str, target: &str) -> &'a Edge {
    graph.edges.iter().find(|edge| edge.source == source && edge.target == target).unwrap()
}

#[test]
fn an_edge_that_is_quiet_in_the_window_is_not_unused() {
    let start = Instant::now();
    let look = |at| {
        let passed = counts("a", "outbound", ("shop/web", "shop/cart"), (50, 1, 0));
        mesh(at, start, vec![passed, counts("a", "gateway", ("", "shop/web"), (9, 9, 0))])
    };
    let graph = Graph::between(Some(&look(0)), &look(10));
    let status = |source, target| (edge(&graph, source, target).status, edge(&graph, source, target).traffic.rate);
    assert_eq!(status("shop/web", "shop/cart"), (EdgeStatus::Active, 0.0));
    assert_eq!(status(GATEWAY, "shop/web"), (EdgeStatus::Refused, 0.0));
    assert_eq!(status("shop/web", "shop/pay"), (EdgeStatus::Unused, 0.0));
}

#[test]
fn a_refusal_by_the_callees_node_is_one_of_the_gateways_call() {
    let start = Instant::now();
    let look = mesh(
        0,
        start,
        vec![
            counts("edge", "gateway", ("", "shop/web"), (10, 0, 0)),
            counts("a", "inbound", ("", "shop/web"), (10, 4, 0)),
        ],
    );
    let arriving = edge(&Graph::between(None, &look), GATEWAY, "shop/web").traffic.clone();
    assert_eq!((arriving.rate, arriving.denied, arriving.success), (10.0, 4.0, Some(0.6)));
}

#[test]
fn rates_are_of_the_window_and_both_sides_of_a_call_count_once() {
    let start = Instant::now();
    let call = ("shop/web", "shop/cart");
    let before = vec![
        counts("a", "gateway", ("", "shop/web"), (100, 0, 0)),
        counts("a", "outbound", call, (50, 0, 0)),
        counts("b", "inbound", call, (50, 10, 0)),
    ];
    let after = vec![
        counts("a", "gateway", ("", "shop/web"), (140, 0, 4)),
        counts("a", "outbound", call, (60, 2, 1)),
        counts("b", "inbound", call, (58, 13, 0)),
    ];
    let graph = Graph::between(Some(&mesh(0, start, before)), &mesh(10, start, after));
    assert_eq!(graph.window, 10.0);
    let arriving = edge(&graph, GATEWAY, "shop/web");
    assert_eq!(
        (arriving.traffic.rate, arriving.traffic.failed, arriving.traffic.success, arriving.authenticated),
        (4.0, 0.4, Some(0.9), false)
    );
    let Edge { status, traffic: calls, authenticated, .. } = edge(&graph, "shop/web", "shop/cart");
    assert_eq!((calls.rate, calls.denied, calls.failed, authenticated), (1.0, 0.5, 0.1, &true));
    assert_eq!((status, calls.success), (&EdgeStatus::Active, Some(0.4)));
    for told in [calls.p50, calls.p99].map(Option::unwrap) {
        assert!((2.85..3.15).contains(&told), "{told}: 3 ms each");
    }
    let unused = edge(&graph, "shop/web", "shop/pay");
    assert_eq!((unused.status, unused.traffic.rate, unused.traffic.success), (EdgeStatus::Unused, 0.0, None));
    let names: Vec<_> = graph.nodes.iter().map(|node| (&*node.name, node.kind, &*node.state, &*node.failure)).collect();
    assert_eq!(
        names,
        [
            ("gateway", NodeKind::Gateway, "", ""),
            ("shop/cart", NodeKind::Function, "failed", "exits with 1"),
            ("shop/pay", NodeKind::External, "", ""),
            ("shop/web", NodeKind::Function, "ready", ""),
        ]
    );
}

#[test]
fn a_node_that_has_started_again_counts_from_zero() {
    let start = Instant::now();
    let call = ("", "shop/web");
    let (before, after) = (counts("a", "gateway", call, (1000, 0, 0)), counts("a", "gateway", call, (5, 0, 0)));
    let graph = Graph::between(Some(&mesh(0, start, vec![before])), &mesh(1, start, vec![after]));
    assert_eq!(edge(&graph, GATEWAY, "shop/web").traffic.rate, 5.0);
}

#[test]
fn what_is_tried_and_refused_is_told_from_what_is_permitted() {
    let start = Instant::now();
    let refused = json!([
        {"function": "shop/web", "asked": "request", "host": "evil.example", "port": 443, "callee": null, "count": 7, "methods": [], "paths": []},
        {"function": "shop/web", "asked": "name", "host": "evil.example", "port": null, "callee": null, "count": 9, "methods": [], "paths": []},
        {"function": "shop/web", "asked": "request", "host": "cart", "port": 80, "callee": "shop/cart", "count": 3, "methods": [], "paths": []},
        {"function": "shop/web", "asked": "name", "host": "jailed.example", "port": null, "callee": null, "count": 2, "methods": [], "paths": []},
    ]);
    let mut now = mesh(0, start, vec![counts("a", "outbound", ("shop/web", "shop/cart"), (3, 3, 0))]);
    now.refusals = serde_json::from_value(refused).unwrap();
    let graph = Graph::between(None, &now);
    assert_eq!(edge(&graph, "shop/web", "shop/cart").status, EdgeStatus::Refused);
    let tried = edge(&graph, "shop/web", "evil.example:443");
    assert_eq!((tried.status, tried.traffic.denied), (EdgeStatus::Refused, 7.0));
    let node = graph.nodes.iter().find(|node| node.name == "evil.example:443").unwrap();
    assert_eq!(node.kind, NodeKind::Unknown);
    assert_eq!(edge(&graph, "shop/web", "jailed.example").traffic.denied, 2.0, "a name that nothing followed");
    assert_eq!(graph.edges.len(), 5, "gateway, cart, pay, evil, jailed: {:?}", graph.edges);

    let part = graph.clone().around(|name| name == "shop/pay");
    assert_eq!(part.nodes.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["shop/pay", "shop/web"]);
    assert_eq!(part.edges.len(), 1);
}

#[test]
fn text_shows_each_edge_and_names_are_no_markup() {
    let start = Instant::now();
    let mut now = mesh(
        0,
        start,
        vec![
            counts("a", "gateway", ("", "shop/web"), (1000, 0, 1)),
            counts("a", "outbound", ("shop/web", "shop/cart"), (3, 3, 0)),
        ],
    );
    now.functions[1].callees.push("shop/web".to_owned());
    let graph = Graph::between(None, &now);
    let tree = "\
gateway
└─ shop/web  1000 requests, 99.9 % good, p50 3.0 ms, p99 3.0 ms
   ├─ shop/cart (failed)  refused, 3 requests
   │  └─ shop/web (above)  unused
   └─ shop/pay  unused
";
    assert_eq!(graph.tree(), tree);
    let dot = graph.dot();
    assert!(dot.contains(r#""shop/web" -> "shop/pay" [label="unused", style=dotted];"#), "{dot}");
    assert!(dot.contains(r#""shop/cart" [label="shop/cart (failed)"];"#), "{dot}");
    let mermaid = graph.mermaid();
    assert!(mermaid.contains("  n3 -.->|\"refused, 3 requests\"| n1\n"), "{mermaid}");

    let hostile = "x\"]; evil [label=\"<script>";
    now.functions.push(serde_json::from_value(json!({"function": hostile, "callees": ["shop/web"]})).unwrap());
    let graph = Graph::between(None, &now);
    assert!(!graph.mermaid().contains("\"]; evil"), "{}", graph.mermaid());
    assert!(graph.dot().contains(r#""x\"]; evil [label=\"<script>""#), "{}", graph.dot());
}

#[test]
fn chains_are_groups_and_revisions_have_their_shares() {
    let start = Instant::now();
    let calls = vec![
        counts("a", "gateway", ("", "shop/web"), (9, 0, 0)),
        counts("a", "outbound", ("shop/web", "shop/cart"), (9, 0, 0)),
    ];
    let mut now = mesh(0, start, calls);
    let chain = |to: &[&str]| Some(serde_json::from_value(json!({"name": "shop/all", "to": to})).unwrap());
    (now.functions[0].chain, now.functions[1].chain) = (chain(&["shop/cart"]), chain(&[]));
    let shares = json!([
        {"revision": "web-00001", "percent": 90, "served": 100},
        {"revision": "web-00002 (next)", "percent": 10, "served": 0},
    ]);
    now.functions[0].shares = serde_json::from_value(shares).unwrap();
    let graph = Graph::between(None, &now);
    let of = |name: &str| graph.nodes.iter().find(|node| node.name == name).unwrap();
    assert_eq!(["shop/web", "shop/cart", "shop/pay"].map(|name| &*of(name).chain), ["shop/all", "shop/all", ""]);
    let through = |source, target| &*edge(&graph, source, target).chain;
    assert_eq!(
        [through("shop/web", "shop/cart"), through("shop/web", "shop/pay"), through(GATEWAY, "shop/web")],
        ["shop/all", "", ""]
    );
    let shares = "web-00001 90 % serving 100 %, web-00002 (next) 10 % serving 0 %";
    let tree = graph.tree();
    assert!(tree.contains(&format!("└─ shop/web ({shares})  9 requests")), "{tree}");
    assert!(
        tree.contains("shop/cart (failed)  9 requests, 100.0 % good, p50 3.0 ms, p99 3.0 ms, chain shop/all\n"),
        "{tree}"
    );
    assert!(tree.ends_with("\nchain shop/all: shop/cart, shop/web\n"), "{tree}");
    let dot = graph.dot();
    assert!(dot.contains("subgraph cluster_0 { label=\"chain shop/all\"; \"shop/cart\"; \"shop/web\"; }"), "{dot}");
    assert!(dot.contains(&format!("[label=\"shop/web ({shares})\"]")), "{dot}");
    assert!(dot.contains("chain shop/all\", color=\"black:invis:black\"]"), "{dot}");
    let mermaid = graph.mermaid();
    assert!(mermaid.contains("  subgraph c0[\"chain shop/all\"]\n    n1\n    n3\n  end\n"), "{mermaid}");
    assert!(mermaid.contains("  n3 ==>|\"9 requests"), "{mermaid}");
    let json = json!(graph);
    assert_eq!((&json["nodes"][3]["chain"], &json["nodes"][3]["shares"][1]["served"]), (&"shop/all".into(), &0.into()));
    assert_eq!(json["edges"][1]["chain"], "shop/all");
}
