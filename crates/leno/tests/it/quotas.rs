//! Rate limits that a Redis server counts, for several nodes and several meshes.

use leno_testkit::cluster::redis::Redis;
use leno_testkit::cluster::{Node, Place, control_of, nodes_of, status};
use leno_testkit::eventually;
use leno_testkit::mesh::{Mesh, echo_function, policy};
use std::net::Ipv4Addr;

#[test]
fn two_meshes_share_a_limit_and_refuse_without_the_server() {
    let mut redis = Redis::start();
    // Long enough for a machine with two processors that also compiles.
    let fields = format!("  quotas: {{redis: {{address: \"127.0.0.1:{}\", timeout: 2s}}}}\n", redis.port);
    let front = echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 2, max: 2}");
    let limit = "  authorization: {rules: [{name: everything, action: allow}]}\n  rateLimits:\n  - {name: few, requests: 60, per: 24h, algorithm: \
                 fixedWindow, key: [{header: x-user}]}";
    let documents = format!("{front}{}", policy("few", "front", limit));

    let control = control_of(Ipv4Addr::LOCALHOST, &fields);
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    // Each node has capacity for one instance, and there are two nodes.
    let place = Place::here();
    let _nodes = ["one", "two"].map(|name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "1"]));
    control.apply(&documents);
    eventually("both instances", || (nodes_of(&control, "test/front").len() == 2).then_some(()));
    let mut other = Mesh::start_with(&fields, &documents);

    let in_other = |mesh: &Mesh, user: &str| mesh.curl("/", &["--header", &format!("x-user: {user}")]);
    let mut admitted = [0, 0];
    eventually("the limit to be used", || {
        admitted[0] += usize::from(status(gateway.get("/")) == Some(200));
        admitted[1] += usize::from(other.get("/").status == 200);
        assert!(admitted[0] + admitted[1] <= 60, "{admitted:?}");
        (admitted[0] + admitted[1] == 60).then_some(())
    });
    assert!(admitted.iter().all(|admitted| *admitted > 0), "{admitted:?}");
    let refused = other.get("/");
    assert_eq!((refused.status, refused.header("ratelimit-limit")), (429, Some("60")));
    let why = other.explain(refused.header("x-request-id").unwrap());
    assert!(why.contains("few/rateLimits/few") && why.contains("all 60 requests are used"), "{why}");
    assert_eq!(in_other(&other, "somebody else").status, 200);
    other.metrics(&["leno_quota_store_up 1"]);

    redis.kill();
    let answer = eventually("a refusal", || Some(in_other(&other, "a third")).filter(|answer| answer.status == 429));
    let why = other.explain(answer.header("x-request-id").unwrap());
    assert!(why.contains("few/rateLimits/few") && why.contains("the quota store does not answer"), "{why}");
    other.metrics(&["leno_quota_store_up 0"]);
    let away = |mesh: &Mesh| {
        let rows = mesh.admin("/alerts").json();
        rows.as_array().unwrap().iter().any(|row| row["kind"] == "store" && row["severity"] == "critical")
    };
    other.wait_for("the alert", |mesh| away(mesh));
    other.wait_for("the log to say so", |mesh| mesh.output().iter().any(|line| line.contains("Redis does not answer")));

    redis.start_again();
    eventually("a request of the third", || (in_other(&other, "a third").status == 200).then_some(()));
    other.wait_for("the end of the alert", |mesh| !away(mesh));
    assert_eq!((status(gateway.get("/")), other.get("/").status), (Some(429), 429), "what was used stays used");
}
