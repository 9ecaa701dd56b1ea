//! TCPRoutes and TLSRoutes in a real `leno up`: from clients outside to functions that take TCP.

use leno_testkit::eventually;
use leno_testkit::free_port;
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{Mesh, example, leno_program, policy, public_folder};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const API: &str = "---\napiVersion: gateway.networking.k8s.io/v1\n";
const GREETING: &str = "I am test/store\n";

/// A function in a jail that greets and then echoes at its ports, and a Gateway with these ports: TCP,
/// TLS, and TCP for a port that no policy allows.
fn documents([tcp, tls, closed]: [u16; 3], secret: &str, allowed: &str) -> String {
    let store = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: store, namespace: test}}\nspec:\n  command: [\"{}\"]\n  workingDirectory: public\n  env: {{ECHO_PORTS: \"6379 6380 8443\"}}\n  ports: [{{port: 6379}}, {{port: 6380}}, {{port: 8443, protocol: tls}}]\n",
        example("wire").display()
    );
    let rules = format!("  authorization: {{rules: [{{name: clients, action: allow, to: [{{ports: [{allowed}]}}]}}]}}");
    let gateway = format!(
        "{API}kind: Gateway\nmetadata: {{name: edge, namespace: test}}\nspec:\n  gatewayClassName: leno\n  listeners:\n  - {{name: tcp, port: {tcp}, protocol: TCP}}\n  - {{name: passed, port: {tls}, protocol: TLS, hostname: '*.passed.example', tls: {{mode: Passthrough}}}}\n  - {{name: ended, port: {tls}, protocol: TLS, hostname: ended.example, tls: {{certificateRefs: [{{name: edge-tls}}]}}}}\n  - {{name: closed, port: {closed}, protocol: TCP}}\n"
    );
    let route = |kind: &str, name: &str, hosts: &str, backends: &str| {
        let hosts = if hosts.is_empty() { String::new() } else { format!("  hostnames: [{hosts}]\n") };
        format!(
            "{API}kind: {kind}\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  parentRefs: [{{name: edge, sectionName: {name}}}]\n{hosts}  rules: [{{backendRefs: [{backends}]}}]\n"
        )
    };
    [
        store,
        policy("store", "store", &rules),
        gateway,
        route("TCPRoute", "tcp", "", "{name: store, port: 6379}, {name: store, port: 6380, weight: 0}"),
        route("TLSRoute", "passed", "a.passed.example", "{name: store, port: 8443}"),
        route("TLSRoute", "ended", "ended.example", "{name: store, port: 6379}"),
        route("TCPRoute", "closed", "", "{name: store, port: 6380}"),
        secret.to_owned(),
    ]
    .concat()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The bytes that come back before the connection ends or so many have come.
fn received(stream: &mut impl Read, count: usize) -> Vec<u8> {
    let mut all = vec![0; count];
    let mut read = 0;
    while read < count
        && let Ok(more @ 1..) = stream.read(&mut all[read..])
    {
        read += more;
    }
    all.truncate(read);
    all
}

fn client(authority: &CertificateAuthority, name: &'static str) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap()
}

#[test]
fn connections_follow_tcp_and_tls_routes_as_far_as_policies_allow() {
    let ports @ [tcp, tls, closed] = [free_port(), free_port(), free_port()];
    let authority = CertificateAuthority::default();
    let (certificate, key) = authority.issue(&["ended.example"]);
    let block = |text: String| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
    let secret = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {{name: edge-tls, namespace: test}}\nspec:\n  stringData:\n    tls.crt: |\n{}    tls.key: |\n{}",
        block(certificate.pem()),
        block(key.serialize_pem())
    );
    let mesh = "  instances: {isolation: strict, accounts: node}\n";
    let all = documents(ports, &secret, "6379, 8443");
    let mut mesh = Mesh::start_with_command(Command::new(leno_program()), mesh, &all, |folder| {
        let file = folder.join("mesh.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let permitted = format!("gateway: {{ports: [{tcp}, {tls}, {closed}], ");
        fs::write(file, text.replace("gateway: {", &permitted)).unwrap();
        public_folder(folder);
    });

    // TCP: both directions, and the end of one is passed on.
    let echoes = |port| {
        let mut stream = connect(port);
        // The gateway may have reset a refused connection by now.
        let _ = stream.write_all(b"ping").and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        received(&mut stream, 100)
    };
    assert_eq!(String::from_utf8(echoes(tcp)).unwrap(), format!("{GREETING}ping"));
    // No policy allows the other port.
    assert!(echoes(closed).is_empty());
    // The server gets the hello as the client has sent it.
    let mut hello = Vec::new();
    client(&authority, "a.passed.example").write_tls(&mut hello).unwrap();
    let mut stream = connect(tls);
    for piece in hello.chunks(50) {
        stream.write_all(piece).unwrap();
    }
    let wanted = [GREETING.as_bytes(), &hello].concat();
    assert_eq!(received(&mut stream, wanted.len()), wanted);
    // Names of no route, and no TLS.
    for name in ["b.passed.example", "else.example"] {
        let mut hello = Vec::new();
        client(&authority, name).write_tls(&mut hello).unwrap();
        let mut stream = connect(tls);
        stream.write_all(&hello).unwrap();
        assert!(received(&mut stream, 100).is_empty(), "{name}");
    }
    let mut stream = connect(tls);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(received(&mut stream, 100).is_empty());
    // The gateway ends TLS.
    let mut stream = StreamOwned::new(client(&authority, "ended.example"), connect(tls));
    stream.write_all(b"ping").unwrap();
    let wanted = format!("{GREETING}ping");
    assert_eq!(received(&mut stream, wanted.len()), wanted.as_bytes());

    let flows = |mesh: &Mesh| -> Vec<Value> {
        let output = mesh.leno(&["observe", "--json", "--last", "1000", "--kind", "connection"]);
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    mesh.wait_for("the refused connection", |mesh| {
        flows(mesh).iter().any(|row| row["verdict"] == "deny" && row["target"] == "test/store")
    });
    let rows = mesh.admin("/gateways").json();
    let listener = |name: &str| rows.as_array().unwrap().iter().find(|row| row["listener"] == name).unwrap().clone();
    for (name, kind) in [("tcp", "TCPRoute"), ("passed", "TLSRoute"), ("ended", "TLSRoute")] {
        let row = listener(name);
        assert_eq!((&row["state"], &row["routes"], &row["kinds"][0]), (&"programmed".into(), &1.into(), &kind.into()));
    }
    // An open connection ends with its permission.
    let mut open = connect(tcp);
    assert_eq!(received(&mut open, GREETING.len()), GREETING.as_bytes());
    mesh.write(&documents(ports, &secret, "8443"));
    assert!(received(&mut open, 1).is_empty());
    eventually("the refusal", || echoes(tcp).is_empty().then_some(()));
}
