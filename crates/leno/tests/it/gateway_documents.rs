//! Documents of the Gateway API at a control plane: stored, listed, bounded and deleted like others.

use leno_testkit::cluster::control;
use leno_testkit::control::{Control, text};
use serde_json::{Value, json};

fn token(control: &Control, namespace: &str) -> String {
    let made = control.leno(&["token", "create", "--role", "editor", "--namespace", namespace]);
    text(&made).trim().to_owned()
}

fn apply(control: &Control, token: &str, documents: &str) -> (u16, Value) {
    control.post(token, "/v1/changes", &json!({ "apply": [{ "name": "x.yaml", "text": documents }] }))
}

fn route(name: &str, namespace: &str, spec: &str) -> String {
    let metadata = format!("{{name: {name}, namespace: {namespace}}}");
    format!("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {metadata}\nspec:\n  {spec}\n")
}

#[test]
fn routes_belong_to_the_tenant_of_their_namespace() {
    let mut control = control();
    let [own, other] = ["shop", "other"].map(|namespace| token(&control, namespace));
    let shop = route("shop.v2", "shop", "hostnames: [shop.example]");
    let grant = "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: edge, namespace: shop}\n\
                 spec:\n  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: edge}]\n  to: [{group: \"\", kind: Service}]\n";
    let (status, answer) = apply(&control, &own, &format!("{shop}---\n{grant}"));
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = apply(&control, &other, &shop);
    assert_eq!(status, 403, "{answer}");

    // A class is of the whole mesh.
    let class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: leno}\nspec: {controllerName: leno.dev/gateway}\n";
    assert_eq!(apply(&control, &own, class).0, 403);
    assert_eq!(apply(&control, &control.token(), class).0, 200);

    // A mistake has its line and field.
    let (status, answer) = apply(&control, &own, &route("bad", "shop", "hostnames: [Shop.example]"));
    assert!((400..500).contains(&status), "{status} {answer}");
    let problem = answer.to_string();
    assert!(problem.contains("spec.hostnames[0]") && problem.contains("a host in lower case"), "{problem}");

    // Stored documents are there after a restart.
    control.kill();
    control.start_again();
    let listed = text(&control.leno(&["get", "documents", "httproute", "shop/shop.v2", "-o", "yaml"]));
    assert!(listed.contains("hostnames: [shop.example]"), "{listed}");
    let kinds = |control: &Control| -> Vec<String> {
        control.documents().iter().filter_map(|stored| Some(stored["kind"].as_str()?.to_owned())).collect()
    };
    assert_eq!(kinds(&control), ["GatewayClass", "HTTPRoute", "Mesh", "ReferenceGrant"]);

    let deleted = control.leno(&["delete", "HTTPRoute", "shop/shop.v2"]);
    assert!(deleted.status.success(), "{deleted:?}");
    assert_eq!(kinds(&control), ["GatewayClass", "Mesh", "ReferenceGrant"]);
}

#[test]
fn a_quota_bounds_routes_and_their_matches() {
    let control = control();
    let quota = "apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: shop}\nspec: {routes: 2, routeMatches: 4}\n";
    assert_eq!(apply(&control, &control.token(), quota).0, 200);
    let own = token(&control, "shop");
    let with_hosts = |name: &str, hosts: &str| route(name, "shop", &format!("hostnames: [{hosts}]"));
    assert_eq!(apply(&control, &own, &with_hosts("first", "a.example, b.example")).0, 200);
    for (documents, bound) in [
        (with_hosts("second", "c.example, d.example, e.example"), "5 of `routeMatches`"),
        (format!("{}---\n{}", with_hosts("second", "c.example"), with_hosts("third", "d.example")), "3 of `routes`"),
    ] {
        let (status, answer) = apply(&control, &own, &documents);
        assert!(status == 403 && answer.to_string().contains(bound), "{status} {answer}");
    }
    assert_eq!(apply(&control, &own, &with_hosts("second", "c.example, d.example")).0, 200);
    let listed: Value = serde_json::from_str(&text(&control.leno(&["get", "namespaces", "-o", "json"]))).unwrap();
    let shop = listed.as_array().unwrap().iter().find(|row| row["namespace"] == "shop").unwrap();
    assert_eq!((&shop["routes"], &shop["route_matches"]), (&"2/2".into(), &"4/4".into()), "{shop}");
}
