//! The Mesh document, or its defaults.

use super::fields::{self, DAY, MILLISECOND};
use super::{TypedDocument, images, quotas, text};
use crate::document::{
    self, AccessLogFormat, AccountChoice, Address, AdminAddress, EngineChoice, Gateway, Listeners, MeshLimits,
    MeshSpec, Ports, ProxyProtocol, SameNode,
};
use crate::duration::Duration;
use crate::nearest::list;
use crate::problem::{Problem, Scope};
use leno_model::TrustDomain;
use leno_model::{
    AccessLogSink, Accounts, AdminListener, CertificateFiles, Engine, ExtensionInstances, GatewayTls, Limits,
    MeshConfig, TCP_KEEP_ALIVE, TrustedProxies, UpstreamLimits,
};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A rotation every half minute is already more than needed.
const SHORTEST_SVID: Duration = Duration::from_secs(60);
/// Proxies in a row.
const MOST_HOPS: u32 = 100;
/// Length of `sun_path` without the NUL at its end (unix(7)).
const LONGEST_SOCKET: usize = 107;
/// Revocation is expiry.
const LONGEST_SVID: Duration = Duration::from_secs(90 * 86_400);

/// Ids of accounts that can be assigned to namespaces.
const FIRST_IDS: std::ops::RangeInclusive<u32> = 1000..=2_000_000_000;

pub(super) fn mesh(
    documents: &[Arc<TypedDocument<document::Mesh>>],
    folder: Option<&Path>,
    problems: &RefCell<Vec<Problem>>,
    inputs: &RefCell<Vec<PathBuf>>,
) -> MeshConfig {
    for second in documents.iter().skip(1) {
        let first = documents[0].scope(problems).line();
        second.scope(problems).problem(format!("there is another Mesh document, in {first}"), "keep one of the two");
    }
    match documents.first() {
        Some(placed) => {
            let root = placed.scope(problems);
            let metadata = root.field("metadata");
            fields::label(&metadata.field("name"), &placed.document.metadata.name);
            checked(&root.field("spec"), &placed.document.spec, folder, inputs)
        }
        None => compiled(&MeshSpec::default()),
    }
}

fn checked(scope: &Scope<'_>, spec: &MeshSpec, folder: Option<&Path>, inputs: &RefCell<Vec<PathBuf>>) -> MeshConfig {
    let namespaces = scope.field("auditNamespaces");
    for (index, name) in spec.audit_namespaces.iter().enumerate() {
        fields::label(&namespaces.element(index), name);
    }
    if spec.trust_domain.parse::<TrustDomain>().is_err() {
        let fix = "expected a name such as shop.example: a-z, 0-9, `-`, `_` and `.`";
        scope
            .field("trustDomain")
            .problem(format!("`{}` is not a trust domain", spec.trust_domain.escape_debug()), fix);
    }
    let mtls = scope.field("mtls");
    fields::within(&mtls.field("svidLifetime"), spec.mtls.svid_lifetime, SHORTEST_SVID, LONGEST_SVID);
    fields::within(&mtls.field("streamLifetime"), spec.mtls.stream_lifetime, Duration::default(), LONGEST_SVID);
    if let Some(url) = &spec.tracing.otlp
        && !is_collector(url)
    {
        let fix = "expected http:// or https://, a host and possibly a port, such as http://127.0.0.1:4318";
        scope
            .field("tracing")
            .field("otlp")
            .problem(format!("`{}` is not the address of a collector", url.escape_debug()), fix);
    }
    let first = spec.instances.first_id;
    if !FIRST_IDS.contains(&first) {
        let fix =
            format!("expected {} to {}; below are accounts of people and services", FIRST_IDS.start(), FIRST_IDS.end());
        scope.field("instances").field("firstId").problem(format!("{first} is out of range"), fix);
    }
    for (index, address) in spec.egress.name_servers.iter().enumerate() {
        fields::port(&scope.field("egress").field("nameServers").element(index), address.0.port());
    }
    listeners(scope, spec);
    limits(&scope.field("limits"), &spec.limits);
    let mut mesh = compiled(spec);
    mesh.admin = admin(&scope.field("listeners"), &spec.listeners, inputs);
    mesh.trusted_proxies = trusted_proxies(&scope.field("gateway"), &spec.gateway);
    if let Some(https) = &mut mesh.gateway_https {
        let gateway = scope.field("gateway");
        let gateway = gateway.field("https");
        https.certificate = fields::file(inputs, &gateway.field("certificate"), &https.certificate);
        https.key = fields::file(inputs, &gateway.field("key"), &https.key);
        for (index, further) in https.further.iter_mut().enumerate() {
            let entry = gateway.field("certificates");
            let entry = entry.element(index);
            further.certificate = fields::file(inputs, &entry.field("certificate"), &further.certificate);
            further.key = fields::file(inputs, &entry.field("key"), &further.key);
        }
        if mesh.https_redirect.is_some() && mesh.gateway_http.is_none() {
            gateway.field("redirectHttp").problem(
                "the gateway takes no plain requests that it could redirect",
                "add `gateway: {http: ADDRESS}`, or remove `redirectHttp`",
            );
        }
    }
    mesh.images = images::images(&scope.field("images"), &spec.images, folder, inputs);
    mesh.quotas = quotas::quotas(&scope.field("quotas"), &spec.quotas, inputs);
    mesh.access_log.file = mesh.access_log.file.map(|file| fields::relative(scope, &file));
    mesh
}

fn compiled(spec: &MeshSpec) -> MeshConfig {
    let MeshLimits {
        head_bytes,
        headers,
        head_timeout,
        idle_timeout,
        request_timeout,
        http2_streams,
        upstream_keep_alive,
        tcp_keep_alive,
        drain_timeout,
        connections,
        connections_per_address,
        extension_instances_per_function,
        extension_instances_per_namespace,
    } = spec.limits;
    let https = spec.gateway.https.as_ref();
    // A wrong name was reported.
    let or_default = |_| MeshSpec::default().trust_domain.parse().expect("the default is a trust domain");
    let trust_domain = spec.trust_domain.parse().unwrap_or_else(or_default);
    MeshConfig {
        trust_domain,
        engine: match spec.engine {
            EngineChoice::Auto => None,
            EngineChoice::Microvm => Some(Engine::Microvm),
            EngineChoice::Wasm => Some(Engine::Wasm),
        },
        mtls_same_node: spec.mtls.same_node == SameNode::Always,
        svid_lifetime: spec.mtls.svid_lifetime.0,
        stream_lifetime: Some(spec.mtls.stream_lifetime.0).filter(|lifetime| *lifetime != leno_model::STREAM_LIFETIME),
        gateway_http: spec.gateway.http.map(|address| address.0),
        gateway_https: https.map(|https| GatewayTls {
            listen: https.listen.0,
            certificate: https.certificate.clone(),
            key: https.key.clone(),
            further: https.certificates.iter().map(further).collect(),
        }),
        gateway_ports: spec.gateway.ports.iter().map(|ports| ports.0).collect(),
        https_redirect: https
            .filter(|https| https.redirect_http)
            .map(|https| https.public_port.unwrap_or(https.listen.0.port())),
        trusted_proxies: TrustedProxies::None,
        proxy_protocol: spec.gateway.proxy_protocol == ProxyProtocol::Required,
        outbound: spec.listeners.outbound.0,
        inbound: spec.listeners.inbound.0,
        admin: AdminListener::Usual,
        control: spec.listeners.control.0,
        access_log: AccessLogSink {
            json: spec.access_log.format == AccessLogFormat::Json,
            file: spec.access_log.file.clone(),
        },
        otlp: spec.tracing.otlp.clone(),
        accounts: match (spec.instances.accounts, spec.instances.first_id) {
            (AccountChoice::Auto, first) => Accounts::PerNamespace { first, required: false },
            (AccountChoice::PerNamespace, first) => Accounts::PerNamespace { first, required: true },
            (AccountChoice::Node, _) => Accounts::Node,
        },
        images: images::usual(&spec.images),
        name_servers: spec.egress.name_servers.iter().map(|address| address.0).collect(),
        quotas: None,
        limits: Limits {
            head_bytes: head_bytes.unwrap_or(32_768),
            headers: headers.unwrap_or(100),
            head_timeout: head_timeout.0,
            idle_timeout: idle_timeout.0,
            request_timeout: request_timeout.0,
            h2_streams: http2_streams,
            upstream: UpstreamLimits {
                head_bytes: head_bytes.unwrap_or_default(),
                headers: headers.unwrap_or_default(),
                keep_alive: upstream_keep_alive.map_or(Default::default(), |time| time.0),
                tcp_keep_alive: Some(tcp_keep_alive.0).filter(|time| *time != TCP_KEEP_ALIVE).unwrap_or_default(),
            },
            drain_timeout: drain_timeout.0,
            connections,
            connections_per_address,
            extension_instances: ExtensionInstances {
                per_function: extension_instances_per_function,
                per_namespace: extension_instances_per_namespace,
            },
        },
    }
}

/// The address of the admin API, which reveals everything about the node.
fn admin(scope: &Scope<'_>, listeners: &Listeners, inputs: &RefCell<Vec<PathBuf>>) -> AdminListener {
    let (field, token_field) = (scope.field("admin"), scope.field("adminToken"));
    let address = match (&listeners.admin, &listeners.admin_token) {
        (Some(AdminAddress::Address(Address(address))), token) => {
            if !address.ip().is_loopback() {
                let fix = "expected unix:PATH, or an address on loopback such as 127.0.0.1:15000";
                field.problem(format!("{} can be reached from other machines", address.ip()), fix);
            }
            match token {
                Some(token) => Some((*address, fields::file(inputs, &token_field, token))),
                None => {
                    let fix =
                        "add `adminToken: FILE`, a file with a token that requests have to bear, or use unix:PATH";
                    field.problem("every process of this machine could ask there", fix);
                    None
                }
            }
        }
        (_, Some(_)) => {
            token_field.problem("a socket needs no token: it is its account's own", "remove it");
            None
        }
        (_, None) => None,
    };
    match (address, &listeners.admin) {
        (Some((address, token)), _) => AdminListener::Address(address, token),
        (None, Some(AdminAddress::Socket(path))) => {
            let path = fields::relative(&field, path);
            if path.as_os_str().len() > LONGEST_SOCKET {
                let message = format!("{} has more than {LONGEST_SOCKET} bytes", path.display());
                field.problem(message, "expected a shorter path: the system takes no longer ones for sockets");
            }
            AdminListener::Socket(path)
        }
        (None, _) => AdminListener::Usual,
    }
}

fn further(document::GatewayCertificate { certificate, key }: &document::GatewayCertificate) -> CertificateFiles {
    CertificateFiles { certificate: certificate.clone(), key: key.clone() }
}

fn trusted_proxies(scope: &Scope<'_>, gateway: &Gateway) -> TrustedProxies {
    let section = scope.field("trustedProxies");
    let list = section.field("addresses");
    let compiled = match &gateway.trusted_proxies {
        None => TrustedProxies::None,
        Some(document::TrustedProxies { addresses, hops: None }) if !addresses.is_empty() => {
            let blocks =
                addresses.iter().enumerate().filter_map(|(index, block)| text::cidr(&list.element(index), block));
            TrustedProxies::Addresses(blocks.collect())
        }
        Some(document::TrustedProxies { addresses, hops: Some(hops) }) if addresses.is_empty() => {
            if !(1..=MOST_HOPS).contains(hops) {
                section.field("hops").problem(
                    format!("{hops} is out of range"),
                    format!("expected 1 to {MOST_HOPS}; without proxies, remove it"),
                );
            }
            TrustedProxies::Hops((*hops).max(1))
        }
        Some(document::TrustedProxies { hops: None, .. }) => {
            section.problem("it names no proxies", "expected `addresses` or `hops`, or nothing at all");
            TrustedProxies::None
        }
        Some(document::TrustedProxies { hops: Some(_), .. }) => {
            section.problem("proxies are trusted by address or by number", "keep one of `addresses` and `hops`");
            TrustedProxies::None
        }
    };
    let addressed = gateway.trusted_proxies.as_ref().is_some_and(|trusted| !trusted.addresses.is_empty());
    if gateway.proxy_protocol == ProxyProtocol::Required && !addressed {
        let fix = "add `trustedProxies: {addresses: [...]}`: from elsewhere anybody could say that he is anybody";
        scope.field("proxyProtocol").problem("nobody is trusted to speak the PROXY protocol", fix);
    }
    compiled
}

fn is_collector(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    let authority = rest.split('/').next().unwrap_or_default();
    !authority.is_empty()
        && !authority.contains('@')
        && url.bytes().all(|byte| byte.is_ascii_graphic())
        && !url.contains(['?', '#'])
}

/// Reports addresses that are listed twice.
fn listeners(scope: &Scope<'_>, spec: &MeshSpec) {
    let listeners = scope.field("listeners");
    let gateway = scope.field("gateway");
    let https = gateway.field("https");
    let admin = match spec.listeners.admin {
        Some(AdminAddress::Address(address)) => Some(address),
        Some(AdminAddress::Socket(_)) | None => None,
    };
    let used = [
        (gateway.field("http"), "gateway.http", spec.gateway.http),
        (https.field("listen"), "gateway.https.listen", spec.gateway.https.as_ref().map(|https| https.listen)),
        (listeners.field("outbound"), "listeners.outbound", Some(spec.listeners.outbound)),
        (listeners.field("inbound"), "listeners.inbound", Some(spec.listeners.inbound)),
        (listeners.field("admin"), "listeners.admin", admin),
        (listeners.field("control"), "listeners.control", Some(spec.listeners.control)),
    ];
    let written = used.iter().filter_map(|(scope, name, address)| Some((scope, *name, (*address)?)));
    let written: Vec<(&Scope<'_>, &str, Address)> = written.filter(|(_, _, address)| address.0.port() != 0).collect();
    for (position, (scope, _, address)) in written.iter().enumerate() {
        if let Some((_, name, _)) = written[..position].iter().find(|(_, _, other)| collide(*other, *address)) {
            scope.problem(format!("{} is used by {} too", address.0, list(&[name])), "give each its own address");
        }
    }
    let ports = gateway.field("ports");
    let https = spec.gateway.https.as_ref().map(|https| https.listen);
    let Some(Address(opened_at)) = spec.gateway.http.or(https) else {
        if !spec.gateway.ports.is_empty() {
            let fix = "add `http` or `https`: listeners open their ports at its IP address";
            ports.problem("there is no address at which Gateway documents could open them", fix);
        }
        return;
    };
    for (index, Ports(range)) in spec.gateway.ports.iter().enumerate() {
        fields::port(&ports.element(index), range.first);
        let is_taken = |(_, name, address): &&(&Scope<'_>, &str, Address)| {
            let opened = SocketAddr::new(opened_at.ip(), address.0.port());
            range.contains(opened.port()) && !name.starts_with("gateway.") && collide(Address(opened), *address)
        };
        if let Some((_, name, address)) = written.iter().find(is_taken) {
            let message = format!("port {} is used by {}", address.0.port(), list(&[name]));
            ports.element(index).problem(message, "leave it out");
        }
    }
}

/// The same port at the same address, or at all addresses.
fn collide(a: Address, b: Address) -> bool {
    let any = a.0.ip().is_unspecified() || b.0.ip().is_unspecified();
    a.0.port() == b.0.port() && (any || a.0.ip() == b.0.ip())
}

fn limits(scope: &Scope<'_>, limits: &MeshLimits) {
    let number = |name: &str, number: u32, low: u32, high: u32| {
        if !(low..=high).contains(&number) {
            scope.field(name).problem(format!("{number} is out of range"), format!("expected {low} to {high}"));
        }
    };
    // With a higher limit, the input of a sidecar could not hold a whole head (64 KiB with
    // everything else).
    limits.head_bytes.into_iter().for_each(|bytes| number("headBytes", bytes, 1024, 49_152));
    limits.headers.into_iter().for_each(|fields| number("headers", fields, 1, 1000));
    number("http2Streams", limits.http2_streams, 1, 10_000);
    number("connections", limits.connections, 1, 1_000_000);
    number("connectionsPerAddress", limits.connections_per_address, 0, 1_000_000);
    number("extensionInstancesPerFunction", limits.extension_instances_per_function, 1, 1000);
    number("extensionInstancesPerNamespace", limits.extension_instances_per_namespace, 1, 1000);
    fields::within(&scope.field("headTimeout"), limits.head_timeout, MILLISECOND, DAY);
    let keep_alive = limits.upstream_keep_alive.into_iter();
    keep_alive.for_each(|time| {
        fields::within(&scope.field("upstreamKeepAlive"), time, Duration::from_secs(1), DAY);
    });
    fields::within(
        &scope.field("tcpKeepAlive"),
        limits.tcp_keep_alive,
        Duration::from_secs(1),
        Duration::from_secs(3600),
    );
    fields::within(&scope.field("idleTimeout"), limits.idle_timeout, MILLISECOND, DAY);
    fields::millis(&scope.field("requestTimeout"), limits.request_timeout, Duration::default(), DAY);
    fields::within(&scope.field("drainTimeout"), limits.drain_timeout, Duration::default(), DAY);
}
