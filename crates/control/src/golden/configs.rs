//! Function configurations that together use every field and every variant.

use super::programs::{inbound, outbound};
use leno_model::revision::{DeclaredRevision, Latency, Plan, Revision, Revisions, Rollout, Split, Target, Template};
use leno_model::{
    AppProtocol, Authorizer, AuthorizerCache, AuthorizerProtocol, Callee, CertificateName, ChainLink, Command,
    Container, Credential, CredentialForm, Egress, EgressPort, EgressProtocol, EgressTls, Engine, Expose, Extension,
    HostFolder, HostVolume, Isolation, Job, JwksFetch, Liveness, Metric, ModuleUrl, Owner, PersistentVolume, Port,
    PortProtocol, Process, PublicKey, Pull, Readiness, Resources, Run, Scale, Secret, SecretBytes, SecretSource,
    SecretValues, StoredKey, VerificationKey, Volume, Wasm,
};
use leno_model::{FunctionConfig, FunctionId, ModuleHash, NamespaceBounds};
use leno_policy::spec::{Cidr, Direction, KeyId, KeyPart, ProgramSpec};
use std::collections::BTreeMap;
use std::time::Duration;

/// A function of processes, with a rollout and all features of policies.
pub(super) fn command() -> FunctionConfig {
    let template = Template { run: component(), protocol: AppProtocol::Grpc, concurrency: 10, scale: scale() };
    let target = |revision, percent| Target {
        revision,
        percent,
        tag: Some("canary".to_owned()),
        headers: vec![("x-canary".to_owned(), "1".to_owned())],
        name: None,
    };
    let rollout = Rollout {
        steps: vec![5, 25, 50],
        interval: Duration::from_secs(60),
        max_error_rate: 0.01,
        latency: Some(Latency { limit: Duration::from_millis(250), slow_share: 0.05 }),
        min_requests: 100,
    };
    FunctionConfig {
        id: id("shop/checkout"),
        identity: "spiffe://orders.example/ns/shop/sa/checkout".parse().unwrap(),
        inbound: inbound(),
        outbound: outbound(),
        engine: Some(Engine::Microvm),
        deadline: Duration::from_micros(2500),
        protocol: AppProtocol::H2c,
        keys: keys(),
        jwks: vec![JwksFetch {
            issuer: 1,
            url: "https://idp.example/keys".to_owned(),
            ca_file: Some("/etc/leno/idp.pem".into()),
            ca: String::new(),
            refresh: Duration::from_secs(300),
            timeout: Duration::from_secs(5),
        }],
        run: Run::Command(processes()),
        expose: vec![Expose { hosts: vec!["*.shop.example".to_owned()], path: "/checkout".to_owned() }],
        faults: Vec::new(),
        is_routed: false,
        callees: vec![Callee {
            id: id("shop/stock"),
            identity: "spiffe://orders.example/ns/shop/sa/stock".parse().unwrap(),
            hosts: vec!["stock".to_owned(), "stock.shop".to_owned()],
            ports: ports(),
            addresses: vec![block("192.0.2.0", 24)],
            routes: Default::default(),
        }],
        concurrency: 100,
        queue: 1000,
        scale: scale(),
        authorizers: vec![authorizer(AuthorizerProtocol::Grpc), authorizer(AuthorizerProtocol::Http)],
        inbound_extensions: vec![extension("p/extensions/in")],
        outbound_extensions: vec![extension("p/extensions/out")],
        revisions: Revisions {
            number: 7,
            plan: Plan {
                traffic: vec![target(6, 10), target(0, 90)],
                rollout: Some(rollout),
                history: 10,
                declared: Vec::new(),
            },
            split: Some(Box::new(Split {
                targets: vec![target(7, 90), target(6, 10)],
                others: vec![Revision { number: 6, template }],
            })),
            names: Vec::new(),
        },
        chain: None,
        bounds: Default::default(),
    }
}

/// A function with revisions that are declared by name, as a document has them and with their
/// numbers.
pub(super) fn named() -> FunctionConfig {
    let target = |name: &str, percent| Target { name: Some(name.to_owned()), percent, ..Target::default() };
    let declared = vec![DeclaredRevision { name: "stable".to_owned(), template: other_template() }];
    let plan = Plan { traffic: vec![target("stable", 90), target("next", 10)], declared, ..Plan::default() };
    let names = vec![(7, "stable".to_owned()), (6, "next".to_owned())];
    let before = command();
    FunctionConfig { revisions: Revisions { plan, names, ..before.revisions.clone() }, ..before }
}

/// A function whose documents have the certificates to trust for what nodes fetch.
pub(super) fn with_roots() -> FunctionConfig {
    let pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut config = command();
    config.jwks.iter_mut().for_each(|fetch| (fetch.ca_file, fetch.ca) = (None, pem.clone()));
    for extension in &mut config.inbound_extensions {
        extension.url.iter_mut().for_each(|url| (url.ca_file, url.ca) = (None, pem.clone()));
    }
    config
}

/// A function with other probes than usual.
pub(super) fn watched() -> FunctionConfig {
    let liveness = Some(Liveness { interval: Duration::from_secs(2), failures: 5 });
    FunctionConfig { run: Run::Command(Command { liveness, ..processes() }), ..command() }
}

/// A function with an authorizer that gets headers unchanged.
pub(super) fn raw() -> FunctionConfig {
    let authorizer = Authorizer { raw_headers: true, ..authorizer(AuthorizerProtocol::Grpc) };
    FunctionConfig { authorizers: vec![authorizer], ..command() }
}

/// A function whose requests are each judged by a run.
pub(super) fn judged_each() -> FunctionConfig {
    let mut config = command();
    config.inbound.sidecar.judge_each_request = true;
    config
}

/// A function that gets paths unchanged, as its callees do.
pub(super) fn as_received() -> FunctionConfig {
    let mut config = command();
    let targets = config.inbound.targets.iter_mut().chain(&mut config.outbound.targets);
    targets.for_each(|target| target.as_received = true);
    config
}

/// A member of a chain.
pub(super) fn chained() -> FunctionConfig {
    let chain = ChainLink {
        chain: "shop/boutique".to_owned(),
        memory: 16 << 20,
        large_pages: false,
        to: vec![id("shop/stock")],
        direct: false,
    };
    FunctionConfig {
        protocol: AppProtocol::Chain,
        callees: command().callees,
        chain: Some(chain),
        ..plain("shop/cart", Run::Command(processes()))
    }
}

/// A member of a chain whose calls the kernel may judge.
pub(super) fn direct() -> FunctionConfig {
    let chain = chained().chain.map(|chain| ChainLink { direct: true, ..chain });
    FunctionConfig { chain, ..chained() }
}

/// A member of a chain with large pages.
pub(super) fn large() -> FunctionConfig {
    let chain = chained().chain.map(|chain| ChainLink { large_pages: true, ..chain });
    FunctionConfig { chain, ..chained() }
}

/// A function whose namespace has a quota with every bound.
pub(super) fn bounded() -> FunctionConfig {
    let bounds = NamespaceBounds {
        instances: Some(20),
        cpu_millis: Some(2500),
        memory: Some(4 << 30),
        pids: Some(500),
        connections: Some(2000),
        open_requests: Some(300),
        waiting_requests: Some(40),
        pull_bandwidth: Some(5 << 20),
        image_bytes: None,
        image_files: None,
        volumes: None,
        volume_bytes: None,
        log_bandwidth: Some(64 << 10),
        isolation: Some(Isolation::Strict),
        files: Some(vec!["/etc/leno/shop".into()]),
        host_paths: None,
        egress: Some(vec![block("10.0.0.0", 8)]),
        metadata: None,
    };
    FunctionConfig { bounds, ..external() }
}

/// A function that names a metadata service which its namespace may not name.
pub(super) fn bounded_metadata() -> FunctionConfig {
    let bounds = NamespaceBounds { metadata: Some(vec![block("169.254.170.0", 24)]), ..NamespaceBounds::default() };
    let run = Run::External(vec!["169.254.169.254:80".parse().unwrap()]);
    FunctionConfig { bounds, run, ..external() }
}

/// A function whose namespace has bounds for its images.
pub(super) fn bounded_images() -> FunctionConfig {
    let bounds = NamespaceBounds { image_bytes: Some(3 << 30), image_files: Some(70_000), ..bounded().bounds };
    FunctionConfig { bounds, ..external() }
}

/// A function whose instances are external, with hardly any other field.
pub(super) fn external() -> FunctionConfig {
    let addresses = vec!["127.0.0.1:9000".parse().unwrap(), "[::1]:9000".parse().unwrap()];
    plain("shop/legacy", Run::External(addresses))
}

pub(super) fn job() -> FunctionConfig {
    let process = Process {
        argv: vec!["report".to_owned()],
        directory: "/srv/report".into(),
        env: env(),
        secrets: secrets(),
        resources: resources(),
        isolation: Isolation::Process,
        read_only_paths: vec!["/etc/ssl".into()],
        volumes: vec![],
        container: Some(container(Pull::OnDemand)),
        grace: Duration::from_secs(10),
    };
    let job = Job {
        process,
        parallelism: 2,
        completions: 4,
        backoff_limit: 6,
        active_deadline: Some(Duration::from_secs(3600)),
        ttl: Some(Duration::from_secs(86_400)),
        reruns: 0,
    };
    FunctionConfig { engine: Some(Engine::Wasm), ..plain("shop/report", Run::Job(job)) }
}

/// A job that was run again by hand.
pub(super) fn job_again() -> FunctionConfig {
    let mut config = job();
    if let Run::Job(job) = &mut config.run {
        job.reruns = 1;
    }
    config
}

/// A function with volumes on disk, and bounds of them.
pub(super) fn persistent() -> FunctionConfig {
    let persistent = vec![PersistentVolume {
        name: "data".to_owned(),
        path: "/data".into(),
        size: 1 << 30,
        shared: true,
        node: Some("node-a".to_owned()),
    }];
    let run = Run::Command(Command { persistent, container: None, ..processes() });
    let bounds = NamespaceBounds { volumes: Some(3), volume_bytes: Some(2 << 30), ..NamespaceBounds::default() };
    FunctionConfig { run, bounds, ..external() }
}

/// A function and a job with folders in memory.
pub(super) fn with_volumes() -> [FunctionConfig; 2] {
    let volumes = vec![Volume { path: "/var/lib/app".into(), size: Some(1 << 20), host: None }];
    let run = Run::Command(Command { volumes: volumes.clone(), container: None, ..processes() });
    let function = FunctionConfig { run, ..external() };
    let mut job = job();
    if let Run::Job(Job { process, .. }) = &mut job.run {
        (process.volumes, process.container) = (volumes, None);
    }
    [function, job]
}

/// A function and a container with folders of the node, and the list that permits them.
pub(super) fn with_host_volumes() -> [FunctionConfig; 2] {
    let host = |writable| Some(HostVolume { path: "/srv/shop/data".into(), writable, node: Some("node-a".to_owned()) });
    let volumes = [true, false].map(|writable| Volume { path: "/data".into(), size: None, host: host(writable) });
    let owner = Some(Owner { user: 1000, group: 2000 });
    let listed = [owner, None].map(|owner| HostFolder { path: "/srv/shop".into(), owner });
    let bounds = NamespaceBounds { host_paths: Some(listed.to_vec()), ..NamespaceBounds::default() };
    let run = |volumes: &[Volume], container: Option<Container>| {
        Run::Command(Command { volumes: volumes.to_vec(), container, ..processes() })
    };
    let contained = Some(container(Pull::Ahead)).map(|container| Container { volumes: volumes.to_vec(), ..container });
    [run(&volumes, None), run(&[], contained)].map(|run| FunctionConfig { run, bounds: bounds.clone(), ..external() })
}

/// A function and an external service with stored secrets.
pub(super) fn with_stored_secrets() -> [FunctionConfig; 2] {
    let stored = |key: &str| SecretSource::Stored(StoredKey { secret: "payments".to_owned(), key: key.to_owned() });
    let secrets = vec![Secret { name: "TOKEN".to_owned(), from: stored("token"), environment: false }];
    let run = Run::Command(Command { secrets, ..processes() });
    let function = FunctionConfig { run, ..external() };
    let mut service = egress(false);
    if let Run::Egress(egress) = &mut service.run {
        egress.tls.ca_file = Some(stored("ca.pem"));
        egress.tls.certificate = Some((stored("tls.crt"), stored("tls.key")));
        egress.credentials.iter_mut().for_each(|credential| credential.from = stored("token"));
    }
    [function, service]
}

/// Their values.
pub(super) fn stored_secrets() -> SecretValues {
    let value = |(key, value): (&str, &[u8]), mark| {
        let key = StoredKey { secret: "payments".to_owned(), key: key.to_owned() };
        (key, SecretBytes::new(value.to_vec().into(), [mark; 16]))
    };
    BTreeMap::from([value(("token", b"swordfish"), 7), value(("empty", b""), 8), value(("zero", &[0, 0]), 9)])
}

pub(super) fn egress(by_egress_nodes: bool) -> FunctionConfig {
    let protocols = [EgressProtocol::Http, EgressProtocol::Https, EgressProtocol::Tls, EgressProtocol::Tcp];
    let port = |(number, protocol)| EgressPort { number, protocol, http2: true };
    let forms =
        [CredentialForm::Plain, CredentialForm::Scheme("Bearer".into()), CredentialForm::Basic("user".to_owned())];
    let credential = |form| Credential { header: "authorization".to_owned(), form, from: "/etc/leno/token".into() };
    plain(
        "shop/payments",
        Run::Egress(Egress {
            hosts: vec!["api.example.com".to_owned()],
            addresses: vec![block("192.0.2.7", 32)],
            resolves_to: vec![block("10.0.0.0", 8)],
            ports: (1..).zip(protocols).map(port).collect(),
            tls: EgressTls {
                ca_file: Some("/etc/leno/ca.pem".into()),
                certificate: Some(("/etc/leno/client.pem".into(), "/etc/leno/client.key".into())),
                server_name: Some("api.internal".to_owned()),
                ..EgressTls::default()
            },
            credentials: forms.into_iter().map(credential).collect(),
            connect_timeout: Duration::from_secs(5),
            trace_context: true,
            by_egress_nodes,
        }),
    )
}

/// An external service whose TLS a BackendTLSPolicy determines.
pub(super) fn with_backend_tls() -> FunctionConfig {
    let stored = |secret: &str| SecretSource::Stored(StoredKey { secret: secret.to_owned(), key: "ca.crt".to_owned() });
    let mut service = egress(false);
    if let Run::Egress(egress) = &mut service.run {
        egress.tls = EgressTls {
            ca_file: Some(stored("first")),
            further_roots: vec![stored("second")],
            server_name: Some("api.internal".to_owned()),
            names: vec![
                CertificateName::Host("*.internal".to_owned()),
                CertificateName::Uri("spiffe://bank.example/api".to_owned()),
            ],
            refused: "the policy `shop/bank` names no authority".to_owned(),
            ..EgressTls::default()
        };
    }
    service
}

fn plain(name: &str, run: Run) -> FunctionConfig {
    FunctionConfig {
        id: id(name),
        run,
        inbound: ProgramSpec { direction: Direction::Inbound, ..outbound() },
        protocol: AppProtocol::Http1,
        scale: Scale { metric: Metric::Concurrency, ..scale() },
        revisions: Revisions { number: 1, ..Revisions::default() },
        engine: None,
        deadline: Duration::ZERO,
        keys: Vec::new(),
        jwks: Vec::new(),
        expose: Vec::new(),
        callees: Vec::new(),
        concurrency: 0,
        queue: 0,
        authorizers: Vec::new(),
        inbound_extensions: Vec::new(),
        outbound_extensions: Vec::new(),
        ..command()
    }
}

fn id(name: &str) -> FunctionId {
    name.parse().unwrap()
}

fn block(address: &str, prefix: u8) -> Cidr {
    Cidr { address: address.parse().unwrap(), prefix }
}

fn keys() -> Vec<VerificationKey> {
    let keys = [
        PublicKey::Rsa { n: vec![0xff; 256], e: vec![1, 0, 1] },
        PublicKey::P256(vec![4; 65]),
        PublicKey::P384(vec![4; 97]),
        PublicKey::P521(vec![4; 133]),
        PublicKey::Ed25519(vec![0; 32]),
    ];
    (1..).zip(keys).map(|(number, key)| VerificationKey { id: KeyId([number; 32]), key }).collect()
}

fn module() -> ModuleHash {
    leno_wire::module_hash(b"a module")
}

fn module_url() -> Option<ModuleUrl> {
    Some(ModuleUrl {
        url: "https://modules.example/a.wasm".to_owned(),
        ca_file: Some("/etc/leno/ca.pem".into()),
        ca: String::new(),
    })
}

fn processes() -> Command {
    Command {
        argv: vec!["python3".to_owned(), "shop.py".to_owned()],
        directory: "/srv/shop".into(),
        env: env(),
        secrets: secrets(),
        resources: resources(),
        isolation: Isolation::Strict,
        read_only_paths: vec!["/etc/ssl".into()],
        volumes: vec![],
        persistent: vec![],
        port: Some(8080),
        ports: ports(),
        readiness: Readiness::Http("/ready".to_owned()),
        liveness: None,
        startup_timeout: Duration::from_secs(30),
        container: Some(container(Pull::Ahead)),
        grace: Duration::from_secs(10),
    }
}

/// The module's kind of run, which a function's other revision has.
fn component() -> Run {
    Run::Wasm(Wasm {
        module: module(),
        url: module_url(),
        memory: 64 << 20,
        env: env(),
        secrets: secrets(),
        grace: Duration::from_secs(10),
    })
}

/// A revision with the fields that no function configuration of this file has.
pub(super) fn other_template() -> Template {
    let run = Run::Command(Command {
        isolation: Isolation::Auto,
        readiness: Readiness::Tcp,
        liveness: None,
        port: None,
        container: None,
        ..processes()
    });
    Template { run, protocol: AppProtocol::Http1, concurrency: 1, scale: scale() }
}

fn ports() -> Vec<Port> {
    vec![
        Port { number: 5432, protocol: PortProtocol::Tcp, splice: true },
        Port { number: 6432, protocol: PortProtocol::Tls, splice: false },
    ]
}

/// Empty values count as values.
fn env() -> BTreeMap<String, String> {
    BTreeMap::from([("DEBUG".to_owned(), String::new()), ("MODE".to_owned(), "live".to_owned())])
}

fn secrets() -> Vec<Secret> {
    vec![Secret { name: "TOKEN".to_owned(), from: "/etc/leno/token".into(), environment: true }]
}

fn resources() -> Resources {
    Resources { memory: 256 << 20, cpu_millis: 500, pids: 64 }
}

fn container(pull: Pull) -> Container {
    Container {
        image: "registry.example/shop:1".to_owned(),
        digest: Some(format!("sha256:{}", "ab".repeat(32))),
        command: Some(Vec::new()),
        args: Some(vec!["serve".to_owned()]),
        directory: Some("/srv".into()),
        user: Some("1000:1000".to_owned()),
        volumes: vec![Volume { path: "/data".into(), size: Some(1 << 20), host: None }],
        read_only: true,
        writable: Some(1 << 30),
        pull,
    }
}

fn scale() -> Scale {
    Scale {
        min: 1,
        max: 20,
        initial: 2,
        activation: 3,
        metric: Metric::Rps,
        per_instance: 50.0,
        utilization: 0.7,
        window: Duration::from_secs(60),
        panic_window: Duration::from_secs(6),
        panic_threshold: 2.0,
        scale_down_delay: Duration::from_secs(1),
        last_instance: Duration::from_secs(30),
        up_rate: 1000.0,
        down_rate: 2.0,
    }
}

fn authorizer(protocol: AuthorizerProtocol) -> Authorizer {
    Authorizer {
        name: "p/externalAuthorization/opa".to_owned(),
        authority: "opa.shop".to_owned(),
        protocol,
        path_prefix: "/check".to_owned(),
        timeout: Duration::from_millis(200),
        status_on_error: 503,
        shown: Some(vec!["authorization".to_owned()]),
        raw_headers: false,
        upstream_headers: vec!["x-user".to_owned()],
        client_headers: vec!["www-authenticate".to_owned()],
        cache: Some(AuthorizerCache { ttl: Duration::from_secs(10), key: vec![KeyPart::Path] }),
        audit: true,
    }
}

fn extension(name: &str) -> Extension {
    Extension {
        name: name.to_owned(),
        module: module(),
        url: module_url(),
        request: true,
        response: true,
        configuration: b"{}".to_vec(),
        deadline: Duration::from_millis(2),
        memory: 1 << 20,
        fail_open: true,
    }
}
