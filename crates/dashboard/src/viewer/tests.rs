use super::*;
use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use leno_telemetry::flows::{Flow, Flows};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A node whose answers are empty, and which counts questions.
#[derive(Default)]
struct Counting {
    asked: AtomicUsize,
}

#[async_trait]
impl Source for Counting {
    fn kind(&self) -> SourceKind {
        SourceKind::Node
    }

    fn name(&self) -> String {
        "the test".to_owned()
    }

    async fn exchange(&self, _: Method, path: &str, _: Bytes) -> Result<(StatusCode, Bytes), String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match path.split('?').next() {
            Some("/flows") => Ok((StatusCode::OK, r#"{"flows":[],"missed":0,"next":"1"}"#.into())),
            Some("/broken") => Ok((StatusCode::CONFLICT, "not now\n".into())),
            _ => Ok((StatusCode::OK, "[]".into())),
        }
    }
}

#[tokio::test]
async fn pages_share_one_question() {
    let source = Arc::new(Counting::default());
    let viewer = Viewer::new(source.clone(), Arc::default());
    let graphs = futures_util::future::join_all((0..20).map(|page| viewer.graph(WINDOWS[page % 5]))).await;
    assert!(graphs.into_iter().all(|graph| graph.is_ok()));
    assert_eq!(source.asked.swap(0, Ordering::Relaxed), 4, "functions, edges, destinations and externals, once");
    let logs: Vec<_> = (0..20).map(|_| viewer.follow(&FlowFilter::default())).collect();
    futures_util::future::join_all(logs.iter().map(|log| viewer.flows(log, None))).await;
    futures_util::future::join_all((0..20).map(|_| viewer.rows("events"))).await;
    assert_eq!(source.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_is_shared_as_well() {
    let source = Arc::new(Counting::default());
    let viewer = Viewer::new(source.clone(), Arc::default());
    for _ in 0..3 {
        let refused = viewer.rows("broken").await.unwrap_err();
        assert!(matches!(refused, Failure::Refused { status: StatusCode::CONFLICT, .. }));
        assert_eq!(refused.to_string(), "not now");
    }
    assert_eq!(source.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn flows_are_numbered_bounded_and_counted() {
    let answer = |range: std::ops::Range<u16>, missed| Flows {
        flows: range.map(|status| Flow { status, ..Flow::default() }).collect(),
        missed,
        next: String::new(),
    };
    let read = |batch: Option<Arc<str>>| {
        let batch: Value = serde_json::from_str(&batch.unwrap()).unwrap();
        let flows = batch["flows"].as_array().unwrap().iter();
        // A status of 0 is left out.
        let statuses = flows.map(|flow| flow["status"].as_u64().unwrap_or_default()).collect::<Vec<_>>();
        (statuses, batch["missed"].as_u64().unwrap())
    };
    let mut log = FlowLog::default();
    assert_eq!(read(log.since(None).0), (vec![], 0), "a page hears at once that there are none");
    log.add(&answer(0..300, 7));
    let (first, position) = log.since(None);
    assert_eq!(read(first), ((0..300).collect(), 0), "all that are kept");
    assert_eq!(log.since(Some(position)), (None, position));
    log.add(&answer(300..303, 2));
    let (next, later) = log.since(Some(position));
    assert_eq!(read(next.clone()), (vec![300, 301, 302], 2));
    let (again, _) = log.since(Some(position));
    assert!(Arc::ptr_eq(&next.unwrap(), &again.unwrap()), "pages share one text");
    log.add(&answer(303..303, 4));
    assert_eq!(read(log.since(Some(later)).0), (vec![], 4), "nodes forgot some");
    assert_eq!(read(log.since(Some(position)).0), (vec![300, 301, 302], 6), "a slow page");
    log.add(&answer(303..303 + 1500, 0));
    assert_eq!(log.flows.len(), KEPT_FLOWS);
    let (statuses, missed) = read(log.since(Some(later)).0);
    assert_eq!((statuses.len(), missed), (BATCH, 1304));
}

/// The bearer of a token that is revoked at some time.
struct Revocable {
    is_valid: AtomicBool,
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Source for Revocable {
    fn kind(&self) -> SourceKind {
        SourceKind::ControlPlane
    }

    fn name(&self) -> String {
        "the test".to_owned()
    }

    fn is_valid(&self) -> bool {
        self.is_valid.load(Ordering::Relaxed)
    }

    async fn exchange(&self, _: Method, path: &str, _: Bytes) -> Result<(StatusCode, Bytes), String> {
        if !self.is_valid() {
            return Ok((StatusCode::UNAUTHORIZED, r#"{"error":"no valid token"}"#.into()));
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(path.starts_with("/v1/flows?last=1000"), "{path}");
        Ok((StatusCode::OK, r#"{"rows":[],"after":"one:1"}"#.into()))
    }
}

#[tokio::test]
async fn pages_with_the_same_rights_share_answers_and_no_refusal_of_a_revoked_token() {
    let asked = Arc::new(AtomicUsize::default());
    let answers = Arc::<SharedAnswers>::default();
    let viewer = |is_valid| {
        let source = Revocable { is_valid: AtomicBool::new(is_valid), asked: asked.clone() };
        Viewer::new(Arc::new(source), answers.clone())
    };
    let (revoked, one, other) = (viewer(false), viewer(true), viewer(true));
    let denied = FlowFilter { verdict: Some("deny".to_owned()), ..FlowFilter::default() };
    let log = revoked.follow(&denied);
    assert!(matches!(revoked.flows(&log, None).await, Err(Failure::Refused { .. })));
    for viewer in [&one, &other] {
        assert!(viewer.flows(&viewer.follow(&denied), None).await.is_ok());
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1, "one question for equal filters");
    let all = one.follow(&FlowFilter::default());
    assert!(one.flows(&all, None).await.is_ok());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    drop((log, all));
    let _again = one.follow(&denied);
    assert_eq!(answers.flows.lock().unwrap().len(), 1, "a filter that no page has is forgotten");
}

/// A node that keeps many flows.
struct Busy(Vec<Flow>);

#[async_trait]
impl Source for Busy {
    fn kind(&self) -> SourceKind {
        SourceKind::Node
    }

    fn name(&self) -> String {
        "the test".to_owned()
    }

    async fn exchange(&self, _: Method, path: &str, _: Bytes) -> Result<(StatusCode, Bytes), String> {
        let flows = if path.contains('?') { &[] } else { &self.0[..] };
        let answer = serde_json::json!({ "flows": flows, "missed": 0, "next": "1" });
        Ok((StatusCode::OK, answer.to_string().into()))
    }
}

#[tokio::test]
async fn a_new_page_gets_the_latest_that_match_of_all_that_nodes_keep() {
    let flow = |number: usize| Flow {
        time: format!("2026-01-01T00:00:{number:09}Z"),
        verdict: if number.is_multiple_of(1000) { "deny" } else { "allow" }.to_owned(),
        ..Flow::default()
    };
    let source = Arc::new(Busy((0..5 * KEPT_FLOWS).map(flow).collect()));
    let viewer = Viewer::new(source, Arc::default());
    let read = |batch: Option<Arc<str>>| serde_json::from_str::<Value>(&batch.unwrap()).unwrap();
    let log = viewer.follow(&FlowFilter::default());
    let all = read(viewer.flows(&log, None).await.unwrap().0);
    assert_eq!((all["flows"].as_array().unwrap().len(), &all["missed"]), (KEPT_FLOWS, &0.into()));
    let log = viewer.follow(&FlowFilter { verdict: Some("deny".to_owned()), ..FlowFilter::default() });
    let (first, position) = viewer.flows(&log, None).await.unwrap();
    let first = read(first);
    let times: Vec<_> = first["flows"].as_array().unwrap().iter().map(|flow| flow["time"].clone()).collect();
    let expected: Vec<_> = (0..5).map(|number| Value::from(flow(1000 * number).time)).collect();
    assert_eq!((times, &first["missed"]), (expected, &0.into()), "each once");
    assert_eq!(viewer.flows(&log, Some(position)).await.unwrap().0, None);
}
