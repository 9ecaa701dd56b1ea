//! Certificates and credentials from a stored secret.

use super::{HERE, caller, seen, start};
use crate::outside::{Answer, Names, Server, external, reading};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_testkit::keys::CertificateAuthority;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The document with the files of a folder, and a token.
fn secret(folder: &Path, token: &str) -> String {
    let mut text =
        "apiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {name: api, namespace: test}\nspec:\n  \
                    data:\n"
            .to_owned();
    for file in ["ca.pem", "client.pem", "client.key"] {
        writeln!(text, "    {file}: {}", STANDARD.encode(fs::read(folder.join(file)).unwrap())).unwrap();
    }
    format!("{text}  stringData: {{token: {token}}}\n")
}

#[test]
fn an_external_uses_a_stored_secret_and_a_changed_one_at_once() {
    let (names, authority, files) = (Names::start(), CertificateAuthority::default(), tempfile::tempdir().unwrap());
    names.set("api.shop.example", Answer::Addresses(vec![HERE], 60));
    fs::write(files.path().join("ca.pem"), authority.pem()).unwrap();
    authority.write(files.path(), "client", &["node.example"]);
    let server = Server::https("127.0.0.1:0", &authority, &["api.shop.example"], Some(&authority));
    let stored = |key: &str| format!("{{secret: api, key: {key}}}");
    let (ca, certificate, key, token) = (stored("ca.pem"), stored("client.pem"), stored("client.key"), stored("token"));
    let spec = format!(
        "  hosts: [api.shop.example]\n  resolvesTo: [127.0.0.0/8]\n  ports: [{{port: {}, protocol: https}}]\n  \
         tls: {{caFile: {ca}, certificate: {certificate}, key: {key}}}\n  \
         credentials: [{{scheme: Bearer, from: {token}}}]",
        server.port()
    );
    let documents = caller("api") + &external("api", &spec) + &reading("api", "");
    let mut mesh = start(&names, &documents, |folder| {
        fs::write(folder.join("secret.yaml"), secret(files.path(), "swordfish")).unwrap();
    });
    let call = seen(&mesh, "api.shop.example", "/items");
    assert_eq!((&call["headers"]["authorization"], &call["tls"]["client"]), (&"Bearer swordfish".into(), &true.into()));
    // No instance starts anew for it.
    fs::write(mesh.folder.path().join("secret.yaml"), secret(files.path(), "trout")).unwrap();
    mesh.wait_for("the new secret", |mesh| {
        mesh.get("/call/api.shop.example/").json()["headers"]["authorization"] == "Bearer trout"
    });
    let output = mesh.output().join("\n");
    assert!(!output.contains("swordfish") && !output.contains("trout"), "{output}");
}
