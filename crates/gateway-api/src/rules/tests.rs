use crate::read::tests::{document, faults};
use serde_json::{Value, json};

/// The document is refused with one fault, at the field and with the words; the other is accepted.
fn check(kind: &str, bad: &Value, expected: &str, good: &Value) {
    let found = faults(&document(kind, bad));
    assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    assert_eq!(faults(&document(kind, good)), [] as [&str; 0], "{good}");
}

/// A rule of an HTTPRoute with these fields.
fn http(rule: &Value) -> Value {
    json!({"rules": [rule]})
}

/// An HTTPRoute with one filter.
fn filter(filter: &Value) -> Value {
    http(&json!({"filters": [filter]}))
}

#[test]
fn listeners() {
    let gateway = |listeners: Value| json!({"gatewayClassName": "leno", "listeners": listeners});
    let one = |protocol: &str, more: Value| {
        let mut listener = json!({"name": "a", "port": 443, "protocol": protocol});
        listener.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gateway(json!([listener]))
    };
    let options = json!({"options": {"leno.dev/certificates": "mesh"}});
    for protocol in ["HTTP", "TCP", "UDP"] {
        let bad = one(protocol, json!({"tls": options}));
        check("Gateway", &bad, "spec.listeners[0].tls: a listener for", &one(protocol, json!({})));
    }
    for protocol in ["TCP", "UDP"] {
        let bad = one(protocol, json!({"hostname": "a.example"}));
        check(
            "Gateway",
            &bad,
            "spec.listeners[0].hostname: connections of",
            &one("HTTP", json!({"hostname": "a.example"})),
        );
    }
    let passthrough = json!({"tls": {"mode": "Passthrough"}});
    check(
        "Gateway",
        &one("HTTPS", passthrough.clone()),
        "listeners[0].tls.mode: a listener for HTTPS ends TLS",
        &one("TLS", passthrough),
    );
    check(
        "Gateway",
        &one("TLS", json!({})),
        "listeners[0]: a listener for TLS needs `tls`",
        &one("TLS", json!({"tls": options})),
    );
    check(
        "Gateway",
        &one("HTTPS", json!({"tls": {}})),
        "listeners[0].tls: there are no certificates",
        &one("HTTPS", json!({"tls": options})),
    );
    let two = |second: Value| gateway(json!([{"name": "a", "port": 80, "protocol": "HTTP"}, second]));
    let bad = two(json!({"name": "b", "port": 80, "protocol": "HTTP"}));
    let good = two(json!({"name": "b", "port": 80, "protocol": "HTTP", "hostname": "b.example"}));
    check(
        "Gateway",
        &bad,
        "listeners[1]: a listener with the same port, protocol and hostname is there twice, also in element 0",
        &good,
    );
    let selecting = |expression: Value| {
        let selector = json!({"matchExpressions": [expression]});
        one("HTTP", json!({"allowedRoutes": {"namespaces": {"from": "Selector", "selector": selector}}}))
    };
    let good = selecting(json!({"key": "a", "operator": "Exists"}));
    check(
        "Gateway",
        &selecting(json!({"key": "a", "operator": "Exist"})),
        "matchExpressions[0].operator: \"Exist\" is no operator",
        &good,
    );
    check(
        "Gateway",
        &selecting(json!({"key": "a", "operator": "In"})),
        "matchExpressions[0].values: `In` needs values",
        &good,
    );
    let bad = selecting(json!({"key": "a", "operator": "Exists", "values": ["b"]}));
    check("Gateway", &bad, "matchExpressions[0].values: `Exists` has no values", &good);
}

#[test]
fn addresses_and_infrastructure() {
    let listeners = json!([{"name": "a", "port": 80, "protocol": "HTTP"}]);
    let with = |field: &str, value: Value| {
        let mut spec = json!({"gatewayClassName": "leno", "listeners": listeners});
        spec[field] = value;
        spec
    };
    let good = with(
        "addresses",
        json!([{"value": "192.0.2.1"}, {"value": "2001:db8::1"}, {"type": "Hostname", "value": "a.example"}, {}]),
    );
    let addresses = |value| with("addresses", value);
    check(
        "Gateway",
        &addresses(json!([{"value": "a.example"}])),
        "addresses[0].value: \"a.example\" is no IP address",
        &good,
    );
    check(
        "Gateway",
        &addresses(json!([{"type": "Hostname", "value": "A"}])),
        "addresses[0].value: \"A\" is no host",
        &good,
    );
    let twice = json!([{"value": "192.0.2.1"}, {"value": "192.0.2.1"}]);
    check("Gateway", &addresses(twice), "addresses[1].value: the same address is there twice", &good);
    for field in ["labels", "annotations"] {
        let keys = |key: &str| with("infrastructure", json!({field: {key: "a"}}));
        check(
            "Gateway",
            &keys("a b"),
            &format!("infrastructure.{field}.a b: \"a b\" cannot be a key"),
            &keys("a.example/b"),
        );
    }
}

#[test]
fn parents() {
    let spec = |parents: Value| json!({"parentRefs": parents});
    let good = spec(
        json!([{"name": "a", "sectionName": "x"}, {"name": "a", "sectionName": "y"}, {"name": "a", "namespace": "b"}]),
    );
    let bad = spec(json!([{"name": "a"}, {"name": "a", "sectionName": "y"}]));
    check("HTTPRoute", &bad, "spec.parentRefs[1]: element 0 refers to the same parent, with other fields", &good);
    let bad = spec(json!([{"name": "a", "port": 80}, {"name": "a", "port": 80}]));
    for kind in ["HTTPRoute", "GRPCRoute"] {
        check(kind, &bad, "spec.parentRefs[1]: a reference to the same part of the parent is there twice", &good);
    }
    for kind in ["TLSRoute", "TCPRoute"] {
        let with = |parents: &Value| {
            let mut spec =
                json!({"parentRefs": parents["parentRefs"], "rules": [{"backendRefs": [{"name": "a", "port": 80}]}]});
            if kind == "TLSRoute" {
                spec["hostnames"] = json!(["a.example"]);
            }
            spec
        };
        check(kind, &with(&bad), "spec.parentRefs[1]: a reference to the same part", &with(&good));
    }
}

#[test]
fn rules_of_routes() {
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let names = |first: &str, second: &str| json!({"rules": [{"name": first}, {"name": second}]});
        check(
            kind,
            &names("a", "a"),
            "spec.rules[1].name: a rule of this name is there twice, also in element 0",
            &names("a", "b"),
        );
        let matches = |count: usize| {
            let rule = json!({"matches": vec![json!({"headers": [{"name": "a", "value": "b"}]}); count]});
            json!({"rules": [rule, rule, rule]})
        };
        check(kind, &matches(43), "spec.rules: 129 matches in all rules; expected at most 128", &matches(42));
        let backend = |backend: Value| json!({"rules": [{"backendRefs": [backend]}]});
        let good = backend(json!({"name": "a", "group": "leno.dev", "kind": "Function"}));
        check(kind, &backend(json!({"name": "a"})), "backendRefs[0]: a reference to a Service needs a port", &good);
        let session = |session: Value| json!({"rules": [{"sessionPersistence": session}]});
        let permanent = json!({"cookieConfig": {"lifetimeType": "Permanent"}});
        let good = session(json!({"absoluteTimeout": "1h", "cookieConfig": {"lifetimeType": "Permanent"}}));
        check(kind, &session(permanent), "sessionPersistence: a permanent cookie needs an end", &good);
        let header = json!({"type": "Header", "cookieConfig": {}});
        check(
            kind,
            &session(header),
            "sessionPersistence.cookieConfig: sessions of another type have no cookie",
            &good,
        );
    }
    let redirect = json!([{"type": "RequestRedirect", "requestRedirect": {}}]);
    let good = http(&json!({"filters": redirect}));
    let bad = http(&json!({"filters": redirect, "backendRefs": [{"name": "a", "port": 80}]}));
    check("HTTPRoute", &bad, "spec.rules[0].filters[0]: a redirect answers requests", &good);
    let timeouts =
        |request: &str, attempt: &str| http(&json!({"timeouts": {"request": request, "backendRequest": attempt}}));
    check(
        "HTTPRoute",
        &timeouts("1s", "1001ms"),
        "timeouts.backendRequest: 1001ms is longer than the 1s",
        &timeouts("0s", "1h"),
    );
}

#[test]
fn paths_of_matches() {
    let path = |kind: &str, value: &str| http(&json!({"matches": [{"path": {"type": kind, "value": value}}]}));
    for kind in ["Exact", "PathPrefix"] {
        for (value, expected) in [
            ("a", "does not begin with `/`; write \\\"/a\\\""),
            ("", "does not begin with `/`"),
            ("/a//b", "has `//`"),
            ("/a/./b", "has `/./`"),
            ("/a/../b", "has `/../`"),
            ("/a%2fb", "has `%2f`"),
            ("/a%2Fb", "has `%2F`"),
            ("/a#b", "has `#`"),
            ("/a/..", "has `/..`"),
            ("/a/.", "has `/.`"),
            ("/a?b", "has characters that no path has"),
            ("/a b", "has characters that no path has"),
            ("/%zz", "has characters that no path has"),
            ("/é", "has characters that no path has"),
        ] {
            let expected = expected.replace("\\\"", "\"");
            check("HTTPRoute", &path(kind, value), &expected, &path(kind, "/a/b.c/%20;x=1,2@:"));
        }
    }
    assert_eq!(faults(&document("HTTPRoute", &path("RegularExpression", "a//b"))), [] as [&str; 0]);
}

#[test]
fn types_of_filters_and_their_fields() {
    let header = json!({"set": [{"name": "a", "value": "b"}]});
    let backend = json!({"backendRef": {"name": "a", "port": 80}});
    let contents = [
        ("RequestHeaderModifier", "requestHeaderModifier", header.clone()),
        ("ResponseHeaderModifier", "responseHeaderModifier", header),
        ("RequestMirror", "requestMirror", backend),
        ("ExtensionRef", "extensionRef", json!({"group": "a.example", "kind": "A", "name": "a"})),
        ("RequestRedirect", "requestRedirect", json!({})),
        ("URLRewrite", "urlRewrite", json!({})),
        ("CORS", "cors", json!({})),
        (
            "ExternalAuth",
            "externalAuth",
            json!({"protocol": "GRPC", "backendRef": {"name": "a", "port": 80}, "grpc": {}}),
        ),
    ];
    for (kind, count) in [("HTTPRoute", 8), ("GRPCRoute", 4)] {
        for (index, (name, field, content)) in contents.iter().take(count).enumerate() {
            let good = filter(&json!({"type": name, *field: content}));
            check(
                kind,
                &filter(&json!({"type": name})),
                &format!("filters[0]: a filter of type `{name}` needs `{field}`"),
                &good,
            );
            let (_, other, more) = &contents[(index + 1) % count];
            let bad = filter(&json!({"type": name, *field: content, *other: more}));
            check(kind, &bad, &format!("filters[0].{other}: a filter of type `{name}` has no `{other}`"), &good);
            // The same in a back end.
            let of_backend =
                |filter: Value| http(&json!({"backendRefs": [{"name": "a", "port": 80, "filters": [filter]}]}));
            let good = of_backend(json!({"type": name, *field: content}));
            check(kind, &of_backend(json!({"type": name})), "backendRefs[0].filters[0]: a filter of type", &good);
        }
    }
}

#[test]
fn filters_that_exclude_each_other() {
    let header = json!({"set": [{"name": "a", "value": "b"}]});
    let mirror = json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "a", "port": 80}}});
    let filters = |filters: Value| http(&json!({"filters": filters}));
    for (kind, name, field, content) in [
        ("HTTPRoute", "RequestHeaderModifier", "requestHeaderModifier", header.clone()),
        ("GRPCRoute", "RequestHeaderModifier", "requestHeaderModifier", header.clone()),
        ("GRPCRoute", "ResponseHeaderModifier", "responseHeaderModifier", header),
        ("HTTPRoute", "RequestRedirect", "requestRedirect", json!({})),
        ("HTTPRoute", "URLRewrite", "urlRewrite", json!({})),
        ("HTTPRoute", "CORS", "cors", json!({})),
    ] {
        let one = json!({"type": name, field: content});
        let expected = format!("filters[1]: a `{name}` is there twice, also in element 0");
        check(kind, &filters(json!([one, one])), &expected, &filters(json!([one, mirror, mirror])));
    }
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {}});
    let rewrite = json!({"type": "URLRewrite", "urlRewrite": {}});
    let bad = filters(json!([redirect, rewrite]));
    check(
        "HTTPRoute",
        &bad,
        "filters[1]: `URLRewrite` and `RequestRedirect` exclude each other",
        &filters(json!([rewrite])),
    );
}

#[test]
fn contents_of_filters() {
    for (name, field) in [("RequestRedirect", "requestRedirect"), ("URLRewrite", "urlRewrite")] {
        let path = |path: Value| filter(&json!({"type": name, field: {"path": path}}));
        let full = path(json!({"type": "ReplaceFullPath", "replaceFullPath": "/a"}));
        check(
            "HTTPRoute",
            &path(json!({"type": "ReplaceFullPath"})),
            ".path: `ReplaceFullPath` needs `replaceFullPath`",
            &full,
        );
        check(
            "HTTPRoute",
            &path(json!({"type": "ReplacePrefixMatch"})),
            ".path: `ReplacePrefixMatch` needs `replacePrefixMatch`",
            &full,
        );
        let both = |kind: &str| path(json!({"type": kind, "replaceFullPath": "/a", "replacePrefixMatch": "/b"}));
        check("HTTPRoute", &both("ReplaceFullPath"), ".path.replacePrefixMatch: `ReplaceFullPath` has no", &full);
        check("HTTPRoute", &both("ReplacePrefixMatch"), ".path.replaceFullPath: `ReplacePrefixMatch` has no", &full);
        let prefix = json!({"type": name, field: {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}}});
        let with = |matches: Value| http(&json!({"matches": matches, "filters": [prefix]}));
        let of_backend = |matches: Value| {
            http(&json!({"matches": matches, "backendRefs": [{"name": "a", "port": 80, "filters": [prefix]}]}))
        };
        let one = json!([{"path": {"value": "/a"}}]);
        for matches in [
            json!([{"path": {"value": "/a"}}, {"path": {"value": "/b"}}]),
            json!([{"path": {"type": "Exact", "value": "/a"}}]),
            json!([]),
        ] {
            let expected =
                format!("filters[0].{field}.path: the prefix can be replaced only in a rule with exactly one match");
            check("HTTPRoute", &with(matches.clone()), &expected, &with(one.clone()));
            check("HTTPRoute", &of_backend(matches), &expected, &of_backend(one.clone()));
        }
    }
    let mirror = |more: Value| {
        let mut mirror = json!({"backendRef": {"name": "a", "port": 80}});
        mirror.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        filter(&json!({"type": "RequestMirror", "requestMirror": mirror}))
    };
    let good = mirror(json!({"fraction": {"numerator": 5, "denominator": 5}}));
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let bad = mirror(json!({"percent": 5, "fraction": {"numerator": 1}}));
        check(kind, &bad, "requestMirror.fraction: `percent` and `fraction` exclude each other", &good);
        let bad = mirror(json!({"fraction": {"numerator": 200}}));
        check(kind, &bad, "requestMirror.fraction.numerator: 200 is more than the denominator, 100", &good);
        let bad = mirror(json!({"backendRef": {"name": "a"}}));
        check(kind, &bad, "requestMirror.backendRef: a reference to a Service needs a port", &good);
    }
    let cors = |field: &str, list: Value| filter(&json!({"type": "CORS", "cors": {field: list}}));
    for (field, other) in [("allowHeaders", "x-a"), ("allowMethods", "GET"), ("allowOrigins", "https://a.example")] {
        let expected = format!("cors.{field}: `*` stands for all others");
        check("HTTPRoute", &cors(field, json!([other, "*"])), &expected, &cors(field, json!(["*"])));
    }
    let auth = |content: Value| {
        let mut auth = json!({"backendRef": {"name": "a", "port": 80}});
        auth.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        filter(&json!({"type": "ExternalAuth", "externalAuth": auth}))
    };
    let good = auth(json!({"protocol": "HTTP", "http": {}}));
    check("HTTPRoute", &auth(json!({"protocol": "HTTP"})), "externalAuth: the protocol `HTTP` needs `http`", &good);
    check("HTTPRoute", &auth(json!({"protocol": "GRPC"})), "externalAuth: the protocol `GRPC` needs `grpc`", &good);
    let both = |protocol: &str| auth(json!({"protocol": protocol, "http": {}, "grpc": {}}));
    check("HTTPRoute", &both("HTTP"), "externalAuth.grpc: the protocol `HTTP` has no `grpc`", &good);
    check("HTTPRoute", &both("GRPC"), "externalAuth.http: the protocol `GRPC` has no `http`", &good);
}

#[test]
fn methods_of_grpc() {
    let method = |method: Value| json!({"rules": [{"matches": [{"method": method}]}]});
    let good = method(json!({"service": "shop.v1.Cart", "method": "AddItem"}));
    check("GRPCRoute", &method(json!({})), "matches[0].method: neither a service nor a method is named", &good);
    check(
        "GRPCRoute",
        &method(json!({"service": "shop..Cart"})),
        "method.service: \"shop..Cart\" is no service",
        &good,
    );
    check("GRPCRoute", &method(json!({"service": "shop/Cart"})), "method.service: \"shop/Cart\" is no service", &good);
    check("GRPCRoute", &method(json!({"method": "1"})), "method.method: \"1\" is no method", &good);
    let expression = method(json!({"type": "RegularExpression", "method": "Add.*"}));
    check("GRPCRoute", &method(json!({"method": "Add.*"})), "method.method: \"Add.*\" is no method", &expression);
}

#[test]
fn hosts_of_tls_routes() {
    let hosts = |host: &str| json!({"hostnames": [host], "rules": [{"backendRefs": [{"name": "a", "port": 443}]}]});
    check(
        "TLSRoute",
        &hosts("192.0.2.1"),
        "spec.hostnames[0]: \"192.0.2.1\" is no host that TLS can name",
        &hosts("*.a.example"),
    );
}

#[test]
fn policies_of_back_ends() {
    let policy = |targets: Value, validation: Value| json!({"targetRefs": targets, "validation": validation});
    let target = json!([{"group": "", "kind": "Service", "name": "a"}]);
    let system = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
    let good = policy(target.clone(), system.clone());
    let two = |first: Value, second: Value| {
        let of = |section: Value| json!({"group": "", "kind": "Service", "name": "a", "sectionName": section});
        policy(json!([of(first), of(second)]), system.clone())
    };
    check(
        "BackendTLSPolicy",
        &two(Value::Null, "x".into()),
        "targetRefs[1]: element 0 refers to the same target",
        &two("x".into(), "y".into()),
    );
    check(
        "BackendTLSPolicy",
        &two("x".into(), "x".into()),
        "targetRefs[1]: a reference to the same part of the target",
        &good,
    );
    let with = |validation: Value| policy(target.clone(), validation);
    let authority = json!([{"group": "", "kind": "ConfigMap", "name": "a"}]);
    check("BackendTLSPolicy", &with(json!({"hostname": "a.example"})), "spec.validation: no authority is named", &good);
    let both = json!({"hostname": "a.example", "wellKnownCACertificates": "System", "caCertificateRefs": authority});
    check(
        "BackendTLSPolicy",
        &with(both),
        "`caCertificateRefs` and `wellKnownCACertificates` exclude each other",
        &good,
    );
    let name =
        |name: Value| with(json!({"hostname": "a.example", "caCertificateRefs": authority, "subjectAltNames": [name]}));
    let good = name(json!({"type": "URI", "uri": "spiffe://mesh.example/ns/a/sa/b"}));
    for (bad, expected) in [
        (json!({"type": "Hostname"}), "subjectAltNames[0]: a name of type `Hostname` needs `hostname`"),
        (json!({"type": "URI"}), "subjectAltNames[0]: a name of type `URI` needs `uri`"),
        (
            json!({"type": "Hostname", "hostname": "a", "uri": "spiffe://a/b"}),
            "subjectAltNames[0].uri: a name of type `Hostname` has no",
        ),
        (
            json!({"type": "URI", "hostname": "a", "uri": "spiffe://a/b"}),
            "subjectAltNames[0].hostname: a name of type `URI` has no",
        ),
    ] {
        check("BackendTLSPolicy", &name(bad), expected, &good);
    }
}
