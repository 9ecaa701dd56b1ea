//! A node with functions, built by hand.

use crate::instances::FixedInstances;
pub(crate) use crate::names::{TRUST_DOMAIN, gateway_identity, id, node_name, spiffe};
use crate::upstream::Body;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_identity::{Authority, KeyRequest, MembershipMark, SpiffeId, SvidStore, TrustDomain};
use leno_model::{AccessLogSink, AppProtocol, Callee, Expose, GatewayTls, Limits, MeshConfig, Run};
use leno_model::{FunctionConfig, FunctionId, Locality, NamespaceBounds, Route};
use leno_policy::spec::{
    AccessLog, Action, AuthorizationRule, Breaker, Condition, ConditionKey, Direction, Matches, ProgramSpec, Retry,
    RetryOn, Sidecar, StringMatch, Target, Tracing,
};
use leno_proxy::credential::NewCredential;
use leno_proxy::endpoints::Endpoint;
use leno_proxy::{FunctionEntry, Handle, Node, NodeSnapshot, Options, ServeError};
use leno_telemetry::Telemetry;
use leno_telemetry::ring::Explanation;
use leno_testkit::eventually_async;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a mesh that a test may change before the mesh starts.
pub(crate) struct Builder {
    pub mesh: MeshConfig,
    functions: Vec<FunctionConfig>,
    addresses: HashMap<FunctionId, Vec<SocketAddr>>,
    workers: usize,
    connections: usize,
    /// The authority of the other nodes of the same mesh.
    authority: Option<Arc<Authority>>,
    /// The gateway's routes to functions of other nodes.
    routes: Vec<FunctionConfig>,
    locality: Locality,
    bounds: NamespaceBounds,
}

/// A running node.
pub(crate) struct Mesh {
    pub node: Arc<Node>,
    pub handle: Handle,
    pub instances: Arc<FixedInstances>,
    pub authority: Arc<Authority>,
}

pub(crate) fn allow_all() -> AuthorizationRule {
    AuthorizationRule {
        name: "test/allow".into(),
        action: Action::Allow,
        from: vec![],
        to: vec![],
        when: vec![],
        audit: false,
    }
}

/// Refuses requests with the field `x-deny`.
fn deny_marked() -> AuthorizationRule {
    let present = Matches { any: vec![StringMatch::Present], none: vec![] };
    let when = vec![Condition { key: ConditionKey::Header("x-deny".into()), values: present }];
    AuthorizationRule { name: "test/marked".into(), action: Action::Deny, from: vec![], to: vec![], when, audit: false }
}

pub(crate) fn retry(on: &[RetryOn]) -> Retry {
    Retry {
        name: "test/retry".into(),
        attempts: 2,
        per_try_timeout_ms: 0,
        backoff_base_ms: 1,
        backoff_max_ms: 2,
        on: on.to_vec(),
        non_idempotent: false,
        budget_percent: 100,
        budget_min: 10,
    }
}

pub(crate) fn breaker() -> Breaker {
    Breaker { name: "test/breaker".into(), max_connections: 100, max_pending: 100, max_requests: 100, outlier: None }
}

fn program(function: &str, direction: Direction, targets: Vec<Target>) -> ProgramSpec {
    let inbound = direction == Direction::Inbound;
    ProgramSpec {
        function: format!("shop/{function}"),
        direction,
        sidecar: Sidecar::default(),
        authentication: vec![],
        authorization: if inbound { vec![deny_marked(), allow_all()] } else { vec![] },
        audit_default: false,
        authorizers: Vec::new(),
        rate_limits: vec![],
        tracing: Tracing { name: String::new(), enabled: false, sampling_per_10k: 0, accept_b3: false },
        access_log: AccessLog { name: String::new(), enabled: true, statuses: vec![], request_headers: vec![] },
        targets,
    }
}

fn target(function: &str) -> Target {
    Target {
        function: format!("shop/{function}"),
        timeout_ms: OF_THE_MESH,
        retry: None,
        breaker: None,
        as_received: false,
    }
}

/// A placeholder that becomes the mesh's limit at the start, as in the compiler.
const OF_THE_MESH: u64 = u64::MAX;

impl Builder {
    pub(crate) fn new() -> Self {
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mesh = MeshConfig {
            trust_domain: TRUST_DOMAIN.parse().unwrap(),
            engine: None,
            mtls_same_node: false,
            svid_lifetime: Duration::from_secs(3600),
            stream_lifetime: Some(Duration::ZERO),
            gateway_http: Some(free),
            gateway_https: None,
            gateway_ports: Vec::new(),
            https_redirect: None,
            trusted_proxies: Default::default(),
            proxy_protocol: false,
            outbound: free,
            inbound: free,
            admin: leno_model::AdminListener::Usual,
            control: free,
            access_log: AccessLogSink { json: true, file: None },
            otlp: None,
            name_servers: Vec::new(),
            quotas: None,
            images: leno_model::Images {
                folder: "/nonexistent".into(),
                size: 0,
                default_registry: None,
                docker_config: None,
                registries: Vec::new(),
            },
            accounts: leno_model::Accounts::Node,
            limits: Limits {
                head_bytes: 16 * 1024,
                headers: 50,
                head_timeout: Duration::from_secs(10),
                idle_timeout: Duration::from_secs(60),
                request_timeout: Duration::from_secs(30),
                h2_streams: 100,
                upstream: Default::default(),
                drain_timeout: Duration::from_secs(10),
                connections: 1000,
                connections_per_address: 0,
                extension_instances: leno_model::ExtensionInstances { per_function: 100, per_namespace: 250 },
            },
        };
        Self {
            mesh,
            functions: vec![],
            addresses: HashMap::new(),
            workers: 1,
            connections: 1000,
            authority: None,
            routes: vec![],
            locality: Locality::default(),
            bounds: NamespaceBounds::default(),
        }
    }

    /// A function with one instance, exposed under its name as host, and under every host if it is
    /// called `web`.
    pub(crate) fn function(mut self, name: &str, protocol: AppProtocol, address: SocketAddr) -> Self {
        let hosts = if name == "web" { vec![name.to_owned(), "*".to_owned()] } else { vec![name.to_owned()] };
        self.functions.push(FunctionConfig {
            id: id(name),
            identity: spiffe(name),
            inbound: program(name, Direction::Inbound, vec![target(name)]),
            outbound: program(name, Direction::Outbound, vec![]),
            engine: None,
            deadline: Duration::from_secs(1),
            protocol,
            keys: vec![],
            jwks: vec![],
            run: Run::External(vec![address]),
            expose: vec![Expose { hosts, path: "/".into() }],
            faults: Vec::new(),
            is_routed: false,
            callees: vec![],
            concurrency: 0,
            queue: 1024,
            scale: Default::default(),
            authorizers: Vec::new(),
            inbound_extensions: Vec::new(),
            outbound_extensions: Vec::new(),
            revisions: Default::default(),
            chain: None,
            bounds: Default::default(),
        });
        self.addresses.insert(id(name), vec![address]);
        self
    }

    pub(crate) fn call(mut self, caller: &str, callee: &str) -> Self {
        let config = self.functions.iter_mut().find(|config| config.id == id(caller)).unwrap();
        config.outbound.targets.push(target(callee));
        let hosts = vec![callee.to_owned(), format!("{callee}.shop")];
        config.callees.push(Callee {
            id: id(callee),
            identity: spiffe(callee),
            hosts,
            ports: Vec::new(),
            addresses: Vec::new(),
            routes: Default::default(),
        });
        self
    }

    /// Changes the plan of calls to `callee` in all programs.
    pub(crate) fn plan(mut self, callee: &str, change: impl Fn(&mut Target)) -> Self {
        let name = format!("shop/{callee}");
        let programs = self.functions.iter_mut().flat_map(|config| [&mut config.inbound, &mut config.outbound]);
        programs.flat_map(|program| &mut program.targets).filter(|target| target.function == name).for_each(change);
        self
    }

    pub(crate) fn config(mut self, name: &str, change: impl FnOnce(&mut FunctionConfig)) -> Self {
        change(self.functions.iter_mut().find(|config| config.id == id(name)).unwrap());
        self
    }

    pub(crate) fn addresses(mut self, name: &str, addresses: &[SocketAddr]) -> Self {
        self.addresses.insert(id(name), addresses.to_vec());
        self
    }

    pub(crate) fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.mesh.limits);
        self
    }

    pub(crate) fn stream_lifetime(mut self, lifetime: Duration) -> Self {
        self.mesh.stream_lifetime = Some(lifetime);
        self
    }

    /// The bounds of the functions' namespace on the node.
    pub(crate) fn bounds(mut self, bounds: NamespaceBounds) -> Self {
        self.bounds = bounds;
        self
    }

    pub(crate) fn mtls(mut self) -> Self {
        self.mesh.mtls_same_node = true;
        self
    }

    pub(crate) fn https(mut self, tls: GatewayTls) -> Self {
        self.mesh.gateway_https = Some(tls);
        self
    }

    pub(crate) fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    pub(crate) fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// A node of the same mesh as `other`.
    pub(crate) fn with(mut self, other: &Mesh) -> Self {
        self.authority = Some(other.authority.clone());
        self
    }

    pub(crate) fn locality(mut self, locality: Locality) -> Self {
        self.locality = locality;
        self
    }

    /// Moves the function to remote nodes: this node's gateway only has a route to it.
    pub(crate) fn remote(mut self, name: &str) -> Self {
        let at = self.functions.iter().position(|config| config.id == id(name)).unwrap();
        self.routes.push(self.functions.remove(at));
        self.addresses.remove(&id(name));
        self
    }

    pub(crate) fn start(self) -> Mesh {
        self.try_start().unwrap()
    }

    pub(crate) fn try_start(self) -> Result<Mesh, ServeError> {
        let new = || Arc::new(Authority::new(&TRUST_DOMAIN.parse::<TrustDomain>().unwrap()).unwrap());
        let authority = self.authority.unwrap_or_else(new);
        let svids = SvidStore::new(authority.bundle().clone());
        let telemetry = Telemetry::quiet(TRUST_DOMAIN);
        let engine = leno_sandbox::Engine::inline();
        let limit = self.mesh.limits.request_timeout.as_millis() as u64;
        let mut change = NodeSnapshot::new(self.mesh).change();
        let set_limit = |config: &mut FunctionConfig| {
            for target in config.inbound.targets.iter_mut().chain(&mut config.outbound.targets) {
                if target.timeout_ms == OF_THE_MESH {
                    target.timeout_ms = limit;
                }
            }
        };
        let certify = |identity: &SpiffeId| {
            let request = KeyRequest::new(identity).unwrap();
            let chain = authority.sign(request.csr(), identity, Duration::from_secs(3600)).unwrap();
            svids.install(request, chain).unwrap();
        };
        if !self.routes.is_empty() {
            certify(&gateway_identity().parse().unwrap());
        }
        for mut config in self.routes {
            set_limit(&mut config);
            change.insert_route(Arc::new(FunctionEntry::route(&engine, Route::of(&config).unwrap())));
        }
        for mut config in self.functions {
            set_limit(&mut config);
            certify(&config.identity);
            config.bounds = self.bounds.clone();
            let entry = FunctionEntry::load(&engine, config);
            entry.share_in(&telemetry.namespaces);
            change.insert(Arc::new(entry));
        }
        let instances = Arc::new(FixedInstances::new(self.addresses));
        let node = Node::new(change.finish(), instances.clone(), svids, telemetry);
        node.endpoints.set_locality(self.locality);
        let options = Options { workers: self.workers.try_into().ok(), connections: self.connections, outbound: true };
        let handle = leno_proxy::serve(&node, options)?;
        Ok(Mesh { node, handle, instances, authority })
    }
}

impl Mesh {
    /// One function `web` that speaks HTTP/1.1 at this address.
    pub(crate) fn web(address: SocketAddr) -> Self {
        Builder::new().function("web", AppProtocol::Http1, address).start()
    }

    /// Gives this node the endpoints of a function, with the number of ready instances at each.
    pub(crate) fn knows(&self, function: &str, others: &[(&Mesh, u32)]) {
        let places: Vec<_> = others.iter().map(|(mesh, ready)| (mesh.inbound(), *ready, Locality::default())).collect();
        self.knows_at(function, &places);
    }

    /// As [`Mesh::knows`], by address. A node is named after its port.
    pub(crate) fn knows_at(&self, function: &str, places: &[(SocketAddr, u32, Locality)]) {
        let endpoint = |(address, ready, locality): &(SocketAddr, u32, Locality)| Endpoint {
            node: node_name(*address).into(),
            address: *address,
            ready: *ready,
            locality: locality.clone(),
        };
        self.node.endpoints.set([(id(function), places.iter().map(endpoint).collect())]);
    }

    /// Puts a changed configuration of each of these functions into force, all at once.
    pub(crate) fn change(&self, names: &[&str], change: impl Fn(&mut FunctionConfig)) {
        let snapshot = self.node.snapshot.load_full();
        let mut next = snapshot.change();
        for name in names {
            let mut config = snapshot.functions.get(&id(name)).unwrap().config.clone();
            change(&mut config);
            next.insert(Arc::new(FunctionEntry::load(&leno_sandbox::Engine::inline(), config)));
        }
        self.node.publish(Arc::new(next.finish()));
    }

    /// Gives functions certificates with this membership.
    pub(crate) fn certify(&self, names: &[&str], membership: MembershipMark) {
        for identity in names.iter().copied().map(spiffe) {
            let request = KeyRequest::new(&identity).unwrap();
            let lifetime = Duration::from_secs(3600);
            let chain = self.authority.sign_node(request.csr(), &identity, &[], membership, lifetime).unwrap();
            self.node.svids.install(request, chain).unwrap();
        }
    }

    /// Revokes this membership, as the control plane does.
    pub(crate) fn revoke(&self, membership: MembershipMark) {
        self.node.svids.set_revoked(vec![membership]);
        self.node.end_revoked();
    }

    /// Connects to this node as the sidecar of `caller`, with a certificate from `other`.
    pub(crate) async fn as_sidecar(&self, other: &Mesh, caller: &SpiffeId, callee: &str) -> SendRequest<Body> {
        let config = leno_identity::client_config(&other.node.svids, caller, &spiffe(callee)).unwrap();
        let name = leno_identity::server_name(&spiffe(callee)).unwrap();
        let stream = tokio::net::TcpStream::connect(self.inbound()).await.unwrap();
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub(crate) fn inbound(&self) -> SocketAddr {
        self.handle.addresses.inbound
    }

    /// The records of a request, as soon as so many hops have written them: they do so after they
    /// have sent their responses.
    pub(crate) async fn told(&self, request_id: &str, hops: usize) -> Vec<Explanation> {
        eventually_async("the record of the exchange", || self.node.telemetry.explain(request_id).len() >= hops).await;
        self.node.telemetry.explain(request_id)
    }

    pub(crate) fn gateway(&self) -> SocketAddr {
        self.handle.addresses.gateway_http.unwrap()
    }

    pub(crate) fn outbound(&self) -> SocketAddr {
        self.handle.addresses.outbound.unwrap()
    }

    pub(crate) fn metrics(&self) -> String {
        self.node.telemetry.exposition(self.node.policy_state.entries()).finish()
    }

    /// Mints a credential for an instance of this function.
    pub(crate) fn mint(&self, name: &str) -> NewCredential {
        let instance = format!("{name}-1");
        let minted = self.node.credentials.mint(&id(name), &instance).unwrap();
        self.node.credentials.started(&instance, Box::new(|_, _| Ok(())));
        minted
    }
}
