//! Open exchanges of a removed function drain where their callers are still permitted, and are closed otherwise.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A server whose responses do not end: events, or frames of a WebSocket.
fn endless() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

fn serve(mut stream: TcpStream) {
    let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
    let upgrades = head.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty());
    let upgrades = upgrades.filter(|line| line.to_ascii_lowercase().starts_with("upgrade:")).count() > 0;
    let (head, event): (&str, &[u8]) = match upgrades {
        // The response to the key of RFC 6455, 1.3.
        true => (
            "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
            b"\x81\x05event",
        ),
        false => ("200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked", b"7\r\nevent\n\n\r\n"),
    };
    if stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).is_err() {
        return;
    }
    while stream.write_all(event).is_ok() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

const WEBSOCKET: &str = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
                         dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// A client's end of an exchange that does not end by itself.
struct Open(TcpStream);

impl Open {
    fn new(mesh: &Mesh, host: &str, headers: &str) -> Self {
        let mut open = Self::sent(mesh, host, "/", headers);
        open.event();
        open
    }

    /// A request; returns without waiting for the response.
    fn sent(mesh: &Mesh, host: &str, path: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", mesh.ports.gateway)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n").unwrap();
        Self(stream)
    }

    fn websocket(mesh: &Mesh, host: &str) -> Self {
        Self::new(mesh, host, WEBSOCKET)
    }

    /// Waits for another event.
    fn event(&mut self) {
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(b"event") {
            assert!(self.0.read(&mut byte).unwrap() > 0, "it has ended: {}", String::from_utf8_lossy(&read));
            read.push(byte[0]);
        }
    }

    /// Waits until the mesh closes it. Returns the last bytes.
    fn end(&mut self) -> Vec<u8> {
        let mut last = Vec::new();
        // A reset is an end too.
        let _ = self.0.read_to_end(&mut last).map_err(|error| assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock));
        last
    }
}

/// A function at the endless server. `BY_LABEL` selects those with a label.
fn external(name: &str, label: &str, port: u16) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test, labels: {{{label}}}}}\n\
         spec:\n  external: {{addresses: [\"127.0.0.1:{port}\"]}}\n  timeouts: {{request: 0s}}\n  \
         expose: [{{hosts: [{name}.example], path: /}}]\n"
    )
}

const LABEL: &str = "open: everybody";

/// A policy that selects functions by label.
fn by_label() -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: all, namespace: test}}\nspec:\n  selector: {{{LABEL}}}\n{ALLOW_ALL}\n"
    )
}

#[test]
fn what_is_open_of_a_removed_function_ends_within_the_drain_timeout() {
    let port = endless();
    let stays = external("stays", LABEL, port) + &by_label();
    let documents = external("events", LABEL, port) + &stays;
    let mut mesh = Mesh::start_with("  limits: {drainTimeout: 2s}\n", &documents);
    let mut events = Open::new(&mesh, "events.example", "");
    let mut websocket = Open::websocket(&mesh, "events.example");
    let mut other = Open::new(&mesh, "stays.example", "");
    mesh.write(&stays);
    assert!(!events.end().ends_with(b"0\r\n\r\n"), "it looks complete");
    let last = websocket.end();
    let closes = |part: &[u8]| part[0] == 0x88 && part[2..] == 1012_u16.to_be_bytes();
    assert!(last.windows(4).any(closes), "no close frame with 1012: {last:?}");
    for line in mesh.log_lines("target", "test/events", 2) {
        assert_eq!(line["flags"], "UAEX", "{line}");
        assert!(line.to_string().contains("was removed"), "{line}");
    }
    other.event();
}

#[test]
fn what_is_open_is_closed_with_the_permission_though_the_function_goes_too() {
    let port = endless();
    let stays = external("stays", "", port) + &policy("stays-open", "stays", ALLOW_ALL);
    let labelled = external("labelled", LABEL, port) + &by_label();
    let events = external("events", "", port) + &policy("events-open", "events", ALLOW_ALL);
    let documents = format!("{stays}{labelled}{events}{}", external("drains", LABEL, port));
    // Longer than any test waits.
    let mesh = Mesh::start_with("  limits: {drainTimeout: 10m}\n", &documents);
    let mut open = Open::new(&mesh, "events.example", "");
    let mut websocket = Open::websocket(&mesh, "events.example");
    let mut drains = Open::new(&mesh, "drains.example", "");
    // The change removes one function with its policy, and another without.
    mesh.write(&format!("{stays}{labelled}"));
    open.end();
    websocket.end();
    drains.event();
    // Now the policy that permitted the other one's callers is removed too.
    mesh.write(&stays);
    drains.end();
}

#[test]
fn what_is_open_of_a_command_is_closed_with_the_permission_too() {
    let exposed = |name: &str| {
        let spec =
            format!("  callees: []\n  timeouts: {{request: 0s}}\n  expose: [{{hosts: [{name}.example], path: /}}]");
        echo_function(name, &spec) + &policy(&format!("{name}-open"), name, ALLOW_ALL)
    };
    let stays = exposed("stays");
    let mut mesh = Mesh::start_with("  limits: {drainTimeout: 10m}\n", &format!("{stays}{}", exposed("gone")));
    let opened = |mesh: &Mesh, host: &str| {
        let mut echoing = Open::sent(mesh, host, "/websocket", WEBSOCKET);
        // A text of five bytes, masked with zeros.
        echoing.0.write_all(b"\x81\x85\0\0\0\0event").unwrap();
        echoing.event();
        echoing
    };
    let (mut websocket, mut other) = (opened(&mesh, "gone.example"), opened(&mesh, "stays.example"));
    let mut waiting = Open::sent(&mesh, "gone.example", "/slow/600000", "connection: close\r\n");
    mesh.wait_for("the request to be handled", |mesh| mesh.output().iter().any(|line| line.contains("pausing")));
    mesh.write(&stays);
    let refused = String::from_utf8(waiting.end()).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    websocket.end();
    other.0.write_all(b"\x81\x85\0\0\0\0event").unwrap();
    other.event();
    mesh.wait_for("its instance to end", |mesh| mesh.instances("test/gone").is_empty());
}
