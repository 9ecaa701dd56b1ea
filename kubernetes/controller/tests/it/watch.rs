//! Watches get the same changes from a conversation, however it is disturbed.

use crate::conversation::{End, Exchange, Replay, recorded};
use leno_controller::api::{ApiServer, Change, Kind, Metadata, Object, ObjectKey, Watch, WatchCounts};
use leno_controller::index::{
    self, ClusterCounts, Endpoint, EndpointKey, Index, PodObject, Service, ServiceKind, TargetPort, TrafficDistribution,
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A kind of the tests, whose definition comes and goes.
pub(crate) const WIDGETS: Kind = Kind { group: "recorded.leno.dev", version: "v1", plural: "widgets", name: "Widget" };

#[derive(Debug, Deserialize)]
pub(crate) struct Widget {
    metadata: Metadata,
    spec: WidgetSpec,
}

#[derive(Debug, Deserialize)]
struct WidgetSpec {
    size: u32,
}

impl Object for Widget {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The pods of the recorded namespace.
pub(crate) fn pods() -> Watch {
    Watch::all(PodObject::KIND).with_fields("metadata.namespace=recorded")
}

/// A watch that runs until it is dropped.
pub(crate) struct Watched<K> {
    pub(crate) counts: Arc<WatchCounts>,
    changes: mpsc::UnboundedReceiver<Change<K>>,
    task: JoinHandle<()>,
}

impl<K> Drop for Watched<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K: Object> Watched<K> {
    pub(crate) fn start(api: &ApiServer, watch: &Watch) -> Self {
        let (sender, changes) = mpsc::unbounded_channel();
        let counts = Arc::new(WatchCounts::default());
        let (api, watch, shared) = (api.clone(), watch.clone(), counts.clone());
        let task =
            tokio::spawn(async move { match api.watch(&watch, &shared, |change| drop(sender.send(change))).await {} });
        Self { counts, changes, task }
    }

    pub(crate) async fn next(&mut self) -> Change<K> {
        let change = tokio::time::timeout(Duration::from_secs(30), self.changes.recv()).await;
        change.expect("a change within 30 s").unwrap()
    }

    pub(crate) async fn until(&mut self, wanted: impl Fn(&Change<K>) -> bool) -> Change<K> {
        loop {
            let change = self.next().await;
            if wanted(&change) {
                return change;
            }
        }
    }

    pub(crate) async fn listed(&mut self) {
        self.until(|change| matches!(change, Change::Replaced { .. })).await;
    }

    /// The next changes, in words.
    async fn texts(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.len() < count {
            texts.push(match self.next().await {
                Change::Replaced { objects, broken } => {
                    let names: Vec<&str> = objects.iter().map(|object| object.metadata().name.as_str()).collect();
                    format!("all {names:?}, {} broken", broken.len())
                }
                Change::Put(object) => format!("put {}", object.metadata().name),
                Change::Broken(object) => format!("broken {object}"),
                Change::Gone(key) => format!("gone {key}"),
            });
        }
        texts
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn version(line: &str) -> String {
    let event: Value = serde_json::from_str(line).unwrap();
    event["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The recorded watch of pods, and the number of lines that its list has.
fn watch_of_pods() -> (Exchange, usize) {
    let [watch] = <[Exchange; 1]>::try_from(recorded("pods")).unwrap();
    let end = watch.lines.iter().position(|line| line.contains("k8s.io/initial-events-end")).unwrap();
    (watch, end + 1)
}

/// The API server announces the end of a pod before it removes it.
const PODS: [&str; 5] = ["all [\"a\", \"b\"], 0 broken", "put a", "put c", "put b", "gone recorded/b"];

async fn wait(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_streaming_list_goes_on_as_a_watch() {
    let (watch, _) = watch_of_pods();
    let server = Replay::start([watch]).await;
    let mut watched = Watched::<PodObject>::start(&server.api(), &pods());
    assert_eq!(watched.texts(5).await, PODS);
    assert!(server.is_over());
    assert_eq!((count(&watched.counts.lists), count(&watched.counts.resumed)), (1, 0));
}

#[tokio::test]
async fn a_watch_resumes_where_its_connection_broke() {
    let (watch, listed) = watch_of_pods();
    assert!(watch.lines.last().unwrap().contains("BOOKMARK"), "the watch resumes at a bookmark too");
    for (end, broken) in [(End::Complete, 0), (End::Short, 1), (End::Broken, 1)] {
        for kept in listed..=watch.lines.len() - broken {
            let first = watch.with(&watch.lines[..kept + broken], end);
            let second = watch.with(&watch.lines[kept..], End::Open);
            let second = Exchange { request: watch.resumed(&version(&watch.lines[kept - 1])), ..second };
            let server = Replay::start([first, second]).await;
            let mut watched = Watched::<PodObject>::start(&server.api(), &pods());
            assert_eq!(watched.texts(5).await, PODS, "{kept} lines, {end:?}");
            wait(|| server.is_over()).await;
            let counts = &watched.counts;
            wait(|| count(&counts.resumed) == 1).await;
            assert_eq!((count(&counts.lists), count(&counts.relists)), (1, 0), "{kept} lines, {end:?}");
        }
    }
}

#[tokio::test]
async fn a_watch_resumes_when_its_connection_falls_silent() {
    let (watch, listed) = watch_of_pods();
    let silent = watch.with(&watch.lines[..listed], End::Open);
    let rest = watch.with(&watch.lines[listed..], End::Open);
    let rest = Exchange { request: watch.resumed(&version(&watch.lines[listed - 1])), ..rest };
    let server = Replay::start([silent, rest]).await;
    let mut watched = Watched::<PodObject>::start(&server.api(), &pods().with_silence(Duration::from_millis(100)));
    assert_eq!(watched.texts(5).await, PODS);
    assert_eq!((count(&watched.counts.lists), count(&watched.counts.resumed)), (1, 1));
}

#[tokio::test]
async fn a_list_that_breaks_begins_anew() {
    let (watch, listed) = watch_of_pods();
    for kept in 1..listed {
        let server = Replay::start([watch.with(&watch.lines[..kept], End::Broken), watch.clone()]).await;
        let mut watched = Watched::<PodObject>::start(&server.api(), &pods());
        assert_eq!(watched.texts(5).await, PODS, "{kept} lines");
        assert!(server.is_over());
    }
}

#[tokio::test]
async fn a_version_that_is_gone_is_listed_once() {
    let (watch, listed) = watch_of_pods();
    let [expired] = <[Exchange; 1]>::try_from(recorded("expired")).unwrap();
    assert!(expired.status == 200 && expired.lines[0].contains("\"code\":410"), "{expired:?}");
    let request = watch.resumed(&version(&watch.lines[listed - 1]));
    let event = Exchange { request: request.clone(), end: End::Complete, ..expired.clone() };
    let status = serde_json::from_str::<Value>(&expired.lines[0]).unwrap()["object"].to_string();
    let answer = Exchange { request, status: 410, lines: vec![status], end: End::Complete };
    for gone in [event, answer] {
        let server = Replay::start([watch.with(&watch.lines[..listed], End::Complete), gone, watch.clone()]).await;
        let mut watched = Watched::<PodObject>::start(&server.api(), &pods());
        let texts = watched.texts(6).await;
        assert_eq!((texts[0].as_str(), &texts[1..]), (PODS[0], &PODS.map(str::to_owned)[..]));
        assert!(server.is_over());
        assert_eq!(count(&watched.counts.relists), 1);
    }
}

#[tokio::test]
async fn pages_take_the_place_of_a_refused_streaming_list_for_all_kinds() {
    let refused = recorded("refused");
    let (list, resumed) = (&refused[1], &refused[2]);
    assert!(refused[0].lines[0].contains("\"code\":500") && list.status == 200 && resumed.is_watch(), "{refused:?}");
    let server = Replay::start(refused.iter().chain([list, resumed]).cloned()).await;
    let api = server.api();
    for _ in 0..2 {
        let mut watched = Watched::<PodObject>::start(&api, &pods());
        assert_eq!(watched.texts(3).await, ["all [\"a\", \"b\"], 0 broken", "put b", "gone recorded/b"]);
    }
    assert!(server.is_over());
}

#[tokio::test]
async fn a_list_is_complete_only_with_its_last_page() {
    let all = |exchange: &Exchange| {
        let request = exchange.request.replace("fieldSelector=metadata.namespace%3Drecorded&", "");
        Exchange { request, ..exchange.clone() }
    };
    let (refused, mut pages) = (all(&recorded("refused")[0]), recorded("pages"));
    for page in &mut pages {
        page.request = page.request.replace("limit=1", "limit=500");
    }
    let list: Value = serde_json::from_str(&pages[1].lines[0]).unwrap();
    let request = refused.resumed(list["metadata"]["resourceVersion"].as_str().unwrap());
    let watch = Exchange { request, lines: Vec::new(), end: End::Open, ..refused.clone() };
    let server = Replay::start([refused].into_iter().chain(pages).chain([watch])).await;
    let mut watched = Watched::<PodObject>::start(&server.api(), &Watch::all(PodObject::KIND));
    assert_eq!(watched.texts(1).await, ["all [\"a\", \"c\"], 0 broken"]);
    wait(|| server.is_over()).await;
}

#[tokio::test]
async fn a_kind_is_watched_while_it_is_defined_past_objects_that_do_not_decode() {
    let server = Replay::start(recorded("widgets").into_iter().map(|mut exchange| {
        // The API server ended the watch when the definition went.
        let ends = exchange.lines.iter().any(|line| line.contains("DELETED")) && exchange.request.contains("/widgets");
        exchange.end = if ends { End::Complete } else { exchange.end };
        exchange
    }));
    let server = server.await;
    let mut watched = Watched::<Widget>::start(&server.api(), &Watch::all(WIDGETS));
    let texts = watched.texts(2).await;
    assert_eq!(texts, ["all [], 0 broken"; 2], "not defined, then defined");
    assert!(matches!(watched.next().await, Change::Put(widget) if widget.spec.size == 1));
    let broken = "broken Widget recorded/bad: spec.size: invalid type: string \"large\", expected u32";
    assert!(watched.texts(1).await[0].starts_with(broken));
    assert!(matches!(watched.next().await, Change::Put(widget) if widget.spec.size == 2));
    watched.listed().await;
    assert_eq!(count(&watched.counts.broken), 1);
}

#[tokio::test]
async fn the_index_follows_a_cluster() {
    let cluster = recorded("cluster");
    let (watch, _) = watch_of_pods();
    let of_all = |exchange: Exchange| Exchange {
        request: exchange.request.replace("fieldSelector=metadata.namespace%3Drecorded&", ""),
        ..exchange
    };
    let services = recorded("services").into_iter().map(of_all);
    let server = Replay::start(cluster.into_iter().chain([of_all(watch)]).chain(services)).await;
    let index = Arc::new(Mutex::new(Index::default()));
    let (sender, mut changes) = mpsc::unbounded_channel();
    let (api, shared) = (server.api(), index.clone());
    let task = tokio::spawn(async move {
        let sink = |changes| drop(sender.send(changes));
        match index::follow(&api, &ClusterCounts::default(), &shared, sink).await {}
    });
    let (mut addresses, mut gone) = (Vec::new(), Vec::new());
    let (mut services, mut endpoints) = (BTreeMap::new(), BTreeMap::new());
    let outside = ObjectKey { namespace: "recorded".to_owned(), name: "outside".to_owned() };
    let is_over = |services: &BTreeMap<ObjectKey, Option<Service>>,
                   endpoints: &BTreeMap<EndpointKey, Option<Endpoint>>| {
        services.get(&outside) == Some(&None) && endpoints.values().any(Option::is_none)
    };
    while gone.is_empty() || addresses.is_empty() || !is_over(&services, &endpoints) {
        let changes = changes.recv().await.unwrap();
        let changed = changes.services.unwrap_or_default();
        services.extend(changed.services);
        endpoints.extend(changed.endpoints.into_values().flatten());
        for (node, pod) in changes.put {
            assert_eq!((node.as_str(), pod.function.to_string()), ("recorded-1", format!("recorded/{}", pod.name)));
            assert_eq!((pod.ports[0].number, pod.probes[0].path.as_deref()), (8080, Some("/ready")));
            addresses.extend(pod.addresses);
        }
        gone.extend(changes.gone);
    }
    assert_eq!(addresses, ["10.78.1.2".parse::<std::net::IpAddr>().unwrap()]);
    let index = index.lock().unwrap();
    let node = index.node("recorded-1").unwrap();
    assert_eq!(node.addresses, ["10.77.0.11".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(node.locality.zone.as_deref(), Some("north-1"));
    assert_eq!(index.pods(), 2);
    assert_eq!((services.values().flatten().count(), index.services()), (2, [2, 1, 1]));
    let headless = services.values().flatten().filter(|service| service.kind == ServiceKind::Headless);
    assert_eq!(headless.count(), 1);
    let web = services.values().flatten().find(|service| service.is_node_local).unwrap();
    assert_eq!(web.ports[0].target, TargetPort::Name("http".into()));
    assert_eq!((web.affinity.is_some(), web.distribution), (true, Some(TrafficDistribution::SameZone)));
    let left = endpoints.values().flatten().next().unwrap();
    assert_eq!((left.conditions.is_ready, left.conditions.is_serving, left.conditions.stays), (false, true, false));
    assert_eq!((left.place.zone.as_deref(), &*left.place.for_zones[0]), (Some("north-1"), "north-1"));
    task.abort();
}
