//! Bounds on the memory, descriptors and secrets that a node holds for its clients.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The number of different values that follow this text in the memory of a process; `None`: the
/// test may not read it.
fn found_in_memory(pid: u32, text: &str) -> Option<usize> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut numbers = std::collections::BTreeSet::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let mut at = start;
        let mut piece = vec![0; MIB as usize];
        while at < end {
            let length = (end - at).min(MIB) as usize;
            if memory.seek(SeekFrom::Start(at)).is_err() || memory.read_exact(&mut piece[..length]).is_err() {
                break;
            }
            // Most of the memory is zeros.
            let mut rest = &piece[..length];
            while let Some(position) = rest.iter().position(|byte| *byte == text.as_bytes()[0]) {
                rest = &rest[position..];
                if let Some(number) = rest.strip_prefix(text.as_bytes()) {
                    numbers.insert(number.get(..5).unwrap_or_default().to_vec());
                }
                rest = &rest[1..];
            }
            at += length as u64;
        }
    }
    Some(numbers.len())
}

/// A request on a connection that stays open; returns the status of the response.
fn ask(connection: &mut BufReader<TcpStream>, head: &str) -> u16 {
    connection.get_mut().write_all(head.as_bytes()).unwrap();
    let (mut status, mut length, mut line) = (0, 0, String::new());
    loop {
        line.clear();
        connection.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        match line.split_once(": ") {
            None if line.is_empty() => break,
            None => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).unwrap();
    status
}

#[test]
fn refused_requests_leave_neither_their_heads_nor_their_tokens_in_memory() {
    let mut mesh = Mesh::start(&echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]"));
    let gateway = ("127.0.0.1", mesh.ports.gateway);
    let padding = format!("x-padding: {}\r\n", "p".repeat(9_000)).repeat(3);
    let refused = |name: &str, count: usize| {
        let mut connection = BufReader::new(TcpStream::connect(gateway).unwrap());
        for number in 0..count {
            let head = format!(
                "GET /{number} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {name}{number:05}{}\r\n{padding}\r\n",
                "t".repeat(500)
            );
            assert_eq!(ask(&mut connection, &head), 403);
        }
    };
    refused("warm-up-", 300);
    let before = resident(mesh.pid());
    refused("secret-token-", 2500);
    mesh.log_lines("path", "/2499", 1);
    let grown = resident(mesh.pid()).saturating_sub(before);
    assert!(grown < 16 * MIB, "{} MiB more", grown / MIB);
    let found = found_in_memory(mesh.pid(), "secret-token-").expect("a child's memory may be read");
    println!("2500 requests: {} KiB more; {found} tokens are left in buffers of their connection", grown / 1024);
    assert!(found < 100, "{found} tokens are left");
}

#[test]
fn silent_connections_leave_descriptors_for_who_asks() {
    let documents = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]") + &policy("open", "echo", ALLOW_ALL);
    let mesh = Mesh::start_with_descriptors("-n 300", "", &documents);
    assert_eq!(mesh.get("/").status, 200);
    let connect = |_| TcpStream::connect(("127.0.0.1", mesh.ports.gateway)).unwrap();
    let silent: Vec<TcpStream> = (0..500).map(connect).collect();
    for _ in 0..20 {
        assert_eq!(mesh.get("/good").status, 200, "a good client");
        assert_eq!(mesh.admin("/healthz").status, 200, "health");
    }
    mesh.metrics(&["leno_connections_closed_total{listener=\"gateway\",bound=\"descriptors\"}"]);
    let told = mesh.output().iter().filter(|line| line.contains("there are too many connections")).count();
    assert!((1..10).contains(&told), "told {told} times");
    drop(silent);
}

/// A server that answers the first request of each connection with an oversized response, and
/// counts the bytes that it could send.
fn generous(count: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let count = count.clone();
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n");
                while let Ok(sent) = stream.write(&[b'x'; 16 * 1024]) {
                    count.fetch_add(sent as u64, Ordering::Relaxed);
                }
            });
        }
    });
    address
}

#[test]
fn who_reads_slowly_costs_little() {
    const READERS: u64 = 40;
    let sent = Arc::new(AtomicU64::new(0));
    let upstream = generous(sent.clone());
    let documents = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: big, namespace: test}}\nspec:\n  external: \
         {{addresses: [\"{upstream}\"]}}\n  expose: [{{hosts: [\"*\"], path: /}}]\n"
    ) + &policy("open", "big", ALLOW_ALL);
    let mesh = Mesh::start(&documents);
    let read_little = || {
        let mut stream = TcpStream::connect(("127.0.0.1", mesh.ports.gateway)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        stream
    };
    // Waits until nothing moves any more.
    let stalled = || {
        let (mut last, mut same) = (0, 0);
        while same < 5 {
            std::thread::sleep(Duration::from_millis(100));
            let now = sent.load(Ordering::Relaxed);
            (same, last) = (if now == last { same + 1 } else { 0 }, now);
        }
    };
    let first: Vec<TcpStream> = (0..4).map(|_| read_little()).collect();
    stalled();
    let before = resident(mesh.pid());
    let readers: Vec<TcpStream> = (0..READERS).map(|_| read_little()).collect();
    stalled();
    let each = resident(mesh.pid()).saturating_sub(before) / READERS;
    println!("a slow reader costs {} KiB", each / 1024);
    assert!(each < 224 * 1024, "{} KiB each", each / 1024);
    drop((first, readers));
}

#[test]
fn the_limit_that_the_node_raises_for_itself_is_not_its_instances() {
    let documents = echo_function("echo", "  scale: {min: 1}") + &policy("open", "echo", ALLOW_ALL);
    let mut mesh = Mesh::start_with_descriptors("-Sn 200", "", &documents);
    let soft = |pid: u32| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.to_owned();
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    assert!(soft(mesh.pid()).is_none_or(|limit| limit > 200), "the node has raised its own");
    mesh.wait_for("the instance", |mesh| {
        let pid = mesh.instances("test/echo").first().and_then(|instance| instance["pid"].as_u64());
        pid.and_then(|pid| soft(pid.try_into().unwrap())) == Some(200)
    });
}
