//! TLS to external services by BackendTLSPolicy documents, for routes of the gateway and for calls.

use super::{HERE, caller, reason, seen, start, status};
use crate::outside::{Answer, Names, Server, external};
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, policy};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

const API: &str = "---\napiVersion: gateway.networking.k8s.io/v1\n";
const BY_MAP: &str = "caCertificateRefs: [{group: \"\", kind: ConfigMap, name: bank}]";

/// An external service, with its policy's `validation` and further fields of the policy.
struct Service {
    name: &'static str,
    validation: String,
    more: &'static str,
    /// The name in SNI; `None`: requests fail.
    sni: Option<&'static str>,
    /// The status of a request that follows a route.
    routed: u16,
}

fn services() -> Vec<Service> {
    let service = |name, hostname: &str, more: &str, sni, routed| Service {
        name,
        validation: format!("{{hostname: {hostname}, {more}}}"),
        more: "",
        sni,
        routed,
    };
    let names = |names: &str| format!("{BY_MAP}, subjectAltNames: [{names}]");
    let foreign = "{type: Hostname, hostname: other.example}";
    let own = "{type: Hostname, hostname: api.internal}";
    vec![
        service("plain", "api.internal", BY_MAP, Some("api.internal"), 200),
        service("secret", "api.internal", &BY_MAP.replace("ConfigMap", "Secret"), Some("api.internal"), 200),
        service("wrong", "other.internal", BY_MAP, None, 503),
        service("named", "any.internal", &names(&format!("{foreign}, {own}")), Some("any.internal"), 200),
        service(
            "wild",
            "any.internal",
            &names("{type: Hostname, hostname: \"*.internal\"}"),
            Some("any.internal"),
            200,
        ),
        service(
            "uri",
            "any.internal",
            &names("{type: URI, uri: \"spiffe://bank.example/api\"}"),
            Some("any.internal"),
            200,
        ),
        service("misnamed", "api.internal", &names(foreign), None, 503),
        service("system", "api.internal", "wellKnownCACertificates: System", None, 503),
        service("missing", "api.internal", &BY_MAP.replace("name: bank", "name: absent"), None, 500),
        service("keyless", "api.internal", &BY_MAP.replace("name: bank", "name: keyless"), None, 500),
        service("kind", "api.internal", &BY_MAP.replace("ConfigMap", "Pod"), None, 500),
        service("unknown", "api.internal", "wellKnownCACertificates: leno.dev/none", None, 500),
        Service {
            more: "  options: {example.com/least: \"1.3\"}\n",
            ..service("optional", "api.internal", BY_MAP, None, 500)
        },
    ]
}

fn documents(services: &[Service], port: u16, gateway: u16) -> String {
    let names: Vec<&str> = services.iter().map(|service| service.name).collect();
    let mut text = caller(&names.join(", "));
    writeln!(
        text,
        "{API}kind: Gateway\nmetadata: {{name: gate, namespace: test}}\nspec: {{gatewayClassName: leno, listeners: [{{name: http, port: {gateway}, protocol: HTTP}}]}}\n{API}kind: HTTPRoute\nmetadata: {{name: all, namespace: test}}\nspec:\n  parentRefs: [{{name: gate}}]\n  hostnames: [routed.example]\n  rules:"
    )
    .unwrap();
    for name in &names {
        writeln!(
            text,
            "  - matches: [{{path: {{value: /{name}}}}}]\n    filters: [{{type: URLRewrite, urlRewrite: {{hostname: {name}.shop.example}}}}]\n    backendRefs: [{{name: {name}, port: {port}}}]"
        )
        .unwrap();
    }
    for (index, Service { name, validation, more, .. }) in services.iter().enumerate() {
        // The node begins TLS, whatever the External says.
        let protocol = if index % 2 == 0 { "http" } else { "https" };
        text += &external(
            name,
            &format!(
                "  hosts: [{name}.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {port}, protocol: {protocol}}}]"
            ),
        );
        text += &policy(name, name, ALLOW_ALL);
        let kind = if index % 3 == 0 { "group: leno.dev, kind: External" } else { "group: \"\", kind: Service" };
        write!(
            text,
            "{API}kind: BackendTLSPolicy\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  targetRefs: [{{{kind}, name: {name}}}]\n  validation: {validation}\n{more}"
        )
        .unwrap();
    }
    text
}

fn secret(name: &str, key: &str, value: &str) -> String {
    let value = value.replace('\n', "\n      ");
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  stringData:\n    {key}: |\n      {value}\n"
    )
}

fn routed(mesh: &Mesh, name: &str) -> u16 {
    mesh.curl(&format!("/{name}"), &["--header", "host: routed.example"]).status
}

#[test]
fn backend_tls_policies_say_whom_nodes_trust_and_without_them_nothing_is_sent() {
    let (names, authority, services) = (Names::start(), CertificateAuthority::default(), services());
    let (certificate, key) = authority.issue_with_uri("api.internal", "spiffe://bank.example/api");
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let server = Server::with_certificate("127.0.0.1:0", certificate.der().clone(), key, None);
    for service in &services {
        names.set(&format!("{}.shop.example", service.name), Answer::Addresses(vec![HERE], 60));
    }
    let mut mesh = start(&names, &documents(&services, server.port(), 1), |folder| {
        let other = CertificateAuthority::default().pem();
        let both = format!("{}{other}", authority.pem());
        fs::write(folder.join("bank.yaml"), secret("bank", "ca.crt", &both)).unwrap();
        fs::write(folder.join("keyless.yaml"), secret("keyless", "ca.pem", &other)).unwrap();
    });
    mesh.write(&documents(&services, server.port(), mesh.ports.gateway));
    // The caller is exposed at all other hosts.
    mesh.wait_for("the route", |mesh| routed(mesh, "missing") == 500);
    for Service { name, sni, routed: expected, .. } in &services {
        let host = format!("{name}.shop.example:{}", server.port());
        let before = server.requests();
        assert_eq!(routed(&mesh, name), *expected, "{name}");
        match sni {
            Some(sni) => {
                let seen = seen(&mesh, &host, "/items");
                assert_eq!((&seen["tls"]["sni"], &seen["uri"]), (&(*sni).into(), &"/items".into()), "{name}");
                assert_eq!(server.requests(), before + 2, "{name}");
            }
            None => {
                assert_eq!(status(&mesh, &host, "/items"), 503, "{name}");
                assert_eq!(server.requests(), before, "{name}: nothing was sent");
            }
        }
    }
    let host = |name: &str| format!("{name}.shop.example");
    reason(&mut mesh, &host("misnamed"), "ertificate");
    reason(&mut mesh, &host("missing"), "BackendTLSPolicy cannot be followed");
    let rows = mesh.admin("/routes").json();
    let row = |name: &str| -> Value {
        let rows = rows.as_array().unwrap().iter();
        let is_one = |row: &&Value| row["route"] == format!("test/{name}") && row["kind"] == "BackendTLSPolicy";
        rows.clone().find(is_one).unwrap_or_else(|| panic!("no {name}: {rows:?}")).clone()
    };
    assert_eq!(
        (&row("plain")["state"], &row("plain")["parents"][0]),
        (&"accepted".into(), &"Gateway test/gate".into())
    );
    assert_eq!(row("missing")["state"], "refused");
    // A renewed authority is trusted at once, and one that is gone no longer.
    let path = mesh.folder.path().join("bank.yaml");
    fs::write(&path, secret("bank", "ca.crt", &CertificateAuthority::default().pem())).unwrap();
    mesh.wait_for("the other authority", |mesh| routed(mesh, "plain") == 503);
    fs::write(path, secret("bank", "ca.crt", &authority.pem())).unwrap();
    mesh.wait_for("the authority again", |mesh| routed(mesh, "plain") == 200);
}
