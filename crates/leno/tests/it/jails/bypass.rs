//! Attempts to bypass the mesh, in jails and without.

use super::{attempt, neighbours, start};
use leno_testkit::mesh::Mesh;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Whether the kernel intercepts calls to every port here: root may load programs into the kernel.
fn every_port() -> bool {
    rustix::process::geteuid().is_root()
}

struct Way<'a> {
    what: &'a str,
    way: &'a str,
    arguments: Vec<String>,
    /// The start of the outcome without a jail.
    open: &'a str,
    /// The start of the outcome in a jail.
    closed: &'a str,
}

/// Makes all attempts. `ways` gets the mesh, and the process ID and port of the victim.
fn try_all(isolation: &str, ways: impl FnOnce(&Mesh, &str, u16) -> Vec<Way<'static>>) {
    let mut mesh = start(isolation, &neighbours());
    let mut victim = None;
    mesh.wait_for("the victim", |mesh| {
        let found = mesh.instances("test/victim").into_iter().find(|instance| instance["state"] == "ready");
        victim = found.and_then(|row| {
            let port = row["address"].as_str()?.rsplit_once(':')?.1.parse().ok()?;
            Some((row["pid"].as_u64()?.to_string(), port))
        });
        victim.is_some()
    });
    let (pid, port) = victim.unwrap();
    let mut wrong = Vec::new();
    for Way { what, way, arguments, open, closed } in ways(&mesh, &pid, port) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let outcome = attempt(&mesh, way, &arguments);
        let expected = if isolation == "process" { open } else { closed };
        if !outcome.starts_with(expected) {
            wrong.push(format!("{what}: expected `{expected}…`, got `{outcome}`"));
        }
    }
    assert!(wrong.is_empty(), "isolation: {isolation}\n{}", wrong.join("\n"));
    for instance in mesh.instances("test/intruder") {
        assert_eq!(instance["isolation"], isolation);
    }
}

fn ways_around(isolation: &str) {
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagrams_at = datagrams.local_addr().unwrap().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listens_at = listener.local_addr().unwrap().to_string();
    let name = format!("leno-test-{isolation}-{}", std::process::id());
    let _unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    std::thread::spawn(move || {
        let mut question = [0; 16];
        while let Ok((length, from)) = datagrams.recv_from(&mut question) {
            let _ = datagrams.send_to(&question[..length], from);
        }
    });
    try_all(isolation, |mesh, pid, port| {
        let secret = mesh.folder.path().join("secret").display().to_string();
        let written = mesh.folder.path().join("public/written").display().to_string();
        let way = |what, way, arguments: &[&str], open, closed| Way {
            what,
            way,
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            open,
            closed,
        };
        vec![
            way("another's port", "connect", &[&format!("127.0.0.1:{port}")], "done", "refused"),
            way("a server of the machine", "connect", &[&listens_at], "done", "refused"),
            way(
                "the node's outbound listener",
                "connect",
                &[&format!("127.0.0.1:{}", mesh.ports.outbound)],
                "done",
                "refused",
            ),
            way(
                "the admin socket",
                "list",
                &[&mesh.folder.path().display().to_string()],
                "done: access.log",
                "done: public",
            ),
            way("another's environment", "read", &[&format!("/proc/{pid}/environ")], "done", "refused"),
            way("another's memory", "trace", &[pid], "done", "killed"),
            way("a signal", "signal", &[pid], "done", "refused: ESRCH"),
            way("another's process", "list", &[&format!("/proc/{pid}")], "done", "refused"),
            way("a raw socket", "raw", &[], "done", "refused: EPERM"),
            way("a packet socket", "packet", &[], "done", "refused: EAFNOSUPPORT"),
            way("a multipath socket", "multipath", &[], "", "refused: Protocol not supported"),
            way("splice(2)", "splice", &[], "done: 5 bytes", "refused: EINVAL"),
            way("a socket to the host", "vsock", &[], "", "refused: EAFNOSUPPORT"),
            way("a namespace of its own", "namespace", &[], "done", "refused: EPERM"),
            way("a file of the node", "read", &[&secret], "done: for the node", "refused"),
            way("a change of its program's folder", "write", &[&written], "done", "refused: Read-only"),
            way("a file for everybody", "read", &["readme"], "done: for everybody", "done: for everybody"),
            way("an abstract socket", "abstract", &[&name], "done", "refused"),
            way("a datagram", "udp", &[&datagrams_at], "done: hello", "refused"),
            way("a datagram to anywhere", "udp", &["192.0.2.1:53"], "", "refused"),
            way("a name that says something", "resolve", &["c2VjcmV0.tunnel.example"], "", "refused"),
            way("a host that is not among its callees", "call", &["victim"], "", "refused"),
            way("the same by a callee's address", "http", &["friend:80", "victim"], "", "done: HTTP/1.1 403"),
            way("a host of the internet", "http", &["friend:80", "example.com"], "", "done: HTTP/1.1 403"),
            way("an address of the internet", "http", &["192.0.2.1:80", "example.com"], "", "refused"),
            way("nobody's address", "http", &["100.100.0.1:80", "friend"], "", "refused"),
            // ClientHello, and the first message of a PostgreSQL client.
            way("TLS of its own", "talk", &["192.0.2.1:443", "22,3,1,0,5,1,0,0,1,3"], "", "refused"),
            way(
                "another protocol",
                "talk",
                &["friend:5432", "0,0,0,8,4,210,22,47"],
                "",
                if every_port() { "done: HTTP/1.1 400" } else { "refused" },
            ),
            way("a callee", "call", &["friend"], "", "done: HTTP/1.1 200"),
            way(
                "a callee at any port",
                "http",
                &["friend:8080", "friend:8080"],
                "",
                if every_port() { "done: HTTP/1.1 200" } else { "refused" },
            ),
            way("the same as another", "spoof", &["100.64.0.9:0", "friend:80", "victim"], "", "done: HTTP/1.1 403"),
            way(
                "a share of the node's port",
                "share",
                &[&format!("127.0.0.1:{}", mesh.ports.outbound)],
                "refused",
                "done: nobody came",
            ),
            way("a port of the mesh", "listen", &["0.0.0.0:80"], "", "refused"),
        ]
    });
}

#[test]
fn a_jail_closes_the_ways_around_the_mesh() {
    ways_around("strict");
}

#[test]
fn without_a_jail_they_are_open() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may do all that a jail keeps from doing");
        return;
    }
    ways_around("process");
}
