use super::*;
use crate::exchange::{RecordedVerdict, RouteRecord};
use crate::request_line::RequestLine;
use crate::testing::{observed, program};
use leno_policy::spec::ProgramSpec;
use std::path::Path;
use std::sync::Arc;

fn line_of(json: bool, observed: &ExchangeRecord) -> String {
    let mut buffer = Vec::new();
    if json { line::json(&mut buffer, observed) } else { line::text(&mut buffer, observed) }.unwrap();
    String::from_utf8(buffer).unwrap()
}

/// A folder, and the path of a log in it.
fn fresh_file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    (folder, file)
}

fn log_to(path: &Path) -> AccessLog {
    AccessLog::open(&AccessLogSink { json: true, file: Some(path.to_owned()) }).unwrap()
}

#[test]
fn json_lines_say_who_asked_what_and_which_rule_decided() {
    let line: serde_json::Value = serde_json::from_str(&line_of(true, &observed())).unwrap();
    let expected = serde_json::json!({
        "time": "2023-11-14T22:13:20.123Z",
        "request_id": "req-1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
        "parent_span_id": "00f067aa0ba902b7",
        "direction": "gateway",
        "source_address": "192.0.2.7:4711",
        "target": "orders/order-service",
        "authority": "shop.example:8080",
        "method": "POST",
        "path": "/orders/7",
        "protocol": "http1",
        "status": 403,
        "verdict": "deny",
        "policy": "authorization",
        "rule": "orders/authorization/from-frontend",
        "clause": "from.identities: nothing matches",
        "default": true,
        "principal": "https://login.example/ann",
        "duration_ms": 20.0,
        "upstream_ms": 10.0,
        "judge_us": 210.0,
        "attempts": 2,
        "bytes_in": 12,
        "bytes_out": 345,
        "endpoint": "127.0.0.1:9002",
        "engine": "wasm",
        "headers": {"user-agent": "curl/8"},
    });
    assert_eq!(line, expected);
}

#[test]
fn lines_have_the_request_as_it_came_and_what_its_route_made_of_it() {
    let mut observed = observed();
    let route = RouteRecord::new("shop/orders".into(), "0".into(), "path below /orders".into());
    observed.route = Some(Box::new(RouteRecord {
        backend: Some("orders/order-service".into()),
        path: Some("/v2/7".into()),
        ..route
    }));
    let line: serde_json::Value = serde_json::from_str(&line_of(true, &observed)).unwrap();
    let fields = ["path", "route_name", "route_match", "route_backend", "rewritten_path", "rewritten_authority"];
    let expected = ["/orders/7", "shop/orders/0", "path below /orders", "orders/order-service", "/v2/7"];
    let values = fields.map(|field| line[field].as_str().unwrap_or_default());
    assert_eq!(values[..5], expected);
    assert_eq!(values[5], "");
    let text = line_of(false, &observed);
    let expected = " route_name=shop/orders/0 route_match=\"path below /orders\" route_backend=";
    assert!(text.contains(expected) && text.contains(" rewritten_path="), "{text}");
}

#[test]
fn text_lines_say_the_same() {
    assert_eq!(
        line_of(false, &observed()),
        "2023-11-14T22:13:20.123Z gateway deny 403 POST /orders/7 192.0.2.7:4711 -> orders/order-service 20ms \
         request_id=req-1 authority=\"shop.example:8080\" protocol=http1 policy=authorization \
         rule=\"orders/authorization/from-frontend\" clause=\"from.identities: nothing matches\" default=true \
         principal=\"https://login.example/ann\" trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331 \
         parent_span_id=00f067aa0ba902b7 upstream_ms=10 judge_us=210 attempts=2 bytes_in=12 bytes_out=345 \
         endpoint=127.0.0.1:9002 engine=wasm header.user-agent=\"curl/8\""
    );
}

#[test]
fn queries_are_never_logged() {
    for json in [true, false] {
        assert!(!line_of(json, &observed()).contains("secret-token"));
    }
}

#[test]
fn nobody_can_write_lines_of_their_own() {
    let mut evil = observed();
    evil.request_line = RequestLine::new("GET\x7e", "\"quoted\" \\ host", "/a\u{202e}b\u{2028}\"'");
    evil.logged_headers[0].1 = "a\tb\" verdict=allow \u{fffd}\u{85} \\".into();
    if let Some(judged) = &mut evil.judged {
        judged.principal = Some("ann\nverdict=allow \u{1b}[2J\r\0\u{7f}".into());
        judged.verdict = RecordedVerdict::Fault { fault: "trap", reason: "line 1\nline 2 \" verdict=allow".into() };
    }
    evil.failure = Some("broken\r\n\u{9b}31m".into());
    let text = line_of(false, &evil);
    assert!(text.chars().all(|character| (' '..='~').contains(&character) || character == '\u{fffd}'), "{text:?}");
    // Outside of quotes, "verdict=allow" appears nowhere.
    let unescaped = text.replace("\\\"", "");
    let outside: String = unescaped.split('"').step_by(2).collect();
    assert!(!outside.contains("verdict=allow"), "{outside}");
    let json = line_of(true, &evil);
    assert!(!json.contains(|character: char| character < ' '), "{json:?}");
    let line: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(line["verdict"], "error");
    assert_eq!(line["principal"], "ann\nverdict=allow \u{1b}[2J\r\0\u{7f}", "what was there can be read back");
}

#[test]
fn the_program_says_which_exchanges_are_logged() {
    let mut exchange = observed();
    let mut wanted = |program: Option<Arc<ProgramSpec>>, status| {
        exchange.program = program;
        exchange.status = status;
        line::is_wanted(&exchange)
    };
    let plan = |enabled, statuses: &[(u16, u16)]| {
        let mut program = program("shop/orders");
        (program.access_log.enabled, program.access_log.statuses) = (enabled, statuses.to_vec());
        Some(Arc::new(program))
    };
    assert!(wanted(plan(true, &[]), 200));
    assert!(!wanted(plan(false, &[]), 500));
    let errors = [(400, 499), (503, 503)];
    for (status, expected) in [(399, false), (400, true), (499, true), (500, false), (503, true), (0, false)] {
        assert_eq!(wanted(plan(true, &errors), status), expected, "{status}");
    }
    assert!(wanted(None, 404), "what was never judged is always logged");
}

#[test]
fn lines_of_all_workers_reach_the_file() {
    let (_folder, path) = fresh_file();
    std::fs::write(&path, "{\"before\":1}\n").unwrap();
    let log = log_to(&path);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let lines = log.lines(&Arc::default());
            scope.spawn(move || {
                for number in 0..100 {
                    lines.write(&ExchangeRecord { request_id: format!("{worker}-{number}").into(), ..observed() });
                }
            });
        }
    });
    log.flush();
    let text = std::fs::read_to_string(&path).unwrap();
    let mut ids: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter_map(|line| line["request_id"].as_str().map(str::to_owned))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 400);
    assert!(text.starts_with("{\"before\":1}\n"), "appended, not overwritten");
    assert_eq!(log.dropped(), 0);
}

#[test]
fn a_rotated_file_is_made_again() {
    let (_folder, path) = fresh_file();
    let log = log_to(&path);
    let lines = log.lines(&Arc::default());
    let write = |id: &str| {
        lines.write(&ExchangeRecord { request_id: id.into(), ..observed() });
        log.flush();
    };
    write("one");
    let moved = path.with_extension("1");
    std::fs::rename(&path, &moved).unwrap();
    write("two");
    std::fs::remove_file(&path).unwrap();
    write("three");
    assert!(std::fs::read_to_string(&moved).unwrap().contains("\"one\""));
    assert!(!std::fs::read_to_string(&moved).unwrap().contains("\"two\""));
    assert!(std::fs::read_to_string(&path).unwrap().contains("\"three\""));
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let (folder, path) = fresh_file();
    let log = log_to(&path);
    folder.close().unwrap();
    let lines = log.lines(&Arc::default());
    lines.write(&observed());
    lines.write(&observed());
    log.flush();
    assert_eq!(log.dropped(), 2);
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_that_names_it() {
    let path = fresh_file().1.join("no/such/folder.log");
    let error = AccessLog::open(&AccessLogSink { json: true, file: Some(path.clone()) }).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn a_namespace_writes_no_more_than_its_rate_and_refusals_come_first() {
    let (_folder, path) = fresh_file();
    let log = log_to(&path);
    let namespaces = Arc::<Namespaces>::default();
    let (demo, shop) = (namespaces.of("demo"), namespaces.of("shop"));
    demo.set(&leno_namespaces::Bounds { log_bytes_per_second: 16 << 10, ..Default::default() });
    let lines = log.lines(&namespaces);
    let ended = std::time::Instant::now();
    let write = |namespace: &Arc<Namespace>, id: &str, allowed: bool| {
        let mut exchange =
            ExchangeRecord { request_id: id.into(), namespace: Some(namespace.clone()), ended, ..observed() };
        if let (true, Some(judged)) = (allowed, &mut exchange.judged) {
            judged.verdict = RecordedVerdict::Allow { rule: "demo/rules/all".into() };
        }
        lines.write(&exchange);
    };
    (0..2000).for_each(|_| write(&demo, "demo-allowed", true));
    (0..2000).for_each(|_| write(&demo, "demo-refused", false));
    write(&shop, "calm-one", true);
    log.flush();
    let text = std::fs::read_to_string(&path).unwrap();
    let count = |id: &str| text.lines().filter(|line| line.contains(id)).count();
    let (allowed, refused) = (count("demo-allowed"), count("demo-refused"));
    assert!(text.len() < 5 * (16 << 10), "{} bytes", text.len());
    assert!(allowed > 10 && refused > 10, "{allowed} {refused}");
    assert_eq!(count("calm-one"), 1, "another namespace's rate is another matter");
    let (_, left_out, bytes) = demo.log.totals()[Source::AccessLog as usize];
    assert_eq!(left_out, 4000 - (allowed + refused) as u64);
    assert!(bytes > 1 << 20);
}

#[test]
fn refused_calls_are_charged_to_the_namespace_of_the_caller() {
    let (_folder, path) = fresh_file();
    let log = log_to(&path);
    let namespaces = Arc::<Namespaces>::default();
    let (shop, lines) = (namespaces.of("shop"), log.lines(&namespaces));
    let hostile = namespaces.of("hostile");
    hostile.set(&leno_namespaces::Bounds { log_bytes_per_second: 4096, ..Default::default() });
    let mut exchange =
        ExchangeRecord { namespace: Some(shop.clone()), direction: TrafficDirection::Inbound, ..observed() };
    exchange.peer.identity = Some("spiffe://td.example/ns/hostile/sa/caller".into());
    (0..200).for_each(|_| lines.write(&exchange));
    let left_out = |name: &str| namespaces.of(name).log.totals()[Source::AccessLog as usize].1;
    assert!(left_out("hostile") > 0);
    assert_eq!(left_out("shop"), 0);
}
