use super::*;
use crate::ring::Explanation;
use http::Request;

fn record(telemetry: &Telemetry) -> Record {
    let (head, ()) = Request::get("/a?secret").header("host", "shop.example").body(()).unwrap().into_parts();
    let peer = Peer { identity: None, address: ([192, 0, 2, 1], 4711).into() };
    Record::new(&Recorder::new(telemetry), Entrance::Gateway, &peer, Protocol::Http1, &head, "req-1")
}

fn told(telemetry: &Telemetry) -> Vec<Explanation> {
    telemetry.ring.explain("req-1")
}

#[test]
fn is_told_once_when_the_last_handle_is_dropped() {
    let telemetry = Telemetry::quiet("td.example");
    let record = record(&telemetry);
    let body = record.clone();
    record.status(200);
    drop(record);
    assert!(told(&telemetry).is_empty(), "the body still holds it");
    body.response_bytes(5);
    body.response_bytes(7);
    drop(body);
    let [told] = &told(&telemetry)[..] else { panic!("not told once") };
    assert_eq!((told.response.status, told.response.bytes_out), (200, 12));
    assert_eq!(told.asked.authority, "shop.example");
}

#[test]
fn an_exchange_that_nobody_answers_was_left_by_its_client() {
    let telemetry = Telemetry::quiet("td.example");
    drop(record(&telemetry));
    assert_eq!(told(&telemetry)[0].response.flag.as_deref(), Some("DC"));
}

#[test]
fn the_first_cause_and_the_first_time_of_a_stage_count() {
    let telemetry = Telemetry::quiet("td.example");
    let record = record(&telemetry);
    record.failure(&Failure::NoRoute);
    record.failure(&Failure::ClientGone);
    record.stage(Stage::Routed);
    let routed = record.note(|observed| observed.stages[0]);
    record.stage(Stage::Routed);
    assert_eq!(record.note(|observed| observed.stages[0]), routed);
    drop(record);
    let told = told(&telemetry).remove(0);
    assert_eq!(told.response.flag.as_deref(), Some("NR"));
    assert!(told.judgement.is_none() && told.response.failure.is_some());
}

#[test]
fn what_is_dropped_while_unwinding_is_told_too() {
    let telemetry = Telemetry::quiet("td.example");
    let record = record(&telemetry);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _record = record;
        panic!("in the middle of an exchange");
    }));
    assert!(result.is_err());
    assert_eq!(told(&telemetry).len(), 1);
}

#[test]
fn workloads_are_read_from_spiffe_ids() {
    assert_eq!(workload("spiffe://td.example/ns/shop/sa/orders"), Some(("shop", "orders")));
    for other in ["", "spiffe://td.example", "spiffe://td.example/shop/orders", "https://td.example/ns/a/sa/b"] {
        assert_eq!(workload(other), None, "{other}");
    }
    assert_eq!(workload("spiffe://td.example/ns/a/b/sa/c"), None);
}
