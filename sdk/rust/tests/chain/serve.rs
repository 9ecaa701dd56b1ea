//! Functions that handle many calls on one thread.

use super::node::{self, Node, call, pair, text};
use super::{PATIENCE, none, settings};
use leno_sdk::StatusCode;
use leno_testkit::eventually_async;
use rustix::net::{Shutdown, shutdown};
use std::process::{Command, Stdio};
use std::time::Duration;

#[tokio::test]
async fn calls_that_wait_for_each_other_share_a_thread() {
    let node = Node::new();
    let (_function, link) = node.start("a", "serves", &settings()).await;
    let calls: Vec<_> = (0..50).map(|_| node::ask(&link, "/gather/50", b"").unwrap()).collect();
    for asked in calls {
        assert_eq!(text(asked.await.unwrap().body.as_ref()), "1");
    }
    none(link.violations());
}

#[tokio::test]
async fn no_more_are_handled_at_a_time_than_may_be() {
    let node = Node::new();
    let (_function, link) = node.start("a", "serves2", &settings()).await;
    let mut hanging: Vec<_> = (0..2).map(|_| node::ask(&link, "/hang", b"").unwrap()).collect();
    let mut third = node::ask(&link, "/length", b"123").unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut third).await.is_err(), "it has no place");
    hanging.pop();
    assert_eq!(text(third.await.unwrap().body.as_ref()), "3");
    drop(hanging);
    eventually_async("all are answered", || link.open_calls() == 0).await;
}

#[tokio::test]
async fn a_call_that_a_task_has_read_is_not_left_behind() {
    let node = Node::new();
    let (_a, a) = node.start("a", "serves", &settings()).await;
    let hears = node::ask(&a, "/hear", b"").unwrap();
    // The task of the first call reads the second one. In any other order there is an answer, too.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let answered = tokio::time::timeout(PATIENCE, call(&a, "/length", b"1")).await.expect("nobody else wakes it");
    assert_eq!(text(answered.unwrap().body.as_ref()), "1");
    drop(hears);
}

#[tokio::test]
async fn whoever_waits_is_told_that_the_link_has_ended() {
    let node = Node::new();
    let (_other, other) = node.start("other", "", &settings()).await;
    let (ours, theirs) = pair();
    let program = env!("CARGO_BIN_EXE_leno-chain-function");
    let child = Command::new(program).arg("serves").stdin(Stdio::from(theirs)).stderr(Stdio::piped()).spawn();
    let socket = ours.try_clone().unwrap();
    let mut function = node::Function(child.unwrap());
    let link = node.welcome("a", ours, &settings()).await;
    let waits = node::ask(&link, "/pass/other/keep", b"x").unwrap();
    let sleeps = node::ask(&link, "/slow-length", b"x").unwrap();
    eventually_async("the other one has it", || other.open_calls() == 1).await;
    shutdown(&socket, Shutdown::Both).unwrap();
    assert!(waits.await.is_err());
    drop(sleeps);
    let mut said = function.0.stderr.take().unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut said, &mut text).unwrap();
        (function.0.wait().unwrap().success(), text)
    });
    let (success, said) = ended.await.unwrap();
    assert!(success && said.contains("the link to the node has ended"), "{said}");
}

#[tokio::test]
async fn a_waker_may_give_calls_up_when_it_is_dropped() {
    let node = Node::new();
    let (_hangs, hangs) = node.start("hangs", "serves", &settings()).await;
    let (_a, a) = node.start("a", "serves", &settings()).await;
    let done =
        tokio::time::timeout(PATIENCE, call(&a, "/wakers/hangs/hang", b"")).await.expect("it does not lock itself out");
    assert_eq!(done.unwrap().head.status, StatusCode::OK);
    eventually_async("all three are given up", || hangs.open_calls() == 0).await;
    none(a.violations());
}

#[tokio::test]
async fn an_answer_that_nobody_would_read_is_not_awaited() {
    let node = Node::new();
    let (_a, a) = node.start("a", "", &settings()).await;
    let (_b, b) = node.start("b", "serves", &settings()).await;
    assert_eq!(call(&a, "/await/b/hang", b"").await.unwrap().head.status, StatusCode::OK);
    // A second server would compete with the first one.
    let said = call(&b, "/serve", b"").await.unwrap().body;
    assert_eq!(text(said.as_ref()), "another thread serves this chain");
    assert_eq!(text(call(&b, "/length", b"12").await.unwrap().body.as_ref()), "2");
}
