//! Listeners, and the routes that are attached to them.

use super::*;

#[test]
fn routes_are_attached_to_listeners_that_admit_them() {
    for (parent, hostnames, wanted, condition) in [
        ("{name: web, namespace: infra}", "[a.example]", vec![("infra/web/http", vec!["a.example"])], ACCEPTED),
        (
            "{name: web, namespace: infra}",
            "[a.shop.example, b.example]",
            vec![("infra/web/http", vec!["a.shop.example", "b.example"]), ("infra/web/shop", vec!["a.shop.example"])],
            ACCEPTED,
        ),
        (
            "{name: web, namespace: infra, sectionName: shop}",
            "['*.example']",
            vec![("infra/web/shop", vec!["*.shop.example"])],
            ACCEPTED,
        ),
        (
            "{name: web, namespace: infra, sectionName: shop}",
            "[]",
            vec![("infra/web/shop", vec!["*.shop.example"])],
            ACCEPTED,
        ),
        (
            "{name: web, namespace: infra, sectionName: shop}",
            "[shop.example]",
            vec![],
            "Accepted=False NoMatchingListenerHostname, ResolvedRefs=True ResolvedRefs",
        ),
        (
            "{name: web, namespace: infra, sectionName: other}",
            "[a.example]",
            vec![],
            "Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs",
        ),
        (
            "{name: web, namespace: infra, port: 8080}",
            "[a.example]",
            vec![],
            "Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs",
        ),
        ("{name: web}", "[a.example]", vec![], "Accepted=False NoMatchingParent, ResolvedRefs=True ResolvedRefs"),
    ] {
        let spec = format!("parentRefs: [{parent}]\nhostnames: {hostnames}\n{RULE}");
        let snapshot = parse(&[GATEWAY, &functions(), &http("shop/r", &spec)]);
        let found = attached(&snapshot, "shop/r");
        let wanted: Vec<(String, Vec<String>)> = wanted
            .into_iter()
            .map(|(listener, hosts)| (listener.to_owned(), hosts.into_iter().map(str::to_owned).collect()))
            .collect();
        assert_eq!(found, wanted, "{parent} {hostnames}");
        assert_eq!(conditions(&snapshot, "shop/r"), [condition], "{parent} {hostnames}");
        let is_routed = snapshot.function_config(&"shop/front".parse().unwrap()).unwrap().is_routed;
        assert_eq!(is_routed, !wanted.is_empty());
        let warned = warnings(&snapshot).iter().any(|warning| warning.contains("the route is not attached"));
        assert_eq!(warned, wanted.is_empty(), "{:?}", warnings(&snapshot));
    }
}

#[test]
fn listeners_admit_namespaces_and_kinds() {
    let other = "parentRefs: [{name: web, namespace: infra, sectionName: shop}]\nrules: [{backendRefs: [{name: posts, port: 80}]}]";
    let snapshot = parse(&[GATEWAY, &functions(), &http("blog/r", other)]);
    let refused = "Accepted=False NotAllowedByListeners, ResolvedRefs=True ResolvedRefs";
    assert_eq!(conditions(&snapshot, "blog/r"), [refused]);
    let grpc = format!("parentRefs: [{{name: web, namespace: infra, sectionName: shop}}]\n{RULE}");
    let snapshot = parse(&[GATEWAY, &functions(), &route("GRPCRoute", "shop/r", &grpc)]);
    assert_eq!(conditions(&snapshot, "shop/r"), [refused]);
    let listener = &snapshot.route_report().gateways[0].listeners[1];
    assert_eq!((&*listener.supported_kinds, listener.attached_routes), (&["HTTPRoute"][..], 0));
}

#[test]
fn one_kind_of_route_has_a_host_of_a_listener() {
    let spec = |host: &str| format!("parentRefs: [{{name: web, namespace: infra}}]\nhostnames: [{host}]\n{RULE}");
    let documents = [
        http("shop/b", &spec("a.example")),
        route("GRPCRoute", "shop/a", &spec("'*.example'")),
        route("GRPCRoute", "shop/c", &spec("a.test")),
    ];
    let snapshot = parse(&[GATEWAY, &functions(), &documents.concat()]);
    assert_eq!(conditions(&snapshot, "shop/a"), [ACCEPTED]);
    assert_eq!(conditions(&snapshot, "shop/b"), ["Accepted=False Conflicted, ResolvedRefs=True ResolvedRefs"]);
    assert_eq!(conditions(&snapshot, "shop/c"), [ACCEPTED]);
    assert_eq!(snapshot.route_report().gateways[0].listeners[0].attached_routes, 2);
    assert_eq!(snapshot.gateway_routes().routes.len(), 2);
}

#[test]
fn listeners_are_those_of_the_mesh_document() {
    for (listener, wanted) in [
        (
            "port: 80, protocol: HTTP",
            "Accepted=True Accepted, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs, Programmed=True Programmed",
        ),
        (
            "port: 8080, protocol: HTTP",
            "Accepted=False PortUnavailable, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs, Programmed=False Invalid",
        ),
        (
            "port: 443, protocol: HTTP",
            "Accepted=False PortUnavailable, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs, Programmed=False Invalid",
        ),
        (
            "port: 9000, protocol: UDP",
            "Accepted=False UnsupportedProtocol, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs, Programmed=False Invalid",
        ),
        (
            "port: 443, protocol: HTTPS, tls: {options: {leno.dev/certificates: mesh}}",
            "Accepted=True Accepted, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs, Programmed=True Programmed",
        ),
        (
            "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}",
            "Accepted=True Accepted, Conflicted=False NoConflicts, ResolvedRefs=False InvalidCertificateRef, Programmed=False Invalid",
        ),
        (
            "port: 443, protocol: HTTPS, tls: {options: {leno.dev/certificates: mine}}",
            "Accepted=False UnsupportedValue, Conflicted=False NoConflicts, ResolvedRefs=True ResolvedRefs, Programmed=False Invalid",
        ),
        (
            "port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: HTTPRoute}]}",
            "Accepted=True Accepted, Conflicted=False NoConflicts, ResolvedRefs=False InvalidRouteKinds, Programmed=True Programmed",
        ),
    ] {
        let gateway = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: a}}\nspec: {{gatewayClassName: leno, listeners: [{{name: one, {listener}}}]}}\n---\n"
        );
        let snapshot = parse(&[&gateway, &functions()]);
        let status = &snapshot.route_report().gateways[0];
        assert_eq!(shown(&status.listeners[0].conditions), wanted, "{listener}");
        let programmed = wanted.ends_with("Programmed=True Programmed");
        let gateway = if programmed {
            "Accepted=True Accepted, Programmed=True"
        } else {
            "Accepted=False ListenersNotValid, Programmed=False"
        };
        assert!(shown(&status.conditions).starts_with(gateway), "{listener}: {}", shown(&status.conditions));
        assert_eq!(snapshot.gateway_routes().listeners.len(), usize::from(programmed), "{listener}");
    }
}

#[test]
fn listeners_of_one_gateway_are_distinct() {
    let gateway = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, namespace: a}
spec:
  gatewayClassName: leno
  listeners:
  - {name: http, port: 443, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {options: {leno.dev/certificates: mesh}}}
  - {name: wide, port: 443, protocol: HTTPS, hostname: '*.example', tls: {options: {leno.dev/certificates: mesh}}}
  - {name: plain, port: 80, protocol: HTTP}
---
";
    let snapshot = parse(&[gateway, &functions()]);
    let listeners = &snapshot.route_report().gateways[0].listeners;
    let conflicts: Vec<bool> =
        listeners.iter().map(|it| shown(&it.conditions).contains("Conflicted=True ProtocolConflict")).collect();
    assert_eq!(conflicts, [true, true, true, false]);
    let overlaps: Vec<bool> = listeners
        .iter()
        .map(|it| shown(&it.conditions).contains("OverlappingTLSConfig=True OverlappingHostnames"))
        .collect();
    assert_eq!(overlaps, [false, true, true, false]);
    let names: Vec<&str> = snapshot.gateway_routes().listeners.iter().map(|listener| &*listener.name).collect();
    assert_eq!(names, ["a/g/plain"]);
    assert!(shown(&snapshot.route_report().gateways[0].conditions).starts_with("Accepted=True ListenersNotValid"));
}

#[test]
fn a_gateway_of_another_class_is_left_out() {
    let gateway = GATEWAY.replace("gatewayClassName: leno", "gatewayClassName: other");
    let spec = format!("parentRefs: [{{name: web, namespace: infra}}]\n{RULE}");
    let documents = [&*gateway, &functions(), &http("shop/r", &spec)].map(str::to_owned);
    let all: Vec<&str> = documents.iter().map(|text| &**text).collect();
    let snapshot = parse(&all);
    assert!(snapshot.route_report().gateways.is_empty() && conditions(&snapshot, "shop/r").is_empty());
    assert!(warnings(&snapshot).iter().any(|warning| warning.contains("`other` is another implementation's")));
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: other}\nspec: {controllerName: leno.dev/gateway}\n---\n";
    let snapshot = parse(&[&all[..], &[class]].concat());
    assert_eq!(conditions(&snapshot, "shop/r"), [ACCEPTED]);
}

/// A Gateway `a/NAME` with these listeners.
fn gateway(name: &str, listeners: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: a}}\nspec: {{gatewayClassName: leno, listeners: [{listeners}]}}\n---\n"
    )
}

fn with_ports(documents: &[&str]) -> Snapshot {
    let mesh = MESH.replace("CRATE", env!("CARGO_MANIFEST_DIR"));
    let mesh = mesh.replace("gateway: {", "gateway: {ports: [8443, 9000-9002], ");
    load_text(Path::new("mesh.yaml"), &[&*mesh, &documents.concat()].concat()).unwrap()
}

#[test]
fn listeners_open_the_ports_that_the_mesh_document_permits() {
    let other = gateway(
        "b",
        "{name: tls, port: 9000, protocol: HTTPS, tls: {options: {leno.dev/certificates: mesh}}}, {name: more, port: 9000, protocol: HTTP, hostname: b.example}",
    );
    let first = gateway(
        "a",
        "{name: one, port: 9000, protocol: HTTP}, {name: two, port: 9001, protocol: HTTPS, tls: {options: {leno.dev/certificates: mesh}}}, {name: mesh, port: 80, protocol: HTTP}, {name: none, port: 9003, protocol: HTTP}, {name: taken, port: 443, protocol: HTTP}",
    );
    // The order of the documents does not matter.
    let snapshot = with_ports(&[&other, &first]);
    let listeners = &snapshot.gateway_routes().listeners;
    let found: Vec<(&str, u16, bool, bool)> =
        listeners.iter().map(|it| (&*it.name, it.port, it.tls, it.opened)).collect();
    let wanted = [("a/a/mesh", 80, false, false), ("a/a/one", 9000, false, true), ("a/a/two", 9001, true, true)];
    assert_eq!(found[..3], wanted);
    let gateways = &snapshot.route_report().gateways;
    for (listener, message) in [
        (&gateways[0].listeners[3], "neither has a socket for HTTP at port 9003 nor permits it"),
        (&gateways[0].listeners[4], "port 443 serves HTTPS, by the Mesh document"),
        (&gateways[1].listeners[0], "port 9000 serves HTTP for the Gateway `a/a`"),
    ] {
        let accepted = &listener.conditions[0];
        assert!(accepted.reason == "PortUnavailable" && accepted.message.contains(message), "{accepted:?}");
    }
    assert!(warnings(&snapshot).iter().any(|warning| warning.contains("port 8443 or ports 9000 to 9002")));
    // Both of the second Gateway conflict, so none of them has a port.
    assert_eq!(found.len(), 3);
}

#[test]
fn a_mesh_has_a_bounded_number_of_open_ports() {
    let mesh =
        MESH.replace("CRATE", env!("CARGO_MANIFEST_DIR")).replace("gateway: {", "gateway: {ports: [9000-9099], ");
    let gateways: Vec<String> = (0..70)
        .map(|n| gateway(&format!("g{n:02}"), &format!("{{name: one, port: {}, protocol: HTTP}}", 9000 + n)))
        .collect();
    let snapshot = load_text(Path::new("mesh.yaml"), &[mesh, gateways.concat()].concat()).unwrap();
    assert_eq!(snapshot.gateway_routes().listeners.len(), 64);
    let last = &snapshot.route_report().gateways[69].listeners[0].conditions[0];
    assert!(last.reason == "PortUnavailable" && last.message.contains("64 ports are open already"), "{last:?}");
}

#[test]
fn wrong_ports_are_refused_by_their_place() {
    for (gateway, wanted) in [
        ("{http: '127.0.0.1:80', ports: [0]}", "0 is not a port"),
        ("{http: '127.0.0.1:80', ports: [9010-9000]}", "neither a port nor a range"),
        ("{http: '127.0.0.1:80', ports: [15000-16000]}", "port 15001 is used by `listeners.outbound`"),
        ("{http: null, ports: [9000]}", "there is no address"),
    ] {
        let mesh = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: mesh}}\nspec:\n  listeners: {{outbound: '127.0.0.1:15001'}}\n  gateway: {gateway}\n"
        );
        let problems = load_text(Path::new("mesh.yaml"), &mesh).unwrap_err();
        let text = problems.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains(wanted) && text.contains("spec.gateway.ports"), "{gateway}: {text}");
    }
}

#[test]
fn certificates_of_listeners_are_stored_secrets() {
    let secret = |namespace: &str, name: &str, keys: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{stringData: {{{keys}}}}}\n---\n"
        )
    };
    let grant = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: grant, namespace: b}\nspec:\n  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: a}]\n  to: [{group: '', kind: Secret, name: granted}]\n---\n";
    let secrets = [
        secret("a", "cert", "tls.crt: x, tls.key: y"),
        secret("a", "half", "tls.crt: x"),
        secret("b", "granted", "tls.crt: x, tls.key: y"),
        secret("b", "other", "tls.crt: x, tls.key: y"),
        grant.to_owned(),
    ]
    .concat();
    for (tls, wanted) in [
        ("certificateRefs: [{name: cert}]", Ok(vec!["a/cert"])),
        ("certificateRefs: [{name: cert, kind: StoredSecret, group: leno.dev}]", Ok(vec!["a/cert"])),
        ("certificateRefs: [{name: cert}, {name: granted, namespace: b}]", Ok(vec!["a/cert", "b/granted"])),
        ("options: {leno.dev/certificates: mesh}", Ok(vec![])),
        ("certificateRefs: [{name: none}]", Err(("InvalidCertificateRef", "no StoredSecret `a/none`"))),
        (
            "certificateRefs: [{name: cert}, {name: half}]",
            Err(("InvalidCertificateRef", "`a/half` has no key `tls.key`")),
        ),
        ("certificateRefs: [{name: cert, kind: ConfigMap}]", Err(("InvalidCertificateRef", "`ConfigMap` cannot be"))),
        ("certificateRefs: [{name: other, namespace: b}]", Err(("RefNotPermitted", "no ReferenceGrant"))),
        ("certificateRefs: [{name: none, namespace: b}]", Err(("RefNotPermitted", "no ReferenceGrant"))),
        (
            "certificateRefs: [{name: cert}], options: {leno.dev/certificates: mesh}",
            Err(("InvalidCertificateRef", "either those of the Mesh document")),
        ),
    ] {
        for port in [443, 8443] {
            let listener = gateway("g", &format!("{{name: one, port: {port}, protocol: HTTPS, tls: {{{tls}}}}}"));
            let snapshot = with_ports(&[&listener, &secrets]);
            let found = &snapshot.gateway_routes().listeners;
            let status = &snapshot.route_report().gateways[0].listeners[0];
            let resolved = status.conditions.iter().find(|it| it.name == "ResolvedRefs").unwrap();
            match &wanted {
                Ok(wanted) => assert_eq!(
                    (&found[0].certificates[..], resolved.status),
                    (&wanted.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..], true),
                    "{tls}"
                ),
                Err((reason, message)) => {
                    assert!(found.is_empty() && !status.is_programmed(), "{tls}");
                    assert!(resolved.reason == *reason && resolved.message.contains(message), "{tls}: {resolved:?}");
                    assert!(warnings(&snapshot).iter().any(|warning| warning.contains(message)), "{tls}");
                }
            }
        }
    }
}
