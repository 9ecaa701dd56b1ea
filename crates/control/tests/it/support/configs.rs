//! Function configurations as documents would give them, with the fields that the control plane
//! reads.

use leno_model::{
    AccessLogSink, AppProtocol, Callee, Expose, Extension, Isolation, Job, Limits, Process, Resources, Run,
};
use leno_model::{FunctionConfig, FunctionId, MeshConfig};
use leno_policy::spec::{AccessLog, Direction, ProgramSpec, Sidecar, Tracing};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const DOMAIN: &str = "orders.example";

pub(crate) fn function(name: &str) -> FunctionId {
    name.parse().unwrap()
}

pub(crate) fn identity(name: &str) -> String {
    let id = function(name);
    format!("spiffe://{DOMAIN}/ns/{}/sa/{}", id.namespace, id.name)
}

/// A function that may call `callees`, somewhat changed by `edition`.
pub(crate) fn config(name: &str, callees: &[&str], edition: u32) -> FunctionConfig {
    FunctionConfig {
        id: function(name),
        identity: identity(name).parse().unwrap(),
        inbound: program(name, Direction::Inbound),
        outbound: program(name, Direction::Outbound),
        engine: None,
        deadline: Duration::from_millis(2),
        protocol: AppProtocol::Http1,
        keys: Vec::new(),
        jwks: Vec::new(),
        run: Run::External(vec!["127.0.0.1:9000".parse().unwrap()]),
        expose: Vec::new(),
        faults: Vec::new(),
        is_routed: false,
        callees: callees.iter().map(|callee| self::callee(callee)).collect(),
        concurrency: 1,
        queue: edition,
        scale: Default::default(),
        authorizers: Vec::new(),
        inbound_extensions: Vec::new(),
        outbound_extensions: Vec::new(),
        revisions: Default::default(),
        chain: None,
        bounds: Default::default(),
    }
}

/// The function configuration as it is delivered: all editions are the first revision of their
/// function.
pub(crate) fn delivered(mut config: FunctionConfig) -> FunctionConfig {
    config.revisions.number = 1;
    config
}

/// A job that may call `callees`; another edition is another run.
pub(crate) fn job(name: &str, callees: &[&str], edition: u32) -> FunctionConfig {
    let process = Process {
        argv: vec!["job".to_owned()],
        directory: "/".into(),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        resources: Resources::default(),
        isolation: Isolation::Auto,
        read_only_paths: vec![],
        volumes: vec![],
        container: None,
        grace: Duration::ZERO,
    };
    let job = Job {
        process,
        parallelism: 1,
        completions: edition,
        backoff_limit: 6,
        active_deadline: None,
        ttl: None,
        reruns: 0,
    };
    FunctionConfig { run: Run::Job(job), ..config(name, callees, 1) }
}

/// The function configuration with an extension of this module.
pub(crate) fn extended(mut config: FunctionConfig, module: &[u8]) -> FunctionConfig {
    config.inbound_extensions.push(Extension {
        name: "p/extensions/x".to_owned(),
        module: leno_wire::module_hash(module),
        url: None,
        request: true,
        response: false,
        configuration: Vec::new(),
        deadline: Duration::from_millis(2),
        memory: 1 << 20,
        fail_open: false,
    });
    config
}

pub(crate) fn exposed(mut config: FunctionConfig) -> FunctionConfig {
    config.expose.push(Expose { hosts: vec!["*".to_owned()], path: "/".to_owned() });
    config
}

fn callee(name: &str) -> Callee {
    Callee {
        id: function(name),
        identity: identity(name).parse().unwrap(),
        hosts: vec![function(name).name],
        ports: Vec::new(),
        addresses: Vec::new(),
        routes: Default::default(),
    }
}

fn program(name: &str, direction: Direction) -> ProgramSpec {
    ProgramSpec {
        function: name.to_owned(),
        direction,
        sidecar: Sidecar::default(),
        authentication: Vec::new(),
        authorization: Vec::new(),
        authorizers: Vec::new(),
        audit_default: false,
        rate_limits: Vec::new(),
        tracing: Tracing { name: String::new(), enabled: true, sampling_per_10k: 100, accept_b3: true },
        access_log: AccessLog {
            name: String::new(),
            enabled: true,
            statuses: vec![(400, 599)],
            request_headers: Vec::new(),
        },
        targets: Vec::new(),
    }
}

pub(crate) fn mesh() -> MeshConfig {
    let local = "127.0.0.1:0".parse().unwrap();
    MeshConfig {
        trust_domain: DOMAIN.parse().unwrap(),
        engine: None,
        mtls_same_node: false,
        svid_lifetime: Duration::from_secs(3600),
        stream_lifetime: None,
        gateway_http: Some(local),
        gateway_https: None,
        gateway_ports: Vec::new(),
        https_redirect: None,
        trusted_proxies: Default::default(),
        proxy_protocol: false,
        outbound: local,
        inbound: local,
        admin: leno_model::AdminListener::Usual,
        control: local,
        access_log: AccessLogSink { json: true, file: None },
        otlp: None,
        name_servers: Vec::new(),
        quotas: None,
        accounts: leno_model::Accounts::Node,
        images: leno_model::Images {
            folder: "/var/lib/leno/images".into(),
            size: 1 << 30,
            default_registry: None,
            docker_config: None,
            registries: Vec::new(),
        },
        limits: Limits {
            head_bytes: 32768,
            headers: 100,
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
    }
}
