//! Frozen payloads, stored values and messages, in `tests/golden`, stand for the releases that
//! wrote them. Today's code must read them as the same values and write the same bytes.
//!
//! A new field or variant is in no file yet, and a test reports it: use it in a value here, under a
//! new name, and write the file with `LENO_BLESS=1 cargo test --release -p leno-control golden`.
//! That never changes an existing file. Beside each file is its readable form.

mod configs;
mod coverage;
mod dump;
mod messages;
mod pods;
mod programs;
mod routes;

use crate::admission::{Admission, CapacityLimits, Member, Token, TokenGrant};
use crate::fuzzing::{self, written};
use crate::history::{Candidate, History, NamedRevision, TrafficRecord};
use crate::job::Outcome;
use crate::revocations::Revocation;
use crate::rotation::{AuthorityRecord, Phase, Rotation, RotationOutcome};
use leno_identity::{Authority, CertificateDer, TrustBundle};
use leno_model::revision::Template;
use leno_model::{
    AccessLogSink, Accounts, AdminListener, CertificateFiles, Engine, ExtensionInstances, GatewayTls, ImageRegistry,
    Images, Limits, PodMode, PortRange, RedisQuotas, RedisTransport, RegistryCredentials, TrustedProxies,
    UpstreamLimits,
};
use leno_model::{CandidatePrograms, FunctionId, Locality, MeshConfig, Route};
use leno_wire::encoding::{from_bytes_observed, to_bytes};
use leno_wire::{Bounds, Endpoint, JobReport, JobState, Lease, LimitShare, Placement, Resource, Subject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The content of a file, which is written if there is none and `LENO_BLESS` is set.
fn file(name: &str, written: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name);
    if std::env::var_os("LENO_BLESS").is_some() && !path.exists() {
        std::fs::write(&path, written()).unwrap();
    }
    let missing = |error| panic!("{}: {error}; with LENO_BLESS=1 it is written", path.display());
    std::fs::read(&path).unwrap_or_else(missing)
}

/// Checks that a resource is read as this value, and written unchanged.
fn resource(name: &str, expected: &Resource) {
    let encoded = file(&format!("{name}.msgpack"), || written(expected).payload.to_vec());
    let read = Resource::decode_observed(&expected.subject(), &encoded, coverage::note)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read, *expected, "{name}");
    assert_eq!(written(&read).payload, encoded, "{name} is written in other bytes than it was");
    readable(name, &encoded);
}

/// Checks that a stored value is read as this one, and written unchanged.
fn stored<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, expected: &T) {
    let encoded = file(&format!("{name}.msgpack"), || to_bytes(expected).unwrap());
    let read: T = from_bytes_observed(&encoded, coverage::note).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read, *expected, "{name}");
    assert_eq!(to_bytes(&read).unwrap(), encoded, "{name} is written in other bytes than it was");
    readable(name, &encoded);
}

fn readable(name: &str, encoded: &[u8]) {
    let text = dump::msgpack(encoded);
    assert_eq!(String::from_utf8(file(&format!("{name}.txt"), || text.clone().into_bytes())).unwrap(), text, "{name}");
}

#[test]
fn golden_files_are_read_and_written_as_they_were() {
    resource("mesh", &Resource::Mesh(Box::new(mesh())));
    let other = MeshConfig {
        admin: AdminListener::Socket("/run/leno/admin.sock".into()),
        trusted_proxies: TrustedProxies::Hops(2),
        accounts: Accounts::Node,
        ..mesh()
    };
    resource("mesh-socket", &Resource::Mesh(Box::new(other)));
    let certificates = CertificateFiles { certificate: "/etc/leno/api.pem".into(), key: "/etc/leno/api.key".into() };
    let mut other = MeshConfig { https_redirect: Some(443), ..mesh() };
    other.gateway_https.iter_mut().for_each(|https| https.further.push(certificates.clone()));
    resource("mesh-certificates", &Resource::Mesh(Box::new(other)));
    let other = MeshConfig { stream_lifetime: Some(Duration::from_secs(7200)), ..mesh() };
    resource("mesh-streams", &Resource::Mesh(Box::new(other)));
    let other = MeshConfig { admin: AdminListener::Usual, trusted_proxies: TrustedProxies::None, ..mesh() };
    resource("mesh-usual", &Resource::Mesh(Box::new(other)));
    for (name, quotas) in [("mesh-redis", redis(RedisTransport::Plain)), ("mesh-redis-tls", redis(secured()))] {
        resource(name, &Resource::Mesh(Box::new(MeshConfig { quotas: Some(quotas), ..mesh() })));
    }
    let keep_alive = Duration::from_secs(30);
    let upstream = UpstreamLimits { head_bytes: 40_000, headers: 500, keep_alive, ..UpstreamLimits::default() };
    let limits = Limits { upstream, ..mesh().limits };
    resource("mesh-upstream", &Resource::Mesh(Box::new(MeshConfig { limits, ..mesh() })));
    let upstream = UpstreamLimits { tcp_keep_alive: Duration::from_secs(15), ..UpstreamLimits::default() };
    let limits = Limits { upstream, ..mesh().limits };
    resource("mesh-tcp", &Resource::Mesh(Box::new(MeshConfig { limits, ..mesh() })));
    let gateway_ports = vec![PortRange { first: 8443, last: 8443 }, PortRange { first: 9000, last: 9010 }];
    resource("mesh-ports", &Resource::Mesh(Box::new(MeshConfig { gateway_ports, ..mesh() })));
    let domain = "orders.example".parse().unwrap();
    let root = file("root.der", || Authority::new(&domain).unwrap().bundle().roots().next().unwrap().to_vec());
    resource("bundle", &Resource::Bundle(TrustBundle::new(&domain, [CertificateDer::from(root)]).unwrap()));
    resource("slice-command", &Resource::FunctionConfig(Box::new(configs::command())));
    resource("slice-named", &Resource::FunctionConfig(Box::new(configs::named())));
    resource("slice-roots", &Resource::FunctionConfig(Box::new(configs::with_roots())));
    resource("slice-watched", &Resource::FunctionConfig(Box::new(configs::watched())));
    resource("slice-raw-headers", &Resource::FunctionConfig(Box::new(configs::raw())));
    resource("slice-judge-each", &Resource::FunctionConfig(Box::new(configs::judged_each())));
    resource("slice-as-received", &Resource::FunctionConfig(Box::new(configs::as_received())));
    resource("slice-chain", &Resource::FunctionConfig(Box::new(configs::chained())));
    resource("slice-direct", &Resource::FunctionConfig(Box::new(configs::direct())));
    resource("slice-large-pages", &Resource::FunctionConfig(Box::new(configs::large())));
    resource("slice-bounded", &Resource::FunctionConfig(Box::new(configs::bounded())));
    resource("slice-bounded-images", &Resource::FunctionConfig(Box::new(configs::bounded_images())));
    resource("slice-bounded-metadata", &Resource::FunctionConfig(Box::new(configs::bounded_metadata())));
    resource("slice-external", &Resource::FunctionConfig(Box::new(configs::external())));
    resource("slice-job", &Resource::FunctionConfig(Box::new(configs::job())));
    resource("slice-job-again", &Resource::FunctionConfig(Box::new(configs::job_again())));
    let [function, job] = configs::with_volumes();
    resource("slice-volumes", &Resource::FunctionConfig(Box::new(function)));
    resource("slice-job-volumes", &Resource::FunctionConfig(Box::new(job)));
    resource("slice-persistent", &Resource::FunctionConfig(Box::new(configs::persistent())));
    let [function, contained] = configs::with_host_volumes();
    resource("slice-host-volumes", &Resource::FunctionConfig(Box::new(function)));
    resource("slice-container-host-volumes", &Resource::FunctionConfig(Box::new(contained)));
    resource("slice-egress", &Resource::FunctionConfig(Box::new(configs::egress(false))));
    resource("slice-egress-nodes", &Resource::FunctionConfig(Box::new(configs::egress(true))));
    resource("slice-egress-backend-tls", &Resource::FunctionConfig(Box::new(configs::with_backend_tls())));
    let [function, service] = configs::with_stored_secrets();
    resource("slice-stored-secrets", &Resource::FunctionConfig(Box::new(function)));
    resource("slice-egress-stored-secrets", &Resource::FunctionConfig(Box::new(service)));
    resource("secrets", &Resource::Secrets(id("shop/checkout"), Arc::new(configs::stored_secrets())));
    resource("endpoints", &Resource::Endpoints(id("shop/checkout"), endpoints()));
    let mut near = endpoints();
    near[0].locality = Locality { region: Some("eu".to_owned()), zone: Some("eu-a".to_owned()) };
    resource("endpoints-near", &Resource::Endpoints(id("shop/checkout"), near));
    resource("route", &Resource::Route(Box::new(Route::of(&configs::command()).unwrap())));
    let bounds = vec![Bounds { revision: 3, least: 1, most: 4 }, Bounds { revision: 4, least: 0, most: 2 }];
    resource("scale", &Resource::Scale(id("shop/checkout"), bounds));
    let share = LimitShare { limit: "p/rateLimits/all".to_owned(), parts: 360_360, unused: true };
    resource("quota", &Resource::Quota(id("shop/checkout"), Lease { shares: vec![share] }));
    resource("hosted-scheduled", &Resource::Hosted(Placement::Scheduled));
    resource("routes", &Resource::Routes(Box::default()));
    resource("routes-of-documents", &Resource::Routes(Box::new(routes::gateway_routes())));
    resource("routes-of-ports", &Resource::Routes(Box::new(routes::opened())));
    resource("routes-of-streams", &Resource::Routes(Box::new(routes::streams())));
    resource("routes-of-certificates", &Resource::Routes(Box::new(routes::certified())));
    resource("listener-certificates", &Resource::Certificates(Arc::new(routes::certificates())));
    resource("routes-with-authorizer", &Resource::Routes(Box::new(routes::with_authorizer())));
    resource("route-of-documents", &Resource::Route(Box::new(Route::of(&routes::routed()).unwrap())));
    resource("slice-routed", &Resource::FunctionConfig(Box::new(routes::routed())));
    resource("routes-with-faults", &Resource::Routes(Box::new(routes::faulty_gateway_routes())));
    resource("route-with-faults", &Resource::Route(Box::new(Route::of(&routes::faulty()).unwrap())));
    resource("slice-with-faults", &Resource::FunctionConfig(Box::new(routes::faulty())));
    resource("hosted-everything", &Resource::Hosted(Placement::Everything));
    let functions = BTreeSet::from([id("shop/checkout"), id("shop/stock")]);
    resource("hosted-only", &Resource::Hosted(Placement::Only(functions)));
    let names = BTreeSet::from(["payments".to_owned(), "shop".to_owned()]);
    resource("enforced-namespaces", &Resource::EnforcedNamespaces(names));
    resource("hosted-pods", &Resource::Hosted(Placement::Pods));
    for (name, pod) in ["pod-of-host-network", "pod-with-net-admin", "pod"].into_iter().zip(pods::pods()) {
        resource(name, &Resource::Pod(Box::new(pod)));
    }
    resource("pod-with-account", &Resource::Pod(Box::new(pods::with_account())));
    resource("slice-pods-of-accounts", &Resource::FunctionConfig(Box::new(pods::of_accounts())));
    for (name, destination) in
        ["destination-service", "destination-preferring", "destination-pod"].into_iter().zip(pods::called())
    {
        resource(name, &Resource::Destination([10, 96, 0, 10].into(), Box::new(destination)));
    }
    let address = [10, 244, 1, 7].into();
    resource("service-endpoint", &Resource::ServiceEndpoint(pods::service(), address, pods::endpoints()));
    for mode in [PodMode::Permissive, PodMode::Enforced] {
        resource(&format!("slice-pods-{mode}"), &Resource::FunctionConfig(Box::new(pods::function(mode))));
    }

    stored::<CandidatePrograms>("candidate", &CandidatePrograms::of(&configs::command()));
    stored::<Template>("stored-template", &configs::other_template());
    stored::<History>("stored-history", &history());
    let function = Some("shop/checkout".parse().unwrap());
    stored::<History>("stored-history-of-function", &History { function, ..history() });
    stored::<History>("stored-history-of-a-later-start", &History { first: Some(4), ..history() });
    stored::<History>("stored-history-of-a-job", &History { reruns: Some(1), ..history() });
    stored::<History>("stored-history-of-names", &named_history());
    stored::<Member>("stored-member", &member());
    let limits = CapacityLimits { cpu_millis: Some(4000), memory: Some(8 << 30), instances: Some(50) };
    stored::<Member>("stored-member-limited", &Member { limits, ..member() });
    stored::<Member>("stored-member-cordoned", &Member { cordoned: true, ..member() });
    stored::<Member>("stored-member-unschedulable", &Member { unschedulable: true, ..member() });
    let admission = Admission { placement: Placement::Pods, gateway: false, ..member().admission };
    stored::<Member>("stored-member-verified", &Member { admission, verified: true, ..member() });
    let admission = Admission { egress: true, ..member().admission };
    stored::<Member>("stored-member-egress", &Member { admission, ..member() });
    stored::<Token>("stored-token", &token());
    let limited = TokenGrant { limits, ..token().grant };
    stored::<Token>("stored-token-limited", &Token { grant: limited, ..token() });
    stored::<Revocation>("stored-revocation", &Revocation { node: "one".to_owned(), until: at(4) });
    for phase in [Phase::Trust, Phase::Renew, Phase::Withdraw] {
        stored::<AuthorityRecord>(&format!("stored-authority-{phase:?}").to_lowercase(), &authority(phase));
    }
    for state in [JobState::Pending, JobState::Running, JobState::Succeeded, JobState::Failed] {
        stored::<Outcome>(&format!("stored-outcome-{state:?}").to_lowercase(), &outcome(state));
    }

    let never = coverage::missing();
    assert!(
        never.is_empty(),
        "no golden file has these, so nothing shows that the next release can read them: {never:?}"
    );
}

/// The fuzz targets begin with these files.
#[test]
fn fuzz_targets_take_the_golden_files() {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).unwrap() {
        let content = std::fs::read(file.unwrap().path()).unwrap();
        fuzzing::from_node(&content);
        fuzzing::to_node(&content);
        fuzzing::payload(&content);
        fuzzing::stored(&content);
    }
}

/// How a node of this release handles a function configuration of the next one.
#[test]
fn a_later_config_is_refused_with_its_place() {
    let mut later =
        rmpv::decode::read_value(&mut &*written(&Resource::FunctionConfig(Box::new(configs::command()))).payload)
            .unwrap();
    let rmpv::Value::Map(fields) = &mut later else { panic!("a configuration is a map") };
    let rmpv::Value::Map(inbound) =
        &mut fields.iter_mut().find(|(name, _)| name.as_str() == Some("inbound")).unwrap().1
    else {
        panic!("a program is a map")
    };
    inbound.push(("quarantine".into(), true.into()));
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &later).unwrap();
    let refused = Resource::decode(&Subject::FunctionConfig(id("shop/checkout")), &encoded).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the configuration of shop/checkout cannot be read: inbound: unknown or repeated field `quarantine` of ProgramSpec"
    );
}

fn id(name: &str) -> FunctionId {
    name.parse().unwrap()
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_900_000_000_000 + seconds * 1000 + 5)
}

fn member() -> Member {
    let locality = Locality { region: Some("eu".to_owned()), zone: Some("eu-a".to_owned()) };
    let admission = Admission { placement: Placement::Scheduled, gateway: true, locality, egress: false };
    let addresses = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    Member {
        admission,
        addresses,
        joined_by: Some([7; 32]),
        verified: false,
        cordoned: false,
        unschedulable: false,
        limits: CapacityLimits::default(),
    }
}

fn token() -> Token {
    let grant = TokenGrant {
        node: Some("one".to_owned()),
        admission: member().admission,
        addresses: vec!["192.0.2.0/24".parse().unwrap()],
        expires: at(4),
        limits: CapacityLimits::default(),
    };
    Token { grant, used: Some(([9; 32], "one".to_owned())) }
}

fn authority(phase: Phase) -> AuthorityRecord {
    let failed = BTreeMap::from([("one".to_owned(), "it is away".to_owned())]);
    let rotation = Rotation {
        phase,
        drill: true,
        aborted: true,
        roots: vec![vec![0x30, 0], vec![0x30, 1]],
        original: vec![7; 20],
        candidate_root: vec![0x30, 2],
        candidate: vec![9; 20],
        since: 1_900_000_000,
        without: BTreeSet::from(["two".to_owned()]),
        failed: failed.clone(),
    };
    let last = RotationOutcome { number: 3, drill: true, aborted: true, at: 1_900_000_001, failed };
    AuthorityRecord { key: vec![7; 20], kept: true, rotation: Some(rotation), last: Some(last) }
}

fn endpoints() -> Vec<Endpoint> {
    let endpoint = |node: &str, address: &str, ready| Endpoint {
        node: node.to_owned(),
        address: address.parse().unwrap(),
        ready,
        locality: Locality::default(),
    };
    vec![endpoint("one", "192.0.2.1:15008", 3), endpoint("two", "[2001:db8::2]:15008", 0)]
}

fn history() -> History {
    let mut history = History::of_template(&configs::other_template());
    history.stable = 1;
    history.candidate = Some(Candidate { number: 1, step: 2, since_ms: 1_900_000_000_000 });
    history.roll_back(1, "5 of 100 requests failed".to_owned());
    history.candidate = Some(Candidate { number: 2, step: 1, since_ms: 1_900_000_001_000 });
    history
}

/// A history of revisions that a document declares by name, with a rollout that is paused.
fn named_history() -> History {
    let mut history = history();
    history.kept.iter_mut().for_each(|kept| kept.name = Some("next".to_owned()));
    let (stable, candidate) = (history.stable, history.candidate.take());
    history.named = vec![NamedRevision { name: "next".to_owned(), stable, candidate }];
    (history.stable, history.paused) = (0, true);
    let now = configs::named().revisions.plan.traffic;
    history.traffic = Some(TrafficRecord { now, before: Some(Vec::new()), since_ms: 1_900_000_001_000 });
    history
}

fn outcome(state: JobState) -> Outcome {
    let report = JobReport {
        run: "0123456789abcdef".to_owned(),
        state,
        active: 1,
        succeeded: 2,
        failed: 3,
        started: Some(at(1)),
        ended: Some(at(2)),
        exit_code: Some(-7),
        reason: Some("it was killed".to_owned()),
        changed: at(3),
    };
    Outcome { node: "one".to_owned(), report }
}

fn redis(transport: RedisTransport) -> RedisQuotas {
    RedisQuotas {
        address: "redis.example:6379".to_owned(),
        transport,
        username: Some("nodes".to_owned()),
        password_file: Some("/etc/leno/redis".into()),
        database: 2,
        prefix: "leno".to_owned(),
        timeout: Duration::from_millis(200),
    }
}

fn secured() -> RedisTransport {
    RedisTransport::Tls { ca_file: Some("/etc/leno/ca.pem".into()), server_name: "redis.example".to_owned() }
}

fn mesh() -> MeshConfig {
    let address = |port: u16| format!("127.0.0.1:{port}").parse().unwrap();
    let credentials = [
        RegistryCredentials::Password { username: "ci".to_owned(), file: "/etc/leno/password".into() },
        RegistryCredentials::Token("/etc/leno/token".into()),
    ];
    let registry = |credentials| ImageRegistry {
        host: "registry.example".to_owned(),
        mirrors: vec!["mirror.example".to_owned()],
        ca_file: Some("/etc/leno/ca.pem".into()),
        insecure: true,
        credentials: Some(credentials),
    };
    MeshConfig {
        trust_domain: "orders.example".parse().unwrap(),
        engine: Some(Engine::Wasm),
        mtls_same_node: true,
        svid_lifetime: Duration::from_secs(3600),
        stream_lifetime: None,
        gateway_http: Some(address(8080)),
        gateway_https: Some(GatewayTls {
            listen: address(8443),
            certificate: "/etc/leno/chain.pem".into(),
            key: "/etc/leno/key.pem".into(),
            further: Vec::new(),
        }),
        gateway_ports: Vec::new(),
        https_redirect: None,
        trusted_proxies: TrustedProxies::Addresses(vec![leno_policy::spec::Cidr {
            address: "10.0.0.0".parse().unwrap(),
            prefix: 8,
        }]),
        proxy_protocol: true,
        outbound: address(15001),
        inbound: address(15008),
        admin: AdminListener::Address(address(15000), "/etc/leno/admin".into()),
        control: address(15010),
        access_log: AccessLogSink { json: true, file: Some("/var/log/leno/access.log".into()) },
        name_servers: vec![address(53)],
        otlp: Some("http://127.0.0.1:4318".to_owned()),
        accounts: Accounts::PerNamespace { first: 70_000, required: true },
        images: Images {
            folder: "/var/lib/leno/images".into(),
            size: 1 << 33,
            default_registry: Some("registry.example".to_owned()),
            docker_config: Some("/root/.docker/config.json".into()),
            registries: credentials.into_iter().map(registry).collect(),
        },
        quotas: None,
        limits: Limits {
            head_bytes: 32_768,
            headers: 100,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(30),
            h2_streams: 100,
            upstream: Default::default(),
            drain_timeout: Duration::from_secs(10),
            connections: 70_000,
            connections_per_address: 200,
            extension_instances: ExtensionInstances { per_function: 100, per_namespace: 250 },
        },
    }
}
