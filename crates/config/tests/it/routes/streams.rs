//! Routes of connections without HTTP.

use super::*;
use leno_model::{StreamBackend, StreamRoute, StreamTls};

const STREAMS: &str = "\
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: db, namespace: shop}
spec: {command: [db], isolation: strict, ports: [{port: 5432}, {port: 8443, protocol: tls}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: streams, namespace: infra}
spec:
  gatewayClassName: leno
  listeners:
  - {name: tcp, port: 9000, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}
  - {name: passed, port: 9001, protocol: TLS, hostname: '*.passed.example', tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}
  - {name: ended, port: 9001, protocol: TLS, tls: {options: {leno.dev/certificates: mesh}}, allowedRoutes: {namespaces: {from: All}}}
---
";

#[test]
fn routes_of_connections_are_of_the_model() {
    let mesh =
        MESH.replace("CRATE", env!("CARGO_MANIFEST_DIR")).replace("gateway: {", "gateway: {ports: [9000-9001], ");
    let with = |section: &str, hosts: &str, backends: &str| {
        let hosts = if hosts.is_empty() { String::new() } else { format!("hostnames: [{hosts}]\n") };
        format!(
            "parentRefs: [{{name: streams, namespace: infra, sectionName: {section}}}]\n{hosts}rules: [{{backendRefs: [{backends}]}}]"
        )
    };
    let documents = [
        &*mesh,
        STREAMS,
        &functions(),
        &route(
            "TCPRoute",
            "shop/tcp",
            &with("tcp", "", "{name: db, port: 5432, weight: 3}, {name: bank, port: 5432}, {name: front, port: 80}"),
        ),
        &route("TLSRoute", "shop/tls", &with("passed", "a.passed.example, b.test", "{name: db, port: 8443}")),
        &route("TLSRoute", "shop/later", &with("passed", "a.passed.example", "{name: db, port: 8443}")),
        &route(
            "TLSRoute",
            "shop/ended",
            &with("ended", "shop.example", "{name: db, port: 8443}, {name: db, port: 5432}"),
        ),
    ];
    let snapshot = load_text(Path::new("mesh.yaml"), &documents.concat()).unwrap();
    let streams = &snapshot.gateway_routes().streams;
    let names: Vec<(&str, u16, Option<StreamTls>)> = streams.iter().map(|it| (&*it.name, it.port, it.tls)).collect();
    let wanted = [
        ("infra/streams/ended", 9001, Some(StreamTls::Terminate)),
        ("infra/streams/passed", 9001, Some(StreamTls::Passthrough)),
        ("infra/streams/tcp", 9000, None),
    ];
    assert_eq!(names, wanted);
    let shown = |listener: usize| -> Vec<String> {
        let backend = |it: &StreamBackend| match &it.target {
            Some(id) => format!("{id}:{}{}{} x{}", it.port, if it.tls { " tls " } else { "" }, it.host, it.weight),
            None => format!("none x{}", it.weight),
        };
        let route = |it: &StreamRoute| {
            let backends: Vec<String> = it.backends.iter().map(backend).collect();
            format!("{} {} {}", it.name, it.hosts.join(","), backends.join(", "))
        };
        streams[listener].routes.iter().map(route).collect()
    };
    // The gateway has ended the TLS that the first back end expects.
    assert_eq!(shown(0), ["shop/ended shop.example none x1, shop/db:5432 x1"]);
    assert_eq!(shown(1), ["shop/later a.passed.example shop/db:8443 tls  x1"]);
    assert_eq!(shown(2), ["shop/tcp * shop/db:5432 x3, shop/bank:5432bank.example x1, none x1"]);
    assert_eq!(conditions(&snapshot, "shop/tls"), ["Accepted=False Conflicted, ResolvedRefs=True ResolvedRefs"]);
    assert_eq!(conditions(&snapshot, "shop/tcp"), ["Accepted=True Accepted, ResolvedRefs=False UnsupportedProtocol"]);
    assert!(snapshot.function_config(&"shop/db".parse().unwrap()).unwrap().is_routed);
}

/// Nothing goes to a back end in plain text if its policy cannot be followed.
#[test]
fn a_back_end_whose_tls_cannot_be_followed_takes_no_connections() {
    let mesh =
        MESH.replace("CRATE", env!("CARGO_MANIFEST_DIR")).replace("gateway: {", "gateway: {ports: [9000-9001], ");
    let tcp = route(
        "TCPRoute",
        "shop/tcp",
        "parentRefs: [{name: streams, namespace: infra, sectionName: tcp}]\nrules: [{backendRefs: [{name: bank, port: 5432}]}]",
    );
    let target = |authority: &str| {
        format!(
            "targetRefs: [{{group: leno.dev, kind: External, name: bank}}]\nvalidation: {{hostname: bank.example, {authority}}}"
        )
    };
    for (authority, backend, resolved) in [
        ("wellKnownCACertificates: System", Some("shop/bank"), "ResolvedRefs=True ResolvedRefs"),
        (
            "caCertificateRefs: [{group: leno.dev, kind: StoredSecret, name: none}]",
            None,
            "ResolvedRefs=False UnsupportedProtocol",
        ),
    ] {
        let policy = route("BackendTLSPolicy", "shop/bank", &target(authority));
        let text = [&*mesh, STREAMS, &functions(), &tcp, &policy].concat();
        let snapshot = load_text(Path::new("mesh.yaml"), &text).unwrap();
        let streams = &snapshot.gateway_routes().streams;
        let listener = streams.iter().find(|it| it.name == "infra/streams/tcp").unwrap();
        let found = listener.routes[0].backends[0].target.as_ref().map(ToString::to_string);
        assert_eq!(found.as_deref(), backend, "{authority}");
        assert_eq!(conditions(&snapshot, "shop/tcp"), [format!("Accepted=True Accepted, {resolved}")]);
    }
}
