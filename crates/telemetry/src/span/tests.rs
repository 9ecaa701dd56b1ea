use super::*;
use crate::request_line::RequestLine;
use crate::testing::observed;
use leno_http::peer::TrafficDirection;
use leno_policy::spec::Protocol;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

/// An OTLP/HTTP back end that answers each POST with `status` and hands on path and message.
fn sink(status: &'static str) -> (String, mpsc::Receiver<(String, ExportTraceServiceRequest)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            let (path, body) = loop {
                let length = stream.read(&mut chunk).unwrap();
                assert!(length > 0, "the exporter closed within a request");
                request.extend_from_slice(&chunk[..length]);
                if let Some(whole) = split(&request) {
                    break whole;
                }
            };
            let message = ExportTraceServiceRequest::decode(&body[..]).unwrap();
            // First of all: the exporter continues as soon as it has the response.
            if sender.send((path, message)).is_err() {
                return;
            }
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    (address, received)
}

/// Path and body, once all of it is there.
fn split(request: &[u8]) -> Option<(String, Vec<u8>)> {
    let end = request.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let body = request.get(end..end + length)?;
    Some((head.split(' ').nth(1)?.to_owned(), body.to_vec()))
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn number(attributes: &[KeyValue], key: &str) -> Option<i64> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

/// Exports and returns (service.namespace/service.name, span).
fn export(exchanges: Vec<ExchangeRecord>) -> Vec<(String, Span)> {
    let (endpoint, received) = sink("200 OK");
    let spans = Spans::start(&endpoint).unwrap();
    let sender = spans.sender();
    exchanges.into_iter().for_each(|exchange| sender.send(&exchange));
    spans.flush();
    assert_eq!(spans.dropped(), 0);
    let mut found = Vec::new();
    for (path, message) in received.try_iter() {
        assert_eq!(path, "/v1/traces");
        for resource in message.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let name = text(&attributes, "service.name").unwrap();
            let namespace = text(&attributes, "service.namespace").unwrap();
            let service = format!("{namespace}/{name}");
            found.extend(
                resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| (service.clone(), span)),
            );
        }
    }
    found
}

#[test]
fn a_record_becomes_a_span_with_the_programs_ids() {
    let exported = export(vec![observed()]);
    let [(service, span)] = &exported[..] else { panic!("{exported:?}") };
    assert_eq!(service, "leno/gateway");
    assert_eq!(span.trace_id, 0x0af7651916cd43dd8448eb211c80319c_u128.to_be_bytes());
    assert_eq!(span.span_id, 0xb7ad6b7169203331_u64.to_be_bytes());
    assert_eq!(span.parent_span_id, 0x00f067aa0ba902b7_u64.to_be_bytes());
    assert_eq!(span.kind, SpanKind::Server as i32);
    assert_eq!(span.name, "POST orders/order-service");
    assert_eq!(span.start_time_unix_nano, 1_700_000_000_123_000_000);
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 20_000_000);
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(StatusCode::Unset as i32), "403 is the client's");
    let attributes = &span.attributes;
    assert_eq!(text(attributes, "http.request.method"), Some("POST"));
    assert_eq!(text(attributes, "url.path"), Some("/orders/7"), "without the query");
    assert_eq!(text(attributes, "url.scheme"), Some("https"));
    assert_eq!(text(attributes, "server.address"), Some("shop.example"));
    assert_eq!(number(attributes, "server.port"), Some(8080));
    assert_eq!(number(attributes, "http.response.status_code"), Some(403));
    assert_eq!(number(attributes, "http.request.resend_count"), Some(1));
    assert_eq!(text(attributes, "network.protocol.version"), Some("1.1"));
    assert_eq!(text(attributes, "client.address"), Some("192.0.2.7"));
    assert_eq!(text(attributes, "network.peer.address"), Some("192.0.2.7"));
    assert_eq!(number(attributes, "network.peer.port"), Some(4711));
    assert_eq!(text(attributes, "user_agent.original"), Some("curl/8"));
    assert_eq!(text(attributes, "error.type"), None, "403 is the client's");
    assert_eq!(text(attributes, "leno.verdict"), Some("deny"));
    assert_eq!(text(attributes, "leno.rule"), Some("orders/authorization/from-frontend"));
    assert_eq!(text(attributes, "leno.request_id"), Some("req-1"));
}

#[test]
fn each_hop_is_a_span_of_its_function() {
    let caller: Arc<str> = "spiffe://orders.example/ns/shop/sa/frontend".into();
    let hop = |direction| {
        let mut hop = observed();
        hop.direction = direction;
        hop.peer.identity = Some(caller.clone());
        hop.status = 404;
        hop.flag = None;
        hop.scheme = "http";
        hop
    };
    let mut exported = export(vec![hop(TrafficDirection::Outbound), hop(TrafficDirection::Inbound)]);
    exported.sort_by(|(one, _), (two, _)| one.cmp(two));
    let [(callee, server), (caller, client)] = &exported[..] else { panic!("{exported:?}") };
    assert_eq!((&**callee, server.kind), ("orders/order-service", SpanKind::Server as i32));
    assert_eq!((&**caller, client.kind), ("shop/frontend", SpanKind::Client as i32));
    let failed = |span: &Span| span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32);
    assert!(failed(client), "a client's 404 is a failure");
    assert!(!failed(server), "a server's is not");
    assert_eq!(text(&client.attributes, "error.type"), Some("404"));
    assert_eq!(text(&server.attributes, "error.type"), None);
    assert_eq!(text(&client.attributes, "url.full"), Some("http://shop.example:8080/orders/7"), "without the query");
    assert_eq!(text(&client.attributes, "network.peer.address"), Some("127.0.0.1"), "the endpoint");
    assert_eq!(number(&client.attributes, "network.peer.port"), Some(9002));
    assert_eq!(text(&client.attributes, "client.address"), None);
}

#[test]
fn methods_that_clients_make_up_are_others() {
    let odd = ExchangeRecord { request_line: RequestLine::new("BREW", "pot", "/"), ..observed() };
    let exported = export(vec![odd]);
    let [(_, span)] = &exported[..] else { panic!("{exported:?}") };
    assert_eq!(span.name, "HTTP orders/order-service");
    assert_eq!(text(&span.attributes, "http.request.method"), Some("_OTHER"));
    assert_eq!(text(&span.attributes, "http.request.method_original"), Some("BREW"));
}

#[test]
fn grpc_calls_are_named_by_their_method() {
    let call = |direction, grpc_status| ExchangeRecord {
        direction,
        protocol: Protocol::Grpc,
        request_line: RequestLine::new("POST", "inventory", "/inventory.v1.Inventory/CheckStock"),
        status: 200,
        flag: None,
        grpc_status: Some(grpc_status),
        ..observed()
    };
    // A status, its name, and whether a server's span fails with it.
    for (status, name, is_servers) in
        [(0, "OK", false), (5, "NOT_FOUND", false), (14, "UNAVAILABLE", true), (99, "99", false)]
    {
        for direction in [TrafficDirection::Inbound, TrafficDirection::Outbound] {
            let exported = export(vec![call(direction, status)]);
            let [(_, span)] = &exported[..] else { panic!("{exported:?}") };
            assert_eq!(span.name, "inventory.v1.Inventory/CheckStock");
            assert_eq!(text(&span.attributes, "rpc.system.name"), Some("grpc"));
            assert_eq!(text(&span.attributes, "rpc.method"), Some("inventory.v1.Inventory/CheckStock"));
            assert_eq!(text(&span.attributes, "rpc.response.status_code"), Some(name));
            let fails = status != 0 && (is_servers || direction == TrafficDirection::Outbound);
            assert_eq!(text(&span.attributes, "error.type"), fails.then_some(name), "{direction:?}");
        }
    }
}

#[test]
fn only_what_is_sampled_is_exported() {
    let mut unsampled = observed();
    if let Some(plan) = &mut unsampled.trace {
        plan.context.sampled = false;
    }
    let untraced = ExchangeRecord { trace: None, ..observed() };
    let broken_off = ExchangeRecord { status: 0, flag: Some("DC"), ..observed() };
    let exported = export(vec![unsampled, untraced, broken_off]);
    let [(_, span)] = &exported[..] else { panic!("{exported:?}") };
    assert_eq!(text(&span.attributes, "error.type"), Some("DC"));
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(StatusCode::Error as i32));
}

#[test]
fn batches_are_bounded_and_complete() {
    let (endpoint, received) = sink("200 OK");
    let spans = Spans::start(&endpoint).unwrap();
    let sender = spans.sender();
    (0..BATCH + 10).for_each(|_| sender.send(&observed()));
    spans.flush();
    let counts = |message: ExportTraceServiceRequest| -> usize {
        message.resource_spans.iter().flat_map(|resource| &resource.scope_spans).map(|scope| scope.spans.len()).sum()
    };
    let counts: Vec<usize> = received.try_iter().map(|(_, message)| counts(message)).collect();
    assert!(counts.iter().all(|count| *count <= BATCH), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), BATCH + 10);
}

#[test]
fn spans_that_the_back_end_refuses_are_counted() {
    let (endpoint, received) = sink("400 Bad Request");
    let spans = Spans::start(&format!("{endpoint}/")).unwrap();
    let sender = spans.sender();
    sender.send(&observed());
    sender.send(&observed());
    spans.flush();
    assert_eq!(spans.dropped(), 2);
    assert!(received.try_iter().count() >= 1);
}

#[test]
fn each_request_has_a_connection_so_a_second_answer_answers_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spans = Spans::start(&format!("http://{}/v1/traces", listener.local_addr().unwrap())).unwrap();
    let sender = spans.sender();
    // Each request is answered twice, but for the third, whose connection is closed without a
    // response: it is sent again.
    let back_end = std::thread::spawn(move || {
        for number in 0..5 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while split(&request).is_none() {
                let mut chunk = [0; 4096];
                let length = stream.read(&mut chunk).unwrap();
                assert!(length > 0, "the exporter closed the connection");
                request.extend_from_slice(&chunk[..length]);
            }
            if number != 2 {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                // By now the exporter may have closed it.
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
            }
        }
    });
    for _ in 0..4 {
        sender.send(&observed());
        spans.flush();
    }
    back_end.join().unwrap();
    assert_eq!(spans.dropped(), 0);
}

#[test]
fn an_endpoint_that_is_none_is_refused_at_once() {
    assert!(Spans::start("not an address").is_err());
}
