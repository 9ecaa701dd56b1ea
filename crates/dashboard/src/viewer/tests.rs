use super::*;
use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use std::sync::atomic::{AtomicUsize, Ordering};

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
    let viewer = Viewer::new(source.clone());
    let graphs = futures_util::future::join_all((0..20).map(|page| viewer.graph(WINDOWS[page % 5]))).await;
    assert!(graphs.into_iter().all(|graph| graph.is_ok()));
    assert_eq!(source.asked.swap(0, Ordering::Relaxed), 4, "functions, edges, destinations and externals, once");
    let all = FlowFilter::default();
    futures_util::future::join_all((0..20).map(|_| viewer.flows(None, &all))).await;
    futures_util::future::join_all((0..20).map(|_| viewer.rows("events"))).await;
    assert_eq!(source.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_is_shared_as_well() {
    let source = Arc::new(Counting::default());
    let viewer = Viewer::new(source.clone());
    for _ in 0..3 {
        let refused = viewer.rows("broken").await.unwrap_err();
        assert!(matches!(refused, Failure::Refused { status: StatusCode::CONFLICT, .. }));
        assert_eq!(refused.to_string(), "not now");
    }
    assert_eq!(source.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn flows_are_numbered_bounded_and_counted() {
    let flows = |range: std::ops::Range<u16>| {
        range.map(|status| Flow { status, verdict: "allow".to_owned(), ..Flow::default() }).collect::<Vec<_>>()
    };
    let statuses = |batch: &FlowBatch| batch.flows.iter().map(|flow| flow.status).collect::<Vec<_>>();
    let (mut log, all) = (FlowLog::default(), FlowFilter::default());
    log.add(flows(0..300), 7, String::new());
    let (first, position) = log.since(None, &all, Vec::new());
    assert_eq!((statuses(&first), first.missed), ((0..300).collect(), 0), "all that are kept");
    let (none, same) = log.since(Some(position), &all, Vec::new());
    assert_eq!((statuses(&none), none.missed, same), (vec![], 0, position));
    log.add(flows(300..303), 2, String::new());
    let (next, position) = log.since(Some(position), &all, Vec::new());
    assert_eq!((statuses(&next), next.missed), (vec![300, 301, 302], 2));
    log.add(flows(303..303 + 1500), 0, String::new());
    assert_eq!(log.flows.len(), KEPT_FLOWS);
    let (next, _) = log.since(Some(position), &all, Vec::new());
    assert_eq!((next.flows.len(), next.missed), (BATCH, 1300));
    let denied = FlowFilter { verdict: Some("deny".to_owned()), ..FlowFilter::default() };
    let (next, _) = log.since(Some(position), &denied, Vec::new());
    assert_eq!((next.flows.len(), next.missed), (0, 500));
}

/// A node that keeps many flows.
struct Busy {
    flows: Vec<Flow>,
    asked: AtomicUsize,
}

#[async_trait]
impl Source for Busy {
    fn kind(&self) -> SourceKind {
        SourceKind::Node
    }

    fn name(&self) -> String {
        "the test".to_owned()
    }

    async fn exchange(&self, _: Method, path: &str, _: Bytes) -> Result<(StatusCode, Bytes), String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let flows = if path.contains('?') { &[] } else { &self.flows[..] };
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
    let flows = (0..5 * KEPT_FLOWS).map(flow).collect();
    let source = Arc::new(Busy { flows, asked: AtomicUsize::new(0) });
    let viewer = Viewer::new(source.clone());
    let (all, _) = viewer.flows(None, &FlowFilter::default()).await.unwrap();
    assert_eq!((all.flows.len(), all.missed, source.asked.load(Ordering::Relaxed)), (KEPT_FLOWS, 0, 1));
    let denied = FlowFilter { verdict: Some("deny".to_owned()), ..FlowFilter::default() };
    let (first, position) = viewer.flows(None, &denied).await.unwrap();
    let times: Vec<_> = first.flows.iter().map(|flow| flow.time.clone()).collect();
    assert_eq!((times, first.missed), ((0..5).map(|number| flow(1000 * number).time).collect(), 0), "each once");
    let (next, _) = viewer.flows(Some(position), &denied).await.unwrap();
    assert_eq!((next.flows.len(), next.missed), (0, 0));
}
