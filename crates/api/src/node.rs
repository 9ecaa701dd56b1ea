//! The admin listener of a node: health, metrics, explanations, listings. Its answers reveal all of
//! the node, so it serves only the node's account and root, or the bearer of a token.

mod address;
mod listener;
mod policies;
mod reach;
mod rollout;
mod views;

pub use address::{Address, token};
pub use listener::{Listener, PARENT_PID, ParentListener, is_trusted};

use crate::alerts::{Alert, AlertHistory, Decisions, beginnings};
use crate::changes::FileChanges;
use crate::gateways::RouteViews;
use crate::log_page::{LogPage, LogQuery, Marks};
use crate::revisions::DeclaredNames;
use crate::scrape::Scrape;
use crate::{alerts, certificates, jobs, limits, namespaces, nodes, pods, revisions, scaling, upgrade};
use axum::extract::Query;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use leno_control::{Control, FunctionNode, RerunError, Transaction};
use leno_model::FunctionId;
use leno_model::{IN_NODE, InstanceState, Run};
use leno_node::Pods;
use leno_proxy::{FunctionEntry, Node};
use leno_supervisor::{ImageState, Supervisor, VolumeError};
use leno_telemetry::exposition::CONTENT_TYPE;
use listener::Access;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Most connections.
const MOST_CONNECTIONS: usize = 64;
/// Timeout of a connection, which has one request.
const LONGEST_EXCHANGE: Duration = Duration::from_secs(10);

/// Largest body of a request, in bytes.
const MOST_ASKED: usize = 16 << 10;

/// The response to a question for the control plane.
const ELSEWHERE: &str =
    "the control plane of this node is another process, and knows: ask it with `leno get --server`\n";

/// The sources of the listener's answers.
pub struct Admin {
    /// The node.
    pub node: Arc<Node>,
    /// Its instances.
    pub supervisor: Supervisor,
    /// The control plane, if it is in the same process.
    pub control: Option<Control>,
    /// The changes of the documents' files; `None`: the documents are those of a control plane.
    pub changes: Option<Arc<FileChanges>>,
    /// The status of Gateways and routes; `None`: a control plane in another process has it.
    pub routes: Option<Arc<RouteViews>>,
    /// Whether the first configuration is in force.
    pub configured: watch::Receiver<bool>,
    /// Whether the configuration is in force and every identity certified.
    pub ready: watch::Receiver<bool>,
    /// Its pods; `None`: it captures none.
    pub pods: Option<Pods>,
    /// Why the control plane in this process cannot use its store; `None`: it can, or has none.
    pub store_fault: watch::Receiver<Option<String>>,
    /// Receives upgrade requests, one at a time.
    pub upgrades: mpsc::Sender<upgrade::Pending>,
    /// Since when alerts hold.
    pub alerts: AlertHistory,
}

/// A running listener.
pub struct Serving {
    tasks: [JoinHandle<()>; 2],
    capacity: Arc<Semaphore>,
}

impl Serving {
    /// Stops to accept connections, and waits for open requests.
    pub async fn end(self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        let _ = timeout(LONGEST_EXCHANGE, self.capacity.acquire_many(MOST_CONNECTIONS as u32)).await;
    }
}

/// Starts the listener.
pub fn serve(admin: Arc<Admin>, listener: Listener) -> Serving {
    let capacity = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let watching = tokio::spawn(admin.clone().watch_alerts());
    Serving { tasks: [tokio::spawn(accept(admin, listener, capacity.clone())), watching], capacity }
}

async fn accept(admin: Arc<Admin>, listener: Listener, capacity: Arc<Semaphore>) {
    loop {
        // Further connections wait in the kernel's queue.
        let Ok(permit) = capacity.clone().acquire_owned().await else { return };
        let (stream, access) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let admin = admin.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let upgrading = AtomicBool::new(false);
            let (admin, access, upgrading) = (&*admin, &access, &upgrading);
            let service = service_fn(move |request: Request<Incoming>| async move {
                let (method, path) = (request.method(), request.uri().path());
                let volume = path.strip_prefix(VOLUMES).filter(|_| *method == Method::DELETE).map(str::to_owned);
                let is_upgrade = *method == Method::POST && path == upgrade::PATH;
                let rerun = path.strip_prefix(JOBS).and_then(|path| path.strip_suffix(RERUN));
                let rerun = rerun.filter(|_| *method == Method::POST).map(str::to_owned);
                let rollout = path.strip_prefix(ROLLOUTS).filter(|_| *method == Method::POST).map(str::to_owned);
                Ok::<_, Infallible>(match (volume, rerun, rollout) {
                    (Some(volume), ..) => admin.delete_volume(access, &volume).await,
                    (None, Some(job), _) => admin.rerun_job(access, &job).await,
                    (None, None, Some(function)) => admin.roll_out(access, &function, request).await,
                    (None, None, None) if is_upgrade => admin.upgrade(access, request, upgrading).await,
                    (None, None, None) => admin.answer(access, &request),
                })
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(LONGEST_EXCHANGE).keep_alive(false);
            let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
            // A disconnect is no event. A client that does not read is disconnected.
            while timeout(LONGEST_EXCHANGE, &mut connection).await.is_err() && upgrading.load(Ordering::Relaxed) {}
        });
    }
}

impl Admin {
    /// The condition for which the node waits; `None`: it is ready.
    fn missing(&self) -> Option<&'static str> {
        if !*self.configured.borrow() {
            return Some("starting: waits for the first configuration; listeners accept no connections yet\n");
        }
        if !*self.ready.borrow() {
            return Some("starting: waits for certificates\n");
        }
        let serves_pods = self.pods.as_ref().is_none_or(Pods::is_ready);
        (!serves_pods).then_some("starting: captures the pods, and opens the socket of the CNI plug-in\n")
    }

    fn answer(&self, access: &Access, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !access.allows(request.uri().path(), request.headers()) {
            return refused(access);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned());
        }
        let path = request.uri().path();
        match path {
            "/healthz" => reply(StatusCode::OK, "text/plain", "alive\n".to_owned()),
            "/readyz" => match self.missing() {
                None => reply(StatusCode::OK, "text/plain", "ready\n".to_owned()),
                Some(missing) => reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", missing.to_owned()),
            },
            "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, self.metrics()),
            "/functions" => list(self.functions()),
            "/instances" => list(self.instances()),
            "/changes" => match &self.changes {
                Some(changes) => list(json!(changes.latest())),
                None => reply(StatusCode::NOT_FOUND, "text/plain", ELSEWHERE.to_owned()),
            },
            "/routes" | "/gateways" => match &self.routes {
                Some(routes) if path == "/routes" => list(json!(routes.routes(|_| true))),
                Some(routes) => {
                    let faults = self.control.as_ref().map(Control::listener_faults).unwrap_or_default();
                    list(json!(routes.gateways(|_| true, &faults)))
                }
                None => reply(StatusCode::NOT_FOUND, "text/plain", ELSEWHERE.to_owned()),
            },
            "/revisions" | "/jobs" | "/nodes" => match &self.control {
                Some(control) if path == "/jobs" => list(jobs::rows(&control.status().jobs)),
                Some(control) if path == "/nodes" => list(nodes::rows(&control.status().nodes)),
                Some(control) => {
                    let progress = scaling::revisions(&self.supervisor);
                    let place = (control, Some(&*self.node));
                    list(json!(revisions::rows(&control.status().functions, &progress, place)))
                }
                None => reply(StatusCode::NOT_FOUND, "text/plain", ELSEWHERE.to_owned()),
            },
            "/namespaces" => list(namespaces::rows(&self.node, &self.supervisor)),
            "/volumes" => list(json!(self.supervisor.volumes().map(|volumes| volumes.list()).unwrap_or_default())),
            "/pods" => list(json!(self.pods.as_ref().map(Pods::status).unwrap_or_default())),
            "/services" => list(json!(pods::called(&self.node))),
            "/events" => list(self.events()),
            "/identities" => list(certificates::identities(&self.node)),
            "/flows" => list(json!(self.node.telemetry.flows(request.uri().query()))),
            "/edges" => list(json!(self.node.telemetry.metrics.edges())),
            "/rules" => list(json!(self.node.telemetry.metrics.rule_hits())),
            "/alerts" => list(self.alerts()),
            "/limits" => list(json!(limits::rows(&self.node, &self.supervisor, None))),
            "/destinations" => list(json!(self.node.telemetry.destinations.all())),
            "/recent" => list(json!(self.node.telemetry.ring.latest(RECENT))),
            "/externals" => list(self.externals()),
            "/chains" => list(self.chains()),
            _ if path.starts_with(LIMITS) => self.limits_of(&path[LIMITS.len()..]),
            _ if path.starts_with(POLICIES) => self.policies(&path[POLICIES.len()..]),
            _ => match (path.strip_prefix("/explain/"), path.strip_prefix("/destinations/").map(str::parse)) {
                (Some(request_id), _) => self.explain(request_id),
                _ if path.starts_with(LOGS) => self.logs(request.uri()),
                (_, Some(Ok(function))) => {
                    let (destinations, beyond) = self.node.telemetry.destinations.of(&function);
                    list(json!({ "destinations": destinations, "beyond": beyond }))
                }
                _ => reply(StatusCode::NOT_FOUND, "text/plain", PATHS.to_owned()),
            },
        }
    }

    /// Deletes a volume, `NAMESPACE/NAME`.
    async fn delete_volume(&self, access: &Access, volume: &str) -> Response<Full<Bytes>> {
        let text = |status, body: &str| reply(status, "text/plain", format!("{body}\n"));
        // A token may be for monitoring.
        if !matches!(access, Access::Full) {
            return text(
                StatusCode::FORBIDDEN,
                "volumes are deleted at the Unix socket, by the node's account or root",
            );
        }
        let (Some(volumes), Some((namespace, name))) = (self.supervisor.volumes().cloned(), volume.split_once('/'))
        else {
            return text(StatusCode::NOT_FOUND, "there is no such volume on this node");
        };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match tokio::task::spawn_blocking(move || volumes.delete(&namespace, &name)).await {
            Ok(Ok(())) => text(StatusCode::OK, &format!("deleted the volume {volume}")),
            Ok(Err(error @ VolumeError::Unknown(_))) => text(StatusCode::NOT_FOUND, &error.to_string()),
            Ok(Err(error)) => text(StatusCode::CONFLICT, &error.to_string()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    /// Runs an ended job, `NAMESPACE/NAME`, once more.
    async fn rerun_job(&self, access: &Access, job: &str) -> Response<Full<Bytes>> {
        let text = |status, body: &str| reply(status, "text/plain", format!("{body}\n"));
        // A token may be for monitoring.
        if !matches!(access, Access::Full) {
            return text(StatusCode::FORBIDDEN, "jobs are run at the Unix socket, by the node's account or root");
        }
        let Some(control) = self.control.clone() else { return text(StatusCode::NOT_FOUND, ELSEWHERE.trim_end()) };
        let id = match job.parse::<FunctionId>() {
            Ok(id) => id,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let rerun =
            tokio::task::spawn_blocking(move || control.rerun(&id, |_| Ok::<_, RerunError>(Transaction::default())));
        match rerun.await {
            Ok(Ok(attempt)) => {
                tracing::info!(job, attempt, "a job is run again");
                text(StatusCode::OK, &attempt.to_string())
            }
            Ok(Err(error @ RerunError::Unknown(_))) => text(StatusCode::NOT_FOUND, &error.to_string()),
            Ok(Err(error)) => text(StatusCode::CONFLICT, &error.to_string()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    /// Upgrades the node. `under_way` is true meanwhile.
    async fn upgrade(
        &self,
        access: &Access,
        request: Request<Incoming>,
        under_way: &AtomicBool,
    ) -> Response<Full<Bytes>> {
        let text = |status, body: &str| reply(status, "text/plain", format!("{body}\n"));
        // The client of an upgrade chooses the node's program. A token, which may be for
        // monitoring, does not permit this.
        if !matches!(access, Access::Full) {
            return text(
                StatusCode::FORBIDDEN,
                "an upgrade is asked for at the Unix socket, by the node's account or root",
            );
        }
        let body = Limited::new(request.into_body(), MOST_ASKED).collect().await;
        let ask = body.map_err(|error| error.to_string()).and_then(|body| {
            serde_json::from_slice::<upgrade::UpgradeRequest>(&body.to_bytes()).map_err(|error| error.to_string())
        });
        let ask = match ask {
            Ok(ask) => ask,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error),
        };
        if !*self.ready.borrow() {
            return text(StatusCode::CONFLICT, "it is still starting");
        }
        let (answer, answered) = oneshot::channel();
        if self.upgrades.try_send(upgrade::Pending { request: ask, answer }).is_err() {
            return text(StatusCode::CONFLICT, "another upgrade is under way");
        }
        under_way.store(true, Ordering::Relaxed);
        let outcome = answered.await;
        under_way.store(false, Ordering::Relaxed);
        match outcome {
            Ok(Ok(done)) => text(StatusCode::OK, &done),
            Ok(Err(reason)) => text(StatusCode::CONFLICT, &reason.to_string()),
            Err(_) => text(StatusCode::CONFLICT, "it is ending"),
        }
    }

    /// Output of instances on this node.
    fn logs(&self, uri: &Uri) -> Response<Full<Bytes>> {
        let bad = |reason: String| reply(StatusCode::BAD_REQUEST, "text/plain", format!("{reason}\n"));
        let id = match uri.path().strip_prefix(LOGS).unwrap_or_default().parse::<FunctionId>() {
            Ok(id) => id,
            Err(error) => return bad(error.to_string()),
        };
        let query = Query::<LogQuery>::try_from_uri(uri).map_err(|rejection| rejection.body_text());
        let (query, before) = match query.and_then(|Query(query)| {
            Marks::read(&query.after).map(|marks| (query, marks)).map_err(|error| error.to_string())
        }) {
            Ok(read) => read,
            Err(reason) => return bad(reason),
        };
        let asked = query.of_node(&id, &before, THIS_NODE, LOGS_BYTES);
        let Some(output) = self.supervisor.read_output(&asked) else {
            let text = format!("there is no function or job {id} on this node\n");
            return reply(StatusCode::NOT_FOUND, "text/plain", text);
        };
        let (mut page, mut marks) = (LogPage::default(), before);
        page.add(THIS_NODE, output, &mut marks);
        list(json!(page.finish(&marks)))
    }

    fn explain(&self, request_id: &str) -> Response<Full<Bytes>> {
        let hops = self.node.telemetry.explain(request_id);
        if hops.is_empty() {
            return reply(StatusCode::NOT_FOUND, "text/plain", "no recent request of that id\n".to_owned());
        }
        list(json!(hops))
    }

    fn metrics(&self) -> String {
        let Node { telemetry, policy_state, .. } = &*self.node;
        let exposition = telemetry
            .exposition(policy_state.entries())
            .with(&scaling::Scrape::of(&self.supervisor, DeclaredNames::of(&self.node)))
            .with(&revisions::Scrape::of(&self.node))
            .with(&self.node.admission.scrape())
            .with(&certificates::Scrape::of(&self.node))
            .with(&policy_state.tokens.key_sets.counts)
            .with(&self.node.extension_instances.scrape())
            .with(&telemetry.connections.scrape())
            .with(&telemetry.destinations.scrape())
            .with(&self.node.links.scrape())
            .with(&self.node.channels.scrape());
        let exposition = match &self.pods {
            Some(pods) => exposition.with(&pods::Scrape::of(pods, &self.node)),
            None => exposition,
        };
        match &self.control {
            Some(control) => exposition.with(&Scrape::of(control.status())),
            None => exposition,
        }
        .finish()
    }

    fn functions(&self) -> Value {
        let mut scaling = scaling::columns(&self.supervisor, &self.node);
        let placed = self.control.iter().flat_map(|control| control.status().functions);
        let placed = placed.map(|status| (status.function, status.nodes));
        let placed: HashMap<FunctionId, Vec<FunctionNode>> = placed.collect();
        let snapshot = self.node.snapshot.load();
        let is_function = |entry: &&Arc<FunctionEntry>| !matches!(entry.config.run, Run::Job(_) | Run::Egress(_));
        let mut entries: Vec<&Arc<FunctionEntry>> = snapshot.functions.values().filter(is_function).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let row = |entry: &Arc<FunctionEntry>| {
            let config = &entry.config;
            let mut row = json!({
                "function": &*entry.name,
                "identity": config.identity,
                "engine": entry.inbound.image.as_ref().ok().map(|image| image.kind().to_string()),
                "protocol": config.protocol,
                "nodes": placed.get(&config.id).map(|placed| nodes::of_function(placed)),
                "instances": self.supervisor.instances(&config.id).len(),
                "audited": config.inbound.audited(),
                "callees": config.callees.iter().map(|callee| callee.id.to_string()).collect::<Vec<_>>(),
                "exposed": config.expose.iter().flat_map(|expose| expose.hosts.iter().map(|host| format!("{host}{}", expose.path))).collect::<Vec<_>>(),
                "chain": config.chain.as_ref().map(nodes::chain_of),
                "program_bytes": entry.inbound.image.as_ref().map_or(0, |image| image.bytes()) + entry.outbound.image.as_ref().map_or(0, |image| image.bytes()),
            });
            let columns = scaling.remove(&*entry.name);
            if let (Some(row), Some(Value::Object(columns))) = (row.as_object_mut(), columns) {
                row.extend(columns);
            }
            row
        };
        entries.into_iter().map(row).collect()
    }

    fn instances(&self) -> Value {
        let statuses = self.supervisor.status();
        let images = self.supervisor.images();
        let instances = || statuses.iter().flat_map(|status| &status.instances);
        let running = instances().map(|instance| {
            let image = images.iter().find(|(id, revision, _)| (id, *revision) == (&instance.function, instance.id.revision));
            let (state, reason) = match image {
                Some((.., image)) if instance.state == InstanceState::Pulling => told(image),
                _ if instance.lost.is_some() => (instance.state.to_string(), instance.lost.as_deref()),
                Some((.., ImageState::Here(omitted))) => (instance.state.to_string(), omitted.as_deref()),
                _ => (instance.state.to_string(), None),
            };
            json!({
                "instance": &*instance.id.name(&instance.function),
                "function": instance.function.to_string(),
                "state": state,
                "reason": reason,
                "address": if instance.address == IN_NODE { "in the node".to_owned() } else { instance.address.to_string() },
                "pid": instance.pid,
                "isolation": instance.isolation,
                "restarts": instance.restarts,
            })
        });
        let waits = |(id, revision, _): &&(FunctionId, u32, ImageState)| {
            !instances().any(|instance| (&instance.function, instance.id.revision) == (id, *revision))
        };
        let asked_for =
            images.iter().filter(|(.., state)| !matches!(state, ImageState::Elsewhere | ImageState::Here(_)));
        let images = asked_for.filter(waits).map(|(id, _, image)| {
            let (state, reason) = told(image);
            json!({ "instance": null, "function": id.to_string(), "state": state, "reason": reason })
        });
        running.chain(images).collect()
    }

    /// Alerts of this node, and of the control plane if it is in the same process.
    fn alerts(&self) -> Value {
        let mut all = self.present_alerts();
        self.alerts.beginnings.complete(&mut all);
        alerts::sort(&mut all);
        json!(all)
    }

    fn present_alerts(&self) -> Vec<Alert> {
        let mut all = self.alerts_of_node(&BTreeSet::new());
        all.extend(self.alerts.of_files());
        all.extend(self.routes.iter().flat_map(|routes| routes.alerts()));
        let of_control_plane = |control: &Control| alerts::of_control_plane(&control.status(), &Decisions::of(control));
        all.extend(self.control.iter().flat_map(of_control_plane));
        all.extend(self.store_fault.borrow().as_deref().map(alerts::of_store));
        all
    }

    /// Alerts of this node, for readers of these namespaces; none: of the whole mesh.
    fn alerts_of_node(&self, readers: &BTreeSet<String>) -> Vec<Alert> {
        let mut all = alerts::of_node(&self.node, &self.supervisor, readers);
        all.extend(self.alerts.of_refusals());
        all
    }

    /// Notes when alerts begin and end, until the node ends.
    async fn watch_alerts(self: Arc<Self>) {
        loop {
            let began = Instant::now();
            self.alerts.sample(&self.node);
            self.alerts.beginnings.look(&self.present_alerts(), SystemTime::now());
            sleep(beginnings::pause(began.elapsed())).await;
        }
    }

    /// Events of scaling, rollouts, nodes and jobs, oldest first.
    fn events(&self) -> Value {
        let mut rows = scaling::events(&self.supervisor, &DeclaredNames::of(&self.node));
        if let Some(control) = &self.control {
            rows.extend(control.rollout_events().iter().map(revisions::event));
            rows.extend(control.node_events().iter().map(nodes::node_event));
            rows.extend(jobs::events(&control.status().jobs));
        }
        let time = |row: &Value| row["time"].as_f64().unwrap_or_default();
        rows.sort_by(|one, other| time(one).total_cmp(&time(other)));
        Value::Array(rows)
    }
}

/// The state of an image that is not on this node, and the reason.
fn told(image: &ImageState) -> (String, Option<&str>) {
    match image {
        ImageState::Pulling(progress) => (format!("pulling {progress}"), None),
        ImageState::Failed(reason) => ("no image".to_owned(), Some(reason)),
        ImageState::Elsewhere | ImageState::Here(_) => ("pulling".to_owned(), None),
    }
}

const RECENT: usize = 100;
const LOGS: &str = "/logs/";
const LIMITS: &str = "/limits/";
const POLICIES: &str = "/policies/";
const VOLUMES: &str = "/volumes/";
/// The path of a job, and its end where the job is run again.
const JOBS: &str = "/jobs/";
const RERUN: &str = "/rerun";
const ROLLOUTS: &str = "/rollouts/";
/// Bytes of lines in one page.
const LOGS_BYTES: u32 = 1 << 20;
/// This node's name on its own pages.
const THIS_NODE: &str = "";
const PATHS: &str = "/healthz /readyz /metrics /functions /nodes /namespaces /gateways /routes /revisions /instances /pods /jobs /events /identities /volumes /externals /chains /flows /edges /rules /destinations /limits /changes /alerts /recent /explain/REQUEST-ID /destinations/NAMESPACE/NAME /policies/NAMESPACE/NAME /limits/NAMESPACE/NAME /logs/NAMESPACE/NAME; POST /upgrade, /rollouts/NAMESPACE/NAME; DELETE /volumes/NAMESPACE/NAME\n";

fn list(value: Value) -> Response<Full<Bytes>> {
    reply(StatusCode::OK, "application/json", value.to_string())
}

fn refused(access: &Access) -> Response<Full<Bytes>> {
    match access {
        Access::Bearing(_) => {
            let mut response = reply(StatusCode::UNAUTHORIZED, "text/plain", "this takes a token\n".to_owned());
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        _ => {
            reply(StatusCode::FORBIDDEN, "text/plain", "only the node's own account and root are answered\n".to_owned())
        }
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static(content_type));
    response
}
