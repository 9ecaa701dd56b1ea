use crate::fault::{Fault, Step};
use crate::pattern::LABEL_KEY;
use crate::resource::{HTTPRouteFilterType, KINDS, PATTERNS, PathMatchType, Resource, RouteFromNamespaces};
use crate::schema::{Object, Schema};
use crate::{Content, DocumentValue};
use serde_json::{Value, json};

impl DocumentValue for Value {
    fn content(&self) -> Content<'_, Self> {
        match self {
            Value::Null => Content::Null,
            Value::Bool(true) => Content::Scalar { text: "true", plain: true },
            Value::Bool(false) => Content::Scalar { text: "false", plain: true },
            // Only numbers of these tests.
            Value::Number(number) => {
                let text = ["-1", "0", "1", "5", "80", "81", "100", "200", "302", "443", "65536"];
                let text = text.into_iter().find(|text| *text == number.to_string()).expect("a number of the list");
                Content::Scalar { text, plain: true }
            }
            Value::String(text) => Content::Scalar { text, plain: false },
            Value::Array(elements) => Content::List(elements),
            Value::Object(fields) => Content::Map(fields.iter().map(|(name, value)| (&**name, value)).collect()),
        }
    }
}

/// A document in the newest version of its kind.
pub(crate) fn document(kind: &str, spec: &Value) -> Value {
    let version = KINDS.iter().find(|known| known.name == kind).map_or("v1", |kind| kind.versions[0].0);
    json!({
        "apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": kind, "metadata": {"name": "a"}, "spec": spec
    })
}

pub(crate) fn faults(document: &Value) -> Vec<String> {
    crate::read(document).err().unwrap_or_default().iter().map(line).collect()
}

/// `spec.rules[0].name: message; fix`
fn line(fault: &Fault) -> String {
    let mut text = String::new();
    for step in &fault.path {
        match step {
            Step::Field(name) if text.is_empty() => text.push_str(name),
            Step::Field(name) => text.push_str(&format!(".{name}")),
            Step::Element(index) => text.push_str(&format!("[{index}]")),
        }
    }
    let known = fault.known.as_ref().map(|(name, known)| format!("{name} of {known:?}")).unwrap_or_default();
    format!("{text}: {}; {}{known}", fault.message, fault.fix)
}

/// The resource of a document without faults.
fn resource(document: &Value) -> Resource {
    crate::read(document).unwrap_or_else(|faults| panic!("{:?}", faults.iter().map(line).collect::<Vec<_>>()))
}

#[test]
fn defaults_are_those_of_the_schema() {
    let route = document(
        "HTTPRoute",
        &json!({"rules": [{"backendRefs": [{"name": "cart", "port": 80}]}, {"matches": [{}, {"path": {"type": "Exact"}}]}]}),
    );
    let Resource::HTTPRoute(route) = resource(&route) else { panic!("an HTTPRoute") };
    assert_eq!((&*route.metadata.name, &*route.metadata.namespace), ("a", "default"));
    for (rule, index, expected) in
        [(0, 0, PathMatchType::PathPrefix), (1, 0, PathMatchType::PathPrefix), (1, 1, PathMatchType::Exact)]
    {
        let path = &route.spec.rules[rule].matches[index].path;
        assert_eq!((path.r#type, &*path.value), (expected, "/"));
    }
    let backend = &route.spec.rules[0].backend_refs[0];
    assert_eq!((&*backend.group, &*backend.kind, backend.port, backend.weight), ("", "Service", Some(80), 1));

    let Resource::HTTPRoute(route) = resource(&document("HTTPRoute", &json!({"parentRefs": [{"name": "edge"}]})))
    else {
        panic!("an HTTPRoute")
    };
    assert_eq!(route.spec.rules[0].matches[0].path.value, "/");
    let parent = &route.spec.parent_refs[0];
    assert_eq!((&*parent.group, &*parent.kind, &parent.namespace), ("gateway.networking.k8s.io", "Gateway", &None));

    let redirect =
        json!({"rules": [{"filters": [{"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}}]}]});
    let Resource::HTTPRoute(route) = resource(&document("HTTPRoute", &redirect)) else { panic!("an HTTPRoute") };
    let filter = &route.spec.rules[0].filters[0];
    assert_eq!(filter.r#type, HTTPRouteFilterType::RequestRedirect);
    assert_eq!(filter.request_redirect.as_ref().map(|redirect| redirect.status_code), Some(302));

    let listeners = json!({"gatewayClassName": "leno", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]});
    let Resource::Gateway(gateway) = resource(&document("Gateway", &listeners)) else { panic!("a Gateway") };
    assert_eq!(gateway.spec.listeners[0].allowed_routes.namespaces.from, RouteFromNamespaces::Same);
}

#[test]
fn metadata_and_status_of_a_cluster_are_accepted() {
    let mut route = document("HTTPRoute", &json!({}));
    route["metadata"] = json!({
        "name": "shop.example", "namespace": "shop", "uid": "1", "resourceVersion": "5", "generation": 1,
        "creationTimestamp": null, "managedFields": [{"manager": "kubectl"}], "finalizers": [], "ownerReferences": [],
        "labels": {"app.kubernetes.io/name": "shop", "empty": ""}, "annotations": {"example.com/note": "any text: {}"},
    });
    route["status"] = json!({"parents": [{"anything": [1, 5]}]});
    let Resource::HTTPRoute(route) = resource(&route) else { panic!("an HTTPRoute") };
    assert_eq!(
        (&*route.metadata.namespace, route.metadata.labels.len(), route.metadata.annotations.len()),
        ("shop", 2, 1)
    );
}

#[test]
fn null_is_no_value() {
    let spec = json!({"hostnames": null, "rules": [{"matches": null, "name": null, "filters": null}]});
    let Resource::HTTPRoute(route) = resource(&document("HTTPRoute", &spec)) else { panic!("an HTTPRoute") };
    assert_eq!((route.spec.hostnames.len(), route.spec.rules[0].matches.len()), (0, 1));
}

#[test]
fn metadata_that_is_wrong_is_refused() {
    for (metadata, expected) in [
        (json!({}), "metadata: the field `name` is missing"),
        (json!([]), "metadata: expected a mapping, found a list"),
        (json!({"name": "Shop"}), "metadata.name: \"Shop\" cannot be a name"),
        (json!({"name": "a".repeat(254)}), "at most 253 characters"),
        (json!({"name": "a", "namespace": "a.b"}), "metadata.namespace: \"a.b\" cannot be a name"),
        (json!({"name": "a", "label": {}}), "metadata.label: there is no such field; label of"),
        (json!({"name": "a", "labels": {"a b": ""}}), "metadata.labels.a b: \"a b\" cannot be a key"),
        (json!({"name": "a", "labels": {"a": "-"}}), "metadata.labels.a: \"-\" cannot be the value of a label"),
        (json!({"name": "a", "labels": {"a": []}}), "metadata.labels.a: expected text, found a list"),
        (json!({"name": "a", "annotations": {"a": "x".repeat(300_000)}}), "metadata.annotations: 300001 bytes"),
        (json!({"generateName": "a-"}), "metadata.generateName: no name is generated here; write `name`"),
    ] {
        let mut route = document("HTTPRoute", &json!({}));
        route["metadata"] = metadata;
        let found = faults(&route);
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    }
    let mut class = document("GatewayClass", &json!({"controllerName": "leno.dev/gateway"}));
    assert_eq!(faults(&class), [] as [&str; 0]);
    class["metadata"]["namespace"] = "shop".into();
    assert!(faults(&class)[0].starts_with("metadata.namespace: documents of this kind are in no namespace"));
}

#[test]
fn each_constraint_of_a_schema_is_checked_at_its_field() {
    let listener = |listener: Value| json!({"gatewayClassName": "leno", "listeners": [listener]});
    let rule = |rule: Value| json!({"rules": [rule]});
    let matching = |value: Value| json!({"rules": [{"matches": [value]}]});
    let backend = |backend: Value| json!({"rules": [{"backendRefs": [backend]}]});
    for (kind, spec, expected) in [
        // Types.
        ("HTTPRoute", json!([]), "spec: expected a mapping with `hostnames`"),
        ("HTTPRoute", json!({"hostnames": "shop.example"}), "spec.hostnames: expected a list, found \"shop.example\""),
        ("HTTPRoute", json!({"hostnames": [{}]}), "spec.hostnames[0]: expected text, found a mapping"),
        (
            "HTTPRoute",
            backend(json!({"name": "a", "port": "80"})),
            "backendRefs[0].port: expected a whole number, found \"80\"",
        ),
        (
            "HTTPRoute",
            rule(json!({"filters": [{"type": "CORS", "cors": {"allowCredentials": "true"}}]})),
            "filters[0].cors.allowCredentials: expected true or false, found \"true\"",
        ),
        (
            "Gateway",
            listener(json!({"name": "a", "port": 443, "protocol": "HTTPS", "tls": {"options": []}})),
            "tls.options: expected a mapping, found a list",
        ),
        // Names of fields.
        ("HTTPRoute", json!({"hostname": "a"}), "spec.hostname: there is no such field; hostname of [\"hostnames\""),
        (
            "HTTPRoute",
            matching(json!({"headers": [{"name": "a", "value": "b", "kind": "Exact"}]})),
            "matches[0].headers[0].kind: there is no such field",
        ),
        // Required fields.
        (
            "Gateway",
            json!({"listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]}),
            "spec: the field `gatewayClassName` is missing",
        ),
        ("HTTPRoute", backend(json!({"port": 80})), "spec.rules[0].backendRefs[0]: the field `name` is missing"),
        (
            "ReferenceGrant",
            json!({"from": [{"group": "", "kind": "Service", "namespace": "a"}]}),
            "spec: the field `to` is missing",
        ),
        // Choices.
        (
            "HTTPRoute",
            matching(json!({"path": {"type": "Prefix", "value": "/"}})),
            "matches[0].path.type: \"Prefix\" is none of the possible values; Prefix of",
        ),
        ("HTTPRoute", matching(json!({"method": "get"})), "matches[0].method: \"get\" is none"),
        (
            "HTTPRoute",
            rule(json!({"filters": [{"type": "RequestRedirect", "requestRedirect": {"statusCode": 200}}]})),
            "statusCode: expected one of 301, 302, 303, 307, 308, found \"200\"",
        ),
        (
            "GRPCRoute",
            rule(json!({"filters": [{"type": "RequestRedirect"}]})),
            "filters[0].type: \"RequestRedirect\" is none",
        ),
        // Patterns and lengths.
        (
            "HTTPRoute",
            json!({"hostnames": ["Shop.example"]}),
            "spec.hostnames[0]: \"Shop.example\" has another form than expected; expected a host in lower case",
        ),
        (
            "HTTPRoute",
            json!({"hostnames": [""]}),
            "spec.hostnames[0]: a text of 0 characters; expected 1 to 253 characters",
        ),
        (
            "HTTPRoute",
            json!({"parentRefs": [{"name": "a", "sectionName": "A"}]}),
            "parentRefs[0].sectionName: \"A\" has another form",
        ),
        (
            "HTTPRoute",
            matching(json!({"headers": [{"name": "a b", "value": "b"}]})),
            "headers[0].name: \"a b\" has another form",
        ),
        (
            "HTTPRoute",
            matching(json!({"path": {"value": "/".repeat(1025)}})),
            "path.value: a text of 1025 characters; expected at most 1024",
        ),
        (
            "HTTPRoute",
            rule(json!({"timeouts": {"request": "1.5s"}})),
            "timeouts.request: \"1.5s\" has another form than expected; expected a duration",
        ),
        (
            "Gateway",
            listener(json!({"name": "a", "port": 80, "protocol": "_"})),
            "listeners[0].protocol: \"_\" has another form",
        ),
        ("GatewayClass", json!({"controllerName": "leno"}), "spec.controllerName: \"leno\" has another form"),
        // Bounds.
        (
            "Gateway",
            listener(json!({"name": "a", "port": 65536, "protocol": "HTTP"})),
            "listeners[0].port: 65536 is out of range; expected 1 to 65535",
        ),
        (
            "Gateway",
            listener(json!({"name": "a", "port": 0, "protocol": "HTTP"})),
            "listeners[0].port: 0 is out of range",
        ),
        (
            "HTTPRoute",
            backend(json!({"name": "a", "port": 80, "weight": -1})),
            "backendRefs[0].weight: -1 is out of range; expected 0 to 1000000",
        ),
        (
            "HTTPRoute",
            rule(json!({"retry": {"codes": [200]}})),
            "retry.codes[0]: 200 is out of range; expected 400 to 599",
        ),
        (
            "HTTPRoute",
            rule(json!({"filters": [{"type": "CORS", "cors": {"maxAge": 0}}]})),
            "cors.maxAge: 0 is out of range",
        ),
        // Numbers of elements.
        ("HTTPRoute", json!({"rules": []}), "spec.rules: a list of 0 elements; expected at least 1"),
        ("HTTPRoute", json!({"rules": vec![json!({}); 17]}), "spec.rules: a list of 17 elements; expected at most 16"),
        ("TCPRoute", json!({"rules": [{"backendRefs": []}]}), "rules[0].backendRefs: a list of 0 elements"),
        // Elements that exclude each other.
        (
            "HTTPRoute",
            matching(json!({"headers": [{"name": "a", "value": "b"}, {"name": "a", "value": "c"}]})),
            "headers[1].name: \"a\" is there twice, also in element 0",
        ),
        (
            "HTTPRoute",
            rule(json!({"filters": [{"type": "CORS", "cors": {"allowHeaders": ["a", "a"]}}]})),
            "allowHeaders[1]: \"a\" is there twice",
        ),
        (
            "Gateway",
            json!({"gatewayClassName": "leno", "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}, {"name": "a", "port": 81, "protocol": "HTTP"}]}),
            "listeners[1].name: \"a\" is there twice",
        ),
    ] {
        let found = faults(&document(kind, &spec));
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn all_faults_of_a_document_are_reported() {
    let spec =
        json!({"hostnames": ["A", "b", "C"], "rules": [{"name": "A"}, {"matches": [{"method": "x"}]}], "more": 1});
    assert_eq!(faults(&document("HTTPRoute", &spec)).len(), 5);
}

#[test]
fn versions_have_their_own_constraints() {
    let with = |version: &str, spec: Value| {
        let mut document = document("TLSRoute", &spec);
        document["apiVersion"] = format!("gateway.networking.k8s.io/{version}").into();
        faults(&document)
    };
    let rules = json!([{"backendRefs": [{"name": "a", "port": 443}]}]);
    assert_eq!(with("v1alpha2", json!({"rules": rules})), [] as [&str; 0]);
    assert!(with("v1", json!({"rules": rules}))[0].contains("the field `hostnames` is missing"));
    assert!(
        with("v2", json!({"rules": rules}))[0]
            .starts_with("apiVersion: \"v2\" is no version of `TLSRoute`; expected `gateway.networking.k8s.io/v1` or")
    );
    for kind in KINDS {
        for (version, _) in kind.versions {
            let document = json!({"apiVersion": format!("{}/{version}", crate::GROUP), "kind": kind.name, "metadata": {"name": "a"}});
            assert_eq!(faults(&document), ["spec: the field `spec` is missing; add it"], "{} {version}", kind.name);
        }
    }
    let unknown = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "UDPRoute", "metadata": {"name": "a"}, "spec": {}});
    assert!(faults(&unknown)[0].starts_with("kind: there is no kind \"UDPRoute\""));
}

/// Each default of a schema is a value that the schema accepts: documents get it unchecked.
#[test]
fn each_default_fits_its_schema() {
    fn check(object: &Object, path: &str, count: &mut usize) {
        for field in object.fields {
            let path = format!("{path}.{}", field.name);
            if let Some(default) = field.default {
                let value: Value = serde_json::from_str(default).unwrap_or_else(|error| panic!("{path}: {error}"));
                let mut faults = crate::fault::Faults::default();
                let read = super::value(&field.schema, &value, &crate::fault::Path::of("x"), &mut faults);
                assert_eq!((read, faults.len()), (super::default(field), 0), "{path}");
                *count += 1;
            }
            inner(&field.schema, &path, count);
        }
    }
    fn inner(schema: &Schema, path: &str, count: &mut usize) {
        match schema {
            Schema::Object(object) => check(object, path, count),
            Schema::List { of, .. } | Schema::Map { of, .. } => inner(of, path, count),
            _ => {}
        }
    }
    let mut count = 0;
    KINDS.iter().flat_map(|kind| kind.versions).for_each(|(name, spec)| check(spec, name, &mut count));
    assert!(count > 30, "{count}");
}

#[test]
fn each_pattern_is_an_automaton() {
    assert!(!PATTERNS.is_empty());
    for pattern in PATTERNS.iter().copied().chain([&LABEL_KEY]) {
        assert!(pattern.automaton().is_some(), "{}", pattern.words);
    }
}

#[test]
fn a_pattern_decides_from_its_first_to_its_last_character() {
    let pattern = |name: &str| PATTERNS.iter().find(|pattern| pattern.words.contains(name)).unwrap();
    for (name, text, matches) in [
        ("a host", "*.shop.example", true),
        ("a host", "shop.*.example", false),
        ("a host", "shop.example\n", false),
        ("a host", "Shop.example", false),
        ("a duration", "1h30m", true),
        ("a duration", "1.5s", false),
        ("a duration", "1s1s1s1s1s", false),
        ("header field", "x-a", true),
        ("header field", "x a", false),
        ("header field", "é", false),
        ("an API group", "", true),
        ("an API group", "leno.dev", true),
        ("an API group", "/", false),
        ("an origin", "https://*.example:8443", true),
        ("an origin", "https://shop.example/", false),
    ] {
        assert_eq!(pattern(name).matches(text), matches, "{name} {text}");
    }
}
