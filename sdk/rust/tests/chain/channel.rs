//! Calls on channels. Here these are TCP connections without a kernel filter.

use super::node::{self, Function, Node, call, text};
use super::{WAYS, settings};
use leno_sdk::StatusCode;
use leno_shm::Link;
use leno_shm::handshake::End;
use leno_testkit::eventually_async;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Two functions with a channel, on which the first one calls the other.
struct Pair {
    node: Arc<Node>,
    caller: Link,
    callee: Link,
    number: u32,
    /// The two ends, as the node holds them.
    ends: [TcpStream; 2],
    functions: [Function; 2],
}

impl Pair {
    async fn start(mode: &str, timeout: Option<Duration>) -> Self {
        let node = Node::new();
        let (first, caller) = node.start("caller", mode, &settings()).await;
        let (second, callee) = node.start("echo", mode, &settings()).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ends = [TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0];
        let [of_caller, of_callee] = [&ends[0], &ends[1]].map(|end| end.try_clone().unwrap().into());
        callee.offer(&caller, End::Callee, timeout, "other,Echo\nBy=echo;URI=caller".to_owned(), of_callee).unwrap();
        let names = "other,Echo".to_owned();
        let number = caller.offer(&callee, End::Caller, timeout, names, of_caller).unwrap();
        Self { node, caller, callee, number, ends, functions: [first, second] }
    }

    /// The caller's answer, which contains that of the callee.
    async fn ask(&self, path: &str, body: &[u8]) -> (StatusCode, String) {
        let answer = call(&self.caller, path, body).await.unwrap();
        (answer.head.status, text(answer.body.as_ref()))
    }

    fn routed(&self) -> usize {
        self.node.routed.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_where_the_channel_leads_and_nowhere_else() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        let ok = |text: &str| (StatusCode::OK, text.to_owned());
        assert_eq!(pair.ask("/same/echo/echo", b"").await, ok("true"), "the answer is what was sent, where it was");
        assert_eq!(pair.ask("/many/500", b"").await, ok(""), "what was sent comes back");
        assert_eq!(pair.ask("/spread/echo/length", b"0123456789").await, ok("55"), "many at once");
        assert_eq!(pair.ask("/status-of/echo/fail", b"x").await.0, StatusCode::BAD_GATEWAY);
        // Its body came from the node, so the node counts its readers.
        let before = pair.routed();
        assert_eq!(pair.ask("/pass/echo/middle", b"[body]").await, ok("body"));
        assert_eq!((before, pair.routed()), (1, 2), "the one with a body of the node's, and this");
        assert_eq!(pair.ask("/status-of/elsewhere/", b"").await.0, StatusCode::NOT_FOUND);
        assert_eq!(pair.routed(), 3, "to a name that the channel does not lead to");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_more_calls_than_places_get_their_answers() {
    for mode in ["waits", "serves", "both"] {
        let pair = Pair::start(mode, None).await;
        let body: Vec<u8> = vec![7; 300];
        let expected: usize = (1..=300).sum();
        assert_eq!(pair.ask("/spread/echo/length", &body).await, (StatusCode::OK, expected.to_string()), "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_calls_is_said_by_the_node() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        let answer = call(&pair.caller, "/fields/echo/echo", b"").await.unwrap();
        let said = |name: &str| answer.head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(said("x-forwarded-client-cert").as_deref(), Some("By=echo;URI=caller"));
        assert_eq!((said("x-team").as_deref(), pair.routed()), (Some("red"), 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_sidecar_may_let_through_goes_there() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        assert_eq!(pair.ask("/status-of/echo/echo", b"").await.0, StatusCode::OK);
        assert_eq!(pair.routed(), 0);
        for (number, path) in
            ["/liar/echo/echo", "/status-of/echo/a%2fb", "/status-of/echo/a//b"].into_iter().enumerate()
        {
            call(&pair.caller, path, b"").await.unwrap();
            assert_eq!(pair.routed(), number + 1, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_call_is_answered_by_the_other_function() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        let (_third, _link) = pair.node.start("third", mode, &settings()).await;
        let answer = pair.ask("/relay/echo/forward/third/length", b"").await;
        assert_eq!((answer, pair.routed()), ((StatusCode::OK, "9".to_owned()), 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_ends_as_at_a_sidecar() {
    for mode in WAYS {
        let pair = Pair::start(mode, Some(Duration::from_millis(50))).await;
        assert_eq!(pair.ask("/status-of/echo/hang", b"").await.0, StatusCode::GATEWAY_TIMEOUT);
        // The callee learned that its call was cancelled.
        assert_eq!(pair.ask("/same/echo/echo", b"").await, (StatusCode::OK, "true".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_is_known_to_who_handles_it() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        assert_eq!(pair.ask("/give-up/echo/hang", b"").await.0, StatusCode::OK);
        assert_eq!(pair.ask("/many/100", b"").await.0, StatusCode::OK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_through_the_node_once_the_channel_is_withdrawn_or_has_ended() {
    for mode in WAYS {
        for withdrawn in [true, false] {
            let mut pair = Pair::start(mode, None).await;
            assert_eq!((pair.ask("/same/echo/echo", b"").await.1, pair.routed()), ("true".to_owned(), 0));
            if withdrawn {
                pair.caller.withdraw(pair.number);
            } else {
                // A function that dies while it has open calls.
                let hanging = node::ask(&pair.caller, "/status-of/echo/keep", b"").unwrap();
                pair.functions[1].0.kill().unwrap();
                pair.ends.iter().for_each(|end| drop(end.shutdown(std::net::Shutdown::Both)));
                assert_eq!(hanging.await.unwrap().head.status, StatusCode::BAD_GATEWAY);
                let (again, _) = pair.node.start("echo", mode, &settings()).await;
                pair.functions[1] = again;
            }
            let node = pair.node.clone();
            let answers = async { while pair.ask("/same/echo/echo", b"").await.1 != "true" || pair.routed() == 0 {} };
            tokio::time::timeout(Duration::from_secs(30), answers).await.unwrap();
            eventually_async("it goes on through the node", || node.routed.load(Ordering::Relaxed) > 0).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_may_be_answered_with_the_body_of_another() {
    for mode in ["one", "serves"] {
        let pair = Pair::start(mode, None).await;
        let answer = pair.ask("/two/echo/swap", b"").await;
        assert_eq!((answer, pair.routed()), ((StatusCode::OK, "the first one".to_owned()), 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_stays_what_it_was_when_its_channel_has_ended() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        assert_eq!(pair.ask("/keep-answer/echo/copy", b"").await.0, StatusCode::OK);
        pair.ends.iter().for_each(|end| drop(end.shutdown(std::net::Shutdown::Both)));
        for _ in 0..20 {
            assert_eq!(call(&pair.callee, "/scribble", b"").await.unwrap().head.status, StatusCode::OK);
        }
        assert_eq!(pair.ask("/same-answer", b"").await, (StatusCode::OK, "true".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_on_a_channel_that_was_withdrawn_meanwhile_is_found() {
    for mode in WAYS {
        let pair = Pair::start(mode, None).await;
        let asked = node::ask(&pair.caller, "/wait-late/echo/slow-length", b"").unwrap();
        // The callee is called, the channel is withdrawn, the callee answers, and only then the
        // caller waits. In any other order there is an answer, too.
        tokio::time::sleep(Duration::from_millis(50)).await;
        pair.caller.withdraw(pair.number);
        let answer = tokio::time::timeout(Duration::from_secs(30), asked).await.expect("it has its answer").unwrap();
        assert_eq!((answer.head.status, text(answer.body.as_ref())), (StatusCode::OK, "6".to_owned()));
        assert_eq!(pair.routed(), 0);
    }
}
