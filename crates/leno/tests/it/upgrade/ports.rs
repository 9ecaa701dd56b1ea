//! Ports that Gateway documents open, in a real `leno up`: opened, in use, with certificates, handed
//! over, and closed.

use super::application;
use super::clients::Clients;
use super::up::UpgradedMesh;
use leno_testkit::control::text;
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{Mesh, leno_program};
use leno_testkit::{eventually, free_port, try_curl};
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

const API: &str = "---\napiVersion: gateway.networking.k8s.io/v1\n";

/// The application, a Gateway with these listeners, and a route to the front.
fn documents(listeners: &[String], secret: &str) -> String {
    let route = "kind: HTTPRoute\nmetadata: {name: front, namespace: test}\nspec:\n  parentRefs: [{name: edge}]\n  rules: [{backendRefs: [{name: front, port: 80}]}]\n";
    let gateway = format!(
        "kind: Gateway\nmetadata: {{name: edge, namespace: test}}\nspec:\n  gatewayClassName: leno\n  listeners: [{}]\n",
        listeners.join(", ")
    );
    format!("{}{API}{gateway}{API}{route}{secret}", application(""))
}

/// A StoredSecret with a certificate and its key.
fn secret(certificate: &str, key: &str) -> String {
    let block = |text: &str| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {{name: edge-tls, namespace: test}}\nspec:\n  stringData:\n    tls.crt: |\n{}    tls.key: |\n{}",
        block(certificate),
        block(key)
    )
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn listener(mesh: &UpgradedMesh, name: &str) -> Value {
    mesh.rows("gateways").into_iter().find(|row| row["listener"] == name).unwrap_or_default()
}

/// The reason why a listener is not programmed.
fn reason(mesh: &UpgradedMesh, name: &str) -> Option<String> {
    let row = listener(mesh, name);
    let is_programmed =
        row["conditions"].as_array()?.iter().any(|it| it["type"] == "Programmed" && it["status"] == "True");
    (!is_programmed && row["state"] == "refused").then(|| row["reason"].to_string())
}

#[test]
fn ports_of_gateway_documents_open_and_close_and_outlive_their_process() {
    let [plain, taken, tls] = [free_port(), free_port(), free_port()];
    let authority = CertificateAuthority::default();
    let issue = || {
        let (certificate, key) = authority.issue(&["a.example"]);
        (certificate.pem(), key.serialize_pem())
    };
    let ((certificate, key), (_, other_key)) = (issue(), issue());
    let listeners = [
        format!("{{name: plain, port: {plain}, protocol: HTTP}}"),
        format!("{{name: taken, port: {taken}, protocol: HTTP}}"),
        format!(
            "{{name: tls, port: {tls}, protocol: HTTPS, hostname: a.example, tls: {{certificateRefs: [{{name: edge-tls}}]}}}}"
        ),
    ];
    let other = TcpListener::bind(local(taken)).unwrap();
    let all = documents(&listeners, &secret(&certificate, &key));
    let mesh = Mesh::start_with_command(Command::new(leno_program()), "", &all, |folder| {
        let file = folder.join("mesh.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let permitted = format!("gateway: {{ports: [{plain}, {taken}, {tls}], ");
        fs::write(file, text.replace("gateway: {", &permitted)).unwrap();
    });
    let mut mesh = UpgradedMesh { mesh, pid: None };
    // The tests of `leno-proxy` look at the certificates themselves.
    let over_tls = || {
        let resolved = format!("a.example:{tls}:127.0.0.1");
        try_curl(&format!("https://a.example:{tls}/"), &["--insecure", "--resolve", &resolved])
    };
    let is_served =
        |port: u16| try_curl(&format!("http://{}/", local(port)), &[]).filter(|answer| answer.status == 200);
    eventually("the open port", || is_served(plain));
    eventually("the port with TLS", || over_tls().filter(|answer| answer.status == 200));
    // A port that another process has, until it has it no more.
    let why = eventually("the report", || reason(&mesh, "taken"));
    assert!(why.contains("Pending: at the node") && why.contains(&format!("port {taken} cannot be opened")), "{why}");
    assert_eq!(reason(&mesh, "plain"), None);
    drop(other);
    eventually("the port that is free now", || is_served(taken));
    eventually("the new report", || reason(&mesh, "taken").is_none().then_some(()));

    // No request fails at the ports while the process is replaced.
    let clients = Clients::start(local(plain));
    mesh.upgrade();
    assert!(mesh.mesh.wait().success());
    clients.stop();
    assert!(over_tls().is_some_and(|answer| answer.status == 200));

    // A key of another certificate: the document is named, and its key is nowhere.
    mesh.mesh.write(&documents(&listeners, &secret(&certificate, &other_key)));
    let why = eventually("the report", || reason(&mesh, "tls"));
    assert!(why.contains("InvalidCertificateRef") && why.contains("StoredSecret `test/edge-tls`"), "{why}");
    assert!(why.contains("this key does not belong to the certificate"), "{why}");
    let digits = other_key.lines().nth(1).unwrap();
    let shown =
        ["gateways", "identities", "routes"].map(|listing| text(&mesh.mesh.leno(&["get", listing, "-o", "yaml"])));
    assert!(!shown.concat().contains(digits) && !mesh.mesh.output().concat().contains(digits));
    // A renewed one is in use without a new connection of anything else.
    let (certificate, key) = issue();
    mesh.mesh.write(&documents(&listeners, &secret(&certificate, &key)));
    eventually("the renewed certificate", || over_tls().filter(|answer| answer.status == 200));

    // A port closes with its listener.
    mesh.mesh.write(&documents(&listeners[..1], ""));
    for port in [taken, tls] {
        eventually("the port to close", || TcpStream::connect(local(port)).is_err().then_some(()));
    }
    assert!(is_served(plain).is_some());
}
