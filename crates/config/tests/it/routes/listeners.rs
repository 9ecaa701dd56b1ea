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
            "port: 9000, protocol: TCP",
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
