//! Time limits, retries and revisions of rules.

use super::{attach, backend, below, route, to};
use crate::mesh::{Builder, Mesh, id, retry};
use crate::upstream::{self, Answer, Upstream, connect_http1, echo, empty, full};
use http::{Method, Request, Response};
use leno_model::revision::{Revision, Split, Target};
use leno_model::{
    AppProtocol, BackendTarget, FunctionConfig, HttpRoute, Precedence, RouteRetry, RouteRule, RouteTimeouts,
};
use leno_policy::spec::RetryOn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// A gateway before a function on its node, and one before a function on another node.
struct Both {
    near: Mesh,
    far: Mesh,
    _there: Mesh,
}

impl Both {
    fn new(upstream: &Upstream, change: impl Fn(Builder) -> Builder) -> Self {
        let web = || {
            let web = Builder::new().function("web", AppProtocol::Http1, upstream.address);
            change(web.config("web", |config| (config.expose, config.is_routed) = (Vec::new(), true)))
        };
        let there = web().start();
        let far = web().remote("web").with(&there).start();
        far.knows("web", &[(&there, 1)]);
        Self { near: web().start(), far, _there: there }
    }

    fn attach(&self, rules: &[RouteRule], precedence: Precedence) {
        self.attach_all(&[HttpRoute { precedence, ..route("shop/terms", rules.to_vec()) }]);
    }

    fn attach_all(&self, routes: &[HttpRoute]) {
        let all: Vec<_> = routes.iter().map(|route| ("*", route.clone())).collect();
        [&self.near, &self.far].into_iter().for_each(|mesh| attach(mesh, &all));
    }
}

async fn ask(mesh: &Mesh, method: Method, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "a");
    connect_http1(mesh.gateway()).await.send(request.body(empty()).unwrap()).await
}

/// Sends requests to all these paths of both gateways at once: most of them wait for a time limit.
async fn assert_statuses(both: &Both, expected: &[(String, u16)]) {
    let mut asked = JoinSet::new();
    for (gateway, mesh) in [("near", &both.near), ("far", &both.far)] {
        for (path, status) in expected {
            let (path, status, address) = (path.clone(), *status, mesh.gateway());
            let request = Request::get(&path).header("host", "a");
            asked.spawn(async move {
                let reply = connect_http1(address).await.send(request.body(empty()).unwrap()).await;
                assert_eq!(reply.status, status, "{gateway} {path}: {}", reply.text);
            });
        }
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }
}

fn timed(path: &str, request: Option<u64>, attempt: Option<u64>) -> RouteRule {
    let timeouts = RouteTimeouts {
        request: request.map(Duration::from_millis),
        backend_request: attempt.map(Duration::from_millis),
    };
    RouteRule { timeouts, ..to(below(path), "web") }
}

/// Answers after this time, or never.
async fn slow(delay: Duration) -> Upstream {
    upstream::http1(move |request| async move {
        if request.uri().path().ends_with("never") {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(delay).await;
        Response::new(full("late"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_of_another_namespace_only_shortens_a_time_limit() {
    let upstream = slow(Duration::ZERO).await;
    let both = Both::new(&upstream, |web| web.plan("web", |target| target.timeout_ms = 1_500));
    let orders = [("/specific", Precedence::MostSpecific), ("/ordered", Precedence::First)];
    let routes = orders.map(|(below, precedence)| {
        let rules = [
            timed(&format!("{below}/none/never"), Some(0), None),
            timed(&format!("{below}/longer/never"), Some(60_000), None),
            timed(&format!("{below}/shorter/never"), Some(50), None),
            timed(&format!("{below}/within"), Some(60_000), None),
        ];
        HttpRoute { precedence, ..route(&format!("other{below}"), rules.to_vec()) }
    });
    both.attach_all(&routes);
    let expected = [("/none/never", 504), ("/longer/never", 504), ("/shorter/never", 504), ("/within", 200)];
    let expected =
        orders.iter().flat_map(|(below, _)| expected.map(|(path, status)| (format!("{below}{path}"), status)));
    assert_statuses(&both, &expected.collect::<Vec<_>>()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limits_of_a_rule_replace_those_of_the_policies() {
    let upstream = slow(Duration::from_secs(1)).await;
    let both = Both::new(&upstream, |web| web.plan("web", |target| target.timeout_ms = 300));
    let rules = vec![
        timed("/policies", None, None),
        timed("/none", Some(0), None),
        timed("/longer", Some(20_000), None),
        timed("/shorter", Some(50), None),
        timed("/attempt", Some(20_000), Some(50)),
        timed("/none-each", Some(0), Some(0)),
    ];
    // An ordered route has no default limit.
    let ordered = vec![timed("/ordered", None, None)];
    both.attach_all(&[
        route("shop/terms", rules),
        HttpRoute { precedence: Precedence::First, ..route("shop/ordered", ordered) },
    ]);
    let expected = [
        ("/policies", 504),
        ("/none", 200),
        ("/longer", 200),
        ("/shorter/never", 504),
        ("/attempt/never", 504),
        ("/none-each", 200),
        ("/ordered", 200),
    ];
    assert_statuses(&both, &expected.map(|(path, status)| (path.to_owned(), status))).await;
}

/// Refuses the first requests, and counts them.
async fn failing(times: usize, status: u16) -> (Upstream, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(times));
    let count = left.clone();
    let upstream = upstream::http1(move |_| {
        let fails = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        async move { Response::builder().status(if fails { status } else { 200 }).body(empty()).unwrap() }
    })
    .await;
    (upstream, left)
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_of_a_rule_replace_those_of_the_policies_and_repeat_nothing_unsafe() {
    let (upstream, left) = failing(0, 418).await;
    let plan = |web: Builder| web.plan("web", |target| target.retry = Some(retry(&[RetryOn::Status(418)])));
    let both = Both::new(&upstream, plan);
    let retried = |path: &str, codes: &[u16], attempts| {
        let retry = RouteRetry { codes: codes.to_vec(), attempts, backoff: Some(Duration::from_millis(1)) };
        RouteRule { retry: Some(retry), ..to(below(path), "web") }
    };
    let rules = [
        to(below("/policies"), "web"),
        retried("/one", &[418], None),
        retried("/three", &[418], Some(3)),
        retried("/others", &[503], Some(3)),
        retried("/never", &[418], Some(0)),
    ];
    both.attach(&rules, Precedence::MostSpecific);
    for mesh in [&both.near, &both.far] {
        for (method, path, failures, expected, attempts) in [
            (Method::GET, "/policies", 2, 200, 3),
            (Method::GET, "/one", 1, 200, 2),
            (Method::GET, "/one", 2, 418, 2),
            (Method::GET, "/three", 3, 200, 4),
            (Method::POST, "/three", 1, 418, 1),
            (Method::GET, "/others", 1, 418, 1),
            (Method::GET, "/never", 1, 418, 1),
        ] {
            left.store(failures, Ordering::SeqCst);
            let reply = ask(mesh, method, path).await;
            assert_eq!(reply.status, expected, "{path} {failures}");
            let shown = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
            let gateway = shown.iter().find(|hop| hop.hop == "gateway").unwrap();
            assert_eq!(gateway.attempts.len(), attempts, "{path} {failures}");
        }
    }
    both.attach(&rules[..1], Precedence::First);
    left.store(1, Ordering::SeqCst);
    assert_eq!(ask(&both.near, Method::GET, "/policies").await.status, 418, "an ordered route has no default retries");
}

/// Two revisions: 1, which has all requests, and 2, which has the tag `next` and no share.
fn two_revisions(config: &mut FunctionConfig) {
    config.revisions.number = 1;
    let share = |revision, percent, tag: Option<&str>| Target {
        revision,
        percent,
        tag: tag.map(str::to_owned),
        ..Target::default()
    };
    config.revisions.split = Some(Box::new(Split {
        targets: vec![share(1, 100, None), share(2, 0, Some("next"))],
        others: vec![Revision { number: 2, template: config.template() }],
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_a_route_names_gets_the_request_and_no_client_can_say_so() {
    let upstream = upstream::http1(echo).await;
    let both = Both::new(&upstream, |web| web.config("web", two_revisions));
    let named = |path: &str, revision: &str| RouteRule {
        backends: vec![backend(BackendTarget::Revision(id("web"), revision.to_owned()), 1)],
        ..to(below(path), "web")
    };
    let rules =
        [named("/tag", "next"), named("/name", "web-00002"), named("/gone", "web-00009"), to(below("/any"), "web")];
    both.attach(&rules, Precedence::MostSpecific);
    for mesh in [&both.near, &both.far] {
        for (path, revision) in [("/tag", "web-00002"), ("/name", "web-00002"), ("/any", "web-00001")] {
            let request = Request::get(path).header("host", "a").header("x-leno-route", "revision=web-00002");
            let reply = connect_http1(mesh.gateway()).await.send(request.body(empty()).unwrap()).await;
            assert_eq!(reply.status, 200, "{path}");
            assert!(!reply.text.contains("x-leno"), "{}", reply.text);
            let nodes = if std::ptr::eq(mesh, &both.far) { &both._there } else { &both.near };
            let shown = nodes.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
            assert_eq!(shown[0].revision.as_deref(), Some(revision), "{path}");
        }
        assert_eq!(ask(mesh, Method::GET, "/gone").await.status, 500);
    }
}
