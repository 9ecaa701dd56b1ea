//! The dashboard's web server: sessions, refusals, answers and streams, at a node and at a control
//! plane.

use leno_testkit::browser::{Browser, OWN_REQUEST, control_with_page, events};
use leno_testkit::cluster::{Node, documents};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{Process, curl, eventually, leno_program};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};

/// A running `leno dashboard`.
struct Dashboard {
    _process: Process,
    /// The address of the page, and the one with the token.
    base: String,
    url: String,
}

impl Dashboard {
    fn start(mesh: &Mesh, arguments: &[&str]) -> Self {
        let mut command = Command::new(leno_program());
        command.args(["dashboard", "--no-open"]).args(arguments).stdin(Stdio::null());
        command.env("LENO_ADMIN", format!("unix:{}", mesh.socket().display()));
        let mut process = Process::spawn(&mut command).unwrap();
        let is_url = |line: &String| line.starts_with("http://127.0.0.1:");
        process.wait_until("its address", |process| process.lines().iter().any(is_url));
        let url = process.lines().into_iter().find(is_url).unwrap();
        let base = url.split_once('?').unwrap().0.to_owned();
        Self { _process: process, base, url }
    }

    /// A client that sends the session's cookie whichever host it names.
    fn open_for_any_host(&self) -> Browser {
        let opened = curl(&self.url, &[]);
        let pair = opened.header("set-cookie").unwrap().split(';').next().unwrap();
        Browser::new(&self.base, &["--header", &format!("cookie: other=1; {pair}")])
    }

    /// A browser that has opened the printed address.
    fn open(&self) -> Browser {
        let browser = Browser::new(&self.base, &[]);
        let opened = browser.open(&self.url);
        assert!(opened.status == 303 && opened.header("set-cookie").is_some(), "{opened:?}");
        browser
    }
}

/// `front`, which anyone may call, calls `back`, which refuses everything below `/secret`.
fn two_functions() -> Mesh {
    let rules = "  authorization: {rules: [{name: no-secrets, action: deny, to: [{paths: [\"/secret*\"]}]}, {name: rest, action: allow}]}";
    let front = echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [back]");
    Mesh::start(
        &(front + &echo_function("back", "") + &policy("open", "front", rules) + &policy("inner", "back", ALLOW_ALL)),
    )
}

#[test]
fn a_session_begins_with_a_token_that_is_valid_once() {
    let mesh = two_functions();
    let dashboard = Dashboard::start(&mesh, &[]);
    let stranger = Browser::new(&dashboard.base, &[]);
    for path in [
        "api/mesh",
        "api/graph",
        "api/functions",
        "api/functions/test/front",
        "api/requests/x",
        "api/stream?topics=graph",
    ] {
        let refused = stranger.ask(path, &[]);
        assert_eq!((refused.status, &refused.json()["sign_in"]), (401, &"command".into()), "{path}: {refused:?}");
    }
    assert_eq!(stranger.ask("?token=AAAA", &[]).header("set-cookie"), None);
    let browser = dashboard.open();
    let again = stranger.ask(&format!("?{}", dashboard.url.split_once('?').unwrap().1), &[]);
    assert_eq!((again.status, again.header("location"), again.header("set-cookie")), (303, Some("/"), None));
    assert_eq!(stranger.status("api/mesh", &[]), 401);

    let about = browser.json("api/mesh");
    assert_eq!((&about["mode"], &about["features"]["replay"]), (&"up".into(), &false.into()), "{about}");
    let page = browser.ask("", &[]);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")), "{page:?}");
    for answer in [page, browser.ask("api/mesh", &[]), stranger.ask("api/mesh", &[]), stranger.ask("nothing", &[])] {
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; ") && policy.contains("frame-ancestors 'none'")
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
    assert_eq!(browser.ask("api/mesh", &[]).header("cache-control"), Some("no-store"));

    assert_eq!(browser.status("session", &["--request", "DELETE"]), 403, "a form of another page can send this");
    assert_eq!(browser.status("session", &[&OWN_REQUEST[..], &["--request", "DELETE"]].concat()), 204);
    assert_eq!(browser.status("api/mesh", &[]), 401);
}

#[test]
fn a_cookie_is_for_its_page_alone() {
    let mesh = two_functions();
    let dashboard = Dashboard::start(&mesh, &["--base", "/mesh/ui"]);
    assert!(dashboard.base.ends_with("/mesh/ui/"), "{}", dashboard.base);
    let opened = curl(&dashboard.url, &[]);
    let cookie = opened.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("leno-dashboard-") && cookie.ends_with("; Path=/mesh/ui/; HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
    assert_eq!(opened.header("location"), Some("/mesh/ui/"));
    let pair = cookie.split(';').next().unwrap();
    let browser = Browser::new(&dashboard.base, &["--header", &format!("cookie: other=1; {pair}")]);
    assert_eq!(browser.json("api/mesh")["mode"], "up");
    let root = dashboard.base.strip_suffix("mesh/ui/").unwrap();
    assert_eq!(curl(root, &[]).status, 404);
    let without_slash = curl(&format!("{root}mesh/ui"), &[]);
    assert_eq!((without_slash.status, without_slash.header("location")), (308, Some("/mesh/ui/")));

    for (listen, base) in [("0.0.0.0:0", "/"), ("127.0.0.1:0", "/a b/")] {
        let refused = mesh.leno(&["dashboard", "--no-open", "--listen", listen, "--base", base]);
        let told = String::from_utf8(refused.stderr.clone()).unwrap();
        assert!(
            !refused.status.success() && (told.contains("no loopback address") || told.contains("a path such as")),
            "{told}"
        );
    }
}

#[test]
fn requests_of_other_pages_are_refused() {
    let mesh = two_functions();
    let dashboard = Dashboard::start(&mesh, &[]);
    let browser = dashboard.open_for_any_host();
    let port = dashboard.base.trim_end_matches('/').rsplit_once(':').unwrap().1;
    let status = |path: &str, fields: &[&str]| {
        let fields: Vec<&str> = fields.iter().flat_map(|field| ["--header", *field]).collect();
        browser.status(path, &fields)
    };
    for host in ["localhost", "LOCALHOST", "[::1]", "127.0.0.1", "127.1.2.3"] {
        assert_eq!(status("api/mesh", &[&format!("host: {host}:{port}")]), 200, "{host}");
    }
    for host in
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "localhost@evil.example"]
    {
        assert_eq!(status("api/mesh", &[&format!("host: {host}:{port}")]), 403, "{host}");
        assert_eq!(status("", &[&format!("host: {host}:{port}")]), 403, "{host}");
    }
    for site in ["cross-site", "same-site", "whatever"] {
        let field = format!("sec-fetch-site: {site}");
        assert_eq!((status("api/mesh", &[&field]), status("", &[&field])), (403, 200), "{site}");
    }
    assert_eq!(status("api/mesh", &["sec-fetch-site: same-origin"]), 200);
    let change = |fields: &[&str]| {
        let fields: Vec<&str> = fields.iter().flat_map(|field| ["--header", *field]).collect();
        browser.status("api/replay", &[&["--data-binary", r#"{"documents":""}"#], &fields[..]].concat())
    };
    let own = "x-leno-dashboard: 1";
    let origin = format!("origin: http://127.0.0.1:{port}");
    assert_eq!(change(&[own]), 404, "a node has no replay");
    assert_eq!(change(&[own, &origin]), 404);
    assert_eq!(change(&[own, "sec-fetch-site: same-origin"]), 404);
    for refused in [
        &[][..],
        &[&*origin],
        &[own, "origin: https://evil.example"],
        &[own, "origin: null"],
        &[own, "sec-fetch-site: cross-site"],
        &[own, "sec-fetch-site: none"],
    ] {
        assert_eq!(change(refused), 403, "{refused:?}");
    }
}

#[test]
fn the_graph_and_requests_arrive_as_they_happen() {
    let mesh = two_functions();
    let dashboard = Dashboard::start(&mesh, &[]);
    let browser = dashboard.open();
    let mut stream = browser.stream("topics=graph:60,flows,logs:test/front");
    let mut denials = browser.stream("topics=flows&verdict=deny&function=front");
    stream.wait_until("the first events", |stream| {
        !events(stream, "graph").is_empty() && !events(stream, "flows").is_empty()
    });
    stream.wait_until("the first lines", |stream| !events(stream, "logs").is_empty());
    denials.wait_until("the first events", |denials| !events(denials, "flows").is_empty());
    assert_eq!(mesh.get("/hello").status, 200);
    let denied = mesh.get("/secret");
    assert_eq!(denied.status, 403);
    let id = denied.header("x-request-id").unwrap();

    let flows = |stream: &Process| -> Vec<Value> {
        let batches = events(stream, "flows");
        batches.iter().flat_map(|batch| batch["flows"].as_array().unwrap().clone()).collect()
    };
    stream.wait_until("both requests", |stream| {
        flows(stream).iter().filter(|flow| flow["kind"] == "gateway").count() >= 2
    });
    denials.wait_until("the refusal", |denials| !flows(denials).is_empty());
    assert!(
        flows(&denials).iter().all(|flow| flow["request_id"] == id && flow["verdict"] == "deny"),
        "{:?}",
        flows(&denials)
    );
    let arriving = |graph: &Value| {
        let edges = graph["edges"].as_array().unwrap();
        edges.iter().find(|edge| edge["source"] == "gateway" && edge["target"] == "test/front").cloned()
    };
    stream.wait_until("the traffic", |stream| {
        let graphs = events(stream, "graph");
        graphs.iter().any(|graph| {
            let edge = arriving(graph).unwrap();
            graph["window"].as_f64() > Some(0.0)
                && edge["denied"].as_f64() > Some(0.0)
                && edge["rate"].as_f64() > edge["denied"].as_f64()
        })
    });
    let graph = browser.json("api/graph?window=0");
    assert_eq!(
        (arriving(&graph).unwrap()["denied"].as_f64(), graph["window"].as_f64()),
        (Some(1.0), Some(0.0)),
        "{graph}"
    );

    let hops = browser.json(&format!("api/requests/{id}"));
    assert!(hops["rows"].to_string().contains("no-secrets"), "{hops}");
    assert_eq!(browser.status("api/requests/unknown", &[]), 404);
    let function = browser.json("api/functions/test/front");
    assert_eq!(function["function"]["function"], "test/front", "{function}");
    assert_eq!(function["instances"][0]["function"], "test/front", "{function}");
    assert!(function["policies"]["inbound"].to_string().contains("no-secrets"), "{function}");
    assert!(function["limits"].is_array(), "{function}");
    assert!(function["certificate"]["identity"].as_str().unwrap().ends_with("/ns/test/sa/front"), "{function}");
    for listing in [
        "functions",
        "instances",
        "events",
        "nodes",
        "identities",
        "externals",
        "chains",
        "jobs",
        "namespaces",
        "limits",
        "changes",
    ] {
        assert!(browser.json(&format!("api/{listing}"))["rows"].is_array(), "{listing}");
    }
    for (path, expected) in [
        ("api/secrets", 404),
        ("api/functions/test/none", 404),
        ("api/functions/te%2Fst/a%20b", 400),
        ("api/requests/a%2Fb", 400),
        ("api/graph?window=7", 400),
        ("api/graph?window=x", 400),
        ("api/stream?topics=", 400),
        ("api/stream?topics=logs:..", 400),
        ("api/stream?topics=graph,graph,graph,graph,graph,graph,graph,graph", 400),
    ] {
        let refused = browser.ask(path, &[]);
        assert!(refused.status == expected && refused.json()["error"].is_string(), "{path}: {refused:?}");
    }

    // The stream ends with the session.
    assert_eq!(browser.status("session", &[&OWN_REQUEST[..], &["--request", "DELETE"]].concat()), 204);
    assert!(stream.wait().success());
    assert_eq!(events(&stream, "ended").len(), 1);
}

#[test]
fn what_pages_can_take_is_bounded() {
    let mesh = two_functions();
    let dashboard = Dashboard::start(&mesh, &[]);
    let browser = dashboard.open();
    let mut streams: Vec<Process> = (0..16).map(|_| browser.stream("topics=flows")).collect();
    for stream in &mut streams {
        stream.wait_until("the first events", |stream| !events(stream, "flows").is_empty());
    }
    assert_eq!(browser.status("api/stream?topics=flows", &[]), 429);
    streams.pop();
    eventually("the place of the closed one", || {
        let mut stream = browser.stream("topics=flows");
        eventually("an answer", || (!stream.output().is_empty()).then_some(()));
        (!events(&stream, "flows").is_empty() || {
            stream.wait();
            false
        })
        .then_some(())
    });
    let large = browser.folder().join("large");
    fs::write(&large, format!(r#"{{"documents":"{}"}}"#, "x".repeat(2 << 20))).unwrap();
    let body = format!("@{}", large.display());
    assert_eq!(browser.status("api/replay", &[&OWN_REQUEST[..], &["--data-binary", &body]].concat()), 413);
}

/// A control plane that serves the page, a gateway, and a node with the functions `front` and `back`.
fn mesh_with_page() -> (Control, Node, Node) {
    let control = control_with_page();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let node = Node::join(&control, "one", &[]);
    control.apply(&documents());
    eventually("an answer", || gateway.get("/hello").filter(|answer| answer.status == 200));
    (control, gateway, node)
}

/// A token of a namespace.
fn token(control: &Control, role: &str, namespace: &str) -> String {
    text(&control.leno(&["token", "create", "--role", role, "--namespace", namespace])).trim().to_owned()
}

#[test]
fn a_session_at_a_control_plane_has_the_rights_of_its_token() {
    let (control, gateway, _node) = mesh_with_page();
    let reader = token(&control, "reader", "test");
    let stranger = token(&control, "admin", "other");
    let refused = Browser::of(&control);
    assert_eq!(refused.ask("api/mesh", &[]).json()["sign_in"], "token");
    for bad in ["", "leno.x.y", &reader[1..], &format!("{reader}0")] {
        let answer = refused.sign_in(bad);
        assert!(answer.status == 401 && answer.header("set-cookie").is_none(), "{answer:?}");
    }
    let (own, other, admin) = (Browser::of(&control), Browser::of(&control), Browser::of(&control));
    let answer = own.sign_in(&reader);
    let cookie = answer.header("set-cookie").unwrap();
    assert!(
        answer.status == 204 && cookie.ends_with("; Path=/dashboard/; HttpOnly; SameSite=Strict; Secure"),
        "{cookie}"
    );
    assert_eq!((other.sign_in(&stranger).status, admin.sign_in(&control.token()).status), (204, 204));

    let about = own.json("api/mesh");
    assert_eq!(
        (&about["mode"], &about["role"], &about["namespaces"]),
        (&"control".into(), &"reader".into(), &json!(["test"]))
    );
    assert_eq!(admin.json("api/mesh")["namespaces"], Value::Null);
    let id = eventually("a request", || gateway.get("/hello")).header("x-request-id").unwrap().to_owned();
    let (mut seen, mut unseen) = (own.stream("topics=graph,flows"), other.stream("topics=graph,flows,logs:test/front"));
    seen.wait_until("the request", |stream| stream.output().contains(&id));
    unseen.wait_until("the first events", |stream| {
        ["graph", "flows", "problem"].iter().all(|kind| !events(stream, kind).is_empty())
    });
    for path in [
        "api/graph",
        "api/functions",
        "api/instances",
        "api/revisions",
        "api/events",
        "api/nodes",
        "api/identities",
        "api/jobs",
        "api/externals",
    ] {
        assert!(!other.json(path).to_string().contains("test/"), "{path}");
    }
    assert!(
        !unseen.output().contains("test/front\"")
            || events(&unseen, "problem").iter().all(|failure| failure.to_string().contains("namespace test"))
    );
    assert!(events(&unseen, "graph").iter().all(|graph| graph["nodes"] == json!([])), "{}", unseen.output());
    let whole = |browser: &Browser| browser.json("api/graph")["edges"].to_string();
    assert!(whole(&own).contains("test/back") && whole(&admin).contains("test/back"));
    for path in ["api/functions/test/front", &format!("api/requests/{id}")] {
        assert_eq!(
            (own.status(path, &[]), other.status(path, &[]), admin.status(path, &[])),
            (200, 404, 200),
            "{path}"
        );
    }
    assert_eq!(own.json("api/nodes")["rows"], json!([]), "nodes are of the whole mesh");
    assert_eq!(admin.json("api/nodes")["rows"][1]["node"], "one");
    let function = admin.json("api/functions/test/front");
    let documents: Vec<&str> = function["document"].as_str().unwrap().split("\n---\n").collect();
    assert!(
        documents[0].contains("name: front") && documents[1..].iter().any(|text| text.contains("name: open")),
        "{documents:?}"
    );
    assert!(function["policies"]["inbound"].is_array(), "{function}");
    let changes = |browser: &Browser| browser.json("api/changes")["rows"].to_string();
    assert!(changes(&own).contains("Function test/front") && !changes(&other).contains("test/"));

    // A change on recorded requests.
    let closed = json!({ "documents": policy("open", "front", "  authorization: {rules: []}") }).to_string();
    let replay = |browser: &Browser, body: &str| {
        browser.ask("api/replay", &[&OWN_REQUEST[..], &["--data-binary", body]].concat())
    };
    let replayed = replay(&admin, &closed);
    assert!(replayed.status == 200 && replayed.json()["replay"]["functions"].is_array(), "{replayed:?}");
    assert_eq!((replay(&own, &closed).status, replay(&other, &closed).status), (200, 403));
    let wrong = replay(&admin, r#"{"documents":"kind: Nonsense"}"#);
    assert!(wrong.status == 422 && wrong.json()["problems"].is_array(), "{wrong:?}");

    // The session ends with its token.
    let revoked = reader.split('.').nth(1).unwrap();
    assert!(control.leno(&["token", "revoke", revoked]).status.success());
    assert_eq!(own.status("api/mesh", &[]), 401);
    assert!(seen.wait().success());
    assert_eq!((events(&seen, "ended").len(), admin.status("api/mesh", &[])), (1, 200));

    // A token has sixteen sessions. Another one ends the one that is idle longest.
    let first = Browser::of(&control);
    assert_eq!(first.sign_in(&stranger).status, 204);
    assert_eq!(other.status("api/mesh", &[]), 200);
    for _ in 0..15 {
        assert_eq!(Browser::of(&control).sign_in(&stranger).status, 204);
    }
    assert_eq!(other.status("api/mesh", &[]), 200, "it was used after the first one");
    assert_eq!((first.status("api/mesh", &[]), admin.status("api/mesh", &[])), (401, 200));
}

#[test]
fn the_tokens_of_a_namespace_share_its_sessions_and_streams() {
    let control = control_with_page();
    let [first, second, third] = [(); 3].map(|()| token(&control, "admin", "test"));
    let signed_in = |token: &str| {
        let browser = Browser::of(&control);
        assert_eq!(browser.sign_in(token).status, 204);
        browser
    };
    let admin = signed_in(&control.token());
    let idle = signed_in(&first);
    let (seconds, thirds) = ([(); 16].map(|()| signed_in(&second)), [(); 16].map(|()| signed_in(&third)));
    assert_eq!((idle.status("api/mesh", &[]), admin.status("api/mesh", &[])), (401, 200), "a tenant has 32 sessions");
    let again = signed_in(&first);
    let mut streams: Vec<Process> = Vec::new();
    for browser in [&seconds[15], &thirds[15]] {
        streams.extend((0..16).map(|_| browser.stream("topics=flows")));
    }
    for stream in &mut streams {
        stream.wait_until("an event or comment", |stream| stream.output().starts_with([':', 'e']));
    }
    assert_eq!(again.status("api/stream?topics=flows", &[]), 429, "a tenant has 32 streams");
    let mut stream = admin.stream("topics=flows");
    stream.wait_until("an event or comment", |stream| stream.output().starts_with([':', 'e']));
}

#[test]
fn a_control_plane_serves_the_page_only_if_it_is_asked_to() {
    let control = leno_testkit::cluster::control();
    let browser = Browser::of(&control);
    assert_eq!((browser.status("", &[]), browser.sign_in(&control.token()).status), (404, 404));
    // The command works with its API all the same.
    let child = control.begin(&["dashboard", "--no-open"]);
    let mut dashboard = DashboardProcess(child);
    let url = dashboard.first_line();
    let browser = Browser::new(url.split_once('?').unwrap().0, &[]);
    assert_eq!(browser.ask(&format!("?{}", url.split_once('?').unwrap().1), &[]).status, 303);
    let about = browser.json("api/mesh");
    assert_eq!((&about["mode"], &about["role"]), (&"control".into(), &"admin".into()), "{about}");
    assert!(browser.json("api/graph")["nodes"].is_array());
}

/// A command that ends with the test.
struct DashboardProcess(std::process::Child);

impl DashboardProcess {
    fn first_line(&mut self) -> String {
        use std::io::{BufRead, BufReader};
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for DashboardProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
