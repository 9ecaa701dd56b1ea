//! A control plane and nodes on real sockets.

pub(crate) mod configs;

use configs::{DOMAIN, function, mesh};
use leno_agent::{Agent, BACKOFF, Change, Connection, Update, Updates, join};
use leno_control::{Admission, Control, Definitions, Store};
use leno_identity::{Authority, Membership};
use leno_model::{
    AttachedRoute, Attachment, Backend, BackendTarget, GatewayRoutes, HttpRoute, HttpRouteKind, PathPattern,
    Precedence, RouteListener, RouteMatch, RouteRule,
};
use leno_model::{FunctionConfig, InstanceState};
use leno_wire::{Instance, Placement, Resource, Subject};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// So that a broken test fails instead of hanging.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn definitions(configs: impl IntoIterator<Item = FunctionConfig>) -> Definitions {
    let configs: BTreeMap<_, _> = configs.into_iter().map(|config| (config.id.clone(), config)).collect();
    let permissions = configs.keys().cloned().collect();
    Definitions {
        mesh: mesh(),
        configs,
        routes: Default::default(),
        modules: BTreeMap::new(),
        permissions,
        secrets: None,
    }
}

/// Routes of a gateway to this function.
pub(crate) fn gateway_routes(name: &str) -> GatewayRoutes {
    let listener = RouteListener {
        name: "orders/edge/plain".to_owned(),
        port: 8080,
        tls: false,
        host: Some("*.example".to_owned()),
        opened: false,
        certificates: Vec::new(),
    };
    let backend = Backend { target: BackendTarget::Function(function(name)), weight: 1, filters: Vec::new() };
    let every = RouteMatch {
        path: PathPattern::Prefix(String::new()),
        method: String::new(),
        headers: Vec::new(),
        query: Vec::new(),
    };
    let rule = RouteRule {
        name: String::new(),
        matches: vec![every],
        filters: Vec::new(),
        backends: vec![backend],
        timeouts: Default::default(),
        retry: None,
        faults: Vec::new(),
    };
    let route = HttpRoute {
        name: "orders/all".to_owned(),
        kind: HttpRouteKind::Http,
        precedence: Precedence::MostSpecific,
        rules: vec![rule],
    };
    let attachments = vec![Attachment { listener: listener.name.clone(), hosts: vec!["shop.example".to_owned()] }];
    GatewayRoutes { listeners: vec![listener], routes: vec![AttachedRoute { route, attachments }], streams: Vec::new() }
}

pub(crate) fn control() -> Control {
    control_with(Store::memory(), leno_control::Options::default())
}

pub(crate) fn control_with(store: Store, options: leno_control::Options) -> Control {
    Control::new(Authority::new(&DOMAIN.parse().unwrap()).unwrap(), store, options).unwrap()
}

/// A control plane that serves.
pub(crate) struct TestServer {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), leno_control::ServeError>>,
}

impl TestServer {
    pub(crate) async fn start(control: &Control) -> Self {
        Self::start_at(control, "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(control: &Control, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let control = control.clone();
        let task = tokio::spawn(async move {
            control
                .serve(listener, async {
                    let _ = stopped.await;
                })
                .await
        });
        Self { address, stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        patient(self.task).await.unwrap().unwrap();
    }
}

pub(crate) async fn patient<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("it did not happen in time")
}

pub(crate) fn everything() -> Admission {
    Admission { placement: Placement::Everything, gateway: true, locality: Default::default(), egress: false }
}

pub(crate) fn only(functions: &[&str]) -> Admission {
    Admission {
        placement: Placement::Only(functions.iter().map(|name| function(name)).collect()),
        gateway: false,
        egress: false,
        locality: Default::default(),
    }
}

/// A node with its inbound listener at this port.
pub(crate) fn node(served: &TestServer, membership: &Membership, port: u16) -> (Agent, Updates) {
    join_at(served.address, membership, port)
}

pub(crate) fn join_at(control: SocketAddr, membership: &Membership, port: u16) -> (Agent, Updates) {
    join(options_at(control, membership, port)).unwrap()
}

pub(crate) fn options_at(control: SocketAddr, membership: &Membership, port: u16) -> leno_agent::Options {
    leno_agent::Options {
        control: vec![control.to_string()],
        membership: membership.clone(),
        inbound: Some(SocketAddr::from(([127, 0, 0, 1], port))),
        backoff: BACKOFF.with_min_delay(Duration::from_millis(5)).with_max_delay(Duration::from_millis(50)),
        rejoin: None,
        oldest: 1,
    }
}

pub(crate) async fn connected(agent: &Agent) {
    let mut connection = agent.connection();
    patient(connection.wait_for(|connection| *connection == Connection::Connected)).await.unwrap();
}

pub(crate) async fn away(agent: &Agent) -> String {
    let mut connection = agent.connection();
    let state =
        patient(connection.wait_for(|connection| matches!(connection, Connection::Away { reason: Some(_), .. }))).await;
    match &*state.unwrap() {
        Connection::Away { reason: Some(reason), .. } => reason.clone(),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn next(updates: &mut Updates) -> Update {
    patient(updates.recv()).await.expect("the stream's task ended")
}

/// Accepts the next update. Returns its changes.
pub(crate) async fn accepted(updates: &mut Updates) -> Vec<Change> {
    let update = next(updates).await;
    let changes = update.changes.clone();
    update.accept();
    changes
}

pub(crate) fn subjects(changes: &[Change]) -> Vec<Subject> {
    changes.iter().map(Change::subject).collect()
}

pub(crate) fn config_of(name: &str) -> Subject {
    Subject::FunctionConfig(function(name))
}

pub(crate) fn route_to(name: &str) -> Subject {
    Subject::Route(function(name))
}

pub(crate) fn endpoints_of(name: &str) -> Subject {
    Subject::Endpoints(function(name))
}

pub(crate) fn part(admission: Admission) -> Change {
    Change::Set(Resource::Hosted(admission.placement))
}

/// The admission of a node that the scheduler uses.
pub(crate) fn scheduled() -> Admission {
    Admission { placement: Placement::Scheduled, gateway: false, locality: Default::default(), egress: false }
}

/// A node's load of a function's first revision: ready instances, each with a request, and requests
/// that wait.
pub(crate) fn load(name: &str, ready: u32, waiting: u32) -> leno_wire::Load {
    let seen = leno_wire::Observation { ready, in_flight: ready, waiting, ..Default::default() };
    leno_wire::Load { function: function(name), revision: 1, starting: 0, seen }
}

/// `ready` instances.
pub(crate) fn instances(ready: u64) -> Vec<Instance> {
    (1..=ready)
        .map(|id| Instance {
            id,
            state: InstanceState::Ready,
            address: SocketAddr::from(([127, 0, 0, 1], 9000 + id as u16)),
            pid: Some(id as u32),
            restarts: 0,
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000),
        })
        .collect()
}
