use super::super::Telemetry;
use super::super::exchange::*;
use super::super::names::workload;
use super::super::request_line::values;
use super::*;
use crate::ring::Explanation;
use bytes::Bytes;
use http::{HeaderValue, Request};

fn record(telemetry: &Telemetry) -> Record {
    let (head, ()) = Request::get("/a?secret").header("host", "shop.example").body(()).unwrap().into_parts();
    let peer = Peer { identity: None, address: ([192, 0, 2, 1], 4711).into() };
    Record::new(&Recorder::new(telemetry), TrafficDirection::Gateway, &peer, Protocol::Http1, &head, "req-1")
}

fn reported(telemetry: &Telemetry) -> Vec<Explanation> {
    telemetry.explain("req-1")
}

#[test]
fn is_reported_once_when_the_last_handle_is_dropped() {
    let telemetry = Telemetry::quiet("td.example");
    let record = record(&telemetry);
    let body = record.clone();
    record.status(200);
    drop(record);
    assert!(reported(&telemetry).is_empty(), "the body still holds it");
    body.response_bytes(5);
    body.response_bytes(7);
    drop(body);
    let [reported] = &reported(&telemetry)[..] else { panic!("not told once") };
    assert_eq!((reported.response.status, reported.response.bytes_out), (200, 12));
    assert_eq!(reported.asked.authority, "shop.example");
}

#[test]
fn an_exchange_that_nobody_answers_was_left_by_its_client() {
    let telemetry = Telemetry::quiet("td.example");
    drop(record(&telemetry));
    assert_eq!(reported(&telemetry)[0].response.flag.as_deref(), Some("DC"));
}

/// A head as hyper parses it: its fields are slices of one buffer, which lasts as long as any of
/// them.
#[test]
fn no_record_keeps_the_buffer_that_its_head_came_in() {
    let telemetry = Telemetry::quiet("td.example");
    let buffer = Bytes::from(b"PURGE-EVERYTHING|/a/path?with=a-query|shop.example|Bearer secret-token".repeat(400));
    let slice = |text: &str| {
        let start = buffer.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        buffer.slice(start..start + text.len())
    };
    let value = |text| HeaderValue::from_maybe_shared(slice(text)).unwrap();
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = http::Method::from_bytes(&slice("PURGE-EVERYTHING")).unwrap();
    head.uri = http::Uri::from_maybe_shared(slice("/a/path?with=a-query")).unwrap();
    head.headers.insert("host", value("shop.example"));
    head.headers.insert("authorization", value("Bearer secret-token"));
    let peer = Peer { identity: None, address: ([192, 0, 2, 1], 4711).into() };
    let record =
        Record::new(&Recorder::new(&telemetry), TrafficDirection::Gateway, &peer, Protocol::Http1, &head, "req-1");
    record.note(|observed| {
        observed.logged_headers = values(head.headers.iter().map(|(name, value)| (name.clone(), value)))
    });
    drop(head);
    assert!(buffer.is_unique(), "the record holds a slice of it");
    drop(record);
    let [reported] = &reported(&telemetry)[..] else { panic!("not told once") };
    assert_eq!((&*reported.asked.method, &*reported.asked.path), ("PURGE-EVERYTHING", "/a/path"));
}

#[test]
fn what_policies_and_peers_say_is_cut_to_its_bounds() {
    let telemetry = Telemetry::quiet("td.example");
    let record = record(&telemetry);
    let long = || "é".repeat(50_000).into_boxed_str();
    record.note(|observed| {
        *observed = crate::testing::observed();
        observed.failure = Some(long());
        if let Some(judged) = &mut observed.judged {
            judged.principal = Some(long());
            judged.verdict = RecordedVerdict::Extension { rule: long(), clause: long() };
        }
        observed.request_edits = vec![observed.request_edits[0].clone(); 10_000];
        observed.signatures = vec![observed.signatures[0]; 10_000];
    });
    drop(record);
    let reported = serde_json::to_string(&reported(&telemetry)[0]).unwrap();
    assert!(reported.len() < 16 * 1024 && reported.contains('…'), "{} bytes", reported.len());
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
    let reported = reported(&telemetry).remove(0);
    assert_eq!(reported.response.flag.as_deref(), Some("NR"));
    assert!(reported.judgement.is_none() && reported.response.failure.is_some());
}

#[test]
fn what_is_dropped_while_unwinding_is_reported_too() {
    let telemetry = Telemetry::quiet("td.example");
    let record = record(&telemetry);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _record = record;
        panic!("in the middle of an exchange");
    }));
    assert!(result.is_err());
    assert_eq!(reported(&telemetry).len(), 1);
}

#[test]
fn workloads_are_read_from_spiffe_ids() {
    assert_eq!(workload("spiffe://td.example/ns/shop/sa/orders"), Some(("shop", "orders")));
    for other in ["", "spiffe://td.example", "spiffe://td.example/shop/orders", "https://td.example/ns/a/sa/b"] {
        assert_eq!(workload(other), None, "{other}");
    }
    assert_eq!(workload("spiffe://td.example/ns/a/b/sa/c"), None);
}
