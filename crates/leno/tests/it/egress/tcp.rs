//! Connections to external services that are not HTTP.

use super::HERE;
use crate::outside::{Answer, Names, Server, external};
use leno_testkit::free_port;
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{self, Mesh, example, policy, public_folder};
use serde_json::Value;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn connections_that_are_no_http_go_out_by_name_and_by_address() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let (names, authority) = (Names::start(), CertificateAuthority::default());
    let server = Server::http("127.0.0.1:0");
    let secure = Server::https("127.0.0.1:0", &authority, &["api.tls.example"], None);
    let (port, tls_port) = (server.port(), secure.port());
    names.set("db.shop.example", Answer::Addresses(vec![HERE], 60));
    names.set("api.tls.example", Answer::Addresses(vec![HERE], 60));
    let function = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: caller, namespace: test}}\nspec:\n  command: [\"{}\"]\n  \
         workingDirectory: public\n  callees: [db, block, tls]\n  expose: [{{hosts: [\"*\"], path: /}}]\n",
        example("wire").display()
    );
    let tcp =
        |more: &str, protocol: &str, port: u16| format!("{more}\n  ports: [{{port: {port}, protocol: {protocol}}}]");
    let by_port = |name: &str, port: u16| {
        policy(
            name,
            name,
            &format!(
                "  authorization: {{rules: [{{name: caller, from: [{{identities: [caller]}}], to: [{{ports: [{port}]}}]}}]}}\n  \
                 circuitBreaker: {{maxConnections: 1}}"
            ),
        )
    };
    let documents = function
        + &policy("in", "caller", mesh::ALLOW_ALL)
        + &external("db", &tcp("  hosts: [db.shop.example]\n  resolvesTo: [127.0.0.0/8]", "tcp", port))
        + &external("block", &tcp("  addresses: [127.0.0.0/8, 203.0.113.0/24]", "tcp", port))
        + &external("tls", &tcp("  hosts: [\"*.tls.example\"]\n  resolvesTo: [127.0.0.0/8]", "tls", tls_port))
        + &by_port("db", port)
        + &by_port("block", port)
        + &policy(
            "tls",
            "tls",
            &format!(
                "  authorization: {{rules: [{{name: not-admin, action: deny, to: [{{hosts: [admin.tls.example]}}]}}, \
                 {{name: caller, from: [{{identities: [caller]}}], to: [{{ports: [{tls_port}]}}]}}]}}"
            ),
        );
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mesh_fields = format!("  instances: {{isolation: strict, accounts: node}}\n{}", names.mesh());
    let mut mesh = Mesh::start_with_command(leno, &mesh_fields, &documents, public_folder);

    let request = |mesh: &Mesh, to: &str| mesh.get(&format!("/request/{to}/whatever"));
    let answer = request(&mesh, &format!("db.shop.example:{port}"));
    assert!(answer.body.starts_with("HTTP/1.1 200"), "what a port is, its External says: {answer:?}");
    assert_eq!(server.connections(), 1);
    // The loopback interface of a jail is not the machine's.
    let refused = request(&mesh, &format!("127.0.0.1:{port}"));
    assert_eq!(refused.status, 502, "{refused:?}");
    assert_eq!(server.connections(), 1);
    // An address of the block without a server, an address outside of the block, and another port.
    for (to, why) in [
        (format!("203.0.113.9:{port}"), "no connection to 203.0.113.9"),
        (format!("198.51.100.1:{port}"), "no function that it may call has this address"),
        ("db.shop.example:1234".to_owned(), ""),
    ] {
        assert_ne!(request(&mesh, &to).body.get(..12), Some("HTTP/1.1 200"), "{to}");
        if !why.is_empty() {
            let host = to.clone();
            mesh.wait_for(why, |mesh| {
                let output = mesh.leno(&["observe", "--json", "--last", "1000", "--kind", "connection"]);
                let text = String::from_utf8(output.stdout).unwrap();
                text.lines().any(|line| line.contains(&host) && line.contains(why))
            });
        }
    }
    assert_eq!(server.connections(), 1);

    // TLS that begins in the function: the rule matches the server name that it sends.
    let hello = |name: &str| mesh.get(&format!("/hello/api.tls.example:{tls_port}/{name}")).body;
    let _ = hello("api.tls.example");
    assert_eq!(secure.connections(), 1);
    let _ = hello("db.shop.example");
    let _ = hello("a.b.tls.example");
    let _ = hello("admin.tls.example");
    assert_eq!(secure.connections(), 1, "another name does not get through");

    let output = mesh.leno(&["observe", "--json", "--last", "1000", "--kind", "connection"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let db = rows.iter().find(|row| row["target"] == "test/db" && row["verdict"] == "allow").expect("it is recorded");
    let admin = rows.iter().find(|row| row["rule"] == "tls/authorization/not-admin").expect("a rule about its name");
    assert_eq!(admin["verdict"], "deny");
    assert_eq!(db["rule"], "db/authorization/caller");
    assert!(db["sent"].as_u64().unwrap() > 10 && db["received"].as_u64().unwrap() > 10, "{db}");
}

/// A Redis server outside the mesh.
struct Redis(Child, u16);

impl Redis {
    fn start() -> Self {
        let free = free_port();
        let arguments = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"];
        let child = Command::new("redis-server")
            .args(arguments)
            .arg(free.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (make setup)");
        let redis = Self(child, free);
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", free)).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "redis-server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn databases_inside_and_outside_are_called_by_those_who_may() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let (names, outside) = (Names::start(), Redis::start());
    names.set("redis.shop.example", Answer::Addresses(vec![HERE], 60));
    let port = outside.1;
    let function = |name: &str, command: &str, spec: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: [{command}]\n  \
             workingDirectory: public\n{spec}\n"
        )
    };
    let wire = format!("\"{}\"", example("wire").display());
    let by = |caller: &str, name: &str, port: u16| {
        policy(
            name,
            name,
            &format!(
                "  authorization: {{rules: [{{name: {caller}, from: [{{identities: [{caller}]}}], to: [{{ports: [{port}]}}]}}]}}\n  \
                 circuitBreaker: {{maxConnections: 2}}"
            ),
        )
    };
    let documents = function("cart", &wire, "  callees: [cache, redis]\n  expose: [{hosts: [\"*\"], path: /}]")
        + &function("other", &wire, "  callees: [cache, redis]\n  expose: [{hosts: [other.example], path: /}]")
        + &function(
            "cache",
            "redis-server, --save, \"\", --appendonly, \"no\", --protected-mode, \"no\", --port, \"6379\"",
            "  port: 6379\n  ports: [{port: 6379}]",
        )
        + &external(
            "redis",
            &format!(
                "  hosts: [redis.shop.example]\n  resolvesTo: [127.0.0.1]\n  ports: [{{port: {port}, protocol: tcp}}]"
            ),
        )
        + &policy("in", "cart", mesh::ALLOW_ALL)
        + &policy("also", "other", mesh::ALLOW_ALL)
        + &by("cart", "cache", 6379)
        + &by("cart", "redis", port);
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let fields = format!("  instances: {{isolation: strict, accounts: node}}\n{}", names.mesh());
    let mut mesh = Mesh::start_with_command(leno, &fields, &documents, public_folder);
    let other = ["--header", "host: other.example"];
    for (at, target) in [("cache:6379".to_owned(), "test/cache"), (format!("redis.shop.example:{port}"), "test/redis")]
    {
        let say = |command: &str| mesh.get(&format!("/line/{at}/{command}")).body;
        assert_eq!(say("SET+items+7"), "+OK\r\n");
        assert_eq!(say("INCR+items"), ":8\r\n");
        let refused = mesh.curl(&format!("/line/{at}/GET+items"), &other);
        assert_ne!(refused.body, "$1\r\n", "no rule allows {target} to the other one");
        let mut rows: Vec<Value> = Vec::new();
        mesh.wait_for("the connections", |mesh| {
            let output = mesh.leno(&["observe", "--json", "--last", "1000", "--kind", "connection"]);
            let text = String::from_utf8(output.stdout).unwrap();
            rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            rows.retain(|row: &Value| row["target"] == target);
            rows.len() >= 3
        });
        let allowed: Vec<&Value> = rows.iter().filter(|row| row["verdict"] == "allow").collect();
        assert_eq!(allowed.len(), 2, "{rows:#?}");
        assert_eq!((&allowed[0]["sent"], &allowed[0]["received"]), (&13.into(), &5.into()), "{rows:#?}");
        assert!(allowed[0]["source"].as_str().unwrap().starts_with("test/cart"), "{rows:#?}");
        assert!(rows.iter().any(|row| row["verdict"] == "deny"), "{rows:#?}");
        let name = target.trim_start_matches("test/");
        let labels = format!(
            "reporter=\"source\",source_workload=\"cart\",source_workload_namespace=\"test\",destination_workload=\"{name}\",\
             destination_workload_namespace=\"test\""
        );
        let closed = format!("istio_tcp_connections_closed_total{{{labels}}} 2");
        let sent = format!("istio_tcp_received_bytes_total{{{labels}}} 25");
        mesh.metrics(&[&closed, &sent]);
        // A third connection is one too many.
        let hold = |from: &[&str]| mesh.curl(&format!("/keep/{at}"), from).body;
        assert_eq!((hold(&[]), hold(&[])), ("kept".to_owned(), "kept".to_owned()));
        let third = mesh.get(&format!("/line/{at}/PING")).body;
        assert_ne!(third, "+PONG\r\n", "the circuit breaker allows two");
        assert_eq!(mesh.get("/release").body, "released");
        mesh.wait_for("the connections to end", |mesh| mesh.get(&format!("/line/{at}/PING")).body == "+PONG\r\n");
    }
}
