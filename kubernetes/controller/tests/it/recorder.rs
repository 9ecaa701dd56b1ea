//! Records the conversations that the tests replay: `make kubernetes-recordings`. The controller
//! speaks to the API server of `KUBECONFIG` through a proxy, which writes what passes; the recorder
//! changes objects meanwhile.

use crate::conversation::{self, Body, Exchange, Server, body_of};
use crate::review::account;
use crate::watch::{WIDGETS, Watched, Widget, pods};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Response};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leno_control::JoinVerifier;
use leno_controller::api::{Change, Watch};
use leno_controller::index::{EndpointSliceObject, NamespaceObject, NodeObject, PodObject, ServiceObject};
use leno_controller::review::TokenReviewer;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Writes what passes between the controller and the API server.
struct Recorder {
    exchanges: Arc<Mutex<Vec<Exchange>>>,
    proxy: Server,
    client: kube::Client,
}

impl Recorder {
    async fn start() -> Self {
        let client = kube::Client::try_default().await.expect("KUBECONFIG has to name a cluster");
        let exchanges = Arc::new(Mutex::new(Vec::new()));
        let (log, to) = (exchanges.clone(), client.clone());
        let proxy = Server::start(move |request| {
            let (log, to) = (log.clone(), to.clone());
            async move {
                let (parts, body) = body_of(request).await;
                let path = parts.uri.path_and_query().unwrap().as_str().to_owned();
                let request = Exchange::request(parts.method.as_str(), &path);
                let mut sent = Request::builder().method(parts.method).uri(path);
                for name in ["accept", "content-type"] {
                    if let Some(value) = parts.headers.get(name) {
                        sent = sent.header(name, value);
                    }
                }
                let answer = to.send(sent.body(kube::client::Body::from(body.to_vec())).unwrap()).await.unwrap();
                let status = answer.status().as_u16();
                let index = {
                    let mut log = log.lock().unwrap();
                    log.push(Exchange { request, status, lines: vec![String::new()], end: Default::default() });
                    log.len() - 1
                };
                let frames = answer.into_body().into_data_stream().map(move |data| {
                    let data: Bytes = data.map_err(std::io::Error::other)?;
                    let mut log = log.lock().unwrap();
                    let lines = &mut log[index].lines;
                    for (number, part) in std::str::from_utf8(&data).unwrap().split('\n').enumerate() {
                        match number {
                            0 => lines.last_mut().unwrap().push_str(part),
                            _ => lines.push(part.to_owned()),
                        }
                    }
                    Ok(Frame::data(data))
                });
                let body: Body = StreamBody::new(Box::pin(frames));
                Response::builder().status(status).body(body).unwrap()
            }
        });
        Self { exchanges, proxy: proxy.await, client }
    }

    /// Writes the exchanges since the last call.
    fn write(&self, name: &str) {
        let mut exchanges = std::mem::take(&mut *self.exchanges.lock().unwrap());
        for exchange in &mut exchanges {
            exchange.lines.retain(|line| !line.is_empty());
            for line in &mut exchange.lines {
                *line = without_token(&without_managed_fields(line));
            }
        }
        conversation::write(name, &exchanges);
    }

    async fn create(&self, path: &str, object: Value) -> Value {
        let request = kube::core::Request::new(path);
        let request = || request.create(&PostParams::default(), object.to_string().into_bytes()).unwrap();
        // A namespace is new, and its service account is yet to come.
        for _ in 0..100 {
            match self.client.request::<Value>(request()).await {
                Ok(object) => return object,
                Err(error) => eprintln!("{path}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{path} was not created");
    }

    async fn delete(&self, path: &str, name: &str) {
        let parameters = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let request = kube::core::Request::new(path).delete(name, &parameters).unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    async fn patch(&self, path: &str, name: &str, patch: Value) {
        let request = kube::core::Request::new(path);
        let request = request.patch(name, &PatchParams::default(), &Patch::Merge(patch)).unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    async fn patch_status(&self, path: &str, name: &str, status: Value) {
        let request = kube::core::Request::new(path);
        let patch = Patch::Merge(json!({ "status": status }));
        let request = request.patch_subresource("status", name, &PatchParams::default(), &patch).unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }
}

/// The text without the lists of who set which field, which are half of an object.
fn without_managed_fields(line: &str) -> String {
    const BEGIN: &str = "\"managedFields\":[";
    let Some((before, rest)) = line.split_once(BEGIN) else { return line.to_owned() };
    let (mut depth, mut text, mut escaped) = (1, false, false);
    let end = rest.find(|c: char| {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => text = !text,
            '[' if !text => depth += 1,
            ']' if !text => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let after = rest[end.unwrap() + 1..].trim_start_matches(',');
    let before = if after.starts_with('}') { before.trim_end_matches(',') } else { before };
    without_managed_fields(&format!("{before}{after}"))
}

/// The text without the token that a review repeats.
fn without_token(line: &str) -> String {
    const BEGIN: &str = "\"token\":\"";
    let Some((before, rest)) = line.split_once(BEGIN) else { return line.to_owned() };
    format!("{before}{BEGIN}recorded\"{}", rest.split_once('"').unwrap().1)
}

const PODS: &str = "/api/v1/namespaces/recorded/pods";

fn node() -> Value {
    let labels = json!({ "topology.kubernetes.io/region": "north", "topology.kubernetes.io/zone": "north-1" });
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "recorded-1", "labels": labels } })
}

fn namespace() -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "recorded", "labels": { "leno.dev/mesh": "enabled" } } })
}

fn pod(name: &str, account: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "nodeName": "recorded-1",
            "serviceAccountName": account,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "recorded", "ports": [{ "name": "http", "containerPort": 8080 }],
                "readinessProbe": { "httpGet": { "path": "/ready", "port": "http" } },
            }],
        },
    })
}

/// Whether the recordings are to be written anew, from the cluster of KUBECONFIG.
fn is_wanted() -> bool {
    let wanted = std::env::var_os("LENO_RECORD").is_some();
    if !wanted {
        eprintln!("SKIPPED: `make kubernetes-recordings` writes tests/recorded anew");
    }
    wanted
}

#[tokio::test]
async fn record() {
    if !is_wanted() {
        return;
    }
    let recorder = Recorder::start().await;
    let api = recorder.proxy.api();
    recorder.create("/api/v1/nodes", node()).await;
    let addresses = json!([{ "type": "InternalIP", "address": "10.77.0.11" }]);
    recorder.patch_status("/api/v1/nodes", "recorded-1", json!({ "addresses": addresses })).await;
    recorder.create("/api/v1/namespaces", namespace()).await;

    // Namespaces and nodes, for the index.
    Watched::<NamespaceObject>::start(&api, &Watch::all(NamespaceObject::KIND)).listed().await;
    Watched::<NodeObject>::start(&api, &Watch::all(NodeObject::KIND)).listed().await;
    recorder.write("cluster");

    // A streaming list, and changes of all types up to a bookmark.
    recorder.create(PODS, pod("a", "default")).await;
    recorder.create(PODS, pod("b", "default")).await;
    let mut watched = Watched::<PodObject>::start(&api, &pods());
    watched.listed().await;
    let running = json!({ "phase": "Running", "podIP": "10.78.1.2", "podIPs": [{ "ip": "10.78.1.2" }] });
    recorder.patch_status(PODS, "a", running).await;
    watched.until(|change| matches!(change, Change::Put(_))).await;
    recorder.create(PODS, pod("c", "default")).await;
    watched.until(|change| matches!(change, Change::Put(_))).await;
    recorder.delete(PODS, "b").await;
    watched.until(|change| matches!(change, Change::Gone(_))).await;
    // The bookmark is of a version that no event had. The first one ends the list.
    recorder.create("/api/v1/namespaces/default/pods", pod("elsewhere", "default")).await;
    let bookmarks =
        || recorder.exchanges.lock().unwrap()[0].lines.iter().filter(|line| line.contains("BOOKMARK")).count();
    while bookmarks() < 2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(watched);
    recorder.delete("/api/v1/namespaces/default/pods", "elsewhere").await;
    recorder.write("pods");

    // A list in pages.
    let pages = kube::api::ListParams { limit: Some(1), ..Default::default() };
    let list = kube::core::Request::new("/api/v1/pods");
    let first: Value = api.client().request(list.list(&pages).unwrap()).await.unwrap();
    let pages = pages.continue_token(first["metadata"]["continue"].as_str().unwrap());
    api.client().request_text(list.list(&pages).unwrap()).await.unwrap();
    recorder.write("pages");

    record_services(&recorder).await;
    record_widgets(&recorder).await;
    record_reviews(&recorder).await;
    recorder.delete("/api/v1/namespaces", "recorded").await;
    recorder.delete("/api/v1/nodes", "recorded-1").await;
}

/// A streaming list that is refused, and pages in its place: `make kubernetes-recordings` starts an
/// API server without streaming lists for it.
#[tokio::test]
async fn record_a_refusal() {
    if !is_wanted() {
        return;
    }
    let recorder = Recorder::start().await;
    recorder.create("/api/v1/nodes", node()).await;
    recorder.create("/api/v1/namespaces", namespace()).await;
    recorder.create(PODS, pod("a", "default")).await;
    recorder.create(PODS, pod("b", "default")).await;
    let mut watched = Watched::<PodObject>::start(&recorder.proxy.api(), &pods());
    watched.listed().await;
    recorder.delete(PODS, "b").await;
    watched.until(|change| matches!(change, Change::Gone(_))).await;
    drop(watched);
    recorder.write("refused");
}

/// Services of all kinds, and a slice whose endpoints change.
async fn record_services(recorder: &Recorder) {
    let services = "/api/v1/namespaces/recorded/services";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/recorded/endpointslices";
    let metadata = |name: &str| json!({ "name": name });
    let specs = [
        (
            "web",
            json!({
                "ports": [{ "name": "http", "port": 80, "targetPort": "http", "appProtocol": "kubernetes.io/h2c" }],
                "sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local", "trafficDistribution": "PreferSameZone",
            }),
        ),
        ("peers", json!({ "clusterIP": "None" })),
        ("outside", json!({ "type": "ExternalName", "externalName": "db.example.com" })),
    ];
    for (name, spec) in specs {
        recorder.create(services, json!({ "metadata": metadata(name), "spec": spec })).await;
    }
    let endpoint = |address: &str, ready: bool| {
        json!({
            "addresses": [address], "conditions": { "ready": ready, "serving": true, "terminating": !ready },
            "nodeName": "recorded-1", "zone": "north-1", "hints": { "forZones": [{ "name": "north-1" }] },
            "targetRef": { "kind": "Pod", "namespace": "recorded", "name": format!("web-{address}") },
        })
    };
    let mut slice = json!({
        "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c" }],
        "endpoints": [endpoint("10.78.1.2", true), endpoint("10.78.1.3", true)],
    });
    recorder.create(slices, slice.clone()).await;
    let api = recorder.proxy.api();
    let of_namespace = |kind| Watch::all(kind).with_fields("metadata.namespace=recorded");
    let mut watched = Watched::<ServiceObject>::start(&api, &of_namespace(ServiceObject::KIND));
    watched.listed().await;
    let mut endpoints = Watched::<EndpointSliceObject>::start(&api, &of_namespace(EndpointSliceObject::KIND));
    endpoints.listed().await;
    slice["endpoints"] = json!([endpoint("10.78.1.3", false)]);
    recorder.patch(slices, "web-1", slice).await;
    endpoints.until(|change| matches!(change, Change::Put(_))).await;
    recorder.delete(services, "outside").await;
    watched.until(|change| matches!(change, Change::Gone(_))).await;
    drop((watched, endpoints));
    recorder.write("services");
}

/// A kind whose definition comes and goes, with an object that does not decode.
async fn record_widgets(recorder: &Recorder) {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut watched = Watched::<Widget>::start(&recorder.proxy.api(), &Watch::all(WIDGETS));
    watched.listed().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": WIDGETS.definition() },
        "spec": {
            "group": WIDGETS.group, "scope": "Namespaced",
            "names": { "plural": WIDGETS.plural, "singular": "widget", "kind": WIDGETS.name, "listKind": "WidgetList" },
            "versions": [{ "name": WIDGETS.version, "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
        },
    });
    recorder.create(DEFINITIONS, definition.clone()).await;
    watched.listed().await;
    let path = format!("/apis/{}/{}/namespaces/recorded/{}", WIDGETS.group, WIDGETS.version, WIDGETS.plural);
    let widget = |name: &str, size: Value| {
        json!({ "apiVersion": format!("{}/{}", WIDGETS.group, WIDGETS.version), "kind": WIDGETS.name,
            "metadata": { "name": name }, "spec": { "size": size } })
    };
    recorder.create(&path, widget("good", json!(1))).await;
    watched.until(|change| matches!(change, Change::Put(_))).await;
    recorder.create(&path, widget("bad", json!("large"))).await;
    watched.until(|change| matches!(change, Change::Broken(_))).await;
    recorder.patch(&path, "bad", json!({ "spec": { "size": 2 } })).await;
    watched.until(|change| matches!(change, Change::Put(_))).await;
    recorder.delete(DEFINITIONS, &WIDGETS.definition()).await;
    watched.listed().await;
    drop(watched);
    recorder.write("widgets");

    // A watch of a version that the API server no longer has: it never had those before the
    // definition.
    recorder.create(DEFINITIONS, definition).await;
    let request = kube::core::Request::new(WIDGETS.path()).watch(&kube::api::WatchParams::default(), "1").unwrap();
    while recorder.proxy.api().client().request_text(request.clone()).await.is_err() {
        // The definition is not in force yet.
        recorder.exchanges.lock().unwrap().clear();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    recorder.delete(DEFINITIONS, &WIDGETS.definition()).await;
    recorder.write("expired");
}

/// Reviews of tokens, good and bad.
async fn record_reviews(recorder: &Recorder) {
    let accounts = "/api/v1/namespaces/recorded/serviceaccounts";
    for account in ["leno-agent", "other"] {
        recorder.create(accounts, json!({ "metadata": { "name": account } })).await;
        let pod = recorder.create(PODS, pod(account, account)).await;
        assert_eq!(pod["spec"]["nodeName"], "recorded-1");
    }
    let token = async |account: &str, audience: &str, bound: bool| {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "name": account });
        let spec = json!({ "audiences": [audience], "boundObjectRef": bound.then_some(pod) });
        let token = recorder.create(&format!("{accounts}/{account}/token"), json!({ "spec": spec })).await;
        token["status"]["token"].as_str().unwrap().to_owned()
    };
    let good = token("leno-agent", "leno", true).await;
    let others = [
        token("leno-agent", "https://kubernetes.default.svc", true).await,
        token("other", "leno", true).await,
        token("leno-agent", "leno", false).await,
        "a.b.c".to_owned(),
    ];
    let reviewer = TokenReviewer::new(recorder.proxy.api(), account());
    for token in [&good].into_iter().chain(&others) {
        println!("{:?}", reviewer.verify(token.as_bytes()).await);
    }
    recorder.delete("/api/v1/nodes", "recorded-1").await;
    println!("{:?}", reviewer.verify(good.as_bytes()).await);
    recorder.create("/api/v1/nodes", node()).await;
    recorder.delete(PODS, "leno-agent").await;
    // The API server remembers for ten seconds that it has confirmed a token.
    let so_far = recorder.exchanges.lock().unwrap().len();
    while reviewer.verify(good.as_bytes()).await.is_ok() {
        recorder.exchanges.lock().unwrap().truncate(so_far);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    recorder.write("reviews");
}
