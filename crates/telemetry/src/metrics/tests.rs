use super::*;
use crate::exposition::Exposition;
use crate::request_line::RequestLine;
use crate::testing::observed;

fn exposition(metrics: &Metrics) -> String {
    let entries = Entries { counters: 3, ..Entries::default() };
    let gauges = Gauges { entries, log_lines_dropped: 2, spans_dropped: 0 };
    Exposition::default().with(&metrics.scrape("orders.example", gauges)).finish()
}

/// The value of the one sample of this name with all of these labels.
fn sample(text: &str, name: &str, labels: &[&str]) -> f64 {
    let is_it = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let lines = text.lines().map(|line| line.split(" # ").next().unwrap_or(line));
    let found: Vec<&str> = lines.filter(is_it).collect();
    let [line] = &found[..] else { panic!("{name} {labels:?}: {found:?}") };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn requests_are_counted_under_istios_names_and_labels() {
    let metrics = Metrics::default();
    let shard = metrics.shard();
    let mut hop = observed();
    hop.direction = TrafficDirection::Inbound;
    hop.peer.identity = Some("spiffe://orders.example/ns/shop/sa/frontend".into());
    shard.observe(&hop);
    shard.observe(&hop);
    let text = exposition(&metrics);
    let labels = [
        r#"reporter="destination""#,
        r#"source_workload="frontend""#,
        r#"source_workload_namespace="shop""#,
        r#"source_principal="spiffe://orders.example/ns/shop/sa/frontend""#,
        r#"destination_workload="order-service""#,
        r#"destination_workload_namespace="orders""#,
        r#"destination_principal="spiffe://orders.example/ns/orders/sa/order-service""#,
        r#"destination_service="order-service.orders.svc.cluster.local""#,
        r#"request_protocol="http""#,
        r#"response_code="403""#,
        r#"response_flags="-""#,
        r#"connection_security_policy="mutual_tls""#,
    ];
    assert_eq!(sample(&text, "istio_requests_total", &labels), 2.0);
    assert_eq!(sample(&text, "istio_request_duration_milliseconds_count", &labels), 2.0);
    assert_eq!(sample(&text, "istio_request_duration_milliseconds_sum", &labels), 40.0);
    let bucket = |bound: &str| {
        let bound = format!("le=\"{bound}\"");
        sample(&text, "istio_request_duration_milliseconds_bucket", &[&bound])
    };
    assert_eq!([bucket("10.0"), bucket("25.0"), bucket("+Inf")], [0.0, 2.0, 2.0]);
    assert_eq!(sample(&text, "istio_request_bytes_sum", &[]), 24.0);
    assert_eq!(sample(&text, "istio_response_bytes_sum", &[]), 690.0);
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn verdicts_faults_signatures_retries_and_runs_are_counted() {
    let metrics = Metrics::default();
    let shard = metrics.shard();
    shard.observe(&observed());
    let mut faulty = observed();
    faulty.direction = TrafficDirection::Outbound;
    if let Some(judged) = &mut faulty.judged {
        judged.verdict = RecordedVerdict::Fault { fault: "deadline", reason: "ran past its deadline".into() };
    }
    shard.observe(&faulty);
    shard.sandbox_run(EngineKind::Wasm, Duration::from_micros(4));
    shard.ejection(&"orders/order-service".into());
    shard.unproven(&"orders/order-service".into(), "caller");
    let text = exposition(&metrics);
    let function = r#"function="orders/order-service""#;
    let rule = r#"rule="orders/authorization/from-frontend""#;
    assert_eq!(
        sample(
            &text,
            "leno_decisions_total",
            &[function, r#"direction="inbound""#, r#"policy="authorization""#, rule, r#"verdict="deny""#]
        ),
        1.0
    );
    let fault = [function, r#"direction="outbound""#, r#"fault="deadline""#];
    assert_eq!(sample(&text, "leno_sandbox_faults_total", &fault), 1.0);
    let signature = [r#"algorithm="ES256""#, r#"result="good""#];
    assert_eq!(sample(&text, "leno_signature_verifications_total", &signature), 2.0);
    assert_eq!(sample(&text, "leno_retries_total", &[r#"destination="orders/order-service""#]), 2.0);
    assert_eq!(sample(&text, "leno_ejections_total", &[]), 1.0);
    assert_eq!(sample(&text, "leno_unproven_connections_total", &[function, r#"end="caller""#]), 1.0);
    assert_eq!(sample(&text, "leno_sandbox_run_seconds_count", &[r#"engine="wasm""#]), 1.0);
    let sum = sample(&text, "leno_sandbox_run_seconds_sum", &[r#"engine="wasm""#]);
    assert!((sum - 4e-6).abs() < 1e-12, "{sum}");
    assert_eq!(sample(&text, "leno_ledger_entries", &[r#"kind="quota""#]), 3.0);
    assert_eq!(sample(&text, "leno_access_log_dropped_total", &[]), 2.0);
    assert_eq!(sample(&text, "leno_build_info", &[&format!("version=\"{}\"", env!("CARGO_PKG_VERSION"))]), 1.0);
}

#[test]
fn shards_are_added_up() {
    let metrics = Metrics::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let shard = metrics.shard();
            scope.spawn(move || (0..100).for_each(|_| shard.observe(&observed())));
        }
    });
    let text = exposition(&metrics);
    assert_eq!(sample(&text, "istio_requests_total", &[]), 400.0);
    assert_eq!(sample(&text, "istio_request_bytes_count", &[]), 400.0);
}

#[test]
fn what_clients_send_never_becomes_a_label() {
    let metrics = Metrics::default();
    let shard = metrics.shard();
    for number in 0..100 {
        let mut hop = observed();
        let (method, host, path) = (format!("M{number}"), format!("host-{number}"), format!("/path-{number}"));
        hop.request_line = RequestLine::new(&method, &host, &path);
        shard.observe(&hop);
    }
    assert_eq!(sample(&exposition(&metrics), "istio_requests_total", &[]), 100.0, "one series for all");
}

#[test]
fn series_are_bounded() {
    let metrics = Metrics::default();
    let shard = metrics.shard();
    let mut hop = observed();
    for number in 0..2 * MOST_RULES {
        if let Some(judged) = &mut hop.judged {
            judged.verdict = RecordedVerdict::Allow { rule: format!("made-up-{number}").into() };
        }
        shard.observe(&hop);
    }
    let decisions = exposition(&metrics);
    let rules = decisions.lines().filter(|line| line.starts_with("leno_decisions_total{")).count();
    assert_eq!(rules, MOST_RULES + 1);
    assert_eq!(sample(&decisions, "leno_decisions_total", &[r#"rule="other""#]), MOST_RULES as f64);

    for number in 0..MOST_SERIES + 10 {
        hop.target = Some(format!("ns/f{number}").into());
        shard.observe(&hop);
    }
    let exchanges = exposition(&metrics);
    let series = exchanges.lines().filter(|line| line.starts_with("istio_requests_total{")).count();
    assert_eq!(series, MOST_SERIES + 1);
    assert_eq!(sample(&exchanges, "istio_requests_total", &[r#"response_flags="other""#]), 11.0);
}

#[test]
fn rule_names_are_escaped() {
    let metrics = Metrics::default();
    let mut hop = observed();
    if let Some(judged) = &mut hop.judged {
        judged.verdict = RecordedVerdict::Allow { rule: "a\"b\\c\nd".into() };
    }
    metrics.shard().observe(&hop);
    let text = exposition(&metrics);
    assert!(text.contains(r#"rule="a\"b\\c\nd""#), "{text}");
}

#[test]
fn buckets_have_the_latest_sampled_trace() {
    let metrics = Metrics::default();
    let traced = |trace_id: u128, sampled, after_ms, lasted_ms| {
        let mut hop = observed();
        if let Some(plan) = &mut hop.trace {
            (plan.context.trace_id, plan.context.sampled) = (trace_id, sampled);
        }
        hop.started_at += Duration::from_millis(after_ms);
        hop.ended = hop.started + Duration::from_millis(lasted_ms);
        hop
    };
    let (one, other) = (metrics.shard(), metrics.shard());
    one.observe(&traced(1, true, 0, 20));
    one.observe(&traced(2, true, 10, 20));
    one.observe(&traced(3, false, 20, 20));
    other.observe(&traced(4, true, 5, 20));
    other.observe(&traced(5, true, 30, 70));
    other.observe(&ExchangeRecord { trace: None, ..observed() });
    let text = exposition(&metrics);
    let exemplars: Vec<&str> = text.lines().filter_map(|line| line.split_once(" # ")).map(|(_, of)| of).collect();
    assert_eq!(
        exemplars,
        [
            "{trace_id=\"00000000000000000000000000000002\"} 20.0 1700000000.153",
            "{trace_id=\"00000000000000000000000000000005\"} 70.0 1700000000.223",
        ]
    );
    assert!(text.contains("le=\"25.0\"} 5 # "), "{text}");
    assert!(text.contains("le=\"100.0\"} 6 # "), "{text}");
}

#[test]
fn the_exposed_bucket_of_a_duration_follows_from_its_fine_bucket() {
    let bounds = ISTIO_BUCKETS.iter().flat_map(|bound| [bound * 0.999, *bound, bound * 1.001, bound * 1.7]);
    for duration in bounds.chain([0.0, 1e-4, 0.017, 1e9]) {
        let fine = latency::bucket((duration * 1e3) as u64);
        let expected = ISTIO_BUCKETS.partition_point(|bound| *bound < duration);
        assert_eq!(duration_bucket(fine, duration), expected, "{duration} ms");
    }
}
