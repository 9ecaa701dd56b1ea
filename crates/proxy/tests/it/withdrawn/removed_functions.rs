//! Exchanges that are open when their function is removed.

use super::{Feeds, expect_closed, get, grpc, listen, next, next_text, no_longer_allowed, remove, told, two};
use crate::mesh::id;
use crate::raw::TIMEOUT;
use crate::upstream::{connect_h2, empty};
use http::Request;
use leno_model::AppProtocol;
use leno_policy::spec::{Counts, KeyPart, QuotaAlgorithm, RateLimit};
use leno_testkit::eventually_async;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::timeout;

/// Exchanges of a removed function drain unchanged, whether it is their caller or their callee.
/// Exchanges that are judged again and still permitted go on, and no limit counts them again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_drains_and_what_is_permitted_goes_on() {
    let feeds = Feeds::new(AppProtocol::H2c).await;
    let limit = RateLimit {
        name: "p/rateLimits/two".into(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: vec![KeyPart::Address],
        algorithm: QuotaAlgorithm::TokenBucket { requests: 2, period_ms: 3_600_000, burst: 2 },
    };
    let mesh = two(&feeds.upstream, AppProtocol::H2c)
        .function("removed", AppProtocol::H2c, feeds.upstream.address)
        .config("other", |config| config.inbound.rate_limits.push(limit))
        .start();
    let mut client = connect_h2(mesh.gateway()).await;
    let mut streams = HashMap::new();
    // The exchange that will be closed comes last, so all others were judged before.
    for host in ["removed", "other", "web"] {
        let path = format!("/{host}");
        let request = Request::get(format!("http://{host}{path}")).body(empty()).unwrap();
        let mut body = client.send_request(request).await.unwrap().into_body();
        feeds.feed(&path, "one").await;
        assert_eq!(next_text(&mut body).await, "one");
        streams.insert(host, body);
    }
    remove(&mesh, "removed", Duration::from_secs(600));
    // The limit of `other` admits two requests, of which one was taken.
    mesh.change(&["other", "web"], |config| {
        config.deadline = Duration::from_millis(900);
        if config.id == id("web") {
            no_longer_allowed(config);
        }
    });
    assert!(next(streams.get_mut("web").unwrap()).await.unwrap().is_err());
    for host in ["removed", "other"] {
        feeds.feed(&format!("/{host}"), "two").await;
        assert_eq!(next_text(streams.get_mut(host).unwrap()).await, "two");
    }
    for (path, status) in [("/second", 200), ("/third", 429)] {
        let request = Request::get(format!("http://other{path}")).body(empty()).unwrap();
        assert_eq!(client.send_request(request).await.unwrap().status(), status, "{path}");
    }
}

/// The node closes exchanges of a removed function when their time is over, and not later, although
/// nothing else changes.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_is_closed_when_its_time_is_over() {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let mesh = two(&feeds.upstream, AppProtocol::Http1).start();
    let events = listen(mesh.gateway(), get("/events", "web"), &feeds, "/events").await;
    let mut others = listen(mesh.gateway(), get("/others", "other"), &feeds, "/others").await;
    remove(&mesh, "web", Duration::from_secs(1));
    assert!(!events.rest().await.contains("0\r\n\r\n"));
    expect_closed(&told(&mesh, "gateway", "/events").await, "sidecar", "the function was removed");
    feeds.feed("/others", "data: 2\n\n").await;
    others.until("data: 2\n\n\r\n").await;
}

/// A gRPC call to a removed function also ends then, and its client may retry it on another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_call_to_a_removed_function_ends_as_unavailable() {
    let feeds = Feeds::new(AppProtocol::Grpc).await;
    let mesh = two(&feeds.upstream, AppProtocol::Grpc).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let sent = tokio::spawn(client.send_request(grpc("/s/m").body(empty()).unwrap()));
    eventually_async("the requests to arrive upstream", || feeds.upstream.requests() == 1).await;
    let mut body = timeout(TIMEOUT, sent).await.unwrap().unwrap().unwrap().into_body();
    remove(&mesh, "web", Duration::from_secs(1));
    let trailers = next(&mut body).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "14");
}
