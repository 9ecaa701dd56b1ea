//! The status of Gateways and routes, of a real `leno up` and of a control plane.

use leno_config::Timestamp;
use leno_testkit::cluster::control_of;
use leno_testkit::control::text;
use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;

/// A Gateway at this port, a route that it takes, and one that it refuses.
fn documents(port: u16) -> String {
    let api = "---\napiVersion: gateway.networking.k8s.io/v1\n";
    let function = echo_function("echo", "  scale: {min: 1}") + &policy("own", "echo", ALLOW_ALL);
    let gateway = format!(
        "{api}kind: Gateway\nmetadata: {{name: web, namespace: test}}\nspec:\n  gatewayClassName: leno\n  listeners:\n  - {{name: http, port: {port}, protocol: HTTP, hostname: '*.example'}}\n  - {{name: other, port: 1, protocol: HTTP}}\n"
    );
    let route = |name: &str, host: &str, backend: &str| {
        format!(
            "{api}kind: HTTPRoute\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  parentRefs: [{{name: web, sectionName: http}}]\n  hostnames: [{host}]\n  rules: [{{backendRefs: [{{name: {backend}, port: 80}}]}}]\n"
        )
    };
    [
        function,
        gateway,
        route("echo", "a.example", "echo"),
        route("away", "a.test", "echo"),
        route("lost", "b.example", "absent"),
    ]
    .concat()
}

/// Faults of the route that is taken, until this moment.
fn faults(until: Timestamp) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: chaos, namespace: test}}\nspec:\n  faults:\n  - {{name: down, routes: [echo/0], delay: 1ms, abort: {{status: 503}}, until: {until}}}\n"
    )
}

fn row<'a>(rows: &'a Value, field: &str, name: &str) -> &'a Value {
    let rows = rows.as_array().unwrap_or_else(|| panic!("{rows}"));
    rows.iter().find(|row| row[field] == name).unwrap_or_else(|| panic!("no {name}: {rows:?}"))
}

fn check(routes: &Value, gateways: &Value) {
    let route = row(routes, "route", "test/echo");
    assert_eq!((&route["state"], &route["reason"]), (&json!("accepted"), &Value::Null), "{route}");
    assert_eq!(route["parents"], json!(["Gateway test/web http"]));
    let parent = &route["status"][0];
    assert_eq!(parent["controllerName"], "leno.dev/gateway");
    assert_eq!(parent["parentRef"]["sectionName"], "http");
    let accepted = json!({ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "" });
    assert_eq!(parent["conditions"][0], accepted, "{parent}");
    let away = row(routes, "route", "test/away");
    assert_eq!(away["state"], "refused", "{away}");
    assert!(away["reason"].as_str().unwrap().starts_with("NoMatchingListenerHostname: "), "{away}");
    let lost = row(routes, "route", "test/lost");
    assert_eq!(lost["state"], "partly", "{lost}");
    assert!(lost["reason"].as_str().unwrap().starts_with("BackendNotFound: "), "{lost}");
    let http = row(gateways, "listener", "http");
    assert_eq!(
        (&http["gateway"], &http["state"], &http["routes"]),
        (&json!("test/web"), &json!("programmed"), &json!(2))
    );
    let other = row(gateways, "listener", "other");
    assert_eq!(other["state"], "refused", "{other}");
    assert!(other["reason"].as_str().unwrap().starts_with("PortUnavailable: "), "{other}");
}

#[test]
fn leno_up_tells_the_status_of_its_documents() {
    let mesh = Mesh::start(&echo_function("echo", "  scale: {min: 1}"));
    assert_eq!(mesh.admin("/routes").json(), json!([]));
    mesh.write(&documents(mesh.ports.gateway));
    eventually("the routes", || (mesh.admin("/routes").json() != json!([])).then_some(()));
    check(&mesh.admin("/routes").json(), &mesh.admin("/gateways").json());
    let table = text(&mesh.leno(&["get", "routes"]));
    assert!(table.starts_with("ROUTE ") && table.contains("NoMatchingListenerHostname"), "{table}");
    let table = text(&mesh.leno(&["get", "gateways", "test/web"]));
    assert!(table.starts_with("GATEWAY ") && table.contains("PortUnavailable"), "{table}");
    let yaml = text(&mesh.leno(&["get", "route", "test/away", "-o", "yaml"]));
    assert!(yaml.contains("type: Accepted") && !yaml.contains("test/lost"), "{yaml}");
}

const OBJECTS: &str = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca, namespace: test}\n";
const NAMESPACE: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: test, labels: {team: shop}}\n";

#[test]
fn a_control_plane_takes_labels_of_namespaces_from_the_operator_alone_and_no_other_objects() {
    let control = control_of(Ipv4Addr::LOCALHOST, "");
    let applied = control.apply(&format!("{NAMESPACE}{OBJECTS}"));
    let warnings = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert!(applied.status.success() && warnings.contains("this `ConfigMap` of Kubernetes is not read"), "{applied:?}");
    let kinds: Vec<Value> = control.documents().iter().map(|document| document["kind"].clone()).collect();
    assert!(kinds.contains(&json!("Namespace")) && !kinds.contains(&json!("ConfigMap")), "{kinds:?}");
    let made = control.leno(&["token", "create", "--role", "editor", "--namespace", "test"]);
    let token = text(&made).trim().to_owned();
    for (documents, expected) in [(NAMESPACE, 403), (OBJECTS, 422)] {
        let body = json!({ "apply": [{ "name": "a.yaml", "text": documents }] });
        let (status, answer) = control.post(&token, "/v1/changes", &body);
        assert_eq!(status, expected, "{answer}");
    }
}

#[test]
fn a_control_plane_tells_readers_the_status_of_their_namespaces() {
    let control = control_of(Ipv4Addr::LOCALHOST, "  gateway: {http: '127.0.0.1:8099'}\n");
    control.apply(&documents(8099));
    let [own, other] = ["test", "other"].map(|namespace| {
        let made = control.leno(&["token", "create", "--role", "reader", "--namespace", namespace]);
        text(&made).trim().to_owned()
    });
    let rows = |token: &str, path: &str| control.get_as(token, path).1["rows"].clone();
    check(&rows(&own, "/v1/routes"), &rows(&own, "/v1/gateways"));
    assert_eq!((rows(&other, "/v1/routes"), rows(&other, "/v1/gateways")), (json!([]), json!([])));
    assert!(text(&control.leno(&["get", "routes"])).contains("BackendNotFound"));
}

#[test]
fn readers_learn_which_faults_are_in_force_and_until_when() {
    let mesh = Mesh::start(&echo_function("echo", "  scale: {min: 1}"));
    let until = Timestamp::now().after(Duration::from_secs(3600)).seconds();
    mesh.write(&(documents(mesh.ports.gateway) + &faults(until)));
    eventually("the routes", || (mesh.admin("/routes").json() != json!([])).then_some(()));
    let routes = mesh.admin("/routes").json();
    assert_eq!(row(&routes, "route", "test/echo")["faults"], json!([format!("chaos/faults/down until {until}")]));
    assert_eq!(row(&routes, "route", "test/lost")["faults"], json!([]));
    let text_of = |arguments: &[&str]| text(&mesh.leno(arguments));
    for arguments in [&["get", "routes"][..], &["get", "alerts"], &["doctor"]] {
        let shown = text_of(arguments);
        assert!(shown.contains("chaos/faults/down") && shown.contains(&until.to_string()), "{arguments:?}: {shown}");
    }
    let alert = mesh.admin("/alerts").json();
    let alert = row(&alert, "kind", "fault");
    assert_eq!((&alert["severity"], &alert["subject"]), (&json!("info"), &json!("Policy test/chaos")));
    let ask = || mesh.curl("/", &["-H", "host: a.example"]);
    let aborted = eventually("the fault", || Some(ask()).filter(|answer| answer.status == 503));
    let told = mesh.explain(aborted.header("x-request-id").unwrap());
    for part in [
        "  fault      chaos/faults/down of policy test/chaos, until ",
        "             it delayed the request by ",
        "             this 503 is an injected fault: the back end got nothing",
        "  response   503 FI: an injected fault: chaos/faults/down, until ",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // The documents stay, and the fault ends.
    let soon = Timestamp::now().after(Duration::from_millis(1500));
    mesh.write(&(documents(mesh.ports.gateway) + &faults(soon)));
    eventually("the end", || ask().status == 200);
    assert!(Timestamp::now() >= soon, "it ended too soon");
    assert_eq!(row(&mesh.admin("/routes").json(), "route", "test/echo")["faults"], json!([]));
}
