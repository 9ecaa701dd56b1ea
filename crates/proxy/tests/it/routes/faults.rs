//! Faults that policies inject into requests of routes.

use super::{attach, below, forbids, named, route, to};
use crate::mesh::{Builder, Mesh};
use crate::upstream::{self, Answer, connect_http1, empty};
use http::Request;
use leno_model::{AppProtocol, Fault, FaultAbort, RouteRule};
use leno_testkit::eventually_async;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LONG: Duration = Duration::from_secs(60);

fn fault(name: &str, delay: Duration, abort: Option<FaultAbort>, lasts: Duration) -> Fault {
    let until = (SystemTime::now() + lasts).duration_since(UNIX_EPOCH).unwrap();
    let (name, until_ms) = (format!("chaos/faults/{name}"), u64::try_from(until.as_millis()).unwrap());
    Fault { name, when: Vec::new(), per_10k: 10_000, delay, abort, until_ms }
}

fn faulty(path: &str, fault: Fault) -> RouteRule {
    RouteRule { faults: vec![fault], ..to(below(path), "web") }
}

/// A mesh whose function `web` refuses `/secret`.
async fn mesh(rules: Vec<RouteRule>) -> (Mesh, upstream::Upstream) {
    let web = named("web").await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, web.address)
        .config("web", |config| (config.expose, config.is_routed) = (Vec::new(), true))
        .config("web", |config| config.inbound.authorization.insert(0, forbids("/secret")))
        .start();
    attach(&mesh, &[("*", route("shop/web", rules))]);
    (mesh, web)
}

async fn get(mesh: &Mesh, path: &str) -> Answer {
    let request = Request::get(path).header("host", "a").body(empty()).unwrap();
    connect_http1(mesh.gateway()).await.send(request).await
}

fn counted(mesh: &Mesh, kind: &str, name: &str) -> u32 {
    let line = format!("leno_faults_total{{kind=\"{kind}\",route=\"shop/web\",fault=\"chaos/faults/{name}\"}} ");
    let text = mesh.metrics();
    text.lines().find_map(|text| text.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_acts_after_the_verdict_and_is_recorded() {
    let (status, short) = (Some(FaultAbort::Status(599)), Duration::from_millis(1));
    let rules = vec![
        faulty("/down", fault("down", short, status, LONG)),
        faulty("/secret", fault("secret", LONG, status, LONG)),
        to(below("/free"), "web"),
    ];
    let (mesh, _web) = mesh(rules).await;
    let reply = get(&mesh, "/down").await;
    assert_eq!(reply.status, 599);
    assert!(reply.text.contains("\"injected fault\"") && !reply.text.contains("chaos"), "{}", reply.text);
    assert!(reply.headers.keys().all(|name| !name.as_str().starts_with("x-leno")), "{:?}", reply.headers);
    let hops = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
    let fault = hops[0].fault.as_ref().unwrap();
    assert_eq!((&*fault.name, fault.aborted, fault.undelayed), ("chaos/faults/down", true, false));
    assert!(fault.delay_us.unwrap() >= 1000.0 && fault.until.ends_with('Z'), "{fault:?}");
    assert_eq!((hops[0].response.flag.as_deref(), hops[0].attempts.len()), (Some("FI"), 0));
    assert!(hops[0].response.failure.as_ref().unwrap().starts_with("an injected fault: chaos/faults/down, until 2"));
    assert_eq!((counted(&mesh, "delay", "down"), counted(&mesh, "abort", "down")), (1, 1));
    // A refused request waits for nothing.
    let reply = get(&mesh, "/secret").await;
    assert_eq!(reply.status, 403);
    let hops = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
    assert_eq!(hops[0].fault, None);
    assert_eq!((counted(&mesh, "delay", "secret"), counted(&mesh, "abort", "secret")), (0, 0));
    assert_eq!(get(&mesh, "/free").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_fault_acts_once_it_has_ended() {
    let (status, soon) = (Some(FaultAbort::Status(500)), Duration::from_millis(300));
    let rules = vec![faulty("", fault("short", LONG, status, soon))];
    let (mesh, _web) = mesh(rules).await;
    let reply = get(&mesh, "/delayed").await;
    assert_eq!(reply.status, 200, "the delay ends with the fault, and there is no abort");
    assert_eq!((counted(&mesh, "delay", "short"), counted(&mesh, "abort", "short")), (1, 0));
    let reply = get(&mesh, "/later").await;
    assert_eq!(reply.status, 200);
    let hops = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
    assert_eq!(hops[0].fault, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_delay() {
    let (mesh, _web) = mesh(vec![faulty("", fault("slow", LONG, None, LONG))]).await;
    let waiting = tokio::spawn({
        let gateway = mesh.gateway();
        async move {
            let request = Request::get("/").header("host", "a").header("x-a", "1").body(empty()).unwrap();
            connect_http1(gateway).await.send(request).await
        }
    });
    eventually_async("the delay", || counted(&mesh, "delay", "slow") == 1).await;
    waiting.abort();
    eventually_async("the end of the request", || mesh.metrics().contains("response_flags=\"DC\"")).await;
}
