//! Links with real processes at their ends.

mod channel;
mod hostile;
mod node;
mod serve;

use leno_sdk::{HeaderValue, StatusCode};
use leno_shm::{CallError, Domain, End, Link, SendError, Settings, Violations, socket};
use leno_testkit::eventually_async;
use node::{Function, Node, ask, call, pair, text, to};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// How functions handle their calls: each on a thread, or all on one.
const WAYS: [&str; 2] = ["", "serves"];

fn settings() -> Settings {
    Settings { within: PATIENCE, ..Settings::default() }
}

fn none(violations: &Violations) {
    assert_eq!(violations.total(), 0, "{violations:?}");
}

#[tokio::test]
async fn a_body_from_outside_is_copied_in_and_out_once() {
    let node = Node::new();
    let (_function, link) = node.start("echo", "", &settings()).await;
    let body = "a body".repeat(10_000);
    let mut head = to("echo", "/echo");
    head.headers.insert("x-field", HeaderValue::from_static("value"));
    let mut writer = link.writer(1 << 20).unwrap();
    body.as_bytes().chunks(7001).for_each(|chunk| writer.write(chunk).unwrap());
    let body_in = writer.commit();
    let answer = link.call(&head, body_in.as_ref(), None).unwrap().await.unwrap();
    assert_eq!((answer.head.status, &answer.head.headers["x-field"]), (StatusCode::OK, &head.headers["x-field"]));
    assert_eq!(text(answer.body.as_ref()), body);
    let counted = node.domain.statistics();
    let length = body.len() as u64;
    assert_eq!((counted.bytes_copied_in(), counted.bytes_copied_out()), (length, length));
    assert_eq!((counted.bytes_shared(), counted.heads_copied()), (0, 2));
    assert_eq!(text(answer.body.unwrap().part(2..6).as_ref()), "body");
    assert_eq!(call(&link, "/nothing", b"").await.unwrap().head.status, StatusCode::NOT_FOUND);
    assert_eq!(call(&link, "/fail", b"").await.unwrap_err(), CallError::Failed);
    none(link.violations());
}

/// The kernel's description of a function's own arena.
fn of_the_arena(function: &Function) -> String {
    let mappings = std::fs::read_to_string(format!("/proc/{}/smaps", function.0.id())).unwrap();
    let (_, own) = mappings.split_once("/memfd:leno-chain-instance").unwrap();
    own.split_once("VmFlags:").map(|(sizes, flags)| format!("{sizes}{}", flags.lines().next().unwrap())).unwrap()
}

#[tokio::test]
async fn the_kernel_is_asked_for_large_pages() {
    let node = Node::new();
    let (small, _link) = node.start("small", "", &settings()).await;
    let (large, link) = node.start("large", "", &Settings { large_pages: true, ..settings() }).await;
    let is_asked = |function| of_the_arena(function).split_whitespace().any(|word| word == "hg");
    assert_eq!((is_asked(&small), is_asked(&large)), (false, true));
    // The function writes a body of 100,000 bytes.
    assert_eq!(text(call(&link, "/same/large/echo", b"").await.unwrap().body.as_ref()), "true");
    match leno_shm::large_pages::check() {
        Ok(()) => assert!(of_the_arena(&large).contains("ShmemPmdMapped:     2048 kB"), "{}", of_the_arena(&large)),
        Err(reason) => eprintln!("SKIPPED: whether it gives them; here it gives {reason}"),
    }
}

#[tokio::test]
async fn functions_hand_over_bodies_where_they_are() {
    for mode in WAYS {
        let node = Node::new();
        let (_a, a) = node.start("a", mode, &settings()).await;
        let (_b, b) = node.start("b", mode, &settings()).await;
        let (_c, c) = node.start("c", mode, &settings()).await;
        // There and back: the answer is at the address at which the caller wrote the body.
        assert_eq!(text(call(&a, "/same/b/echo", b"").await.unwrap().body.as_ref()), "true");
        let counted = node.domain.statistics();
        assert_eq!((counted.handed_over(), counted.bytes_shared()), (2, 200_000));
        // A body passes around three functions.
        assert_eq!(text(call(&a, "/same/b/pass/c/pass/a/echo", b"").await.unwrap().body.as_ref()), "true");
        assert_eq!((counted.bytes_copied_in(), counted.bytes_shared()), (0, 800_000));
        // Parts of a body from outside the chain, which each function passes on to the next.
        assert_eq!(text(call(&a, "/pass/b/pass/c/middle", b"012345").await.unwrap().body.as_ref()), "1234");
        assert_eq!(counted.bytes_copied_in(), 6);
        for link in [a, b, c] {
            eventually_async("all is answered", || link.open_calls() == 0).await;
            none(link.violations());
        }
    }
}

#[tokio::test]
async fn a_call_is_forwarded() {
    let node = Node::new();
    let (_a, a) = node.start("a", "one", &settings()).await;
    let (_b, b) = node.start("b", "serves1", &settings()).await;
    let answer = call(&a, "/forward/b/forward/a/echo", b"passed on").await.unwrap();
    assert_eq!(text(answer.body.as_ref()), "passed on");
    assert_eq!(node.domain.statistics().bytes_copied_in(), 9);
    assert_eq!(call(&a, "/forward/b/fail", b"").await.unwrap_err(), CallError::Failed);
    assert_eq!(call(&a, "/forward/nobody/", b"").await.unwrap().head.status, StatusCode::NOT_FOUND);
    none(a.violations());
    none(b.violations());
}

#[tokio::test]
async fn many_calls_are_under_way_at_once() {
    for (mode, callers) in [("", 20), ("one", 1), ("serves", 10), ("both", 10)] {
        let node = Node::new();
        let (_a, a) = node.start("a", mode, &settings()).await;
        let (_b, b) = node.start("b", mode, &settings()).await;
        let body = [1; 60];
        let calls: Vec<_> = (0..callers).map(|_| ask(&a, "/spread/b/sum", &body).unwrap()).collect();
        for asked in calls {
            assert_eq!(text(asked.await.unwrap().body.as_ref()), (1..=60).sum::<u64>().to_string());
        }
        none(a.violations());
        none(b.violations());
    }
}

#[tokio::test]
async fn what_a_killed_function_holds_comes_back_and_what_it_wrote_stays() {
    for mode in WAYS {
        let node = Node::new();
        let settings = Settings { instance_arena: 1 << 20, ..settings() };
        let (_a, a) = node.start("a", mode, &settings).await;
        let (mut b, link_b) = node.start("b", mode, &settings).await;
        let kept = call(&link_b, "/length", b"12345").await.unwrap().body.unwrap();
        let waits = ask(&a, "/same/b/keep", b"").unwrap();
        eventually_async("b holds what a wrote", || link_b.open_calls() == 1).await;
        b.0.kill().unwrap();
        assert_eq!(link_b.ended().await, End::Closed);
        // The caller's call fails, so the caller fails in turn, and has its memory again.
        assert_eq!(waits.await.unwrap_err(), CallError::Failed);
        loop {
            match call(&a, "/take/900000", b"").await.unwrap().head.status {
                StatusCode::OK => break,
                status => assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE),
            }
        }
        assert_eq!(text(Some(&kept)), "5");
        assert_eq!(ask(&link_b, "/", b"x").map(drop), Err(SendError::Ended(End::Closed)));
        none(a.violations());
    }
}

#[tokio::test]
async fn an_arena_that_is_gone_is_forgotten() {
    for mode in WAYS {
        let node = Node::new();
        let (_a, a) = node.start("a", mode, &settings()).await;
        let (b, link_b) = node.start("b", mode, &settings()).await;
        assert_eq!(text(call(&link_b, "/same/a/echo", b"").await.unwrap().body.as_ref()), "true");
        assert_eq!(text(call(&a, "/arenas", b"").await.unwrap().body.as_ref()), "1");
        drop((b, link_b));
        node.start("b", mode, &settings()).await;
        while text(call(&a, "/arenas", b"").await.unwrap().body.as_ref()) != "0" {}
    }
}

#[tokio::test]
async fn a_full_arena_is_an_error_or_a_wait() {
    let settings = Settings { instance_arena: 128 << 10, ..settings() };
    for mode in ["", "waits"] {
        let node = Node::new();
        let (other, link_other) = node.start("echo", "", &settings).await;
        let (_a, a) = node.start("a", mode, &settings).await;
        // All memory comes back: this is many times the arena.
        assert_eq!(call(&a, "/many/200", b"").await.unwrap().head.status, StatusCode::OK);
        let holds = ask(&a, "/same/echo/keep", b"").unwrap();
        eventually_async("the other one holds it", || link_other.open_calls() == 1).await;
        let takes = ask(&a, "/take/100000", b"").unwrap();
        assert_eq!(call(&a, "/take/1000000", b"").await.unwrap().head.status, StatusCode::INSUFFICIENT_STORAGE);
        if mode == "waits" {
            drop(other);
            assert_eq!(holds.await.unwrap_err(), CallError::Failed);
            assert_eq!(takes.await.unwrap().head.status, StatusCode::OK);
        } else {
            assert_eq!(takes.await.unwrap().head.status, StatusCode::INSUFFICIENT_STORAGE);
        }
    }
}

#[tokio::test]
async fn a_cancelled_call_is_known_to_who_handles_it() {
    for mode in ["one", "serves1"] {
        let node = Node::new();
        let (_a, a) = node.start("a", "", &settings()).await;
        let (_b, b) = node.start("b", mode, &settings()).await;
        // Cancelled by the node.
        let asked = ask(&a, "/hang", b"body").unwrap();
        drop(asked);
        eventually_async("it is answered", || a.open_calls() == 0).await;
        // Cancelled by the caller.
        assert_eq!(call(&a, "/give-up/b/hang", b"").await.unwrap().head.status, StatusCode::OK);
        eventually_async("b has been called and has answered", || b.open_calls() == 0).await;
        assert_eq!(text(call(&b, "/length", b"123").await.unwrap().body.as_ref()), "3");
        // Cancelled before a thread has taken it.
        let hangs = ask(&b, "/hang", b"").unwrap();
        drop(ask(&b, "/keep", b"").unwrap());
        drop(hangs);
        eventually_async("both are answered", || b.open_calls() == 0).await;
        none(a.violations());
        none(b.violations());
    }
}

#[tokio::test]
async fn nothing_is_shown_to_another_chain() {
    let (node, other) = (Node::new(), Node::new());
    let (_a, a) = node.start("a", "", &settings()).await;
    let (_b, b) = other.start("b", "", &settings()).await;
    assert_ne!(Domain::new("test"), node.domain);
    let body = call(&a, "/length", b"12345").await.unwrap().body.unwrap();
    let refused = b.call(&to("b", "/sum"), Some(&body), None).map(drop);
    assert_eq!(refused, Err(SendError::OtherDomain));
    assert_eq!(b.open_calls(), 0);
}

#[tokio::test]
async fn there_are_bounds() {
    let node = Node::new();
    let small = Settings { open_calls: 2, held_bytes: 1000, node_arena: 64 << 10, head: 200, ..settings() };
    let (_a, a) = node.start("a", "", &small).await;
    assert!(matches!(a.writer(1 << 20), Err(full) if full.0 == 1 << 20));
    assert_eq!(ask(&a, "/keep", &[0; 1001]).map(drop), Err(SendError::HoldsTooMuch));
    let long = format!("/{}", "a".repeat(200));
    assert_eq!(ask(&a, &long, b"").map(drop), Err(SendError::Head(200)));
    let _first = ask(&a, "/keep", &[0; 600]).unwrap();
    assert_eq!(ask(&a, "/keep", &[0; 600]).map(drop), Err(SendError::HoldsTooMuch));
    let _second = ask(&a, "/keep", &[0; 400]).unwrap();
    assert_eq!(ask(&a, "/keep", b"").map(drop), Err(SendError::Busy));
    none(a.violations());
}

#[tokio::test]
async fn the_node_connects_where_the_environment_says() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno-chain-function"));
    let child = command.arg("listen").env("PORT", port.to_string()).stdin(std::process::Stdio::null()).spawn();
    let _function = node::Function(child.unwrap());
    turned_away(port);
    let open = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let name = SocketAddrUnix::new_abstract_name(format!("leno-chain-{port}").as_bytes()).unwrap();
        connect(&socket, &name).ok().map(|()| socket)
    };
    let mut connected = None;
    eventually_async("it listens", || {
        connected = open();
        connected.is_some()
    })
    .await;
    let node = Node::new();
    let link = node.welcome("a", connected.unwrap(), &settings()).await;
    assert_eq!(text(call(&link, "/echo", b"hello").await.unwrap().body.as_ref()), "hello");
}

/// A peer with another account is not the node.
fn turned_away(port: u16) {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("== left out: only root can be somebody else");
    }
    // A place where every account may run it.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("knock");
    std::fs::copy(env!("CARGO_BIN_EXE_leno-chain-function"), &program).unwrap();
    let mut command = Command::new(&program);
    let knocked = command.arg("knock").env("PORT", port.to_string()).uid(NOBODY).gid(NOBODY).status();
    assert!(knocked.unwrap().success());
}

#[tokio::test]
async fn who_is_not_ready_has_no_link() {
    let (ours, theirs) = pair();
    let soon = Settings { within: Duration::from_millis(1), ..settings() };
    let error = Link::open(ours, &Domain::new("test"), "a", &soon).await.unwrap_err();
    assert_eq!(error.to_string(), "the instance does not say that it is ready");
    drop(theirs);
    let (ours, theirs) = pair();
    drop(theirs);
    assert!(Link::open(ours, &Domain::new("test"), "a", &settings()).await.is_err());
    // A peer that sends something else.
    let (ours, theirs) = pair();
    socket::send(&theirs, b"hello", &[], SendFlags::empty()).unwrap();
    let error = Link::open(ours, &Domain::new("test"), "a", &settings()).await.unwrap_err();
    assert!(error.to_string().contains("LENOREDY"), "{error}");
}
