//! Machines that vanish without closing their connections, while a connection is silent or while
//! bytes are on their way. A network namespace stands for the other machine, which vanishes when
//! its link goes down.

use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::websocket::HANDSHAKE;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Switches protocols for each client, and then reads.
const SERVER: &str = r#"
import socket, sys, threading
listener = socket.create_server((sys.argv[1], 9000))
print("ready", flush=True)
def serve(stream):
    while not stream.recv(65536).endswith(b"\r\n\r\n"): pass
    stream.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    while stream.recv(65536): pass
while True: threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

/// Asks for a WebSocket, and then reads.
const CLIENT: &str = r#"
import socket, sys
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])))
stream.sendall(sys.argv[3].encode())
answer = b""
while b"\r\n\r\n" not in answer: answer += stream.recv(1)
print(answer.decode().splitlines()[0], flush=True)
while stream.recv(65536): pass
"#;

/// Another machine.
struct Machine {
    name: String,
    here: String,
    there: String,
    programs: Vec<Child>,
}

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

impl Machine {
    /// `None`: making one requires root.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let (name, net) = (format!("leno-vanish-{id}"), format!("10.213.{}", id % 256));
        let (here, there) = (format!("{net}.1"), format!("{net}.2"));
        if !ip(&format!("netns add {name}")) {
            return None;
        }
        let machine = Self { name, here, there, programs: Vec::new() };
        let Self { name, here, there, .. } = &machine;
        for arguments in [
            format!("link add lv{id} type veth peer name there netns {name}"),
            format!("addr add {here}/30 dev lv{id}"),
            format!("link set lv{id} up"),
            format!("-n {name} addr add {there}/30 dev there"),
            format!("-n {name} link set there up"),
        ] {
            assert!(ip(&arguments), "ip {arguments}");
        }
        Some(machine)
    }

    /// Runs a program on that machine, and waits for its first line.
    fn run(&mut self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "python3", "-c", program]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        self.programs.push(child);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line
    }

    fn vanish(&self) {
        assert!(ip(&format!("-n {} link set there down", self.name)));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        ip(&format!("netns del {}", self.name));
    }
}

/// An upstream on this machine that switches protocols. Counts the connections that have begun and
/// ended.
async fn near(writes: bool) -> (SocketAddr, Arc<[AtomicUsize; 2]>) {
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let counted = counts.clone();
    let address = raw::server(move |mut raw| {
        let counts = counted.clone();
        async move {
            raw.head().await;
            raw.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
            counts[0].fetch_add(1, Ordering::SeqCst);
            let (mut from, mut to) = raw.0.into_split();
            let mut piece = [0; 1024];
            if writes {
                while to.write_all(&piece).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            } else {
                while let Ok(1..) = from.read(&mut piece).await {}
            }
            counts[1].fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    (address, counts)
}

fn mesh(machine: &Machine, silent: SocketAddr, chatty: SocketAddr) -> Mesh {
    let far = format!("{}:9000", machine.there).parse().unwrap();
    let mut builder = Builder::new()
        .function("far", AppProtocol::Http1, far)
        .function("silent", AppProtocol::Http1, silent)
        .function("chatty", AppProtocol::Http1, chatty)
        .limits(|limits| limits.upstream.tcp_keep_alive = Duration::from_secs(1));
    builder.mesh.gateway_http = Some(format!("{}:0", machine.here).parse().unwrap());
    builder.start()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_with_a_machine_that_vanished_end_on_both_sides() {
    let Some(mut machine) = Machine::new() else {
        eprintln!("SKIPPED: only root may make a network namespace");
        return;
    };
    let ((silent, of_silent), (chatty, of_chatty)) = (near(false).await, near(true).await);
    let mesh = mesh(&machine, silent, chatty);
    let handshake = |host| format!("GET / HTTP/1.1\r\n{}\r\n", HANDSHAKE.replace("callee", host));
    // Clients on that machine, of functions on this one.
    let gateway = (machine.here.clone(), mesh.gateway().port().to_string());
    for host in ["silent", "chatty"] {
        let line = machine.run(CLIENT, &[&gateway.0, &gateway.1, &handshake(host)]);
        assert!(line.starts_with("HTTP/1.1 101 "), "{host}: {line}");
    }
    eventually_async("both connections to be closed", || {
        of_silent[0].load(Ordering::SeqCst) == 1 && of_chatty[0].load(Ordering::SeqCst) == 1
    })
    .await;
    // A function on that machine, with clients on this one.
    let there = machine.there.clone();
    assert_eq!(machine.run(SERVER, &[&there]).trim(), "ready");
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::connect(mesh.gateway()).await;
        raw.send(handshake("far")).await;
        assert_eq!(raw::status(&raw.head().await), 101);
        clients.push(raw);
    }
    machine.vanish();
    let (quiet, talking) = (clients.remove(0), clients.remove(0));
    let (mut from, mut to) = talking.0.into_split();
    let talk = async move {
        while to.write_all(&[0; 1024]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let read = async move {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all).await;
    };
    let ends = async { tokio::join!(quiet.rest(), talk, read) };
    tokio::time::timeout(raw::TIMEOUT * 2, ends)
        .await
        .expect("connections with a function that vanished are still open");
    let are_over = || of_silent[1].load(Ordering::SeqCst) == 1 && of_chatty[1].load(Ordering::SeqCst) == 1;
    tokio::time::timeout(raw::TIMEOUT * 2, async {
        while !are_over() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("connections of clients that vanished are still open");
}
